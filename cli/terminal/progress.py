"""Progress on stderr: bars, units as people read them, and the line of a download."""

from __future__ import annotations

import time
from types import TracebackType

from specgguf.cli.terminal.status import StatusOutput

BAR = 24
REDRAW_S = 0.1


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


def bar(share: float, n: int = BAR) -> str:
    """A bar of `n` columns, filled to `share` of 1."""
    filled = round(min(max(share, 0.0), 1.0) * n)
    return "█" * filled + "░" * (n - filled)


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
        left = f"  {human_seconds((total - done) / rate)} left" if rate and done < total else ""
        return f"{bar(share)} {share:4.0%} of {human_bytes(total)}{speed}{left}  {self._what}"
