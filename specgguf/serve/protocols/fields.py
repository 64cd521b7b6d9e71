"""What each field of OpenAI's two bodies may hold, and what a keyword of ours wants in its place.

One small check per kind of field and two tables. It knows nothing of bytes, models or defaults.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from specgguf.config import LIMITS, require_number, require_whole
from specgguf.errors import ConfigError
from specgguf.grammar.sources import Grammar, read_grammar
from specgguf.text.arguments import EFFORTS, seed_of
from specgguf.text.messages import normalized

Json = dict[str, Any]

MAX_ANSWERS = 128  # prompts times n of one request
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


def _whole(low: float, high: float = 2**63) -> Check:
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
        if not any(value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in allowed):
            raise ConfigError(f"{name} is not supported beyond {json.dumps(allowed[0])}")
        return value

    return check


def _any(_name: str, value: Any) -> Any:
    return value


def _one_of(*words: str) -> Check:
    def check(name: str, value: Any) -> str:
        if value not in words:
            raise ConfigError(f"{name} must be one of {', '.join(words)}, not {short(value)}")
        return str(value)

    return check


def _logprobs(name: str, value: Any) -> int | None:
    """A number; llama-server's clients say false, and true for the most likely token alone."""
    return (1 if value else None) if isinstance(value, bool) else _whole(0, 20)(name, value)


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
    """An object, or a list of pairs as llama-server has it."""
    if isinstance(value, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        value = {str(token): -100.0 if amount is False else amount for token, amount in value}
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


def _prompt(name: str, value: Any) -> list[str | list[int]]:
    """One prompt or several: texts, or lists of token ids."""
    several = isinstance(value, list) and bool(value) and all(isinstance(item, str | list) for item in value)
    prompts = value if several else [value]
    if len(prompts) > MAX_ANSWERS:
        raise ConfigError(f"{name} holds {len(prompts)} prompts; at most {MAX_ANSWERS} are taken")
    for prompt in prompts:
        ids = isinstance(prompt, list) and all(isinstance(t, int) and not isinstance(t, bool) for t in prompt)
        if not isinstance(prompt, str) and not ids:
            raise ConfigError(f"{name} must be a text or a list of token ids, or a list of such")
    return prompts


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


def _seed(name: str, value: Any) -> Any:
    return seed_of(_whole(*LIMITS["seed"])(name, value))


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
    "max_tokens": _whole(-1),
    "n_predict": _whole(-1),
    "temperature": _number(0.0, LIMITS["temperature"][1]),
    "top_k": _whole(*LIMITS["top_k"]),
    "top_p": _number(*LIMITS["top_p"]),
    "min_p": _number(*LIMITS["min_p"]),
    "typical_p": _number(*LIMITS["typical_p"]),
    "repeat_penalty": _number(*LIMITS["repeat_penalty"]),
    "repetition_penalty": _number(*LIMITS["repeat_penalty"]),
    "frequency_penalty": _number(*LIMITS["frequency_penalty"]),
    "presence_penalty": _number(*LIMITS["presence_penalty"]),
    "seed": _seed,
    "stop": _stop,
    "logit_bias": _bias,
    "min_tokens": _whole(0),
    "ignore_eos": _bool,
    "grammar": _grammar,
    "structured_outputs": _grammar,
    "draft": _draft,
    "draft_max": _whole(1, 16),
    "n": _whole(1, MAX_ANSWERS),
}
COMPLETION: Mapping[str, Check] = {
    **COMMON,
    "prompt": _prompt,
    "suffix": _text,
    "echo": _bool,
    "logprobs": _logprobs,
    "best_of": _whole(1, MAX_ANSWERS),
}
CHAT: Mapping[str, Check] = {
    **COMMON,
    "messages": _messages,
    "max_completion_tokens": _whole(-1),
    "tools": _tools,
    "tool_choice": _tool_choice,
    "response_format": _object,
    "logprobs": _bool,
    "top_logprobs": _whole(0, 20),
    "enable_thinking": _bool,
    "reasoning_effort": _one_of(*EFFORTS),
    "chat_template_kwargs": _object,
}
UNSAID = {"grammar": ""}  # other than null: what says nothing, in llama-server's words
# What other servers' words are here.
ALIASES = {"n_predict": "max_tokens", "max_completion_tokens": "max_tokens", "repetition_penalty": "repeat_penalty"}
# Taken and without effect here: they speak of an account, or of a choice that this server does not have.
NO_EFFECT: Mapping[str, Check] = {
    "user": _text,
    "parallel_tool_calls": _bool,
    "modalities": _only(["text"]),
    "store": _bool,
    "metadata": _object,
    "service_tier": _text,
    "safety_identifier": _text,
    "prompt_cache_key": _text,
    "prompt_cache_retention": _text,
    "verbosity": _one_of("low", "medium", "high"),
    "prediction": _object,
    "cache_prompt": _bool,
    "reasoning_format": _text,
    "timings_per_token": _bool,
    "return_progress": _bool,
    "id_slot": _whole(-1),
    "slot_id": _whole(-1),
    "n_keep": _whole(-1),
    "repeat_last_n": _whole(-1),
    "samplers": _any,
    "min_keep": _whole(0),
}
# Other samplers and switches, taken where they say that they are off.
NEUTRAL: Mapping[str, Check] = {
    "mirostat": _only(0),
    "mirostat_mode": _only(0),
    "mirostat_tau": _number(0.0, 100.0),
    "mirostat_eta": _number(0.0, 100.0),
    "tfs_z": _only(1, 1.0),
    "top_a": _only(0, 0.0),
    "top_n_sigma": _only(-1, -1.0, 0, 0.0),
    "typ_p": _only(1, 1.0),
    "dynatemp_range": _only(0, 0.0),
    "dynatemp_exponent": _number(0.0, 100.0),
    "xtc_probability": _only(0, 0.0),
    "xtc_threshold": _number(0.0, 1.0),
    "dry_multiplier": _only(0, 0.0),
    "dry_base": _number(0.0, 100.0),
    "dry_allowed_length": _whole(0),
    "dry_penalty_last_n": _whole(-1),
    "dry_sequence_breakers": _any,
    "n_probs": _only(0),
    "use_beam_search": _only(False),
    "length_penalty": _only(1, 1.0),
    "early_stopping": _only(False),
    "skip_special_tokens": _only(True),
    "spaces_between_special_tokens": _bool,
    "include_stop_str_in_output": _only(False),
    "stop_token_ids": _only([]),
    "bad_words": _only([]),
    "add_generation_prompt": _only(True),
    "continue_final_message": _bool,
    "t_max_predict_ms": _only(0, -1),
}
IGNORED = {**NO_EFFECT, **NEUTRAL}
