"""Answers of a real pair, recorded by scripts/record_rounds, replayed on a machine of given costs.

At every position it is known how sure the draft was of five tokens in a row and how likely each was to survive, so a
controller can be driven through the text as the engine would, lookups included. Returned is simulated time.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from simulator import Machine

from specgguf.controller import Adaptive, Fixed
from specgguf.lookup import LookupDrafter
from specgguf.rounds import Plan, Round
from specgguf.sampling import Law

N_DRAFT = 5
N_VOCAB = 151_936


@dataclass(frozen=True)
class Position:
    """What the draft did at one place of the text: see scripts/record_rounds."""

    confidences: tuple[float, ...]
    survival: tuple[float, ...]
    overlap: float


@dataclass(frozen=True)
class Text:
    """One recorded answer."""

    kind: str
    temperature: float
    prompt: list[int]
    text: list[int]
    positions: list[Position]


def load() -> list[Text]:
    """All recorded answers."""
    saved = json.loads(Path(__file__).with_name("recorded.json").read_text())
    return [
        Text(
            t["kind"],
            t["temperature"],
            t["prompt"],
            t["text"],
            [Position(tuple(c), tuple(s), overlap) for c, s, overlap in t["positions"]],
        )
        for t in saved
    ]


def replay(controller: Adaptive | Fixed, text: Text, machine: Machine, *, seed: int, n_turns: int = 4) -> float:
    """Seconds of giving the same answer `n_turns` times, each from empty caches."""
    source = np.random.default_rng(seed)
    return sum(_Turn(controller, text, machine, source).run() for _ in range(n_turns))


class _Turn:
    def __init__(self, controller: Adaptive | Fixed, text: Text, machine: Machine, source: np.random.Generator) -> None:
        self.controller, self.text, self.machine, self.source = controller, text, machine, source
        self.lookup = LookupDrafter(N_VOCAB, frozenset()) if isinstance(controller, Adaptive) else None
        self.n_cached = 0  # tokens that the draft has read
        self.plain: list[Position] = []

    def run(self) -> float:
        if isinstance(self.controller, Adaptive):
            self.controller.new_turn()
        done, seconds = 0, 0.0
        while done < len(self.text.text):
            round = self.round(done)
            self.controller.observe(round)
            done += len(round.tokens)
            seconds += round.draft_s + round.verify_s + round.host_s
        return seconds

    def round(self, done: int) -> Round:
        text, machine = self.text, self.machine
        committed = text.prompt + text.text[:done]
        offer = self.lookup.offer(committed) if self.lookup is not None else None
        plan = self.controller.plan(len(text.text) - done - 1, offer)
        probe: tuple[tuple[float, float], ...] = ()
        survival: tuple[float, ...] = ()
        draft_s, n_synced = 0.0, 0
        if plan.probe and self.plain:
            scored = self.plain[-plan.probe :]
            probe = tuple((p.confidences[0], p.overlap) for p in scored)
            draft_s += machine.sync_s * min(len(committed) - self.n_cached, len(scored) + 16)
        if plan.source == "lookup":
            assert offer is not None
            survival = self.looked_up(offer.tokens[: plan.n_max], done)
        elif plan.n_max:
            n_asked, survival = self.drafted(plan, text.positions[done])
            n_synced = len(committed) - self.n_cached
            draft_s += n_asked * machine.draft_s * self.noise() + (machine.sync_s * n_synced if n_synced > 2 else 0.0)
        alive = np.minimum.accumulate(survival) if survival else np.empty(0)
        accepted = int((self.source.random() < alive).sum())
        if n_synced:
            self.n_cached = len(committed) + min(accepted, len(survival) - 1)
        if n_synced or survival:
            self.plain.clear()
        else:
            self.plain.append(text.positions[done])
        n = min(accepted + 1, len(text.text) - done)
        return Round(
            tokens=tuple(text.text[done : done + n]),
            n_from_draft=min(accepted, n),
            draft_n=len(survival),
            draft_n_accepted=accepted,
            survival=survival,
            source=plan.source,
            probe=probe,
            n_synced=n_synced,
            n_context=len(committed),
            draft_s=draft_s,
            verify_s=machine.passes(len(survival) + 1) * self.noise() if done else 0.0,
            host_s=machine.host_s,
        )

    def drafted(self, plan: Plan, position: Position) -> tuple[int, tuple[float, ...]]:
        """How many draft decodes were asked for, and the survival of what was drawn."""
        n = 0
        while n < min(plan.n_max, len(position.confidences)):
            law = Law(np.array([1], dtype=np.int32), np.ones(1), position.confidences[n])
            if not plan.go_on(n, law):
                return n + 1, self.padded(position, n)
            n += 1
            if n == plan.n_max or not plan.go_on(n, None):
                break
        return n, self.padded(position, n)

    @staticmethod
    def padded(position: Position, n: int) -> tuple[float, ...]:
        """Survival is recorded up to the first 0."""
        return (*position.survival[:n], *(0.0,) * (n - len(position.survival)))

    def looked_up(self, tokens: tuple[int, ...], done: int) -> tuple[float, ...]:
        """An offered token survives where the text has it."""
        right = [token == own for token, own in zip(tokens, self.text.text[done:], strict=False)]
        return tuple(np.cumprod([*right, *[False] * (len(tokens) - len(right))], dtype=float))

    def noise(self) -> float:
        return float(np.exp(self.machine.noise * self.source.standard_normal()))
