"""Texts that spell a control token, as they stand in what people and programs write: they stay text.

A chat template puts messages between control tokens by their texts, and the whole is tokenized with those texts read
as tokens. A message that spells one could end its turn and forge another. This module takes such texts out of messages
before they are rendered, and says afterwards which parts of the prompt are to be read as plain text. It knows no
tokens, no templates and no model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

# Templates look for these in an answer, to leave earlier reasoning out.
REASONING_MARKS = frozenset(("<think>", "</think>", "[THINK]", "[/THINK]"))


class Rendered(str):
    """A prompt's text.

    Attributes:
        parts: the same text in parts, each with whether texts of control tokens in it are those tokens.
    """

    parts: tuple[tuple[str, bool], ...]

    @classmethod
    def of(cls, parts: Iterable[tuple[str, bool]]) -> Rendered:
        """A prompt of `parts`, the empty ones left out."""
        kept = tuple((text, special) for text, special in parts if text)
        made = cls("".join(text for text, _ in kept))
        made.parts = kept
        return made


class ControlTexts:
    """The texts of a vocabulary's control tokens."""

    def __init__(self, texts: Iterable[str]) -> None:
        # the longest first: where one begins another, llama.cpp takes the longer one
        self._words = sorted({text for text in texts if text}, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, self._words))) if self._words else None

    def starts(self, text: str, n_max: int) -> list[tuple[int, int]]:
        """Where such texts begin and end in `text`, at most `n_max` of them."""
        found: list[tuple[int, int]] = []
        for match in self._any.finditer(text) if self._any else ():
            if len(found) == n_max:
                break
            found.append(match.span())
        return found

    def protect(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Callable[[str], Rendered]]:
        """Messages and tools with a placeholder for every text of a control token, and what puts the texts back into
        the prompt that a template makes of them."""
        if self._any is None or not any(self._any.search(text) for text in _texts([messages, tools])):
            return [dict(m) for m in messages], [dict(t) for t in tools], lambda prompt: Rendered.of([(prompt, True)])
        stem = _stem("".join(_texts([messages, tools])))
        taken: list[str] = []

        def take(match: re.Match[str]) -> str:
            taken.append(match[0])
            return f"{stem}{len(taken) - 1}{stem[-1]}"

        def without(text: str, kept: frozenset[str] = frozenset()) -> str:
            assert self._any is not None
            return self._any.sub(lambda match: match[0] if match[0] in kept else take(match), text)

        def changed(message: Mapping[str, Any]) -> dict[str, Any]:
            kept = REASONING_MARKS if message["role"] == "assistant" else frozenset()
            return {k: v if k == "role" else _map(v, lambda text: without(text, kept)) for k, v in message.items()}

        made = [changed(message) for message in messages]
        shown = [_map(tool, without) for tool in tools]

        def put_back(prompt: str) -> Rendered:
            pieces = re.split(f"{stem}(\\d+){stem[-1]}", prompt)
            return Rendered.of(
                (piece, True) if i % 2 == 0 else (taken[int(piece)], False) for i, piece in enumerate(pieces)
            )

        return made, shown, put_back


def _stem(text: str) -> str:
    """Letters that `text` does not hold: they pass a template's escaping and trimming unchanged."""
    n = 0
    while (stem := f"Qz{'qx' * n}Zq") in text:
        n += 1
    return stem


def _texts(value: Any) -> Iterable[str]:
    """All texts in a value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, Sequence):
        for inner in value:
            yield from _texts(inner)


def _map(value: Any, change: Callable[[str], str]) -> Any:
    """A value with every text in it changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map(key, change): _map(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_map(inner, change) for inner in value]
    return value
