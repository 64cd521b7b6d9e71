"""Connections that ask nothing, ask slowly, leave early or send too much: every other client is served."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import resource
import socket
import ssl
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from support.serve_support import WAIT_S, Running, Scripted, serving, until

from specgguf.errors import ConfigError
from specgguf.serve.connections import Connections
from specgguf.serve.doors import RequestRecord
from specgguf.serve.server import ServeConfig, check_certificate, listen

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}]}
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


def connect(server: Running) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=WAIT_S)


def request(body: bytes, *, length: int | None = None, version: str = "1.1") -> bytes:
    head = f"POST {CHAT} HTTP/{version}\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def everything(client: socket.socket) -> bytes:
    data = b""
    while part := client.recv(65536):
        data += part
    return data


def test_idle_connections_make_way() -> None:
    """Three places, ten that hold one and say nothing: whoever asks is answered."""
    with serving(Scripted(), connections_max=3) as server:
        idle = [connect(server) for _ in range(10)]
        with connect(server) as client:
            client.sendall(HEALTH)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert idle[0].recv(10) == b"", "the one that was idle longest was closed"
        for sock in idle:
            sock.close()


def test_requests_that_run_do_not_make_way() -> None:
    engine = Scripted()
    body = json.dumps(ASK).encode()
    with serving(engine, connections_max=1) as server, connect(server) as running:
        running.sendall(request(body))
        assert engine.begun.acquire(timeout=WAIT_S)
        with connect(server) as refused:
            assert everything(refused).startswith(b"HTTP/1.1 503 ")
        engine.open()
        assert running.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"GET /hea"])
def test_a_head_that_does_not_come_ends_its_connection(sent: bytes) -> None:
    with serving(Scripted(), head_timeout_s=0.05) as server, connect(server) as slow:
        slow.sendall(sent)
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(10) == b""


def test_a_running_request_is_no_late_head() -> None:
    engine = Scripted()
    with serving(engine, head_timeout_s=0.01) as server, connect(server) as client:
        client.sendall(request(json.dumps(ASK).encode()))
        assert engine.begun.acquire(timeout=WAIT_S)
        with connect(server) as late:
            assert late.recv(10) == b"", "the limit has passed by now"
        engine.open()
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_where_files_run_short_idle_connections_are_closed() -> None:
    async def test() -> None:
        closed = []

        class Idle:
            is_idle = True

            def abort(self) -> None:
                closed.append(self)

        connections = Connections(10, 1.0)
        loop = asyncio.get_running_loop()
        for _ in range(3):
            assert connections.admit(Idle())  # type: ignore[arg-type]
        connections.on_loop_error(loop, {"exception": OSError(errno.EMFILE, "too many open files"), "message": "x"})
        assert len(closed) == 3
        assert len(connections) == 0

    asyncio.run(test())


@pytest.mark.parametrize(("files", "n"), [(1024, 960), (70, 6), (10, 1), (resource.RLIM_INFINITY, 10**6)])
def test_connections_leave_files_to_the_process(monkeypatch: pytest.MonkeyPatch, files: int, n: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda what: (files, resource.RLIM_INFINITY))
    assert Connections(10**6, 1.0).n_max == n
    assert Connections(2, 1.0).n_max == min(n, 2)


def test_a_body_over_the_limit_gets_its_413_though_it_was_sent_whole() -> None:
    body = b"x" * 8_000_000
    with serving(Scripted(), body_max_bytes=1000) as server, connect(server) as client:
        client.sendall(request(body))
        answer = everything(client)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert b"longer than 1000 bytes" in answer


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_its_side_is_answered(stream: bool) -> None:
    engine = Scripted()
    with serving(engine) as server, connect(server) as client:
        client.sendall(request(json.dumps({**ASK, "stream": stream}).encode()))
        client.shutdown(socket.SHUT_WR)
        assert engine.begun.acquire(timeout=WAIT_S)
        engine.open()
        answer = everything(client)
        assert b"HTTP/1.1 200 OK" in answer
        assert (b"[DONE]" if stream else b'"usage"') in answer
    assert engine.said == ["whole"]


def test_an_old_client_without_a_host_is_served() -> None:
    with serving(Scripted()) as server:
        for path in (b"/health", b"/v1/models"):
            with connect(server) as client:
                client.sendall(b"GET " + path + b" HTTP/1.0\r\n\r\n")
                assert everything(client).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_leaves_a_whole_answer_is_a_499() -> None:
    engine = Scripted(in_prefill=True)
    records: list[RequestRecord] = []
    with serving(engine, records.append) as server:
        with connect(server) as client:
            client.sendall(request(json.dumps(ASK).encode()))
            assert engine.begun.acquire(timeout=WAIT_S)
        until(lambda: records, "it is noted")
        assert records[0].status == 499
        with server.client() as client:
            assert f'specgguf_requests_total{{endpoint="{CHAT}",status="499"}} 1' in client.get("/metrics").text


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6")
def test_two_colons_listen_on_both_families() -> None:
    try:
        listening = listen("::", 0)
    except OSError:
        pytest.skip("IPv6 is switched off")
    with listening:
        port = listening.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, port), timeout=WAIT_S).close()


# --- an engine that does not listen ---------------------------------------------------------------------------


class Stuck(Scripted):
    """Its work ends when the test says so, whatever it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.release = threading.Event()

    def create_chat_completion(self, **keywords: object) -> object:
        self.begun.release()
        assert self.release.wait(WAIT_S)
        return {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}


def test_health_fails_while_the_engine_is_stuck() -> None:
    engine = Stuck()
    with serving(engine, stuck_s=0.01) as server:
        with connect(server) as client:
            client.sendall(request(json.dumps(ASK).encode()))
            assert engine.begun.acquire(timeout=WAIT_S)
            until(lambda: httpx.get(server.url + "/health", trust_env=False).status_code == 503, "it is noticed")
            answer = httpx.get(server.url + "/health", trust_env=False).json()
            assert answer["status"].startswith("busy for ")
            engine.release.set()
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        assert httpx.get(server.url + "/health", trust_env=False).status_code == 200


def test_an_engine_that_decodes_is_not_stuck() -> None:
    engine = Stuck()
    with serving(engine, stuck_s=3600.0) as server, connect(server) as client:
        client.sendall(request(json.dumps(ASK).encode()))
        assert engine.begun.acquire(timeout=WAIT_S)
        assert httpx.get(server.url + "/health", trust_env=False).status_code == 200
        engine.release.set()
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_an_ignored_stop_makes_health_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specgguf.serve.answers.FINISH_S", 0.01)
    engine = Stuck()
    with serving(engine) as server:
        with connect(server) as client:
            client.sendall(request(json.dumps(ASK).encode()))
            assert engine.begun.acquire(timeout=WAIT_S)
        until(lambda: httpx.get(server.url + "/health", trust_env=False).status_code == 503, "it is noticed")
        engine.release.set()


STUCK_PROGRAM = """
import sys, threading
sys.path[:0] = {paths}
from support.serve_support import Scripted
from specgguf.serve.server import ServeConfig, Service, listen, run
from specgguf.serve import answers, queue, server
answers.FINISH_S = queue.FINISH_S = server.FINISH_S = 0.1
server.EXIT_S = 0.5

heard = server._Server.handle_exit

def handle_exit(self, *signal):
    heard(self, *signal)
    print("signal", flush=True)

server._Server.handle_exit = handle_exit

class Stuck(Scripted):
    def create_chat_completion(self, **keywords):
        print("stuck", flush=True)
        {how}

listening = listen("127.0.0.1", 0)
print(listening.getsockname()[1], flush=True)
ended = run(Service(Stuck(), ServeConfig(grace_s={grace_s})), listening)
os._exit(0 if ended else 1)
"""
FOREVER = {"waits": "threading.Event().wait()", "computes": "while True: pass"}


@pytest.mark.parametrize("how", ["waits", "computes"])
@pytest.mark.parametrize(("signals", "grace_s"), [(1, 0.1), (2, 3600.0)], ids=["one", "two in a long grace"])
def test_sigterm_ends_whatever_runs(how: str, signals: int, grace_s: float) -> None:
    paths = [str(Path(__file__).parent.parent)]
    program = STUCK_PROGRAM.format(paths=paths, how=FOREVER[how], grace_s=grace_s)
    process = subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as client:
            client.sendall(request(json.dumps(ASK).encode()))
            assert process.stdout.readline() == "stuck\n"
            for _ in range(signals):
                process.terminate()
                assert process.stdout.readline() == "signal\n"
            assert process.wait(WAIT_S) == 1
    finally:
        process.kill()
        process.communicate()


# --- TLS ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    tmp_path = tmp_path_factory.mktemp("tls")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    try:
        subprocess.run([*command.split(), "-keyout", key, "-out", cert], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl to make a certificate with")
    return {"certfile": str(cert), "keyfile": str(key)}


def test_a_handshake_that_does_not_come_ends_its_connection(certificate: dict[str, str]) -> None:
    """It is no connection of ours before, with the limits that those have."""
    with serving(Scripted(), head_timeout_s=0.05, **certificate) as server, connect(server) as slow:
        slow.settimeout(20.0)  # asyncio's own limit is 60 s
        with contextlib.suppress(ConnectionResetError):
            assert slow.recv(10) == b""


def test_tls(certificate: dict[str, str]) -> None:
    with serving(Scripted(), **certificate) as server:
        verify = ssl.create_default_context(cafile=certificate["certfile"])
        url = server.url.replace("http://", "https://")
        assert httpx.get(f"{url}/health", verify=verify, trust_env=False).json()["status"] == "ok"


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    for path in (wrong, tmp_path / "missing.pem"):
        with pytest.raises(ConfigError, match="cannot use the certificate"):
            check_certificate(str(path), None)
    check_certificate(None, None)
    with pytest.raises(ConfigError, match="needs its certificate"):
        ServeConfig(keyfile=str(wrong))
