"""Connections whose other end is gone without a word: the kernel is to give them up, since ggml waits without end.

ggml hands out none of its sockets, so they are looked for among this process's own. Both sides do: a program that would
wait for a worker, and a worker that would keep waiting for a program and serve nobody else. It knows no protocol.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections.abc import Callable

# A peer that is gone without a word is noticed after about IDLE_S + PROBES * INTERVAL_S.
IDLE_S, INTERVAL_S, PROBES = 5, 3, 4
LOOK_S = 0.5  # how often new connections are looked for

Chosen = Callable[[socket.socket], bool]


def connections(chosen: Chosen) -> list[socket.socket]:
    """This process's connected IPv4 sockets that are `chosen`, duplicated: close them."""
    found = []
    sockets = [int(name) for name in os.listdir("/dev/fd") if _is_socket(name)]  # before any is duplicated
    for descriptor in sockets:
        with contextlib.suppress(OSError):  # one that was closed meanwhile
            connection = socket.socket(fileno=os.dup(descriptor))
            try:
                is_chosen = (
                    connection.family == socket.AF_INET and bool(connection.getpeername()) and chosen(connection)
                )
            except OSError:
                is_chosen = False
            if is_chosen:
                found.append(connection)
            else:
                connection.close()
    return found


def _is_socket(name: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(f"/dev/fd/{name}").st_mode)
    except OSError:
        return False


def watch(chosen: Chosen) -> None:
    """From now on, in a thread, give each such connection its limits soon after it was made."""

    def look() -> None:
        while True:
            for connection in connections(chosen):
                with connection, contextlib.suppress(OSError):
                    set_limits(connection)
            time.sleep(LOOK_S)

    threading.Thread(target=look, name="keepalive", daemon=True).start()


def set_limits(connection: socket.socket) -> None:
    """Probe the other end while nothing comes, and wait only so long for what was sent to be received."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    values = {
        "TCP_KEEPIDLE": IDLE_S,
        "TCP_KEEPALIVE": IDLE_S,  # macOS's name
        "TCP_KEEPINTVL": INTERVAL_S,
        "TCP_KEEPCNT": PROBES,
        "TCP_USER_TIMEOUT": 1000 * (IDLE_S + INTERVAL_S * PROBES),
    }
    for name, value in values.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
