"""Measuring a pair's costs where it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from specgguf.config import DRAFT_MAX_LIMIT

from .costs import Costs

TILE = 8

class Extendable(Protocol):
    """What a calibration needs of `model.Model`."""

    n_ctx: int

    @property
    def rolls_back_freely(self) -> bool:
        """Whether `rewind` always keeps what it is asked to, so that a pass can be padded."""

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds."""

    def extend(self, tokens: Sequence[int], n_outputs: int) -> Any:
        """Decode `tokens`."""

    def mark(self, n_ahead: int) -> None:
        """Up to `n_ahead` of the tokens decoded next are dropped again."""

    def roll_back(self, n: int) -> int:
        """Keep the first `n`."""


def widest(draft_max: int, *, pads: bool) -> int:
    """The widest pass of the target: that of a full draft, and its padding."""
    tiles = -(-(draft_max + 1) // TILE)
    return max(draft_max + 1, min(tiles * TILE, DRAFT_MAX_LIMIT)) if pads else draft_max + 1


def calibrated_widths(draft_max: int, *, pads: bool) -> list[int]:
    """What a calibration measures: the narrow passes, a full draft's, and full tiles."""
    widths = widest(draft_max, pads=pads)
    return sorted({1, 2, draft_max + 1, *(n for n in (4, *range(TILE, widths + 1, TILE)) if n <= widths)})


def measure(model: Extendable, width: int, n_outputs: int, clock: Callable[[], float]) -> float:
    """Seconds of a pass over `width` tokens: the faster of two, since the first pays for its graph. The cache holds
    afterwards what it held before."""
    seconds = []
    for _ in range(2):
        n = len(model.tokens)
        model.mark(model.n_ctx)  # the whole pass is dropped again, further than a native rollback reaches
        started = clock()
        model.extend([0] * width, min(width, n_outputs))
        seconds.append(clock() - started)
        model.roll_back(n)
    return min(seconds)


def calibrate(
    target: Extendable, draft: Extendable | None, draft_max: int, clock: Callable[[], float] = time.perf_counter
) -> Costs:
    """Measure a pair where it stands: passes of the target at `calibrated_widths`, a draft step, and a batched
    catching up per token."""
    pads = target.rolls_back_freely
    widths = widest(draft_max, pads=pads)

    def best_of_two(model: Extendable, width: int) -> float:
        return measure(model, width, widths, clock)

    n_draft_max = target.n_ctx - len(target.tokens)
    if n_draft_max > 1:
        best_of_two(target, 2)  # the first pass of all reads the weights from disk
    verify_s = {n: best_of_two(target, n) for n in calibrated_widths(draft_max, pads=pads) if n <= n_draft_max}
    if draft is None:
        return Costs(widths, verify_s, 0.0, 0.0, pads=pads)
    wide = min(16, draft.n_ctx - len(draft.tokens))
    if wide < 2:
        return Costs(widths, verify_s, pads=pads)
    return Costs(widths, verify_s, best_of_two(draft, 1), best_of_two(draft, wide) / wide, pads=pads)
