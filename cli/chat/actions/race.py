"""/race: the last question once more, plain and drafted, from the same seed: what drafting is worth here and now."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from specgguf.cli.chat.turn import Answer
from specgguf.cli.terminal import stats_view

if TYPE_CHECKING:
    from specgguf.cli.chat.chat_session import ChatSession

TOKENS = 128


def race(chat: ChatSession, _words: str) -> None:
    """/race"""
    conversation, status = chat.conversation, chat.status
    engine = conversation.loaded.engine
    if not conversation.loaded.draft_model:
        status.tell("there is no draft model to race with (/model REF DRAFT loads one)")
        return
    if not conversation.last_exchange[1] or conversation.unanswered:
        status.tell("there is no answer to race for yet")
        return
    seed = chat.settings["seed"]
    seed = random.getrandbits(31) if seed is None else seed
    drafts = "auto" if engine.draft == "off" else engine.draft
    answers: list[Answer] = []
    for draft in ("off", drafts):
        status.say("plain decoding …" if draft == "off" else "drafting …")
        answers.append(conversation.replay(draft=draft, seed=seed, max_tokens=TOKENS))
        if answers[-1].interrupted:
            status.tell("stopped before both had run")
            return
    plain, drafted = (answer.stats for answer in answers)
    status.tell(stats_view.race(plain, drafted, same_text=answers[0].text == answers[1].text))
