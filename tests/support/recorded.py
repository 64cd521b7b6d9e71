"""Answers of a real pair, recorded by scripts/bench/run record-rounds: scripts for the simulator, lookups included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from specgguf.decode.drafters import NgramDrafter
from specgguf.decode.records import Candidate

N_DRAFT = 7
N_VOCAB = 151_936


@dataclass(frozen=True)
class Position:
    """What the draft did at one place of the text: see scripts/bench/run record-rounds."""

    confidences: tuple[float, ...]
    survival: tuple[float, ...]  # up to the first 0
    overlap: float
    target: float  # how sure the target was there


class Recorded:
    """One recorded answer: see `simulator.Script`."""

    def __init__(
        self, kind: str, temperature: float, prompt: list[int], text: list[int], positions: list[Position]
    ) -> None:
        self.kind, self.temperature = kind, temperature
        self.prompt, self.text, self.positions = prompt, text, positions
        self.n_prompt, self.n_tokens = len(prompt), len(text)
        self._lookup = NgramDrafter(N_VOCAB, frozenset())

    def token(self, done: int, i: int, source: np.random.Generator) -> tuple[float, float] | None:
        here = self.positions[done]
        if i >= len(here.confidences):
            return None
        before, after = (self._survival(here, n) for n in (i, i + 1))
        return here.confidences[i], min(after / before, 1.0) if before > 0.0 else 0.0

    @staticmethod
    def _survival(here: Position, n: int) -> float:
        """The chance that the first n tokens survive."""
        if n == 0:
            return 1.0
        return here.survival[n - 1] if n <= len(here.survival) else 0.0

    def scored(self, done: int, n: int, source: np.random.Generator) -> tuple[tuple[float, float], ...]:
        return tuple((p.confidences[0], p.overlap) for p in self.positions[max(done - n, 0) : done])

    def written(self, done: int, n: int) -> tuple[int, ...]:
        return tuple(self.text[done : done + n])

    def candidate(self, done: int) -> Candidate | None:
        return self._lookup.candidate(self.prompt + self.text[:done])

    def ngram_chances(self, done: int, tokens: Sequence[int]) -> list[float]:
        """An offered token survives where the text has it."""
        return [float(self.text[done + i : done + i + 1] == [token]) for i, token in enumerate(tokens)]


def load() -> list[Recorded]:
    """All recorded answers."""
    saved = json.loads(Path(__file__).with_name("recorded.json").read_text())
    return [
        Recorded(
            answer["kind"],
            answer["temperature"],
            answer["prompt"],
            answer["text"],
            [Position(tuple(c), tuple(s), *rest) for c, s, *rest in answer["positions"]],
        )
        for answer in saved
    ]
