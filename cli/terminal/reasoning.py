"""An answer's text with its provenance, split into reasoning and answer.

`specgguf.text` finds the tags, wherever they are cut; here every character keeps the mark of who wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from specgguf.text.detokenize import ReasoningSplitter, open_reasoning


@dataclass(frozen=True)
class Span:
    """Text of one kind and one origin."""

    text: str
    from_draft: bool
    reasoning: bool = False


class Spans:
    """Feed it the pieces of one answer; `feed` and `flush` give back what is settled, in order."""

    def __init__(self, prompt_end: str = "") -> None:
        """`prompt_end`: the end of the prompt, which may have opened the reasoning already."""
        self._splitter = ReasoningSplitter(open_reasoning(prompt_end))
        self._marks: list[bool] = []  # of the characters held back, the latest last

    def feed(self, text: str, from_draft: bool) -> Iterator[Span]:
        """Take a piece; yield what is settled."""
        if self._splitter.settled and text:
            yield Span(text, from_draft)
            return
        settled: list[Span] = []
        for character in text:  # one at a time: what comes back ends where the held-back text begins
            self._marks.append(from_draft)
            settled += self._marked(self._splitter.feed(character))
        for (drafted, reasoning), run in groupby(settled, key=lambda span: (span.from_draft, span.reasoning)):
            yield Span("".join(span.text for span in run), drafted, reasoning)

    def flush(self) -> Iterator[Span]:
        """The rest, at the end of the answer."""
        yield from self._marked(self._splitter.flush())

    def _marked(self, parts: list[tuple[str, str]]) -> Iterator[Span]:
        n_held = self._splitter.n_held
        done, self._marks = self._marks[: len(self._marks) - n_held], self._marks[len(self._marks) - n_held :]
        for kind, text in parts:
            marks = done[len(done) - len(text) :]
            for from_draft, run in groupby(zip(text, marks, strict=True), key=lambda pair: pair[1]):
                yield Span("".join(c for c, _ in run), from_draft, kind == "reasoning")
