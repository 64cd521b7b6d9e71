"""A machine and a script on paper: drives a controller through rounds whose costs and acceptance are known.

Each drafted token has a confidence and a chance of acceptance: drawn from a seeded source here, recorded ones in
`recorded`. Costs may carry noise and single slow outliers. What is returned is simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from specgguf.control.calibration import calibrated_sizes, largest_batch
from specgguf.control.controller import Adaptive, Fixed
from specgguf.control.costs import Costs
from specgguf.decode.drafters import PENDING_MAX
from specgguf.decode.records import Candidate, Plan, Round
from specgguf.decode.sampling import Distribution


@dataclass
class Machine:
    """Seconds: target passes by width (index 0 is width 1), a draft step, catching up per token."""

    verify_s: Sequence[float]
    draft_s: float
    draft_prefill_s: float = 0.004
    host_s: float = 0.0005
    noise: float = 0.03
    outliers: float = 0.0  # share of passes that take three times as long
    growth: float = 0.0  # relative growth of verify per 1000 tokens of context
    checkpoint: bool = False  # a rejection restores the last mark: what was committed since is read again
    load: Callable[[int], float] = lambda _tokens: 1.0  # how much longer all passes take once so many are written

    def passes(self, width: int) -> float:
        """Seconds of a target pass, beyond the table too: on the line through its ends."""
        n_listed = len(self.verify_s)
        slope = (self.verify_s[-1] - self.verify_s[0]) / (n_listed - 1)
        return self.verify_s[min(width, n_listed) - 1] + slope * max(width - n_listed, 0)


@dataclass
class Text:
    """How well a draft does: `sure` is the share of easy tokens, accepted with `easy`; the others with `hard`."""

    sure: float
    easy: float = 0.97
    hard: float = 0.35


class Script(Protocol):
    """A text of `n_tokens` tokens after a prompt of `n_prompt`, and how a draft does at each place of it."""

    @property
    def n_prompt(self) -> int: ...

    @property
    def n_tokens(self) -> int: ...

    def token(self, done: int, i: int, source: np.random.Generator) -> tuple[float, float] | None:
        """The confidence of token i of a draft after `done` tokens, and its chance once reached; None: it ended."""

    def scored(self, done: int, n: int, source: np.random.Generator) -> tuple[tuple[float, float], ...]:
        """Confidence and overlap of the latest `n` plain tokens."""

    def written(self, done: int, n: int) -> tuple[int, ...]:
        """The ids of `n` tokens after `done`."""

    def candidate(self, done: int) -> Candidate | None:
        """What an n-gram match finds."""

    def ngram_chances(self, done: int, tokens: Sequence[int]) -> list[float]:
        """The chances of its tokens."""


@dataclass
class Drawn:
    """A script whose every token is drawn; `text(position)` says what it is like there."""

    text: Callable[[int], Text]
    n_tokens: int
    n_prompt: int = 0

    def token(self, done: int, i: int, source: np.random.Generator) -> tuple[float, float]:
        kind = self.text(done)
        easy = bool(source.random() < kind.sure)
        confidence = float(source.beta(20, 1.0) if easy else source.beta(3, 3))
        return confidence, kind.easy if easy else kind.hard

    def scored(self, done: int, n: int, source: np.random.Generator) -> tuple[tuple[float, float], ...]:
        return tuple(self.token(done, 0, source) for _ in range(n))

    def written(self, done: int, n: int) -> tuple[int, ...]:
        return (1,) * n

    def candidate(self, done: int) -> None:
        return None

    def ngram_chances(self, done: int, tokens: Sequence[int]) -> list[float]:
        return []


@dataclass
class Outcome:
    tokens: int = 0
    seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def run(
    controller: Adaptive | Fixed,
    machine: Machine,
    text: Callable[[int], Text],
    *,
    n_tokens: int,
    seed: int = 1,
    n_turns: int = 1,
) -> Outcome:
    """`n_tokens` per turn; `text(position)` says what the text is like there."""
    return follow(controller, machine, Drawn(text, n_tokens), seed=seed, n_turns=n_turns)


def follow(
    controller: Adaptive | Fixed, machine: Machine, script: Script, *, seed: int = 1, n_turns: int = 1
) -> Outcome:
    """The script, `n_turns` times, each from empty caches."""
    return converse(controller, machine, [script] * n_turns, seed=seed)


def converse(controller: Adaptive | Fixed, machine: Machine, scripts: Sequence[Script], *, seed: int = 1) -> Outcome:
    """The scripts in turn, each from empty caches."""
    source = np.random.default_rng(seed)
    out = Outcome()
    for script in scripts:
        if isinstance(controller, Adaptive):
            controller.new_turn()
        _turn(controller, machine, script, source, out)
    return out


def _turn(
    controller: Adaptive | Fixed, machine: Machine, script: Script, source: np.random.Generator, out: Outcome
) -> None:
    done, lag, pending = 0, 1 + script.n_prompt, 1
    first = True
    while done < script.n_tokens:
        candidate = script.candidate(done)
        plan = controller.plan(script.n_tokens - done - 1, candidate)
        load = machine.load(out.tokens)
        probe_s, prefill_s = 0.0, 0.0
        probe = script.scored(done, plan.probe, source) if plan.probe else ()
        if probe:
            probe_s = machine.draft_prefill_s * min(lag, len(probe) + 16) * load
        if plan.source == "ngram":
            assert candidate is not None
            asked, chances = 0, script.ngram_chances(done, candidate.tokens[: plan.n_max])
        else:
            asked, chances = _drafted(plan, script, done, source)
        survival = np.cumprod(chances) if chances else np.empty(0)
        accepted = 0
        for chance in chances:
            if source.random() >= chance:
                break
            accepted += 1
        n_draft_prefilled = lag if asked else 0
        draft_s = asked * machine.draft_s * _noise(machine, source) if asked else 0.0
        if n_draft_prefilled > 2:
            draft_s += n_draft_prefilled * machine.draft_prefill_s
        draft_s *= load
        width = len(chances) + 1
        grown = 1.0 + machine.growth * done / 1000
        if pending > PENDING_MAX and chances:
            prefill_s, pending = machine.passes(pending - 1) * grown * load, 1
        n_padding = plan.padding(pending + len(chances))
        n_pending = pending
        verify_s = machine.passes(pending + len(chances) + n_padding) * grown * load * _noise(machine, source)
        host_s = machine.host_s * width
        tokens = min(accepted + 1, script.n_tokens - done)
        pending = pending + tokens if machine.checkpoint and accepted < len(chances) else 1
        lag = 1 + (accepted == len(chances)) if asked else lag + tokens
        round = Round(
            tokens=script.written(done, tokens),
            n_from_draft=min(accepted, tokens),
            draft_n=len(chances),
            draft_n_accepted=accepted,
            survival=tuple(survival),
            source=plan.source,
            n_pending=n_pending,
            n_draft_prefilled=n_draft_prefilled,
            n_padding=n_padding,
            n_context=script.n_prompt + done,
            prefill_s=verify_s if first else prefill_s,
            draft_s=draft_s + probe_s,
            probe=probe,
            verify_s=0.0 if first else verify_s,
            host_s=host_s,
        )
        controller.observe(plan, round)
        first = False
        done += tokens
        out.tokens += tokens
        out.seconds += draft_s + verify_s + host_s + probe_s + prefill_s
        out.lengths.append(len(chances))


def _drafted(plan: Plan, script: Script, done: int, source: np.random.Generator) -> tuple[int, list[float]]:
    """How many draft decodes were asked for, and the chances of the tokens that were drawn."""
    chances: list[float] = []
    asked = 0
    while len(chances) < plan.n_max and (token := script.token(done, len(chances), source)) is not None:
        confidence, chance = token
        asked += 1
        distribution = Distribution(np.array([1], dtype=np.int32), np.ones(1), confidence)
        if not plan.keep_drafting(len(chances), distribution):
            break
        chances.append(chance)
        if len(chances) < plan.n_max and not plan.keep_drafting(len(chances), None):
            break
    return asked, chances


def _noise(machine: Machine, source: np.random.Generator) -> float:
    slow = 3.0 if source.random() < machine.outliers else 1.0
    return slow * float(np.exp(machine.noise * source.standard_normal()))


def calibrated(machine: Machine, draft_max: int, seed: int = 7) -> Costs:
    """What a calibration at load would have measured: the faster of two at each width."""
    source = np.random.default_rng(seed)

    def two(seconds: float) -> float:
        return seconds * min(_noise(machine, source), _noise(machine, source))

    pads = not machine.checkpoint
    verify_s = {n: two(machine.passes(n)) for n in calibrated_sizes(draft_max, pads=pads)}
    return Costs(
        largest_batch(draft_max, pads=pads), verify_s, two(machine.draft_s), two(machine.draft_prefill_s), pads=pads
    )


# Seconds measured on 2-core CPUs for a 1.5B target and a 0.5B draft; width 3 interpolated. TILES is Q8_0 where the
# weights are repacked for tiles of four and eight tokens.
F16 = Machine([0.105, 0.126, 0.133, 0.140, 0.151, 0.158], 0.014)
Q8 = Machine([0.062, 0.098, 0.113, 0.119, 0.204, 0.202], 0.015)
Q4 = Machine([0.030, 0.062, 0.083, 0.101, 0.127, 0.153], 0.014)
GPU = Machine([0.0200, 0.0204, 0.0208, 0.0212, 0.0216, 0.0220], 0.0030, draft_prefill_s=0.0001, host_s=0.0003)
METAL = Machine([0.020, 0.036, 0.052, 0.068, 0.084, 0.100], 0.004, draft_prefill_s=0.0002)
STEPS = Machine([0.050, 0.080, 0.080, 0.080, 0.080, 0.080], 0.004, draft_prefill_s=0.001)
TILES = Machine([0.0445, 0.118, 0.150, 0.166, 0.245, 0.275, 0.297, 0.163], 0.0115, draft_prefill_s=0.0025)
COSTLY_DRAFT = Machine([0.030, 0.033, 0.036, 0.039, 0.042, 0.045], 0.024)

CODE, JSON, EXPLAIN, STORY, HOSTILE = Text(0.93), Text(0.85), Text(0.6), Text(0.4, hard=0.3), Text(0.1, hard=0.15)
