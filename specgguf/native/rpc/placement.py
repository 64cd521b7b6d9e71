"""Which layers of a model lie on which worker: arithmetic over layer sizes and free memory, before anything is loaded.

llama.cpp leaves the first layers on the CPU, gives the following ones to the devices in their order, and the output
matrix to the last. So workers come first and this machine's GPUs last: the output stays here, and a hidden state
travels instead of a row of logits. Where this machine has no GPU the output is put on its CPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from specgguf.config import require_number
from specgguf.errors import BackendError, ConfigError
from specgguf.models.hparams import HParams

from .wire import Endpoint, WorkerReport

GIB = 2**30


@dataclass(frozen=True)
class Placement:
    """Where a model's layers go.

    Attributes:
        workers: in the order of their layers.
        worker_layers: how many each has; `worker_bytes`: their weights.
        keywords: n_gpu_layers and tensor_split as `Llama` takes them.
        output_on_cpu: the output matrix is to be kept from the last worker.
    """

    workers: tuple[Endpoint, ...]
    worker_layers: tuple[int, ...]
    worker_bytes: tuple[int, ...]
    n_layer: int
    keywords: Mapping[str, Any]
    output_on_cpu: bool

    @property
    def taken(self) -> list[slice]:
        """Which layers each worker has; those before the first and after the last stay here."""
        start = self.n_layer + 1 - int(self.keywords["n_gpu_layers"])
        ends = [start, *(start + n for n in accumulate(self.worker_layers))]
        return [slice(a, b) for a, b in pairwise(ends)]

    def check(self, report: WorkerReport) -> None:
        """Raise BackendError where a worker has less memory than its layers take."""
        index = self.workers.index(report.endpoint)
        needed, free = self.worker_bytes[index], report.free_bytes
        if needed > free:
            raise BackendError(
                f"worker {report.endpoint} has {free / GIB:.1f} GiB free, and its {self.worker_layers[index]} of "
                f"{self.n_layer} layers take {needed / GIB:.1f} GiB",
                hint="give it fewer with --tensor-split, or add a worker",
            )

    def __str__(self) -> str:
        here = self.n_layer - sum(self.worker_layers)
        parts = [f"{n} on {worker}" for worker, n in zip(self.workers, self.worker_layers, strict=True)]
        return f"{self.n_layer} layers: {here} here, {', '.join(parts)}"


def place(
    shape: HParams,
    reports: Sequence[WorkerReport],
    *,
    gpus: Sequence[int],
    cpu: int,
    n_gpu_layers: int = -1,
    tensor_split: Sequence[float] | None = None,
) -> Placement:
    """Spread a model's layers over this machine and workers.

    Args:
        gpus: free bytes of this machine's GPUs; none where it has none. `cpu`: of its main memory.
        n_gpu_layers: layers on GPUs and workers; -1: as many as their share.
        tensor_split: shares of this machine's GPUs (of its CPU where it has none), then of each worker; by default
            their free memory.

    Raises:
        ConfigError: shares that are not one for each, or that leave the workers nothing.
    """
    here = list(gpus) or [cpu]
    shares = _shares(tensor_split, here, reports)
    n_layer = shape.n_layer
    if gpus:
        n_up = n_layer if n_gpu_layers < 0 else min(n_gpu_layers, n_layer)
        counts = divide(n_up, shares)
    elif n_gpu_layers < 0:
        n_up = n_layer - divide(n_layer, shares)[0]
        counts = [n_layer - n_up, *divide(n_up, shares[1:])]
    else:
        n_up = min(n_gpu_layers, n_layer)
        counts = [0, *divide(n_up, shares[1:])]
    n_local = len(here)
    local, workers = counts[:n_local], counts[n_local:]
    if not sum(workers):
        raise ConfigError(
            f"no layer of {shape.name} would lie on a worker", hint="give the workers a share in --tensor-split"
        )
    by_device = _by_device(workers, reports) + (local if gpus else [])
    by_device[-1] += 1  # llama.cpp counts the output as a layer more, wherever it is put
    starts = [n_layer - n_up, *(n_layer - n_up + n for n in accumulate(workers))]
    return Placement(
        tuple(report.endpoint for report in reports),
        tuple(workers),
        tuple(sum(shape.layer_bytes[a:b]) for a, b in pairwise(starts)),
        n_layer,
        {"n_gpu_layers": n_up + 1, "tensor_split": [float(n) for n in by_device]},
        output_on_cpu=not gpus,
    )


def divide(n: int, shares: Sequence[float]) -> list[int]:
    """`n` whole things by shares, each within one of what is due to it (the largest remainders get what is left)."""
    due = [n * share / sum(shares) for share in shares]
    counts = [int(one) for one in due]
    by_remainder = sorted(range(len(due)), key=lambda i: counts[i] - due[i])
    for i in by_remainder[: n - sum(counts)]:
        counts[i] += 1
    return counts


def _shares(given: Sequence[float] | None, here: Sequence[int], reports: Sequence[WorkerReport]) -> list[float]:
    if given is None:
        return [float(max(n, 1)) for n in (*here, *(report.free_bytes for report in reports))]
    shares = list(given)
    if len(shares) != len(here) + len(reports):
        names = "this machine" if len(here) == 1 else f"this machine's {len(here)} GPUs"
        listed = ", ".join(str(report.endpoint) for report in reports)
        raise ConfigError(
            f"tensor_split has {len(shares)} shares, and {len(here) + len(reports)} are wanted: {names}, then {listed}"
        )
    for share in shares:
        require_number("tensor_split", share, 0.0, 1e9)
    if not sum(shares[len(here) :]):
        raise ConfigError("tensor_split gives the workers nothing", hint="leave --rpc out")
    return [float(share) for share in shares]


def _by_device(counts: Sequence[int], reports: Sequence[WorkerReport]) -> list[int]:
    """Layers of each device of each worker."""
    found: list[int] = []
    for n, report in zip(counts, reports, strict=True):
        found += divide(n, [max(device.free_bytes, 1) for device in report.devices])
    return found
