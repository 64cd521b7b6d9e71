"""Two nodes of a Ray cluster on this machine, and what is opened on them: engines that echo."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from specgguf.batch.answering import Opened
from specgguf.errors import ModelNotFound
from specgguf.serve.config import ServeConfig
from support.batch_support import Echo

MEMORY = 80 * 2**20  # bytes of each node's object store: rows are small


def open_echo() -> Opened:
    """An engine that takes two requests at a time."""
    engine = Echo()
    engine.n_parallel = 2
    return Opened(engine, ServeConfig(names=("echo",)))


def open_with_gate(gate: Path) -> Callable[[], Opened]:
    """As `open_echo`; GATE waits for that file."""
    return partial(_open_with_gate, str(gate))


def _open_with_gate(gate: str) -> Opened:
    os.environ["GATE"] = gate
    return open_echo()


def open_nothing() -> Opened:
    """A node that lacks the file."""
    raise ModelNotFound("no such file: /models/target.gguf", hint="give a path that every node has")


def open_or_die() -> Opened:
    """A node whose process ends while it loads."""
    os._exit(3)


@contextmanager
def cluster() -> Iterator[Any]:
    """`ray.cluster_utils.Cluster` with its head; nodes find `support` and specgguf."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        made = importlib.import_module("ray.cluster_utils").Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False},
        )
        try:
            yield made
        finally:
            made.shutdown()


def add_node(made: Any) -> Any:
    """One node more; for `remove_node`."""
    return made.add_node(num_cpus=1, object_store_memory=MEMORY)
