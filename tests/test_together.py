"""Several generations at once on one engine: each has the text it would have had alone, whatever becomes of others.

Greedy and strict over F32 pairs of every kind of memory, so that whatever a cache holds shows in the text.
"""

from __future__ import annotations

import gc
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from conftest import Pair
from support.serve_support import WAIT_S, until

from specgguf import (
    BackendError,
    BatchResult,
    Busy,
    Cancelled,
    ConfigError,
    ContextFull,
    Generation,
    SamplingParams,
    SpeculativeLlama,
)
from specgguf.decode.drafters import NgramDrafter
from specgguf.native import backend

N_CTX = 256
# Flash attention rounds by the layout of the cache, and so does a half-precision one.
ONE: dict[str, Any] = {"n_threads": 1, "n_threads_batch": 1, "flash_attn": False, "type_k": "f32", "type_v": "f32"}
PROMPTS = [[1, *random.Random(i).choices(range(3, 8), k=4 + 9 * i)] for i in range(8)]
Make = Callable[..., SpeculativeLlama]

MEMORIES = {"plain": "tiny_pair", "hybrid": "tiny_hybrid", "recurrent": "tiny_recurrent", "sliding": "tiny_sliding"}


@pytest.fixture(params=MEMORIES)
def any_pair(request: pytest.FixtureRequest) -> Pair:
    pair: Pair = request.getfixturevalue(MEMORIES[request.param])
    return pair


@pytest.fixture
def opened() -> Iterator[Callable[..., SpeculativeLlama]]:
    """opened(pair, **keywords) -> an engine, closed at the end."""
    made: list[SpeculativeLlama] = []

    def opened(pair: Pair, draft_model: bool | str = True, **keywords: Any) -> SpeculativeLlama:
        keywords = {"n_ctx": N_CTX, "draft": 3, "strict": True, "n_parallel": 3, **ONE, **keywords}
        named = str(pair.draft) if draft_model is True else draft_model or None
        made.append(SpeculativeLlama(str(pair.target), named, **keywords))
        return made[-1]

    yield opened
    for llm in made:
        llm.close()


def wish(n: int = 24, **keywords: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0.0, "ignore_eos": True, "max_tokens": n, **keywords})


def ids(generation: Generation) -> list[int]:
    return [chunk.token for chunk in generation]


def alone(opened: Make, pair: Pair, params: SamplingParams | None = None) -> list[list[int]]:
    """What each prompt is followed by, plain and one after the other."""
    llm = opened(pair, draft_model=False, draft="off", n_parallel=1)
    return [ids(llm.generate(prompt, params or wish())) for prompt in PROMPTS]


def in_turns(generations: list[Generation]) -> list[list[int]]:
    """Read a chunk of each, again and again."""
    found: list[list[int]] = [[] for _ in generations]
    live = list(range(len(generations)))
    while live:
        for i in list(live):
            chunk = next(generations[i], None)
            if chunk is None:
                live.remove(i)
            else:
                found[i].append(chunk.token)
    return found


# --- the texts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["auto", "off", 1, 3])
def test_each_has_the_text_it_has_alone(opened: Make, any_pair: Pair, draft: int | str) -> None:
    llm = opened(any_pair, draft=draft)
    said = in_turns([llm.generate(prompt, wish()) for prompt in PROMPTS[:3]])
    assert said == alone(opened, any_pair)[:3]
    assert max(llm.stats.by_n_sequences) > 1 or not llm._engine.target.rolls_back_freely


def test_drafts_of_different_lengths_beside_each_other(opened: Make, any_pair: Pair) -> None:
    llm = opened(any_pair, n_parallel=4)
    lengths: list[int | str] = [1, "off", 3, "auto"]
    asked = [llm.generate(prompt, wish(), draft=one) for prompt, one in zip(PROMPTS[:4], lengths, strict=True)]
    assert in_turns(asked) == alone(opened, any_pair)[:4]
    assert asked[0].stats.draft_n > 0
    assert asked[1].stats.draft_n == 0


def test_own_settings_and_random_sources(opened: Make, tiny_pair: Pair) -> None:
    """Sampled texts: a seed gives the text that it gives alone, with a fixed draft length."""
    params = [wish(temperature=t, seed=seed, top_k=k) for t, seed, k in [(1.0, 3, 0), (0.7, 4, 3), (1.3, 5, 0)]]
    together, one = opened(tiny_pair), opened(tiny_pair, n_parallel=1)
    said = in_turns([together.generate(p, params[i]) for i, p in enumerate(PROMPTS[:3])])
    assert said == [ids(one.generate(p, params[i])) for i, p in enumerate(PROMPTS[:3])]


def test_calls_of_threads_share_their_passes(opened: Make, tiny_pair: Pair) -> None:
    """Eight calls in eight threads for three places: those beyond wait, and all are answered."""
    llm = opened(tiny_pair)
    with ThreadPoolExecutor(8) as pool:
        said = list(pool.map(lambda prompt: ids(llm.generate(prompt, wish())), PROMPTS))
    assert said == alone(opened, tiny_pair)
    assert not llm._engine._turns.running


def test_a_prompt_is_read_in_pieces_beside_running_answers(opened: Make, any_pair: Pair) -> None:
    llm = opened(any_pair, n_ctx=700, n_batch=64)
    long = [1, *random.Random(5).choices(range(3, 8), k=500)]
    first = llm.generate(PROMPTS[0], wish(200))
    begun = [next(first).token for _ in range(3)]
    second = llm.generate(long, wish(5))
    said = in_turns([first, second])
    plain = opened(any_pair, draft_model=False, n_ctx=700, draft="off", n_parallel=1)
    assert begun + said[0] == ids(plain.generate(PROMPTS[0], wish(200)))
    assert said[1] == ids(plain.generate(long, wish(5)))
    assert second.stats.n_prefilled + second.stats.n_cached == len(long)


def test_a_shared_prefix_is_read_once(opened: Make, tiny_pair: Pair) -> None:
    llm = opened(tiny_pair)
    long = [1, *random.Random(6).choices(range(3, 8), k=100)]
    asked = [llm.generate([*long, i], wish()) for i in (3, 4, 5)]
    first = next(asked[0])
    assert first.token >= 0
    said = in_turns(asked[1:])
    assert [one.stats.n_cached for one in asked[1:]] == [len(long)] * 2
    plain = opened(tiny_pair, draft_model=False, draft="off", n_parallel=1)
    assert said == [ids(plain.generate([*long, i], wish())) for i in (4, 5)]


# --- what becomes of others -----------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["closed", "cancelled", "stopped", "dropped"])
def test_one_that_ends_early_touches_no_other(opened: Make, any_pair: Pair, how: str) -> None:
    llm = opened(any_pair)
    asked: list[Generation] = [llm.generate(prompt, wish()) for prompt in PROMPTS[:3]]
    for one in asked:
        next(one)
    middle = asked.pop(1)
    if how == "closed":
        middle.close()
    elif how == "cancelled":
        middle.cancel()
        with pytest.raises(Cancelled):
            list(middle)
    elif how == "stopped":
        middle.stop()
        assert list(middle)[-1].finish_reason == "length"
    del middle
    gc.collect()
    expected = alone(opened, any_pair)
    assert in_turns(asked) == [expected[0][1:], expected[2][1:]]
    until(lambda: not llm._engine._turns.running, "all places are free")
    assert ids(llm.generate(PROMPTS[1], wish())) == expected[1]


def test_a_pass_that_fails_ends_those_in_it_and_no_later_one(
    opened: Make, tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = opened(tiny_pair)
    asked = [llm.generate(prompt, wish()) for prompt in PROMPTS[:3]]
    for one in asked:
        next(one)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", lambda *_: -3)
        for one in asked:
            with pytest.raises(BackendError):
                list(one)
    assert in_turns([llm.generate(p, wish()) for p in PROMPTS[:3]]) == alone(opened, tiny_pair)[:3]


def test_a_reader_that_stalls_does_not_hold_the_others(opened: Make, tiny_pair: Pair) -> None:
    llm = opened(tiny_pair)
    stalled = llm.generate(PROMPTS[0], wish(200))
    begun = [next(stalled).token for _ in range(2)]
    expected = alone(opened, tiny_pair)
    assert ids(llm.generate(PROMPTS[1], wish())) == expected[1]
    rest = ids(stalled)
    assert (begun + rest)[:24] == expected[0]
    assert len(begun + rest) == 200


# --- places ---------------------------------------------------------------------------------------------------


def test_a_thread_does_not_wait_for_itself(opened: Make, tiny_pair: Pair) -> None:
    """With every place taken by what it left unread, the oldest of those makes way."""
    llm = opened(tiny_pair, n_parallel=2)
    unread = [llm.generate(prompt, wish(100)) for prompt in PROMPTS[:2]]
    for one in unread:
        next(one)
    expected = alone(opened, tiny_pair)
    assert ids(llm.generate(PROMPTS[2], wish())) == expected[2]
    with pytest.raises(Busy, match="took this engine over"):
        list(unread[0])
    assert len(ids(unread[1])) == 99


def test_a_free_place_is_not_taken_from_an_own_one(opened: Make, tiny_pair: Pair) -> None:
    """Another thread asked before and has not taken its place yet: this one waits, and ends nothing of its own."""
    llm = opened(tiny_pair)
    own = llm.generate(PROMPTS[0], wish(100))
    begun = next(own)
    expected = alone(opened, tiny_pair)
    with ThreadPoolExecutor(1) as pool:
        with llm._engine.lock():
            other = pool.submit(lambda: ids(llm.generate(PROMPTS[1], wish())))
            until(lambda: llm._engine._turns.n_asked == 2, "the other one waits")
        assert ids(llm.generate(PROMPTS[2], wish())) == expected[2]
        assert other.result(WAIT_S) == expected[1]
    assert [begun.token, *ids(own)][:24] == expected[0]


def test_a_draft_that_cannot_be_admitted_takes_no_place(
    opened: Make, tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = opened(tiny_pair)
    draft = llm._engine.draft_model
    assert draft is not None

    def failing(*_: Any) -> Any:
        raise BackendError("no cells")

    with monkeypatch.context() as patch:
        patch.setattr(draft.context.pool, "admit", failing)
        for _ in range(5):
            with pytest.raises(BackendError, match="no cells"):
                ids(llm.generate(PROMPTS[0], wish()))
    assert in_turns([llm.generate(p, wish()) for p in PROMPTS[:3]]) == alone(opened, tiny_pair)[:3]


def test_a_cache_that_cannot_be_rolled_back_is_nobody_elses_fault(
    opened: Make, tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = opened(tiny_pair)
    asked = [llm.generate(prompt, wish()) for prompt in PROMPTS[:2]]
    for one in asked:
        next(one)
    run = llm._engine._turns.running[0].run
    assert run is not None
    clear = run.target.clear  # type: ignore[attr-defined]

    def failing(tokens: Any) -> int:
        clear()
        raise BackendError("cleared")

    with monkeypatch.context() as patch:
        patch.setattr(run.target, "reuse", failing)
        llm._engine._turns._leaving.append(llm._engine._turns.running[0])
        assert ids(asked[1]) == alone(opened, tiny_pair)[1][1:]
    assert ids(llm.generate(PROMPTS[0], wish())) == alone(opened, tiny_pair)[0]


def test_a_caller_that_does_not_wait_is_told(opened: Make, tiny_pair: Pair) -> None:
    llm = opened(tiny_pair, n_parallel=2)
    held = [threading.Event() for _ in range(2)]
    begun = [threading.Event() for _ in range(2)]

    def hold(i: int) -> int:
        one = llm.generate(PROMPTS[i], wish(100))
        next(one)
        begun[i].set()
        assert held[i].wait(WAIT_S)
        return len(ids(one)) + 1

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(hold, i) for i in range(2)]
        assert all(one.wait(WAIT_S) for one in begun)
        with pytest.raises(Busy, match="another thread"):
            ids(llm.generate(PROMPTS[2], wish(), timeout=0.01))
        for one in held:
            one.set()
        assert [one.result() for one in both] == [100, 100]
    assert len(ids(llm.generate(PROMPTS[2], wish()))) == 24


def test_one_that_is_stopped_while_it_waits_ends_without_a_text(opened: Make, tiny_pair: Pair) -> None:
    llm = opened(tiny_pair, n_parallel=2)
    held = [llm.generate(prompt, wish(200)) for prompt in PROMPTS[:2]]
    for one in held:
        next(one)
    with ThreadPoolExecutor(1) as pool:
        waiting = llm.generate(PROMPTS[2], wish())
        found = pool.submit(lambda: list(waiting))
        until(lambda: llm._engine._turns.n_asked == 3, "it waits")
        waiting.stop()
        try:
            (last,) = found.result(WAIT_S)
        finally:
            waiting.cancel()  # one that hears no stop would keep its thread waiting
    assert (last.token, last.text, last.finish_reason) == (-1, "", "length")
    assert [len(ids(one)) for one in held] == [199, 199]


def test_who_waits_for_cells_is_admitted_when_they_are_free(opened: Make, tiny_pair: Pair) -> None:
    """Room for two answers of this length, though there are three places: none fails, and all are right."""
    llm = opened(tiny_pair, cache_tokens=200)
    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(lambda prompt: ids(llm.generate(prompt, wish())), PROMPTS[:6]))
    assert said == alone(opened, tiny_pair)[:6]


def test_close_ends_those_that_run_and_those_that_wait(opened: Make, tiny_pair: Pair) -> None:
    llm = opened(tiny_pair, n_parallel=2)
    n_begun = threading.Semaphore(0)

    def call(prompt: list[int]) -> str:
        try:
            for _ in llm.generate(prompt, wish(None)):  # type: ignore[arg-type]
                n_begun.release()
        except (Cancelled, ConfigError) as error:
            return type(error).__name__
        return "ended"

    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(call, prompt) for prompt in PROMPTS[:4]]
        assert n_begun.acquire(timeout=WAIT_S)
        llm.close()
        assert {one.result(WAIT_S) for one in calls} <= {"Cancelled", "ConfigError", "ended"}
    with pytest.raises(ConfigError, match="closed"):
        ids(llm.generate(PROMPTS[0], wish()))


def test_states_and_scores_beside_what_runs(opened: Make, tiny_chat: Pair) -> None:
    llm = opened(tiny_chat, n_ctx=512)
    running = llm.generate(llm.tokenize(b"abc def"), wish(60))
    next(running)
    reply: Any = llm.create_completion("xyz", max_tokens=2, echo=True, logprobs=1, temperature=0.0)
    assert len(reply["choices"][0]["logprobs"]["tokens"]) >= 3
    assert len(ids(running)) == 59
    state = llm.save_state()
    llm.load_state(state)
    assert ids(llm.generate(llm.tokenize(b"abc def"), wish(20)))


@pytest.mark.parametrize("wrong", [0, -1, 65, True, 2.5])
def test_numbers_of_places_that_are_none(tiny_pair: Pair, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="n_parallel"):
        SpeculativeLlama(str(tiny_pair.target), n_parallel=wrong)


def test_random_comings_and_goings(opened: Make, any_pair: Pair) -> None:
    """Begin, read some, stop, drop, in any order: what was read is the beginning of what it is alone."""
    llm = opened(any_pair, n_parallel=4)
    expected = alone(opened, any_pair)
    dice = random.Random(11)
    lengths: list[int | str] = [0, 1, 3, "auto"]
    live: list[tuple[int, list[int], Generation]] = []
    for _ in range(150):
        what = dice.random()
        if what < 0.3 and len(live) < 4:
            which = dice.randrange(len(PROMPTS))
            live.append((which, [], llm.generate(PROMPTS[which], wish(), draft=dice.choice(lengths))))
        elif live:
            which, said, one = dice.choice(live)
            if what < 0.9:
                chunk = next(one, None)
                if chunk is not None:
                    said.append(chunk.token)
            else:
                one.close()
            if what >= 0.9 or chunk is None:
                live = [entry for entry in live if entry[2] is not one]
            assert said == expected[which][: len(said)]


# --- many prompts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_order", [False, True])
def test_a_batch_of_prompts(opened: Make, any_pair: Pair, in_order: bool) -> None:
    llm = opened(any_pair)
    expected = alone(opened, any_pair)
    told: list[int] = []
    params = [wish(24 - 2 * i) for i in range(8)]
    found = list(llm.generate_batch(PROMPTS, params, in_order=in_order, progress=lambda p: told.append(p.n_done)))
    assert {one.index: one.tokens for one in found} == {i: expected[i][: 24 - 2 * i] for i in range(8)}
    assert [one.prompt for one in sorted(found, key=lambda one: one.index)] == PROMPTS
    if in_order:
        assert [one.index for one in found] == list(range(8))
    assert told[-1] == 8
    assert told == sorted(told)


def test_a_prompt_that_cannot_be_answered_is_one_result(opened: Make, tiny_pair: Pair) -> None:
    llm = opened(tiny_pair)
    prompts = [PROMPTS[0], [1] * 400, [1, 99], PROMPTS[1]]
    found: list[BatchResult] = list(llm.generate_batch(prompts, wish(), in_order=True))
    assert [type(one.error) for one in found] == [type(None), ContextFull, ConfigError, type(None)]
    expected = alone(opened, tiny_pair)
    assert [found[0].tokens, found[3].tokens] == expected[:2]


def test_a_batch_in_little_cache(opened: Make, tiny_pair: Pair) -> None:
    llm = opened(tiny_pair, cache_tokens=150)
    found = list(llm.generate_batch(PROMPTS, wish(), in_order=True))
    assert [one.tokens for one in found] == alone(opened, tiny_pair)


def test_a_batch_that_is_left_early_frees_its_places(opened: Make, tiny_pair: Pair) -> None:
    llm = opened(tiny_pair)
    results = llm.generate_batch(iter(PROMPTS), wish())
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert not llm._engine._turns.running


def test_as_many_params_as_prompts(opened: Make, tiny_pair: Pair) -> None:
    with pytest.raises(ConfigError, match="2 prompts and 3 params"):
        opened(tiny_pair).generate_batch(PROMPTS[:2], [wish()] * 3)


def test_each_text_has_an_index_of_its_own(opened: Make, tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for all would be made again at every change of text."""
    read: dict[int, list[list[int]]] = {}
    candidate = NgramDrafter.candidate

    def noted(drafter: NgramDrafter, committed: Sequence[int]) -> Any:
        read.setdefault(id(drafter), []).append(list(committed))
        return candidate(drafter, committed)

    monkeypatch.setattr(NgramDrafter, "candidate", noted)
    llm = opened(tiny_pair, draft_model="ngram")
    list(llm.generate_batch(PROMPTS[:3], wish()))
    assert len(read) == 3
    for texts in read.values():
        assert all(text[: len(before)] == before for before, text in itertools.pairwise(texts))
