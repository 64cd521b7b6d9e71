"""Models in a process of their own, though no worker takes part: what `rpc` does, on any build of llama.cpp."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from specgguf.native import weights
from specgguf.native.rpc.placement import Placement

NOBODY = {"rpc_servers": ["nobody:1"]}  # keywords of a model that is to live elsewhere


def live_elsewhere(patch: pytest.MonkeyPatch) -> None:
    """Give files that are loaded with `rpc_servers` no workers: all layers lie in the child."""
    alone = Placement((), (), (), 2, {"n_gpu_layers": 0}, False)
    patch.setattr(weights, "placement_for", lambda path, keywords: alone)


def kill_child(loaded: weights.Weights, how: int = signal.SIGKILL) -> None:
    """What ggml does to the process when a worker is lost."""
    process: Any = loaded._remote._process  # type: ignore[union-attr]
    os.kill(process.pid, how)
    process.wait()
