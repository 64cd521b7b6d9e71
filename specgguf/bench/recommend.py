"""What samples say: medians and spreads per setting, and per kind of prompt whether to draft.

A setting is compared with plain decoding repeat by repeat, and the median of those ratios counts: what slowed the
machine for a while slowed both. Pure functions of the samples.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .runs import Sample

PAYS = 1.05  # so much faster than plain is worth a word
DISTURBED = 1.05  # a gain that is so much above what is possible was not one
DIFFERS = 1.10  # a fixed length so much better than auto is worth naming


@dataclass(frozen=True)
class Row:
    """One setting on one kind of prompt.

    Attributes:
        speed, speed_low, speed_high: tokens per second: the median repeat, the slowest and the fastest.
        gain, gain_low, gain_high: times plain decoding as measured, repeat by repeat; None where plain was not.
        gain_max: tokens per timed forward pass. None of them is cheaper than a plain one, so no gain is above it: one
            that is was measured while something else slowed plain decoding.
        acceptance: accepted over drafted tokens; by_position: of those reached. None, empty: nothing was drafted.
        draft_n: tokens drafted; mean_draft_n: per round that drafts any.
        off_share: of the rounds, those that drafted nothing.
        first_s: median seconds to the first token.
        host_share: of the run, spent outside llama.cpp.
    """

    kind: str
    engine: str
    draft: int | str
    n_repeats: int
    speed: float
    speed_low: float
    speed_high: float
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    gain_max: float
    acceptance: float | None
    by_position: tuple[float, ...]
    tokens_per_pass: float
    draft_n: int
    mean_draft_n: float
    off_share: float
    first_s: float
    host_share: float | None

    @property
    def is_disturbed(self) -> bool:
        """Whether `gain` is none: it is above what is possible."""
        return bool(self.draft_n) and (self.gain or 0.0) > self.gain_max * DISTURBED


@dataclass(frozen=True)
class Recommendation:
    """What to do about drafting.

    Attributes:
        draft: "auto", "off" or a number; None: it makes no difference, or too little was measured.
        sure: every repeat agrees.
        text: in words.
    """

    draft: int | str | None
    sure: bool
    text: str


@dataclass(frozen=True)
class Report:
    """One kind of prompt: a row per setting, and what to do."""

    kind: str
    rows: tuple[Row, ...]
    recommendation: Recommendation


def report(samples: Sequence[Sample]) -> list[Report]:
    """All kinds, in the order in which they were measured."""
    reports = []
    for kind in dict.fromkeys(s.kind for s in samples):
        of_kind = [s for s in samples if s.kind == kind]
        plain = [s for s in of_kind if s.draft == "off"]
        settings = sorted({(s.engine, s.draft) for s in of_kind}, key=lambda pair: (pair[0], _place(pair[1])))
        rows = tuple(row([s for s in of_kind if (s.engine, s.draft) == key], plain) for key in settings)
        reports.append(Report(kind, rows, recommendation(rows)))
    return reports


def _place(draft: int | str) -> tuple[int, int, str]:
    """Plain first, then fixed lengths, then auto."""
    if isinstance(draft, int):
        return 1, draft, ""
    return (0, 0, "") if draft == "off" else (2, 0, draft)


def speed(samples: Iterable[Sample]) -> float:
    """Tokens per second over all of `samples` together; 0 where there is nothing."""
    samples = list(samples)
    seconds = sum(s.predicted_s for s in samples)
    return sum(s.n_timed for s in samples) / seconds if seconds else 0.0


def by_repeat(samples: Iterable[Sample]) -> dict[int, float]:
    """The speed of each repeat."""
    samples = list(samples)
    return {r: speed(s for s in samples if s.repeat == r) for r in sorted({s.repeat for s in samples})}


def gains(samples: Iterable[Sample], base: Iterable[Sample]) -> list[float]:
    """The speed over that of `base`, for every repeat that both have."""
    own, other = by_repeat(samples), by_repeat(base)
    return [own[r] / other[r] for r in own if other.get(r)]


def row(samples: Sequence[Sample], plain: Sequence[Sample]) -> Row:
    """One setting's samples against plain decoding's."""
    first = samples[0]
    speeds, ratios = list(by_repeat(samples).values()), gains(samples, plain)
    draft_n, n_rounds = sum(s.draft_n for s in samples), sum(s.n_rounds for s in samples)
    n_plain = sum(s.rounds_by_draft_n[0] for s in samples if s.rounds_by_draft_n)
    native = [s.decode_s for s in samples if s.decode_s is not None]
    total_s = sum(s.total_s for s in samples)
    reached, accepted = (
        [sum(column) for column in _columns([getattr(s, name) for s in samples])]
        for name in ("reached_by_position", "accepted_by_position")
    )
    return Row(
        kind=first.kind,
        engine=first.engine,
        draft=first.draft,
        n_repeats=len(speeds),
        speed=statistics.median(speeds),
        speed_low=min(speeds),
        speed_high=max(speeds),
        gain=statistics.median(ratios) if ratios else None,
        gain_low=min(ratios, default=None),
        gain_high=max(ratios, default=None),
        gain_max=_tokens_per_timed_pass(samples),
        acceptance=sum(s.draft_n_accepted for s in samples) / draft_n if draft_n else None,
        by_position=tuple(a / n if n else 0.0 for a, n in zip(accepted, reached, strict=True)),
        tokens_per_pass=sum(s.n_generated for s in samples) / n_rounds if n_rounds else 0.0,
        draft_n=draft_n,
        mean_draft_n=draft_n / (n_rounds - n_plain) if n_rounds > n_plain else 0.0,
        off_share=n_plain / n_rounds if n_rounds else 0.0,
        first_s=statistics.median(s.first_s for s in samples),
        host_share=1.0 - sum(native) / total_s if len(native) == len(samples) and total_s else None,
    )


def _tokens_per_timed_pass(samples: Iterable[Sample]) -> float:
    """The pass that reads the prompt is not timed where it gave a token for nothing."""
    timed = [(s.n_timed, s.n_rounds - (s.n_timed < s.n_generated)) for s in samples]
    n_passes = sum(n for _, n in timed)
    return sum(n for n, _ in timed) / n_passes if n_passes > 0 else 1.0


def _columns(lists: Sequence[Sequence[int]]) -> list[list[int]]:
    """By position; a shorter list has zeros."""
    longest = max((len(values) for values in lists), default=0)
    return [[values[i] if i < len(values) else 0 for values in lists] for i in range(longest)]


def recommendation(rows: Sequence[Row]) -> Recommendation:
    """What the rows of one kind recommend."""
    auto = next((r for r in rows if r.draft == "auto" and r.gain is not None), None)
    fixed = max((r for r in rows if isinstance(r.draft, int) and r.gain), key=_gain, default=None)
    if auto is None and fixed is None:
        return Recommendation(None, False, "too little was measured")
    best = auto if fixed is None or (auto is not None and _gain(auto) * DIFFERS >= _gain(fixed)) else fixed
    assert best is not None
    if best.is_disturbed:
        return Recommendation(
            None,
            False,
            f"not known: {best.gain:.2f}× was measured, and {best.gain_max:.2f} tokens per forward pass allow no more; "
            "the machine was disturbed, measure again",
        )
    if _gain(best) >= PAYS and best.draft_n:
        return _on(best, auto)
    judged = fixed or best  # auto does not show what drafting would cost: it turns it off
    if judged.draft_n and _gain(judged) < 1.0:
        return _off(judged, auto)
    if not judged.draft_n:
        return Recommendation(None, True, "makes no difference: nothing was drafted")
    return Recommendation(None, True, f"makes no difference: {_gain(best):.2f}×")


def _on(best: Row, auto: Row | None) -> Recommendation:
    sure = best.gain_low is not None and best.gain_low >= 1.0
    low, high = (min(gain or 0.0, best.gain_max) for gain in (best.gain_low, best.gain_high))
    doubt = "" if sure else f"; not sure: {low:.2f} to {high:.2f}×, more repeats would tell"
    if best is auto:
        return Recommendation("auto", sure, f"on, K about {round(best.mean_draft_n)}, {_gain(best):.2f}×{doubt}")
    less = f" (auto: {_gain(auto):.2f}×)" if auto is not None else ""
    return Recommendation(best.draft, sure, f"on, always K = {best.draft}, {_gain(best):.2f}×{less}{doubt}")


def _off(judged: Row, auto: Row | None) -> Recommendation:
    accepted = f"{100 * judged.acceptance:.0f} % accepted, " if judged.acceptance is not None else ""
    turns_off = auto is not None and auto is not judged and auto.off_share > 0.5
    note = f" (auto turns it off: {_gain(auto):.2f}×)" if auto is not None and turns_off else ""
    sure = judged.gain_high is not None and judged.gain_high < 1.0
    return Recommendation("off", sure, f"leave it off: {accepted}{_gain(judged):.2f}×{note}")


def _gain(row: Row) -> float:
    """Never above what the row's own figures allow."""
    return min(row.gain or 0.0, row.gain_max)
