"""llama.cpp's GBNF, said in llguidance's dialect of Lark with exactly the same language.

Lark's terminals are matched greedily, GBNF's rules are not: [0-9]+ "5" holds "15" in GBNF, and nothing in Lark where
the digits are a terminal of their own. So a grammar without recursion becomes one single terminal, and in a recursive
one every character is a terminal (of equal length, so none is greedier than another). Nothing here knows tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .gbnf_syntax import Choice, Class, Literal, Node, Ref, Repeat, Sequence, parse

ROOT = "root"


def to_lark(text: str) -> str:
    """A Lark grammar of the same texts.

    Raises:
        ValueError: `text` is no GBNF; the message says why, and where.
    """
    if "\0" in text:
        raise ValueError("it holds a NUL character")
    rules = parse(text)
    if not rules:
        raise ValueError("it is empty")
    if ROOT not in rules:
        raise ValueError(f"it has no rule '{ROOT}'")
    references = {name: {ref.name for ref in _nodes(node) if isinstance(ref, Ref)} for name, node in rules.items()}
    for name, found in references.items():
        if missing := sorted(found - rules.keys()):
            raise ValueError(f"the rule '{name}' refers to '{missing[0]}', which is not there")
    used = _reached(references)
    is_regular = not _is_recursive(references, used)
    names = {name: f"T{i}" if is_regular else f"r{i}" for i, name in enumerate(used)}
    write = _Writer(names, is_regular)
    lines = [f"{names[name]}: {write(rules[name])}" for name in used]
    return "\n".join([f"start: {names[ROOT]}", *lines])


def quoted(text: str) -> str:
    """`text` as a terminal of Lark, whose texts are written as JSON's."""
    return json.dumps(text)


@dataclass
class _Writer:
    """GBNF's parts in Lark: of a terminal, or of a rule, where a literal is one terminal for each character."""

    names: Mapping[str, str]
    is_regular: bool

    def __call__(self, node: Node) -> str:
        match node:
            case Literal(text):
                return " ".join(map(quoted, [text] if self.is_regular or not text else text))
            case Class(negated, ranges):
                return _regex(negated, ranges)
            case Ref(name):
                return self.names[name]
            case Repeat(part, least, most):
                return f"({self(part)}){{{least},{'' if most is None else most}}}"
            case Sequence(parts):
                return " ".join(map(self, parts)) or '""'
            case Choice(parts):
                return "(" + " | ".join(map(self, parts)) + ")"


def _regex(negated: bool, ranges: tuple[tuple[int, int], ...]) -> str:
    inside = "".join(f"\\x{{{low:x}}}-\\x{{{high:x}}}" for low, high in ranges)
    if not inside:
        return "/(?s:.)/" if negated else "/[^\\x{0}-\\x{10ffff}]/"
    return f"/[{'^' if negated else ''}{inside}]/"


def _nodes(node: Node) -> Iterator[Node]:
    """`node` and everything in it."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, Sequence | Choice):
            stack += node.parts
        elif isinstance(node, Repeat):
            stack.append(node.part)


def _reached(references: Mapping[str, set[str]]) -> list[str]:
    """The rules that the root leads to, in the grammar's order."""
    found, new = {ROOT}, [ROOT]
    while new:
        more = references[new.pop()] - found
        found |= more
        new += more
    return [name for name in references if name in found]


def _is_recursive(references: Mapping[str, set[str]], used: list[str]) -> bool:
    """Whether some rule leads back to itself: whether no order has each rule after those it refers to."""
    waits = {name: len(references[name]) for name in used}
    referring: dict[str, list[str]] = {name: [] for name in used}
    for name in used:
        for other in references[name]:
            referring[other].append(name)
    ready = [name for name in used if not waits[name]]
    n = 0
    while ready:
        n += 1
        for other in referring[ready.pop()]:
            waits[other] -= 1
            if not waits[other]:
                ready.append(other)
    return n < len(used)
