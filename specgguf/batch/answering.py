"""One engine answers: a request becomes its row, and a few threads keep several under way, so that they share passes.

Each request has options of its own, so it is a call of its own; which of them run together is the engine's business.
It knows no file format and no terminal, and does not count what it made.
"""

from __future__ import annotations

import queue as queues
import threading
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from specgguf.decode.stats import Stats
from specgguf.errors import Cancelled
from specgguf.serve import queue
from specgguf.serve.config import ServeConfig
from specgguf.serve.job import Stoppable
from specgguf.serve.protocols import openai, responses
from specgguf.serve.protocols.bodies import BadRequest
from specgguf.serve.protocols.reply import Json, Reply

from . import rows
from .requests import Request

TICK_S = 0.2


class Engine(openai.Engine, queue.Engine, Protocol):
    """What a batch uses of `api.SpeculativeLlama`."""

    @property
    def n_parallel(self) -> int: ...
    @property
    def stats(self) -> Stats: ...
    def close(self) -> None: ...


class Opened(NamedTuple):
    """What answers: an engine, and how bodies are read for it."""

    engine: Engine
    config: ServeConfig


class Answering:
    """Rows from one engine; any number of threads may ask at once.

    Args:
        engine: what answers.
        config: as of a server: defaults for what bodies leave open, and the model's name. A body may name any model;
            the answer says which one it was.
    """

    def __init__(self, engine: Engine, config: ServeConfig) -> None:
        self._engine = engine
        self._parsers: Mapping[str, Callable[[Json], Reply]] = {
            "/v1/chat/completions": partial(openai.chat_reply, engine, config),
            "/v1/completions": partial(openai.completion_reply, engine, config),
            "/v1/responses": partial(responses.responses_reply, engine, config),
        }
        self._lock = threading.Lock()
        self._running: dict[int, Stoppable] = {}  # by thread: the generation that is made for its request
        self.stopped = False

    def row(self, request: Request) -> Json | None:
        """The row of a request, whatever came of it; None where it was stopped."""
        try:
            reply = self._reply(*request.call())
            with self._engine.each_generation(self._hold):
                results: list[Any] = [work() for work in reply.works]
            return rows.answered(request, reply.shape(reply.whole(results)))
        except Exception as error:
            if isinstance(error, Cancelled) and self.stopped:
                return None
            return rows.failed(request, error)
        finally:
            with self._lock:
                self._running.pop(threading.get_ident(), None)

    def stop(self) -> None:
        """Cancel what runs, from any thread; what is asked from now on is cancelled at once."""
        with self._lock:
            self.stopped = True
            running = list(self._running.values())
        for generation in running:
            generation.cancel()

    def _reply(self, url: str, body: Json) -> Reply:
        if body.get("stream"):
            raise BadRequest("stream is not for a file of answers: leave it out", param="stream")
        if isinstance(body.get("model"), str):
            body = {name: value for name, value in body.items() if name != "model"}
        return self._parsers[url](body)

    def _hold(self, generation: Any) -> None:
        """A generation was asked for. In this order: a `stop` that comes now finds it, an earlier one is heard."""
        with self._lock:
            self._running[threading.get_ident()] = generation
            stopped = self.stopped
        if stopped:
            generation.cancel()


class ThisMachine:
    """The source of rows that is an engine of this process; see `runner.Source`.

    Args:
        engine, config: see `Answering`.
        n_parallel: how many requests are answered at a time.
    """

    where = ""

    def __init__(self, engine: Engine, config: ServeConfig, *, n_parallel: int = 1) -> None:
        self._engine, self._answering = engine, Answering(engine, config)
        self._n_parallel = n_parallel
        self._n_tokens_before = engine.stats.n_generated
        self._waiting: deque[Request] = deque()
        self._lock = threading.Lock()
        self.n_running = 0

    @property
    def n_tokens(self) -> int:
        """See `runner.Source`."""
        return self._engine.stats.n_generated - self._n_tokens_before

    def rows(self, requests: Sequence[Request]) -> Generator[Json | None, None, None]:
        """See `runner.Source`."""
        self._waiting.extend(requests)
        ended: queues.SimpleQueue[Json | BaseException] = queues.SimpleQueue()
        threads = [
            threading.Thread(target=self._work, args=(ended,), name=f"batch-{i}", daemon=True)
            for i in range(max(1, min(self._n_parallel, len(requests))))
        ]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads) or not ended.empty():
                try:
                    one = ended.get(timeout=TICK_S)
                except queues.Empty:
                    yield None
                    continue
                if isinstance(one, BaseException):
                    raise one
                yield one
        finally:
            self.stop()
            for thread in threads:
                thread.join()

    def stop(self) -> None:
        """See `runner.Source`."""
        self._answering.stop()

    def _work(self, ended: queues.SimpleQueue[Json | BaseException]) -> None:
        try:
            while (request := self._next()) is not None:
                row = self._answering.row(request)
                with self._lock:
                    self.n_running -= 1
                if row is not None:
                    ended.put(row)
        except BaseException as error:
            ended.put(error)

    def _next(self) -> Request | None:
        with self._lock:
            if self._answering.stopped or not self._waiting:
                return None
            self.n_running += 1
            return self._waiting.popleft()
