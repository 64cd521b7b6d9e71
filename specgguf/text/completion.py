"""OpenAI's dicts and chunks, in llama-cpp-python's exact shapes: written once, for the API and the server.

A `Completion` is a reply over one generation's chunks. Beyond llama-cpp-python's keys there are `timings` (whole
replies and last chunks), `stopping_word` (there too, where a stop string ended the text), `from_draft` (every chunk),
`reasoning_content`, and `usage` in the last chunk. No engine
here, no clock and no random ids: both are handed in.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from specgguf.decode.records import Chunk
from specgguf.decode.stats import Stats

from .logprobs import ChatLogprobWriter, LogprobWriter
from .tools.calls import ToolCall, ToolCallParser

Json = dict[str, Any]

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}  # a generation's, in OpenAI's words


@dataclass(frozen=True, slots=True)
class ResponseMetadata:
    """What every dict of one reply repeats. `id` is "cmpl-…"; chat dicts put "chat" before it."""

    id: str
    created: int
    model: str


class Stream(Protocol):
    """What a reply needs of a `decode.generation.Generation`."""

    n_prompt: int
    finish_reason: str | None
    stats: Stats

    @property
    def n_completion(self) -> int: ...
    @property
    def stopping_word(self) -> str: ...
    def __iter__(self) -> Iterator[Chunk]: ...
    def close(self) -> None: ...
    def cancel(self) -> None: ...
    def stop(self) -> None: ...


class Completion(ABC):
    """A reply under way: its dict, or its chunks, whichever is asked for first.

    Attributes:
        response: its id, time and model.
        generation: what it is made from; `cancel()` and `stop()` are there.
    """

    def __init__(
        self,
        response: ResponseMetadata,
        generation: Stream,
    ) -> None:
        self.generation = generation
        self.response = response

    def whole(self) -> Json:
        """The dict of the reply."""
        chunks = list(self.generation)
        return self._whole(chunks) | self._extras()

    def chunks(self) -> Iterator[Json]:
        """The chunks of the reply: one per token, and a last one that says why it ended."""
        try:
            yield from self._chunks()
        finally:
            self.generation.close()

    @abstractmethod
    def _whole(self, chunks: list[Chunk]) -> Json: ...

    @abstractmethod
    def _chunks(self) -> Iterator[Json]: ...

    def usage(self) -> Json:
        """OpenAI's counts of tokens; so far, while it is made."""
        n_prompt, n_completion = self.generation.n_prompt, self.generation.n_completion
        return {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_completion,
            "total_tokens": n_prompt + n_completion,
        }

    def _extras(self) -> Json:
        word = {"stopping_word": self.generation.stopping_word} if self.generation.finish_reason == "stop" else {}
        return {"usage": self.usage(), "timings": self.generation.stats.timings(), **word}

    @property
    def _finish_reason(self) -> str:
        return FINISH_REASONS[self.generation.finish_reason or "length"]


def _is_shown(chunk: Chunk) -> bool:
    """Whether a chunk has a dict of its own: one per token that counts, and any text."""
    return bool(chunk.text or chunk.reasoning) or (chunk.token >= 0 and not chunk.ends_text)


# --- completions ------------------------------------------------------------------------------------------


class TextCompletion(Completion):
    """The reply of a text completion.

    Args:
        echo: put before its text.
    """

    def __init__(
        self,
        response: ResponseMetadata,
        generation: Stream,
        *,
        echo: str = "",
        logprobs: LogprobWriter | None = None,
        **more: Any,
    ) -> None:
        super().__init__(response, generation, **more)
        self._echo, self._logprobs = echo, logprobs

    def _whole(self, chunks: list[Chunk]) -> Json:
        text = self._echo + "".join(chunk.text for chunk in chunks)
        entries = self._logprobs.all(chunks) if self._logprobs else None
        return self._dict(text, entries, self._finish_reason)

    def _chunks(self) -> Iterator[Json]:
        if self._echo:
            entries = self._logprobs.prompt() if self._logprobs else None
            yield self._dict(self._echo, entries) | {"from_draft": False}
        for chunk in self.generation:
            if _is_shown(chunk):
                entry = self._logprobs.add(chunk) if self._logprobs else None
                yield self._dict(chunk.text, entry) | {"from_draft": chunk.from_draft}
        yield self._dict("", reason=self._finish_reason) | {"from_draft": False} | self._extras()

    def _dict(self, text: str, entries: Json | None = None, reason: str | None = None) -> Json:
        return {
            "id": self.response.id,
            "object": "text_completion",
            "created": self.response.created,
            "model": self.response.model,
            "choices": [{"text": text, "index": 0, "logprobs": entries, "finish_reason": reason}],
        }


# --- chat -------------------------------------------------------------------------------------------------


class ChatCompletion(Completion):
    """The reply of a chat completion. Reasoning is told apart, as `reasoning_content`.

    Args:
        tool_names: turn calls of these into tool_calls, in whichever format they come. One comes whole, in the chunk
            of the token that completes it; a forced one as its arguments grow.
        forced_tool: the text is the arguments of a call of this function.
        is_call: the text is the JSON of a call, without tags.
    """

    def __init__(
        self,
        response: ResponseMetadata,
        generation: Stream,
        *,
        tool_names: Collection[str] = (),
        forced_tool: str = "",
        is_call: bool = False,
        logprobs: ChatLogprobWriter | None = None,
        **more: Any,
    ) -> None:
        super().__init__(response, generation, **more)
        self._logprobs = logprobs
        self._tool_names, self._forced_tool, self._is_call = tool_names, forced_tool, is_call

    def _whole(self, chunks: list[Chunk]) -> Json:
        response, text = self.response, "".join(chunk.text for chunk in chunks)
        message: Json = {"role": "assistant", "content": text}
        if reasoning := "".join(chunk.reasoning for chunk in chunks):
            message["reasoning_content"] = reasoning
        reason = self._finish_reason
        if self._forced_tool:
            call = _call_dict(response, 0, ToolCall(self._forced_tool, text))
            message |= {"content": None, "function_call": call["function"], "tool_calls": [call]}
            reason = _with_calls(reason)
        elif self._tool_names:
            parser = ToolCallParser(self._tool_names, opened=self._is_call)
            parts = parser.feed(text) + parser.flush()
            calls = [part for part in parts if isinstance(part, ToolCall)]
            if calls:
                message["content"] = "".join(part for part in parts if isinstance(part, str)) or None
                message["tool_calls"] = [_call_dict(response, i, call) for i, call in enumerate(calls)]
                reason = _with_calls(reason)
        entries = self._logprobs.all(chunks) if self._logprobs else None
        choice = {"index": 0, "message": message, "logprobs": entries, "finish_reason": reason}
        return _chat_dict(response, "chat.completion", choice)

    def _chunks(self) -> Iterator[Json]:
        deltas = _Deltas(self.response, self._tool_names, self._forced_tool, self._is_call)
        is_first = True
        for chunk in self.generation:
            if is_first:
                yield self._dict({"role": "assistant"})
                is_first = False
            if _is_shown(chunk):
                entry = self._logprobs.add(chunk) if self._logprobs else None
                yield self._dict(deltas.of(chunk), entry, drafted=chunk.from_draft)
        if rest := deltas.flush():
            yield self._dict(rest)
        yield self._dict({}, reason=deltas.finish_reason(self._finish_reason)) | self._extras()

    def _dict(self, delta: Json, entry: Json | None = None, reason: str | None = None, drafted: bool = False) -> Json:
        choice = {"index": 0, "delta": delta, "logprobs": entry, "finish_reason": reason}
        return _chat_dict(self.response, "chat.completion.chunk", choice) | {"from_draft": drafted}


class _Deltas:
    """A stream's text as deltas: content, tool calls, or the arguments of a forced call."""

    def __init__(
        self, response: ResponseMetadata, tool_names: Collection[str], forced_tool: str, is_call: bool
    ) -> None:
        self.response = response
        self._parser = ToolCallParser(tool_names, opened=is_call) if tool_names and not forced_tool else None
        self._forced = forced_tool
        self._n_calls = 0

    def of(self, chunk: Chunk) -> Json:
        """The delta of a chunk."""
        if self._forced:
            delta = self._arguments(chunk.text)
        else:
            delta = self._delta(self._parser.feed(chunk.text) if self._parser else [chunk.text])
        return delta | {"reasoning_content": chunk.reasoning} if chunk.reasoning else delta

    def flush(self) -> Json:
        """What the tool-call parser still holds, as a delta; {} if nothing."""
        parts = self._parser.flush() if self._parser else []
        return self._delta(parts) if parts else {}

    def _delta(self, parts: list[str | ToolCall]) -> Json:
        delta: Json = {"content": "".join(part for part in parts if isinstance(part, str))}
        calls = [part for part in parts if isinstance(part, ToolCall)]
        if calls:
            delta["tool_calls"] = [
                {"index": i, **_call_dict(self.response, i, call)} for i, call in enumerate(calls, self._n_calls)
            ]
            self._n_calls += len(calls)
        return delta

    def _arguments(self, text: str) -> Json:
        """Id and name come once: OpenAI's client adds up what later deltas repeat."""
        call = _call_dict(self.response, 0, ToolCall(self._forced, text))
        if self._n_calls:
            call = {"function": {"arguments": text}}
        self._n_calls = 1
        return {"tool_calls": [{"index": 0, **call}]}

    def finish_reason(self, reason: str) -> str:
        """OpenAI's word for why the reply ended."""
        return _with_calls(reason) if self._n_calls or self._forced else reason


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
