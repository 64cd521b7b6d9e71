"""The memory of a model as llama.cpp itself plans it: a load without weights, in a child process.

It corrects what the formula of `footprint` says of caches and compute buffers, and knows nothing of pairs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from specgguf.config import KV_TYPES
from specgguf.errors import BackendError
from specgguf.models.hparams import HParams

from .footprint import LoadParams, MemoryEstimate, estimate, minimal_context_bytes

_CHILD = "import sys; from specgguf.fit.dry_load import answer_request; answer_request(sys.argv[1])"


def measured(load: LoadParams, path: Path, kind: str = "cpu", *, timeout_s: float = 120.0) -> MemoryEstimate:
    """As `estimate`, but KV caches and compute buffers are what llama.cpp plans for `path` (which may be a head
    extended by a hole): a load without weights, in a child process, because a build that cannot do it aborts.

    Raises:
        BackendError: llama.cpp could not plan this model.
    """
    request = json.dumps({"path": str(path), "settings": dry_settings(load, kind)})
    command = [sys.executable, "-P", "-c", _CHILD, request]
    child = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    try:
        answer = json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise BackendError(f"llama.cpp cannot plan {path.name} without loading it") from None
    if "error" in answer:
        raise BackendError(answer["error"])
    return _with_measured(estimate(load, kind), answer, kind, load.hparams)


def dry_settings(load: LoadParams, kind: str) -> dict[str, int]:
    """A load's settings as `ggml.dry_load` takes them."""
    return {
        "n_gpu_layers": 0 if kind == "cpu" else load.n_offloaded,
        "n_ctx": load.n_ctx,
        "n_batch": load.n_ubatch,
        "n_ubatch": load.n_ubatch,
        "n_outputs_max": load.n_outputs,
        "n_rs_seq": load.n_rs_seq,
        "type_k": KV_TYPES[load.type_k],
        "type_v": KV_TYPES[load.type_v],
        "flash_attn_type": int(load.flash_attn),
    }


def _with_measured(by_formula: MemoryEstimate, answer: dict[str, Any], kind: str, hparams: HParams) -> MemoryEstimate:
    host = sum(n for device, n in answer["compute"].items() if device.upper().startswith("CPU"))
    device = sum(answer["compute"].values()) - host
    device += minimal_context_bytes(hparams)
    kv = answer["kv_bytes"] + answer["state_bytes"]
    if kind == "cpu":
        return replace(by_formula, host_compute=host + device, host_kv=kv)
    share = by_formula.kv / max(1, by_formula.kv + by_formula.host_kv)
    return replace(
        by_formula,
        compute=device,
        host_compute=host,
        kv=round(kv * share),
        host_kv=round(kv * (1 - share)),
    )


def answer_request(request: str) -> None:
    """The child's part of `measured`: one line of JSON on stdout."""
    from specgguf.native import devices

    asked = json.loads(request)
    try:
        found: dict[str, Any] = devices.dry_load(asked["path"], asked["settings"])._asdict()
    except BackendError as error:
        found = {"error": str(error)}
    sys.stdout.write(json.dumps(found) + "\n")
