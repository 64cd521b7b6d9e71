"""Everything said on stderr: remarks, errors, and the line that shows what is being waited for.

Answers are not written here (see `render`). A transient line disappears before anything else is written;
without a live terminal there is none.
"""

from __future__ import annotations

import sys
from typing import TextIO

from specgguf.cli.terminal import console
from specgguf.cli.terminal.console import Style


class StatusOutput:
    """The program's own voice, on stderr."""

    def __init__(self, style: Style | None = None, *, stream: TextIO | None = None, quiet: bool = False) -> None:
        self.stream = stream if stream is not None else sys.stderr
        self.style = style if style is not None else console.style_for(self.stream)
        self.quiet = quiet
        self._transient = False

    def say(self, text: str = "") -> None:
        """A remark. Silent with `--quiet`."""
        if not self.quiet:
            self.raw(self.style.dim(self._folded(text)) + "\n")

    def tell(self, text: str = "") -> None:
        """What the user asked for: never silent, not dimmed."""
        self.raw(text + "\n")

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
            self.stream.write(f"\r{self.style.dim(line)}\x1b[K")
            self.stream.flush()
            self._transient = True

    def _folded(self, text: str) -> str:
        """A terminal gets lines broken between words; a file or a pipe gets one line."""
        return console.folded(text, max(console.width(self.stream) - 1, 20)) if self.style.tty else text

    def clear(self) -> None:
        """Take the waiting line away."""
        if self._transient:
            self._transient = False
            self.stream.write("\r\x1b[K")
            self.stream.flush()

    def raw(self, text: str) -> None:
        """Write `text` as it is, after taking the waiting line away."""
        self.clear()
        self.stream.write(text)
        self.stream.flush()
