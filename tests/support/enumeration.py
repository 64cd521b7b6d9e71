"""The output law of a program, exactly: a random source that walks every outcome of every draw.

`walk(run)` runs `run(rng)` once per path through its random decisions, depth first, and yields each result
with the path's probability. Where other tests of samplers draw a hundred thousand times and compare
frequencies, these compare laws, to rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from specgguf.decode.sampling import Rng

T = TypeVar("T")
H = TypeVar("H", bound=Hashable)


class EnumeratingRng(Rng):
    """Takes the outcomes that it is told to, then the first possible one of each further decision."""

    def __init__(self, path: Sequence[int]) -> None:
        super().__init__(0)
        self.path = list(path)  # the outcome taken at each decision
        self.left: list[list[int]] = []  # the possible outcomes after it, in order
        self.weight = 1.0

    def _decide(self, weights: Sequence[float]) -> int:
        """Follow the path, or take the first outcome of positive weight. Certain outcomes are no decision."""
        possible = [i for i, w in enumerate(weights) if w > 0.0]
        if len(possible) == 1:
            return possible[0]
        at = len(self.left)
        if at == len(self.path):
            self.path.append(possible[0])
        taken = self.path[at]
        self.left.append([i for i in possible if i > taken])
        self.weight *= weights[taken]
        return taken

    def categorical(self, probs: np.ndarray) -> int:
        total = float(probs.sum())
        assert np.isfinite(total), "a law that is no law"
        assert abs(total - 1.0) < 1e-9, "a law that does not sum to 1"
        return self._decide([float(p) / total for p in probs])

    def bernoulli(self, p: float) -> bool:
        assert 0.0 <= p < 1.0 + 1e-9, p
        return self._decide([min(p, 1.0), max(1.0 - p, 0.0)]) == 0


def walk(run: Callable[[Rng], T]) -> Iterator[tuple[float, T]]:
    """(probability, result) of every path through `run`; `run` must depend on nothing else."""
    path: list[int] | None = []
    while path is not None:
        rng = EnumeratingRng(path)
        result = run(rng)
        assert len(rng.left) == len(rng.path), "the program took another path than last time"
        yield rng.weight, result
        path = None
        for at in range(len(rng.left) - 1, -1, -1):
            if rng.left[at]:
                path = [*rng.path[:at], rng.left[at][0]]
                break


def output_distribution(run: Callable[[Rng], H]) -> dict[H, float]:
    """The law of `run`'s result."""
    distribution: dict[H, float] = defaultdict(float)
    for weight, result in walk(run):
        distribution[result] += weight
    return dict(distribution)


def expectation(run: Callable[[Rng], float]) -> float:
    """The mean of `run`'s result."""
    return sum(weight * value for weight, value in walk(run))


def total_variation(p: dict[H, float], q: dict[H, float]) -> float:
    """Half the sum of |p - q| over all results."""
    return 0.5 * sum(abs(p.get(x, 0.0) - q.get(x, 0.0)) for x in {*p, *q})
