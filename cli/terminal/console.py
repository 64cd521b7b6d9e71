"""What the terminal can do, and what may safely be written to it.

Colour and style decisions (NO_COLOR, TERM=dumb, `--color`), the cleaning of text that a model or a file
wrote, and the keyboard's echo. It writes nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TextIO

# C0 without \t and \n, DEL, C1: what a terminal would act on instead of showing; and what turns the direction of text
# around, so that it reads otherwise than it is.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

_STYLES = re.compile("\x1b\\[[0-9;]*m")


@dataclass(frozen=True)
class Style:
    """Styles for one stream. With everything off, each method returns its text unchanged.

    Attributes:
        tty: the stream is a terminal.
        live: a line may be rewritten in place (a terminal that is not dumb).
        styles: escape sequences may be written: dim, bold, underline.
        color: and colours too.
    """

    tty: bool = False
    live: bool = False
    styles: bool = False
    color: bool = False

    def dim(self, text: str) -> str:
        """Secondary text."""
        return self._wrap(text, "2") if self.styles else text

    def bold(self, text: str) -> str:
        """Text that leads."""
        return self._wrap(text, "1") if self.styles else text

    def red(self, text: str) -> str:
        """Text that warns."""
        return self._wrap(text, "31") if self.color else text

    def drafted(self, text: str, *, dim: bool = False, how: str = "on") -> str:
        """Text whose tokens the draft wrote: green, or underlined where colour is off; or `how` it is wanted."""
        if not self.styles:
            return text
        code = {"underline": "4", "bold": "1"}.get(how, "32" if self.color else "4")
        return self._wrap(text, f"2;{code}" if dim else code)

    @staticmethod
    def _wrap(text: str, code: str) -> str:
        """Styles end before each line end, so that no pager or scrolling drags them along."""
        lines = text.split("\n")
        return "\n".join(f"\x1b[{code}m{line}\x1b[0m" if line else "" for line in lines)


def style_for(
    stream: TextIO, color: str = "auto", environ: Mapping[str, str] | None = None, *, plain: bool = False
) -> Style:
    """The styles that `stream` may have. `color` is auto, always or never; always overrules NO_COLOR; `plain` allows
    none, and no line that is rewritten."""
    environ = os.environ if environ is None else environ
    try:
        tty = stream.isatty()
    except ValueError:  # closed
        tty = False
    if plain:
        return Style(tty=tty)
    capable = tty and environ.get("TERM", "") not in ("", "dumb")
    styles = capable or color == "always"
    wanted = color == "always" or (color == "auto" and not environ.get("NO_COLOR"))
    return Style(tty=tty, live=capable, styles=styles, color=styles and wanted)


def clean(text: str) -> str:
    """`text` without the control characters that a terminal acts on; line ends and tabs stay."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def one_line(text: str, width: int) -> str:
    """`text` on one line, cut with an ellipsis where it is longer than `width`."""
    flat = " ".join(clean(text).split())
    return flat if len(flat) <= width else flat[: max(width - 1, 0)] + "…"


def last_columns(text: str, width: int) -> str:
    """The end of `text` on one line, where it is longer than `width` columns after an ellipsis."""
    from rich.cells import cell_len

    flat = clean(text).replace("\n", "⏎").replace("\t", " ")
    if cell_len(flat) <= width:
        return flat
    while flat and cell_len(flat) > width - 1:
        flat = flat[1:] if len(flat) <= 2 * width else flat[-2 * width :]
    return "…" + flat


def rows(text: str, width: int) -> list[str]:
    """`text` as lines of at most `width` columns, broken between words; a longer word stays whole."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def folded(text: str, width: int) -> str:
    """`text` with long lines broken as by `rows`; indented lines, which are meant as they are, stay whole."""
    lines = []
    for line in text.split("\n"):
        whole = len(_STYLES.sub("", line)) <= width or line[:1].isspace()
        lines += [line] if whole else rows(line, width)
    return "\n".join(lines)


def width(stream: TextIO | None = None) -> int:
    """The terminal's columns, 80 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size((stream or sys.stderr).fileno()).columns or 80
    return 80


def height(stream: TextIO | None = None) -> int:
    """The terminal's lines, 24 where there is none."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size((stream or sys.stderr).fileno()).lines or 24
    return 24


@contextlib.contextmanager
def quiet_keyboard() -> Iterator[None]:
    """While an answer streams, keys are not echoed into it; what is typed waits for the next prompt."""
    try:
        import termios

        fd = sys.stdin.fileno()
        before = termios.tcgetattr(fd)
    except (ImportError, OSError, ValueError):  # no terminal
        yield
        return
    except termios.error:
        yield
        return
    changed = list(before)
    changed[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSANOW, before)
