"""What a round costs on this machine, in seconds: the target's pass by batch size, and the draft's steps.

Every cost is a measurement of its own times one factor of the machine that all share. A sample corrects both, each
by as much as it is uncertain (a Kalman filter whose states are taken as independent): what was measured once at load
soon yields to samples, what was seen often stays, and a machine that becomes slower is seen for every batch size at
once. Verification has steps (kernels tile by 4 or 8), so a batch is padded where a larger one is cheaper. It knows
nothing of acceptance and decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .constants import CLIP, COST_NOISE, LOAD_NOISE, MACHINE_DRIFT, PAD_BELOW, SAMPLE_NOISE

PAD_MAX = 15  # dummies beside a pass: cells are kept for so many
PREFILL_FROM = 9  # tokens: fewer say nothing about the cost of one


@dataclass
class _Cost:
    """One cost where the machine's factor is 1, and the variance of its logarithm."""

    seconds: float
    variance: float = LOAD_NOISE


class Costs:
    """Running cost estimates.

    Args:
        batch_max: the target's largest batch, see `calibration.largest_batch`.
        verify_s: seconds by batch size as measured at load; may be sparse or empty.
        draft_s: seconds of one draft step; None where nothing was measured.
        draft_prefill_s: seconds per token that the draft reads.
        draft_level_s: seconds of one draft step of several sequences together, by their number.
        pads: whether the target can drop what pads a batch. If not, a pass with a draft also carries what is read
            again, and says nothing about the machine.
    """

    def __init__(
        self,
        batch_max: int,
        verify_s: Mapping[int, float] | None = None,
        draft_s: float | None = None,
        draft_prefill_s: float | None = None,
        *,
        draft_level_s: Mapping[int, float] | None = None,
        pads: bool = False,
    ) -> None:
        self.batch_max = batch_max
        self.pads = pads
        self.host_s = 0.0
        self._verify = {n: _Cost(s) for n, s in (verify_s or {}).items() if 1 <= n <= batch_max}
        self._draft = _Cost(draft_s) if draft_s is not None else None
        self._draft_prefill = _Cost(draft_prefill_s) if draft_prefill_s is not None else None
        self._draft_levels = {n: _Cost(s) for n, s in (draft_level_s or {}).items() if n > 1}
        self._factor = 1.0
        self._factor_variance = 0.0
        self._curve: list[float] = []  # verify_s of 1, 2, … batch_max without the factor, since the last sample

    @property
    def known(self) -> bool:
        """Whether the plain pass, a larger batch and a draft step were measured."""
        return 1 in self._verify and len(self._verify) > 1 and self._draft is not None

    @property
    def draft_s(self) -> float:
        """Seconds of one draft step; 0 where nothing was measured."""
        return self._draft.seconds * self._factor if self._draft is not None else 0.0

    @property
    def draft_prefill_s(self) -> float:
        """Seconds per token that the draft reads; 0 where nothing was measured."""
        return self._draft_prefill.seconds * self._factor if self._draft_prefill is not None else 0.0

    def draft_level_s(self, n_sequences: int) -> float:
        """Seconds of one draft step of so many sequences together, on the line through the nearest that were measured;
        beyond them, and where none was, as many steps as there are sequences."""
        if n_sequences <= 1 or self._draft is None:
            return self.draft_s * n_sequences
        known = {1: self._draft, **self._draft_levels}
        below = max(n for n in known if n <= n_sequences)
        above = min((n for n in known if n > n_sequences), default=None)
        if above is None:
            return self._factor * known[below].seconds * n_sequences / below
        share = (n_sequences - below) / (above - below)
        return self._factor * ((1 - share) * known[below].seconds + share * known[above].seconds)

    def verify_s(self, batch_size: int) -> float:
        """Seconds of a pass of the target over `batch_size` tokens; where a larger batch is cheaper and the target can
        drop its padding, those of the larger one; beyond `batch_max` as if it were cut."""
        if not self._verify:
            return 0.0
        if not self._curve:
            bound = math.inf
            for n in range(self.batch_max, 0, -1):
                bound = min(bound, self._measured(n)) if self.pads else self._measured(n)
                self._curve.append(bound)
            self._curve.reverse()
        longer = max(batch_size / self.batch_max, 1.0)
        return self._factor * longer * self._curve[min(batch_size, self.batch_max) - 1]

    def unpadded_s(self, batch_size: int) -> float:
        """Seconds of a pass over just `batch_size` tokens."""
        return self._factor * self._measured(batch_size) if self._verify else 0.0

    def _measured(self, n: int) -> float:
        """On the line through the nearest measured batch sizes."""
        if n in self._verify:
            return self._verify[n].seconds
        below = max((m for m in self._verify if m < n), default=None)
        above = min((m for m in self._verify if m > n), default=None)
        if below is None or above is None:
            return self._verify[below or above or n].seconds
        share = (n - below) / (above - below)
        return (1 - share) * self._verify[below].seconds + share * self._verify[above].seconds

    def padding(self, batch_size: int) -> int:
        """How many dummies make a pass over `batch_size` tokens cheapest. A size that was not seen yet is left alone
        unless a larger one costs no more than is expected of it."""
        larger = {n: cost.seconds for n, cost in self._verify.items() if 0 < n - batch_size <= PAD_MAX and self.pads}
        if not larger:
            return 0
        cheapest = min(larger, key=lambda n: larger[n])
        limit = self._measured(batch_size) * (PAD_BELOW if batch_size in self._verify else 1.0)
        return cheapest - batch_size if larger[cheapest] <= limit else 0

    def observe_verify(self, batch_size: int, seconds: float) -> None:
        """A pass over `batch_size` tokens, its padding included, took so long."""
        if batch_size > self.batch_max:
            return
        if batch_size not in self._verify:
            guess = self._measured(batch_size) if self._verify else seconds / self._factor
            self._verify[batch_size] = _Cost(guess, 4 * LOAD_NOISE)
        self._learn(self._verify[batch_size], seconds, of_machine=self.pads or batch_size == 1)
        self._curve = []

    def observe_draft(self, n_steps: int, n_prefilled: int, seconds: float) -> None:
        """A draft of `n_steps` decodes took so long; its first one read `n_prefilled` tokens."""
        if n_prefilled >= PREFILL_FROM and self._draft is not None:
            per_token = max(seconds - (n_steps - 1) * self.draft_s, 0.0) / n_prefilled
            self._draft_prefill = self._draft_prefill or _Cost(per_token / self._factor)
            self._learn(self._draft_prefill, per_token)
        elif n_prefilled <= 2 and n_steps:
            self._draft = self._draft or _Cost(seconds / n_steps / self._factor)
            self._learn(self._draft, seconds / n_steps)

    def observe_levels(self, levels: Sequence[int], seconds: float) -> None:
        """Draft steps of levels[0], levels[1], … sequences together took so long."""
        expected = sum(map(self.draft_level_s, levels))
        if self._draft is None or expected <= 0.0:
            return
        for n in sorted(set(levels)):
            if n > 1 and n not in self._draft_levels:
                self._draft_levels[n] = _Cost(self.draft_level_s(n) / self._factor, 4 * LOAD_NOISE)
            cost = self._draft_levels[n] if n > 1 else self._draft
            self._learn(cost, self.draft_level_s(n) * seconds / expected)

    def observe_host(self, seconds: float) -> None:
        """The part of a round outside both models took so long."""
        cost = _Cost(self.host_s or seconds, COST_NOISE)
        self._learn(cost, seconds * self._factor)
        self.host_s = cost.seconds

    def _learn(self, cost: _Cost, seconds: float, *, of_machine: bool = False) -> None:
        expected = cost.seconds * self._factor
        if expected <= 0.0 or seconds <= 0.0:
            cost.seconds = max(seconds, 0.0) / self._factor
            return
        error = min(max(math.log(seconds / expected), -CLIP), CLIP)
        self._factor_variance += MACHINE_DRIFT if of_machine else 0.0
        variance = self._factor_variance if of_machine else 0.0
        total = variance + cost.variance + SAMPLE_NOISE
        own, machine = cost.variance / total, variance / total
        cost.seconds *= math.exp(own * error)
        cost.variance = max((1.0 - own) * cost.variance, COST_NOISE)
        self._factor *= math.exp(machine * error)
        self._factor_variance *= 1.0 - machine

    def to_json(self) -> dict[str, Any]:
        """What a later run of the same pair on the same machine can begin with."""
        verify_s = {str(n): cost.seconds * self._factor for n, cost in self._verify.items()}
        saved = {"verify_s": verify_s, "draft_s": self.draft_s, "draft_prefill_s": self.draft_prefill_s}
        levels = {str(n): cost.seconds * self._factor for n, cost in self._draft_levels.items()}
        return saved | ({"draft_level_s": levels} if levels else {})

    @classmethod
    def from_json(cls, batch_max: int, saved: Mapping[str, Any], *, pads: bool = False) -> Costs | None:
        """Costs from `to_json`'s; None where they do not serve."""
        try:
            verify_s = {int(n): float(s) for n, s in saved["verify_s"].items()}
            levels = {int(n): float(s) for n, s in saved.get("draft_level_s", {}).items()}
            own = float(saved["draft_s"]), float(saved["draft_prefill_s"])
            costs = cls(batch_max, verify_s, *own, draft_level_s=levels, pads=pads)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return costs if costs.known and batch_max in verify_s and all(s > 0.0 for s in verify_s.values()) else None
