"""The syntax of GBNF, llama.cpp's format of grammars: a text's rules as trees.

Nothing here knows what is done with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

RULES_MAX = 10_000
NESTING_MAX = 200
CODE_POINTS = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # no characters of any text

NAME = re.compile(r"[A-Za-z0-9_-]+")
SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
SPACES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
REPEATED = re.compile(r"\{\s*([0-9]+)\s*(?:(,)\s*([0-9]*)\s*)?\}")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\", '"': '"', "[": "[", "]": "]"}
HEX = {"x": 2, "u": 4, "U": 8}


class Literal(NamedTuple):
    text: str


class Class(NamedTuple):
    negated: bool
    ranges: tuple[tuple[int, int], ...]


class Ref(NamedTuple):
    name: str


class Repeat(NamedTuple):
    part: Node
    least: int
    most: int | None


class Sequence(NamedTuple):
    parts: tuple[Node, ...]


class Choice(NamedTuple):
    parts: tuple[Node, ...]


Node = Literal | Class | Ref | Repeat | Sequence | Choice


def parse(text: str) -> dict[str, Node]:
    """The rules of a GBNF text by name; of two with one name the last counts, as in llama.cpp."""
    parser = _Parser(text)
    rules: dict[str, Node] = {}
    parser.skip(SPACES)
    while parser.at < len(text):
        name = parser.name()
        parser.skip(SPACE)
        parser.expect("::=")
        parser.skip(SPACES)
        rules[name] = parser.choice(0)
        if len(rules) > RULES_MAX:
            raise ValueError(f"it has more than {RULES_MAX:,} rules")
        if parser.at < len(text) and text[parser.at] not in "\r\n":
            parser.fail("expecting a new line or the end")
        parser.skip(SPACES)
    return rules


class _Parser:
    """Reads one text; `at` is where."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, why: str) -> None:
        line = self.text.count("\n", 0, self.at) + 1
        near = self.text[self.at : self.at + 20] or "its end"
        raise ValueError(f"{why} at {near!r} (line {line})")

    def skip(self, space: re.Pattern[str]) -> None:
        found = space.match(self.text, self.at)
        assert found is not None
        self.at = found.end()

    def next_is(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def take(self, text: str) -> bool:
        """Whether `text` comes next; it is passed over then."""
        found = self.next_is(text)
        self.at += len(text) * found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            self.fail(f"expecting {text}")

    def name(self) -> str:
        found = NAME.match(self.text, self.at)
        if found is None:
            self.fail("expecting a name")
        assert found is not None
        self.at = found.end()
        return found[0]

    def choice(self, depth: int) -> Node:
        if depth > NESTING_MAX:
            raise ValueError(f"it nests more than {NESTING_MAX} deep")
        space = SPACES if depth else SPACE
        options = [self.sequence(depth)]
        self.skip(space)
        while self.take("|"):
            self.skip(SPACES)
            options.append(self.sequence(depth))
            self.skip(space)
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while (part := self.part(depth)) is not None:
            self.skip(SPACES if depth else SPACE)
            parts.append(self.repeated(part))
            self.skip(SPACES if depth else SPACE)
        return Sequence(tuple(parts))

    def part(self, depth: int) -> Node | None:
        if self.take('"'):
            text = "".join(map(chr, self.characters('"')))
            if re.search("[\ud800-\udfff]", text):
                self.fail("half of a surrogate pair is no character,")
            return Literal(text)
        if self.take("["):
            return self.character_class()
        if self.take("("):
            self.skip(SPACES)
            inside = self.choice(depth + 1)
            self.expect(")")
            return inside
        if self.take("."):
            return Class(True, ())
        if self.next_is("<") or self.next_is("!"):
            self.fail("tokens are not supported in GBNF: use a Lark grammar,")
        return Ref(self.name()) if NAME.match(self.text, self.at) else None

    def repeated(self, part: Node) -> Node:
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(sign):
                return self.repeated(Repeat(part, least, most))
        found = REPEATED.match(self.text, self.at)
        if found is None:
            if self.next_is("{"):
                self.fail("expecting a count like {2} or {2,3}")
            return part
        if max(map(len, found.groups(default=""))) > 9:
            self.fail("a count is too large")
        self.at = found.end()
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if most is not None and most < least:
            raise ValueError(f"it repeats at least {least} and at most {most} times")
        return Repeat(part, least, most)

    def character_class(self) -> Class:
        negated = self.take("^")
        ranges: list[tuple[int, int]] = []
        while not self.take("]"):
            low = high = self.character()
            if self.next_is("-") and not self.next_is("-]"):
                self.at += 1
                high = self.character()
            ranges += [
                (max(low, first), min(high, last))
                for first, last in ((0, SURROGATES[0] - 1), (SURROGATES[1] + 1, CODE_POINTS))
                if max(low, first) <= min(high, last)
            ]
        return Class(negated, tuple(ranges))

    def characters(self, end: str) -> Iterator[int]:
        while not self.take(end):
            yield self.character()

    def character(self) -> int:
        """One character's code point, escaped or not."""
        if self.at >= len(self.text):
            self.fail("unexpected end")
        char = self.text[self.at]
        self.at += 1
        if char != "\\":
            return ord(char)
        kind = self.text[self.at : self.at + 1]
        if kind in HEX:
            digits = self.text[self.at + 1 : self.at + 1 + HEX[kind]]
            if not re.fullmatch(rf"[0-9A-Fa-f]{{{HEX[kind]}}}", digits) or int(digits, 16) > CODE_POINTS:
                self.fail("expecting a character's hexadecimal number")
            self.at += 1 + len(digits)
            return int(digits, 16)
        if kind not in ESCAPES:
            self.fail("unknown escape")
        self.at += 1
        return ord(ESCAPES[kind])
