"""Why did it stop drafting? How many tokens to draft, decided from measured costs and running acceptance.

R(K) = (1 + Σ_{i≤K} S_i) / (t_host + K·t_draft + t_verify(K+1)), S_i the chance that i tokens survive, is the expected
speed of a round that drafts K tokens, and R(0) that of plain decoding. The draft model (`t_draft` measured), n-grams
(`t_draft` = 0) and plain decoding compete in one argmax; inside a round each further token must pay for itself. While
drafting is off the draft is asked now and then what it would have done. Decisions depend on the past and on the
distribution a token would be drawn from, never on the token, so the output's distribution does not depend on them.
Nothing here draws random numbers or looks at a clock.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from specgguf.decode.records import PROBE_MAX, Candidate, Plan, Round, no_padding

from .acceptance import Acceptance
from .constants import HORIZON, PROBE_BUDGET
from .costs import Costs
from .in_flight import InFlight


class Fixed:
    """Always drafts `n` tokens; 0 is plain decoding, and `off_reason` says why."""

    def __init__(self, n: int, off_reason: str = "") -> None:
        self.n = n
        self.off_reason = off_reason

    def plan(self, n_draft_max: int, candidate: Candidate | None = None) -> Plan:
        return Plan(min(self.n, n_draft_max))

    def observe(self, plan: Plan, round: Round, *, alone: bool = True) -> None:
        pass


class Adaptive:
    """Drafts 0..draft_max tokens, whatever is fastest by its own estimates.

    Args:
        draft_max: the most tokens in a round.
        costs: measured costs, kept and corrected here.
        has_model: False where only n-grams draft.
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
        self.acceptance = Acceptance()
        self.off_reason = ""
        self._trace = trace
        self._first = True  # the round that reads the prompt comes next
        self._n_plain = 0  # plain tokens since the draft model last drafted or scored
        self._n_context = self._n_read = 0  # committed tokens: now, and when the draft last read them all

    def fork(self) -> Adaptive:
        """A controller of another sequence, which begins with what this one learned and shares its costs."""
        other = copy.copy(self)
        other.acceptance = copy.deepcopy(self.acceptance)
        return other

    def new_turn(self, n_draft_read: int | None = None) -> None:
        """A new generation: keep what was learned, but for a share of what was learned of the text.

        Args:
            n_draft_read: how much of its prompt the draft model holds; None: of what it read for the one before.
        """
        self.acceptance.new_text()
        self._first = True
        self._n_plain = 0
        self._n_read = self._n_read if n_draft_read is None else n_draft_read

    # --- before a round -----------------------------------------------------------------------------------

    def speeds(self, survival: Sequence[float], draft_s: float = 0.0, prefill_s: float = 0.0) -> list[float]:
        """R(0), R(1), … in tokens per second.

        Args:
            survival: the chances that the first 1, 2, … drafted tokens survive.
            draft_s: seconds of drafting one token.
            prefill_s: seconds of the draft's prefill that each token of the output has to repay.
        """
        expected, speeds = 1.0, [1.0 / max(self.costs.host_s + self.costs.verify_s(1), 1e-9)]
        for k, alive in enumerate(survival, 1):
            expected += alive
            seconds = self.costs.host_s + k * draft_s + self.costs.verify_s(k + 1)
            speeds.append(expected / max(seconds + expected * prefill_s, 1e-9))
        return speeds

    def plan(self, n_draft_max: int, candidate: Candidate | None = None) -> Plan:
        """The next round, of at most `n_draft_max` drafted tokens; `candidate` is what an n-gram match found."""
        flight = InFlight(self.acceptance, self.costs, candidate, draft_s=self.costs.draft_s)
        self._choose(flight, n_draft_max)
        return self.decide(flight, n_draft_max)

    def decide(self, flight: InFlight, n_draft_max: int) -> Plan:
        """The plan of a round whose length was chosen, here or by a schedule of several sequences."""
        if self._trace is not None:
            self._trace(self._plan_record(flight, n_draft_max))
        if not flight.n_max and not flight.probe:
            return Plan(0, notes=flight)
        padding = no_padding if flight.n_beside else self.costs.padding
        return Plan(flight.n_max, flight.keep_drafting, flight.source, flight.probe, padding, notes=flight)

    def _choose(self, flight: InFlight, n_draft_max: int) -> None:
        k_max = min(self.draft_max, n_draft_max)
        if k_max <= 0 or self._first:
            flight.why = "first token" if self._first else "no tokens left"
            return
        if self.has_model and not self.costs.known:
            flight.why, flight.n_max = "measuring", min(k_max, self.draft_first)
            return
        plain = self.speeds([])[0]
        model = self._model_speed(plain, n_draft_max) if self.has_model else 0.0
        k, speed = self._ngram_length(flight.candidate, k_max)
        if speed > max(plain, model):
            flight.why, flight.n_max, flight.source = "n-gram", k, "ngram"
        elif model <= plain:
            flight.why, flight.probe = ("probe", PROBE_MAX) if self.wants_probe else ("off", 0)
        else:
            flight.why, flight.n_max = "draft", k_max
            flight.speed = max(self.speeds(self.acceptance.survival(self.draft_max), self.costs.draft_s))

    def _model_speed(self, plain: float, n_draft_max: int) -> float:
        """The best speed with the draft model; says in `off_reason` why it is not above `plain`."""
        prefill_s = self._prefill_s(n_draft_max)
        survival = self.acceptance.survival(self.draft_max)
        speed = max(self.speeds(survival, self.costs.draft_s, prefill_s)[1:])
        self.off_reason = ""
        if speed <= plain:
            seen = self.acceptance.n_seen
            rate = f"{self.acceptance.rate.mean:.0%}".replace("%", " %")
            self.off_reason = f"expected {speed / plain:.2f}x plain speed at {rate} acceptance"
            self.off_reason += "" if seen else ", which is assumed: the draft model drafted nothing yet"
            if max(self.speeds(survival, self.costs.draft_s)[1:]) > plain:
                self.off_reason += f", as the draft would have to read {self._n_missed:,} tokens first"
        return speed

    @property
    def is_first(self) -> bool:
        """Whether the next round reads the prompt."""
        return self._first

    @property
    def wants_probe(self) -> bool:
        """Whether the draft model should be asked again what it would have done."""
        return self.has_model and self._n_plain >= self._probe_gap()

    def outlook(self, n_draft_max: int, candidate: Candidate | None) -> tuple[list[float], str, float]:
        """What drafting would bring this sequence, whatever it costs: the chances that the first 1, 2, … drafted tokens
        survive, the source of them ("ngram", or "" for the draft model), and seconds of the draft's prefill that each
        token of the output has to repay."""
        k_max = min(self.draft_max, n_draft_max)
        model = self.acceptance.survival(k_max) if self.has_model else []
        if candidate is not None:
            ngram = self.acceptance.ngram_survival(candidate.match, min(len(candidate.tokens), k_max))
            if sum(ngram) >= sum(model):
                return ngram, "ngram", 0.0
        return model, "", self._prefill_s(n_draft_max)

    @property
    def _n_missed(self) -> int:
        """Tokens that the draft model would have to read before it could draft."""
        return max(self._n_context - self._n_read, 0)

    def _prefill_s(self, n_draft_max: int) -> float:
        """Seconds of reading those, for each token of the output: as if as many followed as were missed, or some more
        where those were few, but no more than may follow."""
        follow = min(max(self._n_missed, HORIZON), n_draft_max + 1)
        return self._n_missed * self.costs.draft_prefill_s / follow

    def _ngram_length(self, candidate: Candidate | None, k_max: int) -> tuple[int, float]:
        """How many of the candidate's tokens make the fastest round, and its speed."""
        if candidate is None:
            return 0, 0.0
        n = min(len(candidate.tokens), k_max)
        speeds = self.speeds(self.acceptance.ngram_survival(candidate.match, n))
        k = max(range(1, n + 1), key=speeds.__getitem__)
        return k, speeds[k]

    def _probe_gap(self) -> float:
        """Plain tokens between two probes, so that they keep their budget; never where even a draft that is always
        right would not pay."""
        plain, *perfect = self.speeds([1.0] * self.draft_max, self.costs.draft_s)
        if max(perfect) <= plain:
            self.off_reason = f"even a draft that is always right would run at {max(perfect) / plain:.2f}x plain speed"
            return float("inf")
        probe_s = 2 * PROBE_MAX * self.costs.draft_prefill_s
        if not self.acceptance.n_seen:  # what keeps it from drafting is a prior
            return 2 * PROBE_MAX
        return max(2 * PROBE_MAX, probe_s / (PROBE_BUDGET * self.costs.verify_s(1)))

    # --- after a round ------------------------------------------------------------------------------------

    def observe(self, plan: Plan, round: Round, *, alone: bool = True) -> None:
        """What came of a plan. Seconds of a round that was not `alone` are a schedule's to learn from."""
        flight = plan.notes
        assert isinstance(flight, InFlight), "the plan is another controller's"
        if self._first:  # what the target had to read, the draft has not read either
            self._n_read = min(self._n_read, round.n_context - round.n_prefilled)
        elif alone:
            self._observe_costs(round, len(flight.confidences))
        self._first = False
        self._observe_acceptance(flight, round)
        self._n_context = round.n_context + len(round.tokens)
        if flight.confidences:
            self._n_read, self._n_plain = round.n_context, 0
        elif not round.draft_n:
            self._n_plain = len(round.tokens) + (0 if flight.probe else self._n_plain)
        if flight.n_max and not flight.confidences and not round.draft_n:
            self.off_reason = "the draft model cannot read on: its context is full, or it lacks a token of the text"
        elif round.draft_n:
            self.off_reason = ""
        if self._trace is not None:
            self._trace(_round_record(round, self.off_reason))

    def _observe_costs(self, round: Round, n_steps: int) -> None:
        # What a checkpoint makes the target read again is part of what drafting costs, and not of a plain pass.
        if round.draft_n or round.n_pending == 1:
            self.costs.observe_verify(round.draft_n + 1 + round.n_padding, round.verify_s + round.prefill_s)
        if n_steps:
            self.costs.observe_draft(n_steps, round.n_draft_prefilled, round.draft_s)
        self.costs.observe_host(round.host_s)

    def _observe_acceptance(self, flight: InFlight, round: Round) -> None:
        self.acceptance.observe_probe(round.probe)
        if flight.confidences:
            n_forced = flight.n_forced or 0
            reached = dict(enumerate(round.survival, 1)).get(n_forced, 0.0) if n_forced else 1.0
            self.acceptance.observe(round.survival[n_forced:], flight.confidences, flight.stopped, reached)
        candidate = flight.candidate
        if candidate is not None and round.source == "ngram":
            self.acceptance.observe_match(candidate.match, round.survival, round.draft_n)
        elif candidate is not None:
            self.acceptance.observe_candidate(candidate.match, candidate.tokens, round.tokens)

    def _plan_record(self, flight: InFlight, n_draft_max: int) -> dict[str, Any]:
        speeds = self.speeds(self.acceptance.survival(self.draft_max), self.costs.draft_s)
        return {
            "event": "plan",
            "n_max": flight.n_max,
            "source": flight.source,
            "probe": flight.probe,
            "why": flight.why,
            "speeds": [round(speed, 3) for speed in speeds],
            "acceptance": round(self.acceptance.rate.mean, 4),
            "n_draft_max": n_draft_max,
            "match": flight.candidate.match if flight.candidate is not None and flight.source else 0,
        }


def _round_record(round: Round, off_reason: str) -> dict[str, Any]:
    return {
        "event": "round",
        "drafted": round.draft_n,
        "accepted": round.draft_n_accepted,
        "tokens": len(round.tokens),
        "padding": round.n_padding,
        "survival": [float(p) for p in round.survival],
        "probe": [float(overlap) for _, overlap in round.probe],
        "prefill_s": round.prefill_s,
        "draft_s": round.draft_s,
        "verify_s": round.verify_s,
        "host_s": round.host_s,
        "off_reason": off_reason,
    }
