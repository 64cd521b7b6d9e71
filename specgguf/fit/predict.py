"""What drafting can gain, predicted: expected speed-up by draft length and acceptance, from costs.

Costs are measured ones where there are any, else derived from bytes, bandwidth and the kind of device. A
prediction is labelled one wherever it is shown; `bench` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from specgguf.models.hparams import HParams
from specgguf.models.nextn import prediction_heads

from .hardware import Device

ACCEPTANCES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LENGTHS = tuple(range(1, 8))
EFFICIENCY = 0.75  # of the bandwidth in the data sheet
LAUNCH_S = 60e-6  # per layer and pass on a GPU, whatever the size


@dataclass(frozen=True)
class PairCosts:
    """Seconds of a plain token, of a draft token, and of a target pass over n tokens; and the longest draft."""

    draft_s: float
    verify_s: Callable[[int], float]
    draft_max: int = LENGTHS[-1]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The draft lengths that are compared."""
        return tuple(n for n in LENGTHS if n <= self.draft_max)

    @property
    def plain_s(self) -> float:
        return self.verify_s(1)


def expected_tokens(acceptance: float, n: int) -> float:
    """Tokens that a round of n drafted ones commits: accepted ones, and the one that the target adds."""
    return float(n + 1) if acceptance >= 1.0 else (1.0 - acceptance ** (n + 1)) / (1.0 - acceptance)


def speed_up(costs: PairCosts, acceptance: float, n: int) -> float:
    """Drafting n tokens a round against plain decoding; 1.0 is the same speed."""
    round_s = n * costs.draft_s + costs.verify_s(n + 1)
    return expected_tokens(acceptance, n) * costs.plain_s / round_s


def best(costs: PairCosts, acceptance: float) -> tuple[int, float]:
    """The best draft length and its speed-up; (0, 1.0) where plain decoding is best."""
    n = max(costs.lengths, key=lambda k: speed_up(costs, acceptance, k))
    gain = speed_up(costs, acceptance, n)
    return (n, gain) if gain > 1.0 else (0, 1.0)


def break_even(costs: PairCosts) -> float | None:
    """The least acceptance at which some draft length is not slower than plain decoding; None if none is."""
    if best(costs, 1.0)[0] == 0:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if best(costs, middle)[0] else (middle, high)
    return high


def needed_acceptance(n_tokens: float, n: int) -> float | None:
    """The least acceptance at which a round of n drafted tokens commits so many on average; None: none does."""
    if expected_tokens(1.0, n) < n_tokens:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (low, middle) if expected_tokens(middle, n) >= n_tokens else (middle, high)
    return high


def from_measured(verify_s: Mapping[int, float], draft_s: float, draft_max: int = LENGTHS[-1]) -> PairCosts:
    """Costs measured at some batch sizes; between them straight lines, beyond them the last slope."""
    sizes = sorted(verify_s)

    def seconds(n: int) -> float:
        if n in verify_s or len(sizes) == 1:
            return verify_s.get(n, verify_s[sizes[0]])
        above = next((w for w in sizes if w > n), sizes[-1])
        i = max(1, sizes.index(above))
        a, b = sizes[i - 1], sizes[i]
        return verify_s[a] + (verify_s[b] - verify_s[a]) * (n - a) / (b - a)

    return PairCosts(draft_s, seconds, draft_max)


def from_bytes(target: HParams, draft: HParams, device: Device) -> PairCosts:
    """Costs by how many bytes a forward pass reads; batches by what the device's kernels do today, and by how many
    experts their tokens use. The draft may be the target's own heads: a step of theirs reads one."""
    slope = _slope(target, device)
    draft_max = LENGTHS[-1]
    if draft.are_heads:
        draft_max = prediction_heads.draft_limit(draft.n_layer) or draft_max
        n_expert_bytes = draft.expert_bytes // draft.n_layer
        draft = replace(draft, layer_bytes=draft.layer_bytes[:1], expert_bytes=n_expert_bytes)

    def verify_s(n: int) -> float:
        return _pass_s(target, device, n) + slope * (n - 1) * _pass_s(target, device, 1)

    return PairCosts(_pass_s(draft, device, 1), verify_s, draft_max)


def _pass_s(hparams: HParams, device: Device, n_tokens: int) -> float:
    bandwidth = device.bandwidth or 40e9  # only the ratio of the two models matters then
    launches = 0.0 if device.kind == "cpu" else LAUNCH_S * hparams.n_layer
    return hparams.bytes_read(n_tokens) / (bandwidth * EFFICIENCY) + launches


def _slope(target: HParams, device: Device) -> float:
    """What each further token of a pass adds, as a share of a plain token.

    CUDA and Vulkan check up to eight tokens for little more than one; Metal's small-batch kernels are
    near-linear today; on a CPU the arithmetic counts, the more the fewer bits a weight has (measured here).
    """
    if device.kind == "gpu":
        return 0.03
    if device.kind == "apple":
        return 0.5
    bits = target.bits_per_weight
    return 0.12 if bits > 12 else 0.35 if bits > 7 else 0.8
