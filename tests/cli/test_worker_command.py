"""`specgguf worker` and `--rpc` where they cannot work: one line, and what to type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from specgguf.cli import exits
from support.cli_support import Run, home, run

from specgguf import SpeculativeLlama
from specgguf.errors import Unsupported
from specgguf.native.rpc import library

__all__ = ["home", "run"]  # fixtures
NO_RPC = "this llama-cpp-python was built without RPC: it knows only this machine"


@pytest.fixture
def without_rpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "has_rpc", lambda: False)


@pytest.fixture
def with_rpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "has_rpc", lambda: True)


@pytest.mark.usefixtures("without_rpc")
def test_a_build_without_rpc_is_said_with_the_line_that_installs_one(run: Run, tiny_chat: Pair) -> None:
    ran = run("worker")
    assert ran.code == exits.FAILED
    assert ran.err.splitlines() == [f"error: {NO_RPC}", f"  hint: {library.INSTALL}"]
    with pytest.raises(Unsupported, match=NO_RPC) as caught:
        SpeculativeLlama(str(tiny_chat.target), rpc_servers="127.0.0.1:1")
    assert caught.value.hint == library.INSTALL


@pytest.mark.usefixtures("with_rpc")
@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "no.such.host.invalid"], "error: --host no.such.host.invalid is no IPv4 address"),
        (["--host", "192.0.2.77"], "error: cannot listen on 192.0.2.77:50052: cannot assign requested address"),
        (["--port", "0"], "error: Invalid value for '--port': 0 is not in the range 1<=x<=65535."),
        (["--threads", "0"], "error: Invalid value for '--threads': 0 is not in the range x>=1."),
    ],
)
def test_what_cannot_be_served_is_one_line(run: Run, flags: list[str], said: str) -> None:
    ran = run("worker", *flags)
    assert ran.code != exits.OK
    assert ran.err.startswith(said)


@pytest.mark.usefixtures("with_rpc")
def test_a_cache_that_cannot_be_made_is_one_line(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ran: Any = run("worker", "--port", "50999", "--cache", str(tmp_path / "file" / "cache"))
    assert ran.code == exits.FAILED
    assert ran.err.startswith("error: ")
    assert "Traceback" not in ran.err
