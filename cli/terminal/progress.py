"""Progress on stderr, of a download and of a prompt that is read: a bar in a live terminal, else one line or none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from specgguf.cli.terminal.render import Sink, Span
from specgguf.cli.terminal.status import StatusOutput

BAR = 24
REDRAW_S = 0.1
READING_S = 0.5


def human_bytes(n: float) -> str:
    """Bytes in the unit that reads best: "1.1 GB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            return f"{n:.0f} {unit}" if unit in ("bytes", "kB") or n >= 100 else f"{n:.1f} {unit}"
        n /= 1000
    raise AssertionError("unreachable")


def human_seconds(seconds: float) -> str:
    """ "48 s", "3 min 20 s", "1 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


class Progress:
    """A callable progress(what, done, total) as `specgguf.hub` wants it."""

    def __init__(self, status: StatusOutput) -> None:
        self._status = status
        self._what = ""
        self._start = self._drawn = 0.0
        self._done_at_start = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._status.clear()

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what:
            self._what, self._start, self._done_at_start, self._drawn = what, now, done, 0.0
            if not self._status.style.live:
                self._status.say(f"{what}: {human_bytes(total)}" if total else what)
        if now - self._drawn >= REDRAW_S or done == total:
            self._drawn = now
            self._status.wait(self._line(done, total, now - self._start))

    def _line(self, done: int, total: int, seconds: float) -> str:
        rate = (done - self._done_at_start) / seconds if seconds > 0 else 0.0
        speed = f"  {human_bytes(rate)}/s" if rate else ""
        if not total:
            return f"{self._what}  {human_bytes(done)}{speed}"
        share = min(done / total, 1.0)
        bar = "█" * round(share * BAR) + "░" * (BAR - round(share * BAR))
        left = f"  {human_seconds((total - done) / rate)} left" if rate and done < total else ""
        return f"{bar} {share:4.0%} of {human_bytes(total)}{speed}{left}  {self._what}"


class ReadingLine:
    """A context in which the reading of a long prompt is shown, second by second, until the first word.

    llama.cpp tells nothing of how far it is: time left is reckoned from the speed of the prompts before.
    """

    def __init__(self, status: StatusOutput, n_tokens: int, speed: float) -> None:
        """`n_tokens`: 0 shows nothing. `speed`: tokens a second, 0 where it is not known."""
        self._status = status
        self._n = n_tokens
        self._speed = speed
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ReadingLine:
        if self._n:
            self._status.wait(self._line(0.0))
            self._thread = threading.Thread(target=self._tick, args=(time.monotonic(),), name="reading", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """The first word is here."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._status.clear()

    def until_first(self, sink: Sink) -> Sink:
        """`sink`, before whose first span the line disappears."""
        return _After(self.stop, sink)

    def _tick(self, start: float) -> None:
        while not self._over.wait(READING_S):
            self._status.wait(self._line(time.monotonic() - start))

    def _line(self, seconds: float) -> str:
        what = f"reading {self._n:,} tokens …"
        if not self._speed:
            return what + (f" {human_seconds(seconds)}" if seconds >= 1 else "")
        share = min(seconds * self._speed / self._n, 0.99)
        bar = "█" * round(share * BAR) + "░" * (BAR - round(share * BAR))
        left = max(self._n / self._speed - seconds, 1)
        return f"{what} {bar} {self._speed:,.0f} tok/s, about {human_seconds(left)} left"


class _After:
    """A sink that does something before it takes its first span."""

    def __init__(self, first: Callable[[], None], sink: Sink) -> None:
        self._first = first
        self._sink = sink

    def span(self, span: Span) -> None:
        """Take the next span."""
        self._first()
        self._sink.span(span)

    def end(self) -> None:
        """The answer is over."""
        self._first()
        self._sink.end()
