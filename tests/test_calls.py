"""The awaited calls: the same dicts as the plain ones, and a task that is cancelled stops its generation."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Pair

from specgguf import ConfigError, SpeculativeLlama
from specgguf.text.completion import Completion

ASK = [{"role": "user", "content": "a word list"}]
LONG: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True, "temperature": 0.0}


@pytest.fixture(scope="module")
def llm(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    with SpeculativeLlama(
        str(tiny_chat.target), str(tiny_chat.draft), n_ctx=8192, draft=3, n_threads=1, n_threads_batch=1
    ) as llm:
        yield llm


def without_chance(reply: Any) -> Any:
    return {key: value for key, value in reply.items() if key in ("choices", "usage", "object", "from_draft")}


def test_the_same_dicts(llm: SpeculativeLlama) -> None:
    async def ask() -> tuple[Any, Any, list[Any], list[Any]]:
        whole = await llm.acreate_chat_completion(ASK, max_tokens=8, temperature=0.0)
        text = await llm.acreate_completion("a word", max_tokens=8, temperature=0.0)
        chunks = [
            chunk async for chunk in await llm.acreate_completion("a word", max_tokens=8, temperature=0.0, stream=True)
        ]
        shown = [c async for c in await llm.acreate_chat_completion(ASK, max_tokens=8, temperature=0.0, stream=True)]
        return whole, text, chunks, shown

    whole, text, chunks, shown = asyncio.run(ask())
    assert without_chance(whole) == without_chance(llm.create_chat_completion(ASK, max_tokens=8, temperature=0.0))
    assert without_chance(text) == without_chance(llm.create_completion("a word", max_tokens=8, temperature=0.0))
    plain = llm.create_completion("a word", max_tokens=8, temperature=0.0, stream=True)
    assert [without_chance(c) for c in chunks] == [without_chance(c) for c in plain]
    assert (
        "".join(c["choices"][0]["delta"].get("content", "") for c in shown) == whole["choices"][0]["message"]["content"]
    )


def test_keywords_are_those_of_the_plain_calls(llm: SpeculativeLlama) -> None:
    with pytest.raises(ConfigError, match="unknown keyword 'max_token'"):
        asyncio.run(llm.acreate_completion("a", max_token=5))  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="min_p"):
        asyncio.run(llm.acreate_chat_completion(ASK, min_p=3.0))
    for name in ("completion", "chat_completion"):
        assert inspect.iscoroutinefunction(getattr(llm, f"acreate_{name}"))


def test_the_loop_goes_on_while_many_wait(llm: SpeculativeLlama) -> None:
    """More calls than any pool has threads, and something else that runs meanwhile."""

    async def ask() -> tuple[list[Any], int]:
        n_ticks = 0
        calls = asyncio.gather(*(llm.acreate_completion("a", max_tokens=4, temperature=0.0) for _ in range(40)))
        while not calls.done():
            await asyncio.to_thread(lambda: None)  # of the loop's own pool
            n_ticks += 1
        return await calls, n_ticks

    replies, n_ticks = asyncio.run(ask())
    assert len({reply["choices"][0]["text"] for reply in replies}) == 1
    assert n_ticks > 1


def test_streams_of_many_tasks_wait_for_each_other(llm: SpeculativeLlama) -> None:
    """Every chunk is read by a thread of its own, whose number a later one gets again: none is taken for another."""

    async def said() -> int:
        chunks = await llm.acreate_completion("a", max_tokens=12, temperature=0.0, ignore_eos=True, stream=True)
        return len([chunk async for chunk in chunks])

    async def ask() -> list[int]:
        return await asyncio.gather(*(said() for _ in range(12)))

    assert len(set(asyncio.run(ask()))) == 1


def test_a_cancelled_task_stops_its_generation(llm: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()
    whole = Completion.whole

    def watched(self: Completion) -> Any:
        begun.set()
        return whole(self)

    monkeypatch.setattr(Completion, "whole", watched)

    async def ask() -> None:
        task = asyncio.ensure_future(llm.acreate_completion("a", **LONG))
        await asyncio.to_thread(begun.wait, 60.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(ask())
    assert llm.last_stats.n_generated < LONG["max_tokens"]
    assert llm.create_completion("a", max_tokens=2)["choices"]


def test_a_stream_that_is_left_stops_its_generation(llm: SpeculativeLlama) -> None:
    async def ask() -> int:
        chunks = await llm.acreate_completion("a", stream=True, **LONG)
        n = 0
        async for _ in chunks:
            n += 1
            if n == 5:
                break
        await chunks.aclose()
        return n

    assert asyncio.run(ask()) == 5
    assert llm.last_stats.n_generated < 50
    assert llm.create_completion("a", max_tokens=2)["choices"]


def test_an_error_while_generating_is_raised_where_it_is_awaited(llm: SpeculativeLlama) -> None:
    async def ask() -> None:
        chunks = await llm.acreate_completion("a", stream=True, grammar='root ::= "a"', ignore_eos=True)
        async for _ in chunks:
            pass

    with pytest.raises(ConfigError):
        asyncio.run(ask())
