"""Requests in, rows out: a few threads that each answer one request at a time, so that the engine shares its passes.

Each request has options of its own, so it is a call of its own; which of them run together is the engine's business.
It knows no file format and no terminal, and draws no conclusions from what it counts.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from specgguf.decode.stats import Stats
from specgguf.errors import Cancelled, SpecggufError
from specgguf.serve import queue
from specgguf.serve.config import ServeConfig
from specgguf.serve.protocols import openai, responses
from specgguf.serve.protocols.bodies import BadRequest
from specgguf.serve.protocols.reply import Json, Reply

from . import rows
from .output import OutputFile
from .requests import Request

TICK_S = 0.2
FAULTS_MAX = 3  # requests in a row that failed by no fault of theirs: the next ones would fail, too


class Engine(openai.Engine, queue.Engine, Protocol):
    """What a batch uses of `api.SpeculativeLlama`."""

    @property
    def stats(self) -> Stats: ...


@dataclass(frozen=True)
class Progress:
    """How far a batch is.

    Attributes:
        n_requests: of the input. n_done: those that have a row; n_before of them had it before this run.
        n_failed: rows that are no answer. n_running: requests that are being answered.
        n_tokens: generated in this run.
    """

    n_requests: int
    n_done: int = 0
    n_before: int = 0
    n_failed: int = 0
    n_running: int = 0
    n_tokens: int = 0


class Batch:
    """The requests of an input that have no row yet, to be answered.

    Args:
        engine: what answers.
        config: as of a server: defaults for what bodies leave open, and the model's name. A body may name any model;
            the answer says which one it was.
        requests: all of the input. output: where rows go, and what is done already.
        n_parallel: how many are answered at a time.
    """

    def __init__(
        self,
        engine: Engine,
        config: ServeConfig,
        requests: Sequence[Request],
        output: OutputFile,
        *,
        n_parallel: int = 1,
    ) -> None:
        self._engine, self._output = engine, output
        self._parsers: Mapping[str, Callable[[Json], Reply]] = {
            "/v1/chat/completions": partial(openai.chat_reply, engine, config),
            "/v1/completions": partial(openai.completion_reply, engine, config),
            "/v1/responses": partial(responses.responses_reply, engine, config),
        }
        self._waiting = deque(request for request in requests if request.id not in output.done)
        self._progress = Progress(len(requests), n_before=len(output.done))
        self._n_threads = max(1, min(n_parallel, len(self._waiting)))
        self._n_tokens_before = engine.stats.n_generated
        self._changed = threading.Condition()
        self._running: dict[int, queue.Stoppable] = {}  # by thread: the generation that is made for its request
        self._n_running = self._n_faults = 0
        self._stopped = False
        self._error: BaseException | None = None

    @property
    def progress(self) -> Progress:
        """How far it is now."""
        return replace(
            self._progress,
            n_done=len(self._output.done),
            n_failed=len(self._output.failed),
            n_running=self._n_running,
            n_tokens=self._engine.stats.n_generated - self._n_tokens_before,
        )

    def run(self, told: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Answer them all, or until `stop`; `told` hears now and then how far it is.

        Raises:
            SpecggufError: the disk takes no more rows, or the engine fails whatever it is asked.
        """
        threads = [threading.Thread(target=self._work, name=f"batch-{i}", daemon=True) for i in range(self._n_threads)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            told(self.progress)
            with self._changed:
                self._changed.wait(TICK_S)
        if self._error is not None:
            raise self._error
        return self.progress

    def stop(self) -> None:
        """Begin no more requests and cancel those that run, from any thread: they have no row, and the next run answers
        them."""
        with self._changed:
            self._stopped = True
            running = list(self._running.values())
        for generation in running:
            generation.cancel()

    def _work(self) -> None:
        try:
            while (request := self._next()) is not None:
                row = self._answer(request)
                if row is not None:
                    self._output.append(row)
                    self._count_faults(row)
                self._ended()
        except BaseException as error:
            with self._changed:
                self._error = self._error or error
            self.stop()
        finally:
            with self._changed:
                self._changed.notify_all()

    def _next(self) -> Request | None:
        with self._changed:
            if self._stopped or not self._waiting:
                return None
            self._n_running += 1
            return self._waiting.popleft()

    def _ended(self) -> None:
        with self._changed:
            self._running.pop(threading.get_ident(), None)
            self._n_running -= 1
            self._changed.notify_all()

    def _answer(self, request: Request) -> Json | None:
        """The row of a request; None where it was stopped."""
        try:
            reply = self._reply(*request.call())
            with self._engine.each_generation(self._hold):
                results: list[Any] = [work() for work in reply.works]
            return rows.answered(request, reply.shape(reply.whole(results)))
        except Exception as error:
            if isinstance(error, Cancelled) and self._stopped:
                return None
            return rows.failed(request, error)

    def _reply(self, url: str, body: Json) -> Reply:
        if body.get("stream"):
            raise BadRequest("stream is not for a file of answers: leave it out", param="stream")
        if isinstance(body.get("model"), str):
            body = {name: value for name, value in body.items() if name != "model"}
        return self._parsers[url](body)

    def _hold(self, generation: Any) -> None:
        """A generation was asked for. In this order: a `stop` that comes now finds it, an earlier one is heard."""
        with self._changed:
            self._running[threading.get_ident()] = generation
            stopped = self._stopped
        if stopped:
            generation.cancel()

    def _count_faults(self, row: Json) -> None:
        with self._changed:
            self._n_faults = self._n_faults + 1 if rows.status_of(row) >= rows.FAULT else 0
            if self._n_faults >= FAULTS_MAX:
                raise SpecggufError(
                    f"{self._n_faults} requests in a row failed: {rows.message_of(row)}",
                    hint="--retry-failed asks them again; specgguf doctor checks the pair",
                )
