"""Scripted workers: what speaks ggml's RPC protocol as far as `wire` asks, or something else that listens."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

from specgguf.native.rpc import wire
from specgguf.native.rpc.wire import Endpoint

Script = Callable[[socket.socket], None]


@contextlib.contextmanager
def listening(script: Script | None) -> Iterator[Endpoint]:
    """Something that listens and does `script` with one connection after the other; None: it accepts nothing."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        assert script is not None
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # it was closed
                return
            with connection, contextlib.suppress(OSError, struct.error):
                script(connection)

    thread = threading.Thread(target=serve, daemon=True)
    if script is not None:
        thread.start()
    try:
        yield Endpoint(*server.getsockname())
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        server.close()
        if script is not None:
            thread.join()


def fake_worker(*memory: tuple[int, int], major: int = wire.PROTOCOL) -> Script:
    """A worker with devices of (free, total) bytes."""

    def answer(connection: socket.socket) -> None:
        while head := connection.recv(9, socket.MSG_WAITALL):
            command, n = struct.unpack("<BQ", head)
            data = connection.recv(n, socket.MSG_WAITALL) if n else b""
            if command == 14:
                reply = bytes((major, 1, 2, 0)) + bytes(24)
            elif command == 15:
                reply = struct.pack("<I", len(memory))
            else:
                reply = struct.pack("<QQ", *memory[struct.unpack("<I", data)[0]])
            connection.sendall(struct.pack("<Q", len(reply)) + reply)

    return answer
