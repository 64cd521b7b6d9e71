"""The controller on recorded answers of a real pair: near the best fixed length, and never much below plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.recorded import N_DRAFT, Recorded, load
from support.simulator import F16, Machine, calibrated, follow

from specgguf.control import acceptance, costs
from specgguf.control.controller import Adaptive, Fixed

TEXTS = load()
# Milliseconds measured on 2-core CPUs for a 1.5B target and a 0.5B draft. How far memory keeps up decides whether the
# same file is memory-bound (a slow plain pass, a cheap wide one) or not.
MACHINES = {
    "f16": F16,
    "f16, fast memory": Machine([0.060, 0.094, 0.106, 0.116, 0.128, 0.134], 0.0115, draft_prefill_s=0.0018),
    "f16, slower memory": Machine([0.080, 0.098, 0.108, 0.116, 0.128, 0.134], 0.0115, draft_prefill_s=0.0018),
    "q8": Machine([0.062, 0.098, 0.113, 0.119, 0.204, 0.202], 0.015, draft_prefill_s=0.004),
    "q8, fast memory": Machine([0.043, 0.120, 0.143, 0.160, 0.220, 0.240], 0.012, draft_prefill_s=0.0018),
    "q4": Machine([0.0255, 0.0495, 0.0665, 0.0807, 0.0985, 0.1140], 0.0114, draft_prefill_s=0.0018),
}
SEEDS, TURNS = range(3), 4

cells = pytest.mark.parametrize("text", TEXTS, ids=lambda t: f"{t.kind}-{t.temperature:g}")
machines = pytest.mark.parametrize("name", MACHINES)


def fixed(k: int, text: Recorded, machine: Machine) -> float:
    return float(np.mean([follow(Fixed(k), machine, text, seed=seed, n_turns=TURNS).seconds for seed in SEEDS]))


def adaptive(text: Recorded, machine: Machine) -> float:
    seconds = []
    for seed in SEEDS:
        controller = Adaptive(N_DRAFT, calibrated(machine, N_DRAFT, seed))
        seconds.append(follow(controller, machine, text, seed=seed, n_turns=TURNS).seconds)
    return float(np.mean(seconds))


@cells
@machines
def test_near_the_best_fixed_length(name: str, text: Recorded) -> None:
    best = min(fixed(k, text, MACHINES[name]) for k in range(N_DRAFT + 1))
    assert best / adaptive(text, MACHINES[name]) >= 0.93


@cells
@machines
def test_never_much_slower_than_plain(name: str, text: Recorded) -> None:
    assert fixed(0, text, MACHINES[name]) / adaptive(text, MACHINES[name]) >= 0.95


@machines
def test_all_texts_together_are_as_fast_as_the_best_fixed_lengths(name: str) -> None:
    """What is lost on one text is won on another: by stopping a draft early, and by lookups."""
    ratios = []
    for text in TEXTS:
        best = min(fixed(k, text, MACHINES[name]) for k in range(N_DRAFT + 1))
        ratios.append(best / adaptive(text, MACHINES[name]))
    assert np.mean(ratios) >= 0.97


# Tokens written -> how much longer everything takes: another program for a while, in bursts, a hot machine for good.
BUSY: dict[str, Callable[[int], float]] = {
    "for a while": lambda n: 1.7 if 60 <= n % 256 < 140 else 1.0,
    "in bursts": lambda n: 1.8 if n // 12 % 3 == 0 else 1.0,
    "for good": lambda n: 2.0 if n >= 40 else 1.0,
    "no more": lambda n: 0.5 if n >= 60 else 1.0,
}
LONG = Machine([0.026, 0.049, 0.066, 0.079, 0.098, 0.112, 0.125, 0.132, *[0.153] * 8], 0.0115, draft_prefill_s=0.0018)


def of_plain(text: Recorded, machine: Machine, draft_max: int) -> float:
    """Plain decoding's time over the controller's."""
    seconds = []
    for seed in SEEDS:
        controller = Adaptive(draft_max, calibrated(machine, draft_max, seed))
        seconds.append(follow(controller, machine, text, seed=seed, n_turns=TURNS).seconds)
    return fixed(0, text, machine) / float(np.mean(seconds))


def of_plain_on_all(load: str) -> list[float]:
    return [of_plain(text, replace(LONG, load=BUSY[load], noise=0.04), 15) for text in TEXTS]


@pytest.mark.parametrize("load", BUSY)
def test_a_busy_machine_is_not_worth_a_draft_for_being_busy(load: str) -> None:
    """Plain passes are seen often; were wide ones priced as of better times, drafts would look cheap."""
    ratios = of_plain_on_all(load)
    assert min(ratios) >= 0.88
    assert np.mean(ratios) >= 0.97


@pytest.mark.parametrize("load", ["in bursts", "for good"])
def test_prices_of_better_times_are_caught(load: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "FRESH", 1.0)  # nothing follows
    assert np.mean(of_plain_on_all(load)) < 0.97


def test_a_controller_that_believes_a_few_samples_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    text = next(t for t in TEXTS if (t.kind, t.temperature) == ("code", 0.0))
    machine = MACHINES["q8"]
    best = min(fixed(k, text, machine) for k in range(N_DRAFT + 1))
    assert best / adaptive(text, machine) >= 0.93
    monkeypatch.setattr(acceptance, "GAMMA", 0.5)
    assert best / adaptive(text, machine) < 0.93


def test_always_drafting_is_caught() -> None:
    story = next(t for t in TEXTS if (t.kind, t.temperature) == ("story", 0.0))
    machine = MACHINES["f16, fast memory"]
    assert fixed(0, story, machine) / fixed(5, story, machine) < 0.8
