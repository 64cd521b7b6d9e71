"""Statistics count what they say they count: drafted, reached, accepted, kept; also where a block is cut."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
from support.alone import generate
from support.fakes import FakeModel, FakeStopCheck, Script, random_table

from specgguf.config import SamplingParams
from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.records import Draft, Round, VerifyResult
from specgguf.decode.sampling import Distribution, Rng, Transform
from specgguf.decode.stats import TRACE_MAX, Stats


def added(*rounds: Round) -> Stats:
    stats = Stats()
    for round in rounds:
        stats.add(round)
    return stats


def test_nothing_happened() -> None:
    stats = Stats()
    assert stats.acceptance is None
    assert stats.tokens_per_pass == stats.tokens_per_second == 0.0
    assert set(stats.timings().values()) == {0}


def test_positions() -> None:
    """A position is reached when all before it were accepted; the rejected one is reached too."""
    stats = added(
        Round((1, 2, 3, 4), 3, draft_n=3, draft_n_accepted=3),
        Round((1,), 0, draft_n=3, draft_n_accepted=0),
        Round((1, 2), 1, draft_n=2, draft_n_accepted=1),
        Round((1,)),
    )
    assert stats.drafted_by_position == [3, 3, 2]
    assert stats.reached_by_position == [3, 2, 1]
    assert stats.accepted_by_position == [2, 1, 1]
    assert (stats.draft_n, stats.draft_n_accepted, stats.n_from_draft) == (8, 4, 4)
    assert stats.acceptance == 0.5
    assert (stats.n_rounds, stats.n_plain, stats.n_generated) == (4, 1, 8)
    assert stats.tokens_per_pass == 2.0
    assert stats.draft_lengths == [3, 3, 2, 0]


def test_a_cut_block_was_accepted_but_not_kept() -> None:
    """End of generation, a stop string, max_tokens: what the verifier accepted counts as accepted."""
    stats = added(Round((1, 2), 2, draft_n=5, draft_n_accepted=4, finish_reason="stop"))
    assert (stats.draft_n_accepted, stats.n_from_draft, stats.n_generated) == (4, 2, 2)
    assert stats.accepted_by_position == [1, 1, 1, 1, 0]
    assert stats.reached_by_position == [1, 1, 1, 1, 1]


def test_times_and_llama_cpps_keys() -> None:
    stats = added(
        Round((1,), n_prefilled=100, prefill_s=2.0, host_s=0.25),
        Round((1, 2, 3), 2, 4, 2, draft_s=0.5, verify_s=1.0, host_s=0.25),
    )
    stats.begin(120, 20)
    assert stats.predicted_s == 2.0
    assert stats.tokens_per_second == 2.0
    timings = stats.timings()
    assert timings == {
        "cache_n": 20,
        "prompt_n": 100,
        "prompt_ms": 2000.0,
        "prompt_per_token_ms": 20.0,
        "prompt_per_second": 50.0,
        "predicted_n": 4,
        "predicted_ms": 2000.0,
        "predicted_per_token_ms": 500.0,
        "predicted_per_second": 2.0,
        "draft_n": 4,
        "draft_n_accepted": 2,
    }
    assert all(math.isfinite(v) for v in timings.values())


def test_the_trace_does_not_grow_for_ever() -> None:
    stats = Stats()
    for n in range(TRACE_MAX + 10):
        stats.add(Round((1,), draft_n=n % 3))
    assert len(stats.draft_lengths) == TRACE_MAX
    assert stats.draft_lengths[-1] == (TRACE_MAX + 9) % 3


def test_what_a_checkpoint_reads_again_is_generating_not_reading() -> None:
    stats = Stats()
    for _ in range(2):
        stats.begin(10, 4)
        stats.add(Round((1,), n_prefilled=6, prefill_s=1.0))
        stats.add(Round((1, 2), 1, 3, 1, n_prefilled=9, prefill_s=0.25, verify_s=0.5))
    assert (stats.n_cached, stats.n_prefilled, stats.n_replayed) == (8, 12, 18)
    assert (stats.prompt_s, stats.verify_s, stats.predicted_s) == (2.0, 1.5, 1.5)
    assert stats.timings()["prompt_n"] == 12


@pytest.mark.parametrize(
    "ending", [{}, {"eog": frozenset({2})}, {"stop": (1, 0)}, {"eog": frozenset({2}), "stop": (3, 3)}], ids=str
)
def test_sums_over_real_rounds_are_those_of_a_recount(ending: dict[str, Any]) -> None:
    """Played by the real loop with a verifier that keeps its own tally, whatever ends the text."""
    source = random.Random(4)
    tally: list[tuple[int, int]] = []

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        n = source.randint(0, len(draft))
        tally.append((len(draft), n))
        following = int(rows[n].ids[0]) if len(rows) > n else None
        return VerifyResult(n, following)

    params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    eog = ending.get("eog", frozenset())
    stats, n_tokens, reasons = Stats(), 0, set()
    for seed in range(30):
        stats.begin(2, 0)
        target, draft = (FakeModel(random_table(seed + i, 4), 4, eog=eog) for i in (0, 100))
        rounds = generate(
            target,
            ModelDrafter(draft),
            [0, 1],
            transform=Transform(params, n_vocab=4, eog=eog),
            rng=Rng(seed),
            controller=Script([3, 0, 5]),
            stop_check=FakeStopCheck(11, **ending),
            max_tokens=11,
            verify=rule,
        )
        for round in rounds:
            stats.add(round)
            n_tokens += len(round.tokens)
            assert round.n_from_draft <= min(round.draft_n_accepted, len(round.tokens))
        reasons.add(round.finish_reason)
    assert len(reasons) == 1 + len(ending)
    assert stats.n_generated == n_tokens
    assert stats.n_rounds == len(tally)
    assert stats.draft_n == sum(k for k, _ in tally)
    assert stats.draft_n_accepted == sum(n for _, n in tally)
    positions = range(len(stats.drafted_by_position))
    assert stats.drafted_by_position == [sum(k > i for k, _ in tally) for i in positions]
    assert stats.reached_by_position == [sum(k > i and n >= i for k, n in tally) for i in positions]
    assert stats.accepted_by_position == [sum(n > i for _, n in tally) for i in positions]
    assert stats.n_from_draft <= stats.draft_n_accepted
    assert stats.n_prefilled == 30 * 2
