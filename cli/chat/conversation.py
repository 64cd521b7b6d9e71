"""A conversation: its messages, and what may be done to them.

Sends a question, takes one back, keeps what another answer replaced; keeps the prompt inside the context. Shows
nothing itself: answers go to a sink, remarks to the status output, and the autosave writes every step down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specgguf.cli.chat.saved import branch
from specgguf.cli.chat.saved.autosave import Autosave
from specgguf.cli.chat.turn import Answer, Message, ask
from specgguf.cli.interrupts import Interrupts
from specgguf.cli.open_pair import Loaded, thinking
from specgguf.cli.settings import Settings
from specgguf.cli.terminal.progress import ReadingLine
from specgguf.cli.terminal.render import Sink
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import ContextFull

if TYPE_CHECKING:
    from specgguf.text.template import RenderedPrompt

# Kept free for an answer: this many tokens, but at most this share of the context.
ANSWER_TOKENS = 512
ANSWER_SHARE = 0.25
SLOW_PROMPT = 200


@dataclass
class Conversation:
    """The state of one conversation.

    Attributes:
        messages: system prompt (where there is one) and turns, as OpenAI messages.
        n_hidden: so many messages after the system prompt are no longer sent: the context was full.
        undone: the question that was taken back last; `/edit` starts from it.
        unanswered: the last question, if it got no answer at all.
        last: the last answer, for `/highlight` and statistics.
        shape: what every answer is held to: a grammar, or a response_format.
        branches: what left the thread: answers that another one replaced, turns that were taken back.
    """

    loaded: Loaded
    settings: Settings
    status: StatusOutput
    autosave: Autosave
    messages: list[Message] = field(default_factory=list)
    n_hidden: int = 0
    undone: str = ""
    unanswered: str = ""
    last: Answer | None = None
    shape: dict[str, Any] = field(default_factory=dict)
    branches: list[branch.Branch] = field(default_factory=list)
    _read: list[int] = field(default_factory=list)  # the prompt before this one
    _undone: list[list[Message]] = field(default_factory=list)  # exchanges, the one taken back last at the end
    _replaced: list[Message] = field(default_factory=list)  # the exchange whose question is being answered again

    def __post_init__(self) -> None:
        self.autosave.describe(branches=self.branches)

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

    def resume(self, messages: list[Message], unanswered: str = "", kept: Sequence[branch.Branch] = ()) -> None:
        """Go on from other messages, and what left their thread."""
        self.messages[:] = messages
        self.branches[:] = kept
        self.n_hidden, self.last, self.undone, self.unanswered = 0, None, "", unanswered
        self._undone, self._replaced = [], []

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
        if self.n_hidden >= len(before) - bool(self.system):
            self.n_hidden = 0  # what is left may fit again; `fit` decides anew
        return exchange

    def window(self) -> list[Message]:
        """The messages that are sent: system prompt and the turns that still fit."""
        start = 1 if self.system else 0
        return self.messages[:start] + self.messages[start + self.n_hidden :]

    def more(self, sink: Sink) -> Answer | None:
        """Go on with the last answer; None where there is none. Both its lengths are kept. Raises as `send`."""
        _before, exchange = self._split()
        if self.unanswered or len(exchange) < 2:
            return None
        question = self.step_back()
        return self.send(question, sink, begun=exchange[-1])

    def send(self, question: str, sink: Sink, *, begun: Message | None = None) -> Answer:
        """Ask, stream the answer into `sink`, and keep both. With `begun` the answer goes on from there.

        A question without any answer (stopped too early, or refused) is taken back into `unanswered`; one that was to
        be answered again (`step_back`) keeps the answer that it had.

        Raises:
            SpecggufError: see `ask`; ContextFull where the conversation does not fit.
            KeyboardInterrupt: Ctrl-C a second time; what came is kept.
        """
        self.messages.append({"role": "user", "content": question})
        self.last = answer = Answer(begun=begun)
        try:
            with Interrupts(self.loaded.engine.cancel) as interrupts:
                self._ask(question, sink, answer, interrupts)
        finally:
            with contextlib.suppress(OSError):  # a terminal that was closed
                self.status.clear()
            self._conclude(question, answer)
        return answer

    def _conclude(self, question: str, answer: Answer) -> None:
        """Keep what came; without anything the earlier answer comes back, or the question waits in `unanswered`."""
        replaced, self._replaced = self._replaced, []
        if answer.spans or answer.finish_reason:
            before = self.messages[:-1]
            self.messages.append(answer.message())
            self.unanswered = self.undone = ""
            if branch.answers(self.branches, before, question):
                branch.keep(self.branches, before, self.messages[-2:])
            self.autosave.answered(self.messages, answer)
            return
        self.messages.pop()
        if replaced:
            self.messages += replaced
            self.autosave.restored(self.messages)
        else:
            self.unanswered = question
            self.autosave.answered(self.messages, answer)

    def _ask(self, question: str, sink: Sink, answer: Answer, interrupts: Interrupts) -> None:
        prompt = self._fit() if answer.begun is None else self._render([*self.window(), answer.begun])
        self.autosave.asked(self.messages[:-1], question)
        n_new = len(prompt) - n_common(prompt, self._read)
        waiting = ReadingLine(self.status, n_new if n_new >= SLOW_PROMPT else 0, self._reading_speed())
        try:
            with waiting, self.autosave.answering(question, answer):
                sampling = {**self.settings.sampling(), **self.shape}
                ask(self.loaded.engine, prompt, sampling, waiting.until_first(sink), answer, interrupts)
        finally:
            if answer.spans:  # one that was stopped before has not been read to its end
                self._read = prompt

    def _reading_speed(self) -> float:
        """Tokens a second of the prompts read so far; 0 where none was long enough to tell."""
        stats = self.loaded.engine.stats
        return stats.n_prefilled / stats.prompt_s if stats.prompt_s > 0 and stats.n_prefilled >= SLOW_PROMPT else 0.0

    def count(self, messages: list[Message]) -> int:
        """Tokens of a rendered conversation, by the model's own template."""
        return len(self._render(messages))

    def _render(self, messages: list[Message]) -> RenderedPrompt:
        return self.loaded.engine.render(messages, enable_thinking=thinking(self.settings))

    def _fit(self) -> RenderedPrompt:
        """The prompt of the window, after dropping turns that no longer fit."""
        n_ctx = self.loaded.engine.n_ctx()
        wanted = self.settings["max_tokens"] or 0
        budget = n_ctx - min(wanted if wanted > 0 else ANSWER_TOKENS, int(n_ctx * ANSWER_SHARE))
        with contextlib.suppress(ContextFull):  # so long that it is not even read: turns have to go
            prompt = self._render(self.window())
            if len(prompt) <= budget:
                return prompt
        from specgguf.text.template import fit

        before = self.window()
        after, n_dropped = fit(before, self.count, budget, overflow=self.settings["overflow"])
        self.n_hidden += len(before) - len(after)
        if n_dropped:
            turns = "turn was" if n_dropped == 1 else "turns were"
            self.status.say(f"context full: the oldest {n_dropped} {turns} dropped (--overflow stop ends instead)")
        return self._render(self.window())


def n_common(a: list[int], b: list[int]) -> int:
    """How many tokens two prompts begin with in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
