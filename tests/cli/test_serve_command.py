"""`specgguf serve` as a program: its port, its first line, its end, and its flags."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from conftest import Pair
from specgguf.cli.commands import serve
from specgguf.cli.settings import gather
from support.cli_support import Run, home, private_home, run
from support.fake_engine import FakeEngine, loaded
from support.serve_support import WAIT_S, events, on_one_core, until

import specgguf.serve
from specgguf.serve.config import ApiKey
from specgguf.serve.server import listen

__all__ = ["home", "run"]  # fixtures

LONG: dict[str, Any] = {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": True}


@dataclass
class Served:
    """A running `specgguf serve`."""

    process: subprocess.Popen[str]
    url: str

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Send a signal; the exit code and what was said on stderr since the first line."""
        self.process.send_signal(number)
        _, said = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, said

    def client(self, **keywords: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT_S, trust_env=False, **keywords)


@contextlib.contextmanager
def served(pair: Pair, folder: Path, *flags: str, **variables: str) -> Iterator[Served]:
    environment = {**os.environ, **private_home(folder), **variables}
    arguments = ["-m", str(pair.target), "-d", str(pair.draft), "--port", "0", "-t", "1", "-c", "8192", *flags]
    process = subprocess.Popen(
        on_one_core("specgguf.cli.main", "serve", *arguments), env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("serving "), line + process.stderr.read()
        yield Served(process, line.split()[3].removesuffix("/v1"))
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_and_stops(tiny_chat: Pair, tmp_path: Path, number: signal.Signals) -> None:
    flags = ("--alias", "mine", "--temp", "0", "--quiet")
    with served(tiny_chat, tmp_path, *flags, SPECGGUF_API_KEY="secret") as server:
        with server.client(headers={"authorization": "Bearer secret"}) as client:
            assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["mine"]
            body = {"prompt": "a word", "max_tokens": 12}
            replies = [client.post("/v1/completions", json=body).json() for _ in range(2)]
            assert replies[0]["choices"] == replies[1]["choices"], "the flag's temperature"
            assert replies[0]["model"] == "mine"
            assert httpx.get(f"{server.url}/v1/models", trust_env=False).status_code == 401
        assert server.stop(number) == (0, "")


def test_a_line_of_json_for_each_request(tiny_chat: Pair, tmp_path: Path) -> None:
    with served(tiny_chat, tmp_path, "--log-format", "json", "--alias", "mine") as server:
        with server.client(headers={"x-request-id": "first"}) as client:
            assert client.post("/v1/completions", json={"prompt": "a word", "max_tokens": 3}).status_code == 200
            assert client.post("/v1/completions", json={"prompt": "x", "ü" * 300: 1}).status_code == 400
            assert client.get("/health").status_code == 200
        code, said = server.stop()
    assert code == 0
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [(line["path"], line["status"], line["request_id"]) for line in lines] == [
        ("/v1/completions", 200, "first"), ("/v1/completions", 400, "first"),
    ]  # fmt: skip
    assert (lines[0]["model"], lines[0]["n_generated"], lines[0]["client"]) == ("mine", 3, "127.0.0.1")
    assert 0 < lines[0]["seconds"] < lines[0]["time"] <= lines[1]["time"]
    assert "unknown field" in lines[1]["error"]


def test_sigterm_under_load(tiny_chat: Pair, tmp_path: Path) -> None:
    """The running stream ends properly, what waits is told, and the program ends with 0."""
    with served(tiny_chat, tmp_path, "--grace", "0", "--parallel", "1") as server, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(server.client()) for _ in range(4)]
        running = stack.enter_context(clients[0].stream("POST", "/v1/completions", json=LONG))
        lines = running.iter_lines()
        first = next(lines)
        assert first.startswith("data: ")
        waiting = [stack.enter_context(socket_request(server.url, b'{"prompt": "a"}')) for _ in range(3)]
        until(lambda: clients[1].get("/health").json()["requests_waiting"] == 3, "all of them wait")
        code, said = server.stop()
        assert code == 0
        assert "Traceback" not in said
        chunks = events("\n".join([first, *lines]))
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert 0 < chunks[-1]["timings"]["predicted_n"] < 8000
        for sock in waiting:
            answer = sock.recv(4096)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b'"stopping"' in answer


def socket_request(url: str, body: bytes) -> socket.socket:
    """A request that is sent and not waited for."""
    host, port = url.removeprefix("http://").split(":")
    sock = socket.create_connection((host, int(port)), timeout=WAIT_S)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    sock.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return sock


def test_a_running_answer_may_end_within_the_grace(tiny_chat: Pair, tmp_path: Path) -> None:
    with served(tiny_chat, tmp_path, "--grace", str(WAIT_S)) as server, server.client() as client:
        body = {**LONG, "max_tokens": 400}
        with client.stream("POST", "/v1/completions", json=body) as running:
            lines = running.iter_lines()
            first = next(lines)
            server.process.send_signal(signal.SIGTERM)
            chunks = events("\n".join([first, *lines]))
        assert chunks[-1]["timings"]["predicted_n"] == 400
        assert server.process.wait(WAIT_S) == 0


def test_a_port_in_use_is_one_line(run: Run, tiny_chat: Pair) -> None:
    with listen("127.0.0.1", 0) as taken:
        ran = run("serve", "-m", str(tiny_chat.target), "--port", str(taken.getsockname()[1]))
    assert ran.code == 1
    error, hint = ran.err.splitlines()
    assert error.startswith("error: cannot listen on 127.0.0.1, port ")
    assert error.endswith("address already in use")
    assert "--port 0" in hint


def test_a_name_that_is_no_host(run: Run) -> None:
    ran = run("serve", "--host", "no.such.host.invalid")
    assert ran.code == 1
    assert ran.err.startswith("error: cannot listen on no.such.host.invalid, port 8080: ")


def test_without_the_extra_it_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specgguf, "serve", specgguf.serve)  # imported anew below: put back for the tests that follow
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for name in [name for name in sys.modules if name.startswith("specgguf.serve")]:
        monkeypatch.delitem(sys.modules, name)
    ran = run("serve", "--port", "0")
    assert ran.code == 1
    assert "serving needs uvicorn" in ran.err
    assert "pip install 'specgguf[server]'" in ran.err


@pytest.mark.parametrize("flags", [["--port", "99999"], ["--queue", "0"], ["--time-limit", "0"], ["--temp", "hot"]])
def test_wrong_flags_are_usage_errors(run: Run, flags: list[str]) -> None:
    assert run("serve", *flags).code == 2


FLAGS: dict[str, Any] = {
    "aliases": (), "api_keys": ("k",), "cors": (), "hosts": (), "queue_max": 3, "queue_timeout": 1.0,
    "time_limit": 2.0, "max_body": 0.5, "grace": 4.0, "api_key_file": None, "lenient": False, "root_path": "",
    "connections": 9, "ssl_certfile": None, "ssl_keyfile": None,
}  # fmt: skip


def test_flags_become_the_servers_configuration(home: Path) -> None:
    settings = gather({"temperature": 0.3, "thinking": "off"})
    config = serve.configure(loaded(FakeEngine()), settings, "127.0.0.1", FLAGS)
    assert config.names == ("target", "demo"), "the file, and the preset that named it"
    assert config.defaults["temperature"] == 0.3
    assert "max_tokens" not in config.defaults
    assert config.enable_thinking is False
    assert (config.queue_max, config.queue_timeout_s, config.generation_timeout_s) == (3, 1.0, 2.0)
    assert (config.body_max_bytes, config.grace_s, config.api_keys) == (2**19, 4.0, (ApiKey("k", "key-1"),))


@pytest.mark.parametrize(
    ("host", "allowed", "names"),
    [
        ("127.0.0.1", (), {"localhost", "127.0.0.1", "::1"}),
        ("127.0.0.2", (), {"localhost", "127.0.0.1", "::1", "127.0.0.2"}),
        ("localhost", ("my.example",), {"localhost", "127.0.0.1", "::1", "my.example"}),
        ("localhost", ("*",), None),
        ("0.0.0.0", (), None),
        ("0.0.0.0", ("my.host",), {"localhost", "127.0.0.1", "::1", "0.0.0.0", "my.host"}),
    ],
)
def test_which_names_are_answered(home: Path, host: str, allowed: tuple[str, ...], names: set[str] | None) -> None:
    config = serve.configure(loaded(FakeEngine()), gather({}), host, {**FLAGS, "hosts": allowed})
    assert (None if config.hosts is None else set(config.hosts)) == names


def test_an_open_door_is_warned_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "_run", lambda *_: True)
    assert "anybody who reaches 0.0.0.0 can ask" in run("serve", "--host", "0.0.0.0", "--port", "0").err
    assert "anybody" not in run("serve", "--host", "0.0.0.0", "--port", "0", "--api-key", "k").err
    assert "anybody" not in run("serve", "--port", "0").err


def test_an_empty_key_is_refused_at_start(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "an API key is empty" in run("serve", "--api-key", "", "--port", "0").err
    monkeypatch.setenv("SPECGGUF_API_KEY", "")
    ran = run("serve", "--port", "0")
    assert ran.code == 2
    assert "SPECGGUF_API_KEY is empty" in ran.err


def test_a_variable_with_a_blank_is_one_key(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[Any] = []

    def note(_loaded: Any, config: Any, *_: Any) -> bool:
        configs.append(config)
        return True

    monkeypatch.setattr(serve, "_run", note)
    monkeypatch.setenv("SPECGGUF_API_KEY", "two words")
    run("serve", "--port", "0")
    assert [key.key for key in configs[0].keys] == ["two words"]


def test_a_file_of_keys_comes_before_the_model(run: Run, tmp_path: Path) -> None:
    ran = run("serve", "--port", "0", "--api-key-file", str(tmp_path / "none"))
    assert ran.code == 2
    assert "cannot read the keys" in ran.err


def test_a_variable_of_kubernetes_does_not_stop_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[tuple[str, int]] = []

    def take_port(host: str, port: int) -> socket.socket:
        taken.append((host, port))
        return listen(host, 0)

    monkeypatch.setattr(serve, "take_port", take_port)
    monkeypatch.setattr(serve, "_run", lambda *_: True)
    monkeypatch.setenv("SPECGGUF_PORT", "tcp://10.0.0.1:8080")
    ran = run("serve")
    assert ran.code == 0
    assert taken == [("127.0.0.1", 8080)]
    assert "SPECGGUF_PORT=tcp://10.0.0.1:8080 is Kubernetes' own" in ran.err


def test_a_certificate_that_is_none(run: Run, tmp_path: Path) -> None:
    assert "cannot use the certificate" in run("serve", "--port", "0", "--ssl-certfile", str(tmp_path / "x")).err
    assert "needs its certificate" in run("serve", "--port", "0", "--ssl-keyfile", "x").err
