"""One engine, a thread for each job that it runs at once, and a fair queue of jobs before it.

Clients take turns, each with its own jobs in order; the queue has an end. Jobs are made and read on the event
loop and run on a thread; a job can be stopped at any moment of its life. This module knows no HTTP and no
JSON: a job is a callable that returns a dict or an iterator of dicts.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing
from typing import Any, Protocol

from specgguf.errors import Cancelled, SpecggufError

Json = dict[str, Any]
Work = Callable[[], Json | Generator[Json, None, None]]

FINISH_S = 3.0  # a job asked to finish is cancelled after so long: it still reads its prompt


class QueueFull(SpecggufError):
    """No more jobs are taken now."""


class Closing(SpecggufError):
    """No more jobs are taken at all."""


class Stoppable(Protocol):
    """What a job needs of a `Generation`."""

    def cancel(self) -> None: ...
    def stop(self) -> None: ...


class Engine(Protocol):
    """What the worker needs of `api.SpeculativeLlama`."""

    def each_generation(self, told: Callable[[Any], None]) -> AbstractContextManager[None]: ...


class Job:
    """One request on its way through the queue and the engine; belongs to the event loop that made it.

    Attributes:
        began, ended: set on the way, `ended` always; `began` too, even if it never ran.
        ran: whether the engine took it up.
    """

    def __init__(self, work: Work, client: str) -> None:
        self.work = work
        self.client = client
        self.ran = False
        self.began, self.ended = asyncio.Event(), asyncio.Event()
        self.cancelled = self.finishing = False
        self.generation: Stoppable | None = None  # the one that is made for this job now
        self.told_at = 0.0  # when it began or gave its latest dict, on time.monotonic's clock
        self.stopped_at: float | None = None  # when it was first asked to stop
        self._reason: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Json | None] = asyncio.Queue()
        self._error: BaseException | None = None

    async def next(self) -> Json | None:
        """The next dict, None after the last.

        Raises:
            Whatever ended the job.
        """
        item = await self._items.get()
        if item is None:
            self._items.put_nowait(None)
            if self._error is not None:
                raise self._error
        return item

    def stop(self, reason: Exception | None, *, finish: bool) -> None:
        """Stop the generation that is made for it, or as soon as there is one; `reason` is raised by `next` instead of
        Cancelled."""
        self._reason = self._reason or reason
        self.stopped_at = self.stopped_at or time.monotonic()
        self.finishing, self.cancelled = True, self.cancelled or not finish
        self._pass_on()

    def _pass_on(self) -> None:
        if self.generation is not None and self.finishing:
            (self.generation.cancel if self.cancelled else self.generation.stop)()

    # --- called by the worker -----------------------------------------------------------------------------

    def hold(self, generation: Stoppable) -> None:
        """A generation was asked for. In this order: a `stop` that comes now finds it, an earlier one is heard."""
        self.generation = generation
        self._pass_on()

    def tell(self, item: Json) -> None:
        self.told_at = time.monotonic()
        self._on_loop(lambda: self._items.put_nowait(item))

    def begin(self) -> None:
        self.ran = True
        self.told_at = time.monotonic()
        self._on_loop(self.began.set)

    def end(self, error: BaseException | None = None) -> None:
        if isinstance(error, Cancelled) and self._reason is not None:
            error = self._reason
        self._on_loop(lambda: self._end(error))

    def _end(self, error: BaseException | None) -> None:
        self._error = error
        self._items.put_nowait(None)
        self.began.set()
        self.ended.set()

    def _on_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(call)


class Worker:
    """The threads that run jobs: as many at once as the engine does.

    Args:
        engine: tells which generations a job asks for.
        n_max: the most jobs that may wait.
        n_parallel: how many run at once.
    """

    def __init__(self, engine: Engine, *, n_max: int, n_parallel: int = 1) -> None:
        self._engine = engine
        self._n_max = n_max
        self._queues: dict[str, deque[Job]] = {}  # by client; the first one is served next
        self._running: list[Job] = []
        self._closed = False
        self._changed = threading.Condition()
        self._threads = [threading.Thread(target=self._run, name=f"engine-{i}", daemon=True) for i in range(n_parallel)]
        for thread in self._threads:
            thread.start()

    @property
    def n_waiting(self) -> int:
        """How many jobs wait."""
        with self._changed:
            return self._n_waiting()

    @property
    def running(self) -> tuple[Job, ...]:
        """The jobs in the engine, the oldest first."""
        with self._changed:
            return tuple(self._running)

    def _n_waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    def submit(self, job: Job) -> None:
        """Put `job` into its client's queue.

        Raises:
            QueueFull, Closing: it was not taken.
        """
        with self._changed:
            if self._closed:
                raise Closing("the server is stopping")
            if self._n_waiting() >= self._n_max:
                raise QueueFull(f"{self._n_max} requests are waiting already")
            self._queues.setdefault(job.client, deque()).append(job)
            self._changed.notify()

    def cancel(self, job: Job, reason: Exception | None = None) -> None:
        """Stop `job` wherever it is; `reason` is what its reader gets."""
        self._stop(job, reason, finish=False)

    def finish(self, job: Job, reason: Exception | None = None) -> None:
        """Let `job` end with what it has; one that has nothing within a few seconds is cancelled."""
        self._stop(job, reason, finish=True)

    def _stop(self, job: Job, reason: Exception | None, *, finish: bool) -> None:
        with self._changed:
            waiting = self._queues.get(job.client)
            if waiting is not None and job in waiting:
                waiting.remove(job)
                if not waiting:
                    del self._queues[job.client]
                job.stop(reason, finish=finish)
                job.end(Cancelled("stopped while waiting"))
                return
            job.stop(reason, finish=finish)
        if finish and not job.ended.is_set():
            asyncio.get_running_loop().call_later(FINISH_S, self._give_up, job)

    def _give_up(self, job: Job) -> None:
        if not job.ended.is_set():
            self.cancel(job)

    def close(self) -> None:
        """Take no more jobs and end those that wait; those that run go on."""
        with self._changed:
            self._closed = True
            waiting = [job for jobs in self._queues.values() for job in jobs]
            self._queues.clear()
            self._changed.notify_all()
        for job in waiting:
            job.end(Closing("the server is stopping"))

    def join(self, timeout: float) -> bool:
        """After `close`: wait so many seconds for the threads; whether they have ended."""
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    # --- on a thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (job := self._take()) is not None:
            error = self._do(job)
            with self._changed:
                self._running.remove(job)
            job.end(error)
            del job  # nothing of an answer is kept while the queue is empty

    def _take(self) -> Job | None:
        """The next job: the first of the first client, who then goes to the end."""
        with self._changed:
            while not self._queues and not self._closed:
                self._changed.wait()
            if not self._queues:
                return None
            client, jobs = next(iter(self._queues.items()))
            del self._queues[client]
            job = jobs.popleft()
            self._running.append(job)
            if jobs:
                self._queues[client] = jobs
            job.begin()
            return job

    def _do(self, job: Job) -> BaseException | None:
        try:
            with self._engine.each_generation(job.hold):
                result = job.work()
                if isinstance(result, dict):
                    job.tell(result)
                    return None
                with closing(result):
                    for item in result:
                        if job.cancelled:
                            raise Cancelled("stopped")
                        job.tell(item)
        except BaseException as error:
            return error
        return None
