"""How often drafted tokens must be accepted for drafting to be as fast as plain decoding, from measured samples.

A round of n drafted tokens takes so many times as long as a plain token; it breaks even where it commits as many tokens
on average, which tells the acceptance, if it is the same at every position. Pure functions of the samples; what to do
about them is `recommend`'s.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specgguf.fit.predict import needed_acceptance

from .runs import Sample


@dataclass(frozen=True)
class BreakEven:
    """What a fixed draft length costs, and what it must reach.

    Attributes:
        draft_n: the draft length.
        draft_cost: seconds of drafting in a round, over those of a plain token.
        round_cost: of the whole round.
        needed: the acceptance at which it is as fast as plain decoding; None: it is slower with any.
        measured: accepted over drafted tokens; None: nothing was drafted.
    """

    draft_n: int
    draft_cost: float
    round_cost: float
    needed: float | None
    measured: float | None


def break_even(samples: Sequence[Sample]) -> list[BreakEven]:
    """For each fixed length that drafted anything, over all kinds of prompts: medians of ratios within a repeat."""
    found = []
    for n in sorted({s.draft for s in samples if isinstance(s.draft, int)}):
        own = [s for s in samples if s.draft == n and s.draft_n]
        pairs = [(s, plain) for s in own for plain in samples if plain.draft == "off" and _together(s, plain)]
        if not pairs:
            continue
        draft_cost = statistics.median(s.draft_s / _n_rounds(s) / _plain_s(plain) for s, plain in pairs)
        round_cost = statistics.median(s.predicted_s / _n_rounds(s) / _plain_s(plain) for s, plain in pairs)
        accepted = sum(s.draft_n_accepted for s in own) / sum(s.draft_n for s in own)
        n_drafted = max(len(s.rounds_by_draft_n) - 1 for s in own)
        found.append(BreakEven(n, draft_cost, round_cost, needed_acceptance(round_cost, n_drafted), accepted))
    return found


def _together(one: Sample, other: Sample) -> bool:
    """Whether two samples were taken back to back."""
    return (one.engine, one.kind, one.index, one.repeat) == (
        other.engine,
        other.kind,
        other.index,
        other.repeat,
    ) and bool(other.n_timed and other.predicted_s)


def _plain_s(plain: Sample) -> float:
    return plain.predicted_s / plain.n_timed


def _n_rounds(sample: Sample) -> int:
    """Those whose time is in `predicted_s`: not the one that read the prompt, where it gave its token for nothing."""
    return max(1, sample.n_rounds - (sample.n_timed < sample.n_generated))
