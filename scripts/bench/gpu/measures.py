"""What `scripts/bench/run gpu` measures of a pair: memory at each step of loading, and times of forward passes.

Gives back plain data with every sample; nothing is printed or judged here. Clocks stop only after the logits were
read, which waits for the device.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from specgguf.presets import Shape

from specgguf import SamplingParams
from specgguf.config import DRAFT_MAX_LIMIT, KV_TYPES
from specgguf.control import calibration
from specgguf.control.controller import Adaptive
from specgguf.control.costs import Costs
from specgguf.decode.sampling import Transform
from specgguf.fit import dry_load, footprint, predict
from specgguf.fit.hardware import this_machine
from specgguf.loading import physical_cores
from specgguf.models import hparams
from specgguf.native import backend
from specgguf.native.context import Model
from specgguf.native.weights import Weights

Json = dict[str, Any]
DRAFT_MAX = 7
FIRST_ID = 100  # ids of prompts and of timed passes begin here
WARM = 3  # passes before the timed ones of a width: graphs are captured, kernels loaded
_BUFFER = re.compile(r"(\S+)\s+(model|KV|compute|output|RS)\s+buffer size\s*=\s*([\d.]+) MiB")
_TELLING = re.compile(
    r"offloaded|buffer size|flash_attn|Flash Attention|K \(|using device|n_ubatch|graph splits|quantized V|ERROR|rror:"
)


@dataclass(frozen=True)
class PairPlan:
    """A pair to be measured: shapes, kinds of weights, and how it is loaded."""

    name: str
    shapes: tuple[Shape, Shape]
    kinds: tuple[str, str]
    archs: tuple[str, str]
    n_ctx: int
    type_kv: str
    draft_type_kv: str
    depth: int  # tokens in the caches while passes are timed
    n_tokens: int  # of a generation
    n_samples: int
    self_draft: bool = True

    @property
    def keywords(self) -> Json:
        """For `SpeculativeLlama`."""
        return {
            "n_ctx": self.n_ctx,
            "flash_attn": True,
            "draft_flash_attn": True,
            "type_k": self.type_kv,
            "type_v": self.type_kv,
            "draft_type_k": self.draft_type_kv,
            "draft_type_v": self.draft_type_kv,
            "draft_max": DRAFT_MAX,
        }

    def loads(self, paths: Sequence[Path]) -> list[footprint.LoadParams]:
        """For `footprint`."""
        kv = (self.type_kv, self.draft_type_kv)
        return [
            footprint.LoadParams(hparams.of_file(p), self.n_ctx, type_k=k, type_v=k)
            for p, k in zip(paths, kv, strict=True)
        ]


def free_bytes() -> int:
    """Free memory of all GPUs together; 0 without one."""
    return sum(d.free_bytes for d in this_machine().gpus)


def buffers(lines: Sequence[str]) -> dict[str, int]:
    """Bytes that llama.cpp logged, by "device what", summed over contexts."""
    found: dict[str, int] = {}
    for device, what, size in _BUFFER.findall("".join(lines)):
        key = f"{device} {what}"
        found[key] = found.get(key, 0) + round(float(size) * 2**20)
    return found


def telling(lines: Sequence[str]) -> list[str]:
    """The log lines that say what was decided."""
    return list(dict.fromkeys(line.strip() for line in lines if _TELLING.search(line)))


# --- memory and times ---------------------------------------------------------------------------------------


def pair_alone(plan: PairPlan, paths: Sequence[Path]) -> Json:
    """Both models loaded step by step, with the device's free memory after each; then passes, timed."""
    machine, loads = this_machine(), plan.loads(paths)
    predicted = footprint.footprint(loads[0], loads[1], machine)
    found: Json = {
        "predicted": {"target": asdict(predicted.target), "draft": asdict(predicted.draft)},
        "predicted_overhead": predicted.overhead,
        "asked_of_llama_cpp": [_asked(load, path, machine.kind) for load, path in zip(loads, paths, strict=True)],
    }
    layers = -1 if backend.supports_gpu_offload() else 0
    keys = {"n_gpu_layers": layers, "n_threads": physical_cores(), "n_threads_batch": physical_cores()}
    steps: list[tuple[str, int, dict[str, int]]] = [("before", free_bytes(), {})]
    opened: list[Weights | Model] = []
    models: list[Model] = []
    try:
        for role, path, kv in zip(("target", "draft"), paths, (plan.type_kv, plan.draft_type_kv), strict=True):
            with backend.captured_log() as lines:
                opened.append(weights := Weights(path, keys))
            steps.append((f"{role} weights", free_bytes(), buffers(lines)))
            with backend.captured_log() as lines:
                model = Model(weights, n_ctx=plan.n_ctx, n_outputs_max=DRAFT_MAX_LIMIT + 1, flash_attn=True,
                              type_k=KV_TYPES[kv], type_v=KV_TYPES[kv])  # fmt: skip
            opened.append(model)
            models.append(model)
            steps.append((f"{role} context", free_bytes(), buffers(lines)))
        started = time.perf_counter()
        for model in models:
            model.extend(ids(plan.depth), 1)
        found["prefill_s"] = time.perf_counter() - started
        steps.append(("prompt read", free_bytes(), {}))
        found |= _times(plan, *models)
        steps.append(("passes timed", free_bytes(), {}))
        found["width_noise"] = [width_noise(model) for model in models]
    finally:
        for part in reversed(opened):
            part.close()
        steps.append(("closed", free_bytes(), {}))
        found["steps"] = [{"step": name, "free_bytes": free, "logged": said} for name, free, said in steps]
    return found


def _asked(load: footprint.LoadParams, path: Path, kind: str) -> Json:
    try:
        return asdict(dry_load.measured(load, path, kind))
    except Exception as error:
        return {"error": str(error)}


def ids(n: int) -> list[int]:
    return [FIRST_ID + i % 1000 for i in range(n)]


def _passes(model: Model, width: int, n: int) -> list[float]:
    """Seconds of `n` settled passes over `width` tokens, at the cache's length."""
    return [_pass(model, width) for _ in range(WARM + n)][WARM:]


def _pass(model: Model, width: int, *, keep: bool = False) -> float:
    at, tokens = len(model.tokens), ids(width)
    started = time.perf_counter()
    model.extend(tokens, width)
    seconds = time.perf_counter() - started
    if not keep:
        model.roll_back(at)
    return seconds


def _times(plan: PairPlan, target: Model, draft: Model) -> Json:
    """verify(1..17), draft steps, both in turn as in a round, and what calibration and controller make of them."""
    n = plan.n_samples
    verify = {width: _passes(target, width, n) for width in range(1, DRAFT_MAX_LIMIT + 2)}
    at = len(draft.tokens)
    steps = [_pass(draft, 1, keep=True) for _ in range(WARM + 2 * n)][WARM:]
    draft.roll_back(at)
    rounds = []
    for _ in range(WARM + n):
        drafted = [_pass(draft, 1, keep=True) for _ in range(4)]
        rounds.append([*drafted, _pass(target, 5)])
        draft.roll_back(at)
    mixed: dict[int, list[float]] = {width: [] for width in (1, 2, 3, 5, 8)}
    for _ in range(n):
        for width in mixed:
            mixed[width].append(_pass(target, width))
    started = time.perf_counter()
    calibrated = calibration.calibrate(target, draft, DRAFT_MAX)
    calibration_s = time.perf_counter() - started
    return {
        "depth": plan.depth,
        "verify_s": verify,
        "verify_mixed_s": mixed,
        "draft_s": steps,
        "draft_two_s": _passes(draft, 2, n),
        "rounds_s": rounds[WARM:],
        "calibration": {"seconds": calibration_s, **calibrated.to_json()},
        "decision": decision(verify, steps, calibrated),
    }


def decision(verify: Mapping[int, Sequence[float]], steps: Sequence[float], calibrated: Costs) -> Json:
    """The best length at given acceptances by the medians, and the controller's own speeds before it saw a token."""
    medians = {width: statistics.median(s) for width, s in verify.items()}
    pair = predict.from_measured(medians, statistics.median(steps))
    controller = Adaptive(DRAFT_MAX, calibrated)
    return {
        "best_by_acceptance": {str(a): predict.best(pair, a) for a in predict.ACCEPTANCES},
        "break_even": predict.break_even(pair),
        "controller_speeds": controller.speeds(controller.acceptance.survival(DRAFT_MAX), calibrated.draft_s),
    }


def width_noise(model: Model, n: int = 16) -> Json:
    """How far the logits of the same tokens move with the width of the pass: one by one against 2, 5 and n at once."""
    at, tokens = len(model.tokens), ids(3 * n)[2 * n :]

    def rows(width: int) -> Any:
        parts = [model.extend(tokens[i : i + width], min(width, n - i)).copy() for i in range(0, n, width)]
        model.roll_back(at)
        return np.concatenate(parts)

    one = rows(1)
    distribution = Transform(SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0), n_vocab=model.n_vocab)
    found: Json = {"finite": bool(np.isfinite(one).all()), "std": float(one.std()), "widths": {}}
    for width in (2, 5, n):
        other = rows(width)
        top = np.sort(np.partition(one, -2, axis=1)[:, -2:], axis=1)
        best = np.argsort(one, axis=1)[:, -2:]
        gaps = np.take_along_axis(other, best, axis=1)
        found["widths"][width] = {
            "max_change": np.abs(one - other).max(axis=1).tolist(),
            "gap_change": np.abs((top[:, 1] - top[:, 0]) - (gaps[:, 1] - gaps[:, 0])).tolist(),
            "n_flips": int((one.argmax(axis=1) != other.argmax(axis=1)).sum()),
            "overlap": [
                distribution.distribution(a, ()).overlap(distribution.distribution(b, ()))
                for a, b in zip(one, other, strict=True)
            ],
        }
    return found
