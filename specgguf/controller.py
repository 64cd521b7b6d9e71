"""Why did it stop drafting? How many tokens to draft, decided from measured costs and running acceptance.

R(K) = (1 + Σ_{i<=K} S_i) / (t_host + T_draft(K) + t_verify(K+1)), S_i = Π a_j, is the expected speed of a round
that drafts K tokens; R(0) is plain decoding. K = 0 (rest) where no R(K) beats it. A decision depends on the past
only, so the output's law does not depend on it. It draws no random numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .acceptance import Acceptance
from .costs import Costs
from .rounds import Plan, Round
from .sampling import Law

REST_BELOW = 1.0  # rest when the best R(K) is below so many R(0)
RESUME_ABOVE = 1.05  # come back from a rest when it is above
GAP_FIRST, GAP_LAST = 24, 768  # plain tokens between two tries while resting


class Fixed:
    """Always drafts `n` tokens; 0 is plain decoding, and `rest_reason` says why."""

    def __init__(self, n: int, rest_reason: str = "") -> None:
        self.n = n
        self.rest_reason = rest_reason

    def plan(self, room: int) -> Plan:
        return Plan(min(self.n, room))

    def observe(self, round: Round) -> None:
        pass


class Adaptive:
    """Drafts 0..draft_max tokens, whatever is fastest by its own estimates.

    Args:
        draft_max: the most tokens in a round.
        costs: measured costs, kept and corrected here.
        trace: called with one record (a JSON-able dict) per decision.
    """

    def __init__(
        self,
        draft_max: int,
        costs: Costs,
        *,
        acceptance: Acceptance | None = None,
        trace: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.draft_max = draft_max
        self.costs = costs
        self.acceptance = acceptance or Acceptance(draft_max)
        self.rest_reason = ""
        self._trace = trace
        self._resting = False
        self._gap = GAP_FIRST
        self._plain = 0  # tokens since the rest began or was last tried
        self._first = True
        self._confidences: list[float] = []
        self._stopped = False
        self._speed = 0.0  # R* of the round in flight

    def new_turn(self) -> None:
        """A new generation: keep what was learned, softened; try again soon when resting."""
        self.acceptance.soften()
        self._gap = GAP_FIRST
        self._plain = 0
        self._first = True

    def speed(self, k: int, *, upper: bool = True) -> float:
        """R(k), in tokens per second; with upper confidence bounds unless told otherwise."""
        expected, alive = 1.0, 1.0
        for beta in self.acceptance.by_position[:k]:
            alive *= beta.upper if upper else beta.mean
            expected += alive
        return expected / self._seconds(k)

    def _seconds(self, k: int) -> float:
        draft = k * (self.costs.draft_s or 0.0)
        return max(self.costs.host_s + draft + self.costs.verify(k + 1), 1e-9)

    def _hopeless(self) -> bool:
        """Not even perfect acceptance could pay at the measured costs."""
        plain = 1.0 / self._seconds(0)
        return all((k + 1) / self._seconds(k) < plain * 1.02 for k in range(1, self.draft_max + 1))

    def plan(self, room: int) -> Plan:
        k, why = self._decide(min(self.draft_max, room))
        self._confidences, self._stopped = [], False
        if self._trace is not None:
            speeds = [round(self.speed(i), 3) for i in range(self.draft_max + 1)]
            self._trace({"event": "plan", "n_max": k, "why": why, "room": room, "speeds": speeds})
        return Plan(k, self._go_on) if k else Plan(0)

    def _decide(self, k_max: int) -> tuple[int, str]:
        if k_max <= 0:
            return 0, "no room"
        if self._first:
            return 0, "first token"
        if not self.costs.known:
            return min(k_max, 3), "measuring"
        plain = self.speed(0)
        best = max(range(1, self.draft_max + 1), key=self.speed)
        gain = self.speed(best) / plain
        if self._hopeless():
            self._rest("even a perfectly accepted draft would cost more than it saves on this machine")
            return 0, "hopeless"
        if self._resting and self._plain >= self._gap:
            self._plain, self._gap = 0, min(2 * self._gap, GAP_LAST)
            self._speed = plain
            return min(best, k_max), "try"
        if gain < (RESUME_ABOVE if self._resting else REST_BELOW):
            accepted = self.acceptance.by_position[0].mean
            self._rest(f"drafting would run at {gain:.2f} of plain speed ({accepted:.0%} of first tokens accepted)")
            return 0, "rest"
        self._resting, self._plain, self.rest_reason = False, 0, ""
        self._speed = max(plain, self.speed(best))
        return k_max, "draft"

    def _rest(self, reason: str) -> None:
        if not self._resting:
            self._plain, self._gap = 0, GAP_FIRST
        self._resting = True
        self.rest_reason = reason

    def _go_on(self, i: int, law: Law) -> bool:
        """Draw token i when some number of further tokens is expected to repay its price at the current speed:
        the draft decode behind `law` is spent, the wider verification is not (nor are further draft steps)."""
        self._confidences.append(law.confidence)
        alive = 1.0
        for confidence in self._confidences:
            alive *= self.acceptance.given(confidence)
        gain = alive
        for m in range(1, self.draft_max - i + 1):
            price = self.costs.verify(i + 1 + m) - self.costs.verify(i + 1)
            price += (m - 1) * (self.costs.draft_s or 0.0)
            if gain >= self._speed * price:
                return True
            if i + m < self.draft_max:
                alive *= self.acceptance.by_position[i + m].mean
                gain += alive
        self._stopped = True
        return False

    def observe(self, round: Round) -> None:
        if self._first:
            self._first = False
        elif round.n_owed == 1:
            self.costs.observe_verify(round.draft_n + 1, round.verify_s)
            self.costs.observe_host(round.host_s)
        steps = len(self._confidences)
        if steps:
            self.costs.observe_draft(steps, round.n_synced, round.draft_s)
            self.acceptance.observe(round.survival, self._confidences, self._stopped)
        else:
            self._plain += len(round.tokens)
        if self._trace is not None:
            self._trace(
                {
                    "event": "round",
                    "drafted": round.draft_n,
                    "accepted": round.draft_n_accepted,
                    "tokens": len(round.tokens),
                    "survival": [float(p) for p in round.survival],
                    "draft_s": round.draft_s,
                    "verify_s": round.verify_s,
                    "host_s": round.host_s,
                    "rest_reason": self.rest_reason,
                }
            )
