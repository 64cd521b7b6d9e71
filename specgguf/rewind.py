"""The ways to drop rejected tokens from a context's memory, behind one call.

A way is told before each decode where the memory stands, and later asked to keep only the first n tokens. It
answers how many it kept: all n, or fewer where only an older state could be restored. It never leaves a state
that is not a prefix, and it knows no tokens, only positions.
"""

from __future__ import annotations

from typing import Any, Protocol

from . import backend


class Way(Protocol):
    """One way of rewinding."""

    name: str

    def before(self, n_held: int, n_new: int, n_rows: int) -> None:
        """A decode of `n_new` tokens with `n_rows` rows follows on `n_held` held tokens."""

    def keep(self, n_held: int, n: int) -> int:
        """Keep at most the first n of `n_held` tokens; how many are kept, 0 <= kept <= n."""

    def reset(self) -> None:
        """The memory was cleared."""


class Plain:
    """Attention caches: any tail can be dropped by position.

    With a sliding window that discards old cells, positions before the window of the cut are needed again:
    where they are gone, nothing can be kept. A cut within the last decode is always safe.
    """

    name = "plain"

    def __init__(self, ctx: Any, n_swa: int) -> None:
        self._ctx = ctx
        self._n_swa = n_swa
        self._safe_from = 0

    def before(self, n_held: int, n_new: int, n_rows: int) -> None:
        self._safe_from = n_held

    def keep(self, n_held: int, n: int) -> int:
        if n >= n_held:
            return n_held
        if self._n_swa and n < self._safe_from:
            first = backend.pos_min(self._ctx)
            if first > 0 and first > n - self._n_swa:
                n = 0
        if n <= 0 or not backend.seq_rm(self._ctx, n):
            backend.clear(self._ctx)
            return 0
        return n

    def reset(self) -> None:
        self._safe_from = 0


class Never:
    """A memory that no way can rewind: whatever must be dropped takes everything with it."""

    name = "none"

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def before(self, n_held: int, n_new: int, n_rows: int) -> None:
        pass

    def keep(self, n_held: int, n: int) -> int:
        if n >= n_held:
            return n_held
        backend.clear(self._ctx)
        return 0

    def reset(self) -> None:
        pass


def choose(llama: Any, ctx: Any, batch: backend.Batch) -> Way:
    """The way that this context supports, found by trying: decode two tokens, drop one, look."""
    if backend.n_rs_seq(ctx) > 0 or backend.is_recurrent(llama):
        return Never(ctx)
    batch.fill([0, 0], 0, 0)
    rewinds = backend.decode(ctx, batch) == backend.DECODE_OK and backend.seq_rm(ctx, 1) and backend.pos_max(ctx) == 0
    backend.clear(ctx)
    return Plain(ctx, backend.n_swa(llama)) if rewinds else Never(ctx)
