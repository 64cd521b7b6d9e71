"""The log-probabilities of a given text are those that generating it reports."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Pair

from specgguf import Cancelled, ContextFull, SpeculativeLlama
from specgguf.native import backend
from specgguf.scoring import score


@pytest.fixture(scope="module")
def llm(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    with SpeculativeLlama(
        str(tiny_chat.target), str(tiny_chat.draft), n_ctx=256, draft=3, n_threads=1, n_threads_batch=1
    ) as llm:
        yield llm


def test_a_generated_text_is_worth_what_was_reported(llm: SpeculativeLlama) -> None:
    prompt = llm.tokenize(b"a word list of some length, longer than one pass of outputs")
    written = [chunk.logprob for chunk in llm.generate(prompt, llm_params(12)) if chunk.logprob is not None]
    ids = [*prompt, *(entry.token for entry in written)]
    scores = score(llm._engine, ids, 2)
    assert scores[0] is None
    assert len(scores) == len(ids)
    found = scores[len(prompt) :]
    assert [s.token for s in found if s] == [entry.token for entry in written]
    for ours, reported in zip(found, written, strict=True):
        assert ours is not None
        assert ours.logprob == pytest.approx(reported.logprob, abs=1e-3)
        assert len(ours.top) == 2
    wrong = [*ids[:-1], (ids[-1] + 1) % llm.n_vocab()]
    last, other = scores[-1], score(llm._engine, wrong, 0)[-1]
    assert last is not None
    assert other is not None
    assert abs(other.logprob - last.logprob) > 1e-3, "another token is worth something else"


def llm_params(n: int) -> Any:
    from specgguf import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=n, logprobs=0, ignore_eos=True)


def test_echo_with_log_probabilities(llm: SpeculativeLlama) -> None:
    """What evaluation harnesses ask for: every token of the prompt, None for the first, then those of the answer."""
    prompt = llm.tokenize(b"a word list")
    reply: Any = llm.create_completion(prompt, echo=True, logprobs=1, max_tokens=2, temperature=0.0)
    logprobs = reply["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(prompt) + 2
    assert logprobs["token_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert math.isfinite(sum(logprobs["token_logprobs"][1:]))
    plain: Any = llm.create_completion(prompt, logprobs=1, max_tokens=2, temperature=0.0)
    assert reply["choices"][0]["text"] == "a word list" + plain["choices"][0]["text"]
    *chunks, _ = llm.create_completion(prompt, echo=True, logprobs=1, max_tokens=2, temperature=0.0, stream=True)
    assert len(chunks[0]["choices"][0]["logprobs"]["tokens"]) == len(prompt)


def test_a_text_longer_than_the_context_is_refused(llm: SpeculativeLlama) -> None:
    with pytest.raises(ContextFull):
        score(llm._engine, [5] * 300, 0)


def test_scoring_is_cancelled_with_its_generation(llm: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = llm.tokenize(b"a word list of some length, longer than one pass of outputs" * 3)
    decode, calls = backend.decode, 0

    def cancelling(*arguments: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            llm.cancel()
        return decode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", cancelling)
        with pytest.raises(Cancelled):
            llm.create_completion(prompt, echo=True, logprobs=0, max_tokens=1)
    assert calls == 2
    assert len(score(llm._engine, prompt, 0)) == len(prompt), "the next one is read whole"
