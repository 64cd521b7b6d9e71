"""Keeps the open conversation on disk, step by step: asked, being answered, answered, changed, taken back.

A disk that refuses is told once, and asked again at every step; the conversation goes on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from specgguf.cli.chat.saved import branch, sessions
from specgguf.cli.chat.saved.lock import Lock
from specgguf.cli.chat.saved.partial import PartialWriter
from specgguf.cli.chat.saved.sessions import Session
from specgguf.cli.chat.turn import Answer, Message
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import Busy, ConfigError, SpecggufError


class Autosave:
    """The open conversation's file. With `enabled` False it keeps nothing.

    Attributes:
        unsaved: why what was said last is not on disk; empty while all of it is, or where nothing is to be kept.
    """

    def __init__(self, status: StatusOutput, *, enabled: bool = True, slot: str = "") -> None:
        """`slot`: a fixed name for what is no conversation; it is written over each time."""
        self.session: Session | None = None
        self.unsaved = ""
        self._status = status
        self._enabled = enabled
        self._slot = slot
        self._lock: Lock | None = None
        self._about: dict[str, Any] = {}
        self._stopped = False  # the user stopped the pending question himself: nothing is missing

    @property
    def name(self) -> str:
        """The conversation's name, or an empty string while nothing was written."""
        return self.session.name if self.session else ""

    @property
    def unanswered(self) -> Sequence[str]:
        """The questions before the last one that are kept without an answer; none where nothing is kept."""
        return self.session.unanswered if self.session is not None and self._enabled and not self.unsaved else ()

    def describe(self, **about: Any) -> None:
        """What is written beside the messages from now on, by the names of `Session`'s fields: values, or what gives
        them."""
        self._about.update(about)

    def open(self, session: Session) -> None:
        """Go on with a saved conversation. Raises Busy when it is open elsewhere."""
        lock = sessions.lock(session.name) if self._enabled else None
        self.close()
        self.session, self._lock, self._stopped = session, lock, False

    def asked(self, messages: Sequence[Message], question: str) -> None:
        """A question was asked; `messages` do not hold it yet. One before it that got no answer is kept apart."""
        if not self._enabled:
            return
        if self.session is None and not self._begin(question):
            return
        assert self.session is not None
        kept = dict.fromkeys([*self.session.unanswered, self._pending])  # each once
        self.session.unanswered = [left for left in kept if left not in ("", question)]
        self.session.pending, self._stopped = question, False
        self._write(messages)

    def _begin(self, question: str) -> bool:
        """Open a file for a new conversation; whether that went well."""
        try:
            name = self._slot or sessions.fresh_name(question)
            lock = sessions.lock(name)
            if self._slot in sessions.names() and not sessions.is_single(self._slot):
                sessions.promote()
        except Busy:  # another single question is being answered: that one is kept
            self._enabled = False
            return False
        except (OSError, SpecggufError) as error:
            self._failed(error)
            return False
        self.session, self._lock = Session(name), lock
        return True

    def answering(self, question: str, answer: Answer) -> PartialWriter:
        """A context in which what came of `answer` is on disk about every second."""
        kept = self.session is not None and self._enabled
        return PartialWriter(sessions.partial_path(self.name) if kept else None, question, answer.message)

    def answered(self, messages: Sequence[Message], answer: Answer) -> None:
        """The answer is over; `messages` hold the turn, if it gave any text. Without any its question is kept."""
        self._stopped = self._stopped or answer.interrupted
        if self.session is not None and (answer.spans or answer.finish_reason):
            self.session.pending = ""
            self.session.turns.append(
                {
                    "when": sessions.now(),
                    "answer": branch.fingerprint(messages[-1:]),
                    "finish_reason": answer.finish_reason,
                    "interrupted": answer.interrupted,
                    "timings": answer.timings,
                }
            )
        self._write(messages)

    def restored(self, messages: Sequence[Message]) -> None:
        """The pending question has its earlier answer again: `messages` hold both."""
        if self.session is not None:
            self.session.pending = ""
        self._write(messages)

    def take_back(self, messages: Sequence[Message], question: str) -> str:
        """`question` was taken back and is not among `messages`. Without one, the latest without an answer goes.

        Returns the question that went, or an empty string where there was none.
        """
        if self.session is None:
            return question
        went = question or self._pending or (self.session.unanswered or [""])[-1]
        if went:
            self.session.pending = "" if self._pending == went else self._pending
            self.session.unanswered = [left for left in self.session.unanswered if left != went]
            self.changed(messages)
        return went

    @property
    def _pending(self) -> str:
        """The last question, if it got no answer though the user did not stop it, or an empty string."""
        return "" if self.session is None or self._stopped else self.session.pending

    def changed(self, messages: Sequence[Message]) -> None:
        """The messages were changed by hand: undo, another answer, a system prompt."""
        self._write(messages)

    def rename(self, name: str, messages: Sequence[Message]) -> None:
        """Keep the conversation under `name`, and no longer under the one it had.

        Raises:
            ConfigError: the name is taken, reserved, or none.
            SpecggufError: it cannot be written; what was on disk still is.
        """
        sessions.check_name(name)
        old = self.name
        if name == sessions.ONE_SHOT:
            raise ConfigError(f"'{name}' is where single questions are kept", hint="choose another name")
        if name != old and name in sessions.names():
            raise ConfigError(f"there is a conversation '{name}' already", hint=f"specgguf sessions rm '{name}'")
        session = replace(self._up_to_date(self.session or Session(name), messages), name=name)
        lock = None
        try:
            lock = sessions.lock(name) if name != old or self._lock is None else self._lock
            sessions.save(session)
        except OSError as error:
            if lock is not None and lock is not self._lock:
                lock.release()
            stays = f"it stays as it was in '{old}'" if old in sessions.names() else "make room, then /save again"
            reason = (error.strerror or str(error)).lower()
            raise SpecggufError(f"not saved as '{name}': {reason}", hint=stays) from error
        if lock is not self._lock:
            self.close()
        self.session, self._lock, self._enabled, self.unsaved = session, lock, True, ""
        if old and old != name:
            sessions.remove(old)

    def save(self, messages: Sequence[Message]) -> None:
        """Try once more what could not be written."""
        if self.unsaved:
            if self.session is None and not self._begin(next((m["content"] for m in messages), "")):
                return
            self._write(messages)

    def close(self) -> None:
        """The conversation is over here; its file stays, unless nothing is left in it."""
        session, lock = self.session, self._lock
        self.session, self._lock, self.unsaved = None, None, ""
        if lock is not None:
            lock.release()
            if session is not None and session.is_empty and not session.branches:
                with contextlib.suppress(OSError, SpecggufError):
                    sessions.remove(session.name)

    def _up_to_date(self, session: Session, messages: Sequence[Message]) -> Session:
        session.messages = [dict(m) for m in messages]
        for key, value in self._about.items():
            now = value() if callable(value) else value
            setattr(session, key, list(now) if isinstance(now, list) else now)
        return session

    def _write(self, messages: Sequence[Message]) -> None:
        if self.session is None or not self._enabled:
            return
        try:
            sessions.save(self._up_to_date(self.session, messages))
        except OSError as error:
            self._failed(error)
            return
        if self.unsaved:
            self._status.say(f"this conversation is saved again, as '{self.name}'")
        self.unsaved = ""

    def _failed(self, error: Exception) -> None:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        if reason != self.unsaved:
            self.unsaved = reason
            self._status.warn(f"this conversation is not saved: {reason}")
