"""Measuring what a pair costs where it stands: passes of the target, a draft step, the draft's prefill.

It runs the models on meaningless tokens and leaves their caches as they were. What the costs are for, it does not
know.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from specgguf.config import DRAFT_MAX_LIMIT
from specgguf.decode.sequence import CachedSequence

from .costs import Costs

TILE = 8  # kernels take tokens in tiles of so many: batches are padded up to a multiple
PREFILL_TOKENS = 16


def largest_batch(draft_max: int, *, pads: bool) -> int:
    """The target's largest batch: a full draft, and its padding."""
    tiles = -(-(draft_max + 1) // TILE)
    return max(draft_max + 1, min(tiles * TILE, DRAFT_MAX_LIMIT)) if pads else draft_max + 1


def calibrated_sizes(draft_max: int, *, pads: bool) -> list[int]:
    """The batch sizes that are measured: the small ones, a full draft's, and full tiles."""
    largest = largest_batch(draft_max, pads=pads)
    return sorted({1, 2, draft_max + 1, *(n for n in (4, *range(TILE, largest + 1, TILE)) if n <= largest)})


def measure(model: CachedSequence, batch_size: int, n_outputs: int, clock: Callable[[], float]) -> float:
    """Seconds of a pass over `batch_size` tokens: the faster of two, since the first pays for its graph. The cache
    holds afterwards what it held before."""
    seconds = []
    for _ in range(2):
        n = len(model.tokens)
        model.mark(model.n_ctx)  # the whole pass is dropped again, further than a native rollback reaches
        started = clock()
        model.extend([0] * batch_size, min(batch_size, n_outputs))
        seconds.append(clock() - started)
        model.roll_back(n)
    return min(seconds)


def calibrate(
    target: CachedSequence, draft: CachedSequence | None, draft_max: int, clock: Callable[[], float] = time.perf_counter
) -> Costs:
    """Measure passes of the target over `calibrated_sizes`, a draft step, and the draft's prefill per token."""
    pads = target.rolls_back_freely
    largest = largest_batch(draft_max, pads=pads)

    def seconds(model: CachedSequence, batch_size: int) -> float:
        return measure(model, batch_size, largest, clock)

    n_free = target.n_ctx - len(target.tokens)
    if n_free > 1:
        seconds(target, 2)  # the first pass of all reads the weights from disk
    verify_s = {n: seconds(target, n) for n in calibrated_sizes(draft_max, pads=pads) if n <= n_free}
    if draft is None:
        return Costs(largest, verify_s, 0.0, 0.0, pads=pads)
    n_prefill = min(PREFILL_TOKENS, draft.n_ctx - len(draft.tokens))
    if n_prefill < 2:
        return Costs(largest, verify_s, pads=pads)
    return Costs(largest, verify_s, seconds(draft, 1), seconds(draft, n_prefill) / n_prefill, pads=pads)
