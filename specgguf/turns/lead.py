"""One thread at a time leads: it alone uses the contexts of a pair, and the others wait, or find their work done.

The lead is given for a round, never across a yield; the thread that has it may ask for it again. What is to be done
once nobody leads (places given back, models freed) is kept until then. It knows neither models nor generations.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from specgguf.errors import Busy, ConfigError, Unsupported

_BUSY = "another thread is generating with this engine"
_HINT = "wait for it, load a second engine, or allow several at once with n_parallel"


def busy() -> Busy:
    """What a caller is told who does not wait."""
    return Busy(_BUSY, hint=_HINT)


class Lead:
    """Who may use the contexts.

    Args:
        tidy: called, by the thread that leads, whenever it is about to stop leading.

    Attributes:
        closed: nothing is led any more.
    """

    def __init__(self, tidy: Callable[[], None]) -> None:
        self.closed = False
        self._tidy = tidy
        self._changed = threading.Condition(threading.RLock())
        self._leader, self._depth = 0, 0  # the thread that leads, and how often it was given that
        self._n_changes = 0
        self._pid = os.getpid()

    @contextlib.contextmanager
    def lock(self, timeout: float | None = None) -> Iterator[None]:
        """Lead.

        Raises:
            Busy: not free within `timeout` seconds (None waits). ConfigError: the engine was closed. Unsupported: this
            is a fork of the process that loaded the models.
        """
        self.refuse_fork()
        with self.led(timeout=timeout) as leads:
            if not leads:
                raise busy()
            self.refuse_closed()
            yield

    @contextlib.contextmanager
    def led(self, or_else: Callable[[], bool] = lambda: False, timeout: float | None = None) -> Iterator[bool]:
        """Wait until nobody else leads, or something else has come; whether this thread leads inside. An interrupt
        (Ctrl-C) that strikes as it begins to lead leaves the lead to others."""
        n_before = self._n_mine
        try:
            yield self._take(or_else, timeout)
        finally:
            if self._n_mine > n_before:
                self._give(n_before)

    def _take(self, or_else: Callable[[], bool], timeout: float | None) -> bool:
        me = threading.get_ident()
        with self._changed:
            if self._leader == me:
                self._depth += 1
                return True
            timeout = None if timeout is None else min(timeout, threading.TIMEOUT_MAX)
            if not self._changed.wait_for(lambda: not self._leader or or_else(), timeout) or or_else():
                return False
            self._depth = 1
            self._leader = me  # last: who is interrupted before it does not lead
            return True

    def _give(self, n_left: int) -> None:
        with self._changed:
            self._depth = n_left
            if n_left:
                return
            try:
                self._tidy()
            finally:
                self._leader = 0
                self._changed.notify_all()

    @property
    def _n_mine(self) -> int:
        """How often this thread was given the lead that it has."""
        return self._depth if self.is_mine else 0

    @property
    def is_mine(self) -> bool:
        """Whether this thread leads."""
        return self._leader == threading.get_ident()

    def tell(self) -> int:
        """Something changed that others may wait for; how many changes there were."""
        with self._changed:
            self._n_changes += 1
            self._changed.notify_all()
            return self._n_changes

    @property
    def n_changes(self) -> int:
        """How often `tell` was called."""
        return self._n_changes

    def wait(self, n_seen: int, or_else: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until there were more changes than `n_seen`, or for something else; False where nothing came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._n_changes != n_seen or self.closed or or_else(), timeout)

    @property
    def is_forked(self) -> bool:
        """Whether this process is a child of the one that loaded the models."""
        return os.getpid() != self._pid

    def refuse_fork(self) -> None:
        """Raise Unsupported in a fork."""
        if self.is_forked:
            raise Unsupported(
                "a loaded model cannot be used after fork: llama.cpp's threads stayed behind in the parent process",
                hint='load it in the child, or start children with multiprocessing.get_context("spawn")',
            )

    def refuse_closed(self) -> None:
        """Raise ConfigError once closed."""
        if self.closed:
            raise ConfigError("these models were closed", hint="load them again")
