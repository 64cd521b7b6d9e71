"""The input: a file of requests in OpenAI's batch format, one a line, each with an id that its answer will bear.

A line that cannot be read is a request all the same: it is answered by a row that says what is wrong with it. Bodies
are not looked into here, and nothing is known of answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specgguf.config import did_you_mean
from specgguf.errors import ConfigError, SpecggufError
from specgguf.serve.protocols.bodies import BadRequest, read

Json = dict[str, Any]

ID = "batch_req_"  # begins the id of a request and of its row
URLS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
KEYS = ("custom_id", "method", "url", "body")
NAMED_MAX = 3  # faults that one message names


class BadLine(SpecggufError):
    """A line that is no request."""


@dataclass(frozen=True, slots=True)
class Request:
    """One line of the input.

    Attributes:
        line: its number, from 1.
        id: made from what the line says, so that it is the same in every run over this input.
        custom_id: the caller's name for it; None where the line has none.
        model: the model that its body names; "" where it names none.
        data: the line's bytes.
    """

    line: int
    id: str
    custom_id: str | None
    model: str
    data: bytes

    def call(self) -> tuple[str, Json]:
        """Its url, one of `URLS`, and its body.

        Raises:
            BadLine: the line is no request.
        """
        try:
            fields = read(self.data, "the line")
        except BadRequest as error:
            raise BadLine(f"line {self.line}: {error}") from error
        if problem := _problem(fields):
            raise BadLine(f"line {self.line}: {problem}")
        return fields["url"], fields["body"]


def _problem(fields: Json) -> str:
    """What keeps `fields` from being a request; "" where nothing does."""
    for key in fields:
        if key not in KEYS:
            hint = did_you_mean(key[:100], KEYS)
            return f"unknown field {key[:60]!r}" + (f": {hint}" if hint else "")
    if not isinstance(fields.get("custom_id"), str) or not fields["custom_id"]:
        return (
            "custom_id is missing"
            if fields.get("custom_id") is None
            else "custom_id must be a text that says something"
        )
    if fields.get("method", "POST") != "POST":
        return f"method must be POST, not {fields['method']!r:.60}"
    if fields.get("url") not in URLS:
        return f"url must be one of {', '.join(URLS)}, not {fields.get('url')!r:.60}"
    if not isinstance(fields.get("body"), dict):
        return "body is missing" if fields.get("body") is None else "body must be an object"
    return ""


def read_requests(lines: Iterable[bytes], name: str) -> list[Request]:
    """The requests of an input file; blank lines are none.

    Args:
        lines: of the file, in order.
        name: what to call it in errors.

    Raises:
        ConfigError: it holds no request, or two with the same custom_id, whose answers nobody could tell apart.
    """
    found: list[Request] = []
    seen: dict[bytes, int] = {}  # how often a line was there before
    named: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        data = (line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line).strip()
        if not data:
            continue
        digest = hashlib.sha256(data)
        again = seen[digest.digest()] = seen.get(digest.digest(), 0) + 1
        if again > 1:
            digest.update(b"\n%d" % again)
        custom_id, model = _names(data)
        found.append(Request(number, ID + digest.hexdigest()[:24], custom_id, model, data))
        if custom_id is not None:
            named.setdefault(custom_id, []).append(number)
    if not found:
        raise ConfigError(f"{name} holds no request", hint="one JSON object a line: custom_id, method, url, body")
    _refuse_duplicates(named, name)
    return found


def _names(data: bytes) -> tuple[str | None, str]:
    """The custom_id and the model of a line, as far as they can be read."""
    try:
        fields = read(data, "the line")
    except BadRequest:
        return None, ""
    custom_id, body = fields.get("custom_id"), fields.get("body")
    model = body.get("model") if isinstance(body, dict) else None
    return (
        custom_id if isinstance(custom_id, str) and custom_id else None,
        model if isinstance(model, str) else "",
    )


def _refuse_duplicates(named: dict[str, list[int]], name: str) -> None:
    twice = {custom_id: numbers for custom_id, numbers in named.items() if len(numbers) > 1}
    if twice:
        shown = [f"{c!r:.60} on lines {', '.join(map(str, n[:NAMED_MAX]))}" for c, n in twice.items()]
        more = f", and {len(twice) - NAMED_MAX} more" if len(twice) > NAMED_MAX else ""
        raise ConfigError(
            f"{name}: the same custom_id stands on several lines: {'; '.join(shown[:NAMED_MAX])}{more}",
            hint="answers are found by their custom_id: give each request its own",
        )
