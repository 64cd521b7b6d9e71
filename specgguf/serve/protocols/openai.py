"""OpenAI's two calls: a checked body becomes the engine's work, one answer or several.

It knows which method of the engine answers what; fields are checked in `bodies`, dicts come ready from the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from specgguf.serve.config import ServeConfig

from .bodies import Call, chat_call, completion_call
from .reply import Json, OpenAIEvents, Reply


class Engine(Protocol):
    """What answers OpenAI's calls."""

    @property
    def create_completion(self) -> Callable[..., Any]: ...
    @property
    def create_chat_completion(self) -> Callable[..., Any]: ...


def completion_reply(engine: Engine, config: ServeConfig, body: Json) -> Reply:
    """`/v1/completions`."""
    call = completion_call(body, models=config.names, defaults=config.defaults)
    return _reply(engine.create_completion, call, config)


def chat_reply(engine: Engine, config: ServeConfig, body: Json) -> Reply:
    """`/v1/chat/completions`."""
    thinking = {} if config.enable_thinking is None else {"enable_thinking": config.enable_thinking}
    call = chat_call(body, models=config.names, defaults={**config.defaults, **thinking})
    return _reply(engine.create_chat_completion, call, config)


def _reply(create: Callable[..., Any], call: Call, config: ServeConfig) -> Reply:
    model = call.keywords.setdefault("model", config.name)
    return Reply(partial(create, **call.keywords), call.stream, model, events=partial(OpenAIEvents, call.include_usage))
