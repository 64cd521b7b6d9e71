"""Who is in a forward pass and how many tokens each drafts: held against every other choice there is.

Costs are tables with the steps of real kernels; acceptances are given. What the schedule expects of its choice is
compared with the best of all sets and all lengths, enumerated.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from specgguf.control.controller import Adaptive, Fixed
from specgguf.control.costs import Costs
from specgguf.control.schedule import Choice, Member, Schedule
from specgguf.decode.records import Candidate, Plan, Round

D = 3
# Milliseconds of a pass over 1, 2, … rows.
FLAT = [100.0 + 2 * n for n in range(16)]  # memory-bound: further rows are nearly free
STEEP = [50.0 * (n + 1) for n in range(16)]  # compute-bound: every row costs as much
TILES = [
    47.0,
    116.0,
    118.0,
    120.0,
    150.0,
    155.0,
    160.0,
    165.0,
    *[250.0 + n for n in range(8)],
]  # two cost more than twice one
FOUR_ROWS = [100.0 + n if n < 4 else 400.0 for n in range(16)]  # nearly free, up to four
TABLES = {"flat": FLAT, "steep": STEEP, "tiles": TILES}


def costs_of(table: list[float], draft_ms: float = 10.0, *, pads: bool = False) -> Costs:
    levels = {2: 1.2 * draft_ms / 1e3, 4: 1.5 * draft_ms / 1e3, 8: 2.5 * draft_ms / 1e3}
    verify_s = {n: ms / 1e3 for n, ms in enumerate(table, 1)}
    return Costs(16, verify_s, draft_ms / 1e3, 0.001, draft_level_s=levels, pads=pads)


def member(costs: Costs, rate: float, n_waited: int = 0, *, n_draft_max: int = D, **keywords: Any) -> Member:
    controller = Adaptive(D, costs)
    controller.acceptance.rate.accepted, controller.acceptance.rate.rejected = 50 * rate, 50 * (1 - rate)
    controller.new_turn(0)
    controller._first = False
    controller.acceptance.rate.accepted, controller.acceptance.rate.rejected = 50 * rate, 50 * (1 - rate)
    return Member(controller, n_draft_max, n_waited=n_waited, **keywords)


def goodput(costs: Costs, rates: list[float], lengths: tuple[int, ...]) -> float:
    expected = sum(1.0 + sum(rate**i for i in range(1, k + 1)) for rate, k in zip(rates, lengths, strict=True))
    seconds = costs.verify_s(len(rates) + sum(lengths)) + costs.host_s * len(rates)
    for level in range(max(lengths)):
        seconds += costs.draft_level_s(sum(k > level for k in lengths))
    return expected / seconds


def best_of_all(costs: Costs, rates: list[float], sizes: list[int]) -> float:
    """Of the first so many members, with any lengths."""
    return max(
        goodput(costs, rates[:size], lengths)
        for size in sizes
        for lengths in itertools.product(range(D + 1), repeat=size)
    )


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_the_best_there_is(table: str, seed: int) -> None:
    dice = random.Random(seed)
    rates = [dice.choice([0.2, 0.5, 0.8, 0.95]) for _ in range(4)]
    costs = costs_of(TABLES[table], dice.choice([5.0, 10.0, 30.0]))
    members = [member(costs, rate) for rate in rates]
    choice = Schedule(costs).choose(members)
    found = goodput(costs, [rates[i] for i in choice.members], tuple(choice.lengths))
    assert found == pytest.approx(choice.goodput), "it expects what its choice is worth"
    assert found >= 0.99 * best_of_all(costs, rates, [4, 2, 1])


def chosen(table: list[float], rates: list[float], draft_ms: float = 10.0) -> Choice:
    costs = costs_of(table, draft_ms)
    return Schedule(costs).choose([member(costs, rate) for rate in rates])


def test_drafting_yields_as_the_batch_grows() -> None:
    lengths = [sum(chosen(STEEP, [0.8] * n, 2.0).lengths) / n for n in (1, 2, 4)]
    assert lengths[0] >= lengths[1] >= lengths[2]
    flat = chosen(FLAT, [0.8] * 4)
    assert len(flat.members) == 4
    assert min(flat.lengths) >= 2, "where rows are free all draft"


def test_in_turn_where_two_rows_cost_more_than_twice_one() -> None:
    assert len(chosen(TILES, [0.1, 0.1], 60.0).members) == 1
    assert len(chosen(FLAT, [0.1, 0.1], 60.0).members) == 2


def test_why_it_is_off_says_who_else_is_there() -> None:
    """Nobody is about to join those that take turns."""
    for table, who in ((TILES, "requests that take turns"), (FLAT, "2 requests in a pass")):
        costs = costs_of(table, 60.0)
        both = [member(costs, 0.1), member(costs, 0.1)]
        plans = Schedule(costs).plan(both)
        said = {both[i].controller.off_reason for i, plan in enumerate(plans) if plan is not None}
        assert said == {f"with {who} plain decoding is expected to be faster"}


def test_a_tile_that_is_paid_for_is_filled() -> None:
    """With two in the pass its first tile has room for six drafted tokens at nearly no price."""
    choice = chosen(TILES, [0.9, 0.9], 1.0)
    assert sum(choice.lengths) == 2 * D


def test_the_better_draft_gets_the_rows() -> None:
    choice = chosen(STEEP[:2] + [120.0] * 14, [0.95, 0.3], 2.0)
    if len(choice.members) == 2:
        lengths = dict(zip(choice.members, choice.lengths, strict=True))
        assert lengths[0] >= lengths[1]


def test_who_waited_longest_is_served_first_and_nobody_waits_longer_than_there_are_others() -> None:
    costs = costs_of(TILES, 60.0)
    schedule = Schedule(costs)
    waited = [0, 0, 0]
    for _ in range(30):
        members = [member(costs, 0.1, n) for n in waited]
        plans = schedule.plan(members)
        served = {i for i, plan in enumerate(plans) if plan is not None}
        assert served
        waited = [0 if i in served else n + 1 for i, n in enumerate(waited)]
        assert max(waited) <= 2


def test_recurrent_memories_share_a_pass_plainly_or_go_in_turn() -> None:
    for table in TABLES.values():
        costs = costs_of(table)
        choice = Schedule(costs, equal=True).choose([member(costs, 0.9) for _ in range(3)])
        assert len(choice.members) == 1 or not any(choice.lengths)


def test_a_sequence_alone_is_its_controllers() -> None:
    costs = costs_of(FLAT)
    alone = member(costs, 0.8)
    (plan,) = Schedule(costs).plan([alone])
    assert plan is not None
    assert plan.n_max == alone.controller.plan(D).n_max


@pytest.mark.parametrize(
    ("n_unread", "n_reading", "table", "drafts"),
    [
        (40, 0, FOUR_ROWS, True),
        (40, 3, FOUR_ROWS, False),
        (40, 3, FLAT, True),
        (0, 3, FOUR_ROWS, True),
    ],
)
def test_a_draft_reads_no_prompt_for_drafts_that_others_will_make_too_dear(
    n_unread: int, n_reading: int, table: list[float], drafts: bool
) -> None:
    costs = costs_of(table)
    alone = member(costs, 0.9, n_draft_max=100)
    assert isinstance(alone.controller, Adaptive)
    alone.controller._n_context = n_unread
    (plan,) = Schedule(costs).plan([alone], n_reading)
    assert plan is not None
    assert (plan.n_max > 0) is drafts
    assert ("about to join" in alone.controller.off_reason) is not drafts


def test_fixed_lengths_are_kept() -> None:
    costs = costs_of(STEEP)
    members = [Member(Fixed(2), D), Member(Fixed(0), D), member(costs, 0.1)]
    for plan, n in zip(Schedule(costs).plan(members)[:2], (2, 0), strict=True):
        assert plan is None or plan.n_max == n


def test_an_ngram_costs_no_draft_step() -> None:
    """Where the draft model is too dear, a candidate that is had for nothing is still taken."""
    costs = costs_of(FLAT, 500.0)
    candidate = Candidate((4, 5, 6), 4)
    members = [member(costs, 0.3, candidate=candidate), member(costs, 0.3)]
    choice = Schedule(costs).choose(members)
    lengths = dict(zip(choice.members, choice.lengths, strict=True))
    assert lengths[0] >= 1
    assert lengths[1] == 0
    assert not choice.levels


def test_what_shared_passes_cost_is_learned() -> None:
    """A batch of three rows takes twice as long as was measured: it is believed after some rounds."""
    costs = costs_of(FLAT)
    schedule = Schedule(costs)
    before = costs.verify_s(3)
    for _ in range(30):
        members = [member(costs, 0.1, n_draft_max=0) for _ in range(3)]
        plans = [one.controller.plan(0) for one in members]
        rounds = [Round((5,), verify_s=2 * before, host_s=0.003, n_sequences=3) for _ in members]
        schedule.observe(members, plans, rounds)
    assert costs.verify_s(3) == pytest.approx(2 * before, rel=0.15)
    assert costs.host_s == pytest.approx(0.001, rel=0.1), "of one sequence"


def test_what_levels_cost_is_learned() -> None:
    costs = costs_of(FLAT)
    before = costs.draft_level_s(4)
    for _ in range(40):
        costs.observe_levels([4, 4, 4], 3 * 2 * before)
    assert costs.draft_level_s(4) == pytest.approx(2 * before, rel=0.15)
    again = Costs.from_json(16, costs.to_json())
    assert again is not None
    assert again.draft_level_s(4) == pytest.approx(costs.draft_level_s(4))
    assert again.draft_level_s(3) == pytest.approx((costs.draft_level_s(2) + costs.draft_level_s(4)) / 2)


def test_every_choice_is_told() -> None:
    records: list[dict[str, Any]] = []
    costs = costs_of(FLAT)
    Schedule(costs, trace=records.append).plan([member(costs, 0.8) for _ in range(3)])
    (record,) = [one for one in records if one["event"] == "schedule"]
    assert set(record["by_size"]) == {"1", "2", "3"}
    assert record["goodput"] == max(record["by_size"].values())


def test_drafting_further_must_pay_beside_the_others() -> None:
    """The same draft is cut sooner where the rows beside it have used up the cheap ones."""
    costs = costs_of([50.0] * 4 + [100.0 * n for n in range(1, 13)], 1.0)
    crowded, alone = member(costs, 0.6), member(costs, 0.6)
    plans = Schedule(costs).plan([crowded, *[Member(Fixed(0), D) for _ in range(3)]])
    (single,) = Schedule(costs).plan([alone])
    assert single is not None
    lengths = [_drafted(plan) for plan in (plans[0], single)]
    assert lengths[0] < lengths[1]


def _drafted(plan: Plan | None) -> int:
    if plan is None:
        return 0
    n = 0
    while n < plan.n_max and (n == 0 or plan.keep_drafting(n, None)):
        n += 1
    return n
