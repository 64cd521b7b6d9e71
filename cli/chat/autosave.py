"""Keeps the open conversation on disk, step by step: asked, answered, changed, taken back.

A disk that refuses is told once; the conversation goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specgguf.cli.chat import sessions
from specgguf.cli.chat.sessions import Lock, Session
from specgguf.cli.chat.turn import Answer, Message
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import Busy, ConfigError


class Autosave:
    """The open conversation's file. With `enabled` False it keeps nothing."""

    def __init__(self, status: StatusOutput, *, enabled: bool = True, slot: str = "") -> None:
        """`slot`: a fixed name for what is not a continued conversation; it is written over each time."""
        self.session: Session | None = None
        self._status = status
        self._enabled = enabled
        self._slot = slot
        self._lock: Lock | None = None
        self._about: dict[str, Any] = {}
        self._stopped = False  # the user stopped the pending question himself: it is no lost work

    @property
    def name(self) -> str:
        """The conversation's name, or an empty string while nothing was written."""
        return self.session.name if self.session else ""

    @property
    def unanswered(self) -> Sequence[str]:
        """The questions before the last one that are kept without an answer; none where nothing is kept."""
        return self.session.unanswered if self.session is not None and self._enabled else ()

    def describe(self, *, model: str, draft_model: str, settings: dict[str, Any]) -> None:
        """What is written beside the messages from now on."""
        self._about = {"model": model, "draft_model": draft_model, "settings": settings}

    def open(self, session: Session) -> None:
        """Go on with a saved conversation. Raises Busy when it is open elsewhere."""
        lock = Lock(session.name) if self._enabled else None
        self.close()
        self.session, self._lock, self._stopped = session, lock, False

    def asked(self, messages: Sequence[Message], question: str) -> None:
        """A question was asked; `messages` do not hold it yet. One that was lost before it is set aside."""
        if not self._enabled:
            return
        if self.session is None:
            try:
                self.open(Session(self._slot or sessions.fresh_name(question)))
            except (Busy, OSError) as error:
                self._enabled = False
                if not self._slot:
                    self._status.warn(f"this conversation is not saved: {error}")
                return
        assert self.session is not None
        kept = dict.fromkeys([*self.session.unanswered, self._lost])  # each once
        self.session.unanswered = [left for left in kept if left not in ("", question)]
        self.session.pending, self._stopped = question, False
        self._write(messages)

    def answered(self, messages: Sequence[Message], answer: Answer) -> None:
        """The answer is over; `messages` hold the turn, if it gave any text. Without any its question is kept."""
        self._stopped = self._stopped or answer.interrupted
        if self.session is not None and (answer.spans or answer.finish_reason):
            self.session.pending = ""
            self.session.turns.append(
                {
                    "when": sessions.now(),
                    "finish_reason": answer.finish_reason,
                    "interrupted": answer.interrupted,
                    "timings": answer.timings,
                }
            )
        self._write(messages)

    def take_back(self, messages: Sequence[Message], question: str) -> str:
        """`question` was taken back and is not among `messages`. Without one, the latest lost one goes.

        Returns the question that went, or an empty string where there was none.
        """
        if self.session is None:
            return question
        went = question or self._lost or (self.session.unanswered or [""])[-1]
        if went:
            self.session.pending = "" if self._lost == went else self._lost
            self.session.unanswered = [left for left in self.session.unanswered if left != went]
            self.changed(messages)
        return went

    @property
    def _lost(self) -> str:
        """The last question, if it got no answer though the user did not stop it, or an empty string."""
        return "" if self.session is None or self._stopped else self.session.pending

    def changed(self, messages: Sequence[Message]) -> None:
        """The messages were changed by hand: undo, a system prompt."""
        n_answers = sum(1 for m in messages if m["role"] == "assistant")
        if self.session is not None:
            del self.session.turns[n_answers:]
        self._write(messages)

    def rename(self, name: str, messages: Sequence[Message]) -> None:
        """Keep the conversation under another name. Raises ConfigError where that is taken or no name."""
        sessions.check_name(name)
        old = self.name
        if name == old:
            self._write(messages)
            return
        if name in sessions.names():
            raise ConfigError(f"there is a conversation '{name}' already", hint=f"specgguf sessions rm '{name}'")
        session = self.session or Session(name)
        lock = Lock(name)
        session.name = name
        self.close()
        self.session, self._lock, self._enabled = session, lock, True
        self._write(messages)
        if old:
            sessions.remove(old)

    def close(self) -> None:
        """The conversation is over here; its file stays."""
        if self._lock is not None:
            self._lock.release()
        self.session, self._lock = None, None

    def _write(self, messages: Sequence[Message]) -> None:
        if self.session is None or not self._enabled:
            return
        self.session.messages = [dict(m) for m in messages]
        for key, value in self._about.items():
            setattr(self.session, key, value)
        try:
            sessions.save(self.session)
        except OSError as error:
            self._enabled = False
            self._status.warn(f"this conversation is not saved: {error.strerror or error}")
