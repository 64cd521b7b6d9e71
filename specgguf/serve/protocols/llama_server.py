"""llama-server's own endpoints (/completion, /infill, /tokenize, /props and others), in its shapes.

Bodies are checked as OpenAI's are, and answers are made of the engine's dicts. It knows no HTTP and no queue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

from specgguf.serve.config import ServeConfig

from .bodies import BadRequest, completion_call
from .openai import reply_of
from .reply import Json, Reply, event

STOP_TYPES = {"stop": "eos", "length": "limit"}


class Engine(Protocol):
    """What these endpoints use of `api.SpeculativeLlama`."""

    @property
    def create_completion(self) -> Callable[..., Any]: ...
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def n_parallel(self) -> int: ...
    def compile_grammar(self, grammar: Any) -> Any: ...
    def n_ctx(self) -> int: ...
    def n_vocab(self) -> int: ...
    def token_bos(self) -> int: ...
    def token_eos(self) -> int: ...
    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]: ...
    def detokenize(self, tokens: list[int], prev_tokens: object = None, special: bool = False) -> bytes: ...
    def render(self, messages: Any, *, tools: Any = None, enable_thinking: bool | None = None) -> list[int]: ...


def completion_reply(engine: Engine, config: ServeConfig, body: Json) -> Reply:
    """`/completion`: as OpenAI's completions, with llama-server's default of no limit."""
    given = {"n_predict": -1, **body} if "max_tokens" not in body else body
    call = completion_call(given, models=config.names, defaults=config.defaults, lenient=config.lenient)
    if len(call.prompts) > 1 or call.n > 1:
        raise BadRequest("/completion takes one prompt: /v1/completions takes several", param="prompt")
    made = reply_of(engine, engine.create_completion, call, config)
    return Reply(made.works, made.stream, made.model, _shape, partial(_Events), made.headers)


def infill_reply(engine: Engine, config: ServeConfig, body: Json) -> Reply:
    """`/infill`: what stands between `input_prefix` (and `prompt` after it) and `input_suffix`."""
    rest = {k: v for k, v in body.items() if k not in ("input_prefix", "input_suffix", "input_extra", "prompt")}
    texts = [body.get(name) or "" for name in ("input_prefix", "prompt", "input_suffix")]
    for name, text in zip(("input_prefix", "prompt", "input_suffix"), texts, strict=True):
        if not isinstance(text, str):
            raise BadRequest(f"{name} must be a text", param=name)
    extra = body.get("input_extra") or []
    if not isinstance(extra, list) or not all(isinstance(e, Mapping) and isinstance(e.get("text"), str) for e in extra):
        raise BadRequest('input_extra must be a list of {"filename": …, "text": …}', param="input_extra")
    before = "".join(f"{e['text']}\n" for e in extra)
    return completion_reply(engine, config, {**rest, "prompt": before + texts[0] + texts[1], "suffix": texts[2]})


def _shape(result: Json) -> Json:
    choice, usage, word = result["choices"][0], result["usage"], result.get("stopping_word", "")
    return {
        "content": choice["text"],
        "stop": True,
        "stop_type": "word" if word else STOP_TYPES[choice["finish_reason"]],
        "stopping_word": word,
        "model": result["model"],
        "tokens_predicted": usage["completion_tokens"],
        "tokens_evaluated": usage["prompt_tokens"],
        "tokens_cached": usage["prompt_tokens"] + usage["completion_tokens"],
        "truncated": False,
        "index": 0,
        "timings": result.get("timings", {}),
    }


class _Events:
    """A stream: the text of each chunk, then a last one with what is known at the end."""

    def of(self, chunk: Json) -> Iterator[bytes]:
        """See `reply.Events`."""
        choice = chunk["choices"][0]
        if choice["finish_reason"] is not None and "usage" in chunk:
            yield event(_shape(chunk))
        else:
            yield event({"content": choice["text"], "stop": False, "index": 0})

    def end(self) -> Iterator[bytes]:
        """See `reply.Events`."""
        yield from ()

    def failed(self, error: Json) -> bytes:
        """See `reply.Events`."""
        return event(error)


# --- without a generation -----------------------------------------------------------------------------------


def tokenize(engine: Engine, body: Json, *, named: str = "content") -> Json:
    """`/tokenize`: {"content", "add_special": false, "parse_special": true, "with_pieces": false}; `named` is what the
    client calls the content."""
    text = body.get("content")
    if not isinstance(text, str):
        raise BadRequest(f"{named} must be a text", param=named)
    if len(text) > 16 * engine.n_ctx():
        raise BadRequest(f"{named} is longer than 16 characters for each of {engine.n_ctx()} tokens", param=named)
    parse = _switch(body, "parse_special", True)
    if parse and text.count("<") + text.count("[") > engine.n_ctx():
        raise BadRequest(f"{named} may hold more special tokens than the context holds", param=named)
    tokens = engine.tokenize(text.encode(), _switch(body, "add_special", False), parse)
    if not _switch(body, "with_pieces", False):
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(engine, token)} for token in tokens]}


def detokenize(engine: Engine, body: Json) -> Json:
    """`/detokenize`: {"tokens"}. The text is called prompt, too: by vLLM."""
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(t, int) and not isinstance(t, bool) for t in tokens):
        raise BadRequest("tokens must be a list of token ids", param="tokens")
    text = engine.detokenize(tokens, special=True).decode("utf-8", "replace")
    return {"content": text, "prompt": text}


def apply_template(engine: Engine, body: Json) -> Json:
    """`/apply-template`: {"messages"}, as the prompt that the model would get."""
    ids = engine.render(body.get("messages"), tools=body.get("tools"))
    return {"prompt": engine.detokenize(ids, special=True).decode("utf-8", "replace")}


def props(engine: Engine, config: ServeConfig) -> Json:
    """`/props`."""
    metadata = engine.metadata
    defaults = {"n_ctx": engine.n_ctx(), "params": dict(config.defaults)}
    return {
        "default_generation_settings": defaults,
        "total_slots": engine.n_parallel,
        "model_alias": config.name,
        "model_path": metadata.get("general.name", config.name),
        "chat_template": metadata.get("tokenizer.chat_template", ""),
        "n_vocab": engine.n_vocab(),
        "build_info": "specgguf",
    }


def _piece(engine: Engine, token: int) -> str | list[int]:
    data = engine.detokenize([token], special=True)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _switch(body: Json, name: str, default: bool) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{name} must be true or false", param=name)
    return default if value is None else value
