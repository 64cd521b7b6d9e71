"""What runs on a node of a Ray cluster, and how a cluster is reached.

It knows one node: which there are, and which request goes where, is `over_ray`'s.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import specgguf
from specgguf.config import one_line
from specgguf.errors import BackendError, ConfigError, Unsupported
from specgguf.serve.protocols.reply import Json

from .answering import Answering, Opened
from .requests import Request

AUTO = "auto"  # the address of the cluster that runs on this machine
INSTALL = "pip install 'specgguf[ray]'"
REACH_S = 5.0  # to connect to an address: Ray itself would try for a minute
MESSAGE_MAX = 300  # of what Ray says

Open = Callable[[], Opened]


class Ready(NamedTuple):
    """What an actor says once it has loaded the pair: its model's name, requests at a time, and whose code it runs."""

    name: str
    n_parallel: int
    version: str
    pid: int


class NodeActor:
    """On a node: the pair, loaded once by whoever calls first. Any number of its methods run at once."""

    def __init__(self, open_pair: Open) -> None:
        self._open = open_pair
        self._lock = threading.Lock()
        self._answering: Answering | None = None
        self._ready: Ready | None = None

    def load(self) -> Ready:
        """Load the pair unless it is."""
        with self._lock:
            if self._ready is None:
                engine, config = self._open()
                self._answering = Answering(engine, config)
                self._ready = Ready(config.name, engine.n_parallel, specgguf.__version__, os.getpid())
            return self._ready

    def row(self, request: Request) -> Json:
        """The row of a request. A restarted actor may be asked before it has loaded."""
        self.load()
        assert self._answering is not None
        row = self._answering.row(request)
        assert row is not None  # nobody stops it: it is killed
        return row


def connect(address: str) -> Any:
    """The module `ray`, connected to the cluster.

    Raises:
        Unsupported: Ray is not installed. BackendError: no cluster answers. ConfigError: no address.
    """
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # it would hide GPUs from whoever books none
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    _require(address)
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise Unsupported("Ray is not installed, and --ray needs it", hint=INSTALL) from None
    try:
        # Ray puts this folder before what is installed on the nodes, and in a clone it holds a part of specgguf.
        with contextlib.chdir(os.path.abspath(os.sep)):
            ray.init(address, namespace="specgguf", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        if address == AUTO and isinstance(error, ConnectionError):
            hint = "ray start --head, and ray start --address HOST:6379 on the others; or --ray HOST:6379"
            raise BackendError("no Ray cluster runs on this machine", hint=hint) from None
        why = one_line(str(error), MESSAGE_MAX)
        raise BackendError(f"the Ray cluster at {address} cannot be used: {why}", hint="ray status shows it") from None
    return ray


def _require(address: str) -> None:
    """Raise unless something listens at `address`."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"--ray {address} is no HOST:PORT", hint="ray status, on a node of the cluster, names it")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        why = f"nothing came within {REACH_S:g} s" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise BackendError(
            f"no Ray cluster answers at {address}: {why.lower()}", hint="ray start --head there"
        ) from None
