"""The line before the engine: turns, its end, and stopping a job at any moment of its life."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from support.serve_support import Scripted, until

from specgguf.errors import Cancelled
from specgguf.serve import queue
from specgguf.serve.job import Job
from specgguf.serve.queue import Closing, QueueFull, Worker


@contextlib.asynccontextmanager
async def worker(engine: Scripted, n_max: int = 100) -> AsyncIterator[Worker]:
    made = Worker(engine, n_max=n_max)
    yield made
    made.close()
    engine.open()
    assert await asyncio.to_thread(made.join, 10.0)


def job(engine: Scripted, client: str = "a", name: str = "", *, stream: bool = True) -> Job:
    return Job([lambda: engine.create_chat_completion(stream=stream, name=name)], client)


async def whole(job: Job) -> list[dict[str, Any]]:
    items = []
    while (item := await job.next()) is not None:
        items.append(item[1])
    return items


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def plain() -> None:
        asyncio.run(asyncio.wait_for(test(), 60))

    plain.__doc__ = test.__doc__
    return plain


@run
async def test_jobs_of_one_client_come_in_order() -> None:
    engine = Scripted()
    async with worker(engine) as line:
        jobs = [job(engine, name=str(i)) for i in range(4)]
        for each in jobs:
            line.submit(each)
        engine.open()
        answers = [await whole(each) for each in jobs]
    assert all(len(items) == 4 and items[-1]["usage"]["completion_tokens"] == 3 for items in answers)
    assert [call["name"] for call in engine.calls] == list("0123")


@run
async def test_clients_take_turns() -> None:
    """One that asks four times does not keep the others waiting for all four."""
    engine = Scripted(n_tokens=1)
    async with worker(engine) as line:
        asked = [("a", "a0"), ("a", "a1"), ("a", "a2"), ("a", "a3"), ("b", "b0"), ("b", "b1"), ("c", "c0")]
        first, *jobs = [job(engine, "x", "x"), *(job(engine, client, name) for client, name in asked)]
        line.submit(first)
        await first.began.wait()
        for each in jobs:
            line.submit(each)
        engine.open()
        for each in jobs:
            await whole(each)
    assert [call["name"] for call in engine.calls] == ["x", "a0", "b0", "c0", "a1", "b1", "a2", "a3"]


@run
async def test_the_line_has_an_end() -> None:
    engine = Scripted()
    async with worker(engine, n_max=2) as line:
        jobs = [job(engine) for _ in range(3)]
        line.submit(jobs[0])
        await jobs[0].began.wait()
        line.submit(jobs[1])
        line.submit(jobs[2])
        with pytest.raises(QueueFull, match="2 requests"):
            line.submit(job(engine))
        assert line.n_waiting == 2
        line.cancel(jobs[1])
        line.submit(job(engine))  # a place was left


@run
async def test_what_waits_is_cancelled_without_the_engine() -> None:
    engine = Scripted()
    async with worker(engine) as line:
        first, second = job(engine), job(engine)
        line.submit(first)
        line.submit(second)
        await first.began.wait()
        line.cancel(second, ValueError("why"))
        with pytest.raises(ValueError, match="why"):
            await second.next()
        assert engine.n_cancels == 0
        assert not second.ran
        engine.open()
        assert len(await whole(first)) == 4, "the running one was not disturbed"


@pytest.mark.parametrize("in_prefill", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_what_runs_is_cancelled_through_the_engine(in_prefill: bool, stream: bool) -> None:
    async def test() -> None:
        engine = Scripted(in_prefill=in_prefill)
        async with worker(engine) as line:
            running = job(engine, stream=stream)
            line.submit(running)
            await running.began.wait()
            line.cancel(running)
            with pytest.raises(Cancelled):
                await whole(running)
            assert engine.said == ["cancelled"]
            assert engine.n_cancels >= 1
            assert not line.running

    run(test)()


@run
async def test_a_cancel_before_there_is_a_generation_is_heard_by_it() -> None:
    """Said once: the job passes it on as soon as there is something to cancel."""
    engine, may_begin = Scripted(), threading.Event()

    def work() -> Any:
        assert may_begin.wait(10.0)
        return engine.create_chat_completion(stream=True)

    async with worker(engine) as line:
        late = Job([work], "a")
        line.submit(late)
        await late.began.wait()
        line.cancel(late)
        engine.n_cancels = 0
        may_begin.set()
        with pytest.raises(Cancelled):
            await whole(late)
        assert engine.said == ["cancelled"]
        assert engine.n_cancels == 1


@run
async def test_a_stream_is_cancelled_within_one_item() -> None:
    """Even if the engine heard nothing: the job's own flag is looked at between items."""
    engine = Scripted(deaf=True)
    async with worker(engine) as line:
        running = job(engine)
        line.submit(running)
        engine.step()
        assert await running.next() is not None
        line.cancel(running)
        engine.step()
        with pytest.raises(Cancelled):
            await whole(running)
        assert engine.said == ["closed"]


@run
async def test_a_late_cancel_never_hits_the_next_job() -> None:
    engine = Scripted(n_tokens=1)
    async with worker(engine) as line:
        for _ in range(20):
            first, second = job(engine), job(engine)
            line.submit(first)
            line.submit(second)
            engine.step()
            assert len(await whole(first)) == 2
            line.cancel(first)  # it has ended: nobody is to be cancelled
            engine.step()
            assert len(await whole(second)) == 2
    assert engine.n_cancels == 0


@run
async def test_finish_keeps_what_there_is() -> None:
    engine = Scripted(n_tokens=100)
    async with worker(engine) as line:
        running = job(engine)
        line.submit(running)
        engine.step(2)
        got = [await running.next(), await running.next()]
        line.finish(running)
        rest = await whole(running)
        assert all(got)
        assert rest[-1]["choices"][0]["finish_reason"] == "length"
        assert rest[-1]["usage"]["completion_tokens"] == 2


def test_finish_cancels_what_has_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "FINISH_S", 0.3)

    async def test() -> None:
        engine = Scripted(in_prefill=True)
        async with worker(engine) as line:
            running = job(engine)
            line.submit(running)
            await running.began.wait()
            line.finish(running, ValueError("late"))
            with pytest.raises(ValueError, match="late"):
                await running.next()

    run(test)()


@run
async def test_close_ends_what_waits_and_lets_the_running_one_go_on() -> None:
    engine = Scripted()
    async with worker(engine) as line:
        first, second = job(engine), job(engine)
        line.submit(first)
        await first.began.wait()
        line.submit(second)
        line.close()
        with pytest.raises(Closing):
            await second.next()
        with pytest.raises(Closing):
            line.submit(job(engine))
        engine.open()
        assert len(await whole(first)) == 4


@run
async def test_an_error_of_the_work_reaches_its_reader_and_nobody_else() -> None:
    engine = Scripted()

    def broken() -> dict[str, Any]:
        raise KeyError("broken")

    async with worker(engine) as line:
        bad, good = Job([broken], "a"), job(engine)
        line.submit(bad)
        line.submit(good)
        engine.open()
        with pytest.raises(KeyError, match="broken"):
            await bad.next()
        assert len(await whole(good)) == 4


def test_a_job_whose_loop_is_gone_does_not_stop_the_worker() -> None:
    engine = Scripted()
    made: list[Any] = []

    async def leave() -> None:
        line = Worker(engine, n_max=5)
        line.submit(job(engine))
        made.append(line)

    asyncio.run(leave())
    engine.open()
    until(lambda: not made[0].running and engine.said == ["whole"], "the job ran to its end")
    made[0].close()
    assert made[0].join(10.0)
