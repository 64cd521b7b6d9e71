"""What the two generating calls of `SpeculativeLlama` take by keyword, for type checkers.

Only types: with them `stream=True` is known to give an iterator of chunks and any other call a dict. What the
keywords mean is said, and their defaults stand, in `api`; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict

Json = dict[str, Any]
Chunks = Iterator[Json]
Reply = Json | Chunks
Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]
Streamed = Literal[True]
Whole = Literal[False]


class SharedOptions(TypedDict, total=False):
    """Keywords of both calls."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    typical_p: float
    stop: str | Sequence[str] | None
    seed: int | None
    presence_penalty: float
    frequency_penalty: float
    repeat_penalty: float
    tfs_z: float
    mirostat_mode: int
    mirostat_tau: float
    mirostat_eta: float
    model: str | None
    max_tokens: int | None
    logits_processor: object
    grammar: Any
    logit_bias: Mapping[int, float] | None
    min_tokens: int
    ignore_eos: bool
    draft: int | str | None
    draft_max: int | None
    timeout: float | None


class CompletionOptions(SharedOptions, total=False):
    """Keywords of `create_completion`, but for `stream`."""

    suffix: str | None
    logprobs: int | None
    echo: bool
    stopping_criteria: object


class ChatOptions(SharedOptions, total=False):
    """Keywords of `create_chat_completion`, but for `stream`."""

    functions: object
    function_call: object
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: Any
    response_format: Any
    logprobs: bool | None
    top_logprobs: int | None
    enable_thinking: bool | None
