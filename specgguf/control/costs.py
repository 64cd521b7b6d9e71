"""What a round costs on this machine, in seconds, by the width of the target's pass.

Verification has steps (kernels tile by 4 or 8) and drifts with the length of the context, so every width has
its own estimate, measured at load where possible and corrected by each sample; widths that were not seen yet
are interpolated, and those that were not seen of late follow the others. Some kernels take longer for six
tokens than for a full tile of eight: such a pass is padded to the tile. It knows nothing of acceptance and
decides nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from specgguf.config import DRAFT_MAX_LIMIT

RATE = 0.15  # weight of a new sample, at least; more where a width was seldom seen of late
FRESH = 0.9  # what was seen n passes ago takes over 1 - FRESH**n of a change that another width shows
FADE = 0.98  # of what earlier samples of a width count, at each pass of any width
CALIBRATED = 5.0  # samples that a measurement at load stands for
CLIP = 1.5  # a sample further than this factor from the estimate counts as that far: one slow decode is noise
TILE = 8  # passes are padded up to a multiple of so many
PADS_BELOW = 0.95  # pad where the wider pass costs less than this much of the narrower one


class Extendable(Protocol):
    """What a calibration needs of `model.Model`."""

    n_ctx: int

    @property
    def rolls_back_freely(self) -> bool:
        """Whether `rewind` always keeps what it is asked to, so that a pass can be padded."""

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds."""

    def extend(self, tokens: Sequence[int], n_outputs: int) -> Any:
        """Decode `tokens`."""

    def mark(self, n_ahead: int) -> None:
        """Up to `n_ahead` of the tokens decoded next are dropped again."""

    def roll_back(self, n: int) -> int:
        """Keep the first `n`."""


@dataclass
class _Pass:
    """The running estimate of one width.

    Attributes:
        seconds: the estimate.
        weight: how many recent samples it stands for.
        level: a running mean of the samples alone, once there were three, or the plain pass's own price at load: it
            moves with the machine, `seconds` also where a measurement at load was wrong.
        recent: the last three samples; the estimate, as long as there are fewer.
        n: samples.
        age: passes of any width since the last one.
    """

    seconds: float
    weight: float
    level: float | None = None
    recent: list[float] = field(init=False)
    n: int = 0
    age: int = 0

    def __post_init__(self) -> None:
        self.recent = [self.seconds]

    def learn(self, seconds: float) -> float:
        """Move towards a sample. A single slow pass is noise, two are news. Returns the factor by which the machine
        seems to have become slower."""
        self.recent = [*self.recent[-2:], seconds]
        typical = sorted(self.recent)[(len(self.recent) - 1) // 2]
        self.seconds = _moved(self.seconds, typical, max(RATE, 1.0 / (self.weight + 2.0)))
        self.weight += 1.0
        self.age = 0
        self.n += 1
        before = self.level
        if self.n >= 3 or before:
            self.level = _moved(before, typical)
        return self.level / before if self.level and before else 1.0

    def follow(self, moved: float) -> None:
        """The machine became slower by this factor, as another width has it."""
        share = _share(moved, self.age)
        self.seconds *= share
        self.recent = [s * share for s in self.recent]
        if self.level is not None:
            self.level *= share


class Costs:
    """Running cost estimates.

    Args:
        widths: the widest target pass, see `widest`.
        verify_s: seconds by width from a calibration; may be sparse or empty.
        draft_s: seconds of one draft step; None where nothing was measured.
        sync_s: seconds per token of the draft's batched catching up.
        pads: whether the target can drop what pads a pass. If not, a wide pass also carries what is read again.
    """

    def __init__(
        self,
        widths: int,
        verify_s: Mapping[int, float] | None = None,
        draft_s: float | None = None,
        draft_prefill_s: float | None = None,
        *,
        pads: bool = False,
    ) -> None:
        self.widths = widths
        self.pads = pads
        self.draft_s = draft_s
        self.draft_prefill_s = draft_prefill_s
        self.host_s = 0.0
        self._seen = {n: _Pass(s, CALIBRATED) for n, s in (verify_s or {}).items() if 1 <= n <= widths}
        if 1 in self._seen:
            self._seen[1].level = self._seen[1].seconds
        self._draft_age = 0  # passes of the target since a draft step was timed
        self._prices: dict[int, float] = {}  # what `verify` said since the last observation

    def to_json(self) -> dict[str, Any]:
        """What a later run of the same pair on the same machine can begin with."""
        verify_s = {str(n): one.seconds for n, one in self._seen.items()}
        return {"verify_s": verify_s, "draft_s": self.draft_s, "draft_prefill_s": self.draft_prefill_s}

    @classmethod
    def from_json(cls, widths: int, saved: Mapping[str, Any], *, pads: bool = False) -> Costs | None:
        """Costs from `to_json`'s; None where they do not serve."""
        try:
            verify_s = {int(n): float(s) for n, s in saved["verify_s"].items()}
            costs = cls(widths, verify_s, float(saved["draft_s"]), float(saved["draft_prefill_s"]), pads=pads)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        return costs if costs.known and widths in verify_s and all(s > 0.0 for s in verify_s.values()) else None

    @property
    def known(self) -> bool:
        """Whether the plain pass, a wider one and a draft step were measured."""
        return 1 in self._seen and len(self._seen) > 1 and self.draft_s is not None

    def verify(self, width: int) -> float:
        """Seconds of a target pass over `width` tokens, padded or not: never above a wider one, which could be run
        instead. Where it cannot, the bound still keeps a slow sample at load from staying."""
        if width not in self._prices:
            self._prices[width] = self._price(width)
        return self._prices[width]

    def _price(self, width: int) -> float:
        wider = min((one.seconds for n, one in self._seen.items() if n >= width), default=math.inf)
        return min(wider, self.unpadded(width))

    def unpadded(self, width: int) -> float:
        """Seconds of a target pass over just `width` tokens: interpolated between the nearest measured widths."""
        if width in self._seen:
            return self._seen[width].seconds
        below = max((n for n in self._seen if n < width), default=None)
        above = min((n for n in self._seen if n > width), default=None)
        if below is None or above is None:
            nearest = below or above
            return self._seen[nearest].seconds if nearest else 0.0
        share = (width - below) / (above - below)
        return (1 - share) * self.verify(below) + share * self.verify(above)

    def padding(self, width: int) -> int:
        """How many dummies make a pass over `width` tokens cheapest. A width that was not seen yet is left alone
        unless a wider one costs no more than is expected of it."""
        wider = {n: one.seconds for n, one in self._seen.items() if n > width} if self.pads else {}
        if not wider:
            return 0
        cheapest = min(wider, key=lambda n: wider[n])
        limit = self.unpadded(width) * (PADS_BELOW if width in self._seen else 1.0)
        return cheapest - width if wider[cheapest] <= limit else 0

    def observe_verify(self, width: int, seconds: float) -> None:
        """A pass of `width` tokens took so long.

        What is not seen for a while follows a change of the machine: contexts grow, and other programs, heat and
        clocks slow all of it. Otherwise a plain pass, seen often, would look dear beside wide ones that were last
        seen in better times, and drafting would begin where it loses.
        """
        self._prices.clear()
        for one in self._seen.values():
            one.weight *= FADE
            one.age += 1
        self._draft_age += 1
        here = self._seen.get(width)
        if here is None:
            self._seen[width] = _Pass(seconds, 1.0)
            return
        moved = here.learn(seconds)
        if width == 1 or self.pads:
            for one in self._seen.values():
                one.follow(moved)
            share = _share(moved, self._draft_age)
            self.draft_s, self.draft_prefill_s = (s and s * share for s in (self.draft_s, self.draft_prefill_s))

    def observe_draft(self, n_steps: int, n_draft_prefilled: int, seconds: float) -> None:
        """A draft of `n_steps` decodes took so long; its first decode caught up with `n_synced` tokens."""
        if n_draft_prefilled > 2:
            if self.draft_s is not None and n_draft_prefilled > 8:
                per_token = max(seconds - (n_steps - 1) * self.draft_s, 0.0) / n_draft_prefilled
                self.draft_prefill_s = _moved(self.draft_prefill_s, per_token)
            return
        if n_steps:
            self.draft_s = _moved(self.draft_s, seconds / n_steps)
            self._draft_age = 0

    def observe_host(self, seconds: float) -> None:
        self.host_s = _moved(self.host_s or None, seconds)


def _moved(old: float | None, new: float, rate: float = RATE) -> float:
    if old is None or old <= 0.0:
        return new
    return old + rate * (min(max(new, old / CLIP), old * CLIP) - old)


def _share(moved: float, age: int) -> float:
    """What of a change is news for an estimate that was made `age` passes ago."""
    return 1.0 + (1.0 - FRESH**age) * (moved - 1.0)


def widest(draft_max: int, *, pads: bool) -> int:
    """The widest pass of the target: that of a full draft, and its padding."""
    tiles = -(-(draft_max + 1) // TILE)
    return max(draft_max + 1, min(tiles * TILE, DRAFT_MAX_LIMIT)) if pads else draft_max + 1


def calibrated_widths(draft_max: int, *, pads: bool) -> list[int]:
    """What a calibration measures: the narrow passes, a full draft's, and full tiles."""
    widths = widest(draft_max, pads=pads)
    return sorted({1, 2, draft_max + 1, *(n for n in (4, *range(TILE, widths + 1, TILE)) if n <= widths)})


def measure(model: Extendable, width: int, n_outputs: int, clock: Callable[[], float]) -> float:
    """Seconds of a pass over `width` tokens: the faster of two, since the first pays for its graph. The cache holds
    afterwards what it held before."""
    seconds = []
    for _ in range(2):
        n = len(model.tokens)
        model.mark(model.n_ctx)  # the whole pass is dropped again, further than a native rollback reaches
        started = clock()
        model.extend([0] * width, min(width, n_outputs))
        seconds.append(clock() - started)
        model.roll_back(n)
    return min(seconds)


def calibrate(
    target: Extendable, draft: Extendable | None, draft_max: int, clock: Callable[[], float] = time.perf_counter
) -> Costs:
    """Measure a pair where it stands: passes of the target at `calibrated_widths`, a draft step, and a batched
    catching up per token."""
    pads = target.rolls_back_freely
    widths = widest(draft_max, pads=pads)

    def best_of_two(model: Extendable, width: int) -> float:
        return measure(model, width, widths, clock)

    n_draft_max = target.n_ctx - len(target.tokens)
    if n_draft_max > 1:
        best_of_two(target, 2)  # the first pass of all reads the weights from disk
    verify_s = {n: best_of_two(target, n) for n in calibrated_widths(draft_max, pads=pads) if n <= n_draft_max}
    if draft is None:
        return Costs(widths, verify_s, 0.0, 0.0, pads=pads)
    wide = min(16, draft.n_ctx - len(draft.tokens))
    if wide < 2:
        return Costs(widths, verify_s, pads=pads)
    return Costs(widths, verify_s, best_of_two(draft, 1), best_of_two(draft, wide) / wide, pads=pads)
