"""When does a rest look again? Where the target has become sure of itself, and now and then in any case.

A rest must cost nothing and still end in time. The target's own confidence at the latest tokens is free and says
where a draft would mostly agree; a probe (the draft scores some plain tokens) says whether this draft does, and
takes as long as a token or two. This module counts tokens and knows prices; whether drafting pays is decided in
`controller`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from specgguf.decode.records import PROBE_MAX, Round

from .acceptance import Acceptance
from .costs import Costs

PROBE_BUDGET = 0.0075  # of the time of plain decoding, where nothing speaks for a probe
PROBE_GAP = 16  # plain tokens before the first probe that hints speak for
HINTS = 48  # the latest tokens, whose hints are believed
HINT_PRIOR = 6.0  # such tokens that what was known before them is worth
HORIZON = 128  # tokens that are expected to follow, at least


class Probing:
    """The rests of a controller, and what the draft has missed in them.

    Attributes:
        on: whether it rests now.
        targets: the target's confidences at the latest tokens, at most `HINTS`.
    """

    def __init__(self, costs: Costs) -> None:
        self.on = False
        self.targets: deque[float] = deque(maxlen=HINTS)
        self._costs = costs
        self._plain = 0  # tokens since the rest began or was last probed
        self._probe_after = self._affordable(0.0)
        self._n_context = self._n_drafted_at = 0  # committed tokens: now, and when the draft last read them all

    def new_turn(self) -> None:
        """Another text: look again soon."""
        self.targets.clear()
        self._plain = 0
        self._probe_after = self._affordable(0.0)

    def begin(self) -> None:
        """Rest, or go on resting."""
        self._plain = self._plain if self.on else 0
        self.on = True

    def end(self) -> None:
        """Draft, or go on drafting."""
        self.on, self._plain = False, 0

    @property
    def probe_is_due(self) -> bool:
        """Whether a probe is affordable though nothing speaks for it."""
        return self._plain >= self._probe_after

    @property
    def must_ask(self) -> bool:
        """Whether hints alone are too little to end this rest now, and a probe comes first: it also corrects what
        the next hints say."""
        return self._plain >= PROBE_GAP

    def believed(self, acceptance: Acceptance) -> Callable[[int], float]:
        """The chance of acceptance by position that the hints speak for."""
        if not self.targets:
            return acceptance.at
        n, hint = len(self.targets), acceptance.expected_by_target(self.targets)
        return lambda position: (n * hint + HINT_PRIOR * acceptance.at(position)) / (n + HINT_PRIOR)

    def catching_up(self, n_draft_max: int) -> float:
        """What drafting must gain to repay the reading of what the draft missed, as a share of plain decoding: as if
        as many tokens followed as were missed, or some more where those were few, but no more than `room` and one."""
        missed = self._n_context - self._n_drafted_at
        follow = min(max(missed, HORIZON), n_draft_max + 1)
        return missed * (self._costs.draft_prefill_s or 0.0) / max(follow * self._costs.verify(1), 1e-9)

    def observe(self, round: Round, *, first: bool, drafted: bool) -> None:
        """A round: the first of its turn, or one that the draft model read along with, or another."""
        if first:  # what the target had to read, the draft has not read either
            self._n_drafted_at = min(self._n_drafted_at, round.n_context - round.n_prefilled)
        self._n_context = round.n_context + len(round.tokens)
        if drafted:
            self._n_drafted_at = round.n_context
        elif not round.draft_n:
            self._plain += len(round.tokens)
        self.targets.extend(round.confidences)

    def observe_probe(self, round: Round) -> list[float]:
        """A round that a probe came before: put the next one off, so that probing keeps its budget. Call it before
        `observe`.

        Returns:
            The target's confidences at the tokens that were scored.
        """
        self._plain = 0
        self._probe_after = self._affordable(round.draft_s)
        targets = list(self.targets)
        return targets[len(targets) - len(round.probe) :]

    def _affordable(self, seconds: float) -> int:
        """So many plain tokens keep a probe that takes so long within its budget."""
        plain_s = self._costs.verify(1)
        seconds = max(seconds, 2 * PROBE_MAX * (self._costs.draft_prefill_s or 0.0))
        return max(2 * PROBE_GAP, int(seconds / (PROBE_BUDGET * plain_s)) if plain_s > 0.0 else 0)
