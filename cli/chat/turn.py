"""One answer: ask the engine, stream it to a sink, and keep what came, however it ends."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specgguf.cli.interrupts import Interrupts
from specgguf.cli.terminal.render import Sink, Span

from specgguf.errors import Cancelled

if TYPE_CHECKING:
    from specgguf import SpeculativeLlama
    from specgguf.decode.records import Chunk
    from specgguf.decode.stats import Stats
    from specgguf.text.completion import Completion
    from specgguf.text.template import RenderedPrompt

Message = dict[str, Any]


@dataclass
class Answer:
    """What one generation gave.

    Attributes:
        spans: all of it, with provenance.
        finish_reason: "stop", "length", "tool_calls", or None when it was interrupted.
        reply: what the engine makes it from, once it was asked.
        begun: what it goes on from, where it was cut before: that message of the assistant's.
        is_known: the question got the very same answer before.
        first_s, total_s: seconds from the question to its first word, and to its end.
    """

    spans: list[Span] = field(default_factory=list)
    finish_reason: str | None = None
    interrupted: bool = False
    reply: Completion | None = None
    begun: Message | None = None
    is_known: bool = False
    first_s: float = 0.0
    total_s: float = 0.0

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens, as in OpenAI's `usage`; so far, while it is written."""
        return self.reply.usage() if self.reply is not None else {}

    @property
    def stats(self) -> Stats:
        """What was drafted, and how long it took. The engine was asked."""
        assert self.reply is not None
        return self.reply.generation.stats

    @property
    def timings(self) -> dict[str, Any]:
        """llama.cpp's timings."""
        return self.stats.timings() if self.reply is not None else {}

    @property
    def text(self) -> str:
        """The answer without its reasoning."""
        return "".join(span.text for span in self.spans if not span.reasoning)

    @property
    def reasoning(self) -> str:
        """The reasoning, without its tags."""
        return "".join(span.text for span in self.spans if span.reasoning).rstrip()

    def message(self) -> Message:
        """The answer as an OpenAI message, with what it went on from."""
        begun = self.begun or {}
        message: Message = {"role": "assistant", "content": begun.get("content", "") + self.text}
        if reasoning := begun.get("reasoning_content", "") + self.reasoning:
            message["reasoning_content"] = reasoning
        return message

    def completion(self) -> dict[str, Any]:
        """The answer as one chat.completion object; finish_reason is null when it was interrupted."""
        choice = {"index": 0, "message": self.message(), "finish_reason": self.finish_reason}
        response = self.reply.response if self.reply is not None else None
        named = (
            {}
            if response is None
            else {"id": f"chat{response.id}", "created": response.created, "model": response.model}
        )
        return {
            **named,
            "object": "chat.completion",
            "choices": [choice],
            "usage": self.usage,
            "timings": self.timings,
        }


# Shows an answer of an engine while it is made: a context with the sink for it.
Show = Callable[[Answer, "SpeculativeLlama"], AbstractContextManager[Sink]]


def ask(
    engine: SpeculativeLlama,
    prompt: RenderedPrompt,
    sampling: Mapping[str, Any],
    sink: Sink,
    answer: Answer,
    interrupts: Interrupts,
) -> None:
    """Stream the answer to a rendered conversation into `sink` and, whatever happens, into `answer`.

    A first Ctrl-C ends the answer where it is (`interrupted`).

    Raises:
        KeyboardInterrupt: Ctrl-C a second time.
        SpecggufError: the engine refused or failed; the sink is ended.
    """
    from specgguf.text.completion import FINISH_REASONS

    started = time.monotonic()
    try:
        reply = engine.chat(prompt, **sampling)
        generation = reply.generation
        interrupts.cancel_by(generation.cancel)
        answer.reply = reply
        with contextlib.closing(generation):
            for chunk in generation:
                for span in spans_of(chunk):
                    answer.first_s = answer.first_s or time.monotonic() - started
                    answer.spans.append(span)
                    sink.span(span)
                answer.finish_reason = FINISH_REASONS.get(chunk.finish_reason or "")
        answer.interrupted = interrupts.seen and answer.finish_reason is None
    except (Cancelled, KeyboardInterrupt) as error:
        answer.interrupted = True
        if isinstance(error, KeyboardInterrupt):
            raise
    finally:
        answer.total_s = time.monotonic() - started
        sink.end()


def spans_of(chunk: Chunk) -> Iterator[Span]:
    """What a chunk shows, of one kind and one origin each."""
    if chunk.reasoning:
        yield Span(chunk.reasoning, chunk.from_draft, reasoning=True)
    if chunk.text:
        yield Span(chunk.text, chunk.from_draft)
