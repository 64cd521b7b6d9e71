"""What of a conversation is sent: all of it while it fits, then without its oldest turns, or with a summary in their
place. The conversation itself keeps every message; nothing here asks a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
Count = Callable[[list[Message]], int]

ASK_SUMMARY = (
    "Sum up our conversation so far, for yourself, so that you can go on without it: what was asked, found and "
    "decided, and the names, numbers and code that will be needed. Be brief."
)
SUMMARY_TOKENS = 256  # at most, and at most this share of the context
SUMMARY_SHARE = 0.125


@dataclass(frozen=True)
class Window:
    """Which messages are sent.

    Attributes:
        n_hidden: so many messages after the system prompt are no longer sent.
        summary: stands in their place; empty where nothing does.
    """

    n_hidden: int = 0
    summary: str = ""

    def of(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that are sent: system prompt, summary, and the turns that are left."""
        n = n_system(messages)
        return [*messages[:n], *self.told, *messages[n + self.n_hidden :]]

    @property
    def told(self) -> list[Message]:
        """The summary as a turn, which any template takes."""
        if not self.summary:
            return []
        return [{"role": "user", "content": ASK_SUMMARY}, {"role": "assistant", "content": self.summary}]

    def without(self, n: int) -> Window:
        """The first `n` messages after the system prompt are no longer sent, the summary's first."""
        n_told = len(self.told)
        return Window(self.n_hidden + max(n - n_told, 0), self.summary if n < n_told else "")


def n_system(messages: Sequence[Message]) -> int:
    """1 where the messages begin with a system prompt, else 0."""
    return int(bool(messages) and messages[0]["role"] == "system")


def summary_tokens(n_ctx: int) -> int:
    """How long a summary may be."""
    return min(SUMMARY_TOKENS, int(n_ctx * SUMMARY_SHARE))


def fit(messages: list[Message], count: Count, budget: int, *, overflow: str = "drop") -> tuple[int, int]:
    """What has to go for `messages` to take at most `budget` tokens: how many messages, and how many turns.

    Raises:
        ContextFull: see `template.fit`.
    """
    from specgguf.text import template

    after, n_turns = template.fit(messages, count, budget, overflow=overflow)
    return len(messages) - len(after), n_turns
