"""Why did it stop drafting? How many tokens to draft, decided from measured costs and running acceptance.

R(K) = (1 + Σ_{i<=K} S_i) / (t_host + T_draft(K) + t_verify(K+1)), S_i = Π a_j, is the expected speed of a round
that drafts K tokens; R(0) is plain decoding. K = 0 (rest) where no R(K) beats it. Decisions depend on the past
and on the law a token would be drawn from, never on the token, so the output's law does not depend on them.
When a rest looks again is `resting`'s.
Nothing here draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from specgguf.decode.records import PROBE_MAX, Candidate, Plan, Round
from specgguf.decode.sampling import Distribution

from .acceptance import Acceptance
from .costs import Costs
from .probing import Probing

OFF_BELOW = 1.0  # rest when the best R(K) is below so many R(0), by estimate or as measured
RESUME_ABOVE = 1.02  # come back from a rest when it is above, and above what catching up costs
PAYS_ABOVE = 1.02  # where even perfect acceptance stays below, drafting is hopeless
KEEP_DRAFTING_ABOVE = 0.95  # of the current speed: what further tokens add per second; just below it is as good as even
PLAIN_EVERY = 128  # drafted rounds between two plain ones, which keep R(0) honest
PLAIN_OFTEN, CLOSE = 16, 1.2  # as long as drafting gains less than this, where a plain round costs next to nothing
REALISED_ROUNDS = 8.0  # drafted rounds before their measured speed may send drafting to rest
BACK_OFF = 16  # plain tokens that a measured loss stands for, at least


class Fixed:
    """Always drafts `n` tokens; 0 is plain decoding, and `rest_reason` says why."""

    def __init__(self, n: int, off_reason: str = "") -> None:
        self.n = n
        self.off_reason = off_reason

    def plan(self, n_draft_max: int, candidate: Candidate | None = None) -> Plan:
        return Plan(min(self.n, n_draft_max))

    def observe(self, plan: Plan, round: Round) -> None:
        pass


class Adaptive:
    """Drafts 0..draft_max tokens, whatever is fastest by its own estimates.

    Args:
        draft_max: the most tokens in a round.
        costs: measured costs, kept and corrected here.
        has_model: False where only lookups draft.
        draft_first: the draft length while nothing was measured yet.
        trace: called with one record (a JSON-able dict) per decision.
    """

    def __init__(
        self,
        draft_max: int,
        costs: Costs,
        *,
        has_model: bool = True,
        draft_first: int = 4,
        trace: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.draft_max = draft_max
        self.costs = costs
        self.has_model = has_model
        self.draft_first = draft_first
        self.acceptance = Acceptance(draft_max)
        self.off_reason = ""
        self._trace = trace
        self._probing = Probing(costs)
        self._first = True  # the round that reads the prompt comes next
        self._since_plain = 0
        self._measured = _Measured()
        self._measured_gain = 1.0  # of drafting over plain decoding, when it last fell below 1
        self._back_off = self._back_off_next = 0  # plain tokens before the estimates may overrule it
        self._confidences: list[float] = []
        self._stopped = False
        self._speed = 0.0  # R* of the round in flight
        self._n_max = 0
        self._probed = False
        self._candidate: Candidate | None = None  # what the lookup found for the round in flight

    def new_turn(self) -> None:
        """A new generation: keep what was learned, softened; look again soon when resting."""
        self.acceptance.soften()
        self._measured = _Measured()
        self._back_off = self._back_off_next = 0
        self._probing.new_turn()
        self._first = True

    # --- before a round -----------------------------------------------------------------------------------

    def speeds(self, accepted: Callable[[int], float] | None = None) -> list[float]:
        """R(0), R(1), … R(draft_max), in tokens per second, where a token is accepted with the chance `accepted` of
        its position; by the running estimates unless given."""
        accepted = accepted or self.acceptance.at
        expected, alive = 1.0, 1.0
        speeds = [expected / self._seconds(0)]
        for k in range(1, self.draft_max + 1):
            alive *= accepted(k - 1)
            expected += alive
            speeds.append(expected / self._seconds(k))
        return speeds

    def _seconds(self, k: int) -> float:
        draft = k * (self.costs.draft_s or 0.0)
        return max(self.costs.host_s + draft + self.costs.verify(k + 1), 1e-9)

    def plan(self, n_draft_max: int, candidate: Candidate | None = None) -> Plan:
        k_max = min(self.draft_max, n_draft_max)
        k, probe, why = self._decide(k_max, n_draft_max) if self.has_model else (0, 0, "no draft model")
        source = ""
        found = self._from_candidate(candidate, k_max, k)
        if found:
            k, probe, why, source = found, 0, "ngram", "ngram"
        self._confidences, self._stopped, self._n_max, self._probed = [], False, k, probe > 0
        self._candidate = candidate
        if self._trace is not None:
            speeds = [round(speed, 3) for speed in self.speeds()]
            record = {"event": "plan", "n_max": k, "source": source, "probe": probe, "why": why, "speeds": speeds}
            self._trace(
                record | {"room": n_draft_max, "match": candidate.match if candidate is not None and found else 0}
            )
        return Plan(k, self._keep_drafting, source, probe, self.costs.padding) if k or probe else Plan(0)

    def _from_candidate(self, candidate: Candidate | None, k_max: int, k: int) -> int:
        """How many offered tokens to take: as many as make the fastest round, 0 where the draft model (k > 0) or
        plain decoding is expected to be faster."""
        if candidate is None or self._first or k_max <= 0:
            return 0
        rival = max(self.speeds()) if k else 1.0 / self._seconds(0)
        chance = self.acceptance.by_match[candidate.match].mean
        best, expected, alive = 0, 1.0, 1.0
        for m in range(1, min(len(candidate.tokens), k_max) + 1):
            alive *= chance
            expected += alive
            speed = expected / max(self.costs.host_s + self.costs.verify(m + 1), 1e-9)
            if speed > rival:
                best, rival = m, speed
        return best

    def _decide(self, k_max: int, n_draft_max: int) -> tuple[int, int, str]:
        """Tokens to draft, plain tokens to score first, and why."""
        if k_max <= 0:
            return 0, 0, "no room"
        if self._first:
            return 0, 0, "first token"
        if not self.costs.known:
            return min(k_max, self.draft_first), 0, "measuring"
        plain, *perfect = self.speeds(lambda _position: 1.0)
        if max(perfect) < PAYS_ABOVE * plain:
            self._turn_off("even a perfectly accepted draft would cost more than it saves on this machine")
            return 0, 0, "hopeless"
        believed = self._probing.believed(self.acceptance) if self._probing.on else self.acceptance.bound
        gain = min(max(self.speeds(believed)[1:]) / plain, self._as_measured(plain))
        if gain < (RESUME_ABOVE if self._probing.on else OFF_BELOW) + self._probing.catching_up(n_draft_max):
            why = f"drafting would run at {gain:.2f} of plain speed, with {believed(0):.0%} of first tokens right"
            self._turn_off(why + (": too little to begin for" if gain >= OFF_BELOW else ""))
            return (0, PROBE_MAX, "probe") if self._probing.probe_is_due else (0, 0, "rest")
        if self._probing.on:
            if self._probing.must_ask:
                return 0, PROBE_MAX, "probe"
            self._measured = _Measured()
            self.acceptance.adopt(self._probing.targets)
        self._probing.end()
        self.off_reason = ""
        if self._since_plain >= (PLAIN_OFTEN if gain < CLOSE else PLAIN_EVERY):
            return 0, 0, "measuring plain"
        self._speed = max(self.speeds())
        return k_max, 0, "draft"

    def _as_measured(self, plain: float) -> float:
        """A bound of what drafting gains, from its measured speed; infinite where too little was measured.

        Where drafting lost, it stands for a while, twice as long each time: the estimates that promised a gain
        would promise it again at once.
        """
        if self._probing.on:
            return self._measured_gain if self._back_off > 0 else math.inf
        if self._measured.rounds < REALISED_ROUNDS:
            return math.inf
        gain = self._measured.speed / plain + 1.0 / self._measured.rounds  # an upper bound: rounds differ by luck
        if gain < OFF_BELOW:
            self._measured_gain = gain
            self._back_off = self._back_off_next = max(2 * self._back_off_next, BACK_OFF)
        return gain

    def _turn_off(self, reason: str) -> None:
        self._probing.begin()
        self.off_reason = reason

    # --- in a round ---------------------------------------------------------------------------------------

    def _keep_drafting(self, i: int, distribution: Distribution | None) -> bool:
        """Worth it? `law` None: a draft decode for token i; else: drawing token i from `law`.

        Yes when for some number of further tokens what they are expected to add repays, at the current speed,
        what is still unpaid: draft decodes, and the wider verification.
        """
        if distribution is not None:
            self._confidences.append(distribution.confidence)
        alive = 1.0
        for confidence in self._confidences[:i]:
            alive *= self.acceptance.given(confidence)
        draft_s = self.costs.draft_s or 0.0
        unpaid = draft_s if distribution is None else 0.0
        gain = 0.0
        for j in range(i, self._n_max):
            given = j == i and distribution is not None
            alive *= self.acceptance.given(self._confidences[i]) if given else self.acceptance.at(j)
            gain += alive
            if gain >= KEEP_DRAFTING_ABOVE * self._speed * (
                unpaid + self.costs.verify(j + 2) - self.costs.verify(i + 1)
            ):
                return True
            unpaid += draft_s
        self._stopped = distribution is not None
        return False

    # --- after a round ------------------------------------------------------------------------------------

    def observe(self, plan: Plan, round: Round) -> None:
        steps = len(self._confidences)
        if not self._first:  # what a checkpoint makes the target read again is part of the price of drafting
            if round.draft_n or round.n_pending == 1:
                self.costs.observe_verify(round.draft_n + 1 + round.n_padding, round.verify_s + round.prefill_s)
            self.costs.observe_host(round.host_s)
        if self._probed:  # empty where the draft could not read
            self.acceptance.observe_overlaps(round.probe, self._probing.observe_probe(round))
        self._probing.observe(round, first=self._first, drafted=steps > 0)
        self._first = False
        if self._n_max and not steps and not round.draft_n:
            self.off_reason = "the draft model cannot read on: its context is full, or it lacks a token of the text"
        if self._candidate is not None and round.source == "ngram":
            self.acceptance.observe_match(self._candidate.match, round.survival, round.draft_n)
            self.off_reason = ""
        elif self._candidate is not None:
            self.acceptance.observe_candidate(self._candidate.match, self._candidate.tokens, round.tokens)
        if steps:
            self.costs.observe_draft(steps, round.n_draft_prefilled, round.draft_s)
            self.acceptance.observe(round.survival, self._confidences, self._stopped, round.confidences)
            prefilled_s = (
                round.n_draft_prefilled * (self.costs.draft_prefill_s or 0.0) if round.n_draft_prefilled > 2 else 0.0
            )
            seconds = max(round.draft_s - prefilled_s, 0.0) + round.prefill_s + round.verify_s + round.host_s
            self._measured.add(1.0 + sum(round.survival), seconds)
            self._since_plain += 1
        elif not round.draft_n:
            self._back_off -= len(round.tokens)
            self._since_plain = 0
        if self._trace is not None:
            self._trace(_record(round, self.off_reason))


class _Measured:
    """The measured speed of drafting, over about the last twenty drafted rounds; accepted tokens are counted
    with their expectation, which does not depend on luck."""

    def __init__(self) -> None:
        self.tokens = self.seconds = self.rounds = 0.0

    def add(self, tokens: float, seconds: float) -> None:
        self.tokens = 0.95 * self.tokens + tokens
        self.seconds = 0.95 * self.seconds + seconds
        self.rounds = 0.95 * self.rounds + 1.0

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0.0 else 0.0


def _record(round: Round, off_reason: str) -> dict[str, Any]:
    return {
        "event": "round",
        "drafted": round.draft_n,
        "accepted": round.draft_n_accepted,
        "tokens": len(round.tokens),
        "padding": round.n_padding,
        "survival": [float(p) for p in round.survival],
        "probe": [float(overlap) for _, overlap in round.probe],
        "draft_s": round.draft_s,
        "verify_s": round.verify_s,
        "host_s": round.host_s,
        "off_reason": off_reason,
    }
