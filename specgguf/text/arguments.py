"""llama-cpp-python's call arguments become our settings; what cannot be served is refused by name.

Pure: it knows no model, no engine and no text.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from specgguf.config import DraftConfig, SamplingParams, parse_draft, require_number
from specgguf.errors import ConfigError, Unsupported
from specgguf.grammar.sources import Grammar, json_grammar, read_grammar, response_grammar, tools_grammar

from .tools.calls import ToolChoice, choose

# Arguments of llama-cpp-python that change the distribution and cannot be exact here, and their neutral values.
NEUTRAL: dict[str, tuple[Any, str]] = {
    "mirostat_mode": (0, "its distribution depends on the surprise of tokens already drawn"),
    "tfs_z": (1.0, "tail-free sampling is gone from llama.cpp too"),
    "logits_processor": (None, "it would have to run on both models inside a block; use logit_bias or grammar"),
    "stopping_criteria": (None, "use stop or max_tokens"),
    "functions": (None, "use tools"),
    "function_call": (None, "use tool_choice"),
}
SAMPLING = (
    "temperature top_p min_p typical_p top_k frequency_penalty presence_penalty repeat_penalty max_tokens seed "
    "min_tokens ignore_eos logprobs"
).split()
RANDOM_SEEDS = (-1, 2**32 - 1)  # llama.cpp's words for none
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def completion_params(config: DraftConfig, arguments: Mapping[str, Any]) -> tuple[SamplingParams, DraftConfig]:
    """The sampling and drafting settings of one call.

    Args:
        config: the engine's defaults.
        arguments: the call's, by llama-cpp-python's names.

    Raises:
        ConfigError, Unsupported: see the message.
    """
    for name, (neutral, why) in NEUTRAL.items():
        if arguments.get(name, neutral) not in (neutral, None):
            raise Unsupported(f"{name} is not supported: {why}")
    stop = arguments.get("stop") or ()
    if isinstance(stop, str):
        stop = (stop,)
    if not isinstance(stop, Sequence) or not all(isinstance(s, str) for s in stop):
        raise ConfigError(f"stop must be a text or a list of texts, not {stop!r:.60}")
    if (timeout := arguments.get("timeout")) is not None:
        require_number("timeout", timeout, 0, math.inf)
    grammar = arguments.get("grammar")
    params = SamplingParams(
        **{name: arguments[name] for name in SAMPLING if name != "seed"},
        seed=seed_of(arguments["seed"]),
        stop=tuple(stop),
        logit_bias=_logit_bias(arguments.get("logit_bias")),
        grammar=None if grammar is None else read_grammar(grammar),
    )
    return params, draft_config(config, arguments.get("draft"), arguments.get("draft_max"))


def seed_of(seed: Any) -> Any:
    """A call's seed; None for llama.cpp's words for none."""
    return None if seed in RANDOM_SEEDS else seed


def thinking_of(reasoning_effort: str | None) -> bool | None:
    """The template's `enable_thinking` that an effort stands for; None where it says nothing about that.

    Raises:
        ConfigError: it is no effort.
    """
    if reasoning_effort is not None and reasoning_effort not in EFFORTS:
        raise ConfigError(f"reasoning_effort must be one of {', '.join(EFFORTS)}, not {reasoning_effort!r:.60}")
    return None if reasoning_effort in (None, "minimal") else reasoning_effort != "none"


def token_ids(tokens: Any) -> list[int]:
    """A prompt's ids as plain ints.

    Raises:
        ConfigError: they are something else; bytes, too, which would pass for ids.
    """
    try:
        if isinstance(tokens, bytes | bytearray | memoryview):
            raise TypeError
        return [operator.index(token) for token in tokens]
    except TypeError:
        raise ConfigError(f"a prompt is a text or token ids (whole numbers), not {tokens!r:.60}") from None


def draft_config(config: DraftConfig, draft: int | str | None, draft_max: int | None) -> DraftConfig:
    """`config` with a call's own draft length and maximum."""
    if draft_max is not None:
        config = replace(config, draft_max=draft_max)
    return config if draft is None else replace(config, draft=parse_draft(draft))


def _logit_bias(bias: object) -> dict[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise ConfigError(f"logit_bias must map token ids to numbers, not {bias!r:.60}")
    try:
        return {int(token): float(value) for token, value in bias.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigError("logit_bias must map token ids to numbers") from error


@dataclass(frozen=True)
class ToolRequest:
    """What a chat call asks of tools and of the answer's form.

    Attributes:
        choice: the tools, and which of them must be called.
        response_format: OpenAI's, which counts where no tool must be called.
    """

    choice: ToolChoice = field(default_factory=ToolChoice)
    response_format: Any = None

    @property
    def tools(self) -> list[Mapping[str, Any]] | None:
        """For the template; None when no tool may be called."""
        return list(self.choice.tools) or None

    @property
    def forced(self) -> str:
        """The one function that must be called, "" otherwise."""
        return self.choice.forced

    @property
    def is_required(self) -> bool:
        """One of the tools must be called."""
        return self.choice.is_required

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tools that may be called."""
        return tuple(str(tool["function"]["name"]) for tool in self.choice.tools)

    @cached_property
    def grammar(self) -> Grammar | None:
        """What restricts the answer; None where nothing does. Read when first asked for: schemas may be long.

        Raises:
            ConfigError: a schema that is none, or another `response_format`.
        """
        if self.forced:
            (_, schema, strict), *_ = self.choice.schemas()
            return json_grammar(schema, strict=strict)
        if self.is_required:
            return tools_grammar(self.choice.schemas())
        return response_grammar(self.response_format)


def tool_request(
    tools: Sequence[Mapping[str, Any]] | None,
    tool_choice: Any,
    response_format: Any = None,
    functions: object = None,
    function_call: object = None,
) -> ToolRequest:
    """Read `tools` and `tool_choice` ("none", "auto", "required", or one function).

    Raises:
        ConfigError: malformed, or a tool that is not there. Unsupported: `functions`.
    """
    if functions is not None or function_call is not None:
        name = "functions" if functions is not None else "function_call"
        raise Unsupported(f"{name} is not supported: {NEUTRAL[name][1]}")
    return ToolRequest(choose(tools, tool_choice), response_format)
