"""Several answers to one request: some prompts, each answered n times, one after the other.

Pure over the engine's dicts and chunks, each of which has one choice; it knows no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import Any

from .reply import Json

Create = Callable[[], Any]  # a call of the engine: a dict, or a generator of chunks
USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


def whole(creates: Sequence[Create]) -> Json:
    """One dict with a choice of each call, in their order."""
    results: list[Json] = [create() for create in creates]
    choices = [{**result["choices"][0], "index": i} for i, result in enumerate(results)]
    return results[0] | {"choices": choices, "usage": _sum(result["usage"] for result in results)}


def stream(creates: Sequence[Create]) -> Generator[Json, None, None]:
    """The chunks of each call in turn, its choice numbered; the last chunk of all has the usage of all."""
    first: Json = {}
    usages = []
    for i, create in enumerate(creates):
        with closing(create()) as chunks:
            for chunk in chunks:
                first = first or {key: chunk[key] for key in ("id", "created") if key in chunk}
                chunk = chunk | first | {"choices": [{**choice, "index": i} for choice in chunk["choices"]]}
                if "usage" in chunk:
                    usages.append(chunk.pop("usage"))
                    if i + 1 == len(creates):
                        chunk["usage"] = _sum(usages)
                yield chunk


def _sum(usages: Any) -> Json:
    counted: list[Json] = list(usages)
    return {key: sum(usage[key] for usage in counted) for key in USAGE}


def seeded(keywords: Json, n: int) -> Iterator[Json]:
    """`keywords` n times; a seed moves on by one, or all answers would be the same."""
    for i in range(n):
        yield keywords if keywords.get("seed") is None else {**keywords, "seed": keywords["seed"] + i}
