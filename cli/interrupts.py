"""Ctrl-C while an answer is made: the first stops the answer, the second the program.

While llama.cpp reads a prompt, Python's own handler has to wait for it, seconds at a time. So the first Ctrl-C
is passed on by a thread, which the interpreter wakes through a pipe even then; the engine aborts at once.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

STOPPING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # an engine that reads a long prompt hears these, too


class LeaveNow(KeyboardInterrupt):
    """Ctrl-C a second time while an answer is made."""


class Interrupts:
    """A context in which SIGINT calls `cancel`, from another thread, and raises LeaveNow the second time.

    Outside the main thread it does nothing: somebody else handles signals there.
    """

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._pressed = False
        self._before: Any = None
        self._wakeup_before = -1
        self._write = -1
        self._watcher: threading.Thread | None = None
        self.count = 0

    @property
    def seen(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self.count > 0

    def cancel_by(self, cancel: Callable[[], None]) -> None:
        """From now on this is what Ctrl-C calls, and at once where it was pressed already."""
        self._cancel = cancel
        if self._pressed:
            cancel()

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is not threading.main_thread():
            return self
        read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._watcher = threading.Thread(target=self._watch, args=(read,), name="ctrl-c", daemon=True)
        self._watcher.start()
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        self._wakeup_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._watcher is None:
            return
        signal.set_wakeup_fd(self._wakeup_before)
        signal.signal(signal.SIGINT, self._before)
        os.close(self._write)
        self._watcher.join()

    def _watch(self, read: int) -> None:
        """Cancel at the first signal; end when the other side of the pipe is closed."""
        while numbers := os.read(read, 64):
            if not self._pressed and not STOPPING.isdisjoint(numbers):
                self._pressed = True  # in this order: `cancel_by` that comes now calls it too
                self._cancel()
        os.close(read)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise LeaveNow
