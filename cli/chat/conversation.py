"""A conversation: a thread of messages, and an engine that answers in it.

Sends a question and keeps what comes; keeps the prompt inside the context. Shows no answer itself: they go to a sink,
remarks to the status output, and the autosave writes every step down.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from specgguf.cli.chat.saved import branch
from specgguf.cli.chat.saved.autosave import Autosave
from specgguf.cli.chat.thread import Thread
from specgguf.cli.chat.turn import Answer, Message, Show, ask
from specgguf.cli.chat.window import ASK_SUMMARY, fit, n_system, summary_tokens
from specgguf.cli.interrupts import Interrupts
from specgguf.cli.open_pair import Loaded, thinking
from specgguf.cli.settings import Settings
from specgguf.cli.terminal import console
from specgguf.cli.terminal.render import Collect
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import Cancelled, ContextFull

if TYPE_CHECKING:
    from specgguf.text.template import RenderedPrompt

# Kept free for an answer: this many tokens, but at most this share of the context.
ANSWER_TOKENS = 512
ANSWER_SHARE = 0.25


@dataclass
class Conversation(Thread):
    """A thread, and the engine that answers in it.

    Attributes:
        shape: what every answer is held to: a grammar, or a response_format.
        quietly: shows that something is made which is no answer.
        agreed: asks the user a question; True where nobody is there.
    """

    loaded: Loaded
    settings: Settings
    status: StatusOutput
    autosave: Autosave
    shape: dict[str, Any] = field(default_factory=dict)
    quietly: Show = field(default=lambda *_: contextlib.nullcontext(Collect()))
    agreed: Callable[[str], bool] = field(default=lambda _question: True)

    def __post_init__(self) -> None:
        # What was merely dropped is not written down: another context may hold it.
        self.autosave.describe(
            branches=self.branches,
            summary=lambda: self.window.summary,
            n_summed=lambda: self.window.n_hidden if self.window.summary else 0,
        )

    def more(self, show: Show) -> Answer | None:
        """Go on with the last answer; None where there is none. Both its lengths are kept. Raises as `send`."""
        _before, exchange = self._split()
        if self.unanswered or len(exchange) < 2:
            return None
        question = self.step_back()
        return self.send(question, show, begun=exchange[-1])

    def send(self, question: str, show: Show, *, begun: Message | None = None) -> Answer:
        """Ask, `show` the answer while it comes, and keep both. With `begun` the answer goes on from there.

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
                self._ask(question, show, answer, interrupts)
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
            known = branch.answers(self.branches, before, question)
            answer.is_known = self.messages[-2:] in known
            if known:
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

    def _ask(self, question: str, show: Show, answer: Answer, interrupts: Interrupts) -> None:
        try:
            prompt = self._fit(interrupts) if answer.begun is None else self._render([*self.sent(), answer.begun])
        except Cancelled:
            answer.interrupted = True
            return
        self.autosave.asked(self.messages[:-1], question)
        engine = self.loaded.engine
        with self.autosave.answering(question, answer), show(answer, engine) as sink:
            ask(engine, prompt, {**self.settings.sampling(), **self.shape}, sink, answer, interrupts)

    def replay(self, **sampling: Any) -> Answer:
        """Answer the last question once more with other settings; nothing of it is kept. Raises as `send`."""
        before, exchange = self._split()
        answer = Answer()
        with Interrupts(self.loaded.engine.cancel) as interrupts:
            prompt = self._render(self.window.of([*before, *exchange[:1]]))
            self._make(answer, prompt, interrupts, **self.shape, **sampling)
        return answer

    def _make(self, answer: Answer, prompt: RenderedPrompt, interrupts: Interrupts, **sampling: Any) -> None:
        with self.quietly(answer, self.loaded.engine) as sink:
            ask(self.loaded.engine, prompt, {**self.settings.sampling(), **sampling}, sink, answer, interrupts)

    def count(self, messages: list[Message]) -> int:
        """Tokens of a rendered conversation, by the model's own template."""
        return len(self._render(messages))

    def _render(self, messages: list[Message]) -> RenderedPrompt:
        return self.loaded.engine.render(messages, enable_thinking=thinking(self.settings))

    @property
    def _budget(self) -> int:
        """Tokens that a prompt may take."""
        n_ctx = self.loaded.engine.n_ctx()
        wanted = self.settings["max_tokens"] or 0
        return n_ctx - min(wanted if wanted > 0 else ANSWER_TOKENS, int(n_ctx * ANSWER_SHARE))

    def _fit(self, interrupts: Interrupts) -> RenderedPrompt:
        """The prompt of what is sent, after dropping or summing up turns that no longer fit."""
        with contextlib.suppress(ContextFull):  # so long that it is not even read: turns have to go
            prompt = self._render(self.sent())
            if len(prompt) <= self._budget:
                return prompt
        overflow = self.settings["overflow"]
        if overflow == "compact":
            with contextlib.suppress(ContextFull):  # nothing fits beside a summary: turns are dropped
                n, n_turns = fit(self.sent(), self.count, self._budget - summary_tokens(self.loaded.engine.n_ctx()))
                turns = f"the oldest {n_turns} turns" if n_turns > 1 else "the oldest turn"
                if n and self.agreed(f"context full: let the model sum {turns} up?"):
                    self._sum_up(n, interrupts)
        n, n_turns = fit(self.sent(), self.count, self._budget, overflow="stop" if overflow == "stop" else "drop")
        if n:
            self.window = self.window.without(n)
            turns = "turn was" if n_turns == 1 else "turns were"
            self.status.say(f"context full: the oldest {n_turns} {turns} dropped (--overflow stop ends instead)")
        return self._render(self.sent())

    def compact(self) -> bool:
        """Put a summary in the place of all turns but the last; False where there are none.

        Raises:
            Cancelled: it was stopped; nothing was changed. SpecggufError: as `send`.
        """
        sent = self.sent()
        last = max((i for i, m in enumerate(sent) if m["role"] == "user"), default=0)
        n = last - n_system(sent) - len(self.window.told)
        if n <= 0:
            return False
        with Interrupts(self.loaded.engine.cancel) as interrupts:
            self._sum_up(n + len(self.window.told), interrupts)
        self.autosave.changed(self.messages)
        return True

    def _sum_up(self, n: int, interrupts: Interrupts) -> None:
        """Put a summary in the place of the first `n` messages after the system prompt, and show it."""
        sent, n_ctx = self.sent(), self.loaded.engine.n_ctx()
        n_tokens = summary_tokens(n_ctx)
        old = [*sent[: n_system(sent) + n], {"role": "user", "content": ASK_SUMMARY}]
        n_gone, _ = fit(old, self.count, n_ctx - n_tokens)
        answer = Answer()
        prompt = self._render([*old[: n_system(old)], *old[n_system(old) + n_gone :]])
        self._make(answer, prompt, interrupts, max_tokens=n_tokens)
        if answer.interrupted:
            raise Cancelled("the summary was stopped; nothing was changed")
        if summary := answer.text.strip():
            self.sum_up(n, summary)
            self.status.say(f"summed up (/compact undo takes it back): {console.clean(summary)}")
