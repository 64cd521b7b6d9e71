"""What vLLM takes as prompts and beside them: texts, token ids and dicts, alone or in lists, with parameters for each.

It renders nothing and knows no model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specgguf.errors import ConfigError, Unsupported

from .sampling import SamplingParams

PROMPT_KEYS = ("prompt", "prompt_token_ids")


def several(prompts: Any) -> list[Any]:
    """A list of prompts, of one prompt or of many."""
    if isinstance(prompts, str | Mapping) or (prompts and all(isinstance(one, int) for one in prompts)):
        return [prompts]
    return list(prompts)


def read_prompt(given: Any) -> tuple[str | None, str | list[int]]:
    """A prompt's text, if it has one, and what is generated from. Raises ConfigError for what is none."""
    if isinstance(given, str):
        return given, given
    if isinstance(given, Mapping):
        others = {name: value for name, value in given.items() if name not in PROMPT_KEYS and value is not None}
        if others:
            raise Unsupported(f"{next(iter(others))} of a prompt is not supported: specgguf reads text and token ids")
        text, ids = given.get("prompt"), given.get("prompt_token_ids")
        if ids is not None:
            return text, list(ids)
        if isinstance(text, str):
            return text, text
    elif isinstance(given, Sequence) and given and all(isinstance(one, int) for one in given):
        return None, list(given)
    raise ConfigError(
        f"a prompt is a text or token ids, not {given!r:.60}", hint='"…", {"prompt": "…"} or {"prompt_token_ids": […]}'
    )


def for_each(params: SamplingParams | Sequence[SamplingParams], n: int) -> list[SamplingParams]:
    if not isinstance(params, Sequence):
        return [params] * n
    if len(params) != n:
        raise ConfigError(
            f"there are {n} prompts and {len(params)} sampling_params", hint="one for all, or one for each"
        )
    return list(params)


def thinking(keywords: Mapping[str, Any]) -> bool | None:
    for name, value in keywords.items():
        if name not in ("enable_thinking", "thinking") or not isinstance(value, bool):
            raise Unsupported(f"chat_template_kwargs={{{name!r}: {value!r}}} is not supported: enable_thinking is")
    return next(iter(keywords.values()), None)
