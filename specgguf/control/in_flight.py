"""A round between its plan and its end: what was decided, and what each further draft token must still be worth.

It knows estimates of costs and of acceptance, and changes neither.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from specgguf.decode.records import FORCED, Candidate
from specgguf.decode.sampling import Distribution

from .acceptance import Acceptance
from .costs import Costs


@dataclass
class InFlight:
    """A round that was planned and is not observed yet: `Plan.notes`.

    Attributes:
        why: one word or two, for the trace.
        speed: tokens per second that further draft tokens must not fall below.
        draft_s: seconds of one more draft token. n_beside: tokens of other sequences in the verification.
        confidences: of the distributions that the draft model's tokens were, or would have been, drawn from.
        stopped: the last of them was not drawn from.
        n_forced: tokens that had to come and stand before those in the block; None until the first question.
    """

    acceptance: Acceptance
    costs: Costs
    candidate: Candidate | None = None
    n_max: int = 0
    source: str = ""
    probe: int = 0
    why: str = ""
    speed: float = 0.0
    draft_s: float = 0.0
    n_beside: int = 0
    confidences: list[float] = field(default_factory=list)
    stopped: bool = False
    n_forced: int | None = None

    def keep_drafting(self, i: int, distribution: Distribution | None) -> bool:
        """Worth it? `distribution` None: a draft decode for token i; else: drawing token i from it.

        Yes when for some number of further tokens what they are expected to add repays, at the current speed, what is
        still unpaid: draft decodes, and the larger verification.
        """
        if self.n_forced is None:
            self.n_forced = i
        if distribution is not None:
            self.confidences.append(distribution.confidence)
        alive = self.acceptance.by_match[FORCED].mean ** self.n_forced
        for confidence in self.confidences[: i - self.n_forced]:
            alive *= self.acceptance.given(confidence)
        rate, draft_s, n_beside = self.acceptance.rate.mean, self.draft_s, self.n_beside
        unpaid = (draft_s if distribution is None else 0.0) - self.costs.verify_s(n_beside + i + 1)
        gain = 0.0
        for j in range(i, self.n_max):
            given = j == i and distribution is not None
            alive *= self.acceptance.given(self.confidences[-1]) if given else rate
            gain += alive
            if gain >= self.speed * (unpaid + self.costs.verify_s(n_beside + j + 2)):
                return True
            unpaid += draft_s
        self.stopped = distribution is not None
        return False
