"""The controller on recorded answers of a real pair: near the best fixed length, and never much below plain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.recorded import N_DRAFT, Recorded
from support.simulator import Machine, calibrated, follow
from support.worlds import BUSY, LONG, answers
from support.worlds import RECORDED_MACHINES as MACHINES
from support.worlds import RECORDED_TURNS as TURNS

from specgguf.control import acceptance, costs
from specgguf.control.controller import Adaptive, Fixed

TEXTS = answers()
SEEDS = range(3)

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
    """Plain passes are seen often; if large ones cost what they did in better times, drafts would look cheap."""
    ratios = of_plain_on_all(load)
    assert min(ratios) >= 0.88
    assert np.mean(ratios) >= 0.97


@pytest.mark.parametrize("load", ["in bursts", "for good"])
def test_costs_of_better_times_are_caught(load: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def learn_plain(self: costs.Costs, batch_size: int, seconds: float) -> None:
        if batch_size == 1:
            self._learn(self._verify[1], seconds)
            self._curve = []

    monkeypatch.setattr(costs.Costs, "observe_verify", learn_plain)  # larger batches cost what they did at load
    assert np.mean(of_plain_on_all(load)) < 0.97


def test_a_controller_that_believes_a_few_samples_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    text = next(t for t in TEXTS if (t.kind, t.temperature) == ("code", 0.0))
    machine = MACHINES["q8"]
    best = min(fixed(k, text, machine) for k in range(N_DRAFT + 1))
    assert best / adaptive(text, machine) >= 0.93
    monkeypatch.setattr(acceptance, "DECAY", 0.5)
    assert best / adaptive(text, machine) < 0.93


def test_always_drafting_is_caught() -> None:
    story = next(t for t in TEXTS if (t.kind, t.temperature) == ("story", 0.0))
    machine = MACHINES["f16, fast memory"]
    assert fixed(0, story, machine) / fixed(5, story, machine) < 0.8
