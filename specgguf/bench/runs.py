"""Plain, fixed and adaptive drafting on the same prompts, interleaved: the runs, and what each one took.

A `Trial` is a generation to be measured, a `Sample` what came of it. Settings that are compared run back to back
within a repeat, so that a machine that slows down slows all of them. What the samples say is `recommend`'s business;
where and of what they were taken is `provenance`'s. It prints nothing and keeps nothing.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgguf.config import SamplingParams, from_mapping
from specgguf.errors import ConfigError, Unsupported

if TYPE_CHECKING:
    from specgguf.api import SpeculativeLlama

KINDS = ("code", "json", "edit", "explain", "story")
OWN_KIND = "own"  # prompts of a user's file that name no kind
TOKENS_DEFAULT = 128
WARM_UP_TOKENS = 12
TEXT_SEPARATOR = "---"  # a line of its own between the prompts of a .txt


@dataclass(frozen=True)
class Prompt:
    """A question and what sort of answer it asks for."""

    prompt: str
    kind: str = OWN_KIND

    def __post_init__(self) -> None:
        for name in ("prompt", "kind"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ConfigError(f"{name} must be a text, not {value!r}")


@dataclass(frozen=True)
class Trial:
    """A generation to be measured.

    Attributes:
        kind, index, prompt: the prompt, and its place among those of its kind.
        repeat: counts from 0; all settings of a repeat run back to back with the same prompt and seed.
        draft: "off", "auto", or an int: always that many.
    """

    kind: str
    index: int
    prompt: str
    repeat: int
    draft: int | str
    seed: int


@dataclass(frozen=True)
class Sample:
    """One measured generation.

    Attributes:
        engine: "specgguf", or the name of another program that ran the same prompt.
        n_timed: the generated tokens whose passes lie in `predicted_s`: the pass that reads the prompt gives the
            first one for nothing, unless it already verified a draft.
        first_s, total_s: seconds to the first token, and to the last.
        prompt_s: of those, the target's reading of the prompt. The draft's reading is a cost of drafting.
        draft_s, verify_s: seconds in the drafter and in the target's forward passes; decode_s: in llama.cpp in all.
        reached_by_position, accepted_by_position: see `stats.Stats`.
        rounds_by_draft_n: how many rounds drafted 0, 1, 2, … tokens.
    """

    engine: str
    kind: str
    index: int
    repeat: int
    draft: int | str
    temperature: float
    seed: int
    n_prompt: int
    n_generated: int
    n_timed: int
    first_s: float
    total_s: float
    prompt_s: float
    draft_s: float = 0.0
    verify_s: float = 0.0
    decode_s: float | None = None
    n_rounds: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    reached_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    rounds_by_draft_n: tuple[int, ...] = ()
    finish_reason: str = ""

    @classmethod
    def load(cls, values: Mapping[str, Any]) -> Sample:
        """A sample as JSON gives it back. Raises ConfigError for what is none."""
        tuples = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
        return from_mapping(cls, {**values, **tuples}, where="a sample")

    @property
    def predicted_s(self) -> float:
        """Seconds of generating, everything but reading the prompt."""
        return max(self.total_s - self.prompt_s, 0.0)

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of generating."""
        return self.n_timed / self.predicted_s if self.predicted_s else 0.0


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """The built-in prompts, or those of a file: .jsonl with `prompt` and perhaps `kind` on each line, or .txt with
    one prompt, or several between lines of `---`.

    Raises:
        ConfigError: nothing in it, or a line that is no prompt. OSError: no such file.
    """
    if path is None:
        text = resources.files(__package__).joinpath("prompts.jsonl").read_text(encoding="utf-8")
        return _read_lines(text, "prompts.jsonl")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    if path.suffix == ".jsonl":
        prompts = _read_lines(text, str(path))
    else:
        parts: list[list[str]] = [[]]
        for line in text.splitlines(keepends=True):
            if line.strip() == TEXT_SEPARATOR:
                parts.append([])
            else:
                parts[-1].append(line)
        prompts = [Prompt("".join(part).strip()) for part in parts if "".join(part).strip()]
    if not prompts:
        raise ConfigError(f"{path} holds no prompt", hint='lines of {"kind": "code", "prompt": "…"}, or plain text')
    return prompts


def _read_lines(text: str, where: str) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise ConfigError(f"{where}, line {number}: not JSON: {error}") from error
        if not isinstance(values, dict) or "prompt" not in values:
            raise ConfigError(f"{where}, line {number}: an object with a prompt is wanted")
        prompts.append(from_mapping(Prompt, values, where=f"{where}, line {number}"))
    return prompts


def schedule(
    prompts: Sequence[Prompt], drafts: Sequence[int | str], repeats: int, *, seed: int = 1, first: int = 0
) -> list[Trial]:
    """What to run, in order: kind by kind, so that whatever is interrupted has whole kinds; in a kind repeat by
    repeat, every second one backwards. A prompt serves two repeats, an odd and an even one, before the next of
    its kind has its turn. Each repeat has its own seed, shared by all settings. `first` repeats were run before."""
    trials = []
    for kind in dict.fromkeys(p.kind for p in prompts):
        texts = [p.prompt for p in prompts if p.kind == kind]
        for repeat in range(first, first + repeats):
            index = repeat // 2 % len(texts)
            for draft in drafts if repeat % 2 == 0 else reversed(drafts):
                trials.append(Trial(kind, index, texts[index], repeat, draft, seed + repeat))
    return trials


def prompt_ids(engine: SpeculativeLlama, prompt: str, *, enable_thinking: bool | None = None) -> list[int]:
    """A prompt as a user's turn by the model's own template; as it is where the model has none."""
    try:
        return engine.render([{"role": "user", "content": prompt}], enable_thinking=enable_thinking)
    except Unsupported:
        return engine.tokenize(prompt.encode())


def measure(
    engine: SpeculativeLlama,
    trial: Trial,
    params: SamplingParams,
    *,
    draft_max: int | None = None,
    enable_thinking: bool | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Sample:
    """Run one trial from empty caches. `params` but for the seed, which is the trial's.

    Raises:
        Cancelled: the engine was told to stop. ContextFull: the prompt does not fit.
    """
    tokens = prompt_ids(engine, trial.prompt, enable_thinking=enable_thinking)
    engine.reset()
    native_before, started = engine.decode_s, clock()
    first_s, n_free, finish_reason = 0.0, 0, ""
    generation = engine.generate(tokens, replace(params, seed=trial.seed), draft=trial.draft, draft_max=draft_max)
    for round in generation.rounds():
        if not first_s:
            first_s = clock() - started
            n_free = 0 if round.draft_n else len(round.tokens)
        finish_reason = round.finish_reason or ""
    total_s = clock() - started
    stats = generation.stats
    rounds = Counter(stats.draft_lengths)
    return Sample(
        engine="specgguf",
        kind=trial.kind,
        index=trial.index,
        repeat=trial.repeat,
        draft=trial.draft,
        temperature=params.temperature,
        seed=trial.seed,
        n_prompt=stats.n_prompt,
        n_generated=stats.n_generated,
        n_timed=stats.n_generated - n_free,
        first_s=first_s,
        total_s=total_s,
        prompt_s=stats.prompt_s,
        draft_s=stats.draft_s,
        verify_s=stats.verify_s,
        decode_s=engine.decode_s - native_before,
        n_rounds=stats.n_rounds,
        draft_n=stats.draft_n,
        draft_n_accepted=stats.draft_n_accepted,
        reached_by_position=tuple(stats.reached_by_position),
        accepted_by_position=tuple(stats.accepted_by_position),
        rounds_by_draft_n=tuple(rounds[n] for n in range(max(rounds, default=-1) + 1)),
        finish_reason=finish_reason,
    )


def warm_up(engine: SpeculativeLlama, trial: Trial, params: SamplingParams, **keywords: Any) -> Sample:
    """A few tokens with the trial's setting, to read the weights from disk and learn the speed; not a result."""
    return measure(engine, trial, replace(params, max_tokens=WARM_UP_TOKENS), **keywords)


def run(engine: SpeculativeLlama, trials: Sequence[Trial], params: SamplingParams, **keywords: Any) -> Iterator[Sample]:
    """Measure `trials` in turn. See `measure` for the keywords and for what is raised."""
    for trial in trials:
        yield measure(engine, trial, params, **keywords)
