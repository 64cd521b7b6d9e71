"""Wraps words at the terminal's edge, or before it where that is far, while they are still being written.

A word that turns out too long for its line is taken back and written on the next one. Code, tables and
indented lines are left alone, so that they can be copied. It writes nothing: it turns text into what to write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

Style = Callable[[str], str]

_PARTS = re.compile(r"\n|[^\S\n]+|\S+")
_FENCES = ("```", "~~~")
_KEPT = ("    ", "\t", "|", *_FENCES)


class WordWrap:
    """The state of one stream of text.

    Args:
        width: asked for the terminal's columns, which may change.
        widest: columns that no line of prose exceeds; None: the terminal's, 0: lines are left as they are.
        holds: the terminal cannot move its cursor: a word is held back until it is whole. `release` gives the last one.

    Attributes:
        at_edge: this line has reached the terminal's last column, after which terminals differ about where the cursor
            is.
    """

    def __init__(self, width: Callable[[], int], widest: int | None = None, *, holds: bool = False) -> None:
        from rich.cells import cell_len

        self.at_edge = False
        self._cells = cell_len
        self._columns = width
        self._widest = widest
        self._column = 0
        self._line = ""  # the text's own line so far
        self._word: list[tuple[str, Style]] = []
        self._holds = holds
        self._held: list[tuple[str, Style]] = []
        self._in_code = False

    def feed(self, text: str, dress: Style) -> str:
        """What to write for `text`, which `dress` dresses."""
        if self._holds:
            return "".join(self._whole_words(text, dress))
        out: list[str] = []
        same = ""  # what goes on where the cursor is
        for part in _PARTS.findall(text):
            for run in [part] if part.isascii() else self._runs(part):
                moved = self._place(run, dress)
                if moved:
                    out += [dress(same) if same else "", moved]
                    same = ""
                else:
                    same += run
        return "".join([*out, dress(same) if same else ""])

    def _whole_words(self, text: str, dress: Style) -> Iterator[str]:
        for part in _PARTS.findall(text):
            if part.isspace():
                yield self.release()
                yield self._place(part, dress) or dress(part)
                continue
            for run in self._runs(part):
                if self._cells(run[0]) == 2:
                    yield self.release()
                self._held.append((run, dress))

    def release(self) -> str:
        """What to write of a word that is held back: nothing more of it comes."""
        held, self._held = self._held, []
        word = "".join(text for text, _ in held)
        n = self._cells(word)
        self._line += word
        breaks = self._free() and self._column > 0 and self._column + n > self._limit() and n <= self._longest()
        if breaks:
            self.begin_row(0)
        self._advance(n)
        return ("\n" if breaks else "") + "".join(dress(text) for text, dress in held)

    def _place(self, part: str, dress: Style) -> str:
        """What to write instead of `part`; nothing when it simply goes on."""
        if part == "\n":
            self._end_line()
            return "\n"
        self._line += part
        return self._space(part) if part.isspace() else self._letters(part, dress)

    def _end_line(self) -> None:
        if self._line.lstrip(" ").startswith(_FENCES):
            self._in_code = not self._in_code
        self._line, self._word = "", []
        self.begin_row(0)

    def _free(self) -> bool:
        """Whether this line may be broken."""
        return self._widest != 0 and not (self._in_code or self._line.startswith(_KEPT))

    def _longest(self) -> int:
        return max(self._columns() - 1, 1)  # a full line makes terminals differ about where the cursor is

    def _limit(self) -> int:
        return min(self._longest(), self._widest or self._longest())

    def begin_row(self, column: int) -> None:
        """What comes next stands at `column`."""
        self._column, self.at_edge = column, False

    def _advance(self, n: int) -> None:
        columns = self._longest() + 1
        self.at_edge = self.at_edge or self._column + n >= columns
        self._column = (self._column + n) % columns

    def _space(self, part: str) -> str:
        self._word = []
        n = len(part.expandtabs(8))
        if self._free() and self._column + n > self._limit():
            self.begin_row(0)
            return "\n"
        self._advance(n)
        return ""

    def _letters(self, part: str, dress: Style) -> str:
        n = self._cells(part)
        if self._cells(part[0]) == 2:
            self._word = []  # a line may be broken before it
        n_word = sum(self._cells(text) for text, _ in self._word)
        self._word.append((part, dress))
        fits = self._column + n <= self._limit()
        if fits or not self._free() or n_word == self._column or n_word + n > self._longest():
            self._advance(n)
            return ""
        self.begin_row(n_word + n)
        back = f"\x1b[{n_word}D\x1b[K" if n_word else ""
        return back + "\n" + "".join(dress(text) for text, dress in self._word)

    def _runs(self, part: str) -> list[str]:
        """A part cut where a line may be broken although there is no space: before wide characters."""
        runs: list[str] = []
        for character in part:
            if runs and self._cells(character) != 2:
                runs[-1] += character
            else:
                runs.append(character)
        return runs
