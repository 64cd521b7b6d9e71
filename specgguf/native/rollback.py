"""How rejected tokens are dropped from a sequence's memory, behind one call.

    plain        attention caches: any tail goes by position
    native       recurrent states that llama.cpp can roll back itself, within the last decode (n_rs_seq)
    checkpoint   recurrent states: a saved state is restored, and the caller decodes what came after it again
    unsupported  nothing serves: whatever must be dropped takes everything with it

Each sequence of a context has one of its own. It knows positions, not tokens. It answers how many it kept: all that was
asked for, or fewer where only an older state could be restored. It never leaves a state that is not a prefix.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

from specgguf.errors import BackendError, WorkerLost

from . import backend

_NOWHERE = 2**31  # beyond every position


class Rollback(ABC):
    """Drops a sequence's last tokens. A way that has no use for a notice need not hear it."""

    name: str

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:  # noqa: B027
        """Up to `n_ahead` of the tokens decoded next may be dropped again. A pinned mark (the end of a prompt)
        is kept beside the latest one."""

    def before(self, n_held: int, n_new: int, *, whole: bool) -> None:  # noqa: B027
        """A decode of `n_new` tokens follows on `n_held` held ones.

        Args:
            whole: llama.cpp computes all of that pass, other sequences' tokens included, at once (as one ubatch).
        """

    def others_follow(self, n_held: int) -> None:  # noqa: B027
        """A decode follows on `n_held` held tokens, and one of other sequences before anything is dropped again."""

    def others_decoded(self) -> None:  # noqa: B027
        """A pass of other sequences alone was computed."""

    @abstractmethod
    def roll_back(self, n_held: int, n: int) -> int:
        """Keep at most the first n of `n_held` tokens; how many are kept, 0 <= kept <= n."""

    @abstractmethod
    def resync(self, n: int) -> int:
        """After a decode that did not come back whole: keep at most n tokens; how many are kept."""

    def reset(self) -> None:  # noqa: B027
        """The memory was cleared, or filled by other means than decoding."""


class Window(NamedTuple):
    """A sliding window whose older cells may have been given to other tokens.

    Which cells are gone cannot be asked: as soon as several sequences share them, the remaining ones need not be the
    latest. But the size of a sequence's state counts the cells within the window of its end.
    """

    n: int  # tokens
    empty_bytes: int  # of the state of a sequence without cells
    cell_bytes: int

    def is_whole(self, ctx: Any, seq: int, n_held: int) -> bool:
        """Whether the window of a sequence of `n_held` tokens has all its cells."""
        wanted = self.empty_bytes + self.cell_bytes * min(n_held, self.n)
        return backend.state_size(ctx, seq, backend.STATE_PARTIAL_ONLY) >= wanted


class Plain(Rollback):
    """Attention caches: any tail can be dropped by position.

    With a sliding window, positions before the window of the cut are needed again: where one of them is gone, nothing
    can be kept. A cut within the last decode is always safe where that was one ubatch: the next one may discard what
    the first tokens of a longer decode still see, and so may a later decode of another sequence.
    """

    name = "plain"

    def __init__(self, ctx: Any, seq: int, window: Window | None) -> None:
        self._ctx = ctx
        self._seq = seq
        self._window = window
        self._safe_from = _NOWHERE

    def before(self, n_held: int, n_new: int, *, whole: bool) -> None:
        self._safe_from = n_held if whole else _NOWHERE

    def others_decoded(self) -> None:
        self._safe_from = _NOWHERE

    def roll_back(self, n_held: int, n: int) -> int:
        if n >= n_held:
            return n_held
        if n > 0 and backend.seq_rm(self._ctx, self._seq, n) and (n >= self._safe_from or self.is_whole(n)):
            return n
        backend.clear(self._ctx, self._seq)
        return 0

    def is_whole(self, n_held: int) -> bool:
        """Whether everything is there that a token after the `n_held` held ones would see."""
        return self._window is None or self._window.is_whole(self._ctx, self._seq, n_held)

    def resync(self, n: int) -> int:
        self._safe_from = _NOWHERE  # what a failed decode discarded is not known
        return self.roll_back(n + 1, min(n, backend.pos_max(self._ctx, self._seq) + 1))

    def reset(self) -> None:
        self._safe_from = _NOWHERE


class Checkpoint(Rollback):
    """Saved states of what cannot be rolled back by position, restored on demand.

    At most two are held: the latest mark and the pinned one. Restoring gives the state at the mark, from which
    the caller decodes the committed tokens again.
    """

    name = "checkpoint"

    def __init__(self, ctx: Any, seq: int) -> None:
        self._ctx = ctx
        self._seq = seq
        self._latest: tuple[int, bytes] | None = None
        self._pinned: tuple[int, bytes] | None = None

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:
        if n_held == 0:
            return  # clearing restores that
        for saved in (self._pinned, self._latest):
            if saved is not None and saved[0] == n_held:
                break
        else:
            saved = (n_held, backend.get_state(self._ctx, self._seq, backend.STATE_PARTIAL_ONLY))
        if pin:
            self._pinned = saved
        else:
            self._latest = saved

    def roll_back(self, n_held: int, n: int) -> int:
        return n_held if n >= n_held else self.resync(n)

    def resync(self, n: int) -> int:
        fitting = [saved for saved in (self._latest, self._pinned) if saved is not None and saved[0] <= n]
        for at, data in sorted(fitting, key=lambda saved: -saved[0]):
            # The state's own tail beyond `at` (attention layers) can be cut once the recurrent part is back.
            restored = backend.set_state(self._ctx, data, self._seq, backend.STATE_PARTIAL_ONLY)
            if restored and backend.seq_rm(self._ctx, self._seq, at):
                self._forget(n)
                return at
        backend.clear(self._ctx, self._seq)
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

    It is right for at most min(n_rs_seq, tokens of the last decode − 1) tokens, once per decode, and before any other
    sequence is decoded; outside that llama.cpp answers True and leaves a wrong state, so that number is tracked here.
    """

    name = "native"

    def __init__(self, ctx: Any, seq: int, n_rs_seq: int) -> None:
        super().__init__(ctx, seq)
        self._n_rs_seq = n_rs_seq
        self._reach = 0

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:
        if pin or n_ahead > self._n_rs_seq:
            super().mark(n_held, n_ahead, pin=pin)

    def before(self, n_held: int, n_new: int, *, whole: bool) -> None:
        self._reach = min(self._n_rs_seq, n_new - 1) if whole else 0

    def others_follow(self, n_held: int) -> None:
        super().mark(n_held, 0)

    def others_decoded(self) -> None:
        self._reach = 0

    def roll_back(self, n_held: int, n: int) -> int:
        if n >= n_held:
            return n_held
        reach, self._reach = self._reach, 0
        if n > 0 and n_held - n <= reach and backend.seq_rm(self._ctx, self._seq, n):
            self._forget(n)
            return n
        return super().roll_back(n_held, n)

    def resync(self, n: int) -> int:
        self._reach = 0  # what a failed decode left cannot be rolled back
        return super().resync(n)

    def reset(self) -> None:
        super().reset()
        self._reach = 0


class NoRollback(Rollback):
    """A memory that nothing can roll back: whatever must be dropped takes everything with it."""

    name = "unsupported"

    def __init__(self, ctx: Any, seq: int) -> None:
        self._ctx = ctx
        self._seq = seq

    def roll_back(self, n_held: int, n: int) -> int:
        return n_held if n >= n_held else self.resync(n)

    def resync(self, n: int) -> int:
        backend.clear(self._ctx, self._seq)
        return 0

    def reset(self) -> None:
        pass


def select(memory: backend.Memory, ctx: Any, batch: backend.Batch) -> Callable[[int], Rollback]:
    """Makes the rollback of a sequence: the one that this context supports, found by trying on its first sequence.
    The context is empty before and after."""
    make: Callable[[int], Rollback]
    n_rs_seq, n_swa = backend.limits(ctx).n_rs_seq, memory.n_swa
    if n_rs_seq > 0:
        make = lambda seq: Native(ctx, seq, n_rs_seq)  # noqa: E731
    elif memory.is_recurrent:
        make = lambda seq: Checkpoint(ctx, seq)  # noqa: E731
    else:
        window = _window(ctx, batch, n_swa) if n_swa else None
        make = lambda seq: Plain(ctx, seq, window)  # noqa: E731
    try:
        works = _rolls_back(make(0), ctx, batch)
    except WorkerLost:
        raise
    except BackendError:
        works = False
    backend.clear(ctx, 0)
    return make if works else lambda seq: NoRollback(ctx, seq)


def _window(ctx: Any, batch: backend.Batch, n_swa: int) -> Window:
    """What the cells of a window of n_swa tokens take in a sequence's state."""
    sizes = []
    for position in range(2):
        _decode(ctx, batch, position, 1)
        sizes.append(backend.state_size(ctx, 0, backend.STATE_PARTIAL_ONLY))
    backend.clear(ctx, 0)
    cell_bytes = sizes[1] - sizes[0]
    return Window(n_swa, sizes[0] - cell_bytes, cell_bytes)


def _rolls_back(rollback: Rollback, ctx: Any, batch: backend.Batch) -> bool:
    """Whether `rollback` brings `ctx` back to one token after it was given two more."""
    for n_held, n_new in ((0, 1), (1, 2)):
        rollback.mark(n_held, n_new - 1)
        rollback.before(n_held, n_new, whole=True)
        if not _decode(ctx, batch, n_held, n_new):
            return False
    kept = rollback.roll_back(3, 2)
    return kept >= 1 and backend.pos_max(ctx, 0) == kept - 1


def _decode(ctx: Any, batch: backend.Batch, position: int, n: int) -> bool:
    batch.fill([backend.BatchPart(0, position, [0] * n, 0)])
    return backend.decode(ctx, batch) == backend.DECODE_OK
