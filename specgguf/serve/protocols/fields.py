"""What each field of OpenAI's two bodies may hold, and what a keyword of ours wants in its place.

One small check per kind of field and two tables. It knows nothing of bytes, models or defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from specgguf.config import require_number, require_whole
from specgguf.errors import ConfigError
from specgguf.grammar.sources import Grammar, read_grammar
from specgguf.text.messages import normalized

Json = dict[str, Any]

MAX_STOP = 64
MAX_STOP_LENGTH = 256

Check = Callable[[str, Any], Any]  # (name, value) -> the value as a keyword wants it; raises ConfigError


def _bool(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {short(value)}")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{name} must be a text, not {short(value)}")
    return value


def _whole(low: int, high: float = 2**63) -> Check:
    def check(name: str, value: Any) -> int:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        require_whole(name, value, low, high)
        return int(value)

    return check


def _number(low: float, high: float) -> Check:
    def check(name: str, value: Any) -> float:
        require_number(name, value, low, high)
        return float(value)

    return check


def _only(*allowed: Any) -> Check:
    """For what is taken only as if it had not been said."""

    def check(name: str, value: Any) -> Any:
        if value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool):
            raise ConfigError(f"{name} is not supported beyond {allowed[0]!r}")
        return value

    return check


def _stop(name: str, value: Any) -> list[str]:
    stop = [value] if isinstance(value, str) else value
    if not isinstance(stop, list) or not all(isinstance(s, str) for s in stop):
        raise ConfigError(f"{name} must be a text or a list of texts, not {short(value)}")
    if len(stop) > MAX_STOP:
        raise ConfigError(f"{name} holds {len(stop)} texts; at most {MAX_STOP} are taken")
    if any(len(s) > MAX_STOP_LENGTH for s in stop):
        raise ConfigError(f"{name} holds a text of more than {MAX_STOP_LENGTH} characters")
    return stop


def _bias(name: str, value: Any) -> dict[int, float]:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must map token ids to numbers, not {short(value)}")
    bias = {}
    for token, amount in value.items():
        if not token.isascii() or not token.isdigit() or len(token) > 9:
            raise ConfigError(f"{name}: {short(token)} is no token id")
        require_number(f"{name}[{token}]", amount, -100.0, 100.0)
        bias[int(token)] = float(amount)
    return bias


def _object(name: str, value: Any) -> Json:
    if not isinstance(value, dict):
        raise ConfigError(f"{name} must be an object, not {short(value)}")
    return value


def _prompt(name: str, value: Any) -> str | list[int]:
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, list) and value and all(isinstance(item, str | list) for item in value):
        raise ConfigError(f"{name} holds {len(value)} prompts: send one request for each")
    if isinstance(value, list):
        if not all(isinstance(t, int) and not isinstance(t, bool) for t in value):
            raise ConfigError(f"{name} must be a text or a list of token ids")
        return value
    return _text(name, value)


def _messages(name: str, value: Any) -> list[Json]:
    normalized(value)
    return list(value)


def _tools(name: str, value: Any) -> list[Json]:
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise ConfigError(f"{name} must be a list of objects, not {short(value)}")
    return value


def _tool_choice(name: str, value: Any) -> Any:
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(value, str) and not (isinstance(function, dict) and isinstance(function.get("name"), str)):
        raise ConfigError(
            f'{name} must be "auto", "none", "required" or {{"type": "function", "function": {{"name": …}}}}'
        )
    return value


def _grammar(_name: str, value: Any) -> Grammar:
    return read_grammar(value)


def _draft(name: str, value: Any) -> Any:
    if not isinstance(value, str | int):
        raise ConfigError(f"{name} must be auto, off, or a number of tokens, not {short(value)}")
    return value


def short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


COMMON: Mapping[str, Check] = {
    "model": _text,
    "stream": _bool,
    "stream_options": _object,
    "max_tokens": _whole(1),
    "temperature": _number(0.0, 100.0),
    "top_k": _whole(-1),
    "top_p": _number(0.0, 1.0),
    "min_p": _number(0.0, 1.0),
    "typical_p": _number(0.0, 1.0),
    "repeat_penalty": _number(0.01, 100.0),
    "frequency_penalty": _number(-2.0, 2.0),
    "presence_penalty": _number(-2.0, 2.0),
    "seed": _whole(-(2**63)),
    "stop": _stop,
    "logit_bias": _bias,
    "min_tokens": _whole(0),
    "ignore_eos": _bool,
    "grammar": _grammar,
    "structured_outputs": _grammar,
    "draft": _draft,
    "draft_max": _whole(1, 16),
    "n": _only(1),
    "user": _text,
}
COMPLETION: Mapping[str, Check] = {
    **COMMON,
    "prompt": _prompt,
    "suffix": _text,
    "echo": _bool,
    "logprobs": _whole(0, 20),
    "best_of": _only(1),
}
CHAT: Mapping[str, Check] = {
    **COMMON,
    "messages": _messages,
    "max_completion_tokens": _whole(1),
    "tools": _tools,
    "tool_choice": _tool_choice,
    "parallel_tool_calls": _bool,
    "response_format": _object,
    "logprobs": _bool,
    "top_logprobs": _whole(0, 20),
    "enable_thinking": _bool,
    "chat_template_kwargs": _object,
    "store": _only(False),
    "metadata": _object,
    "modalities": _only(["text"]),
    "service_tier": _text,
    "safety_identifier": _text,
    "prompt_cache_key": _text,
}
# Taken and without effect here: they speak of an account or of a choice that this server does not have.
NO_EFFECT = {
    "n", "best_of", "user", "parallel_tool_calls", "store", "metadata", "modalities",
    "service_tier", "safety_identifier", "prompt_cache_key",
}  # fmt: skip
