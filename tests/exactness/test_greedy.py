"""Greedy text with drafting is plain greedy text, token for token, to its end and beyond.

Strict mode over tiny dense files: rows of every width are bit-identical, so every difference is a bug.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conftest import Pair

from specgguf import SamplingParams, SpeculativeLlama

PROMPTS = [f"a {word} in python" for word in "list word value token number the and of is return".split()]


@pytest.fixture(scope="module")
def llm(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    paths = str(tiny_chat.target), str(tiny_chat.draft)
    with SpeculativeLlama(*paths, n_ctx=256, n_threads=1, n_threads_batch=1, strict=True) as llm:
        yield llm


def run(
    llm: SpeculativeLlama, prompt: list[int], params: SamplingParams, draft: int | str
) -> tuple[list[int], str | None]:
    """(tokens, finish reason)."""
    rounds = list(llm.generate(prompt, params, draft=draft).rounds())
    return [token for round in rounds for token in round.tokens], rounds[-1].finish_reason


@pytest.mark.parametrize("k", [1, 3, 5, 9])
def test_texts_are_equal(llm: SpeculativeLlama, k: int) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    accepted = rejected = 0
    for prompt in PROMPTS:
        ids = llm.tokenize(prompt.encode())
        drafted = run(llm, ids, params, k)
        accepted += llm.last_stats.draft_n_accepted
        rejected += llm.last_stats.draft_n - llm.last_stats.draft_n_accepted
        assert drafted == run(llm, ids, params, "off")
    assert accepted > 50
    assert rejected > 50


@pytest.mark.parametrize("k", [3, 5])
def test_a_text_that_ends_by_itself_and_the_turn_after_it(llm: SpeculativeLlama, k: int) -> None:
    """A bias makes texts end after a few tokens, here and there in the middle of a block."""
    likely = dict.fromkeys(llm._engine.target.eog, 4.5)
    params = SamplingParams(temperature=0.0, max_tokens=60, logit_bias=likely)
    ends = 0
    for prompt in PROMPTS:
        ids = llm.tokenize(prompt.encode())
        out, reason = run(llm, ids, params, k)
        assert (out, reason) == run(llm, ids, params, "off")
        assert sum(token in likely for token in out) == (reason == "eos")
        ends += reason == "eos" and len(out) > 1
        run(llm, ids, params, k)
        following = [*ids, *out, *llm.tokenize(b"\nnext ", add_bos=False)]
        assert run(llm, following, params, k) == run(llm, following, params, "off")
    assert ends >= 3
