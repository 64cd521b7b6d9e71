"""Everything said on stderr: remarks, errors, and what stands there only while something is waited for.

Answers are not written here (see `render`). A transient line, or lines under the answer, disappear before anything
else is written; without a live terminal there are none. Any thread may write.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from typing import TextIO

from specgguf.cli.terminal import console
from specgguf.cli.terminal.console import Style

LINE, BELOW = "line", "below"
# One line further down with the column kept, which scrolls at the bottom; save the cursor; bring it back.
INDEX, SAVE, RESTORE = "\x1bD", "\x1b7", "\x1b8"
UNWRAPPED, WRAPPED = "\x1b[?7l", "\x1b[?7h"  # a line that is longer after all must not scroll the screen
ERASE_BELOW = "\x1b[J"


class StatusOutput:
    """The program's own voice, on stderr.

    Attributes:
        lock: held while something is written, so that two threads do not mix their lines.
    """

    def __init__(self, style: Style | None = None, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.style = style if style is not None else console.style_for(self.stream)
        self.quiet = quiet
        self.lock = threading.RLock()
        self._transient = ""
        self._is_titled = False

    def say(self, text: str = "") -> None:
        """A remark. Silent with `--quiet`."""
        if not self.quiet:
            self.raw(self.style.dim(self._folded(text)) + "\n")

    def tell(self, text: str = "") -> None:
        """What the user asked for: never silent, not dimmed."""
        self.raw(self._folded(text) + "\n")

    def warn(self, text: str) -> None:
        """A remark that should not be missed."""
        self.raw(self.style.red("warning: ") + self._folded("warning: " + text).removeprefix("warning: ") + "\n")

    def error(self, message: str, hint: str = "") -> None:
        """An error that does not end the program: one line and a hint."""
        self.raw(self.style.red("error: ") + message + "\n")
        if hint:
            self.raw(self.style.dim(f"  hint: {hint}") + "\n")

    def wait(self, text: str, tail: str = "") -> None:
        """Show what is being waited for, in place, until something else is written; `tail` is never cut."""
        if self.style.live and not self.quiet:
            line = console.one_line(text, console.width(self.stream) - 1 - len(tail)) + tail
            with self.lock:
                self._write(f"\r{self.style.dim(line)}\x1b[K")
                self._transient = LINE

    def below(self, lines: Sequence[str]) -> None:
        """Show `lines`, none longer than the terminal is wide, under the line that the cursor is in, which stays where
        it is; until something else is written. A waiting line has precedence."""
        if not self.style.live or self.quiet or len(lines) >= console.height(self.stream):
            return
        with self.lock:
            n = len(lines)
            if self._transient == LINE or not (n or self._transient):
                return
            free = f"{INDEX * n}\x1b[{n}A" if n else ""
            rows = "\x1b[K".join(f"\x1b[B\r{line}" for line in lines)
            drawn = f"{free}{SAVE}{UNWRAPPED}{rows}{ERASE_BELOW}{WRAPPED}{RESTORE}"
            self._write(drawn if n else ERASE_BELOW)
            self._transient = BELOW if n else ""

    def ring(self, title: str = "") -> None:
        """Call somebody who looked away: the terminal's bell and, with `title`, its window's title until `unring`."""
        if self.style.live:
            self.raw("\x07" + (f"\x1b[22;0t\x1b]0;{title}\x07" if title and not self._is_titled else ""))
            self._is_titled = self._is_titled or bool(title)

    def unring(self) -> None:
        """Somebody is here: the window gets its own title back."""
        if self._is_titled:
            self._is_titled = False
            self.raw("\x1b[23;0t")

    def _folded(self, text: str) -> str:
        """A terminal gets lines broken between words; a file or a pipe gets one line."""
        return console.folded(text, max(console.width(self.stream) - 1, 20)) if self.style.tty else text

    def clear(self) -> None:
        """Take away what is transient."""
        with self.lock:
            if self._transient:
                self._write("\r\x1b[K" if self._transient == LINE else ERASE_BELOW)
                self._transient = ""

    def raw(self, text: str) -> None:
        """Write `text` as it is, after taking away what is transient."""
        with self.lock:
            self.clear()
            self._write(text)

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()
