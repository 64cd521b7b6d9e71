"""Long conversations over a real engine (a tiny model with a byte vocabulary): nothing but the engine is faked."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Pair
from specgguf.cli.chat.conversation import Conversation
from specgguf.cli.chat.saved.autosave import Autosave
from specgguf.cli.chat.turn import Answer
from specgguf.cli.open_pair import Loaded
from specgguf.cli.settings import gather
from specgguf.cli.terminal.render import Collect
from specgguf.cli.terminal.status import StatusOutput
from support.cli_support import home

from specgguf import SpeculativeLlama
from specgguf.errors import ContextFull
from specgguf.native.weights import Weights

__all__ = ["home"]  # fixtures

N_CTX = 2048
QUIET: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "n_threads_batch": 1, "strict": True}
SETTINGS = {"temperature": 0.0, "max_tokens": 24, "save": False}


@pytest.fixture
def engine(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    with SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), draft=3, **QUIET) as engine:
        yield engine


def talk_over(engine: SpeculativeLlama, **flags: Any) -> tuple[Conversation, io.StringIO]:
    err = io.StringIO()
    status = StatusOutput(stream=err)
    loaded = Loaded(engine, "target.gguf", "draft.gguf")
    return Conversation(loaded, gather(SETTINGS | flags, {}), status, Autosave(status, enabled=False)), err


def send(conversation: Conversation, text: str) -> Answer:
    return conversation.send(text, lambda *_: contextlib.nullcontext(Collect()))


def test_forty_turns_in_a_context_of_2k(home: object, engine: SpeculativeLlama, tiny_chat: Pair) -> None:
    conversation, err = talk_over(engine)
    conversation.set_system("You are brief.")
    texts = []
    for n in range(40):
        answer = send(conversation, f"Question number {n}: what is {n} times {n}, and why is that so?")
        texts.append(answer.text)
        prompt = engine.render(conversation.sent()[:-1])
        assert engine.last_stats.n_prompt == len(prompt) < N_CTX
        assert conversation.sent()[0]["role"] == "system"
        assert conversation.n_turns == n + 1  # all of them are kept for the session
        if n % 8 == 7:
            with SpeculativeLlama(str(tiny_chat.target), **QUIET) as fresh:
                plain, _ = talk_over(fresh)
                plain.resume(conversation.sent()[:-2])
                assert send(plain, conversation.messages[-2]["content"]).text == answer.text
    assert err.getvalue().count("context full: the oldest") >= 2
    assert len(set(texts)) > 1


def test_forty_turns_with_summaries(home: object, engine: SpeculativeLlama) -> None:
    """Every prompt fits; what is sent after a summary is the summary and the turns since. This model's text may take
    three times the tokens when it is read again: such a summary is dropped like any other turn."""
    conversation, err = talk_over(engine, overflow="compact")
    asked: list[str] = []

    def agreed(question: str) -> bool:
        asked.append(question)
        return True

    conversation.agreed = agreed
    n_summed = 0
    for n in range(40):
        send(conversation, f"Question number {n}: what is {n} times {n}, and why is that so?")
        assert engine.last_stats.n_prompt < N_CTX
        assert conversation.n_turns == n + 1
        if conversation.window.summary:
            n_summed += 1
            sent = conversation.sent()
            assert sent[1]["content"] == conversation.window.summary
            assert sent[2:] == conversation.messages[conversation.window.n_hidden :]
    assert len(asked) >= 2
    assert n_summed > 5
    assert err.getvalue().count("summed up (/compact undo takes it back)") == len(asked)


def test_a_question_that_leaves_nothing_for_a_summary_drops_turns(home: object, engine: SpeculativeLlama) -> None:
    conversation, err = talk_over(engine, overflow="compact")
    send(conversation, "Short.")
    budget = conversation._budget
    question = "x" * 64
    while conversation.count([{"role": "user", "content": question + "x" * 64}]) < budget:
        question += "x" * 64
    assert send(conversation, question).spans
    assert "the oldest 1 turn was dropped" in err.getvalue()


def test_a_warm_turn_reads_only_what_is_new(home: object, engine: SpeculativeLlama) -> None:
    conversation, _ = talk_over(engine)
    send(conversation, "First question, " * 20)
    n_known = engine.last_stats.n_prompt  # the answer's text may be tokenised otherwise than it was generated
    send(conversation, "Second.")
    for _ in range(20):  # /undo and /retry keep the cache
        assert engine.last_stats.n_cached >= n_known - 1
        assert engine.last_stats.n_prefilled <= engine.last_stats.n_prompt - engine.last_stats.n_cached
        send(conversation, conversation.undo())


def test_undo_and_retry_equal_a_fresh_run(home: object, engine: SpeculativeLlama, tiny_chat: Pair) -> None:
    conversation, _ = talk_over(engine)
    send(conversation, "one")
    first = send(conversation, "two").text
    for _ in range(3):
        assert send(conversation, conversation.undo()).text == first
    conversation.undo()
    third = send(conversation, "three").text
    with SpeculativeLlama(str(tiny_chat.target), **QUIET) as fresh:
        plain, _ = talk_over(fresh)
        plain.resume(conversation.sent()[:-2])
        assert send(plain, "three").text == third


def test_stop_refuses_instead_of_dropping(home: object, engine: SpeculativeLlama) -> None:
    conversation, _ = talk_over(engine, overflow="stop")
    question = "and so on, " * 10
    while len(engine.render([*conversation.sent(), {"role": "user", "content": question}])) < N_CTX * 3 // 4:
        send(conversation, question)
    with pytest.raises(ContextFull):
        send(conversation, "and so on, " * 80)
    assert conversation.unanswered.startswith("and so on")
    assert conversation.messages[-1]["role"] == "assistant"
    conversation.clear()
    assert send(conversation, "Short.").finish_reason in ("stop", "length")


def test_a_message_that_no_context_holds_is_dropped_unread(
    home: object, engine: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a conversation over a longer context, say: reading megabytes at each start takes seconds, or minutes."""
    read: list[int] = []
    tokenize = Weights.tokenize

    def seen(self: Weights, text: bytes, **keywords: bool) -> list[int]:
        read.append(len(text))
        return tokenize(self, text, **keywords)

    monkeypatch.setattr(Weights, "tokenize", seen)
    conversation, err = talk_over(engine)
    conversation.resume([{"role": role, "content": "x" * 1_000_000} for role in ("user", "assistant")])
    assert send(conversation, "And now?").spans
    assert "context full: the oldest 1 turn was dropped" in err.getvalue()
    assert max(read) < N_CTX
    with pytest.raises(ContextFull, match="bytes of prompt do not fit"):
        send(conversation, "x" * 1_000_000)


def test_a_question_longer_than_the_context(home: object, engine: SpeculativeLlama) -> None:
    conversation, _ = talk_over(engine)
    send(conversation, "one")
    with pytest.raises(ContextFull, match="the last message alone takes"):
        send(conversation, "x" * (2 * N_CTX))
    assert conversation.n_turns == 1
    assert send(conversation, "two").spans
