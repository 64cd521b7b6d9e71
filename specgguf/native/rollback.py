"""The ways to drop rejected tokens from a context's memory, behind one call.

    plain        attention caches: any tail goes by position
    native       recurrent states that llama.cpp can roll back itself, within the last decode (n_rs_seq)
    checkpoint   recurrent states: a saved state is restored, and the caller decodes what came after it again
    none         nothing serves: whatever must be dropped takes everything with it

A way knows positions, not tokens. It answers how many it kept: all that was asked for, or fewer where only an
older state could be restored. It never leaves a state that is not a prefix.
"""

from __future__ import annotations

from typing import Any, Protocol

from specgguf.errors import BackendError

from . import backend

_NOWHERE = 2**31  # beyond every position


class Rollback(Protocol):
    """One way of rewinding."""

    name: str

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:
        """Up to `n_ahead` of the tokens decoded next may be dropped again. A pinned mark (the end of a prompt)
        is kept beside the latest one."""

    def before(self, n_held: int, n_new: int) -> None:
        """A decode of `n_new` tokens follows on `n_held` held ones."""

    def roll_back(self, n_held: int, n: int) -> int:
        """Keep at most the first n of `n_held` tokens; how many are kept, 0 <= kept <= n."""

    def resync(self, n: int) -> int:
        """After a decode that did not come back whole: keep at most n tokens; how many are kept."""

    def reset(self) -> None:
        """The memory was cleared."""


class Plain:
    """Attention caches: any tail can be dropped by position.

    With a sliding window that discards old cells, positions before the window of the cut are needed again:
    where they are gone, nothing can be kept. A cut within the last decode is always safe where that was one
    ubatch: the next one may discard what the first tokens of a wider decode still see.
    """

    name = "plain"

    def __init__(self, ctx: Any, n_swa: int) -> None:
        self._ctx = ctx
        self._n_swa = n_swa
        self._n_ubatch = backend.n_ubatch(ctx)
        self._safe_from = _NOWHERE

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:
        pass

    def before(self, n_held: int, n_new: int) -> None:
        self._safe_from = n_held if n_new <= self._n_ubatch else _NOWHERE

    def roll_back(self, n_held: int, n: int) -> int:
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

    def resync(self, n: int) -> int:
        return self.roll_back(n + 1, min(n, backend.pos_max(self._ctx) + 1))

    def reset(self) -> None:
        self._safe_from = _NOWHERE


class Checkpoint:
    """Saved states of what cannot be rewound by position, restored on demand.

    At most two are held: the latest mark and the pinned one. Restoring gives the state at the mark, from which
    the caller decodes the committed tokens again.
    """

    name = "checkpoint"

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self._latest: tuple[int, bytes] | None = None
        self._pinned: tuple[int, bytes] | None = None

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:
        if n_held == 0:
            return  # clearing restores that
        for saved in (self._pinned, self._latest):
            if saved is not None and saved[0] == n_held:
                break
        else:
            saved = (n_held, backend.get_state(self._ctx, backend.STATE_PARTIAL_ONLY))
        if pin:
            self._pinned = saved
        else:
            self._latest = saved

    def before(self, n_held: int, n_new: int) -> None:
        pass

    def roll_back(self, n_held: int, n: int) -> int:
        return n_held if n >= n_held else self.resync(n)

    def resync(self, n: int) -> int:
        fitting = [saved for saved in (self._latest, self._pinned) if saved is not None and saved[0] <= n]
        for at, data in sorted(fitting, key=lambda saved: -saved[0]):
            # The state's own tail beyond `at` (attention layers) can be cut once the recurrent part is back.
            if backend.set_state(self._ctx, data, backend.STATE_PARTIAL_ONLY) and backend.seq_rm(self._ctx, at):
                self._forget(n)
                return at
        backend.clear(self._ctx)
        self.reset()
        return 0

    def _forget(self, n: int) -> None:
        """Drop the marks beyond n tokens: another text follows there."""
        self._latest = None if self._latest is not None and self._latest[0] > n else self._latest
        self._pinned = None if self._pinned is not None and self._pinned[0] > n else self._pinned

    def reset(self) -> None:
        self._latest = self._pinned = None


class Native(Checkpoint):
    """llama.cpp's own rollback of recurrent states, with checkpoints for what it cannot reach.

    It is right for at most min(n_rs_seq, width of the last decode − 1) tokens, and once per decode; outside that
    llama.cpp answers True and leaves a wrong state, so the width is tracked here.
    """

    name = "native"

    def __init__(self, ctx: Any, n_rs_seq: int) -> None:
        super().__init__(ctx)
        self._n_rs_seq = n_rs_seq
        self._reach = 0

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:
        if pin or n_ahead > self._n_rs_seq:
            super().mark(n_held, n_ahead, pin=pin)

    def before(self, n_held: int, n_new: int) -> None:
        self._reach = min(self._n_rs_seq, n_new - 1)

    def roll_back(self, n_held: int, n: int) -> int:
        if n >= n_held:
            return n_held
        reach, self._reach = self._reach, 0
        if n > 0 and n_held - n <= reach and backend.seq_rm(self._ctx, n):
            self._forget(n)
            return n
        return super().roll_back(n_held, n)

    def resync(self, n: int) -> int:
        self._reach = 0  # what a failed decode left cannot be rolled back
        return super().resync(n)

    def reset(self) -> None:
        super().reset()
        self._reach = 0


class NoRollback:
    """A memory that no way can rewind: whatever must be dropped takes everything with it."""

    name = "none"

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:
        pass

    def before(self, n_held: int, n_new: int) -> None:
        pass

    def roll_back(self, n_held: int, n: int) -> int:
        return n_held if n >= n_held else self.resync(n)

    def resync(self, n: int) -> int:
        backend.clear(self._ctx)
        return 0

    def reset(self) -> None:
        pass


def select(llama: Any, ctx: Any, batch: backend.Batch) -> Rollback:
    """The way that this context supports, found by trying: decode a few tokens, drop some, look at the end."""
    rollback: Rollback
    if backend.n_rs_seq(ctx) > 0:
        rollback = Native(ctx, backend.n_rs_seq(ctx))
    elif backend.is_recurrent(llama):
        rollback = Checkpoint(ctx)
    else:
        rollback = Plain(ctx, backend.n_swa(llama))
    try:
        works = _rolls_back(rollback, ctx, batch)
    except BackendError:
        works = False
    backend.clear(ctx)
    rollback.reset()
    return rollback if works else NoRollback(ctx)


def _rolls_back(rollback: Rollback, ctx: Any, batch: backend.Batch) -> bool:
    """Whether `way` brings `ctx` back to one token after it was given two more."""
    for n_held, n_new in ((0, 1), (1, 2)):
        rollback.mark(n_held, n_new - 1)
        rollback.before(n_held, n_new)
        batch.fill([0] * n_new, n_held, 0)
        if backend.decode(ctx, batch) != backend.DECODE_OK:
            return False
    kept = rollback.roll_back(3, 2)
    return kept >= 1 and backend.pos_max(ctx) == kept - 1
