"""The process that holds a model whose layers lie on workers, and ends with them: ggml aborts over a lost connection.

    python -P -c "from specgguf.native.rpc import child; child.main(FD)"

It reads commands from a socket and answers each, until the socket is closed: load a file, make a context, and what
`backend` does with one. Rows of logits are not sent: they are written to memory that both processes map.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import socket
from collections.abc import Mapping
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from specgguf.errors import SpecggufError, WorkerLost
from specgguf.native import backend
from specgguf.native.weights import Weights

from . import keepalive, library
from .wire import Endpoint, address


class _Held(NamedTuple):
    """A context, and where its rows go."""

    context: backend.Context
    batch: backend.Batch
    rows: backend.Logits


class Holder:
    """The commands, by name."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._weights: Weights | None = None
        self._held: list[_Held] = []
        self._workers: set[tuple[str, int]] = set()

    def load(
        self, path: str, keywords: Mapping[str, Any], workers: list[Endpoint], output_on_cpu: bool
    ) -> backend.Memory:
        """Load a file, its layers on this machine's GPUs and on `workers`' devices."""
        self._workers = {(address(worker), worker.port) for worker in workers}
        keepalive.watch(self._is_workers)
        devices = [device for worker in workers for device in library.connect(worker)] + library.local_gpus()
        native_params = library.placed_params(devices, output_on_cpu=output_on_cpu)
        self._weights = Weights(path, keywords, native_params=native_params)
        return self._weights.memory

    def new_context(self, settings: Mapping[str, Any], n_outputs: int) -> int:
        """A context over the file; its number. The memory for its rows comes with the command."""
        assert self._weights is not None
        descriptor = reduction.recv_handle(self._connection)
        weights = self._weights
        shape = (n_outputs, weights.n_vocab)
        with os.fdopen(descriptor, "r+b") as file:
            shared = mmap.mmap(file.fileno(), 4 * n_outputs * weights.n_vocab)
        rows = np.frombuffer(shared, np.float32).reshape(shape)
        context = weights.new_context(settings, lambda: None)
        weights.apply_lora(context)
        self._held.append(_Held(context, backend.Batch(settings["n_batch"]), rows))
        return len(self._held) - 1

    def decode(self, number: int, parts: list[backend.BatchPart]) -> int:
        """`backend.decode`, and the rows into the shared memory."""
        context, batch, rows = self._held[number]
        batch.fill(parts)
        code = backend.decode(context, batch)
        n_rows = sum(part.n_outputs for part in parts)
        if code == backend.DECODE_OK and n_rows:
            rows[:n_rows] = backend.rows(context, n_rows, rows.shape[1])
        return code

    def of_context(self, name: str, number: int, *args: Any) -> Any:
        """`backend.<name>` of a context."""
        return getattr(backend, name)(self._held[number].context, *args)

    def refresh(self) -> None:
        """Raise WorkerLost where a worker closed its connection meanwhile: the next use would end this process."""
        for connection in keepalive.connections(self._is_workers):
            with connection, contextlib.suppress(BlockingIOError):
                if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                    raise WorkerLost("closed")

    def last_log_error(self) -> str:
        return backend.last_log_error()

    def _is_workers(self, connection: socket.socket) -> bool:
        return connection.getpeername() in self._workers


def main(descriptor: int) -> None:
    """Answer until the other side closes the socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key pressed in the terminal is for the program, not for this
    connection = Connection(descriptor)
    holder = Holder(connection)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            name, args = connection.recv()
            try:
                command = getattr(holder, name, None)
                answer = command(*args) if command is not None else holder.of_context(name, *args)
                connection.send((True, answer))
            except SpecggufError as error:
                connection.send((False, (type(error).__name__, str(error), error.hint)))
    os._exit(0)  # whatever ggml would still say to its workers: nobody waits for it
