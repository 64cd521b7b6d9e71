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
ROWS_MAX = 64  # of several sequences in one pass: more are not planned


def largest_batch(draft_max: int, *, pads: bool, n_sequences: int = 1) -> int:
    """The target's largest batch: a full draft of each sequence, and its padding."""
    if n_sequences > 1:
        return max(min(n_sequences * (draft_max + 1), ROWS_MAX), n_sequences)
    tiles = -(-(draft_max + 1) // TILE)
    return max(draft_max + 1, min(tiles * TILE, DRAFT_MAX_LIMIT)) if pads else draft_max + 1


def calibrated_sizes(draft_max: int, *, pads: bool, n_sequences: int = 1) -> list[int]:
    """The batch sizes that are measured: the small ones, a full draft's, full tiles, and the largest."""
    largest = largest_batch(draft_max, pads=pads, n_sequences=n_sequences)
    tiles = range(TILE, largest + 1, TILE) if n_sequences == 1 else (8, 12, 16, 24, 32, 48, largest)
    return sorted({1, 2, draft_max + 1, *(n for n in (4, *tiles) if n <= largest)})


def level_sizes(n_sequences: int) -> list[int]:
    """Numbers of sequences whose common draft step is measured."""
    return sorted({n for n in (2, 4, 8, 16, n_sequences) if 1 < n <= n_sequences})


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
    target: CachedSequence,
    draft: CachedSequence | None,
    draft_max: int,
    clock: Callable[[], float] = time.perf_counter,
    *,
    n_sequences: int = 1,
) -> Costs:
    """Measure passes of the target over `calibrated_sizes`, draft steps, and the draft's prefill per token. What
    several sequences cost together is measured on one, which reads as many tokens: the weights are read once in both.
    """
    pads = target.rolls_back_freely
    largest = largest_batch(draft_max, pads=pads, n_sequences=n_sequences)

    def seconds(model: CachedSequence, batch_size: int) -> float:
        return measure(model, batch_size, largest, clock)

    n_free = target.n_ctx - len(target.tokens)
    if n_free > 1:
        seconds(target, 2)  # the first pass of all reads the weights from disk
    sizes = calibrated_sizes(draft_max, pads=pads, n_sequences=n_sequences)
    verify_s = {n: seconds(target, n) for n in sizes if n <= n_free}
    if draft is None:
        return Costs(largest, verify_s, 0.0, 0.0, pads=pads)
    n_left = draft.n_ctx - len(draft.tokens)
    n_prefill = min(PREFILL_TOKENS, n_left)
    if n_prefill < 2:
        return Costs(largest, verify_s, pads=pads)
    levels = {n: seconds(draft, n) for n in level_sizes(n_sequences) if n <= n_left}
    prefill_s = seconds(draft, n_prefill) / n_prefill
    return Costs(largest, verify_s, seconds(draft, 1), prefill_s, draft_level_s=levels, pads=pads)
