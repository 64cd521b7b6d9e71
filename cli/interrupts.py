"""Ctrl-C while an answer is made: the first stops the answer, the second the program.

The handler only sets a flag in the engine, which reads it between rounds and between chunks of a prompt.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class LeaveNow(KeyboardInterrupt):
    """Ctrl-C a second time while an answer is made."""


class Interrupts:
    """A context in which SIGINT calls `cancel` once, and raises LeaveNow the second time."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._before: Any = None
        self.count = 0

    @property
    def seen(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self.count > 0

    def __enter__(self) -> Interrupts:
        try:
            self._before = signal.signal(signal.SIGINT, self._on_signal)
        except ValueError:  # not the main thread: somebody else handles signals
            self._before = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:
            raise LeaveNow
        self._cancel()
