"""OpenAI's two calls: a checked body becomes what the engine is to write, one answer or several.

It knows which method of the engine answers what; fields are checked in `bodies`, dicts come ready from the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from specgguf.serve.config import ServeConfig

from . import several
from .bodies import Call, chat_call, completion_call
from .reply import Json, OpenAIEvents, Reply

IGNORED_HEADER = "x-specgguf-ignored"  # of an answer: the fields that were left out of a lenient server's request


class Engine(Protocol):
    """What answers OpenAI's calls."""

    @property
    def create_completion(self) -> Callable[..., Any]: ...
    @property
    def create_chat_completion(self) -> Callable[..., Any]: ...
    def compile_grammar(self, grammar: Any) -> Any: ...


def completion_reply(engine: Engine, config: ServeConfig, body: Json) -> Reply:
    """`/v1/completions`."""
    call = completion_call(body, models=config.names, defaults=config.defaults, lenient=config.lenient)
    if call.keywords.get("max_tokens") == 0:
        return reply_of(engine, partial(_without_answer, engine.create_completion), call, config)
    return reply_of(engine, engine.create_completion, call, config)


def _without_answer(create: Callable[..., Json], **keywords: Any) -> Json:
    """A completion of no token, which says what the prompt's are worth: the engine's shortest has one."""
    asked = {**keywords, "max_tokens": 1, "ignore_eos": True, "min_tokens": 0}
    result = create(**{"logprobs": 0, **asked})
    choice, usage = result["choices"][0], result["usage"]
    entries = choice["logprobs"]
    choice |= {"text": choice["text"][: entries["text_offset"][-1]] if keywords.get("echo") else ""}
    choice |= {"finish_reason": "length", "logprobs": None}
    if keywords.get("logprobs") is not None:
        choice["logprobs"] = {name: values[:-1] for name, values in entries.items()}
    result["usage"] = {**usage, "completion_tokens": 0, "total_tokens": usage["prompt_tokens"]}
    return result


def chat_reply(engine: Engine, config: ServeConfig, body: Json) -> Reply:
    """`/v1/chat/completions`."""
    return reply_of(engine, engine.create_chat_completion, checked_chat(config, body), config)


def checked_chat(config: ServeConfig, body: Json) -> Call:
    """A body of the chat, with the server's defaults."""
    thinking = {} if config.enable_thinking is None else {"enable_thinking": config.enable_thinking}
    defaults = {**config.defaults, **thinking}
    return chat_call(body, models=config.names, defaults=defaults, lenient=config.lenient)


class Compiles(Protocol):
    """What makes a grammar ready for any number of answers."""

    def compile_grammar(self, grammar: Any) -> Any: ...


def reply_of(engine: Compiles, create: Callable[..., Any], call: Call, config: ServeConfig) -> Reply:
    """What the engine is to write for `call`. A grammar is compiled here, before the request waits for the engine."""
    model = call.keywords.setdefault("model", config.name)
    if (grammar := call.keywords.get("grammar")) is not None:
        call.keywords["grammar"] = engine.compile_grammar(grammar)
    prompts = [{"prompt": prompt} for prompt in call.prompts] or [{}]
    asked = [call.keywords | prompt for prompt in prompts]
    works = tuple(partial(create, **keywords) for one in asked for keywords in several.seeded(one, call.n))
    headers = {IGNORED_HEADER: ", ".join(call.ignored)} if call.ignored else {}
    return Reply(works, call.stream, model, events=partial(OpenAIEvents, call.include_usage), headers=headers)
