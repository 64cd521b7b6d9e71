"""What stands under an answer while it is made: how the prompt is read, then how drafting goes, and what is typed.

The lines are made anew several times a second by a thread, since a model may be slow between two words, and with every
word. They follow statistics that somebody else keeps; nothing is measured here but the time of reading.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from specgguf.cli.terminal import console
from specgguf.cli.terminal.console import Style
from specgguf.cli.terminal.progress import BAR, bar, human_seconds
from specgguf.cli.terminal.render import Sink, Span
from specgguf.cli.terminal.stats_view import joined, percent, plural
from specgguf.cli.terminal.status import StatusOutput

if TYPE_CHECKING:
    from specgguf.decode.stats import Stats

EVERY_S = 0.1
DRAFT_BAR = 10
LONG_S = 1.0  # of a short prompt: its reading is told from then on
AFTER_S = 0.5  # an answer that is over sooner needs no line
SLOW_PROMPT = 200  # tokens: fewer are read before anybody wonders


class LiveLines:
    """A context in which `lines()` stand under what is written, made anew at every word and ten times a second."""

    def __init__(self, status: StatusOutput, lines: Callable[[], list[str]], *, shown: bool = True) -> None:
        """`shown` False shows nothing."""
        self._status = status
        self._lines = lines
        self._shown = shown and status.style.live and not status.quiet
        self._sink: Sink | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LiveLines:
        if self._shown:
            self._thread = threading.Thread(target=self._tick, name="live", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Nothing stands there any more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._status.clear()

    def over(self, sink: Sink) -> Sink:
        """`sink`, under whose text the lines stand."""
        self._sink = sink
        return _Over(self, sink) if self._shown else sink

    def draw(self) -> None:
        """Show the lines as they are now. Where the cursor may stand at the terminal's edge they would tear it from its
        place: there are none until the line ends."""
        with self._status.lock:
            if not self._over.is_set():
                at_edge = self._sink is not None and self._sink.at_edge
                self._status.below([] if at_edge else self._lines())

    def _tick(self) -> None:
        while not self._over.wait(EVERY_S):
            self.draw()

    def write(self, span: Span, sink: Sink) -> None:
        """Let `sink` write, with the lines under it afterwards."""
        with self._status.lock:
            self._status.clear()
            sink.span(span)
            self.draw()


class _Over:
    """A sink with lines under its text."""

    def __init__(self, live: LiveLines, sink: Sink) -> None:
        self._live = live
        self._sink = sink

    @property
    def at_edge(self) -> bool:
        """As the sink's own."""
        return self._sink.at_edge

    def span(self, span: Span) -> None:
        """Take the next span."""
        self._live.write(span, self._sink)

    def end(self) -> None:
        """The answer is over."""
        self._live.stop()
        self._sink.end()


class Reading:
    """How far a prompt is read, as a line. llama.cpp tells it once per chunk; between two of them it is reckoned.

    Args:
        speed: tokens a second as expected, see `SpeculativeLlama.prompt_speed`; 0 where nothing is known.
        n_batch: tokens of a chunk.
    """

    def __init__(self, speed: float = 0.0, n_batch: int = 512, clock: Callable[[], float] = time.monotonic) -> None:
        self._speed = speed
        self._n_batch = n_batch
        self._clock = clock
        self._started = self._moved = clock()
        self._n_read = 0

    def line(self, n: int, n_read: int) -> str:
        """The line while `n_read` of `n` new tokens are known to be read; empty where they are few."""
        now = self._clock()
        if n < SLOW_PROMPT and now - self._started < LONG_S:
            return ""
        if n_read > self._n_read:
            self._n_read, self._moved = n_read, now
            self._speed = n_read / max(now - self._started, 1e-3)
        if not self._speed:
            waited = now - self._started
            return f"reading {n:,} tokens …" + (f" {human_seconds(waited)}" if waited >= 1 else "")
        done = self._n_read + min((now - self._moved) * self._speed, 0.95 * self._n_batch)
        done = min(done, 0.99 * n)
        left = human_seconds(max((n - done) / self._speed, 1))
        return f"reading {n:,} tokens {bar(done / n, BAR)} {done / n:.0%}, {self._speed:,.0f} tok/s, about {left} left"


def drafting_line(stats: Stats, plain_speed: float, width: int | None = None) -> str:
    """How drafting goes: the share of the drafted tokens that was accepted, and the speed, beside that of plain
    decoding where it was measured. Parts that do not fit are left out, the last ones first.

    Args:
        plain_speed: tokens a second of plain decoding as measured here; 0 where it was not.
    """
    if not stats.n_generated:
        return ""
    speed = f"{stats.tokens_per_second:.1f} tok/s" + (f" (plain {plain_speed:.1f})" if plain_speed else "")
    if stats.draft_n:
        share = stats.draft_n_accepted / stats.draft_n
        said = [
            f"{bar(share, DRAFT_BAR)} {percent(share)} accepted",
            f"{stats.tokens_per_pass:.1f} tokens per forward pass",
            speed,
        ]
        said += ["drafting is off"] if stats.off_reason else []
    else:
        speed = f"{stats.tokens_per_second:.1f} tok/s"
        said = [plural(stats.n_generated, "token"), speed, *(["drafting is off"] if stats.off_reason else [])]
    while len(said) > 1 and width is not None and len(joined(said)) > width:
        said.pop()
    return joined(said)


def typed_lines(queued: list[str], text: str, cursor: int, width: int, style: Style) -> list[str]:
    """What was typed meanwhile, as it will be sent: messages that Enter ended, and the one that is being typed."""
    shown = []
    if queued:
        more = f" and {len(queued) - 1} more" if len(queued) > 1 else ""
        note = f"  (sent when the answer ends{more})"
        shown.append(f"> {console.one_line(queued[0], max(width - 2 - len(note), 8))}" + style.dim(note))
    if text:
        before, after = text[:cursor], text[cursor:]
        marked = console.last_columns(before, width - 3)
        here = console.one_line(after, max(width - 3 - len(marked), 0)) if after else ""
        shown.append(f"> {marked}" + style.bold("▏") + here)
    return shown
