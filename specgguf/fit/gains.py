"""What each possible draft would bring for a target: expected speed-up, by what it costs and what would be accepted.

Costs are the caller's: by bytes, or measured. How much is accepted is assumed until a pair was run: as much as was
measured of a draft of the target's family (docs/models.md), less what a vocabulary lacks. Runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from specgguf.errors import SpecggufError, Unsupported
from specgguf.models import hparams, remote_header

from . import predict
from .draft_candidates import Candidate
from .hardware import Machine
from .predict import PairCosts
from .slimming import cutting, size

ACCEPTANCE = 0.75  # of drafted tokens, for a draft of the target's family
WORTH = 1.02  # so much faster than the whole draft is worth a proposal

Costs = Callable[[Candidate], PairCosts | None]


@dataclass(frozen=True)
class Gain:
    """A candidate, and what is expected of it.

    Attributes:
        acceptance: of its drafted tokens, those that are assumed to be accepted.
        draft_n: the best draft length; 0 where plain decoding is best.
        speed_up: against plain decoding; None where nothing is known of its costs.
    """

    candidate: Candidate
    acceptance: float = 0.0
    draft_n: int = 0
    speed_up: float | None = None


@dataclass(frozen=True)
class Proposal:
    """A slimmed draft that does not exist yet.

    Attributes:
        whole: the draft that it would be cut from.
        n: the tokens that it would keep.
    """

    whole: Gain
    n: int
    gain: Gain


def ranked(found: Iterable[Candidate], costs: Costs) -> list[Gain]:
    """Those of the target's family first, then those of another vocabulary, the fastest first; then all others."""
    gains = [_gain(candidate, costs) for candidate in found]

    def order(gain: Gain) -> tuple[bool, bool, bool, float, int, str]:
        c = gain.candidate
        return bool(c.why_not), c.share < 1.0, not c.is_here, -(gain.speed_up or 0.0), c.bytes, c.name

    return sorted(gains, key=order)


def by_bytes(target: Path, machine: Machine) -> Costs:
    """Costs by how much each file's forward pass reads. Raises SpecggufError for a target that cannot be read."""
    shape = hparams.of_file(target)

    def costs(candidate: Candidate) -> PairCosts | None:
        if candidate.file is None:
            return None
        try:
            return predict.from_bytes(
                shape, remote_header.read(candidate.file, offline=True).hparams, machine.devices[0]
            )
        except SpecggufError:
            return None

    return costs


def slimmed(gains: Iterable[Gain], costs: Costs) -> Proposal | None:
    """A cut of the best draft that is here and whole, where that pays and no better draft is here."""
    usable = [gain for gain in gains if gain.speed_up is not None and gain.candidate.is_here]
    whole = next((g for g in usable if g.candidate.kept == 1.0 and isinstance(g.candidate.file, Path)), None)
    paid = costs(whole.candidate) if whole else None
    if whole is None or paid is None or not isinstance(whole.candidate.file, Path):
        return None
    try:
        ranking, shape = cutting.ranking_of(whole.candidate.file), hparams.of_file(whole.candidate.file)
    except Unsupported:
        return None
    found, per_id = [], shape.output_bytes / shape.n_vocab / shape.read_bytes
    for n in (n for n in size.SIZES if n < shape.n_vocab):
        kept = replace(whole.candidate, kept=ranking.share(ranking.first(n)))
        step_s = paid.draft_s * (1.0 - (shape.n_vocab - n) * per_id)
        found.append(Proposal(whole, n, _at(kept, replace(paid, draft_s=step_s))))
    best = max(found, key=lambda proposal: proposal.gain.speed_up or 0.0, default=None)
    fastest = max(gain.speed_up or 0.0 for gain in usable)
    return best if best is not None and (best.gain.speed_up or 0.0) > WORTH * fastest else None


def _gain(candidate: Candidate, costs: Costs) -> Gain:
    paid = None if candidate.why_not else costs(candidate)
    return Gain(candidate) if paid is None else _at(candidate, paid)


def _at(candidate: Candidate, costs: PairCosts) -> Gain:
    acceptance = ACCEPTANCE * candidate.share * candidate.kept
    return Gain(candidate, acceptance, *predict.best(costs, acceptance))
