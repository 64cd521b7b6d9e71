"""Splits a stream into reasoning and answer at `<think>` and its relatives.

A tag may be cut anywhere, over tokens and over drafted and undrafted text; nothing is shown until it is
clear what it is, and every character keeps its provenance. Only the answer's beginning may open a block:
a `<think>` in the middle is the model's own text, as are `<tool_call>` blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
)


@dataclass(frozen=True)
class Span:
    """Text of one kind and one origin."""

    text: str
    from_draft: bool
    reasoning: bool = False


def opens(prompt_end: str) -> str:
    """The closing tag that an answer to a prompt ending so must bring, "" when none is open.

    Some templates open the block themselves, so that the answer begins inside it.
    """
    tail = prompt_end.rstrip()
    return next((close for tag, close in TAGS if tail.endswith(tag)), "")


class Splitter:
    """Feed it the pieces of one answer; `feed` and `flush` give back spans in order."""

    def __init__(self, closing: str = "") -> None:
        self._closing = closing  # inside a block: what ends it
        self._fresh = not closing  # nothing but blanks so far: a block may open
        self._trim = bool(closing)  # drop blanks at the beginning of a part
        self._held: list[Span] = []

    def feed(self, text: str, from_draft: bool) -> Iterator[Span]:
        """Take a piece; yield what is settled."""
        if text:
            self._held.append(Span(text, from_draft))
        while (step := self._step()) is not None:
            yield from step

    def flush(self) -> Iterator[Span]:
        """The rest, at the end of the answer."""
        yield from self._take(len(self._text()))

    def _text(self) -> str:
        return "".join(span.text for span in self._held)

    def _step(self) -> list[Span] | None:
        """Settle some text, or None when more must be read first."""
        text = self._text()
        if not text:
            return None
        if self._trim:
            body = text.lstrip()
            self._drop(len(text) - len(body))
            self._trim = not body
            return []
        if self._fresh:
            return self._beginning(text)
        if self._closing:
            return self._inside(text)
        return self._take(len(text))

    def _beginning(self, text: str) -> list[Span] | None:
        body = text.lstrip()
        for tag, close in TAGS:
            if body.startswith(tag):
                self._drop(len(text) - len(body) + len(tag))
                self._closing, self._fresh, self._trim = close, False, True
                return []
        if not body or any(tag.startswith(body) for tag, _ in TAGS):
            return None
        self._fresh = False
        return self._take(len(text))

    def _inside(self, text: str) -> list[Span] | None:
        at = text.find(self._closing)
        if at >= 0:
            kept = len(text[:at].rstrip())
            spans = self._take(kept)
            self._drop(at - kept + len(self._closing))
            self._closing, self._trim = "", True
            return spans
        # Hold back what may be the beginning of the tag, and the blanks before it.
        pending = max((n for n in range(len(self._closing)) if text.endswith(self._closing[:n])), default=0)
        kept = len(text[: len(text) - pending].rstrip())
        return self._take(kept) if kept else None

    def _take(self, n: int) -> list[Span]:
        """The first n held characters as spans."""
        taken: list[Span] = []
        while n > 0 and self._held:
            span = self._held[0]
            part = span.text[:n]
            taken.append(Span(part, span.from_draft, bool(self._closing)))
            n -= len(part)
            if len(part) == len(span.text):
                self._held.pop(0)
            else:
                self._held[0] = Span(span.text[len(part) :], span.from_draft)
        return taken

    def _drop(self, n: int) -> None:
        self._take(n)
