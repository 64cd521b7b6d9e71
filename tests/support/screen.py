"""The program in a pseudo-terminal: what a person types and sees.

Tests wait for what must appear, never for the clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import pytest

from support.cli_support import DRIVER, private_home

Start = Callable[..., "Screen"]
CTRL_C, CTRL_D, ESC_ENTER, UP = "\x03", "\x04", "\x1b\r", "\x1b[A"


class Screen:
    """A program in a pseudo-terminal."""

    def __init__(self, child: pexpect.spawn) -> None:
        self.child = child

    def see(self, text: str) -> str:
        """Wait for `text`; what came before it."""
        self.child.expect_exact(text)
        return str(self.child.before)

    def prompt(self) -> None:
        """Wait until the next message can be typed: the editor has drawn its empty line."""
        self.see(">\x08\x1b[2C")
        self.see("\x1b[?25h")

    def type(self, text: str) -> None:
        self.child.send(text)

    def ask(self, text: str) -> None:
        self.type(text + "\r")

    def end(self) -> int:
        """Wait for the end; the exit code."""
        self.child.expect(pexpect.EOF)
        self.child.close()
        assert self.child.signalstatus is None
        return int(self.child.exitstatus)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(scene, *arguments, columns=80, **variables) -> Screen."""
    screens = []

    def do(scene: str, *arguments: str, columns: int = 80, **variables: str) -> Screen:
        env = private_home(tmp_path) | {
            "PATH": "/usr/bin:/bin",
            "TERM": "xterm-256color",
            "LANG": "C.UTF-8",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        child = pexpect.spawn(
            DRIVER[0],
            [*DRIVER[1:], scene, *arguments],
            env=env | variables,
            dimensions=(24, columns),
            encoding="utf-8",
            timeout=15,
        )
        child.delaybeforesend = None
        screens.append(Screen(child))
        return screens[-1]

    yield do
    for screen in screens:
        screen.child.close(force=True)


def record(tmp_path: Path) -> dict[str, Any]:
    """The only saved conversation."""
    (path,) = (tmp_path / "data" / "specgguf" / "sessions").glob("*.json")
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def saved(tmp_path: Path) -> list[dict[str, str]]:
    """The messages of the only saved conversation."""
    messages: list[dict[str, str]] = record(tmp_path)["messages"]
    return messages


def waits_for(screen: Screen, true: Callable[[], bool]) -> None:
    """Let the program run until `true()`, which looks at its files."""
    while not true():
        assert screen.child.isalive()
        screen.child.expect([pexpect.TIMEOUT], timeout=0.02)
