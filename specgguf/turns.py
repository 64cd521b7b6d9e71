"""Whose turn it is: which generation owns the caches of a pair, who waits for them, and who is told to end.

A generation takes its turn with its first round; the one before it raises when it is read on. The lock is held per
round, never across a yield. It knows models only as what can be told to stop reading.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from .control.controller import Adaptive, Fixed
from .decode.generation import Generation, advance
from .decode.records import Round
from .decode.run import Run
from .errors import Busy, Cancelled, ConfigError, Unsupported


class Interruptible(Protocol):
    """A model, as far as a turn is concerned."""

    def cancel(self) -> None:
        """Stop reading a prompt; until `resume`."""

    def resume(self) -> None:
        """Take `cancel` back."""


class Turns:
    """The turns of one pair.

    Attributes:
        owner: the turn that has begun and owns the caches.
        closed: nothing begins any more.
    """

    def __init__(self, models: Sequence[Interruptible]) -> None:
        self.owner: Turn | None = None
        self.closed = False
        self._models = models
        self._lock = threading.RLock()
        self._current: list[weakref.ref[Generation]] = []  # the one that runs, and the one that was asked for last
        self._holder = 0  # the thread that holds the lock, and how often
        self._depth = 0
        self._free: Callable[[], None] | None = None  # what is to be done once nobody holds it
        self._told = threading.local()
        self._pid = os.getpid()

    @contextlib.contextmanager
    def lock(self, timeout: float | None = None) -> Iterator[None]:
        """Keep other threads out, for a round or a whole generation.

        Raises:
            Busy: not free within `timeout` seconds (None waits). ConfigError: the engine was closed. Unsupported: this
            is a fork of the process that loaded the models.
        """
        if self.is_forked:
            raise Unsupported(
                "a loaded model cannot be used after fork: llama.cpp's threads stayed behind in the parent process",
                hint='load it in the child, or start children with multiprocessing.get_context("spawn")',
            )
        if not self._lock.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise Busy("another thread is generating with this engine", hint="wait for it, or load a second engine")
        self._holder, self._depth = threading.get_ident(), self._depth + 1
        try:
            if self.closed:
                raise ConfigError("these models were closed", hint="load them again")
            yield
        finally:
            self._depth -= 1
            try:
                if not self._depth and self._free is not None:
                    self._end()
            finally:
                self._lock.release()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the one that loaded the models."""
        return os.getpid() != self._pid

    def ask_for(self, generation: Generation) -> None:
        """`generation` is the one that was asked for last: `cancel` and `stop` reach it, though it has not begun."""
        self._current = [*self._current[:1], weakref.ref(generation)]
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

    def take_over(self, turn: Turn, generation: Generation) -> None:
        """The caches are `turn`'s from now on."""
        self.end_running()
        self.owner = turn
        self._current = [weakref.ref(generation), *self._current[-1:]]
        self.resume()

    def interrupt(self) -> None:
        """Do not let what runs read on."""
        for model in self._models:
            model.cancel()

    def resume(self) -> None:
        """Take `interrupt` back."""
        for model in self._models:
            model.resume()

    def release(self, turn: Turn) -> None:
        """`turn` has ended: its caches are rolled back to a prefix of what it committed."""
        if self.is_forked:  # the lock may be of a thread that stayed behind, and so are the caches
            return
        if self.owner is turn:  # one that never began does not wait for the lock
            with self._lock:
                if self.owner is turn:
                    self.end_running()

    def end_running(self) -> None:
        """Nothing owns the caches any more; they are valid. Under the lock."""
        turn, self.owner = self.owner, None
        if turn is not None and turn.run is not None:
            turn.run.synchronise()

    def close(self, free: Callable[[], None]) -> None:
        """Stop what runs, in another thread too, let nothing begin any more, and `free` the models: at once, or, where
        a signal handler or a callback of a round asks for it, when that round is over. In a fork nothing is freed:
        that is the parent's, and so may be the lock."""
        was_closed, self.closed = self.closed, True
        if self.is_forked or was_closed:
            return
        self.cancel()
        self._free = free
        if self._holder == threading.get_ident() and self._depth:
            return
        with self._lock:
            self._end()

    def _end(self) -> None:
        free, self._free = self._free, None
        try:
            self.end_running()
        finally:
            if free is not None:
                free()

    def cancel(self) -> None:
        """`Generation.cancel` for what runs, and for what was asked for last."""
        for generation in self._generations():
            generation.cancel()

    def stop(self) -> None:
        """`Generation.stop` for what runs, and for what was asked for last."""
        for generation in self._generations():
            generation.stop()

    def _generations(self) -> list[Generation]:
        return [generation for one in self._current if (generation := one()) is not None]


class Turn:
    """One generation's turn, the driver of its rounds.

    Args:
        begin: makes its run and chooses its controller, once the caches are its own.
        count: told of every round.
        timeout: seconds to wait for another thread, see `Turns.lock`.
    """

    def __init__(
        self,
        turns: Turns,
        begin: Callable[[Generation], tuple[Run, Fixed | Adaptive]],
        count: Callable[[Generation, Round, str], None],
        timeout: float | None,
    ) -> None:
        self.run: Run | None = None
        self._turns = turns
        self._begin, self._count = begin, count
        self._timeout = timeout
        self._controller: Fixed | Adaptive | None = None

    def advance(self, generation: Generation) -> Round | None:
        """The next round, the first of which takes the engine over; None where the generation was stopped."""
        turns = self._turns
        if self.run is None:
            with turns.lock(self._timeout):
                turns.take_over(self, generation)
                if generation.cancelled:  # in this order: a cancel that comes now finds it running
                    raise Cancelled("stopped")
                self.run, self._controller = self._begin(generation)
        with turns.lock():
            if turns.owner is not self:
                raise Busy("a newer generation took this engine over")
            if generation.cancelled:
                raise Cancelled("stopped")
            if generation.stopped:
                return None
            assert self._controller is not None
            round = self._round(generation, self.run, self._controller)
            self._count(generation, round, self.run.off_reason or self._controller.off_reason)
            return round

    def _round(self, generation: Generation, run: Run, controller: Fixed | Adaptive) -> Round:
        try:
            return advance(run, controller)
        except Cancelled:
            if generation.cancelled or self._turns.closed:
                raise
            self._turns.resume()  # it was meant for the one before, which had just ended
            return advance(run, controller)

    def interrupt(self, generation: Generation) -> None:
        """It was cancelled: stop what it reads, if it is the one that runs."""
        if self._turns.owner is self:
            self._turns.interrupt()

    def release(self, generation: Generation) -> None:
        """It has ended, however: its caches are a prefix of what it committed."""
        self._turns.release(self)
