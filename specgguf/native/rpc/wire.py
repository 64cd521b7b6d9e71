"""What a worker says about itself, asked over a socket of our own with a time limit.

ggml's RPC client waits without end for a worker that does not answer, and ends the process over one of another version;
so every worker is asked here first. Knows three commands of the protocol, and nothing of models.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable
from typing import NamedTuple

from specgguf.errors import BackendError, ConfigError, WorkerLost

PORT = 50052
PROTOCOL = 7  # the major version that llama.cpp's client insists on
TIMEOUT_S = 5.0
SERVERS_MAX = 16  # GGML_RPC_MAX_SERVERS
_DEVICE_MEMORY, _HELLO, _DEVICE_COUNT = 11, 14, 15
_CAPABILITIES = 24  # bytes about transports other than TCP: none


class Endpoint(NamedTuple):
    """Where a worker listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class WorkerDevice(NamedTuple):
    """One device of a worker; bytes as it reports them."""

    free_bytes: int
    total_bytes: int


class WorkerReport(NamedTuple):
    """What a worker answered.

    Attributes:
        version: of the protocol.
        round_trip_s: the fastest of a few small requests.
    """

    endpoint: Endpoint
    version: str
    devices: tuple[WorkerDevice, ...]
    round_trip_s: float

    @property
    def free_bytes(self) -> int:
        """Over all its devices."""
        return sum(device.free_bytes for device in self.devices)


def endpoints(value: str | Iterable[str], *, name: str = "rpc_servers") -> tuple[Endpoint, ...]:
    """Read HOST:PORT[,HOST:PORT…] or a list of them; without a port, 50052.

    Raises:
        ConfigError: one cannot be read, stands twice, or there are too many.
    """
    words = value.split(",") if isinstance(value, str) else list(value)
    found: list[Endpoint] = []
    for word in words:
        host, colon, port = str(word).strip().partition(":")
        number = int(port) if port.isascii() and port.isdigit() else 0 if colon else PORT
        if (
            not isinstance(word, str)
            or not host
            or not 0 < number < 65536
            or any(c.isspace() or c == "/" for c in host)
        ):
            raise ConfigError(f"{name}: {word!r} is no HOST:PORT", hint=f"for example 192.168.1.20:{PORT}")
        if Endpoint(host, number) in found:
            raise ConfigError(
                f"{name}: {host}:{number} stands there twice", hint="a worker serves one program at a time"
            )
        found.append(Endpoint(host, number))
    if len(found) > SERVERS_MAX:
        raise ConfigError(f"{name}: llama.cpp takes at most {SERVERS_MAX} workers, not {len(found)}")
    return tuple(found)


def ask(endpoint: Endpoint, *, timeout_s: float = TIMEOUT_S) -> WorkerReport:
    """Ask a worker for its version, its devices' memory and a round trip.

    Raises:
        WorkerLost: nothing answers there in time, or a worker that serves another program.
        BackendError: what answers is no worker, or one of another version.
    """
    try:
        connection = socket.create_connection((address(endpoint), endpoint.port), timeout=timeout_s)
    except ConnectionRefusedError:
        raise WorkerLost(
            f"worker {endpoint} does not answer: nothing listens on that port",
            hint=f"start it there: specgguf worker --host ADDRESS --port {endpoint.port}",
        ) from None
    except OSError as error:
        timed_out = isinstance(error, TimeoutError)
        why = f"nothing came within {timeout_s:g} s" if timed_out else (error.strerror or str(error)).lower()
        raise WorkerLost(f"worker {endpoint} does not answer: {why}", hint="specgguf doctor --rpc … asks it") from None
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            return _ask(connection, endpoint)
        except TimeoutError:
            raise WorkerLost(
                f"worker {endpoint} does not answer: it accepts connections, and says nothing within {timeout_s:g} s",
                hint="it may serve another program: a worker serves one at a time",
            ) from None
        except (OSError, EOFError):
            raise BackendError(
                f"what listens on {endpoint} is no worker, or one of another version", hint="specgguf worker starts one"
            ) from None


def ask_all(workers: Iterable[Endpoint], *, timeout_s: float = TIMEOUT_S) -> list[WorkerReport]:
    """`ask` each. Raises as it does, over the first that does not answer."""
    return [ask(worker, timeout_s=timeout_s) for worker in workers]


def address(endpoint: Endpoint) -> str:
    """The IPv4 address, the only kind that ggml connects to."""
    return str(socket.getaddrinfo(endpoint.host, endpoint.port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])


def _ask(connection: socket.socket, endpoint: Endpoint) -> WorkerReport:
    hello = _request(connection, _HELLO, bytes(_CAPABILITIES), 4 + _CAPABILITIES)
    major, minor, patch = hello[:3]
    if major != PROTOCOL:
        raise BackendError(
            f"worker {endpoint} speaks version {major}.{minor}.{patch} of the RPC protocol, and this build {PROTOCOL}",
            hint="install the same llama-cpp-python on both machines",
        )
    trips = []
    for _ in range(3):
        started = time.perf_counter()
        (n_devices,) = struct.unpack("<I", _request(connection, _DEVICE_COUNT, b"", 4))
        trips.append(time.perf_counter() - started)
    memory = [_request(connection, _DEVICE_MEMORY, struct.pack("<I", n), 16) for n in range(n_devices)]
    devices = tuple(WorkerDevice(*struct.unpack("<QQ", answer)) for answer in memory)
    return WorkerReport(endpoint, f"{major}.{minor}.{patch}", devices, min(trips))


def _request(connection: socket.socket, command: int, data: bytes, n_answer: int) -> bytes:
    """One command and its answer of `n_answer` bytes. Raises EOFError where another kind of answer comes."""
    connection.sendall(struct.pack("<BQ", command, len(data)) + data)
    if struct.unpack("<Q", _receive(connection, 8))[0] != n_answer:
        raise EOFError
    return _receive(connection, n_answer)


def _receive(connection: socket.socket, n: int) -> bytes:
    parts = bytearray()
    while len(parts) < n:
        part = connection.recv(n - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
