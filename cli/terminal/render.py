"""Writes answers: the only place that does.

The answer goes to stdout and nothing else goes there; reasoning goes to stderr. On a terminal the text is
cleaned of control characters and may be coloured; into a pipe it goes exactly as the model wrote it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TextIO

from specgguf.cli.terminal import console
from specgguf.cli.terminal.console import Style
from specgguf.cli.terminal.status import StatusOutput
from specgguf.cli.terminal.wrap import WordWrap

ANSWER, REASONING = "Answer: ", "Reasoning: "


@dataclass(frozen=True)
class Span:
    """Text of one kind and one origin."""

    text: str
    from_draft: bool
    reasoning: bool = False


class Sink(Protocol):
    """Where the spans of one answer go."""

    @property
    def at_edge(self) -> bool:
        """Whether the cursor may stand at the terminal's edge, where nobody can tell which line it is in."""

    def span(self, span: Span) -> None:
        """Take the next span."""

    def end(self) -> None:
        """The answer is over, or was stopped."""


class AnswerWriter:
    """Streams one answer as plain text."""

    def __init__(
        self,
        status: StatusOutput,
        *,
        style: Style,
        out: TextIO | None = None,
        highlight: str = "off",
        think: str = "dim",
        markdown: bool = False,
        wrap: int = 0,
        labels: bool = False,
    ) -> None:
        """`wrap`: columns that prose is wrapped at, 0: not at all. `labels`: say in words what comes."""
        self._out = out if out is not None else sys.stdout
        self._status = status
        self._style = style
        self._highlight = highlight if highlight != "off" else ""
        self._think = think
        self._terminal = style.tty or style.styles
        self._line_open = False  # the last character written to stdout was no line end
        self._reasoning = ""  # the last reasoning written to stderr, while it is the last thing written
        self._n_hidden = 0
        self._label = ANSWER if labels else ""
        self._wrap = _wrapper(self._out, style, wrap)
        self._wrap_reasoning = _wrapper(status.stream, status.style, wrap)
        self._markdown = None
        if markdown and style.styles and not self._highlight:
            from specgguf.cli.terminal.markdown import StableMarkdown

            columns = console.width(self._out)
            self._markdown = StableMarkdown(min(columns, wrap or columns), color=style.color)

    @property
    def at_edge(self) -> bool:
        """See `Sink`."""
        if self._reasoning:
            return self._wrap_reasoning is not None and self._wrap_reasoning.at_edge
        return self._wrap is not None and self._markdown is None and self._wrap.at_edge

    def span(self, span: Span) -> None:
        """Write the next span."""
        if span.reasoning:
            self._reason(span)
            return
        self._close_reasoning()
        self._say_label()
        if self._markdown is not None:
            self._write(self._markdown.feed(console.clean(span.text)))
            return
        text = console.clean(span.text) if self._terminal else span.text
        dress = partial(self._style.drafted, how=self._highlight) if self._highlight and span.from_draft else _plain
        self._write(self._wrap.feed(text, dress) if self._wrap else dress(text), text)

    def end(self) -> None:
        """Finish the line that the answer ends on."""
        self._close_reasoning()
        if self._markdown is not None:
            self._write(self._markdown.flush())
        elif self._wrap is not None:
            self._write(self._wrap.release())
        if self._line_open:
            self._write("\n")

    def _write(self, styled: str, plain: str | None = None) -> None:
        if not styled:
            return
        self._status.clear()
        self._out.write(styled)
        self._out.flush()
        self._line_open = not (styled if plain is None else plain).endswith("\n")

    def _reason(self, span: Span) -> None:
        if self._think == "hide":
            self._n_hidden += 1
            self._status.wait(f"thinking … {self._n_hidden} pieces")
            return
        if self._label and not self._reasoning:
            self._status.raw(REASONING)
            if self._wrap_reasoning is not None:
                self._wrap_reasoning.begin_row(len(REASONING))
        if self._line_open:  # reasoning between two parts of an answer
            self._write("\n")
        style = self._status.style
        text = console.clean(span.text)
        dim = self._think == "dim"
        dress: Callable[[str], str] = style.dim if dim else _plain
        if self._highlight and span.from_draft:
            dress = partial(style.drafted, dim=dim, how=self._highlight)
        self._status.raw(self._wrap_reasoning.feed(text, dress) if self._wrap_reasoning else dress(text))
        self._reasoning = text or self._reasoning

    def _close_reasoning(self) -> None:
        if self._reasoning:
            if self._wrap_reasoning is not None:
                self._status.raw(self._wrap_reasoning.release())
            self._status.raw("\n\n" if not self._reasoning.endswith("\n") else "\n")
            self._reasoning = ""

    def _say_label(self) -> None:
        if self._label and self._terminal:
            self._status.raw(self._label)
            if self._wrap is not None:
                self._wrap.begin_row(len(self._label))
        self._label = ""


def _plain(text: str) -> str:
    return text


def _wrapper(stream: TextIO, style: Style, widest: int) -> WordWrap | None:
    if not style.tty or not (widest or style.live):
        return None
    return WordWrap(lambda: console.width(stream), widest, holds=not style.live)


class Collect:
    """Shows nothing while the answer comes: for `--json`."""

    at_edge = False

    def span(self, span: Span) -> None:
        """Nothing: the whole answer is printed at its end."""

    def end(self) -> None:
        """Nothing."""


def write_json(record: dict[str, Any], out: TextIO | None = None) -> None:
    """One JSON object on a line of its own."""
    out = out if out is not None else sys.stdout
    out.write(json.dumps(record, ensure_ascii=False) + "\n")
    out.flush()


def replay(spans: Iterable[Span], sink: Sink) -> None:
    """Write an answer again, as it was (after `/highlight` was switched, for one)."""
    for span in spans:
        sink.span(span)
    sink.end()
