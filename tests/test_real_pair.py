"""Greedy equality and full self-acceptance on real models, and what they would catch.

The pair is Qwen2.5-Coder 1.5B with 0.5B, requantised to Q4_0, single tokens padded to two: every row is then
independent of the batch that it was computed in, so drafted text must equal plain text token for token. On the
demo pair as it is downloaded (Q4_K_M) rows move with the width; there a difference must be a near-tie, judged
against the noise that the same test measures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import models, requantize
from support.fakes import FakeStopCheck, Script

from specgguf import SamplingParams, SpeculativeLlama
from specgguf.decode.drafters import ModelDrafter, Proposal
from specgguf.decode.generation import generate
from specgguf.decode.records import Round
from specgguf.decode.sampling import Rng, Transform
from specgguf.fit.slimming import cutting
from specgguf.native import sequence as native
from specgguf.native.context import Model
from specgguf.native.weights import Weights

pytestmark = pytest.mark.real

# On a machine that others load, one thread is faster than two that wait for each other.
THREADS: dict[str, Any] = {}
if n_threads := os.environ.get("SPECGGUF_TEST_THREADS"):
    THREADS = {"n_threads": int(n_threads), "n_threads_batch": int(n_threads)}

QUESTIONS = [
    "Write a Python function that reverses a linked list.",
    "Write a SQL query for the three best paid employees of each department.",
    "Explain why the sky is blue, in three sentences.",
    "Give me a JSON list of five cities with their country and population.",
    "Tell a short story about a lighthouse keeper and a storm.",
]
N = 80
GREEDY = SamplingParams(temperature=0.0, max_tokens=N)
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)


@pytest.fixture(scope="module")
def pair() -> tuple[Path, Path]:
    """The demo pair as Q4_0."""
    target, draft = models.demo_pair()
    return requantize.q4_0(target), requantize.q4_0(draft)


@pytest.fixture(scope="module")
def strict(pair: tuple[Path, Path]) -> Iterator[SpeculativeLlama]:
    with SpeculativeLlama(str(pair[0]), str(pair[1]), n_ctx=512, strict=True, draft="off", **THREADS) as llm:
        yield llm


def prompt_of(llm: SpeculativeLlama, question: str) -> list[int]:
    return llm.render([{"role": "user", "content": question}])


def text(rounds: Iterator[Round]) -> list[int]:
    return [token for round in rounds for token in round.tokens]


@pytest.fixture(scope="module")
def plain(strict: SpeculativeLlama) -> list[list[int]]:
    """Plain greedy answers, once for all tests: drafting off, the same engine."""
    answers = [text(strict.generate(prompt_of(strict, q), GREEDY, draft="off").rounds()) for q in QUESTIONS]
    assert strict.stats.draft_n == 0
    return answers


@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_text_is_that_of_plain_decoding(strict: SpeculativeLlama, plain: list[list[int]], k: int) -> None:
    """Five prompts of eighty tokens, token for token."""
    for question, answer in zip(QUESTIONS, plain, strict=True):
        drafted = text(strict.generate(prompt_of(strict, question), GREEDY, draft=k).rounds())
        assert strict.last_stats.draft_n > 0
        assert strict.last_stats.draft_n_accepted > 0
        assert drafted == answer, question


def test_a_row_off_is_seen(strict: SpeculativeLlama, plain: list[list[int]]) -> None:
    """The negative control: the same comparison, with each row judged by the one before it."""
    target, draft = strict._engine.target, strict._engine.draft_model
    assert draft is not None

    class OneRowOff:
        """The target, but for its rows: the first is right, the others come one late."""

        def __getattr__(self, name: str) -> Any:
            return getattr(target, name)

        def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> np.ndarray:
            rows = target.extend(tokens, n_outputs, n_padding)
            return rows[[0, *range(n_outputs - 1)]] if n_outputs else rows

    prompt = prompt_of(strict, QUESTIONS[0])
    transform = Transform(GREEDY, n_vocab=min(target.n_vocab, draft.n_vocab))
    rounds = generate(
        OneRowOff(),
        ModelDrafter(draft),
        prompt,
        transform=transform,
        rng=Rng(0),
        controller=Script([3]),
        stop_check=FakeStopCheck(16, eog=target.eog),
        max_tokens=16,
    )
    assert text(rounds) != plain[0][:16]


class OneBehind(ModelDrafter):
    """A draft whose cache lacks the latest token."""

    def propose(self, committed: Sequence[int], *rest: Any) -> Proposal:
        return super().propose(committed[:-1], *rest)


def self_draft(
    path: Path, lengths: Sequence[int], n_drafted: int, drafter: type[ModelDrafter] = ModelDrafter
) -> tuple[int, int]:
    """(drafted, accepted) of a file that drafts for itself at temperature 1, its weights shared."""
    weights = Weights(str(path), THREADS)
    target, draft = (Model(weights, n_ctx=1024, pad_to=2) for _ in range(2))
    prompt = weights.llama.tokenize(b"def reverse(head):\n    previous = None\n", add_bos=False)
    drafted = accepted = 0
    rounds = generate(
        target,
        drafter(draft),
        prompt,
        transform=Transform(SAMPLED, n_vocab=target.n_vocab, eog=target.eog),
        rng=Rng(11),
        controller=Script(lengths),
        stop_check=FakeStopCheck(900),
        max_tokens=900,
    )
    try:
        for round in rounds:
            drafted += round.draft_n
            accepted += round.draft_n_accepted
            if drafted >= n_drafted:
                return drafted, accepted
    finally:
        rounds.close()  # type: ignore[attr-defined]
        draft.close()
        target.close()
        weights.close()
    raise AssertionError("the text ended early")


@pytest.mark.parametrize("lengths", [(5,), (5, 0, 0, 5)], ids=str)
@pytest.mark.parametrize("which", ["qwen", "smollm2"])
def test_a_self_draft_accepts_every_token(which: str, lengths: tuple[int, ...], pair: tuple[Path, Path]) -> None:
    """Three hundred drafted tokens: rows are bit-identical, and the draft's cache is never stale."""
    drafted, accepted = self_draft(pair[1] if which == "qwen" else models.smollm2(), lengths, 300)
    assert drafted >= 300
    assert accepted == drafted


def test_a_draft_cache_that_is_one_token_behind_is_seen() -> None:
    """The negative control: most of what a lagging draft proposes is rejected."""
    drafted, accepted = self_draft(models.smollm2(), (5,), 60, OneBehind)
    assert accepted < 0.8 * drafted


def gap(row: np.ndarray) -> float:
    """Between the two best logits."""
    best = np.partition(row, -2)[-2:]
    return float(best[1] - best[0])


def gaps(model: native.Sequence, prompt: Sequence[int], tokens: Sequence[int], width: int) -> np.ndarray:
    """The gap before each of `tokens`, fed to the model `width` at a time."""
    fed = [*prompt[-1:], *tokens[:-1]]
    model.clear()
    model.extend(list(prompt[:-1]), 0)
    found: list[float] = []
    for start in range(0, len(fed), width):
        part = fed[start : start + width]
        found.extend(gap(row) for row in model.extend(part, len(part)))
    return np.array(found)


def test_the_demo_pair_differs_from_plain_only_at_a_near_tie() -> None:
    """Q4_K_M, not strict: where the two texts part, plain's two best logits were closer than the noise between
    batch widths on this text."""
    k = 4
    with SpeculativeLlama(*map(str, models.demo_pair()), n_ctx=512, draft="off", **THREADS) as llm:
        prompt = prompt_of(llm, QUESTIONS[0])
        answer = text(llm.generate(prompt, GREEDY).rounds())
        drafted = text(llm.generate(prompt, GREEDY, draft=k).rounds())
        assert llm.last_stats.draft_n_accepted > 0
        differ = [i for i, (a, b) in enumerate(zip(answer, drafted, strict=False)) if a != b]
        if not differ:
            assert answer == drafted
            return
        target = llm._engine.target
        one, wide = (gaps(target, prompt, answer, width) for width in (1, k + 1))
        noise = float(np.abs(one - wide).max())
        assert one[differ[0]] <= noise, f"a gap of {one[differ[0]]:.3f} where the noise is {noise:.3f}"


def test_a_draft_of_another_vocabulary(pair: tuple[Path, Path], plain: list[list[int]]) -> None:
    """SmolLM2 for Qwen: greedy text is that of plain decoding, and sampled text comes with accepted tokens."""
    with SpeculativeLlama(str(pair[0]), str(models.smollm2()), n_ctx=512, strict=True, draft=3, **THREADS) as llm:
        assert any("80% of SmolLM2" in warning for warning in llm.warnings)
        for question, answer in zip(QUESTIONS[:3], plain, strict=False):
            assert text(llm.generate(prompt_of(llm, question), GREEDY).rounds()) == answer, question
            assert llm.last_stats.draft_n_accepted > 0
        sampled = SamplingParams(temperature=0.8, max_tokens=40, seed=1)
        for question in (
            QUESTIONS[4],
            "用中文写一句关于海的话。",
            "اكتب جملة عن البحر.",
            "Three emoji for a party: 🎉",
        ):
            assert text(llm.generate(prompt_of(llm, question), sampled).rounds())
            assert llm.last_stats.draft_n > 0
            assert llm.last_stats.off_reason == ""


SCRIPTS = [
    "用中文写一句关于海的话。",
    "اكتب جملة عن البحر.",
    "Three emoji for a party, then a sentence with more of them: 🎉",
    "Write a Python class QuokkaZygoteXylophone with methods wombatulate and defenestrate_ocelot.",
]


@pytest.mark.parametrize("which", ["slimmed", "smollm2"])
def test_text_of_other_scripts_is_right(
    pair: tuple[Path, Path], strict: SpeculativeLlama, which: str, tmp_path: Path
) -> None:
    """Tokens that a draft of 8,192 ids, or of another vocabulary, cannot propose: greedy text is plain."""
    draft = models.smollm2()
    if which == "slimmed":
        draft = cutting.cut(pair[1], tmp_path / "slim.gguf", 8192).path
    params = SamplingParams(temperature=0.0, max_tokens=32)
    n_drafted = 0
    with SpeculativeLlama(str(pair[0]), str(draft), n_ctx=512, strict=True, draft=3, **THREADS) as llm:
        for question in SCRIPTS:
            prompt = prompt_of(llm, question)
            wanted = text(strict.generate(prompt, params, draft="off").rounds())
            assert text(llm.generate(prompt, params).rounds()) == wanted, question
            assert llm.last_stats.off_reason == ""
            n_drafted += llm.last_stats.draft_n
    assert n_drafted > 20


def test_a_sliding_window_over_three_turns() -> None:
    """Gemma 3 270M (window 512) as its own draft, the prompt longer than the window: S equals P in every turn.

    Without flash attention, whose rows differ between a prompt's wide passes and the last token read again.
    """
    path = str(requantize.q4_0(models.gemma()))
    turns = ["The lighthouse stood on a rock, and nobody had seen its keeper. " * 45, "Who kept it?", "And then?"]
    keywords: dict[str, Any] = {"n_ctx": 1024, "strict": True, "flash_attn": False, "draft_flash_attn": False}
    params = SamplingParams(temperature=0.0, max_tokens=30)
    with SpeculativeLlama(path, path, draft=4, **keywords, **THREADS) as llm:
        prompt: list[int] = []
        for turn in turns:
            asked = f"<start_of_turn>user\n{turn}<end_of_turn>\n<start_of_turn>model\n"
            prompt += llm.tokenize(asked.encode(), add_bos=not prompt, special=True)
            assert len(prompt) > 512
            drafted = text(llm.generate(prompt, params).rounds())
            assert llm.last_stats.draft_n > 0
            assert llm.last_stats.draft_n_accepted == llm.last_stats.draft_n
            assert drafted == text(llm.generate(prompt, params, draft="off").rounds())
            prompt += drafted
