"""A slow network on one machine: a port whose bytes arrive elsewhere later, and no faster than a wire would carry them.

Where a kernel has netem, `tc` does the same with real queues; this needs nothing. Each direction has its own delay and
wire. TCP's slow start after a pause, and loss, are not in it.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time

CHUNK = 1 << 16


class Relay:
    """Leads to `port` of this machine.

    Attributes:
        port: where it listens.
        delay_s: of each direction: half a round trip. bytes_per_s: of each direction; 0: no limit.
        n_bytes: that travelled so far, both ways.
    """

    def __init__(self, port: int) -> None:
        self.delay_s, self.bytes_per_s = 0.0, 0.0
        self.n_bytes = 0
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections; those that there are end with their own ends."""
        self._listening.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                for source, sink in ((near, far), (far, near)):
                    sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    underway: queue.Queue[tuple[float, bytes]] = queue.Queue()
                    threading.Thread(target=self._receive, args=(source, underway), daemon=True).start()
                    threading.Thread(target=self._send, args=(sink, underway), daemon=True).start()

    def _receive(self, source: socket.socket, underway: queue.Queue[tuple[float, bytes]]) -> None:
        """Note when each piece arrives: once those before it have left the wire, it has crossed it, and the delay."""
        free_at = 0.0
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK):
                self.n_bytes += len(data)
                free_at = max(free_at, time.perf_counter())
                if self.bytes_per_s:
                    free_at += len(data) / self.bytes_per_s
                underway.put((free_at + self.delay_s, data))
        underway.put((0.0, b""))

    def _send(self, sink: socket.socket, underway: queue.Queue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while (one := underway.get())[1]:
                time.sleep(max(one[0] - time.perf_counter(), 0.0))
                sink.sendall(one[1])
            sink.shutdown(socket.SHUT_WR)
