"""Who is in a forward pass, and how many tokens each of them drafts: the choice that is expected to be fastest in all.

Several sequences share a pass, and what drafting adds to it: with A in the pass and K_s drafted tokens each,

    G = Σ_{s∈A} (1 + Σ_{i≤K_s} S_{s,i}) / (t_host + Σ_levels t_draft(n_level) + t_verify(|A| + Σ K_s))

tokens per second (goodput; Liu et al. 2024, arXiv 2406.14066), S_{s,i} the chance that i tokens of s survive. Of all
rows beside the plain ones the best are those of the largest S, and S falls along a draft, so they are prefixes of
drafts; their number is scanned across all steps of the measured costs, for every depth of drafting. All together
compete with fewer at a time, in turn: on some kernels two rows cost more than twice one. Those who waited longest come
first, so nobody waits for more rounds than there are others. A sequence alone is its controller's. It draws no random
numbers and looks at no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from specgguf.decode.records import PROBE_MAX, Candidate, Plan, Round

from .acceptance import Acceptance
from .controller import Adaptive, Fixed
from .costs import Costs
from .in_flight import InFlight


@dataclass(frozen=True, slots=True)
class Member:
    """A sequence that could have a round.

    Attributes:
        n_draft_max, candidate: see `Adaptive.plan`.
        n_waited: rounds of others since its latest one.
    """

    controller: Fixed | Adaptive
    n_draft_max: int
    candidate: Candidate | None = None
    n_waited: int = 0


@dataclass
class _Outlook:
    """What drafting would bring a member, see `Adaptive.outlook`; a fixed draft has its length already."""

    survival: list[float]
    source: str = ""
    prefill_s: float = 0.0
    fixed: int | None = None
    beside: str = ""  # who makes drafting too dear, where that is settled


@dataclass
class Choice:
    """A set of members in the pass, how many tokens each drafts, and the tokens per second that are expected then.

    Attributes:
        members: their places in the list that was asked about.
        levels: how many draft a first token, a second one, … with the draft model.
    """

    members: list[int]
    lengths: list[int]
    sources: list[str]
    goodput: float
    levels: list[int] = field(default_factory=list)

    @property
    def n_rows(self) -> int:
        """Tokens of the verification."""
        return len(self.members) + sum(self.lengths)


class Schedule:
    """Plans rounds of several sequences of one pair.

    Args:
        costs: of the pair; corrected here by what shared passes cost. None where there is but one sequence.
        equal: whether sequences share a pass only with as many tokens each (recurrent memories).
        trace: called with a record per decision.
    """

    def __init__(
        self,
        costs: Costs | None = None,
        *,
        equal: bool = False,
        trace: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.costs = costs
        self._equal = equal
        self._trace = trace

    # --- before a round -----------------------------------------------------------------------------------

    def plan(self, members: Sequence[Member], n_reading: int = 0) -> list[Plan | None]:
        """A plan for each member; None for those who wait.

        Args:
            n_reading: others that still read their prompts, and will decode beside these.
        """
        if len(members) + n_reading == 1 or self.costs is None:
            return [one.controller.plan(one.n_draft_max, one.candidate) for one in members]
        plans: list[Plan | None] = [None] * len(members)
        decoding = []
        for i, one in enumerate(members):
            if _is_first(one.controller):
                plans[i] = one.controller.plan(0)
            else:
                decoding.append(i)
        looks = {i: _outlook(members[i]) for i in decoding}
        unrepaid = self._unrepaid(looks, len(members) - len(decoding) + n_reading)
        for i in unrepaid:
            looks[i] = _Outlook([], beside="the requests that are about to join it")
        if len(decoding) == 1 and not unrepaid:
            one = members[decoding[0]]
            plans[decoding[0]] = one.controller.plan(one.n_draft_max, one.candidate)
        elif decoding:
            self._plan_several(members, looks, plans)
        return plans

    def _unrepaid(self, looks: dict[int, _Outlook], n_coming: int) -> list[int]:
        """Those whose draft model would have to read their text first (its prefill), for drafts that will not pay any
        more once `n_coming` others decode beside them."""
        unread = [i for i, look in looks.items() if look.prefill_s and not look.source]
        if not unread or not n_coming:
            return []
        every = looks | {max(looks) + n: _Outlook([]) for n in range(1, n_coming + 1)}
        best = max(self._choices(list(every), every), key=attrgetter("goodput"))
        lengths = dict(zip(best.members, best.lengths, strict=True))
        return [i for i in unread if not lengths.get(i, sum(best.lengths))]

    def _plan_several(self, members: Sequence[Member], looks: dict[int, _Outlook], plans: list[Plan | None]) -> None:
        choice = self._choose(members, looks)
        beside = f"{n} requests in a pass" if (n := len(choice.members)) > 1 else "requests that take turns"
        probes = 1  # at most so many in a round
        for i, length, source in zip(choice.members, choice.lengths, choice.sources, strict=True):
            controller = members[i].controller
            if isinstance(controller, Fixed):
                plans[i] = controller.plan(members[i].n_draft_max)
                continue
            probe = PROBE_MAX if not length and probes and controller.wants_probe else 0
            probes -= probe > 0
            if not length and controller.has_model:
                controller.off_reason = f"with {looks[i].beside or beside} plain decoding is expected to be faster"
            plans[i] = self._plan(members[i], controller, choice, length, source, probe)

    def _plan(self, member: Member, controller: Adaptive, choice: Choice, length: int, source: str, probe: int) -> Plan:
        assert self.costs is not None
        flight = InFlight(controller.acceptance, self.costs, member.candidate, probe=probe)
        flight.why = "together" if len(choice.members) > 1 else "in turn"
        flight.speed, flight.n_beside = choice.goodput, choice.n_rows - 1 - length
        if choice.levels:
            flight.draft_s = self.costs.draft_level_s(choice.levels[0]) / choice.levels[0]
        if length:
            flight.source = source
            flight.n_max = length if source else min(controller.draft_max, member.n_draft_max)
        return controller.decide(flight, member.n_draft_max)

    def choose(self, members: Sequence[Member]) -> Choice:
        """The fastest set of members and lengths, where all of them decode."""
        return self._choose(members, {i: _outlook(member) for i, member in enumerate(members)})

    def _choose(self, members: Sequence[Member], looks: dict[int, _Outlook]) -> Choice:
        choices = self._choices(sorted(looks, key=lambda i: -members[i].n_waited), looks)
        best = max(choices, key=attrgetter("goodput"))
        if self._trace is not None:
            self._trace(_record(best, choices, members))
        return best

    def _choices(self, order: list[int], looks: dict[int, _Outlook]) -> list[Choice]:
        """All together, half of them, a quarter, …, and one alone."""
        sizes, n = [], len(order)
        while n > 1:
            sizes.append(n)
            n = (n + 1) // 2
        if self._equal:
            sizes = sizes[:1]
        choices = [self._best(order[:size], looks, drafts=not self._equal) for size in sizes]
        return [*choices, self._best(order[:1], looks, drafts=True)]

    def _best(self, members: list[int], looks: dict[int, _Outlook], *, drafts: bool) -> Choice:
        """The fastest lengths for these members in a forward pass."""
        costs = self.costs
        assert costs is not None
        fixed = {i: looks[i].fixed or 0 for i in members}
        expected, levels = float(len(members)), list[int]()
        for i in members:
            if n := fixed[i]:
                expected += sum(looks[i].survival[:n])
                _add(levels, n)
        best = Choice(members, [fixed[i] for i in members], [looks[i].source for i in members], 0.0, levels)
        best.goodput = expected / max(self._seconds(best), 1e-9)
        free = [i for i in members if drafts and looks[i].fixed is None]
        for deepest in range(1, max((len(looks[i].survival) for i in free), default=0) + 1):
            gains = sorted((-s, j, i) for i in free for j, s in enumerate(looks[i].survival[:deepest]) if s > 0.0)
            best = self._fill(Choice(members, [], [], 0.0, list(levels)), fixed, expected, gains, looks, best)
        return best

    def _seconds(self, choice: Choice) -> float:
        costs = self.costs
        assert costs is not None
        draft_s = sum(map(costs.draft_level_s, choice.levels))
        return draft_s + costs.host_s * len(choice.members) + costs.verify_s(choice.n_rows)

    def _fill(
        self,
        choice: Choice,
        fixed: dict[int, int],
        expected: float,
        gains: list[tuple[float, int, int]],
        looks: dict[int, _Outlook],
        best: Choice,
    ) -> Choice:
        """Add rows in the order of what they are expected to bring; the fastest on the way, or `best`. A draft step is
        shared by all that take part in it, so how deep drafts go is tried apart from who has the next row."""
        costs = self.costs
        assert costs is not None
        members, levels = choice.members, choice.levels
        n_rows = len(members) + sum(fixed.values())
        draft_s = sum(map(costs.draft_level_s, levels)) + costs.host_s * len(members)
        n_best, goodput_best, levels_best = 0, best.goodput, levels
        for n, (negative, j, i) in enumerate(gains[: max(costs.batch_max - n_rows, 0)], 1):
            expected -= negative
            if not looks[i].source:
                if j == len(levels):
                    levels.append(0)
                levels[j] += 1
                draft_s += costs.draft_level_s(levels[j]) - costs.draft_level_s(levels[j] - 1)
            draft_s += looks[i].prefill_s * (-negative + (j == 0))
            goodput = expected / max(draft_s + costs.verify_s(n_rows + n), 1e-9)
            if goodput > goodput_best:
                n_best, goodput_best, levels_best = n, goodput, list(levels)
        if not n_best:
            return best
        lengths = dict(fixed)
        for _, _, i in gains[:n_best]:
            lengths[i] += 1
        sources = [looks[i].source for i in members]
        return Choice(members, [lengths[i] for i in members], sources, goodput_best, levels_best)

    # --- after a round ------------------------------------------------------------------------------------

    def observe(
        self, members: Sequence[Member], plans: Sequence[Plan], rounds: Sequence[Round], n_padding: int = 0
    ) -> None:
        """What came of the plans of those that were in the pass and had their round; `n_padding` dummies stood beside
        them all."""
        first = [_is_first(one.controller) for one in members]
        alone = len(members) == 1
        for member, plan, round in zip(members, plans, rounds, strict=True):
            member.controller.observe(plan, round, alone=alone)
        decoded = [round for round, is_first in zip(rounds, first, strict=True) if not is_first]
        if alone or not decoded or self.costs is None:
            return
        if all(round.n_pending == 1 for round in decoded):
            n_rows = sum(round.draft_n + 1 for round in decoded) + n_padding
            self.costs.observe_verify(n_rows, decoded[0].verify_s + (0.0 if any(first) else decoded[0].prefill_s))
        self.costs.observe_host(decoded[0].host_s / len(rounds))
        levels: list[int] = []
        for plan in plans:
            if isinstance(plan.notes, InFlight):
                _add(levels, len(plan.notes.confidences))
        if levels and not any(round.probe or round.n_draft_prefilled > 2 for round in rounds):
            self.costs.observe_levels(levels, decoded[0].draft_s)


def _is_first(controller: Fixed | Adaptive) -> bool:
    return isinstance(controller, Adaptive) and controller.is_first


def _outlook(member: Member) -> _Outlook:
    controller = member.controller
    if isinstance(controller, Fixed):
        n = min(controller.n, member.n_draft_max)
        return _Outlook(Acceptance().survival(n), fixed=n)
    return _Outlook(*controller.outlook(member.n_draft_max, member.candidate))


def _add(levels: list[int], n: int) -> None:
    """One more sequence takes part in the first `n` levels."""
    levels.extend([0] * (n - len(levels)))
    for level in range(n):
        levels[level] += 1


def _record(best: Choice, choices: Sequence[Choice], members: Sequence[Member]) -> dict[str, Any]:
    return {
        "event": "schedule",
        "n_running": len(members),
        "members": best.members,
        "lengths": best.lengths,
        "sources": best.sources,
        "goodput": round(best.goodput, 3),
        "by_size": {str(len(choice.members)): round(choice.goodput, 3) for choice in choices},
        "waited": [member.n_waited for member in members],
    }
