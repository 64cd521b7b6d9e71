"""What a user may set, as frozen dataclasses, and the strict way in.

`from_mapping` is the only loader: whatever a keyword, a TOML file or a preset says goes through it, so an
unknown key or a value of the wrong kind is refused by name everywhere. This module knows nothing of files,
flags or models.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .errors import ConfigError

T = TypeVar("T")

DRAFT_MAX_DEFAULT = 5
DRAFT_MAX_LIMIT = 16
DRAFT_VOCABS = ("same", "any")  # whose vocabulary a draft may have: the target's alone, or another one
BIAS_LIMIT = 1e30  # logits are 32 bits wide: beyond it, sums and penalties would leave their range

# What a sampling value may be, of either face: Python's keywords and the fields of requests.
LIMITS: Mapping[str, tuple[float, float]] = {
    "temperature": (-100, 100),
    "top_k": (-(2**31), 2**31 - 1),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repeat_penalty": (0.01, 100),  # logits are divided by it
    "frequency_penalty": (-100, 100),
    "presence_penalty": (-100, 100),
    "penalty_last_n": (0, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "max_tokens": (-(2**31), 2**63 - 1),
    "seed": (-(2**63), 2**64 - 1),
    "logprobs": (0, 100),
}
WHOLE = ("top_k", "penalty_last_n", "min_tokens", "max_tokens", "seed", "logprobs")

# Context types that `Llama` takes as ggml numbers, by the names that people type.
KV_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint naming the nearest known word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean '{near[0]}'?" if near else ""


def from_mapping(cls: type[T], values: Mapping[str, Any], *, where: str) -> T:
    """Build the frozen dataclass `cls` from `values`; `where` names their origin in errors.

    Raises:
        ConfigError: an unknown key (with the nearest known one) or a value that `cls` refuses.
    """
    known = [f.name for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ConfigError(f"{where}: unknown key '{key}'", hint=did_you_mean(key, known))
    return cls(**values)


def require_number(name: str, value: object, low: float, high: float, *, kind: str = "a number") -> None:
    """Raise ConfigError unless `value` is a finite number with low <= value <= high."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not low <= value <= high:  # type: ignore[operator]  # exact: a float would round it
        bounds = f" from {low:g} to {high:g}" if math.isfinite(high) else f" of at least {low:g}"
        raise ConfigError(f"{name} must be {kind}{bounds if math.isfinite(low) else ''}, not {value!r:.60}")


def require_whole(name: str, value: object, low: float, high: float = math.inf) -> None:
    """Raise ConfigError unless `value` is an int with low <= value <= high."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{name} must be a whole number, not {value!r:.60}")
    require_number(name, value, low, high, kind="a whole number")


@dataclass(frozen=True)
class SamplingParams:
    """How the target's logits become a distribution, and when a generation ends.

    Names and defaults are those of llama-cpp-python's `create_completion`; where vLLM's `SamplingParams`
    has the same thing, the name is the same there.

    Attributes:
        temperature: 0 is greedy; below 0 is a plain softmax, without any truncation.
        top_k: keep the k most likely tokens; 0 or below keeps all.
        top_p, min_p, typical_p: nucleus (Holtzman et al. 2020), min-p (Nguyen et al. 2024) and locally
            typical sampling (Meister et al. 2022).
        repeat_penalty, frequency_penalty, presence_penalty: over the last `penalty_last_n` generated tokens.
        logit_bias: token id -> added to its logit; -inf forbids it.
        max_tokens: at most so many tokens; None or <= 0: until the context is full.
        min_tokens: no end-of-generation token before so many tokens.
        stop: texts that end the generation, themselves not emitted.
        seed: None draws one from the system; every other value, 0 too, is a seed.
        ignore_eos: forbid end-of-generation tokens.
        logprobs: None, or how many alternatives to report beside each token's log-probability.
        grammar: restricts the target's distribution: a GBNF text, or what `grammar.sources.read_grammar` takes.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    grammar: Any = None

    def __post_init__(self) -> None:
        for name, (low, high) in LIMITS.items():
            value = getattr(self, name)
            if value is not None or name not in ("max_tokens", "seed", "logprobs"):
                (require_whole if name in WHOLE else require_number)(name, value, low, high)
        if not isinstance(self.ignore_eos, bool):
            raise ConfigError(f"ignore_eos must be True or False, not {self.ignore_eos!r:.60}")
        self._check_bias()
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        if not isinstance(stop, list | tuple) or not all(isinstance(s, str) for s in stop):
            raise ConfigError(f"stop must be a text or a list of texts, not {self.stop!r:.60}")
        object.__setattr__(self, "stop", tuple(s for s in stop if s))

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise ConfigError(f"logit_bias must map token ids to numbers, not {self.logit_bias!r:.60}")
        for token, bias in self.logit_bias.items():
            if not isinstance(token, numbers.Integral):
                raise ConfigError(f"logit_bias must map token ids to numbers: {token!r:.60} is no token id")
            if not isinstance(bias, numbers.Real) or not (bias == -math.inf or abs(bias) <= BIAS_LIMIT):
                raise ConfigError(
                    f"logit_bias must be -inf (forbidden) or numbers from -{BIAS_LIMIT:g} to {BIAS_LIMIT:g}, "
                    f"not {bias!r:.60}"
                )


@dataclass(frozen=True)
class DraftConfig:
    """How drafting is decided and verified.

    Attributes:
        draft: "auto" (0..draft_max, adaptive), "off", or an int: always that many.
        draft_max: the most tokens drafted in one round, 1..16.
        draft_first: the draft length while nothing was measured yet.
        verify: "auto", "token" (Leviathan et al. 2023) or "block" (Sun et al. 2025).
        temperature: the draft's own temperature; None takes the target's. Any value is exact.
        vocab: "any" maps a draft of another vocabulary to the target's tokens; "same" refuses it.
    """

    draft: int | str = "auto"
    draft_max: int = DRAFT_MAX_DEFAULT
    verify: str = "auto"
    temperature: float | None = None
    draft_first: int = 4
    vocab: str = "any"

    def __post_init__(self) -> None:
        require_whole("draft_first", self.draft_first, 0, DRAFT_MAX_LIMIT)
        require_whole("draft_max", self.draft_max, 1, DRAFT_MAX_LIMIT)
        if self.temperature is not None:
            require_number("draft_temperature", self.temperature, *LIMITS["temperature"])
        if self.verify not in ("auto", "token", "block"):
            raise ConfigError(f"verify must be auto, token or block, not {self.verify!r}")
        require_draft_vocab(self.vocab)
        object.__setattr__(self, "draft", parse_draft(self.draft))
        if isinstance(self.draft, int) and self.draft > self.draft_max:
            object.__setattr__(self, "draft_max", self.draft)


def parse_draft(value: object) -> int | str:
    """Read `--draft` and the like: "auto", "off", or a number of tokens from 1 to 16 (0 is "off").

    Raises:
        ConfigError: anything else.
    """
    if isinstance(value, str) and value.strip().lower() in ("auto", "off"):
        return value.strip().lower()
    if isinstance(value, bool):
        return "auto" if value else "off"
    try:
        number = -1 if isinstance(value, float) else int(value)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number <= DRAFT_MAX_LIMIT:
        raise ConfigError(f"draft must be auto, off, or a number from 1 to {DRAFT_MAX_LIMIT}, not {value!r}")
    return number or "off"


def require_draft_vocab(value: object) -> None:
    """Raise ConfigError unless `value` is one of `DRAFT_VOCABS`."""
    if value not in DRAFT_VOCABS:
        raise ConfigError(f"draft_vocab must be {' or '.join(DRAFT_VOCABS)}, not {value!r}")


def kv_type(value: int | str | None, *, name: str) -> int | None:
    """The ggml number of a KV cache type given by name ("q8_0") or number.

    Raises:
        ConfigError: an unknown name or number.
    """
    if value is None or value in KV_TYPES.values():
        return int(value) if value is not None else None
    if not isinstance(value, str) or value.lower() not in KV_TYPES:
        raise ConfigError(f"{name} must be one of {', '.join(KV_TYPES)}, not {value!r}")
    return KV_TYPES[value.lower()]


def one_line(text: str, limit: int = 200) -> str:
    """`text` without line breaks, shortened to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
