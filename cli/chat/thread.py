"""The messages of a conversation, and what may be done to them: taken back, brought back, answered another way.

Nothing that was said is lost: what leaves the thread is kept beside it. Knows neither engine nor file nor terminal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from specgguf.cli.chat.saved import branch
from specgguf.cli.chat.saved.sessions import Session
from specgguf.cli.chat.turn import Answer, Message
from specgguf.cli.chat.window import Window, n_system


@dataclass(kw_only=True)
class Thread:
    """The state of one conversation.

    Attributes:
        messages: system prompt (where there is one) and turns, as OpenAI messages.
        window: which of them are sent: the context may be full.
        undone: the question that was taken back last; `/edit` starts from it.
        unanswered: the last question, if it got no answer at all.
        last: the last answer, for `/highlight` and statistics.
        branches: what left the thread: answers that another one replaced, turns that were taken back.
    """

    messages: list[Message] = field(default_factory=list)
    window: Window = field(default_factory=Window)
    undone: str = ""
    unanswered: str = ""
    last: Answer | None = None
    branches: list[branch.Branch] = field(default_factory=list)
    _wider: Window | None = None  # what was sent before the last summary
    _undone: list[list[Message]] = field(default_factory=list)  # exchanges, the one taken back last at the end
    _replaced: list[Message] = field(default_factory=list)  # the exchange whose question is being answered again

    @property
    def still_unanswered(self) -> str:
        """`unanswered`, unless the user stopped it himself: then it is taken back already."""
        return "" if self.last is not None and self.last.interrupted else self.unanswered

    @property
    def n_turns(self) -> int:
        """Questions that have been asked."""
        return sum(1 for message in self.messages if message["role"] == "user")

    @property
    def first_question(self) -> str:
        """The first question, or an empty string."""
        return next((str(m["content"]) for m in self.messages if m["role"] == "user"), "")

    @property
    def last_exchange(self) -> tuple[str, str]:
        """The last question and its answer; empty where there is none."""
        texts = {m["role"]: str(m["content"]) for m in self.messages}
        return texts.get("user", ""), texts.get("assistant", "")

    @property
    def system(self) -> str:
        """The system prompt, or an empty string."""
        first = self.messages[0] if self.messages else {}
        return str(first.get("content", "")) if first.get("role") == "system" else ""

    def set_system(self, text: str) -> None:
        """Replace the system prompt; an empty text removes it."""
        if self.system:
            self.messages.pop(0)
        if text:
            self.messages.insert(0, {"role": "system", "content": text})

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.resume([m for m in self.messages if m["role"] == "system"])

    def resume(
        self,
        messages: list[Message],
        unanswered: str = "",
        kept: Sequence[branch.Branch] = (),
        window: Window | None = None,
    ) -> None:
        """Go on from other messages, what left their thread, and what of them is sent."""
        self.messages[:] = messages
        self.branches[:] = kept
        self.window, self._wider = window or Window(), None
        self.last, self.undone, self.unanswered = None, "", unanswered
        self._undone, self._replaced = [], []

    def take_up(self, session: Session) -> None:
        """Go on from a saved conversation, with what of it was sent."""
        self.resume(session.messages, session.pending, session.branches, Window(session.n_summed, session.summary))

    def undo(self) -> str:
        """Take the last question back, with its answer if it got one; returns it, or "" where there is none."""
        if self.still_unanswered:
            self.undone, self.unanswered = self.unanswered, ""
            return self.undone
        exchange = self._pop()
        if not exchange:
            return ""
        self._undone.append(exchange)
        self.undone, self.unanswered, self.last = str(exchange[0]["content"]), "", None
        return self.undone

    def redo(self) -> str:
        """Bring back the exchange that was taken back here last; returns its question, or "" where there is none."""
        possible = branch.following(self.branches, self.messages)
        if not possible:
            return ""
        undone = [exchange for exchange in self._undone if exchange in possible]
        exchange = undone[-1] if undone else possible[-1]
        self.messages += exchange
        self.undone, self.last = "", None
        return str(exchange[0]["content"])

    @property
    def can_redo(self) -> bool:
        """Whether `redo` would bring something back."""
        return bool(branch.following(self.branches, self.messages))

    def step_back(self) -> str:
        """Make ready to answer the last question again; returns it, or "" where there is none.

        Its answer comes back if the next question, which is to be this one, gets none.
        """
        if self.unanswered:
            return self.unanswered
        self._replaced = self._pop()
        return str(self._replaced[0]["content"]) if self._replaced else ""

    def answers(self) -> tuple[int, int]:
        """Which answer of how many the last question has now, counted from 1; (0, 0) where there is none."""
        before, exchange = self._split()
        if not exchange:
            return 0, 0
        known = branch.answers(self.branches, before, str(exchange[0]["content"])) or [exchange]
        return known.index(exchange) + 1 if exchange in known else 1, len(known)

    def turn_to(self, n: int) -> None:
        """Take the `n`th answer of the last question, counted from 1."""
        before, exchange = self._split()
        self.messages[len(before) :] = branch.answers(self.branches, before, str(exchange[0]["content"]))[n - 1]
        self.last = None

    def _split(self) -> tuple[list[Message], list[Message]]:
        """The messages before the last exchange, and that."""
        at = max((i for i, m in enumerate(self.messages) if m["role"] == "user"), default=len(self.messages))
        return self.messages[:at], self.messages[at:]

    def _pop(self) -> list[Message]:
        """Take the last exchange off the thread, and keep it."""
        before, exchange = self._split()
        branch.keep(self.branches, before, exchange)
        self.messages[:] = before
        if self.window.n_hidden >= len(before) - n_system(before):
            self.window, self._wider = Window(), None  # what is left may fit again
        return exchange

    def sent(self) -> list[Message]:
        """The messages that are sent."""
        return self.window.of(self.messages)

    def sum_up(self, n: int, summary: str) -> None:
        """Send `summary` instead of the first `n` messages that are sent after the system prompt."""
        self._wider, self.window = self.window, Window(self.window.without(n).n_hidden, summary)

    def widen(self) -> bool:
        """Take the last summary back; False where there is none."""
        if self._wider is None:
            return False
        self.window, self._wider = self._wider, None
        return True
