"""Commands about the context: what fills it, and a summary in the place of what was said first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from specgguf.cli.terminal import stats_view

from specgguf.errors import ConfigError

if TYPE_CHECKING:
    from specgguf.cli.chat.chat_session import ChatSession

CONTEXT_BAR = 40


def compact(chat: ChatSession, words: str) -> None:
    """/compact [undo]"""
    if words == "undo":
        found = chat.conversation.widen()
        if found:
            chat.autosave.changed(chat.conversation.messages)
        chat.status.tell("the whole conversation is sent again" if found else "nothing was summed up here")
    elif words:
        raise ConfigError(f"/compact takes nothing, or undo, not {words!r}")
    elif not chat.conversation.compact():
        chat.status.tell("there is nothing to sum up before the last turn")


def context(chat: ChatSession, _words: str) -> None:
    """/context: what fills the context, counted by the model's own template."""
    from specgguf.text.template import counted

    conversation, status = chat.conversation, chat.status
    window = conversation.sent()
    n_ctx = conversation.loaded.engine.n_ctx()
    n = counted(conversation.count, window) if window else 0
    filled = round(CONTEXT_BAR * min(n / n_ctx, 1))
    more = f"more than the {n_ctx:,} tokens that fit"
    held = f"{n:,} of {n_ctx:,} tokens, {stats_view.percent(n / n_ctx)}" if n < math.inf else more
    status.tell(f"{'█' * filled}{'░' * (CONTEXT_BAR - filled)}  {held}")
    n_turns = n  # parts add up to the whole: the system prompt is what goes when it is left out
    if conversation.system:
        n_turns = counted(conversation.count, window[1:]) if window[1:] and n < math.inf else 0
        n_turns = min(n_turns, n)
        status.tell(f"system prompt  {f'{n - n_turns:,} tokens' if n < math.inf else 'more than fits'}")
    if conversation.window.summary:
        status.tell(
            f"summary of {stats_view.plural(conversation.window.n_hidden, 'message')} (/compact undo takes it back)"
        )
    n_sent = sum(1 for m in window if m["role"] == "user") - bool(conversation.window.summary)
    takes = f", {n_turns:,} tokens" if n < math.inf and n_sent else ""
    sent = f"{stats_view.plural(n_sent, 'turn')} sent with the next message{takes}"
    status.tell(sent if n <= n_ctx else f"{sent}, as far as they fit")
    if conversation.n_turns > n_sent:
        older = stats_view.plural(conversation.n_turns - n_sent, "older turn")
        status.tell(f"{older} no longer sent (kept in the saved conversation)")
