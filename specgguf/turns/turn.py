"""One generation's turn with the contexts: its place among those that run, and the rounds that were made for it.

A round may be made before it is asked for, while others have theirs. It decides nothing about who gets a place, nor
about what a round is.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Protocol

from specgguf.control.controller import Adaptive, Fixed
from specgguf.decode.generation import Generation
from specgguf.decode.records import Round
from specgguf.decode.run import Run
from specgguf.errors import BackendError, Busy, Cancelled

from .lead import Lead

AHEAD = 4  # rounds that are made for a generation before they are asked for, since others have theirs anyway
_SEVERAL = object()  # in the place of a reader: more threads than one read it
_here = threading.local()


def this_reader() -> object:
    """Stands for the thread that asks. Not its number: the system gives that again to a later thread."""
    if not hasattr(_here, "reader"):
        _here.reader = object()
    reader: object = _here.reader
    return reader


class Places(Protocol):
    """Who has a place and who waits for one: `turns.Turns`."""

    lead: Lead

    def join(self, turn: Turn, begin: Callable[[], bool], ends: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a place until `begin` has taken it; False where `ends` came before."""

    def make_rounds(self, turn: Turn, generation: Generation) -> None:
        """Let all that run have a round, or find that `turn` has one."""

    def interrupt(self, turn: Turn) -> None:
        """Do not let it read on, or wait."""

    def release(self, turn: Turn) -> None:
        """It has ended."""


Begun = tuple[Run, Fixed | Adaptive, Callable[[], None]]  # and what gives the caches back


class Turn:
    """One generation's place, the driver of its rounds.

    Args:
        begin: makes its run and chooses its controller, once there is a place; None where the caches have no room yet.
        count: told of every round that is handed out.
        timeout: seconds to wait for a place, see `Turns.lock`.

    Attributes:
        ready: rounds that were made and not asked for yet, with why drafting was off; or what ended it.
        ended: it has no place any more. over: its last round was made.
        reader: who reads it, see `this_reader`; None before the first round.
        n_waited: rounds of others since it had one.
        n_read, read_s: tokens of its prompt that were read before its first round, and how long that took.
    """

    def __init__(
        self,
        turns: Places,
        begin: Callable[[Generation], Begun | None],
        count: Callable[[Generation, Round, str], None],
        timeout: float | None,
    ) -> None:
        self.run: Run | None = None
        self.controller: Fixed | Adaptive = Fixed(0)
        self.generation: weakref.ref[Generation] | None = None
        self.ready: deque[tuple[Round | Exception, str]] = deque()
        self.ended = self.over = False
        self.reader: object | None = None
        self.n_waited = self.n_read = 0
        self.read_s = 0.0
        self._turns = turns
        self._begin, self._count = begin, count
        self._leave: Callable[[], None] = lambda: None
        self._timeout = timeout

    @property
    def wants_rounds(self) -> bool:
        """Whether somebody may still read another one."""
        generation = self.generation() if self.generation is not None else None
        ends = generation is None or generation.cancelled or generation.stopped
        return not (self.over or self.ended or ends)

    @property
    def runs_ahead(self) -> bool:
        """Whether it is given a round that nobody asked for yet."""
        return self.wants_rounds and len(self.ready) < AHEAD

    def advance(self, generation: Generation) -> Round | None:
        """The next round, the first of which takes a place."""
        turns = self._turns
        if self.run is None:
            self.generation = weakref.ref(generation)
            if not turns.join(self, lambda: self._began(generation), lambda: _ends(generation), self._timeout):
                return None
        me = this_reader()
        self.reader = me if self.reader in (None, me) else _SEVERAL
        while True:
            if turns.lead.closed or turns.lead.is_forked:
                with turns.lead.lock():  # says so
                    pass
            if self.ended:
                raise Busy("a newer generation took this engine over")
            if generation.cancelled:
                raise Cancelled("stopped")
            if self.ready:
                outcome, off_reason = self.ready.popleft()
                if isinstance(outcome, Exception):
                    raise outcome
                self._count(generation, outcome, off_reason)
                return outcome
            if generation.stopped:
                with turns.lead.lock():  # a round that is under way was asked for before
                    if not self.ready:
                        return None
                continue
            turns.make_rounds(self, generation)

    def _began(self, generation: Generation) -> bool:
        begun = self._begin(generation)
        if begun is None:
            return False
        self.run, self.controller, self._leave = begun
        return True

    def take(self, round: Round) -> None:
        """A round was made for it."""
        assert self.run is not None
        self.over = round.finish_reason is not None
        self.ready.append((round, self.run.off_reason or self.controller.off_reason))

    def fail(self, error: Exception) -> None:
        """It ends with `error`."""
        self.over = True
        self.ready.append((error, ""))

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled, or nobody can read it any more."""
        generation = self.generation() if self.generation is not None else None
        return generation is None or generation.cancelled

    def leave(self) -> None:
        """It has no place any more; its caches are a prefix of what it committed."""
        self.ended = True
        try:
            if self.run is not None:
                with contextlib.suppress(BackendError):  # a cache that cannot be rolled back was cleared
                    self.run.synchronise()
        finally:
            self._leave()

    def interrupt(self, generation: Generation) -> None:
        """It was cancelled: stop what it reads, and do not let it wait."""
        self._turns.interrupt(self)

    def release(self, generation: Generation) -> None:
        """It has ended, however: its caches are a prefix of what it committed."""
        self._turns.release(self)


def _ends(generation: Generation) -> bool:
    """Whether it was stopped. Raises Cancelled where it was cancelled."""
    if generation.cancelled:
        raise Cancelled("stopped")
    return generation.stopped
