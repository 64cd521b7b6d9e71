"""Wrapping while streaming, judged on a small terminal that knows what the escape sequences do."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len
from specgguf.cli.terminal import console
from specgguf.cli.terminal.wrap import WordWrap

PROSE = (
    "A mutex is a lock-based synchronization mechanism that allows several threads to share a resource "
    "without interference.  Two  spaces, a veryveryveryverylongwordthatfitsnowhereatallonanyline, and 互斥锁是一种"
    "用于多线程编程的机制 émigré naïve 🙂🙂 end.\n\nSecond paragraph, short.\n"
)
LONG = "def a_function_with_a_long_name(argument, another_argument):"
CODE = f"Look:\n```python\n{LONG}\n    return 1\n```\nAnd so on it goes.\n"


class Terminal:
    """Lines of cells; knows line ends, backward moves, erasing to the end, and hard wrapping."""

    def __init__(self, columns: int) -> None:
        self.columns, self.lines, self.at = columns, [[""] * 0], 0

    def write(self, text: str) -> None:
        for part in re.findall("\x1b\\[\\d*[A-Za-z]|.|\n", text):
            line = self.lines[-1]
            if part == "\n":
                self.lines.append([])
                self.at = 0
            elif part.endswith("D") and part.startswith("\x1b"):
                self.at -= int(part[2:-1])
                assert self.at >= 0, "moved back beyond the line's beginning"
            elif part == "\x1b[K":
                del line[self.at :]
            elif part.startswith("\x1b"):
                raise AssertionError(part)
            else:
                n = cell_len(part)
                if self.at + n > self.columns:
                    self.lines.append([])
                    self.at = 0
                assert self.at == len(self.lines[-1]), "wrote over something"
                self.lines[-1] += [part, *[""] * (n - 1)]
                self.at += n

    def text(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.lines]


def shown(text: str, columns: int, n: int, *, holds: bool = False) -> list[str]:
    terminal, wrap = Terminal(columns), WordWrap(lambda: columns, holds=holds)
    for i in range(0, len(text), n):
        written = wrap.feed(text[i : i + n], lambda part: part)
        assert not holds or "\x1b" not in written
        terminal.write(written)
    terminal.write(wrap.release())
    return terminal.text()


@pytest.mark.parametrize("columns", [12, 30, 80, 200])
@pytest.mark.parametrize("n", [1, 3, 1000])
@pytest.mark.parametrize("holds", [False, True])
def test_no_word_is_broken_and_none_is_lost(columns: int, n: int, holds: bool) -> None:
    lines = shown(PROSE, columns, n, holds=holds)
    words = [word for word in re.split(r"\s+|(?<=[互斥锁是一种用于多线程编的机制🙂])", PROSE) if word]
    pieces = [word for word in re.split(r"\s+|(?<=[互斥锁是一种用于多线程编的机制🙂])", "\n".join(lines)) if word]
    assert "".join(pieces) == "".join(words)
    assert [w for w in words if cell_len(w) < columns and w not in pieces] == []
    assert all(cell_len(line) <= columns for line in lines)


@pytest.mark.parametrize("columns", [60, 80])
def test_the_cuts_do_not_matter(columns: int) -> None:
    assert shown(PROSE, columns, 1, holds=True) == shown(PROSE, columns, 1000, holds=True)
    assert shown(PROSE, columns, 1) == shown(PROSE, columns, 5) == shown(PROSE, columns, 1000)


@pytest.mark.parametrize("n", [1, 4, 1000])
@pytest.mark.parametrize("holds", [False, True])
def test_code_is_left_alone(n: int, holds: bool) -> None:
    lines = shown(CODE, 40, n, holds=holds)
    assert lines[2] + lines[3] == LONG
    assert len(lines[2]) == 40
    assert lines[4:7] == ["    return 1", "```", "And so on it goes."]


def test_tables_and_indented_lines_are_left_alone() -> None:
    for line in ("| a | b | c | d | e | f |", "    indented code that is long"):
        assert "".join(shown(line, 20, 3)).replace(" ", "") == line.replace(" ", "")
        assert len(shown(line, 20, 3)[0]) >= 19


def test_styles_move_with_their_word() -> None:
    wrap = WordWrap(lambda: 10)
    green, plain = (lambda part: f"<{part}>"), (lambda part: part)
    assert wrap.feed("12345 67", green) == "<12345 67>"
    assert wrap.feed("890", plain) == "\x1b[2D\x1b[K\n<67>890"


def test_a_terminal_that_changes_its_width() -> None:
    width = 40
    wrap, terminal = WordWrap(lambda: width), Terminal(40)
    terminal.write(wrap.feed("one two three four ", str))
    width = 20
    terminal.write(wrap.feed("five six seven eight nine ten", str))
    assert terminal.text() == ["one two three four", "five six seven", "eight nine ten"]


def test_remarks_are_folded_between_words() -> None:
    text = "a larger model would read prompts too slowly\n  a line that is meant as it is, columns and all"
    folded = console.folded(text, 20).split("\n")
    assert folded[:3] == ["a larger model would", "read prompts too", "slowly"]
    assert folded[3:] == text.split("\n")[1:]
    assert console.folded("org/" + "x" * 40, 20) == "org/" + "x" * 40


def test_what_is_styled_is_folded_by_what_is_seen() -> None:
    line = "\x1b[32mwritten by the draft\x1b[0m and more"
    assert console.folded(line, 29) == line
    assert console.folded(line, 28) != line
