"""How likely drafted tokens are to be accepted: on the whole, by the draft's confidence, and after n-gram matches.

Counts are the verifier's own survival probabilities, not coin flips: with P[j] the chance that the first j tokens
survive, a token adds P[j] to what survived and P[j−1] − P[j] to what was lost, so the estimates are unbiased under
both rules. This module knows no costs and draws no random numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .constants import CONFIDENCES, DECAY, MATCHES, NEW_TEXT, PRIOR, PRIOR_WEIGHT


class Count:
    """A discounted count of accepted and rejected tokens, which begins with a prior."""

    __slots__ = ("accepted", "rejected")

    def __init__(self, prior: float) -> None:
        self.accepted, self.rejected = PRIOR_WEIGHT * prior, PRIOR_WEIGHT * (1.0 - prior)

    @property
    def weight(self) -> float:
        """How many observations it stands for."""
        return self.accepted + self.rejected

    @property
    def mean(self) -> float:
        """The acceptance rate."""
        # Block verification's P may rise along a draft, so `rejected` may be negative for a while.
        return min(self.accepted / self.weight, 1.0)

    def add(self, accepted: float, rejected: float) -> None:
        """Count an observation; what was not reached (0, 0) is not forgotten either."""
        keep = 1.0 - (1.0 - DECAY) * min(accepted + rejected, 1.0)
        self.accepted = keep * self.accepted + accepted
        self.rejected = keep * self.rejected + rejected


class Acceptance:
    """Running acceptance estimates.

    Attributes:
        rate: of tokens that the draft model wrote, once reached.
        by_confidence: the same by the draft's confidence in its likeliest token, a count per bin of `CONFIDENCES`.
        by_match: of n-gram candidates, by the length of the match.
        n_seen: drafted or scored tokens so far; as long as it is 0, `rate` is the prior.
    """

    def __init__(self) -> None:
        self.rate = Count(PRIOR)
        self.by_confidence = [Count(prior) for prior in CONFIDENCES.values()]
        self.by_match = {size: Count(prior) for size, prior in MATCHES.items()}
        self.n_seen = 0

    def survival(self, n: int) -> list[float]:
        """The chances that the first 1, 2, … n tokens of a draft are all accepted."""
        return _powers(self.rate.mean, n)

    def ngram_survival(self, match: int, n: int) -> list[float]:
        """The same for what followed an n-gram of length `match`."""
        return _powers(self.by_match[match].mean, n)

    def given(self, confidence: float) -> float:
        """The chance that a token drafted with this confidence is accepted, once reached."""
        return self._bin(confidence).mean

    def observe(
        self, survival: Sequence[float], confidences: Sequence[float], stopped: bool, reached: float = 1.0
    ) -> None:
        """One drafted round.

        Args:
            survival: of the tokens that the draft model wrote, see `VerifyResult.survival`; shorter where it fell to 0.
            reached: the chance that what stood before them in the block survives.
            confidences: of the drafted tokens, and when `stopped` of the one that was not drawn, which counts with
                its expected acceptance: else stopping would flatter the rate.
            stopped: a token was not drawn because of the distribution that it would have been drawn from.
        """
        n_drafted = len(confidences) - stopped
        for confidence, (accepted, rejected) in zip(confidences, _steps(survival, n_drafted, reached), strict=False):
            for count in (self.rate, self._bin(confidence)):
                count.add(accepted, rejected)
            reached = accepted
        if stopped:
            chance = self.given(confidences[-1])
            self.rate.add(reached * chance, reached * (1.0 - chance))
        self.n_seen += n_drafted

    def observe_probe(self, scores: Sequence[tuple[float, float]]) -> None:
        """Plain text scored by the draft: (confidence, Σ min(p, q)) per token, the chance that a token drafted there
        would have been accepted."""
        for confidence, overlap in scores:
            chance = min(max(overlap, 0.0), 1.0)
            for count in (self.rate, self._bin(confidence)):
                count.add(chance, 1.0 - chance)
        self.n_seen += len(scores)

    def observe_match(self, match: int, survival: Sequence[float], n_drafted: int) -> None:
        """A round whose `n_drafted` tokens followed an n-gram of length `match`."""
        for accepted, rejected in _steps(survival, n_drafted):
            self.by_match[match].add(accepted, rejected)

    def observe_candidate(self, match: int, candidates: Sequence[int], tokens: Sequence[int]) -> None:
        """What followed an n-gram, beside the tokens that came without it: whether they agree is a fair coin of the
        chance that the candidate had, and costs nothing."""
        for candidate, token in zip(candidates, tokens, strict=False):
            self.by_match[match].add(float(candidate == token), float(candidate != token))
            if candidate != token:
                return

    def new_text(self) -> None:
        """Another text: the rate goes back towards its prior by `NEW_TEXT`."""
        prior = Count(PRIOR)
        self.rate.accepted += NEW_TEXT * (prior.accepted - self.rate.accepted)
        self.rate.rejected += NEW_TEXT * (prior.rejected - self.rate.rejected)

    def _bin(self, confidence: float) -> Count:
        return self.by_confidence[sum(confidence >= edge for edge in CONFIDENCES) - 1]


def _powers(chance: float, n: int) -> list[float]:
    return [chance**k for k in range(1, n + 1)]


def _steps(survival: Sequence[float], n_drafted: int, before: float = 1.0) -> Iterator[tuple[float, float]]:
    """Accepted and rejected shares of each drafted token."""
    for j in range(n_drafted):
        after = survival[j] if j < len(survival) else 0.0
        yield after, before - after
        before = after
