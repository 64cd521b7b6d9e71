"""Thousands of random operations over a scripted engine: what was sent is what was typed, and every answer that was
shown is on disk at the end, whatever was stopped, taken back, refused, or killed in between.

An operation is done on the same objects as the program's; a kill leaves them, and the next ones begin from the disk.
"""

from __future__ import annotations

import io
import os
import random
from pathlib import Path
from typing import Any

import pytest
from specgguf.cli.chat import loop
from specgguf.cli.chat.actions.turns import Leave
from specgguf.cli.chat.chat_session import ChatSession
from specgguf.cli.chat.conversation import Conversation
from specgguf.cli.chat.display import Display
from specgguf.cli.chat.input import prompt
from specgguf.cli.chat.saved import branch, sessions
from specgguf.cli.chat.saved.autosave import Autosave
from specgguf.cli.chat.window import ASK_SUMMARY
from specgguf.cli.settings import gather
from specgguf.cli.terminal.status import StatusOutput
from support.cli_support import home
from support.fake_engine import FakeEngine, loaded, pieces

from specgguf.errors import BackendError, Cancelled

__all__ = ["home"]  # fixtures

N_OPERATIONS = 2500
KINDS = """
ask ask ask ask stop fail retry retry-stopped more undo redo prev next save load clear leave kill full
compact compact-stopped widen race
""".split()
STARTS = ["", "/", "//", "/*", '"', "exit now ", "@nobody ", "\t", "/tmp/"]


class Person:
    """Types, and remembers what was typed and which answers were shown."""

    def __init__(self, seed: int, patch: pytest.MonkeyPatch) -> None:
        self.random = random.Random(seed)
        self.patch = patch
        self.n = 0
        self.asked: list[str] = []
        self.sent: list[str] = []
        self.shown: set[str] = set()
        self.log: list[str] = []
        self.chat = self.start()

    def start(self, *, go_on: bool = False) -> ChatSession:
        """A program that begins; with `go_on` from the latest conversation."""
        settings, status = gather({"stats": False}, {}), StatusOutput(stream=io.StringIO(), quiet=True)
        autosave = Autosave(status)
        conversation = Conversation(loaded(FakeEngine()), settings, status, autosave)
        chat = ChatSession(conversation, Display(settings, status, as_json=True), status, settings, autosave)
        session = sessions.latest()[0] if go_on else None
        if session is not None:
            autosave.open(session)
            conversation.take_up(session)
        return chat

    def engine(self) -> Any:
        return self.chat.conversation.loaded.engine

    def answers_next(self, answer: Any) -> None:
        """What the engine says to the next question."""
        self.engine().script = [answer]

    def do(self) -> None:
        """One operation."""
        kind = self.random.choice(KINDS)
        self.n += 1
        text = f"{self.random.choice(STARTS)}question {self.n}"
        self.log.append(f"{kind} {self.n}")
        self.answers_next(pieces(f"answer {self.n}."))
        if kind in ("ask", "stop", "fail", "full", "kill"):
            self.ask(kind, text)
        elif kind == "retry-stopped":
            self.answers_next(Cancelled("stopped"))
            self.type("/retry")
        elif kind == "compact-stopped":
            self.answers_next(Cancelled("stopped"))
            self.type("/compact")
        elif kind == "widen":
            self.type("/compact undo")
        elif kind == "save":
            self.type(f"/save name {self.n}")
        elif kind == "load":
            others = [name for name in sessions.names() if name != self.chat.autosave.name]
            self.type(f"/load {self.random.choice(others)}" if others else "/load")
        elif kind == "leave":
            self.type("/exit")
        else:
            self.type(f"/{kind}")

    def ask(self, kind: str, text: str) -> None:
        if kind == "stop":
            self.answers_next(Cancelled("stopped"))
        elif kind == "fail":
            self.answers_next(BackendError("no slot"))
        literal = self.random.random() < 0.5 or text.startswith("/question")
        self.asked.append(text)
        with self.patch.context() as patch:
            if kind == "full":
                patch.setattr("os.fsync", no_space)
            self.type(text, literal=literal)
        if kind == "full":
            self.type("/save")  # there is space again
        if kind == "kill":
            if self.chat.autosave._lock is not None:
                os.close(self.chat.autosave._lock._fd)  # which is all that the kernel does
            self.chat = self.start(go_on=True)

    def type(self, text: str, *, literal: bool = False) -> None:
        n = len(self.engine().asked)
        try:
            loop.turn(self.chat, prompt.Typed(text, literal))
        except Leave:
            loop.goodbye(self.chat, 0)
            self.chat = self.start(go_on=self.random.random() < 0.8)
            return
        for messages in self.engine().asked[n:]:
            asked = [m["content"] for m in messages if m["role"] == "user"][-1:]
            self.sent += [text for text in asked if text != ASK_SUMMARY]
        last = self.chat.conversation.last
        if last is not None and last.text:
            self.shown.add(last.message()["content"])


def no_space(_handle: int) -> None:
    raise OSError(28, "No space left on device")


def on_disk() -> set[str]:
    """Every answer in any file."""
    found = set()
    for name in sessions.names():
        session = sessions.load(name)
        exchanges = [m for left in session.branches for m in left["messages"]]
        found |= {m["content"] for m in [*session.messages, *exchanges] if m["role"] == "assistant"}
    return found


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_and_nothing_else_is_sent(home: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("os.fsync", lambda _handle: None)  # thousands of them
    person = Person(seed, monkeypatch)
    for _ in range(N_OPERATIONS):
        person.do()
    loop.goodbye(person.chat, 0)
    assert set(person.asked) >= set(person.sent)
    assert len(person.sent) > N_OPERATIONS / 4
    assert person.shown <= on_disk(), person.log[-20:]


def test_the_driver_notices_a_loss(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: a program that keeps no branches loses answers."""
    monkeypatch.setattr("sys.stdout", io.StringIO())
    monkeypatch.setattr("os.fsync", lambda _handle: None)
    monkeypatch.setattr(branch, "keep", lambda *_: None)
    person = Person(0, monkeypatch)
    for _ in range(300):
        person.do()
    loop.goodbye(person.chat, 0)
    with pytest.raises(AssertionError):
        assert person.shown <= on_disk()
