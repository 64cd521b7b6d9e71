"""Costs measured once per pair, device and thread setting, and kept in the user's cache folder.

A calibration takes a second or two at every load; what an earlier run measured is as good a start, since every
round corrects it. What workers compute is measured at every load: the network in between is no part of the name, and
changes. A file that cannot be read or written is no reason to fail. It decides nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specgguf.native import compat
from specgguf.native.sequence import Sequence

from .calibration import calibrate, largest_batch, measure
from .costs import Costs

MAX_AGE_S = 30 * 24 * 3600.0
TOLERANCE = 1.3


def costs_for(
    target: Sequence, draft: Sequence | None, draft_max: int, *, clock: Callable[[], float] = time.perf_counter
) -> Costs:
    """The costs of a pair whose contexts these are sequences of: from an earlier run, or measured now and kept."""
    path = _file(target, draft, draft_max)
    saved = _read(path) if path is not None else None
    pads, n_sequences = target.rolls_back_freely, len(target.context.sequences)
    largest = largest_batch(draft_max, pads=pads, n_sequences=n_sequences)
    costs = Costs.from_json(largest, saved, pads=pads) if saved is not None else None
    if costs is None or not _still_true(costs, target, clock):
        costs = calibrate(target, draft, draft_max, clock, n_sequences=n_sequences)
        if costs.known and path is not None:
            _write(path, costs.to_json())
    return costs


def _still_true(costs: Costs, target: Sequence, clock: Callable[[], float]) -> bool:
    """Whether a plain pass still costs what it did: one of the two runs may have shared the machine."""
    if len(target.tokens) + 2 > target.n_ctx:
        return True
    measure(target, 2, 1, clock)  # the first pass of all reads the weights from disk
    return 1 / TOLERANCE < measure(target, 1, 1, clock) / costs.verify_s(1) < TOLERANCE


def folder() -> Path:
    """Where costs are kept (it need not exist)."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("specgguf")) / "costs"


def _file(target: Sequence, draft: Sequence | None, draft_max: int) -> Path | None:
    """A name that changes with anything that changes the costs; None where workers take part."""
    models = [model for model in (target, draft) if model is not None]
    if any(model.weights.keywords.get("rpc_servers") for model in models):
        return None
    sides = [_side(model) for model in models]
    key = json.dumps([sides, draft_max, compat.version(), os.cpu_count()], sort_keys=True, default=str)
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    return folder() / f"{name}.json"


def _side(model: Sequence) -> list[Any]:
    path = os.path.realpath(model.weights.path)
    return [path, os.stat(path).st_size, os.stat(path).st_mtime_ns, model.context.settings, model.weights.keywords]


def _read(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        if time.time() - path.stat().st_mtime < MAX_AGE_S:
            saved = json.loads(path.read_text())
            return saved if isinstance(saved, dict) else None
    return None


def _write(path: Path, data: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(data))
        os.replace(fresh, path)
