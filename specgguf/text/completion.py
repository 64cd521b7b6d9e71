"""OpenAI's dicts and chunks, in llama-cpp-python's exact shapes: written once, for the API and the server.

Pure functions over the items of one generation: its `Piece`s, then one `Final`. Beyond llama-cpp-python's keys
there are `timings` (whole replies and last chunks), `from_draft` (every chunk) and `usage` in the last chunk.
No engine here, no clock and no random ids: both are handed in.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .detokenize import Piece
from .logprobs import LogprobWriter, chat_logprobs
from .tool_calls import ToolCall, ToolCallParser

Json = dict[str, Any]

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}


@dataclass(frozen=True, slots=True)
class ResponseMetadata:
    """What every dict of one reply repeats. `id` is "cmpl-…"; chat dicts put "chat" before it."""

    id: str
    created: int
    model: str


@dataclass(frozen=True, slots=True)
class Final:
    """How a generation ended; the last item of its stream.

    Attributes:
        reason: "eos", "stop" or "length".
        n_prompt, n_completion: tokens, the end-of-generation token not counted.
        timings: llama.cpp's timings.
    """

    reason: str
    n_prompt: int
    n_completion: int
    timings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def finish_reason(self) -> str:
        """OpenAI's word for `reason`."""
        return FINISH_REASONS[self.reason]

    def extras(self) -> Json:
        """The keys `usage` and `timings`."""
        usage = {
            "prompt_tokens": self.n_prompt,
            "completion_tokens": self.n_completion,
            "total_tokens": self.n_prompt + self.n_completion,
        }
        return {"usage": usage, "timings": dict(self.timings)}


Items = Iterable[Piece | Final]


# --- completions ------------------------------------------------------------------------------------------


def completion(
    response: ResponseMetadata, items: Items, *, echo: str = "", logprobs: LogprobWriter | None = None
) -> Json:
    """The dict of a text completion; `echo` is put before its text."""
    pieces, final = collect(items)
    choice = {
        "text": echo + "".join(p.text for p in pieces),
        "index": 0,
        "logprobs": logprobs.all(pieces) if logprobs else None,
        "finish_reason": final.finish_reason,
    }
    return _completion_dict(response, choice) | final.extras()


def completion_chunks(
    response: ResponseMetadata, items: Items, *, echo: str = "", logprobs: LogprobWriter | None = None
) -> Iterator[Json]:
    """The chunks of a text completion: one per token, and a last one that says why it ended."""

    def chunk(text: str, entry: Json | None = None, reason: str | None = None, drafted: bool = False) -> Json:
        choice = {"text": text, "index": 0, "logprobs": entry, "finish_reason": reason}
        return _completion_dict(response, choice) | {"from_draft": drafted}

    if echo:
        yield chunk(echo)
    for item in items:
        if isinstance(item, Final):
            yield chunk("", reason=item.finish_reason) | item.extras()
        elif item.text or not item.eog:
            yield chunk(item.text, logprobs.add(item) if logprobs else None, drafted=item.from_draft)


def _completion_dict(response: ResponseMetadata, choice: Json) -> Json:
    return {
        "id": response.id,
        "object": "text_completion",
        "created": response.created,
        "model": response.model,
        "choices": [choice],
    }


def collect(items: Items) -> tuple[list[Piece], Final]:
    """All pieces of a generation, and its end."""
    pieces: list[Piece] = []
    final = None
    for item in items:
        if isinstance(item, Final):
            final = item
        else:
            pieces.append(item)
    assert final is not None, "a generation ends with a Final"
    return pieces, final


# --- chat -------------------------------------------------------------------------------------------------


def chat(
    response: ResponseMetadata,
    items: Items,
    *,
    logprobs: LogprobWriter | None = None,
    tool_names: Collection[str] = (),
    forced_tool: str = "",
    is_call: bool = False,
) -> Json:
    """The dict of a chat completion.

    Args:
        tool_names: turn calls of these into tool_calls, in whichever format they come.
        forced_tool: the text is the arguments of a call of this function.
        is_call: the text is the JSON of a call, without tags.
    """
    pieces, final = collect(items)
    text = "".join(p.text for p in pieces)
    message: Json = {"role": "assistant", "content": text}
    reason = final.finish_reason
    if forced_tool:
        call = _call_dict(response, 0, ToolCall(forced_tool, text))
        message |= {"content": None, "function_call": call["function"], "tool_calls": [call]}
        reason = _with_calls(reason)
    elif tool_names:
        parser = ToolCallParser(tool_names, opened=is_call)
        parts = parser.feed(text) + parser.flush()
        calls = [part for part in parts if isinstance(part, ToolCall)]
        if calls:
            message["content"] = "".join(part for part in parts if isinstance(part, str)) or None
            message["tool_calls"] = [_call_dict(response, i, call) for i, call in enumerate(calls)]
            reason = _with_calls(reason)
    choice = {
        "index": 0,
        "message": message,
        "logprobs": chat_logprobs(logprobs.all(pieces) if logprobs else None),
        "finish_reason": reason,
    }
    return _chat_dict(response, "chat.completion", choice) | final.extras()


def chat_chunks(
    response: ResponseMetadata,
    items: Items,
    *,
    logprobs: LogprobWriter | None = None,
    tool_names: Collection[str] = (),
    forced_tool: str = "",
    is_call: bool = False,
) -> Iterator[Json]:
    """The chunks of a chat completion: the role, one per token, and a last one that says why it ended.

    A tool call comes whole, in the chunk of the token that completes it; a forced one as its arguments grow.
    """

    def chunk(delta: Json, entry: Json | None = None, reason: str | None = None, drafted: bool = False) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": chat_logprobs(entry), "finish_reason": reason}
        return _chat_dict(response, "chat.completion.chunk", choice) | {"from_draft": drafted}

    deltas = _Deltas(response, tool_names, forced_tool, is_call)
    begun = False
    for item in items:
        if not begun:
            yield chunk({"role": "assistant"})
            begun = True
        if isinstance(item, Final):
            if rest := deltas.flush():
                yield chunk(rest)
            yield chunk({}, reason=deltas.finish_reason(item)) | item.extras()
        elif item.text or not item.eog:
            entry = logprobs.add(item) if logprobs else None
            yield chunk(deltas.of(item.text), entry, drafted=item.from_draft)


class _Deltas:
    """A stream's text as deltas: content, tool calls, or the arguments of a forced call."""

    def __init__(
        self, response: ResponseMetadata, tool_names: Collection[str], forced_tool: str, is_call: bool
    ) -> None:
        self._response = response
        self._parser = ToolCallParser(tool_names, opened=is_call) if tool_names and not forced_tool else None
        self._forced = forced_tool
        self._n_calls = 0

    def of(self, text: str) -> Json:
        if self._forced:
            return self._arguments(text)
        return self._delta(self._parser.feed(text) if self._parser else [text])

    def flush(self) -> Json:
        """What the tool-call parser still holds, as a delta; {} if nothing."""
        parts = self._parser.flush() if self._parser else []
        return self._delta(parts) if parts else {}

    def _delta(self, parts: list[str | ToolCall]) -> Json:
        delta: Json = {"content": "".join(part for part in parts if isinstance(part, str))}
        calls = [part for part in parts if isinstance(part, ToolCall)]
        if calls:
            delta["tool_calls"] = [
                {"index": i, **_call_dict(self._response, i, call)} for i, call in enumerate(calls, self._n_calls)
            ]
            self._n_calls += len(calls)
        return delta

    def _arguments(self, text: str) -> Json:
        """Id and name come once: OpenAI's client adds up what later deltas repeat."""
        call = _call_dict(self._response, 0, ToolCall(self._forced, text))
        if self._n_calls:
            call = {"function": {"arguments": text}}
        self._n_calls = 1
        return {"tool_calls": [{"index": 0, **call}]}

    def finish_reason(self, final: Final) -> str:
        return _with_calls(final.finish_reason) if self._n_calls or self._forced else final.finish_reason


def _with_calls(reason: str) -> str:
    return "tool_calls" if reason == "stop" else reason


def _call_dict(response: ResponseMetadata, i: int, call: ToolCall) -> Json:
    return {
        "id": f"call__{i}_{call.name}_{response.id}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _chat_dict(response: ResponseMetadata, kind: str, choice: Json) -> Json:
    return {
        "id": "chat" + response.id,
        "object": kind,
        "created": response.created,
        "model": response.model,
        "choices": [choice],
    }
