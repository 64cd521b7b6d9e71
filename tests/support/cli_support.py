"""What the tests of the terminal program share: a home of their own, and a run with a scripted engine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specgguf.cli import open_pair
from specgguf.cli.chat import oneshot
from specgguf.cli.chat.input import prompt, reader
from specgguf.cli.main import cli
from specgguf.cli.options import SETTINGS
from specgguf.cli.settings import Settings
from specgguf.cli.terminal.status import StatusOutput

from support.fake_engine import FakeEngine, loaded

TESTS = Path(__file__).resolve().parents[1]
DRIVER = [sys.executable, str(TESTS / "support" / "cli_driver.py")]  # SCENE ARGS…: the program in its own process
FOLDERS = {
    "XDG_DATA_HOME": "data",
    "XDG_CONFIG_HOME": "config",
    "XDG_CACHE_HOME": "cache",
    "XDG_STATE_HOME": "state",
}


def private_home(folder: Path) -> dict[str, str]:
    """Variables that keep a program inside `folder`."""
    return {"HOME": str(folder), "PYTHONPATH": str(TESTS), **{name: str(folder / sub) for name, sub in FOLDERS.items()}}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own, and no variable that would speak."""
    for name, value in private_home(tmp_path).items():
        monkeypatch.setenv(name, value)
    for name in ["NO_COLOR", "SPECGGUF_CONFIG", "SPECGGUF_DEBUG", *(s.env for s in SETTINGS)]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    return tmp_path


@dataclass
class Ran:
    """What one run of the program gave."""

    code: int
    out: str
    err: str
    raw: bytes  # stdout, untranslated

    @property
    def json(self) -> Any:
        """What it printed, read."""
        return json.loads(self.out)


Run = Callable[..., Ran]


def in_process(*arguments: str, stdin: str | bytes = "", **env: str) -> Ran:
    """The program with these arguments, in this process. Raises what is no exit of it."""
    result: Any = CliRunner().invoke(cli, list(arguments), input=stdin, env=env, prog_name="specgguf")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)


class Script:
    """A keyboard on which everything was typed beforehand. An exception among the lines is raised."""

    def __init__(self, lines: Sequence[str | BaseException]) -> None:
        self.lines = list(lines)

    def read(self) -> prompt.Typed:
        if not self.lines:
            raise EOFError
        line = self.lines.pop(0)
        if isinstance(line, BaseException):
            raise line
        return prompt.typed(line)

    def close(self) -> None:
        """Nothing is left on it."""


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """run(*arguments, engine=FakeEngine(...), stdin="") -> Ran."""

    def do(*arguments: str, fake: FakeEngine | None = None, stdin: str | bytes = "", **env: str) -> Ran:
        fake = fake or FakeEngine()

        def open_engine(
            settings: Settings,
            status: StatusOutput,
            *,
            yes: bool = False,
            brief: bool = False,
            n_parallel_max: int = 1,
        ) -> open_pair.Loaded:
            fake.draft = settings["draft"]
            return loaded(fake)

        monkeypatch.setattr(open_pair, "open_engine", open_engine)
        return in_process(*arguments, stdin=stdin, **env)

    return do


@pytest.fixture
def converse(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """converse(*lines, flags=(), fake=...) -> Ran: an interactive run in which `lines` are typed, then Ctrl-D."""

    def do(*lines: str | BaseException, flags: Sequence[str] = (), **keywords: Any) -> Ran:
        with monkeypatch.context() as patch:
            patch.setattr(oneshot, "read_question", lambda _words, **_: None)
            patch.setattr(reader, "open_reader", lambda *_, **__: Script(lines))
            return run("chat", *flags, **keywords)

    return do
