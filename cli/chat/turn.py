"""One answer: ask the engine, stream it to a sink, and keep what came, however it ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specgguf.cli.interrupts import Interrupts
from specgguf.cli.open_pair import Engine
from specgguf.cli.terminal.reasoning import Span, Spans
from specgguf.cli.terminal.render import Sink

from specgguf.errors import Cancelled

Message = dict[str, Any]


@dataclass
class Answer:
    """What one generation gave.

    Attributes:
        spans: all of it, with provenance.
        finish_reason: "stop", "length", "tool_calls", or None when it was interrupted.
        usage, timings: as in the engine's last chunk.
        head: id, created and model of the completion.
    """

    spans: list[Span] = field(default_factory=list)
    finish_reason: str | None = None
    interrupted: bool = False
    usage: dict[str, Any] = field(default_factory=dict)
    timings: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The answer without its reasoning."""
        return "".join(span.text for span in self.spans if not span.reasoning)

    @property
    def reasoning(self) -> str:
        """The reasoning, without its tags."""
        return "".join(span.text for span in self.spans if span.reasoning).rstrip()

    def message(self) -> Message:
        """The answer as an OpenAI message."""
        message: Message = {"role": "assistant", "content": self.text}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        return message

    def completion(self) -> dict[str, Any]:
        """The answer as one chat.completion object; finish_reason is null when it was interrupted."""
        choice = {"index": 0, "message": self.message(), "finish_reason": self.finish_reason}
        return {
            **self.head,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self.usage,
            "timings": self.timings,
        }


def ask(
    engine: Engine,
    messages: Sequence[Message],
    sampling: Mapping[str, Any],
    sink: Sink,
    answer: Answer,
    interrupts: Interrupts,
    *,
    prompt_end: str = "",
    enable_thinking: bool | None = None,
) -> None:
    """Stream the answer to `messages` into `sink` and, whatever happens, into `answer`.

    `prompt_end` is the end of the rendered prompt: a template may have opened a reasoning block there.
    A first Ctrl-C ends the answer where it is (`interrupted`).

    Raises:
        KeyboardInterrupt: Ctrl-C a second time.
        SpecggufError: the engine refused or failed; the sink is ended.
    """
    spans = Spans(prompt_end)

    def show(settled: Iterable[Span]) -> None:
        for span in settled:
            answer.spans.append(span)
            sink.span(span)

    try:
        stream = engine.create_chat_completion(messages, stream=True, enable_thinking=enable_thinking, **sampling)
        with contextlib.closing(stream):
            for chunk in () if interrupts.seen else stream:
                show(spans.feed(_read(chunk, answer), bool(chunk.get("from_draft"))))
                if interrupts.seen:
                    break
        answer.interrupted = interrupts.seen and answer.finish_reason is None
    except (Cancelled, KeyboardInterrupt) as error:
        answer.interrupted = True
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        show(spans.flush())
        sink.end()
    if answer.interrupted:
        last = engine.last_stats
        answer.timings = last.timings()
        answer.usage = {
            "prompt_tokens": last.n_prompt,
            "completion_tokens": last.n_generated,
            "total_tokens": last.n_prompt + last.n_generated,
        }


def _read(chunk: Mapping[str, Any], answer: Answer) -> str:
    """Note what a chunk says about the answer; return its text."""
    if not answer.head:
        answer.head = {key: chunk[key] for key in ("id", "created", "model") if key in chunk}
    answer.usage = chunk.get("usage") or answer.usage
    answer.timings = chunk.get("timings") or answer.timings
    text = ""
    for choice in chunk.get("choices", ()):
        answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
        text += choice.get("delta", {}).get("content") or ""
    return text
