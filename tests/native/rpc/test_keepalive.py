"""Sockets that others made are found and get their limits; no other socket is touched, and none is kept open."""

from __future__ import annotations

import os
import socket

from specgguf.native.rpc import keepalive


def n_open() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_connection_is_found_by_its_peer_and_gets_limits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        with far:
            before = n_open()
            found = keepalive.connections(lambda one: one.getpeername() == server.getsockname())
            assert [one.getsockname() for one in found] == [near.getsockname()]
            keepalive.set_limits(found[0])
            found[0].close()
            assert n_open() == before
            assert near.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert near.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT) == keepalive.PROBES
            assert not far.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def connected() -> set[tuple[object, object]]:
    """Both ends of what this process is connected with: other tests may have left something."""
    found = keepalive.connections(lambda _: True)
    ends = {(one.getsockname(), one.getpeername()) for one in found}
    for one in found:
        one.close()
    return ends


def test_what_is_no_connection_is_left_alone() -> None:
    already = connected()
    with socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX), open(os.devnull):
        before = n_open()
        assert connected() == already
        assert n_open() == before
