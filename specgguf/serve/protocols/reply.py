"""How one request is answered, whatever its protocol: what the engine is to write, and the shape of what it gives.

It knows no HTTP, no queue and no model.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import several

Json = dict[str, Any]
Work = Callable[[], Json | Generator[Json, None, None]]

DONE = b"data: [DONE]\n\n"


class Events(Protocol):
    """A stream's chunks as server-sent events."""

    def of(self, chunk: Json) -> Iterator[bytes]:
        """The events of one chunk."""

    def end(self) -> Iterator[bytes]:
        """What comes after the last chunk."""

    def failed(self, error: Json) -> bytes:
        """The event of an error, given in OpenAI's shape; nothing follows it."""


class OpenAIEvents:
    """A chunk is an event; `usage` comes only when asked for, in one of its own with no choices."""

    def __init__(self, include_usage: bool = False) -> None:
        self._include_usage = include_usage

    def of(self, chunk: Json) -> Iterator[bytes]:
        """See `Events`."""
        yield from map(event, self._split(chunk))

    def _split(self, chunk: Json) -> list[Json]:
        if "usage" not in chunk:
            return [chunk | {"usage": None}] if self._include_usage else [chunk]
        head = {key: chunk[key] for key in ("id", "object", "created", "model")}
        last = {key: value for key, value in chunk.items() if key != "usage"}
        if not self._include_usage:
            return [last]
        return [last | {"usage": None}, {**head, "choices": [], "usage": chunk["usage"]}]

    def end(self) -> Iterator[bytes]:
        """See `Events`."""
        yield DONE

    def failed(self, error: Json) -> bytes:
        """See `Events`."""
        return event(error)


def _same(result: Json) -> Json:
    return result


@dataclass(frozen=True)
class Reply:
    """How one request is answered.

    Attributes:
        works: one for each answer, run on a thread of the engine's; gives a dict, or dicts one by one.
        stream: whether `events` shapes them as they come, or `shape` the one dict.
        model: what the client called the model. headers: of the answer.
    """

    works: tuple[Work, ...]
    stream: bool = False
    model: str = ""
    shape: Callable[[Json], Json] = _same
    events: Callable[[], Events] = OpenAIEvents
    headers: Mapping[str, str] = field(default_factory=dict)

    def whole(self, results: Sequence[Json]) -> Json:
        """The one dict of what each of `works` gave; `shape` makes the answer of it."""
        return several.whole(results)

    def interleaved(self) -> several.Interleaved:
        """What makes one stream of those that `works` give."""
        return several.Interleaved(len(self.works))


Parse = Callable[[Json], Reply]


def event(item: Json, name: str = "") -> bytes:
    """One server-sent event, with a name where the protocol names them."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(item, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
