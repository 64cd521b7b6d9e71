"""A generation behind HTTP: queued, watched (a client that leaves, a time limit), answered whole or as events.

It knows jobs and their dicts, not which route or protocol they belong to: that is the `Reply`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from specgguf.decode.stats import Stats
from specgguf.errors import ContextFull, SpecggufError

from . import http
from .config import ServeConfig
from .doors import Quotas, RequestRecord
from .http import EventStream, Gone, Late
from .job import Item, Job
from .metrics import Metrics
from .protocols.bodies import BadRequest, read
from .protocols.reply import Parse, Reply
from .queue import FINISH_S, Closing, Worker, without_frames

Json = dict[str, Any]
logger = logging.getLogger("specgguf.serve")


class Engine(Protocol):
    """What the server uses of `api.SpeculativeLlama` while it answers."""

    @property
    def n_parallel(self) -> int: ...
    @property
    def stats(self) -> Stats: ...
    @property
    def decode_s(self) -> float: ...
    def n_ctx(self) -> int: ...
    def each_generation(self, told: Callable[[Any], None]) -> AbstractContextManager[None]: ...


class Answers:
    """Answers requests with one engine.

    Args:
        engine: what generates; nobody else may use it meanwhile.
        metrics: told what happened.
    """

    def __init__(self, engine: Engine, config: ServeConfig, metrics: Metrics) -> None:
        self.engine, self.config, self.metrics = engine, config, metrics
        self.worker = Worker(engine, n_max=config.queue_max, n_parallel=engine.n_parallel)
        self._quotas = Quotas(config.keys, time.monotonic)
        self._watching: set[asyncio.Task[None]] = set()
        self._decode_s, self._alive_at = 0.0, time.monotonic()

    async def answer(self, parse: Parse, request: Request) -> Response:
        """The response to a request whose body `parse` understands."""
        config, record = self.config, record_of(request)
        try:
            data = await self.entered(request)
            reply = await asyncio.to_thread(lambda: parse(read(data)))  # megabytes, or a grammar: not on the loop
            record.model = reply.model or config.name
            job = Job(reply.works, record.key or record.client)
            self.worker.submit(job)
        except ClientDisconnect:
            return Response(status_code=499)
        except SpecggufError as error:
            return self._failed(error, record)
        watch = asyncio.create_task(self._watch(job, request, record))
        self._watching.add(watch)
        watch.add_done_callback(self._watching.discard)
        try:
            return await (self._stream(job, reply, record) if reply.stream else self._whole(job, reply, record))
        except asyncio.CancelledError:
            self.worker.cancel(job)
            raise

    async def entered(self, request: Request) -> bytes:
        """The body of a request that its key may make still: counted here, before anything costs more than bytes.

        Raises:
            OverQuota, ClientDisconnect, SpecggufError: there is none.
        """
        config = self.config
        data = await http.body_of(request, max_bytes=config.body_max_bytes, timeout_s=config.body_timeout_s)
        self._quotas.enter(record_of(request).key)
        return data

    async def _whole(self, job: Job, reply: Reply, record: RequestRecord) -> Response:
        try:
            results: dict[int, Json] = {}
            while (item := await job.next()) is not None:  # answer once the engine is done with it
                results[item[0]] = item[1]
            result = reply.whole([results[i] for i in sorted(results)])
            self._count(job, record, result.get("usage"))
            return JSONResponse(reply.shape(result), headers=reply.headers)
        except Exception as error:
            return self._failed(error, record)
        finally:
            self._count(job, record)

    def _failed(self, error: BaseException, record: RequestRecord) -> Response:
        worded = self._worded(error)
        if http.status_of(worded) == 500:
            logger.error("request %s failed", record.id, exc_info=error)
        without_frames(error)
        record.error = http.error_body(worded)["error"]["message"]
        return http.error_response(worded)

    def _worded(self, error: BaseException) -> BaseException:
        """A full context in the words that clients look for, to shorten the conversation and ask again."""
        if not isinstance(error, ContextFull):
            return error
        words = f"This model's maximum context length is {self.engine.n_ctx()} tokens: {error}"
        return BadRequest(words, code="context_length_exceeded")

    def _count(self, job: Job, record: RequestRecord, usage: Json | None = None) -> None:
        """Tokens of an answer, once: as its `usage` tells them; without one, of an answer that nobody heard to the end,
        what was made of it."""
        if job.counted:
            return
        job.counted = True
        record.n_prompt, record.n_generated = job.n_tokens()
        if usage is not None:
            record.n_prompt, record.n_generated = usage["prompt_tokens"], usage["completion_tokens"]
        self._quotas.spend(record.key, record.n_prompt + record.n_generated)

    async def _stream(self, job: Job, reply: Reply, record: RequestRecord) -> Response:
        """Wait for the first chunk, so that an error still has its status; but not so long that the connection seems
        dead."""
        started = asyncio.get_running_loop().time()
        first = asyncio.ensure_future(job.next())
        await asyncio.wait({first}, timeout=self.config.keepalive_s)
        if first.done() and (error := first.exception()) is not None:
            return self._failed(error, record)
        return EventStream(
            self._events(job, first, reply, record, started),
            write_timeout_s=self.config.write_timeout_s,
            dropped=lambda: self._gone(job),
            headers=reply.headers,
        )

    async def _events(
        self, job: Job, first: asyncio.Future[Item | None], reply: Reply, record: RequestRecord, started: float
    ) -> AsyncGenerator[bytes | None, None]:
        coming, shaped, joined = first, reply.events(), reply.interleaved()
        try:
            while True:
                while not coming.done():
                    await asyncio.wait({coming}, timeout=self.config.keepalive_s)
                    if not coming.done():
                        yield None
                item = coming.result()
                if coming is first:
                    self.metrics.first_s.add(asyncio.get_running_loop().time() - started)
                if item is None:
                    for data in shaped.end():
                        yield data
                    return
                chunk = joined.of(*item)
                if "usage" in chunk:
                    self._count(job, record, chunk["usage"])
                for data in shaped.of(chunk):
                    yield data
                coming = asyncio.ensure_future(job.next())
        except Exception as error:
            self._failed(error, record)
            yield shaped.failed(http.error_body(self._worded(error)))
        finally:
            coming.cancel()
            if not job.ended.is_set():
                self.worker.cancel(job)
            self._count(job, record)

    async def _watch(self, job: Job, request: Request, record: RequestRecord) -> None:
        """Stop `job` when its client goes away or its time is up; count what became of it."""
        loop, config = asyncio.get_running_loop(), self.config
        started = loop.time()
        left = asyncio.ensure_future(http.gone(request.receive))
        try:
            await _first(job.began, left, config.queue_timeout_s)
            self.metrics.queue_s.add(loop.time() - started)
            if not job.began.is_set() and not left.done():
                self.metrics.late.add()
                self.worker.cancel(job, Late(f"waited {config.queue_timeout_s:g} s in the queue"))
            await _first(job.ended, left, config.generation_timeout_s)
            if not job.ended.is_set() and not left.done():
                self.metrics.late.add()
                self.worker.finish(job, Late(f"no answer within {config.generation_timeout_s:g} s"))
                await _first(job.ended, left, 2 * FINISH_S)
            if not job.ended.is_set():
                self._gone(job)
        finally:
            left.cancel()
        await job.ended.wait()
        self._count(job, record)  # of a stream that was never begun
        self.metrics.request_s.add(loop.time() - started)

    def _gone(self, job: Job) -> None:
        if not job.ended.is_set() and not job.cancelled:
            self.metrics.gone.add()
            self.worker.cancel(job, Gone("the client left"))

    # --- is it alive, and stopping ----------------------------------------------------------------------------

    def stuck_s(self) -> float:
        """For how long the engine has given no sign, or ignored that it was told to stop; 0 while all is well."""
        jobs, now = self.worker.running, time.monotonic()
        if (decode_s := self.engine.decode_s) != self._decode_s or not jobs:
            self._decode_s, self._alive_at = decode_s, now
        if not jobs:
            return 0.0
        deaf_s = max((now - job.stopped_at for job in jobs if job.stopped_at is not None), default=0.0)
        if deaf_s > 2 * FINISH_S:
            return deaf_s
        silent_s = now - max(self._alive_at, *(job.told_at for job in jobs))
        return silent_s if silent_s > self.config.stuck_s else 0.0

    async def drain(self) -> None:
        """Take nothing more, end what waits, let what runs go on for the time of grace, then finish it. An engine that
        does not listen is left after a few seconds."""
        self.worker.close()
        jobs = self.worker.running
        await _all_ended(jobs, self.config.grace_s)
        left = [job for job in jobs if not job.ended.is_set()]
        for job in left:
            self.worker.finish(job, Closing("the server is stopping"))
        await _all_ended(left, 2 * FINISH_S)


async def _all_ended(jobs: Sequence[Job], timeout: float) -> None:
    """Wait for them, at most so long."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*(job.ended.wait() for job in jobs)), timeout)


def record_of(request: Request) -> RequestRecord:
    """What the doors noted of this request."""
    record: RequestRecord = request.scope["specgguf.record"]
    return record


async def _first(event: asyncio.Event, other: asyncio.Future[Any], timeout: float) -> None:
    """Wait until `event` is set or `other` is done, at most so long."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting, other}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
