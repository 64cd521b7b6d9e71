"""Markdown for a terminal, written once and never again: what is printed does not change any more.

Code appears line by line; everything else when its block (a paragraph, a list item, a table) is complete.
No live redrawing: it costs milliseconds a time and duplicates lines on screens shorter than the answer.
"""

from __future__ import annotations

import io
import re
from typing import Any

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)")
_HEADING = re.compile(r"^ {0,3}#{1,6}\s+(.*?)\s*#*$")
_PADDING = re.compile(r" +(?=\n)")
_ITEM = re.compile(r"^(?:[-*+]|\d{1,9}[.)])\s")


_CODE_SPAN = re.compile(r"(`+[^`]*`+)")
_TAG = re.compile(r"<(?=/?[A-Za-z!][^<>\n]*>)(?!(?:https?|mailto):)")


def _kept(block: str) -> str:
    """`block` with its tags as text: Markdown drops them, and an answer about HTML is about them."""
    parts = _CODE_SPAN.split(block)
    return "".join(part if i % 2 else _TAG.sub(r"\\<", part) for i, part in enumerate(parts))


class StableMarkdown:
    """Feed it clean text; it gives back what is ready to be written."""

    def __init__(self, width: int, *, color: bool) -> None:
        from rich.console import Console

        self._out = io.StringIO()
        self._console = Console(
            file=self._out,
            width=width,
            force_terminal=True,
            color_system="standard" if color else None,
            no_color=not color,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._partial = ""  # a line without its end
        self._block: list[str] = []
        self._fence = ""  # what closes the open code block
        self._language = ""
        self._gap = False  # a blank line is due before the next block

    def feed(self, text: str) -> str:
        """Take text; return what can be written now."""
        *lines, self._partial = (self._partial + text).split("\n")
        for line in lines:
            self._line(line)
        return self._written()

    def flush(self) -> str:
        """The rest, at the end of the answer."""
        if self._partial:
            self._line(self._partial)
            self._partial = ""
        if not self._fence:
            self._end_block()
        self._fence, self._block = "", []
        return self._written()

    def _line(self, line: str) -> None:
        if self._fence:
            self._code_line(line)
        elif fence := _FENCE.match(line):
            self._end_block()
            self._open_gap()
            self._fence, self._language = fence.group(1), fence.group(2)
        elif not line.strip():
            self._end_block()
            self._gap = True
        elif heading := _HEADING.match(line):
            self._end_block()
            self._print_heading(heading.group(1))
        else:
            if _ITEM.match(line):
                self._end_block()
            self._block.append(line)

    def _code_line(self, line: str) -> None:
        if line.strip().startswith(self._fence) and not line.strip().strip(self._fence[0]):
            self._fence, self._block = "", []
            return
        self._block.append(line)
        from rich.syntax import Syntax

        code = "\n".join(self._block)
        syntax = Syntax(code, self._language or "text", theme="ansi_dark", background_color="default")
        text: Any = syntax.highlight(code).split("\n", allow_blank=True)
        last = text[len(self._block) - 1] if len(text) >= len(self._block) else line
        self._console.print(last, soft_wrap=True)

    def _print_heading(self, text: str) -> None:
        from rich.text import Text

        self._open_gap()
        self._console.print(Text(text, style="bold"), soft_wrap=True)

    def _end_block(self) -> None:
        if self._block:
            from rich.markdown import Markdown

            self._open_gap()
            self._console.print(Markdown(_kept("\n".join(self._block)), code_theme="ansi_dark", hyperlinks=False))
            self._block = []

    def _open_gap(self) -> None:
        if self._gap:
            self._console.print()
        self._gap = False

    def _written(self) -> str:
        text = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return _PADDING.sub("", text)  # rich fills lines up to the width
