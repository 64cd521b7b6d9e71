"""`specgguf worker`: lends this machine's devices, through ggml's own RPC server, until it is stopped."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from specgguf.cli import exits
from specgguf.cli.terminal import console
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import BackendError, ConfigError, SpecggufError

if TYPE_CHECKING:
    from specgguf.native.rpc.wire import Endpoint, WorkerReport

GIB = 2**30
READY_S = 30.0  # a device that is not ready by then will not be
# What ggml's server prints, and what it means.
EVENTS = {"Accepted client connection": "a program connected", "Client connection closed": "that program left"}


@click.command()
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="An IPv4 address of this machine."
)
@click.option("--port", default=50052, show_default=True, type=click.IntRange(1, 65535), metavar="N")
@click.option("--cache", metavar="DIR", type=click.Path(path_type=Path), help="Keep weights there: they travel once.")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="CPU threads.  [all cores]")
@click.option("--quiet", "-q", is_flag=True, help="Nothing on stderr but warnings and errors.")
def worker(host: str, port: int, cache: Path | None, threads: int | None, quiet: bool) -> int:
    """Lend this machine's devices to a model on another one, which takes them with --rpc HOST:PORT.

    \b
      specgguf worker                    for this machine, or through ssh
      specgguf worker --host 10.8.0.2    on a private network's address

    It serves one program at a time. Whoever reaches the port can read and write what it holds: ggml's RPC knows no
    password and no encryption, so never open it to a network that you do not trust.
    """
    from specgguf.native.rpc import library
    from specgguf.native.rpc.wire import Endpoint

    status = StatusOutput(console.style_for(sys.stderr), quiet=quiet)
    library.require_rpc()
    endpoint = Endpoint(_address(host), port)
    _check_free(endpoint)
    folder = _folder(cache)
    if not ipaddress.ip_address(endpoint.host).is_loopback:
        _warn(endpoint, status)
    return _serve(endpoint, folder, threads, status)


def _address(host: str) -> str:
    try:
        return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])
    except (OSError, UnicodeError):
        raise ConfigError(f"--host {host} is no IPv4 address, and ggml's RPC knows no other") from None


def _check_free(endpoint: Endpoint) -> None:
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(endpoint)
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise SpecggufError(
                f"cannot listen on {endpoint}: {reason}", hint="--port N takes another one, --host another address"
            ) from None


def _folder(cache: Path | None) -> str | None:
    if cache is None:
        return None
    folder = cache.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"--cache {folder} cannot be written to")
    return str(folder)


def _warn(endpoint: Endpoint, status: StatusOutput) -> None:
    me = socket.gethostname()
    status.warn(
        f"whoever reaches {endpoint} can use this machine's memory: ggml calls its RPC fragile and insecure, and says "
        "never to run it on an open network. Safer:"
    )
    status.tell(
        f"  ssh        here: specgguf worker    there: ssh -N -L {endpoint.port}:127.0.0.1:{endpoint.port} {me}"
    )
    status.tell(f"             and there: --rpc 127.0.0.1:{endpoint.port}")
    status.tell("  WireGuard  --host the address of its interface (ip -4 address show wg0), and no other port open")


def _serve(endpoint: Endpoint, cache: str | None, threads: int | None, status: StatusOutput) -> int:
    from specgguf.loading import physical_cores
    from specgguf.native.rpc import library

    ready = threading.Event()
    server = threading.Thread(
        target=library.start_server, args=(endpoint, cache, threads or physical_cores()), daemon=True
    )

    def tell(line: str) -> None:
        if ready.is_set() and line in EVENTS:
            status.say(EVENTS[line])

    with _native_output(tell):
        try:
            server.start()
            report = _wait_for(endpoint, server)
            ready.set()
            memory = ", ".join(f"{d.total_bytes / GIB:.1f} GiB ({d.free_bytes / GIB:.1f} free)" for d in report.devices)
            status.tell(f"worker on {endpoint}, protocol {report.version}: {memory} (Ctrl-C stops)")
            server.join()
        except KeyboardInterrupt:
            status.say("stopped")
            sys.stderr.flush()
            os._exit(exits.OK)  # the native server cannot be told to stop
    raise BackendError(f"the worker on {endpoint} ended", hint="start it again")


def _wait_for(endpoint: Endpoint, server: threading.Thread) -> WorkerReport:
    from specgguf.native.rpc import wire

    here = endpoint._replace(host="127.0.0.1") if endpoint.host == "0.0.0.0" else endpoint
    deadline = time.monotonic() + READY_S
    while True:
        try:
            return wire.ask(here, timeout_s=1.0)
        except BackendError:
            if not server.is_alive() or time.monotonic() > deadline:
                raise BackendError(f"ggml's RPC server could not begin on {endpoint}") from None
        time.sleep(0.05)


@contextlib.contextmanager
def _native_output(told: Callable[[str], object]) -> Iterator[None]:
    """Let `told` read, line by line, what native code prints: it knows no other way to say that somebody came."""
    kept = os.dup(1)
    reading, writing = os.pipe()
    sys.stdout.flush()
    os.dup2(writing, 1)
    os.close(writing)

    def read() -> None:
        with open(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                told(line.strip())

    threading.Thread(target=read, daemon=True).start()
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
