"""Cost estimates follow the machine, shrug off single slow passes, and a calibration leaves no trace."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from support.fakes import FakeClock, FakeModel, random_table

from specgguf.control.calibration import calibrate, calibrated_sizes, largest_batch
from specgguf.control.costs import Costs

STEPPED = {1: 0.050, 2: 0.080, 4: 0.080, 6: 0.120}


def test_widths_between_measured_ones_lie_on_a_line() -> None:
    costs = Costs(6, STEPPED)
    assert [costs.verify_s(n) for n in range(1, 7)] == pytest.approx([0.050, 0.080, 0.080, 0.080, 0.100, 0.120])
    assert costs.verify_s(9) == pytest.approx(0.180), "as if it were cut"
    assert Costs(4).verify_s(2) == 0.0
    assert Costs(4, {3: 0.1}).verify_s(1) == 0.1
    assert Costs(3, {1: 0.1, 5: 0.2}).verify_s(3) == 0.1, "no width beyond the widest is kept"


def test_more_tokens_never_cost_less_where_batches_can_be_padded() -> None:
    """Where padding can be dropped, a small batch can run as a larger one."""
    for seed in range(50):
        source = np.random.default_rng(seed)
        costs = Costs(8, {int(n): float(source.uniform(0.01, 0.1)) for n in source.choice(8, 4) + 1}, pads=True)
        widths = [costs.verify_s(n) for n in range(1, 9)]
        assert (np.diff(widths) > -1e-15).all()


TILED = {1: 0.04, 2: 0.11, 4: 0.17, 6: 0.28, 8: 0.16}


def test_a_pass_is_padded_to_a_tile_that_is_cheaper() -> None:
    costs = Costs(8, TILED, pads=True)
    assert [Costs(8, TILED).padding(n) for n in range(1, 9)] == [0] * 8, "a memory that cannot drop the dummies"
    assert [costs.padding(n) for n in (1, 2, 4, 6, 8, 9, 300)] == [0, 0, 4, 2, 0, 0, 0]
    assert costs.padding(5) == 3, "never seen, and expected to cost what four do or more"
    assert [costs.verify_s(n) for n in (4, 5, 6, 7, 8)] == [0.16] * 5
    assert costs.unpadded_s(6) == 0.28
    costs.observe_verify(7, 0.155)
    assert costs.padding(7) == 0
    assert Costs(8).padding(3) == 0


def test_no_more_dummies_than_cells_are_kept_for() -> None:
    costs = Costs(64, {1: 0.1, 2: 0.2, 17: 0.15, 18: 0.15, 64: 0.01}, pads=True)
    assert costs.padding(2) == 15
    assert costs.padding(49) == 15


def test_where_wider_passes_cost_more_nothing_is_padded() -> None:
    """Not for what a noisy sample says, either; and a width that was never seen is tried."""
    costs = Costs(8, {1: 0.10, 2: 0.12, 4: 0.142, 6: 0.15, 8: 0.17}, pads=True)
    assert [costs.padding(n) for n in range(1, 9)] == [0] * 8
    for seed in range(50):
        source = np.random.default_rng(seed)
        noisy = {n: 0.16 * float(1 + 0.03 * source.uniform(-0.5, 0.5)) for n in (4, 8)}
        assert Costs(8, noisy, pads=True).padding(4) == 0


@pytest.mark.parametrize("draft_max", range(1, 17))
def test_a_calibration_covers_the_tile_of_a_full_draft(draft_max: int) -> None:
    widths = calibrated_sizes(draft_max, pads=True)
    assert {1, 2, draft_max + 1} <= set(widths)
    assert widths[-1] == largest_batch(draft_max, pads=True) <= 17
    assert draft_max == 16 or widths[-1] % 8 == 0
    assert max(calibrated_sizes(draft_max, pads=False)) == draft_max + 1


def test_known_means_enough_to_compare() -> None:
    assert not Costs(4).known
    assert not Costs(4, {1: 0.1}, 0.01).known
    assert not Costs(4, {2: 0.1, 4: 0.2}, 0.01).known
    assert not Costs(4, {1: 0.1, 4: 0.2}).known
    assert Costs(4, {1: 0.1, 4: 0.2}, 0.0).known


def test_what_was_measured_once_yields_to_samples() -> None:
    costs = Costs(4, {1: 0.1, 4: 0.4}, 0.01)
    for _ in range(4):
        costs.observe_verify(4, 0.3)
    assert costs.verify_s(4) == pytest.approx(0.3, rel=0.05)
    assert costs.verify_s(1) == pytest.approx(0.1, rel=0.03)
    costs.observe_verify(3, 0.17)
    assert costs.verify_s(3) == pytest.approx(0.17, rel=0.1), "a size that was never seen is learned from one sample"
    costs.observe_verify(5, 9.0)
    assert costs.verify_s(4) == pytest.approx(0.3, rel=0.05)


@pytest.mark.parametrize("true", [0.05, 0.1, 0.3])
def test_estimates_go_where_the_samples_are(true: float) -> None:
    costs = Costs(4, {1: 0.1, 4: 0.4}, 0.1, 0.001)
    for _ in range(200):
        costs.observe_verify(1, true)
        costs.observe_draft(2, 1, 2 * true)
        costs.observe_host(true)
    assert costs.verify_s(1) == pytest.approx(true, rel=0.01)
    assert costs.draft_s == pytest.approx(true, rel=0.01)
    assert costs.host_s == pytest.approx(true, rel=0.01)


def test_one_slow_pass_is_noise() -> None:
    costs = Costs(4, {1: 0.1, 4: 0.4}, 0.01)
    for _ in range(10):
        costs.observe_verify(1, 0.1)
        costs.observe_draft(1, 1, 0.01)
    costs.observe_verify(1, 100.0)
    costs.observe_draft(1, 1, 100.0)
    assert costs.verify_s(1) < 0.115
    assert costs.draft_s < 0.0115


def test_noise_and_outliers_leave_the_median() -> None:
    """One pass in twenty three times as slow: the estimate stays within a tenth of the usual cost."""
    costs, source = Costs(4, {1: 0.1, 4: 0.4}), np.random.default_rng(1)
    seen = []
    for _ in range(400):
        slow = 3.0 if source.random() < 0.05 else 1.0
        costs.observe_verify(1, 0.1 * slow * math.exp(0.03 * source.standard_normal()))
        seen.append(costs.verify_s(1))
    assert 0.095 < np.mean(seen) < 0.11


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_what_is_not_seen_follows(factor: float) -> None:
    """A longer context, heat, other programs: the machine is slower for every width, also where drafting is off."""
    costs = Costs(4, {1: 0.1, 4: 0.2}, 0.01, 0.002)
    for seconds in [0.1] * 30 + [0.1 * factor] * 60:
        costs.observe_verify(1, seconds)
    assert costs.verify_s(4) == pytest.approx(0.2 * factor, rel=0.1)
    assert costs.draft_s == pytest.approx(0.01 * factor, rel=0.1)
    assert costs.draft_prefill_s == pytest.approx(0.002 * factor, rel=0.1)


def test_a_wrong_price_from_load_is_not_taken_for_a_slower_machine() -> None:
    """Else plain decoding would look as much slower as drafts do, and drafting went on where it loses."""
    costs = Costs(4, {1: 0.1, 4: 0.2}, pads=True)
    for i in range(64):
        costs.observe_verify(1 if i % 16 == 15 else 4, 0.1 if i % 16 == 15 else 0.4)
    assert costs.verify_s(1) == pytest.approx(0.1, rel=0.05)
    assert costs.verify_s(4) == pytest.approx(0.4, rel=0.05)


def test_a_slower_machine_is_not_taken_for_a_price() -> None:
    """Drafting goes on while everything becomes slower: plain decoding must not look fast."""
    costs = Costs(4, {1: 0.1, 4: 0.2}, pads=True)
    for i in range(64):
        costs.observe_verify(4, 0.2 if i < 20 else 0.4)
    assert costs.verify_s(1) == pytest.approx(0.2, rel=0.15)


def test_what_is_read_again_does_not_slow_the_others() -> None:
    """Where a rejection makes the target read again, a wide pass is slow for that, not for the machine."""
    costs = Costs(4, {1: 0.1, 4: 0.2}, pads=False)
    for _ in range(60):
        costs.observe_verify(4, 0.4)
    assert costs.verify_s(1) == 0.1


def test_catching_up_is_not_a_draft_step() -> None:
    costs = Costs(4, {1: 0.1, 4: 0.2}, 0.01, 0.002)
    costs.observe_draft(3, 40, 0.02 + 40 * 0.004)
    assert costs.draft_s == 0.01
    assert 0.002 < costs.draft_prefill_s < 0.004
    costs.observe_draft(3, 5, 9.0)  # too few to tell the one from the other
    assert (costs.draft_s, costs.draft_prefill_s) == (0.01, costs.draft_prefill_s)
    fresh = Costs(4)
    fresh.observe_draft(0, 1, 9.0)
    assert fresh.draft_s == 0.0
    assert not fresh.known
    fresh.observe_draft(2, 2, 0.04)
    assert fresh.draft_s == 0.02


def test_saved_costs_come_back_or_do_not_serve() -> None:
    costs = Costs(6, STEPPED, 0.01, 0.002)
    saved = json.loads(json.dumps(costs.to_json()))
    again = Costs.from_json(6, saved)
    assert again is not None
    assert [again.verify_s(n) for n in range(1, 7)] == [costs.verify_s(n) for n in range(1, 7)]
    assert (again.draft_s, again.draft_prefill_s) == (0.01, 0.002)
    wrong: list[Any] = [{}, {**saved, "draft_s": None}, {**saved, "verify_s": {"one": 1}}, {**saved, "verify_s": [1]}]
    wrong += [{**saved, "verify_s": {**saved["verify_s"], "1": damaged}} for damaged in (0, -1.0, math.nan)]
    assert [Costs.from_json(6, w) for w in wrong] == [None] * len(wrong)
    assert Costs.from_json(8, saved) is None, "a wider pass was never measured"


def models(n_ctx: int = 100, memory: str = "plain") -> tuple[FakeModel, FakeModel, FakeClock]:
    target, draft = (FakeModel(random_table(seed, 3), 3, n_ctx=n_ctx, memory=memory) for seed in (1, 2))
    return target, draft, FakeClock([(target, 10e-3, 1e-3), (draft, 1e-3, 1e-4)], host=0.0)


@pytest.mark.parametrize("draft_max", [1, 2, 5, 16])
def test_a_calibration_measures_what_things_cost(draft_max: int) -> None:
    target, draft, clock = models()
    costs = calibrate(target, draft, draft_max, clock)
    assert costs.known
    assert [costs.verify_s(n) for n in range(1, draft_max + 2)] == pytest.approx(
        [10e-3 + n * 1e-3 for n in range(1, draft_max + 2)]
    )
    assert costs.draft_s == pytest.approx(1.1e-3)
    assert costs.draft_prefill_s == pytest.approx((1e-3 + 16 * 1e-4) / 16)


@pytest.mark.parametrize("memory", ["plain", "checkpoint"])
@pytest.mark.parametrize("n_held", [0, 7])
def test_a_calibration_leaves_the_caches_as_they_were(memory: str, n_held: int) -> None:
    target, draft, clock = models(memory=memory)
    for model in (target, draft):
        if n_held:
            model.extend([1] * n_held, 0)
    calibrate(target, draft, 5, clock)
    assert target.cells == draft.cells == [1] * n_held


def test_a_calibration_fits_into_any_context() -> None:
    for n_held in range(6):
        target, draft, clock = models(n_ctx=6)
        for model in (target, draft):
            if n_held:
                model.extend([1] * n_held, 0)
        calibrate(target, draft, 5, clock)
        assert target.cells == draft.cells == [1] * n_held


def test_without_a_draft_model_drafts_are_free() -> None:
    target, _, clock = models()
    costs = calibrate(target, None, 5, clock)
    assert costs.known
    assert costs.draft_s == 0.0


def test_a_size_that_was_seldom_seen_is_learned_fast() -> None:
    """What was measured once at load, and wrongly, must not need dozens of passes to be put right."""
    seldom, often = Costs(4, {1: 0.1, 4: 0.4}, 0.01), Costs(4, {1: 0.1, 4: 0.4}, 0.01)
    for _ in range(100):
        seldom.observe_verify(1, 0.1)
        often.observe_verify(4, 0.4)
    for costs in (seldom, often):
        costs.observe_verify(4, 0.3)
    assert seldom.verify_s(4) < 0.34 < often.verify_s(4)


def test_a_slow_pass_now_and_then_does_not_change_what_is_compared() -> None:
    """Each counts as half as slow again, and for every batch size alike."""
    costs = Costs(4, {1: 0.1, 4: 0.2}, 0.01, pads=True)
    for _ in range(20):
        for factor in (1.0, 1.0, 1.0, 1.0, 3.0):
            costs.observe_verify(1, 0.1 * factor)
            costs.observe_verify(4, 0.2 * factor)
    assert costs.verify_s(4) / costs.verify_s(1) == pytest.approx(2.0, rel=0.03)
    assert costs.verify_s(1) < 0.125
