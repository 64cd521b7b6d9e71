"""The terminal's keyboard for the whole life of a conversation: raw, silent, with bracketed paste.

What is typed or pasted while nobody reads (a model loads, an answer runs) is collected by a thread, in bursts of what
arrived together, so that the line discipline neither cuts it (at 4,095 bytes) nor breaks it into lines. It knows
nothing of what the keys mean.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from specgguf.cli.terminal.status import StatusOutput

TOGETHER_S = 0.05  # what comes within this time of what came before was pasted with it
PASTE_ON, PASTE_OFF = "\x1b[?2004h", "\x1b[?2004l"

_held: Keyboard | None = None  # a process has one terminal


class Keyboard:
    """A context that holds the terminal's keyboard. Where stdin is none, it holds nothing and `held` is False.

    Attributes:
        echoes: whether the terminal itself showed what was typed before.
    """

    def __init__(
        self, *, bracketed_paste: bool = True, unsent: Callable[[list[bytes]], None] = lambda _bursts: None
    ) -> None:
        """`unsent` gets what was collected and read by nobody, where the process ends at once."""
        self.echoes = True
        self._unsent = unsent
        self._fd = -1
        self._before: list[Any] = []
        self._bracketed_paste = bracketed_paste
        self._bursts: list[bytes] = []
        self._collector: threading.Thread | None = None
        self._stop = -1
        self._signal_before: Any = None

    @property
    def held(self) -> bool:
        """Whether there is a terminal to be read here."""
        return self._fd >= 0

    def __enter__(self) -> Keyboard:
        global _held
        try:
            import termios
        except ImportError:  # no such terminals here
            return self
        try:
            fd = sys.stdin.fileno()
            self._before = termios.tcgetattr(fd)
        except (AttributeError, OSError, ValueError, termios.error):  # no terminal
            return self
        self._fd, _held = fd, self
        self.echoes = bool(self._before[3] & termios.ECHO)
        self._set_raw()
        self._signal_before = signal.signal(signal.SIGCONT, lambda *_: self._after_stop())
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _held
        if self.held:
            self._pause()
            signal.signal(signal.SIGCONT, self._signal_before)
            self.give_back()
            self._fd, _held = -1, None

    def give_back(self) -> None:
        """Make the terminal what it was."""
        import termios

        with contextlib.suppress(OSError, termios.error):  # it may be gone: the window was closed
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)
            self._write(PASTE_OFF)

    def leave(self) -> None:
        """The process ends at once: the terminal becomes what it was, and what was typed is not lost."""
        self._pause()
        self.give_back()
        if self._bursts:
            self._unsent(self._bursts)

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """A context in which somebody else reads the keyboard: what was collected is had from `take`."""
        self._pause()
        try:
            yield
        finally:
            self._start()

    def take(self) -> bytes:
        """The earliest burst that was collected; nothing when there is none."""
        return self._bursts.pop(0) if self._bursts else b""

    def ahead(self) -> list[bytes]:
        """The bursts that were collected; they stay."""
        return list(self._bursts)

    def wait(self, timeout: float | None = None) -> bytes:
        """What is typed next; nothing after `timeout` seconds, or at the end of the terminal."""
        ready, _, _ = select.select([self._fd], [], [], timeout)
        return _read(self._fd) if ready else b""

    @contextlib.contextmanager
    def given_back(self) -> Iterator[None]:
        """A context in which the terminal is as it was: for a question of another kind, or an editor."""
        self._pause()
        self.give_back()
        try:
            yield
        finally:
            self._set_raw()
            self._start()

    def _start(self) -> None:
        if not self.held or self._collector is not None:
            return
        self._write(PASTE_ON)
        stopped, self._stop = os.pipe()
        self._collector = threading.Thread(target=self._collect, args=(stopped,), name="keyboard", daemon=True)
        self._collector.start()

    def _pause(self) -> None:
        if self._collector is not None:
            os.close(self._stop)
            self._collector.join()
            self._collector = None

    def _collect(self, stopped: int) -> None:
        last = -TOGETHER_S
        while True:
            ready, _, _ = select.select([self._fd, stopped], [], [])
            data = _read(self._fd) if self._fd in ready else b""
            if data:
                now = time.monotonic()
                if self._bursts and now - last < TOGETHER_S:
                    self._bursts[-1] += data
                else:
                    self._bursts.append(data)
                last = now
            elif stopped in ready or self._fd in ready:
                break
        os.close(stopped)

    def _set_raw(self) -> None:
        import termios

        changed = list(self._before)
        changed[0] &= ~(termios.IXON | termios.ICRNL | termios.INLCR | termios.IGNCR)
        changed[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN)  # Ctrl-C and Ctrl-Z stay signals
        changed[3] |= termios.NOFLSH  # which throw nothing away that was typed before them
        changed[6] = [*changed[6]]
        changed[6][termios.VMIN], changed[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._fd, termios.TCSANOW, changed)

    def _after_stop(self) -> None:
        """The program goes on after Ctrl-Z: the shell has made the terminal its own meanwhile."""
        if self._collector is not None:
            self._set_raw()
            self._write(PASTE_ON)

    def _write(self, sequence: str) -> None:
        if self._bracketed_paste:
            stream = sys.stdout if sys.stdout.isatty() else sys.stderr
            stream.write(sequence)
            stream.flush()


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # the terminal is gone
        return b""


@contextlib.contextmanager
def given_back() -> Iterator[None]:
    """As the method, of the keyboard that is held; with none it does nothing."""
    with _held.given_back() if _held is not None else contextlib.nullcontext():
        yield


def agreed(status: StatusOutput, question: str) -> bool:
    """Ask with the terminal as it was; Enter alone is a yes. Raises KeyboardInterrupt at Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with given_back():
            status.raw(f"{question} [Y/n] ")
            answer = sys.stdin.readline()
    finally:
        signal.signal(signal.SIGINT, before)
    return answer.strip().lower() in ("", "y", "yes")


def is_held() -> bool:
    """Whether a conversation holds a keyboard."""
    return _held is not None


def ahead() -> list[bytes]:
    """As the method, of the keyboard that is held; with none nothing was collected."""
    return _held.ahead() if _held is not None else []


def leave() -> None:
    """As the method, of the keyboard that is held; with none it does nothing."""
    if _held is not None:
        _held.leave()
