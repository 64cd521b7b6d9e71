"""vLLM's `SamplingParams`, by its names and defaults, and what they are here.

A field that would change an answer and cannot be honoured is refused when the parameters are used. It knows no model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from specgguf import config
from specgguf.errors import ConfigError, Unsupported

ALL_TOKENS = 2**31 - 1  # penalties look at the whole answer

# field -> what to do instead, where it says anything.
REFUSED: Mapping[str, str] = {
    "best_of": "n says how many answers there are",
    "use_beam_search": "answers are drawn, not searched for",
    "prompt_logprobs": "SpeculativeLlama.create_completion(echo=True, logprobs=N) tells those of a prompt",
    "prompt_logprob_token_ids": "SpeculativeLlama.create_completion(echo=True, logprobs=N) tells those of a prompt",
    "prompt_logprob_start": "SpeculativeLlama.create_completion(echo=True, logprobs=N) tells those of a prompt",
    "logprob_token_ids": "logprobs=N tells the likeliest",
    "flat_logprobs": "log-probabilities come as a dict for each token",
    "bad_words": "logit_bias forbids a token: {id: -100}",
    "allowed_token_ids": "structured_outputs=StructuredOutputsParams(choice=[…]) allows texts",
    "logits_processors": "structured_outputs and logit_bias restrict what is drawn",
    "truncate_prompt_tokens": "shorten the prompt",
    "thinking_token_budget": "max_tokens ends an answer",
    "repetition_detection": "repetition_penalty and max_tokens end what repeats itself",
    "trace_decode_token_ids": "create_completion(echo=True, logprobs=N) tells what given tokens are worth",
    "extra_args": "name the parameter",
}  # fmt: skip


@dataclass
class StructuredOutputsParams:
    """What an answer is held to: one of these."""

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_fallback: bool = False
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        for name in ("disable_any_whitespace", "disable_additional_properties", "whitespace_pattern", "structural_tag"):
            if getattr(self, name):
                raise Unsupported(f"{name} is not supported: the schema says what may stand where")
        given = self.given
        if len(given) != 1:
            raise ConfigError(
                f"structured outputs are one of json, regex, choice, grammar, json_object, not {len(given)}"
            )

    @property
    def given(self) -> dict[str, Any]:
        """What it is, as `grammar` takes it."""
        names = ("json", "regex", "choice", "grammar", "json_object")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


GuidedDecodingParams = StructuredOutputsParams  # its name before vLLM 0.11


@dataclass
class SamplingParams:
    """How each answer is drawn, and when it ends: vLLM's names and defaults.

    Raises:
        ConfigError: a value that is none. Unsupported: a field that cannot be honoured.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_logprob_token_ids: list[int] | None = None
    prompt_logprob_start: int | None = None
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: Any = None  # only whole results are given
    stream_interval: int | None = None  # nothing is streamed
    skip_clone: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    guided_decoding: StructuredOutputsParams | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None
    bad_words: list[str] | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    trace_decode_token_ids: list[int] | None = None
    routed_experts_prompt_start: int = 0
    best_of: int | None = None
    use_beam_search: bool = False
    logits_processors: list[Any] | None = None
    truncate_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        self.params()

    @classmethod
    def from_optional(cls, **given: Any) -> SamplingParams:
        """With the defaults for what is None."""
        return cls(**{name: value for name, value in given.items() if value is not None})

    def clone(self) -> SamplingParams:
        """A copy of its own."""
        return copy.deepcopy(self)

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        return tuple(s for s in ([self.stop] if isinstance(self.stop, str) else self.stop or ()) if s)

    def params(self, eog: Collection[int] = ()) -> config.SamplingParams:
        """The same as `specgguf.SamplingParams`.

        Args:
            eog: tokens that end the model's texts anyhow, which `stop_token_ids` may name.

        Raises: see the class.
        """
        self._refuse()
        config.require_whole("n", self.n, 1, 16384)
        if eog and (others := sorted(set(self.stop_token_ids or ()) - set(eog))):
            raise Unsupported(
                f"stop_token_ids {others[:5]} do not end this model's texts",
                hint=f"their texts, as stop; {sorted(eog)} do",
            )
        if self.logprobs == -1:
            raise Unsupported("logprobs=-1 is not supported", hint="logprobs=N tells the N likeliest")
        structured = self.structured_outputs or self.guided_decoding
        return config.SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            penalty_last_n=ALL_TOKENS,
            logit_bias={int(token): float(bias) for token, bias in (self.logit_bias or {}).items()},
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            stop=self.stops,
            seed=self.seed,
            ignore_eos=self.ignore_eos,
            logprobs=self.logprobs,
            grammar=structured.given if structured is not None else None,
        )

    def _refuse(self) -> None:
        for name, instead in REFUSED.items():
            value = getattr(self, name)
            if value and not (name == "best_of" and value == self.n):
                raise Unsupported(f"{name}={value!r:.60} is not supported: {instead}")
        if self.prompt_logprobs is not None:
            raise Unsupported(f"prompt_logprobs is not supported: {REFUSED['prompt_logprobs']}")
        if not self.skip_special_tokens:
            raise Unsupported("skip_special_tokens=False is not supported: decode outputs[i].token_ids")
        config.require_number("temperature", self.temperature, 0.0, math.inf)

    def __repr__(self) -> str:
        changed = [f"{f.name}={v!r}" for f in fields(self) if (v := getattr(self, f.name)) != f.default]
        return f"SamplingParams({', '.join(changed)})"

    def asdict(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)
