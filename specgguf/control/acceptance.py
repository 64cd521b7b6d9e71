"""How likely a drafted token is to survive, by its position and by how sure the draft was.

Counts are the verifier's own survival probabilities, not coin flips: A += P[j], B += P[j−1] − P[j], discounted
by `GAMMA` with each observation. P is the verifier's survival under either rule, so the estimates are unbiased
for both. This module knows no costs and draws no random numbers; the priors are optimistic, because a few
rounds at the start cost little and never beginning costs everything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from specgguf.decode.records import FORCED

GAMMA = 0.98  # about the last fifty observations count
PRIOR_MEAN = 0.8
PRIOR_WEIGHT = 4.0  # observations that the prior is worth; it fades as they come
STALE = 0.5  # of what was known, when a rest is probed
POOLED_WEIGHT = 3.0  # observations that the mean over positions is worth at a single position
EDGES = (0.3, 0.5, 0.7, 0.85, 0.95, 0.99)  # of the draft's confidence in its likeliest token
MIDDLES = (0.2, 0.4, 0.6, 0.78, 0.9, 0.97, 0.995)
BOUND = 0.5  # standard deviations between an estimate and its upper confidence bound
MATCH_PRIORS = {2: 0.4, 3: 0.5, 4: 0.65, FORCED: 0.99}  # of candidates, by the length of the n-gram found


class Count:
    """A discounted count of survived and lost."""

    __slots__ = ("lost", "prior", "survived")

    def __init__(self, prior: float = PRIOR_MEAN, weight: float = PRIOR_WEIGHT) -> None:
        self.prior = (weight * prior, weight * (1.0 - prior))
        self.survived, self.lost = self.prior

    @property
    def weight(self) -> float:
        return self.survived + self.lost

    @property
    def mean(self) -> float:
        # Block verification's P may rise along a draft, so `lost` may be negative for a while.
        return min(self.survived / self.weight, 1.0) if self.weight > 0.0 else 0.0

    def add(self, survived: float, lost: float) -> None:
        keep = 1.0 - (1.0 - GAMMA) * min(survived + lost, 1.0)
        self.survived = keep * self.survived + survived
        self.lost = keep * self.lost + lost

    def fade(self, share: float) -> None:
        """Let what was learned, the prior too, count less by `share`; the mean stays."""
        self.survived *= 1.0 - share
        self.lost *= 1.0 - share

    def soften(self, share: float) -> None:
        """Go back towards the prior by `share`."""
        self.survived += share * (self.prior[0] - self.survived)
        self.lost += share * (self.prior[1] - self.lost)


class Acceptance:
    """Running acceptance estimates for up to `draft_max` positions."""

    def __init__(self, draft_max: int) -> None:
        self.pooled = Count()
        self.by_position = [Count(weight=0.0) for _ in range(draft_max)]
        self.by_confidence = [Count(0.15 + 0.8 * middle) for middle in MIDDLES]
        self.by_target = [Count(middle) for middle in MIDDLES]
        self.by_match = {size: Count(prior) for size, prior in MATCH_PRIORS.items()}

    def at(self, position: int) -> float:
        """The chance that the token at `position` (from 0) is accepted once it is reached."""
        own = self.by_position[position]
        return min((own.survived + POOLED_WEIGHT * self.pooled.mean) / (own.weight + POOLED_WEIGHT), 1.0)

    def bound(self, position: int) -> float:
        """An upper confidence bound of `at`: what to believe before giving up on drafting, since a rest learns
        little and a drafted round much."""
        mean, weight = self.at(position), self.by_position[position].weight + POOLED_WEIGHT
        return min(mean + BOUND * math.sqrt(max(mean * (1.0 - mean), 0.0) / (weight + 1.0)), 1.0)

    def given(self, confidence: float) -> float:
        """The chance that a token drafted with this confidence is accepted, once reached."""
        return self.by_confidence[_bin(confidence)].mean

    def expected_by_target(self, targets: Sequence[float]) -> float:
        """What the target's own confidences along a text say of a draft there, at no cost: where it is sure, both
        mostly agree. How far that holds for this draft is learned with each token that both saw."""
        return sum(self.by_target[_bin(c)].mean for c in targets) / len(targets)

    def adopt(self, targets: Sequence[float]) -> None:
        """Believe what `targets` hint at."""
        self._anew([self.by_target[_bin(c)].mean for c in targets])

    def observe(
        self, survival: Sequence[float], confidences: Sequence[float], stopped: bool, targets: Sequence[float] = ()
    ) -> None:
        """One drafted round.

        Args:
            survival: P[1..], see `Verdict.survival`; shorter than the draft where it fell to 0.
            confidences: of the drafted tokens, and when `stopped` of the one that was not drawn, which counts
                with its expected acceptance so that stopping does not flatter the position.
            stopped: a token was not drawn because of the law that it would have been drawn from.
            targets: the target's own confidences at the positions that were decided.
        """
        before = 1.0
        n_drafted = len(confidences) - stopped
        for j in range(n_drafted):
            after = survival[j] if j < len(survival) else 0.0
            for count in (self.pooled, self.by_position[j], self.by_confidence[_bin(confidences[j])]):
                count.add(after, before - after)
            if j < len(targets):
                self.by_target[_bin(targets[j])].add(after, before - after)
            before = after
        if stopped and n_drafted < len(self.by_position):
            chance = self.given(confidences[-1])
            for count in (self.pooled, self.by_position[n_drafted]):
                count.add(before * chance, before * (1.0 - chance))

    def observe_match(self, match: int, survival: Sequence[float], n_drafted: int) -> None:
        """A round whose `n_drafted` tokens followed an n-gram of length `match`."""
        before = 1.0
        for j in range(n_drafted):
            after = survival[j] if j < len(survival) else 0.0
            self.by_match[match].add(after, before - after)
            before = after

    def observe_candidate(self, match: int, candidates: Sequence[int], tokens: Sequence[int]) -> None:
        """What followed an n-gram, beside the tokens that came without it: whether they agree is a fair coin of the
        chance that the offered one had, and costs nothing."""
        for one, token in zip(candidates, tokens, strict=False):
            self.by_match[match].add(float(one == token), float(one != token))
            if one != token:
                return

    def observe_overlaps(self, overlaps: Sequence[tuple[float, float]], targets: Sequence[float] = ()) -> None:
        """Plain text scored by the draft: (confidence, Σ min(p, q)) per token, the chance that a token drafted
        there would have been accepted; `targets` are the target's own confidences there."""
        chances = [min(max(overlap, 0.0), 1.0) for _, overlap in overlaps]
        self._anew(chances)
        for (confidence, _), chance in zip(overlaps, chances, strict=True):
            self.by_confidence[_bin(confidence)].add(chance, 1.0 - chance)
        for target, chance in zip(targets, chances, strict=False):
            self.by_target[_bin(target)].add(chance, 1.0 - chance)

    def _anew(self, chances: Sequence[float]) -> None:
        """First tokens had these chances in the latest text. What was known of the text before is old by then, and
        counts less."""
        if chances:
            for count in (self.pooled, *self.by_position):
                count.fade(STALE)
        for chance in chances:
            for count in (self.pooled, self.by_position[0]):
                count.add(chance, 1.0 - chance)

    def soften(self, share: float = 0.25) -> None:
        """A new turn: what was learned of the text counts less, and least of all how much of it repeats itself. How
        often this draft agrees with a sure target (`by_target`) is not the text's, and stays."""
        for count in (self.pooled, *self.by_position, *self.by_confidence):
            count.soften(share)
        for count in self.by_match.values():
            count.soften(3 * share)


def _bin(confidence: float) -> int:
    return sum(confidence >= edge for edge in EDGES)
