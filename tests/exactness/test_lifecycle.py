"""A drafting engine lives like one that does not draft: over turns, ends, failures and interruptions.

S is a run with drafting, P the same engine with drafting off. Strict mode and F32 files make rows of every
width bit-identical, so S equals P token for token at temperature 0, and every difference is a bug. Each kind
here was reported against some program of this sort.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from conftest import Pair

from specgguf import Busy, Cancelled, ConfigError, ContextFull, SamplingParams, SpeculativeLlama, backend
from specgguf.errors import BackendError
from specgguf.sampling import Rng

KEYWORDS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "n_batch": 48, "strict": True}
PROMPTS = [f"a {word} in python" for word in "list word value token number the and of is return".split()]
GREEDY = SamplingParams(temperature=0.0, max_tokens=40)
WARM = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=40, seed=7)


def engine(pair: Pair, **keywords: Any) -> SpeculativeLlama:
    return SpeculativeLlama(str(pair.target), str(pair.draft), **{**KEYWORDS, "draft": 4, **keywords})


@pytest.fixture(scope="module")
def llm(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    with engine(tiny_chat) as llm:
        yield llm


def ids(llm: SpeculativeLlama, text: str) -> list[int]:
    return llm.tokenize(text.encode())


def run(
    llm: SpeculativeLlama, prompt: Sequence[int], params: SamplingParams = GREEDY, **keywords: Any
) -> tuple[list[int], str | None]:
    """(tokens, finish reason)."""
    out: list[int] = []
    reason = None
    for round in llm.generate(prompt, params, **keywords):
        out.extend(round.tokens)
        reason = round.finish_reason
    check_caches(llm, [*prompt, *out])
    return out, reason


def complete(llm: SpeculativeLlama, prompt: str, **keywords: Any) -> Any:
    """A greedy completion of at most 40 tokens, unless told otherwise."""
    return llm.create_completion(prompt, **{"temperature": 0.0, "max_tokens": 40, **keywords})


def check_caches(llm: SpeculativeLlama, committed: Sequence[int]) -> None:
    """Both caches hold a prefix of what was committed, and llama.cpp agrees about where they end."""
    for model in (llm._engine.target, llm._engine.draft_model):
        assert model is not None
        assert model.tokens == list(committed[: len(model.tokens)])
        assert backend.pos_max(model._ctx) == len(model.tokens) - 1


def eos_likely(llm: SpeculativeLlama) -> dict[int, float]:
    """A bias under which texts end after a few tokens."""
    return dict.fromkeys(llm._engine.target.eog, 4.5)


# --- accepted text ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_texts_are_equal(llm: SpeculativeLlama, k: int) -> None:
    accepted = 0
    for prompt in PROMPTS:
        assert run(llm, ids(llm, prompt), draft=k) == run(llm, ids(llm, prompt), draft="off")
        accepted += llm.stats.draft_n_accepted
    assert accepted > 0


def test_penalties_hold_for_every_token_of_a_block(llm: SpeculativeLlama) -> None:
    """Temperature 0, repeat_penalty 1.3, ten prompts; a shorter window and the other penalties too."""
    for i, prompt in enumerate(PROMPTS):
        params = SamplingParams(
            temperature=0.0,
            max_tokens=40,
            repeat_penalty=1.3,
            frequency_penalty=0.2 * (i % 3),
            penalty_last_n=64 if i % 2 else 5,
        )
        assert run(llm, ids(llm, prompt), params, draft=4) == run(llm, ids(llm, prompt), params, draft="off")


def test_an_end_of_generation_inside_a_block_is_the_end(llm: SpeculativeLlama) -> None:
    """And the next turn, which goes on after it, equals P's."""
    params = SamplingParams(temperature=0.0, max_tokens=60, logit_bias=eos_likely(llm))
    ends = 0
    for prompt in PROMPTS:
        drafted, plain = (run(llm, ids(llm, prompt), params, draft=draft) for draft in (5, "off"))
        assert drafted == plain
        out, reason = drafted
        ends += reason == "eos" and len(out) > 1
        assert sum(token in llm._engine.target.eog for token in out) == (reason == "eos")
        following = [*ids(llm, prompt), *out, *ids(llm, "\nnext ")]
        assert run(llm, following, draft=5) == run(llm, following, draft="off")
    assert ends >= 3


def test_a_stop_string_is_never_shown_and_nothing_follows_it(llm: SpeculativeLlama) -> None:
    """Whole runs of pieces as stop strings, so that they span tokens and lie inside blocks."""
    for prompt in PROMPTS[:5]:
        whole = complete(llm, prompt, draft="off")["choices"][0]["text"]
        for stop in (whole[5:8], whole[10:16], whole[-4:]):
            at = whole.find(stop)
            for draft in (5, "off"):
                answer = complete(llm, prompt, stop=[stop], draft=draft)
                assert answer["choices"][0]["text"] == whole[:at]
                assert answer["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("n", range(1, 13))
def test_max_tokens_is_delivered_to_the_token(llm: SpeculativeLlama, n: int) -> None:
    """delivered == usage.completion_tokens == requested, with K = 5."""
    params: dict[str, Any] = {"temperature": 1.0, "max_tokens": n, "draft": 5, "seed": n, "ignore_eos": True}
    usage = complete(llm, PROMPTS[0], **params)["usage"]
    chunks = list(complete(llm, PROMPTS[0], stream=True, **params))
    assert usage["completion_tokens"] == n
    assert usage["total_tokens"] == usage["prompt_tokens"] + n
    assert len([c for c in chunks if c["choices"][0]["finish_reason"] is None]) in (n, n - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_statistics_count_what_they_say(llm: SpeculativeLlama) -> None:
    """Drafted, reached, accepted by position, also where a block is cut by the end of the text."""
    params = SamplingParams(temperature=1.0, max_tokens=50, seed=3, logit_bias=eos_likely(llm))
    n_cut = 0
    for prompt in PROMPTS:
        rounds = list(llm.generate(ids(llm, prompt), params, draft=5))
        last = llm.last
        assert last.draft_n == sum(r.draft_n for r in rounds) == sum(last.drafted_by_position)
        assert last.draft_n_accepted == sum(r.draft_n_accepted for r in rounds) == sum(last.accepted_by_position)
        assert last.n_generated == sum(len(r.tokens) for r in rounds)
        assert last.n_from_draft == sum(r.n_from_draft for r in rounds) <= last.draft_n_accepted
        by_position = zip(last.drafted_by_position, last.reached_by_position, last.accepted_by_position, strict=True)
        for i, (drafted, reached, accepted) in enumerate(by_position):
            assert drafted == sum(r.draft_n > i for r in rounds)
            assert reached == sum(r.draft_n > i and r.draft_n_accepted >= i for r in rounds)
            assert accepted == sum(r.draft_n_accepted > i for r in rounds)
        n_cut += rounds[-1].n_from_draft < rounds[-1].draft_n_accepted
        timings = last.timings()
        assert (timings["draft_n"], timings["draft_n_accepted"]) == (last.draft_n, last.draft_n_accepted)
    assert last.draft_n > 0


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.01, 2.0])
def test_no_temperature_is_a_cliff(llm: SpeculativeLlama, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=60, seed=1, ignore_eos=True)
    out, reason = run(llm, ids(llm, PROMPTS[1]), params, draft=5)
    assert (len(out), reason) == (60, "length")
    if temperature <= 1e-6:
        assert out == run(llm, ids(llm, PROMPTS[1]), SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))[0]


def test_a_law_that_sums_to_almost_one_draws_a_valid_token() -> None:
    probs = np.full(10, 0.1 * (1.0 - 1e-7))
    rng = Rng(0)
    seen = {rng.categorical(probs) for _ in range(500)}
    assert seen == set(range(10))


@pytest.mark.parametrize("n_prompt", [500, 1500, 3000])
def test_acceptance_does_not_depend_on_the_context_length(tiny_chat: Pair, n_prompt: int) -> None:
    """A self-draft accepts everything at every length, also past the chunks of a long prompt."""
    same = Pair(tiny_chat.target, tiny_chat.target)
    with engine(same, n_ctx=4096, n_batch=512, flash_attn=False, draft_flash_attn=False) as llm:
        prompt = (ids(llm, "the value of the list is a word ") * n_prompt)[:n_prompt]
        params = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=40, ignore_eos=True)
        run(llm, prompt, params, draft=5)
        assert llm.last.draft_n > 20
        assert llm.last.draft_n_accepted == llm.last.draft_n


# --- lifecycle ----------------------------------------------------------------------------------------------


def test_the_end_of_the_context(llm: SpeculativeLlama) -> None:
    """The last token that fits, whatever is drafted; then "length", and the engine goes on."""
    base = ids(llm, "the word list ") * 40
    for room in (1, 2, 3, 7):
        prompt = base[: llm.n_ctx() - room]
        params = SamplingParams(temperature=0.0, ignore_eos=True)
        out, reason = run(llm, prompt, params, draft=5)
        assert (len(out), reason) == (room, "length")
        assert out == run(llm, prompt, params, draft="off")[0]
    with pytest.raises(ContextFull):
        llm.generate(base[: llm.n_ctx()], GREEDY)


def test_a_smaller_context_for_the_draft(tiny_chat: Pair) -> None:
    """Where the draft's context ends, drafting does, and nothing else."""
    with engine(tiny_chat, draft_n_ctx=64) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=90, ignore_eos=True)
        for prompt in PROMPTS[:3]:
            drafted = run(llm, ids(llm, prompt), params, draft=5)
            assert llm.last.draft_n > 0
            assert drafted == run(llm, ids(llm, prompt), params, draft="off")


@pytest.mark.parametrize("n", [1, 47, 48, 49, 95, 96, 97, 254])
def test_prompt_lengths_around_the_batch(tiny_chat: Pair, llm: SpeculativeLlama, n: int) -> None:
    """n_batch is 48 here and n_ctx 255; a cold engine and a warm one, drafting and not."""
    prompt = (ids(llm, "a token in the list ") * 60)[:n]
    wanted = run(llm, prompt, draft="off")
    llm.reset()
    assert run(llm, prompt, draft=5) == wanted
    assert run(llm, prompt, draft=5) == wanted


def test_an_empty_prompt_explains(llm: SpeculativeLlama) -> None:
    with pytest.raises(ConfigError, match="empty"):
        llm.generate([], GREEDY)


def test_long_short_long(tiny_chat: Pair, llm: SpeculativeLlama) -> None:
    """One engine over unlike prompts equals a fresh engine for each; acceptance too."""
    long, short = ids(llm, "the number of words in the list " * 5), ids(llm, "a")
    for prompt in (long, short, long, long[:20], long):
        got = run(llm, prompt, WARM, draft=4)
        accepted = llm.last.draft_n_accepted
        with engine(tiny_chat) as fresh:
            assert run(fresh, prompt, WARM, draft=4) == got
            assert fresh.last.draft_n_accepted == accepted


def test_retry_and_undo(tiny_chat: Pair, llm: SpeculativeLlama) -> None:
    """Twenty times back and forth through a conversation: every answer equals a fresh run on its history."""
    known: dict[tuple[int, ...], Any] = {}
    with engine(tiny_chat) as fresh:
        history = [ids(llm, "user one\n")]
        for step in range(20):
            prompt = [t for part in history for t in part]
            got = run(llm, prompt, draft=3 if step % 2 else 5)
            if tuple(prompt) not in known:
                fresh.reset()
                known[tuple(prompt)] = run(fresh, prompt, draft="off")
            assert got == known[tuple(prompt)], step
            if step % 5 == 4:
                del history[-2:]  # undo
            elif step % 3 != 2:  # else: retry
                history += [got[0][:12], ids(llm, f"user {step}\n")]
            history = history or [ids(llm, "user again\n")]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[int]]:
    """failing(n, code): the n-th decode from now on returns `code` instead of decoding."""

    def fail(n: int, code: int, act: Callable[[], None] = lambda: None) -> list[int]:
        calls: list[int] = []
        real = backend.decode

        def decode(ctx: Any, batch: Any) -> int:
            calls.append(int(batch.raw.n_tokens))
            if len(calls) == n:
                act()
                return code
            return real(ctx, batch)

        monkeypatch.setattr(backend, "decode", decode)
        return calls

    return fail


@pytest.mark.parametrize("code", [1, -1, -3])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
def test_a_decode_that_fails_once(
    tiny_chat: Pair, llm: SpeculativeLlama, failing: Callable[..., list[int]], monkeypatch: Any, n: int, code: int
) -> None:
    """A clear error, or a plain retry; the invariants hold, and the next generation is right."""
    prompt = ids(llm, PROMPTS[2])
    wanted = run(llm, prompt, draft="off")
    llm.reset()
    failing(n, code)
    committed = list(prompt)
    with contextlib.suppress(BackendError):
        for round in llm.generate(prompt, GREEDY, draft=4):
            committed.extend(round.tokens)
    monkeypatch.undo()
    check_caches(llm, committed)
    assert run(llm, prompt, draft=4) == wanted


@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_cancelling(llm: SpeculativeLlama, failing: Callable[..., list[int]], monkeypatch: Any, n: int) -> None:
    """In a prefill and in mid-round: what was yielded stands, and the next turn equals a fresh run."""
    prompt = ids(llm, "the value of the list is a number " * 4)
    following = [*prompt[:60], *ids(llm, " and on")]
    llm.reset()
    wanted = run(llm, following, draft="off")
    llm.reset()
    committed = list(prompt)
    failing(n, 2, llm.cancel)  # llama.cpp's code for an aborted decode
    with pytest.raises(Cancelled):
        committed.extend(t for round in llm.generate(prompt, GREEDY, draft=4) for t in round.tokens)
    monkeypatch.undo()
    assert run(llm, following, draft=4) == wanted


def test_a_generator_closed_early_and_one_taken_over(llm: SpeculativeLlama) -> None:
    prompt = ids(llm, PROMPTS[3])
    wanted = run(llm, prompt, draft="off")
    first = llm.generate(prompt, GREEDY, draft=4)
    next(first)
    first.close()  # type: ignore[attr-defined]
    assert run(llm, prompt, draft=4) == wanted
    older = llm.generate(prompt, GREEDY, draft=4)
    next(older)
    assert run(llm, prompt, draft=4) == wanted
    with pytest.raises(Busy, match="took this engine over"):
        next(older)
    assert run(llm, prompt, draft=4) == wanted


# --- seeds --------------------------------------------------------------------------------------------------


def test_seeds(llm: SpeculativeLlama) -> None:
    """0 and 1 are repeatable and unlike; without a seed runs differ (of 60 tokens with entropy above 1)."""
    prompt = ids(llm, PROMPTS[4])

    def text(seed: int | None, draft: int | str) -> list[int]:
        params = SamplingParams(temperature=1.5, max_tokens=60, seed=seed, ignore_eos=True)
        return run(llm, prompt, params, draft=draft)[0]

    for draft in (3, "off"):
        llm.reset()
        zero = text(0, draft)
        assert text(0, draft) == zero
        assert text(1, draft) == text(1, draft) != zero
        assert text(None, draft) != text(None, draft)


def test_a_seed_is_repeatable_in_another_process(tiny_chat: Pair) -> None:
    code = """
import sys
from specgguf import SamplingParams, SpeculativeLlama
with SpeculativeLlama(sys.argv[1], sys.argv[2], n_ctx=256, n_threads=1, n_threads_batch=1, draft=4) as llm:
    params = SamplingParams(temperature=1.0, max_tokens=40, seed=0)
    print([t for r in llm.generate(llm.tokenize(b"a list"), params) for t in r.tokens], llm.last.draft_n > 0)
"""
    runs = [
        subprocess.run(
            [sys.executable, "-P", "-c", code, str(tiny_chat.target), str(tiny_chat.draft)],
            capture_output=True,
            text=True,
            check=True,
        )
        for _ in range(2)
    ]
    assert runs[0].stdout == runs[1].stdout
    assert runs[0].stdout.endswith("True\n")
    assert [r.stderr for r in runs] == ["", ""]
