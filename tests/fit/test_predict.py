"""Predicted speed-ups: limits that must hold, and regimes that were measured."""

from __future__ import annotations

import pytest

from specgguf import presets
from specgguf.fit import predict
from specgguf.fit.hardware import described
from specgguf.fit.predict import PairCosts, best, break_even, expected_tokens, from_measured, speed_up
from specgguf.models import remote_header

# Seconds of a pass over n tokens, by the target's weights, of a 1.5B target on two cores; a draft token.
MEASURED = {
    "F16": ({1: 0.105, 2: 0.126, 4: 0.140, 5: 0.151, 6: 0.158, 8: 0.216}, 0.014),
    "Q8_0": ({1: 0.073, 2: 0.116, 4: 0.134, 5: 0.204, 6: 0.202, 8: 0.186}, 0.014),
    "Q4_0": ({1: 0.040, 2: 0.065, 4: 0.098, 5: 0.146, 6: 0.129, 8: 0.185}, 0.014),
    "Q4_K_M": ({1: 0.030, 2: 0.062, 4: 0.101, 5: 0.127, 6: 0.153, 8: 0.226}, 0.024),
}


def test_expected_tokens() -> None:
    assert expected_tokens(0.0, 5) == 1.0
    assert expected_tokens(1.0, 5) == 6.0
    assert expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)


def test_free_drafts_and_passes_give_every_token() -> None:
    free = PairCosts(0.0, lambda _n: 1.0)
    assert speed_up(free, 1.0, 4) == 5.0
    assert break_even(free) == pytest.approx(0.0, abs=1e-3)


def test_a_draft_as_slow_as_its_target_never_pays() -> None:
    equal = PairCosts(1.0, lambda n: float(n))
    assert best(equal, 0.99) == (0, 1.0)
    assert break_even(equal) is None


def test_between_measured_widths_there_are_straight_lines() -> None:
    costs = from_measured({1: 1.0, 2: 2.0, 4: 3.0}, 0.1)
    assert [costs.verify_s(n) for n in (1, 2, 3, 4, 5)] == pytest.approx([1.0, 2.0, 2.5, 3.0, 3.5])


@pytest.mark.parametrize(
    ("weights", "acceptance", "rests"),
    [("F16", 0.95, False), ("F16", 0.6, False), ("Q8_0", 0.95, False), ("Q8_0", 0.6, True), ("Q4_K_M", 0.95, True)],
)
def test_measured_costs_give_this_machines_regimes(weights: str, acceptance: float, rests: bool) -> None:
    """What was seen: F16 always gains, Q8_0 on code but not on prose, Q4_K_M never."""
    n, gain = best(from_measured(*MEASURED[weights]), acceptance)
    assert (n == 0) == rests
    assert (gain > 1.0) == (not rests)


def test_less_quantised_targets_gain_more() -> None:
    gains = [best(from_measured(*MEASURED[w]), 0.95)[1] for w in ("F16", "Q8_0", "Q4_0", "Q4_K_M")]
    assert gains == sorted(gains, reverse=True)
    assert gains[0] > 2.0


def test_from_bytes_a_card_gains_and_a_cpu_rests() -> None:
    target, draft = (remote_header.read(file, offline=True).hparams for file in presets.load("gpu-24gb-code").files)
    card = predict.from_bytes(target, draft, described(device="RTX 4090").devices[0])
    assert 1.4 < best(card, 0.8)[1] < 3.5
    small, tiny = (remote_header.read(file, offline=True).hparams for file in presets.load("demo").files)
    on_cpu = predict.from_bytes(small, tiny, described(vram="8GB").cpu)
    assert best(on_cpu, 0.8) == (0, 1.0)


@pytest.mark.parametrize("weights", list(MEASURED))
def test_more_acceptance_is_never_worse(weights: str) -> None:
    costs = from_measured(*MEASURED[weights])
    gains = [best(costs, a / 20)[1] for a in range(21)]
    assert gains == sorted(gains)
    limit = break_even(costs)
    if limit is not None:
        assert best(costs, limit + 0.01)[0] > 0
        assert best(costs, limit - 0.01)[0] == 0
