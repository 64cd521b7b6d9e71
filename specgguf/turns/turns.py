"""Whose turn it is: which generations hold a place in the contexts of a pair, who waits for one, who is told to end.

Whoever needs a round makes it, for all that run: one thread at a time leads, and the others find theirs when it is
done. A generation takes its place with its first round, in the order of asking; where none is free it waits, unless
this thread itself has left another one unread: that one ends. What a round is, and who is in it, is `rounds`'.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from specgguf.decode.generation import Generation
from specgguf.errors import Cancelled

from .lead import Lead, busy
from .turn import Turn, this_reader


class Interruptible(Protocol):
    """A context, as far as a turn is concerned."""

    def cancel(self) -> None:
        """Stop reading a prompt; until `resume`."""

    def resume(self) -> None:
        """Take `cancel` back."""


LOOK_S = 1.0  # who waits looks this often: a place may be given back where nobody can be told

Play = Callable[[Sequence[Turn], "Turns"], None]


class Turns:
    """The turns of one pair.

    Args:
        contexts: what can be told to stop reading.
        n_max: generations that run at once.
        play: makes a round for those of the running turns that are given to it.

    Attributes:
        running: the turns that have begun and hold a place, in the order of their beginning.
        reading: whose prompt is read now, as far as that can be interrupted.
        lead: who makes rounds now.
    """

    def __init__(self, contexts: Sequence[Interruptible], n_max: int, play: Play) -> None:
        self.running: list[Turn] = []
        self.reading: Turn | None = None
        self.lead = Lead(self._tidy)
        self.n_max = n_max
        self._contexts = contexts
        self._play = play
        self._waiting: deque[Turn] = deque()
        self._lacks_cells = False  # the first of them: the caches cannot hold it beside those that run
        self._leaving: deque[Turn] = deque()  # they have ended, and still hold their places
        self._asked_last: weakref.ref[Generation] | None = None
        self._free: Callable[[], None] | None = None  # what is to be done once nobody leads
        self._told = threading.local()

    def lock(self, timeout: float | None = None) -> AbstractContextManager[None]:
        """Keep other threads from making rounds; see `Lead.lock` for what is raised."""
        return self.lead.lock(timeout)

    def make_rounds(self, turn: Turn, generation: Generation) -> None:
        """Let all that run have a round, or find that `turn` has one already: another thread led."""
        with self.lead.led(lambda: bool(turn.ready) or turn.ended or generation.cancelled) as leads:
            if leads:
                self.lead.refuse_closed()
                if not turn.ended:
                    self._play([one for one in self.running if one is turn or one.runs_ahead], self)

    def _tidy(self) -> None:
        """What has to wait until no round is under way: places are given back, and models freed."""
        while self._leaving:
            self.end(self._leaving.popleft())
        if self._free is not None:
            free, self._free = self._free, None
            try:
                self.end_running()
            finally:
                free()

    # --- who has a place ----------------------------------------------------------------------------------

    def join(self, turn: Turn, begin: Callable[[], bool], ends: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a place, in the order of asking, until `begin` has taken it; False where `ends` came meanwhile.

        Raises:
            As `lock`, and what `ends` raises.
        """
        self.lead.refuse_fork()
        until = None if timeout is None else time.monotonic() + min(timeout, threading.TIMEOUT_MAX / 2)
        self._waiting.append(turn)
        try:
            while True:
                left = None if until is None else max(until - time.monotonic(), 0.0)
                with self.lock(left):
                    n_seen = self.lead.n_changes
                    if self._take_place(turn, begin, ends):
                        return True
                came = self.lead.wait(n_seen, ends, LOOK_S if left is None else min(left, LOOK_S))
                if ends():
                    return False
                if not came and left is not None and left <= LOOK_S:
                    raise busy()
        finally:
            self._waiting.remove(turn)
            self._lacks_cells = False
            self.lead.tell()

    def _take_place(self, turn: Turn, begin: Callable[[], bool], ends: Callable[[], bool]) -> bool:
        while True:
            if self._waiting[0] is turn and len(self.running) < self.n_max:
                if self.n_max == 1:  # in this order: a cancel that comes now finds it reading
                    self.reading = turn
                    self.resume()
                ends()  # raises where it was cancelled
                if begin():
                    self.running.append(turn)
                    return True
                self._lacks_cells = True
            elif len(self.running) < self.n_max and not self._lacks_cells:
                return False  # a place is free for who asked before
            unread = [one for one in self.running if one.reader is this_reader()]
            if not unread:
                return False
            self.end(unread[0])  # nobody else could make room: this thread would wait for itself

    @contextlib.contextmanager
    def place(self, begin: Callable[[], bool], cancelled: Callable[[], bool], timeout: float | None) -> Iterator[None]:
        """A place for something that is no generation; see `join`. Raises Cancelled too."""

        def ends() -> bool:
            if cancelled():
                raise Cancelled("stopped")
            return False

        turn = Turn(self, lambda _: None, lambda *_: None, None)
        turn.over = True  # no rounds are made for it
        self.join(turn, begin, ends, timeout)
        try:
            yield
        finally:
            self.release(turn)

    @property
    def n_asked(self) -> int:
        """Places that are held or waited for."""
        return len(self.running) + len(self._waiting)

    def release(self, turn: Turn) -> None:
        """`turn` has ended: its caches are rolled back to a prefix of what it committed, now or, where a round is
        under way, when that is over."""
        if self.lead.is_forked or turn not in self.running:  # what leads may be a thread that stayed behind
            return
        self._leaving.append(turn)
        with self.lead.led(timeout=0.0):
            pass

    def end(self, turn: Turn) -> None:
        """It holds no place any more, and its caches are valid. For who leads."""
        if turn in self.running:
            self._lacks_cells = False
            self.running.remove(turn)
            self.reading = None if self.reading is turn else self.reading
            try:
                turn.leave()
            finally:
                self.lead.tell()

    def end_running(self) -> None:
        """Nothing holds a place any more. For who leads."""
        for turn in tuple(self.running):
            self.end(turn)

    def close(self, free: Callable[[], None]) -> None:
        """Stop what runs, in another thread too, let nothing begin any more, and `free` the models: at once, or, where
        a signal handler or a callback of a round asks for it, when that round is over. In a fork nothing is freed:
        that is the parent's, and so may be the lead."""
        was_closed, self.lead.closed = self.lead.closed, True
        if self.lead.is_forked or was_closed:
            return
        self.cancel()
        self._free = free
        if not self.lead.is_mine:
            self.lead.tell()
            with self.lead.led():
                pass

    # --- who is told to end -------------------------------------------------------------------------------

    def ask_for(self, generation: Generation) -> None:
        """`generation` is the one that was asked for last: `cancel` and `stop` reach it, though it has not begun."""
        self._asked_last = weakref.ref(generation)
        told: Callable[[Generation], None] | None = getattr(self._told, "call", None)
        if told is not None:
            told(generation)

    @contextlib.contextmanager
    def each_generation(self, told: Callable[[Generation], None]) -> Iterator[None]:
        """Inside it, `told` gets every generation that this thread asks for, before it begins."""
        before = getattr(self._told, "call", None)
        self._told.call = told
        try:
            yield
        finally:
            self._told.call = before

    def interrupt(self, turn: Turn) -> None:
        """Do not let it read on, or wait."""
        if self.reading is turn:
            for context in self._contexts:
                context.cancel()
        if not self.lead.is_forked:
            self.lead.tell()

    def resume(self) -> None:
        """Take `interrupt` back."""
        for context in self._contexts:
            context.resume()

    def cancel(self) -> None:
        """`Generation.cancel` for what runs, and for what was asked for last."""
        for generation in self._generations():
            generation.cancel()

    def stop(self) -> None:
        """`Generation.stop` for what runs, and for what was asked for last."""
        for generation in self._generations():
            generation.stop()

    def _generations(self) -> list[Generation]:
        asked = [] if self._asked_last is None else [self._asked_last]
        known = [*(turn.generation for turn in tuple(self.running) if turn.generation is not None), *asked]
        return list(dict.fromkeys(generation for one in known if (generation := one()) is not None))
