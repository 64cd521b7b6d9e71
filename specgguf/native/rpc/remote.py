"""A model in a process of its own, as the rest of `native` sees it: `backend`'s functions over its contexts.

ggml ends the process that loses a worker, or one that meets a malformed answer; here that costs what the caches held,
and one error that names the worker. The next decode starts the process again, once the workers answer. It holds no
tokens: that a context was emptied is told to who made it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from multiprocessing import reduction
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from specgguf import errors
from specgguf.errors import BackendError, WorkerLost
from specgguf.models import hparams
from specgguf.native import devices
from specgguf.native.backend import Logits, Memory

from . import library
from .elsewhere import Elsewhere
from .placement import Placement, place
from .wire import Endpoint, ask, ask_all, endpoints

SILENT_S = 600.0  # an answer that takes longer does not come: the longest is a prompt's chunk through a slow CPU
ASK_S = 3.0  # that a worker has to answer after something went wrong
_SHARED = "/dev/shm" if os.path.isdir("/dev/shm") else None  # where mapped files stay in memory
_CHILD = "import sys; from specgguf.native.rpc import child; child.main(int(sys.argv[1]))"
# What ggml says when a connection breaks, before it aborts.
_CONNECTION_WORDS = ("Remote RPC server", "recv failed", "send failed", "Failed to connect", "RPC handshake")
_AGAIN = "ask again: what was held is read once more"
# What a context without any tokens answers.
_EMPTY: dict[str, Any] = {"pos_max": -1, "seq_rm": True, "clear": None, "state_size": 0}


def placement_for(path: str, keywords: Mapping[str, Any]) -> Placement:
    """Where the layers of a file go that is to be loaded with these keywords, `rpc_servers` among them.

    Raises:
        Unsupported: a build without RPC, or a file that cannot be read. As `wire.ask_all` and `placement.place`.
    """
    library.require_rpc()
    local = devices.devices()
    return place(
        hparams.of_file(Path(path)),
        ask_all(endpoints(keywords["rpc_servers"])),
        gpus=[device.free_bytes for device in local if device.type in ("gpu", "igpu")],
        cpu=sum(device.free_bytes for device in local if device.type == "cpu"),
        n_gpu_layers=keywords.get("n_gpu_layers", -1),
        tensor_split=keywords.get("tensor_split"),
    )


class Remote:
    """A file loaded in a child process, its layers on workers.

    Args:
        path, keywords: as `Weights` takes them.
        placement: of the layers.
        n_vocab: of its vocabulary.

    Raises:
        WorkerLost: a worker does not answer. BackendError: llama.cpp refused the file.
    """

    def __init__(self, path: str, keywords: Mapping[str, Any], placement: Placement, n_vocab: int) -> None:
        self.n_vocab = n_vocab
        self._path, self._keywords, self.placement = path, keywords, placement
        self._contexts: list[RemoteContext] = []
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  # what the child says before it aborts; closed with this
        self._pid = os.getpid()
        self.memory: Memory
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def new_context(self, settings: Mapping[str, Any], emptied: Callable[[], None]) -> RemoteContext:
        """A context over the file, see `Weights.new_context`."""
        context = RemoteContext(self, settings, emptied)
        with self._lock:
            self._contexts.append(context)
            context.make()
        return context

    def forget(self, context: RemoteContext) -> None:
        """It is not to be made again."""
        self._contexts.remove(context)

    def ask(self, name: str, *args: Any, memory: int | None = None) -> Any:
        """Have the child do it; `memory` is a file for it to map.

        Raises:
            WorkerLost: the child ended instead. And what the child raised.
        """
        with self._lock:
            if self._connection is None:
                self._start()
            assert self._connection is not None
            assert self._process is not None
            try:
                self._connection.send((name, args))
                if memory is not None:
                    reduction.send_handle(self._connection, memory, self._process.pid)
                return self._answer()
            except (EOFError, OSError):
                raise self._lost() from None

    @property
    def is_lost(self) -> bool:
        """Whether there is no child: the next question starts one."""
        return self._connection is None

    def close(self) -> None:
        """End the child. In a fork of the process that started it, only forget it."""
        with self._lock:
            self._contexts.clear()
            self._log.close()
            connection, self._connection = self._connection, None
            process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is not None and os.getpid() == self._pid:
            process.kill()
            process.wait()

    def _start(self) -> None:
        for report in map(ask, self.placement.workers):
            self.placement.check(report)
        ours, theirs = Pipe()
        self._log.seek(0)
        self._log.truncate()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHILD, str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # signals of the terminal are the program's
                env={**os.environ, "GGML_NO_BACKTRACE": "1"},
            )
        self._connection = ours
        keywords = {**self._keywords, **self.placement.keywords}
        arguments = (self._path, keywords, list(self.placement.workers), self.placement.output_on_cpu)
        try:
            self.memory = self.ask("load", *arguments)
        except BackendError:
            self._end()
            raise

    def _answer(self) -> Any:
        assert self._connection is not None
        if not self._connection.poll(SILENT_S):
            raise self._lost(f"no answer for {SILENT_S:g} s")
        ok, answer = self._connection.recv()
        if ok:
            return answer
        kind, message, hint = answer
        if kind == "WorkerLost":
            raise self._lost("it closed the connection")
        raise getattr(errors, kind)(message, hint=hint)

    def _lost(self, why: str = "") -> BackendError:
        """The child is gone or useless: end it, tell who made its contexts, and find out over which worker.

        Args:
            why: it is the workers' fault for sure, and this is what they did.
        """
        code = self._end()
        for context in self._contexts:
            context.lose()
        workers = self.placement.workers
        silent = [worker for worker in workers if not _answers(worker)]
        names = ", ".join(map(str, silent or workers))
        if silent:
            return WorkerLost(
                f"worker {names} was lost: it does not answer any more",
                hint="start it again there; the next request connects to it",
            )
        self._log.seek(0)
        said = self._log.read().decode("utf-8", "replace").strip().splitlines()
        if why or any(word in line for line in said for word in _CONNECTION_WORDS):
            why = why or "the connection broke"
            return WorkerLost(f"worker {names} was lost: {why}; it answers again", hint=_AGAIN)
        return BackendError(f"the process that held {self._path} ended: {(said or [f'code {code}'])[-1]}", hint=_AGAIN)

    def _end(self) -> int | None:
        connection, self._connection = self._connection, None
        process, self._process = self._process, None
        if connection is not None:
            connection.close()
        if process is None:
            return None
        try:
            return process.wait(1.0)  # it was aborting: how it ended is worth knowing
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def _answers(worker: Endpoint) -> bool:
    try:
        ask(worker, timeout_s=ASK_S)
    except BackendError:
        return False
    return True


class RemoteContext(Elsewhere):
    """A native context in the child; see `Elsewhere`."""

    def __init__(self, remote: Remote, settings: Mapping[str, Any], emptied: Callable[[], None]) -> None:
        self._remote, self._settings, self._emptied = remote, dict(settings), emptied
        self._number: int | None = None
        self._file = tempfile.TemporaryFile(dir=_SHARED)  # noqa: SIM115  # closed when freed
        n_rows = int(settings["n_outputs_max"])
        self._file.truncate(4 * n_rows * remote.n_vocab)
        self._rows: Logits = np.memmap(self._file, np.float32, "r", shape=(n_rows, remote.n_vocab))

    def make(self) -> None:
        """Have it made; raises as `Remote.ask`."""
        n_outputs = self._settings["n_outputs_max"]
        self._number = self._remote.ask("new_context", self._settings, n_outputs, memory=self._file.fileno())

    def lose(self) -> None:
        """The child ended, and everything that was held."""
        if self._number is not None:
            self._number = None
            self._emptied()

    def call(self, name: str, *args: Any) -> Any:
        """See `Elsewhere.call`."""
        if name == "free_context":
            return self._free()
        if name == "rows":
            return self._rows[: args[0]]
        if self._number is None:
            if name in _EMPTY:
                return _EMPTY[name]
            self.make()
        if name == "decode":
            return self._remote.ask("decode", self._number, args[0].parts)
        try:
            return self._remote.ask(name, self._number, *args)
        except BackendError:
            if self._number is not None or name not in _EMPTY:
                raise
            return _EMPTY[name]  # it is empty now, and whoever made it knows

    def refresh(self) -> None:
        """See `Elsewhere.refresh`."""
        if self._number is not None:
            with contextlib.suppress(BackendError):  # it is empty then
                self._remote.ask("refresh")

    def _free(self) -> None:
        self._remote.forget(self)
        if self._number is not None and not self._remote.is_lost:
            with contextlib.suppress(BackendError):  # it is gone with the child
                self._remote.ask("free_context", self._number)
        self._number = None
        self._file.close()
