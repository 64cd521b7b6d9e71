"""How many of a draft's tokens are worth keeping: by what its step takes here, and by what recorded answers ask for.

A smaller output matrix makes each step faster, and a token that is not in it is never proposed. Both are measured with
the whole draft: its step with and without the output matrix, and how likely it finds each token of recorded answers,
kept ones alone. It writes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from specgguf.fit import predict
from specgguf.models import hparams
from specgguf.models.hparams import HParams
from specgguf.native.context import Model
from specgguf.native.mapped.slimmed import open_draft
from specgguf.native.weights import Weights

SIZES = (8192, 16384, 24576, 32768, 49152, 65536, 98304)
TARGET_COST = 6.0  # steps of the whole draft that a pass of the target takes: the best size hardly depends on it
N_STEPS, N_TOKENS = 24, 640  # steps that are timed, and tokens of recorded answers that are read
_AT_ONCE, _N_CTX = 16, 1024

Clock = Callable[[], float]


@dataclass(frozen=True)
class Size:
    """One size, and what it brings.

    Attributes:
        n: tokens to keep; all of them for the whole draft.
        step_s: seconds of a draft step.
        acceptance: the draft's probability of a recorded token, in the mean.
        speed: against plain decoding, at the best draft length.
    """

    n: int
    step_s: float
    acceptance: float
    speed: float


@dataclass(frozen=True)
class Choice:
    """The whole draft, and the size that was chosen: the whole one where none pays."""

    whole: Size
    best: Size

    @property
    def pays(self) -> bool:
        return self.best.n < self.whole.n

    @property
    def kept(self) -> float:
        """Of the whole draft's acceptance, what is kept."""
        return self.best.acceptance / self.whole.acceptance

    @property
    def gain(self) -> float:
        """Against the whole draft."""
        return self.best.speed / self.whole.speed

    @property
    def why(self) -> str:
        """One line."""
        if not self.pays:
            return f"no size pays: a step of the whole draft takes {1e3 * self.whole.step_s:.1f} ms here"
        steps = f"{1e3 * self.best.step_s:.1f} ms instead of {1e3 * self.whole.step_s:.1f}"
        return (
            f"{self.best.n:,} tokens: a step takes {steps} here, and recorded answers keep {self.kept:.0%} of the"
            f" acceptance: about {self.gain:.2f}x the whole draft"
        )


@dataclass(frozen=True)
class StepTime:
    """Seconds of a draft step without its output matrix, and of that matrix per row."""

    base_s: float
    row_s: float

    def of(self, n: int) -> float:
        return self.base_s + n * self.row_s


def choose(path: Path, kept: Callable[[int], Sequence[int]], texts: Sequence[str] = ()) -> Choice:
    """The size with the most tokens per second.

    Args:
        path: the whole draft.
        kept: the ids that each size keeps.
        texts: recorded answers or the user's own texts; else some that come with specgguf.

    Raises: what `Weights` raises.
    """
    with _loaded(path) as (weights, model):
        step = step_time(model, hparams.of_file(path))
        tokens = _tokens(weights, texts or recorded_answers())
        sizes = [n for n in SIZES if n < weights.n_vocab] or [max(weights.n_vocab // 2, 1)]
        every = list(range(weights.n_vocab))
        accepted = acceptance(model, tokens, [*map(kept, sizes), every])
    return best(step, [*sizes, len(every)], accepted)


def best(step: StepTime, sizes: Sequence[int], accepted: Sequence[float]) -> Choice:
    """Of these sizes, the last of which is the whole draft, the fastest."""
    verify_s = TARGET_COST * step.of(sizes[-1])
    found = []
    for n, rate in zip(sizes, accepted, strict=True):
        costs = predict.PairCosts(step.of(n), lambda _n: verify_s)
        found.append(Size(n, step.of(n), rate, predict.best(costs, rate)[1]))
    return Choice(found[-1], max(reversed(found), key=lambda size: size.speed))


def recorded_answers() -> list[str]:
    """Answers to prompts of five kinds, which Qwen2.5-Coder 1.5B (Apache-2.0) gave at temperature 0."""
    lines = resources.files(__package__).joinpath("answers.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["answer"] for line in lines]


def step_time(model: Model, shape: HParams, clock: Clock = time.perf_counter) -> StepTime:
    """From steps with and without logits, by turns, the fastest of each: others only make one slower.

    Without logits llama.cpp leaves out the last layer's feed-forward block too; its part is taken off by its bytes.
    """
    seconds: tuple[list[float], list[float]] = [], []
    for i in range(2 * N_STEPS + 4):
        started = clock()
        model.extend([i % 7], i % 2)
        seconds[i % 2].append(clock() - started)
    model.clear()
    without, whole = (min(times[2:]) for times in seconds)
    of_output = shape.output_bytes / (shape.output_bytes + shape.layer_bytes[-1])
    output_s = max(whole - without, 0.0) * of_output
    return StepTime(whole - output_s, output_s / shape.n_vocab)


def acceptance(model: Model, tokens: Sequence[Sequence[int]], kept: Sequence[Sequence[int]]) -> list[float]:
    """For each set of ids: how likely the draft finds each token of these texts, proposing the set alone.

    That is the chance that a target which is sure of them accepts.
    """
    sets = [np.asarray(ids) for ids in kept]
    found, n = np.zeros(len(sets)), 0
    for text in tokens:
        model.clear()
        for start in range(0, len(text) - 1, _AT_ONCE):
            part = text[start : min(start + _AT_ONCE, len(text) - 1)]
            for logits, token in zip(model.extend(part, len(part)), text[start + 1 :], strict=False):
                weights = np.exp(logits - logits.max())
                found += [weights[token] / weights[ids].sum() * (token in ids) for ids in sets]
                n += 1
    model.clear()
    return [float(rate) for rate in found / max(n, 1)]


def _tokens(weights: Weights, texts: Sequence[str]) -> list[list[int]]:
    """Each text's first tokens, as many of each as all may have together."""
    share = max(N_TOKENS // len(texts), 2)
    return [weights.tokenize(text.encode())[:share] for text in texts]


@contextmanager
def _loaded(path: Path) -> Iterator[tuple[Weights, Model]]:
    weights = open_draft(str(path), {"n_gpu_layers": -1})  # where a draft runs; without such a device, on the CPU
    try:
        model = Model(weights, n_ctx=_N_CTX, n_outputs_max=_AT_ONCE)
        try:
            yield weights, model
        finally:
            model.close()
    finally:
        weights.close()
