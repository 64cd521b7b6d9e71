"""Several answers to one request: some prompts, each answered n times, as the choices of one answer.

Pure over the engine's dicts and chunks, each of which has one choice; it knows no engine, and not in which order or how
many at a time the answers are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Json = dict[str, Any]

USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


def whole(results: Sequence[Json]) -> Json:
    """One dict with the choice of each, in their order."""
    if len(results) == 1:
        return results[0]
    choices = [{**result["choices"][0], "index": i} for i, result in enumerate(results)]
    return results[0] | {"choices": choices, "usage": _sum([result["usage"] for result in results])}


class Interleaved:
    """The chunks of `n` answers in the order that they come: each choice with its number, all with the first one's id,
    and the last chunk of all with the usage of all."""

    def __init__(self, n: int) -> None:
        self._n = n
        self._first: Json = {}
        self._usages: list[Json] = []

    def of(self, i: int, chunk: Json) -> Json:
        """A chunk of answer `i`."""
        if self._n == 1:
            return chunk
        self._first = self._first or {key: chunk[key] for key in ("id", "created") if key in chunk}
        chunk = chunk | self._first | {"choices": [{**choice, "index": i} for choice in chunk["choices"]]}
        if "usage" in chunk:
            self._usages.append(chunk.pop("usage"))
            if len(self._usages) == self._n:
                chunk["usage"] = _sum(self._usages)
        return chunk


def _sum(usages: Sequence[Json]) -> Json:
    return {key: sum(usage[key] for usage in usages) for key in USAGE}


def seeded(keywords: Json, n: int) -> Iterator[Json]:
    """`keywords` n times; a seed moves on by one, or all answers would be the same."""
    for i in range(n):
        yield keywords if keywords.get("seed") is None else {**keywords, "seed": keywords["seed"] + i}
