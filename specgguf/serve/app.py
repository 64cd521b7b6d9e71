"""OpenAI's protocol over HTTP for one engine, as an ASGI application.

Routes, and what happens to a request on its way: checked, put into the line, watched (a client that goes away, a
time limit), answered. Fields are checked in `serve_requests`, the line is `serve_queue`'s, HTTP's details are
`serve_http`'s, and dicts and chunks come ready from the engine. It opens no socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Scope

from specgguf.decode.stats import Stats
from specgguf.errors import SpecggufError

from . import bodies, http, metrics
from .bodies import BadRequest, Call
from .http import EventStream, Guard, Late
from .queue import FINISH_S, Closing, Job, Worker

Json = dict[str, Any]
logger = logging.getLogger("specgguf.serve")


class Engine(Protocol):
    """What the server uses of `api.SpeculativeLlama`."""

    @property
    def stats(self) -> Stats: ...
    @property
    def create_completion(self) -> Callable[..., Any]: ...
    @property
    def create_chat_completion(self) -> Callable[..., Any]: ...
    def cancel(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(frozen=True)
class ServeConfig:
    """How a server behaves.

    Attributes:
        names: what clients may call the model; the first is its name.
        defaults: sampling keywords for what a request leaves open.
        enable_thinking: the same for the chat template's switch.
        api_keys: any of these must be given; none: no key is asked for.
        cors: origins whose pages may call this server from a browser.
        hosts: names that requests may call this server by; None takes any.
        queue_max: requests that may wait; one more is answered with 429.
        queue_timeout_s, generation_timeout_s: a request waits, then runs, at most so long. One that runs longer ends
            with what it has, finish_reason "length".
        body_max_bytes, body_timeout_s: of a request's body.
        write_timeout_s: a client that reads nothing for so long is dropped.
        keepalive_s: a stream that has nothing to say sends a comment this often.
        grace_s: when stopping, the running request may go on for so long.
    """

    names: tuple[str, ...] = ("specgguf",)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None
    api_keys: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = http.LOOPBACK
    queue_max: int = 64
    queue_timeout_s: float = 300.0
    generation_timeout_s: float = 600.0
    body_max_bytes: int = 4 * 2**20
    body_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    keepalive_s: float = 15.0
    grace_s: float = 10.0


class Service:
    """One engine behind HTTP; `app` is the ASGI application.

    Args:
        engine: what answers; nobody else may use it meanwhile.
        config: see `ServeConfig`.
        log: told one line per answered request.
    """

    def __init__(self, engine: Engine, config: ServeConfig, *, log: Callable[[str], None] = lambda line: None) -> None:
        self.engine, self.config = engine, config
        self.worker = Worker(engine, n_max=config.queue_max)
        self.metrics = metrics.Metrics()
        self._log = log
        self._created = int(time.time())
        self._watching: set[asyncio.Task[None]] = set()
        self.app = self._make_app()

    def _make_app(self) -> Starlette:
        config = self.config
        thinking = {} if config.enable_thinking is None else {"enable_thinking": config.enable_thinking}
        parse_chat = partial(bodies.chat_call, models=config.names, defaults={**config.defaults, **thinking})
        parse = partial(bodies.completion_call, models=config.names, defaults=config.defaults)
        chat = partial(self._answer, parse_chat, self.engine.create_chat_completion)
        completion = partial(self._answer, parse, self.engine.create_completion)
        guard = Middleware(Guard, keys=config.api_keys, hosts=config.hosts, observe=self._observe)
        cors = Middleware(CORSMiddleware, allow_origins=config.cors, allow_methods=["GET", "POST"], allow_headers=["*"])
        return Starlette(
            routes=[
                Route("/v1/chat/completions", _endpoint(chat), methods=["POST"]),
                Route("/v1/completions", _endpoint(completion), methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/v1/models/{name:path}", self._models),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            middleware=[cors, guard] if config.cors else [guard],
            exception_handlers={HTTPException: _http_error, Exception: _unexpected},
        )

    # --- the quiet routes -----------------------------------------------------------------------------------

    async def _models(self, request: Request) -> Response:
        models = [
            {"id": name, "object": "model", "created": self._created, "owned_by": "specgguf"}
            for name in self.config.names
        ]
        wanted = request.path_params.get("name")
        if wanted is None:
            return JSONResponse({"object": "list", "data": models})
        for model in models:
            if model["id"] == wanted:
                return JSONResponse(model)
        return http.error_response(
            BadRequest(f"there is no model '{wanted}' here", param="model", code="model_not_found", status=404)
        )

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "requests_waiting": self.worker.n_waiting})

    async def _metrics(self, request: Request) -> Response:
        text = self.metrics.text(
            self.engine.stats, n_waiting=self.worker.n_waiting, n_running=int(self.worker.running is not None)
        )
        return Response(text, headers={"content-type": metrics.CONTENT_TYPE})

    def _observe(self, scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"] if scope["path"] in KNOWN_PATHS else "other"
        self.metrics.requests.add(endpoint=path, status=status or 499)
        if path.startswith("/v1/c"):
            self._log(f"{scope['method']} {path} {status or 'client gone'} {seconds:.2f} s")

    # --- a generation -----------------------------------------------------------------------------------------

    async def _answer(self, parse: Callable[[Json], Call], create: Callable[..., Any], request: Request) -> Response:
        config = self.config
        try:
            data = await http.body_of(request, max_bytes=config.body_max_bytes, timeout_s=config.body_timeout_s)
            call = parse(bodies.read(data))
            call.keywords.setdefault("model", config.names[0])
            client = http.client_of(request.scope, keyed=bool(config.api_keys))
            job = Job(partial(create, **call.keywords), client)
            self.worker.submit(job)
        except ClientDisconnect:
            return Response(status_code=499)
        except SpecggufError as error:
            return http.error_response(error)
        watch = asyncio.create_task(self._watch(job, request))
        self._watching.add(watch)
        watch.add_done_callback(self._watching.discard)
        try:
            return await (self._stream(job, call) if call.stream else self._whole(job))
        except asyncio.CancelledError:
            self.worker.cancel(job)
            raise

    async def _whole(self, job: Job) -> Response:
        try:
            result = await job.next()
            await job.next()  # answer once the engine is done with it
            return JSONResponse(result)
        except Exception as error:
            return self._failed(error)

    def _failed(self, error: BaseException) -> Response:
        if http.status_of(error) == 500:
            logger.error("a request failed", exc_info=error)
        return http.error_response(error)

    async def _stream(self, job: Job, call: Call) -> Response:
        """Wait for the first chunk, so that an error still has its status; but not so long that the line seems
        dead."""
        started = asyncio.get_running_loop().time()
        first = asyncio.ensure_future(job.next())
        await asyncio.wait({first}, timeout=self.config.keepalive_s)
        if first.done() and (error := first.exception()) is not None:
            return self._failed(error)
        return EventStream(
            self._events(job, first, call, started),
            write_timeout_s=self.config.write_timeout_s,
            dropped=lambda: self._gone(job),
        )

    async def _events(
        self, job: Job, first: asyncio.Future[Json | None], call: Call, started: float
    ) -> AsyncGenerator[bytes | None, None]:
        coming = first
        try:
            while True:
                while not coming.done():
                    await asyncio.wait({coming}, timeout=self.config.keepalive_s)
                    if not coming.done():
                        yield None
                chunk = coming.result()
                if coming is first:
                    self.metrics.first_s.add(asyncio.get_running_loop().time() - started)
                if chunk is None:
                    yield http.DONE
                    return
                for item in _split_usage(chunk, call.include_usage):
                    yield http.event(item)
                coming = asyncio.ensure_future(job.next())
        except Exception as error:
            self._failed(error)
            yield http.event(http.error_body(error))
        finally:
            coming.cancel()
            if not job.ended.is_set():
                self.worker.cancel(job)

    async def _watch(self, job: Job, request: Request) -> None:
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
        self.metrics.request_s.add(loop.time() - started)

    def _gone(self, job: Job) -> None:
        if not job.ended.is_set() and not job.cancelled:
            self.metrics.gone.add()
            self.worker.cancel(job)

    # --- stopping -------------------------------------------------------------------------------------------

    async def drain(self) -> None:
        """Take nothing more, end what waits, let what runs go on for the time of grace, then finish it."""
        self.worker.close()
        job = self.worker.running
        if job is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(job.ended.wait(), self.config.grace_s)
        if not job.ended.is_set():
            self.worker.finish(job, Closing("the server is stopping"))
            await job.ended.wait()


KNOWN_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/metrics")


def _endpoint(handler: Callable[[Request], Coroutine[Any, Any, Response]]) -> Callable[[Request], Any]:
    """A partial, as the plain function that Starlette recognises."""

    async def endpoint(request: Request) -> Response:
        return await handler(request)

    return endpoint


async def _first(event: asyncio.Event, other: asyncio.Future[Any], timeout: float) -> None:
    """Wait until `event` is set or `other` is done, at most so long."""
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({waiting, other}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()


def _split_usage(chunk: Json, wanted: bool) -> list[Json]:
    """OpenAI sends `usage` only when asked, in a chunk of its own with no choices."""
    if "usage" not in chunk:
        return [chunk | {"usage": None}] if wanted else [chunk]
    head = {key: chunk[key] for key in ("id", "object", "created", "model")}
    last = {key: value for key, value in chunk.items() if key != "usage"}
    if not wanted:
        return [last]
    return [last | {"usage": None}, {**head, "choices": [], "usage": chunk["usage"]}]


async def _http_error(_request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    response = http.error_response(BadRequest(error.detail, status=error.status_code))
    response.headers.update(error.headers or {})
    return response


async def _unexpected(_request: Request, error: Exception) -> Response:
    return http.error_response(error)
