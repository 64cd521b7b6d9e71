"""One engine, a thread for each answer that it writes at once, and a fair queue of jobs before it.

Clients take turns, each with its own jobs in order; the queue has an end. A job is one request: an answer, or several,
written beside each other where threads are free. No HTTP and no JSON here: an answer is a callable that returns dicts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import Any, Protocol

from specgguf.errors import Cancelled, SpecggufError

from .job import Job, Work

FINISH_S = 3.0  # a job asked to finish is cancelled after so long: it still reads its prompt


class QueueFull(SpecggufError):
    """No more jobs are taken now."""


class Closing(SpecggufError):
    """No more jobs are taken at all."""


class Engine(Protocol):
    """What the worker needs of `api.SpeculativeLlama`."""

    def each_generation(self, told: Callable[[Any], None]) -> AbstractContextManager[None]: ...


class Worker:
    """The threads that run jobs.

    Args:
        engine: tells which generations an answer asks for.
        n_max: the most jobs that may wait, for any of their answers. n_parallel: how many answers run at once.
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
        """How many jobs wait, for any of their answers."""
        with self._changed:
            return self._n_waiting()

    @property
    def running(self) -> tuple[Job, ...]:
        """The jobs that have begun and not ended, the oldest first."""
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
            if job.ran and finish:
                job.stop(reason, finish=True)  # its answers that have not begun will be short
            else:
                self._drop(job, reason)
        if finish and not job.ended.is_set():
            asyncio.get_running_loop().call_later(FINISH_S, self._give_up, job)

    def _drop(self, job: Job, reason: Exception | None) -> None:
        """Cancel what runs of `job`, and begin no more of it."""
        job.stop(reason, finish=False)
        waiting = self._queues.get(job.client, ())
        if job in waiting:
            self._queues[job.client].remove(job)
            job.left.clear()
            job.fail(Cancelled("stopped while waiting"))
            if not waiting:
                del self._queues[job.client]
        self._end_if_done(job)

    def _end_if_done(self, job: Job) -> None:
        if job.n_running or job.left:
            return
        if job in self._running:
            self._running.remove(job)
        job.end()

    def _give_up(self, job: Job) -> None:
        if not job.ended.is_set():
            self.cancel(job)

    def close(self) -> None:
        """Take no more jobs and end those that have not begun; those that run go on."""
        with self._changed:
            self._closed = True
            for job in [job for jobs in self._queues.values() for job in jobs if not job.ran]:
                self._drop(job, Closing("the server is stopping"))
            self._changed.notify_all()

    def join(self, timeout: float) -> bool:
        """After `close`: wait so many seconds for the threads; whether they have ended."""
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    # --- on a thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            job, i, work = taken
            error = self._do(job, i, work)
            with self._changed:
                job.leave(i, error)
                if error is not None and not job.cancelled:
                    self._drop(job, None)  # its other answers are of no use
                self._end_if_done(job)
            del taken, job, work, error  # nothing of an answer is kept while the queue is empty

    def _take(self) -> tuple[Job, int, Work] | None:
        """The next answer: of the first job of the first client, who then goes to the end."""
        with self._changed:
            while not self._queues and not self._closed:
                self._changed.wait()
            if not self._queues:
                return None
            client, jobs = next(iter(self._queues.items()))
            del self._queues[client]
            job = jobs[0]
            i, work = job.begin()
            if job not in self._running:
                self._running.append(job)
            if not job.left:
                jobs.popleft()
            if jobs:
                self._queues[client] = jobs
                self._changed.notify()  # another thread may be free for what is left
            return job, i, work

    def _do(self, job: Job, i: int, work: Work) -> BaseException | None:
        try:
            with self._engine.each_generation(partial(job.hold, i)):
                result = work()
                if isinstance(result, dict):
                    job.tell(i, result)
                    return None
                with closing(result):
                    for item in result:
                        if job.cancelled:
                            raise Cancelled("stopped")
                        job.tell(i, item)
        except SpecggufError as error:
            return without_frames(error)
        except BaseException as error:
            return error
        return None


def without_frames(error: BaseException) -> BaseException:
    """`error` without its traceback. A job holds its error, whose frames hold the job and all that it was asked:
    megabytes, which only the garbage collector would find, seldom as it comes."""
    return error.with_traceback(None)
