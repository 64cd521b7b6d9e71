"""How likely a drafted token is to survive, by its position and by how sure the draft was.

Counts are the verifier's own survival probabilities, not coin flips: A += P[j], B += P[j−1] − P[j], discounted
by `GAMMA` a round. P is the verifier's survival under either rule, so the estimate is unbiased for both. It
knows no costs and draws no random numbers: an upper confidence bound stands for exploration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

GAMMA = 0.93
PRIOR_MEAN = 0.8  # optimistic: a few rounds at the start cost little, never beginning costs everything
PRIOR_WEIGHT = 2.0
EDGES = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # of the draft's confidence in its likeliest token


class Beta:
    """Discounted counts of survived and lost, with a prior."""

    __slots__ = ("lost", "prior", "survived")

    def __init__(self, prior: float) -> None:
        self.survived = self.lost = 0.0
        self.prior = prior

    @property
    def weight(self) -> float:
        return self.survived + self.lost

    @property
    def mean(self) -> float:
        """At most 1: under the block rule P[j] may exceed P[j-1] in a single round, so `lost` may fall below 0."""
        return min(1.0, (self.survived + PRIOR_WEIGHT * self.prior) / (self.weight + PRIOR_WEIGHT))

    @property
    def upper(self) -> float:
        """One standard error above the mean, at most 1."""
        mean = self.mean
        return min(1.0, mean + math.sqrt(mean * (1.0 - mean) / (self.weight + PRIOR_WEIGHT)))

    def add(self, survived: float, lost: float) -> None:
        self.survived += survived
        self.lost += lost

    def discount(self, gamma: float) -> None:
        self.survived *= gamma
        self.lost *= gamma


class Acceptance:
    """Running acceptance estimates for up to `draft_max` positions."""

    def __init__(self, draft_max: int) -> None:
        self.by_position = [Beta(PRIOR_MEAN) for _ in range(draft_max)]
        middles = (0.2, 0.4, 0.6, 0.78, 0.9, 0.97, 0.995)
        self.by_confidence = [Beta(0.25 + 0.7 * middle) for middle in middles]

    def given(self, confidence: float) -> float:
        """The chance that a token drafted with this confidence is accepted, once reached."""
        return self.by_confidence[_bin(confidence)].mean

    def observe(self, survival: Sequence[float], confidences: Sequence[float], stopped: bool) -> None:
        """One drafted round.

        Args:
            survival: P[1..], see `Verdict.survival`; shorter than the draft where it fell to 0.
            confidences: of the drafted tokens, and when `stopped` of the one that was not drawn, which counts
                with its expected acceptance so that stopping does not flatter the position.
            stopped: the go-on rule ended the draft.
        """
        for beta in (*self.by_position, *self.by_confidence):
            beta.discount(GAMMA)
        before = 1.0
        n_drafted = len(confidences) - stopped
        for j in range(n_drafted):
            after = survival[j] if j < len(survival) else 0.0
            self.by_position[j].add(after, before - after)
            self.by_confidence[_bin(confidences[j])].add(after, before - after)
            before = after
        if stopped and n_drafted < len(self.by_position):
            chance = self.given(confidences[-1])
            self.by_position[n_drafted].add(before * chance, before * (1.0 - chance))

    def soften(self, factor: float = 0.5) -> None:
        """A new turn: what was learned counts less."""
        for beta in (*self.by_position, *self.by_confidence):
            beta.discount(factor)


def _bin(confidence: float) -> int:
    return sum(confidence >= edge for edge in EDGES)
