"""Long conversations over a real engine (a tiny model with a byte vocabulary): nothing but the engine is faked."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Pair
from specgguf.cli.chat.autosave import Keeper
from specgguf.cli.chat.conversation import Talk
from specgguf.cli.chat.turn import Answer
from specgguf.cli.open_pair import Loaded
from specgguf.cli.settings import gather
from specgguf.cli.terminal.render import Collect
from specgguf.cli.terminal.status import Notes
from support.cli_support import home

from specgguf import SpeculativeLlama
from specgguf.errors import ContextFull

__all__ = ["home"]  # fixtures

N_CTX = 2048
QUIET: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "n_threads_batch": 1, "strict": True}
SETTINGS = {"temperature": 0.0, "max_tokens": 24, "save": False}


@pytest.fixture
def engine(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    with SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), draft=3, **QUIET) as engine:
        yield engine


def talk_over(engine: SpeculativeLlama, **flags: Any) -> tuple[Talk, io.StringIO]:
    err = io.StringIO()
    notes = Notes(stream=err)
    loaded = Loaded(engine, "target.gguf", "draft.gguf")
    return Talk(loaded, gather(SETTINGS | flags, {}), notes, Keeper(notes, enabled=False)), err


def send(talk: Talk, text: str) -> Answer:
    return talk.send(text, Collect())


def test_forty_turns_in_a_context_of_2k(home: object, engine: SpeculativeLlama, tiny_chat: Pair) -> None:
    talk, err = talk_over(engine)
    talk.set_system("You are brief.")
    texts = []
    for n in range(40):
        answer = send(talk, f"Question number {n}: what is {n} times {n}, and why is that so?")
        texts.append(answer.text)
        prompt = engine.render(talk.window()[:-1])
        assert engine.last.n_prompt == len(prompt) < N_CTX
        assert talk.window()[0]["role"] == "system"
        assert talk.n_turns == n + 1  # all of them are kept for the session
        if n % 8 == 7:
            with SpeculativeLlama(str(tiny_chat.target), **QUIET) as fresh:
                plain, _ = talk_over(fresh)
                plain.resume(talk.window()[:-2])
                assert send(plain, talk.messages[-2]["content"]).text == answer.text
    assert err.getvalue().count("context full: the oldest") >= 2
    assert len(set(texts)) > 1


def test_a_warm_turn_reads_only_what_is_new(home: object, engine: SpeculativeLlama) -> None:
    talk, _ = talk_over(engine)
    send(talk, "First question, " * 20)
    n_known = engine.last.n_prompt  # the answer's text may be tokenised otherwise than it was generated
    send(talk, "Second.")
    for _ in range(20):  # /undo and /retry keep the cache
        assert engine.last.n_cached >= n_known - 1
        assert engine.last.n_prefilled <= engine.last.n_prompt - engine.last.n_cached
        send(talk, talk.undo())


def test_undo_and_retry_equal_a_fresh_run(home: object, engine: SpeculativeLlama, tiny_chat: Pair) -> None:
    talk, _ = talk_over(engine)
    send(talk, "one")
    first = send(talk, "two").text
    for _ in range(3):
        assert send(talk, talk.undo()).text == first
    talk.undo()
    third = send(talk, "three").text
    with SpeculativeLlama(str(tiny_chat.target), **QUIET) as fresh:
        plain, _ = talk_over(fresh)
        plain.resume(talk.window()[:-2])
        assert send(plain, "three").text == third


def test_stop_refuses_instead_of_dropping(home: object, engine: SpeculativeLlama) -> None:
    talk, _ = talk_over(engine, overflow="stop")
    question = "and so on, " * 10
    while len(engine.render([*talk.window(), {"role": "user", "content": question}])) < N_CTX * 3 // 4:
        send(talk, question)
    with pytest.raises(ContextFull):
        send(talk, "and so on, " * 80)
    assert talk.unanswered.startswith("and so on")
    assert talk.messages[-1]["role"] == "assistant"
    talk.clear()
    assert send(talk, "Short.").finish_reason in ("stop", "length")


def test_a_message_that_no_context_holds_is_dropped_unread(
    home: object, engine: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a conversation over a longer context, say: reading megabytes at each start takes seconds, or minutes."""
    read: list[int] = []
    tokenize = SpeculativeLlama.tokenize

    def seen(self: SpeculativeLlama, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        read.append(len(text))
        return tokenize(self, text, add_bos, special)

    monkeypatch.setattr(SpeculativeLlama, "tokenize", seen)
    talk, err = talk_over(engine)
    talk.resume([{"role": role, "content": "x" * 1_000_000} for role in ("user", "assistant")])
    assert send(talk, "And now?").spans
    assert "context full: the oldest 1 turn was dropped" in err.getvalue()
    assert max(read) < N_CTX
    with pytest.raises(ContextFull, match="bytes of prompt do not fit"):
        send(talk, "x" * 1_000_000)


def test_a_question_longer_than_the_context(home: object, engine: SpeculativeLlama) -> None:
    talk, _ = talk_over(engine)
    send(talk, "one")
    with pytest.raises(ContextFull, match="the last message alone takes"):
        send(talk, "x" * (2 * N_CTX))
    assert talk.n_turns == 1
    assert send(talk, "two").spans
