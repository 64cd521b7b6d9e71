"""The two generating calls of `SpeculativeLlama`: their keywords, for type checkers, and their awaited forms.

With the types `stream=True` is known to give an iterator of chunks and any other call a dict. What the keywords mean is
said, and their defaults stand, in `api`; a test compares the two. Nothing here knows tokens, text or models.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

if TYPE_CHECKING:
    from .text.completion import Completion

Json = dict[str, Any]
Chunks = Iterator[Json]
AsyncChunks = AsyncGenerator[Json, None]
Reply = Json | Chunks
Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]
Streamed = Literal[True]
Whole = Literal[False]
T = TypeVar("T")


class SharedOptions(TypedDict, total=False):
    """Keywords of both calls."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    typical_p: float
    stop: str | Sequence[str] | None
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    repeat_penalty: float
    tfs_z: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    model: str | None
    max_tokens: int | None
    logits_processor: object
    grammar: Any
    logit_bias: Mapping[int, float] | None
    min_tokens: int
    ignore_eos: bool
    draft: int | str | None
    draft_max: int | None
    timeout: float | None


class CompletionOptions(SharedOptions, total=False):
    """Keywords of `create_completion`, but for `stream`."""

    suffix: str | None
    logprobs: int | None
    echo: bool
    stopping_criteria: object


class ChatOptions(SharedOptions, total=False):
    """Keywords of `create_chat_completion`, but for `stream`."""

    functions: object
    function_call: object
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: Any
    response_format: Any
    logprobs: bool | None
    top_logprobs: int | None
    enable_thinking: bool | None
    reasoning_effort: str | None


# --- awaited --------------------------------------------------------------------------------------------------


class AsyncCalls:
    """The awaited forms. Each call runs in a thread of its own, so that those which wait for the engine keep nothing
    else waiting; a task that is cancelled stops its generation."""

    complete: Callable[..., Completion]
    chat: Callable[..., Completion]

    @overload
    async def acreate_completion(
        self, prompt: Prompt, *, stream: Streamed, **o: Unpack[CompletionOptions]
    ) -> AsyncChunks: ...
    @overload
    async def acreate_completion(
        self, prompt: Prompt, *, stream: Whole = False, **o: Unpack[CompletionOptions]
    ) -> Json: ...
    async def acreate_completion(
        self, prompt: Prompt, *, stream: bool = False, **options: Unpack[CompletionOptions]
    ) -> Json | AsyncChunks:
        """`create_completion`, awaited: its dict, or with `stream` an asynchronous iterator of its chunks. A task that
        is cancelled meanwhile stops the generation, and so does closing the iterator."""
        return await _reply(lambda: self.complete(prompt, **options), stream)

    @overload
    async def acreate_chat_completion(
        self, messages: Messages, *, stream: Streamed, **o: Unpack[ChatOptions]
    ) -> AsyncChunks: ...
    @overload
    async def acreate_chat_completion(
        self, messages: Messages, *, stream: Whole = False, **o: Unpack[ChatOptions]
    ) -> Json: ...
    async def acreate_chat_completion(
        self, messages: Messages, *, stream: bool = False, **options: Unpack[ChatOptions]
    ) -> Json | AsyncChunks:
        """`create_chat_completion`, awaited; see `acreate_completion`."""
        return await _reply(lambda: self.chat(messages, **options), stream)


async def _reply(begin: Callable[[], Completion], stream: bool) -> Json | AsyncChunks:
    reply = await _in_thread(begin)
    if stream:
        return _chunks(reply)
    return await _in_thread(reply.whole, reply.generation.cancel)


async def _chunks(reply: Completion) -> AsyncChunks:
    chunks: Any = reply.chunks()
    try:
        while (chunk := await _in_thread(lambda: next(chunks, None), reply.generation.cancel)) is not None:
            yield chunk
    finally:
        chunks.close()


async def _in_thread(call: Callable[[], T], cancel: Callable[[], object] = lambda: None) -> T:
    """What `call` returns or raises, made in a thread. Where the task is cancelled, `cancel` is called and the thread
    awaited: it has ended when this ends."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append((call(), None))
        except BaseException as error:
            outcome.append((None, error))
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody listens any more
            loop.call_soon_threadsafe(lambda: None if ended.done() else ended.set_result(None))

    threading.Thread(target=run, name="generation", daemon=True).start()
    try:
        await asyncio.shield(ended)
    except asyncio.CancelledError:
        cancel()
        await ended
        raise
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]
