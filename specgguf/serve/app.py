"""The server's routes, as an ASGI application.

Which path is answered by what: bodies are read in `protocols`, generations answered in `answers`, who may ask is
`doors`' to say. It opens no socket and knows no field of any body.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from specgguf.errors import SpecggufError, Unsupported

from . import answers, http, metrics
from .answers import Answers
from .config import ANY_MODEL, ServeConfig
from .doors import Doors, RequestRecord
from .protocols import llama_server, openai, responses, vllm
from .protocols.bodies import BadRequest, read
from .protocols.reply import Json, Parse

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Engine(answers.Engine, llama_server.Engine, openai.Engine, Protocol):
    """What the server uses of `api.SpeculativeLlama`."""


class Service:
    """One engine behind HTTP; `app` is the ASGI application.

    Args:
        engine: what answers; nobody else may use it meanwhile.
        config: see `ServeConfig`.
        log: told of every answered request, but for the probes /health and /metrics.
    """

    def __init__(
        self, engine: Engine, config: ServeConfig, *, log: Callable[[RequestRecord], None] = lambda record: None
    ) -> None:
        self.engine, self.config = engine, config
        self.metrics = metrics.Metrics()
        self.answers = Answers(engine, config, self.metrics)
        self.worker, self.drain = self.answers.worker, self.answers.drain
        self._log = log
        self._created = int(time.time())
        self.app = self._make_app()

    def _make_app(self) -> Starlette:
        config = self.config
        doors = Middleware(Doors, keys=config.keys, hosts=config.hosts, observe=self._observe)
        cors = Middleware(CORSMiddleware, allow_origins=config.cors, allow_methods=["GET", "POST"], allow_headers=["*"])
        return Starlette(
            routes=[*self._generating(), *self._quiet()],
            middleware=[cors, doors] if config.cors else [doors],
            exception_handlers={HTTPException: _http_error, Exception: _unexpected},
        )

    def _generating(self) -> list[Route]:
        parsers: dict[str, Parse] = {
            "/chat/completions": partial(openai.chat_reply, self.engine, self.config),
            "/completions": partial(openai.completion_reply, self.engine, self.config),
            "/responses": partial(responses.responses_reply, self.engine, self.config),
            "/completion": partial(llama_server.completion_reply, self.engine, self.config),
            "/infill": partial(llama_server.infill_reply, self.engine, self.config),
        }
        return [
            Route(prefix + path, _endpoint(partial(self.answers.answer, parse)), methods=["POST"])
            for path, parse in parsers.items()
            for prefix in ("/v1", "")
        ]

    def _quiet(self) -> list[Route]:
        routes: dict[str, Handler] = {
            "/models": self._models,
            "/models/{name:path}": self._models,
            "/health": self._health,
            "/metrics": self._metrics,
            "/props": self._props,
            "/tokenizer_info": self._tokenizer_info,
        }
        asked: dict[str, Handler] = {
            "/tokenize": partial(self._small, vllm.tokenize),
            "/detokenize": partial(self._small, llama_server.detokenize),
            "/apply-template": partial(self._small, llama_server.apply_template),
            "/embeddings": _embeddings,
        }
        return [
            Route(prefix + path, _endpoint(handler), methods=[method])
            for method, paths in (("GET", routes), ("POST", asked))
            for path, handler in paths.items()
            for prefix in ("/v1", "")
        ]

    async def _small(self, answer: Callable[[Engine, Json], Json], request: Request) -> Response:
        """What needs the vocabulary alone is answered beside a running generation."""
        try:
            data = await self.answers.entered(request)
            return JSONResponse(await asyncio.to_thread(answer, self.engine, read(data)))
        except ClientDisconnect:
            return Response(status_code=499)
        except SpecggufError as error:
            return http.error_response(error)

    async def _props(self, request: Request) -> Response:
        return JSONResponse(llama_server.props(self.engine, self.config))

    async def _tokenizer_info(self, request: Request) -> Response:
        return JSONResponse(vllm.tokenizer_info(self.engine))

    async def _models(self, request: Request) -> Response:
        names = [name for name in self.config.names if name != ANY_MODEL] or [self.config.name]
        models = [{"id": name, "object": "model", "created": self._created, "owned_by": "specgguf"} for name in names]
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
        waiting = self.worker.n_waiting
        if (stuck_s := self.answers.stuck_s()) > 0:
            return JSONResponse({"status": f"busy for {stuck_s:.0f} s", "requests_waiting": waiting}, 503)
        return JSONResponse({"status": "ok", "requests_waiting": waiting})

    async def _metrics(self, request: Request) -> Response:
        text = self.metrics.text(self.engine.stats, n_waiting=self.worker.n_waiting, n_running=len(self.worker.running))
        return Response(text, headers={"content-type": metrics.CONTENT_TYPE})

    def _observe(self, record: RequestRecord) -> None:
        path = record.path.removeprefix("/v1")
        known = any(path == route.path.removeprefix("/v1") for route in self.app.routes if isinstance(route, Route))
        self.metrics.request(record, record.path if known else "other")
        if path not in ("/health", "/metrics"):
            self._log(record)


def _endpoint(handler: Handler) -> Callable[[Request], Any]:
    """A partial, as the plain function that Starlette recognises."""

    async def endpoint(request: Request) -> Response:
        return await handler(request)

    return endpoint


async def _embeddings(_request: Request) -> Response:
    return http.error_response(Unsupported("embeddings are not made here: this server generates text with one model"))


async def _http_error(_request: Request, error: Exception) -> Response:
    """404 and 405 of the router, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    response = http.error_response(BadRequest(error.detail, status=error.status_code))
    response.headers.update(error.headers or {})
    return response


async def _unexpected(_request: Request, error: Exception) -> Response:
    return http.error_response(error)
