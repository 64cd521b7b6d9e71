"""Workers on this machine: `specgguf worker` as a process, for tests that have a build with RPC."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from specgguf.native.rpc.wire import Endpoint


class Worker:
    """One of them, which can be killed and started again on its port."""

    def __init__(self, *flags: str, port: int = 0) -> None:
        self.endpoint = Endpoint("127.0.0.1", port or free_port())
        self._flags = flags
        self.process: subprocess.Popen[str]
        self.start()

    def start(self) -> None:
        """Come back when it serves."""
        command = [sys.executable, "-P", "-m", "specgguf.cli.main", "worker", "--threads", "1", *self._flags]
        self.process = subprocess.Popen(
            [*command, "--port", str(self.endpoint.port)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.said: list[str] = []
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("worker on "):
                return
        raise AssertionError("".join(self.said))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def __str__(self) -> str:
        return str(self.endpoint)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@contextmanager
def workers(n: int) -> Iterator[list[Worker]]:
    """`n` of them."""
    started: list[Worker] = []
    try:
        for _ in range(n):
            started.append(Worker())
        yield started
    finally:
        for worker in started:
            if worker.process.poll() is None:
                worker.kill()
