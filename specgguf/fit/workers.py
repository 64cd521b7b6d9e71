"""What of a model lies on workers, and what is left of it for this machine, by the formula of `footprint`.

It asks the workers about their memory; it loads nothing, and needs no build with RPC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from specgguf.models.hparams import HParams
from specgguf.native.rpc.placement import Placement, place
from specgguf.native.rpc.wire import WorkerReport, ask_all, endpoints

from .footprint import LoadParams, compute_bytes, kv_bytes_by_layer
from .hardware import Machine


@dataclass(frozen=True)
class WorkerShare:
    """What one worker gets: layers, and the bytes of their weights, caches and compute buffers."""

    report: WorkerReport
    n_layer: int
    bytes: int

    @property
    def fits(self) -> bool:
        """Whether the worker has that much memory now."""
        return self.bytes <= self.report.free_bytes

    def as_json(self) -> dict[str, Any]:
        """For `fit --json`."""
        return {
            "worker": str(self.report.endpoint),
            "layers": self.n_layer,
            "bytes": self.bytes,
            "free_bytes": self.report.free_bytes,
            "round_trip_s": self.report.round_trip_s,
            "fits": self.fits,
        }


def spread(
    load: LoadParams, machine: Machine, servers: Sequence[str], tensor_split: Sequence[float] | None
) -> tuple[LoadParams, list[WorkerShare]]:
    """What stays on `machine` of a model whose layers lie on workers too, and what each worker gets.

    Raises:
        WorkerLost, BackendError: a worker does not answer. ConfigError: shares that are not one for each.
    """
    reports = ask_all(endpoints(servers))
    placement = place(
        load.hparams,
        reports,
        gpus=[gpu.free_bytes for gpu in machine.gpus],
        cpu=machine.cpu.free_bytes,
        n_gpu_layers=load.n_gpu_layers,
        tensor_split=tensor_split,
    )
    kv, compute = kv_bytes_by_layer(load), compute_bytes(load)
    shares = [
        WorkerShare(report, n, weights + sum(kv[taken]) + compute)
        for report, n, weights, taken in zip(
            reports, placement.worker_layers, placement.worker_bytes, placement.taken, strict=True
        )
    ]
    n_up = int(placement.keywords["n_gpu_layers"]) - sum(placement.worker_layers)
    return replace(load, hparams=_left(load.hparams, placement), n_gpu_layers=n_up if machine.gpus else 0), shares


def _left(shape: HParams, placement: Placement) -> HParams:
    """A model of the layers that no worker has."""
    first, last = placement.taken[0].start, placement.taken[-1].stop

    def left(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[:first] + values[last:]

    share = 1 - (last - first) / shape.n_layer
    return replace(
        shape,
        k_width=left(shape.k_width),
        v_width=left(shape.v_width),
        state_bytes=left(shape.state_bytes),
        layer_bytes=left(shape.layer_bytes),
        matrix_bytes=tuple((kind, int(n * share)) for kind, n in shape.matrix_bytes),
    )
