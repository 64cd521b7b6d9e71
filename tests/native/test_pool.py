"""Cells are promised before they are used: a running request never finds the cache full, and idle prompts are kept."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support.contexts import MEMORIES, Shared, shared_as

from specgguf.errors import ContextFull
from specgguf.native.pool import Pool
from specgguf.native.sequence import Part, Sequence

N = 4  # sequences
CELLS = 511  # of a context of 512, one of which is for a single token's dummy


@pytest.fixture(scope="module")
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    shared = shared_as("plain", request, N)
    yield shared
    shared.close()


@pytest.fixture
def pool(shared: Shared) -> Pool:
    for sequence in shared.context.sequences:
        sequence.clear()
        sequence.n_reserved = sequence.last_used = 0
    return shared.context.pool


def prompt(*marks: int, n: int = 40) -> list[int]:
    """A text of n tokens that begins with the same tokens as every other with the same first marks."""
    text: list[int] = []
    for mark in marks:
        text += random.Random(mark).choices(range(3, 8), k=n)
    return text


def admitted(pool: Pool, tokens: list[int], n: int) -> Sequence:
    sequence = pool.admit(tokens, n)
    assert sequence is not None
    return sequence


def read(shared: Shared, sequence: Sequence, text: list[int]) -> None:
    shared.decode([Part(sequence, text[len(sequence.tokens) :], 1)])
    assert sequence.tokens == text


def test_what_is_promised_is_there(pool: Pool) -> None:
    a = admitted(pool, prompt(1), 300)
    assert pool.n_free == CELLS - 300
    assert pool.admit(prompt(2), CELLS - 299) is None
    b = admitted(pool, prompt(2), CELLS - 300)
    assert a is not b
    assert pool.n_free == 0
    assert pool.admit(prompt(3), 1) is None
    pool.release(a)
    assert pool.n_free == 300


def test_as_many_at_once_as_there_are_sequences(pool: Pool) -> None:
    taken = [admitted(pool, prompt(i), 10) for i in range(N)]
    assert len({s.id for s in taken}) == N
    assert pool.admit(prompt(9), 10) is None
    pool.release(taken[2])
    assert pool.admit(prompt(9), 10) is taken[2]


def test_what_can_never_fit_is_said(pool: Pool) -> None:
    with pytest.raises(ContextFull, match=f"512 tokens do not fit into a context of {CELLS}"):
        pool.admit(prompt(1), CELLS + 1)


def test_a_conversation_is_continued_where_it_is(pool: Pool, shared: Shared) -> None:
    first, second = (admitted(pool, prompt(i), 100) for i in (1, 2))
    read(shared, first, prompt(1))
    read(shared, second, prompt(2))
    pool.release(first)
    pool.release(second)
    again = admitted(pool, prompt(1, 5), 200)
    assert again is first
    assert again.tokens == prompt(1)
    assert second.tokens == prompt(2)
    read(shared, again, prompt(1, 5))


def test_a_shared_beginning_is_copied_and_nobody_loses_anything(pool: Pool, shared: Shared) -> None:
    """From an idle conversation that goes on differently, and from a running one."""
    idle, running = admitted(pool, prompt(1, 2), 100), admitted(pool, prompt(3, 4), 100)
    read(shared, idle, prompt(1, 2))
    read(shared, running, prompt(3, 4))
    pool.release(idle)
    for source, text in ((idle, prompt(1, 9)), (running, prompt(3, 9))):
        copy = admitted(pool, text, 100)
        assert copy not in (idle, running)
        n = len(copy.tokens)
        assert 40 <= n < 50
        assert copy.tokens == text[:n] == source.tokens[:n]
        read(shared, copy, text)
    assert (idle.tokens, running.tokens) == (prompt(1, 2), prompt(3, 4))
    shared.check(running)


def test_what_two_running_ones_share_is_promised_once(pool: Pool, shared: Shared) -> None:
    text = prompt(1, n=240)
    first = admitted(pool, text, 290)
    read(shared, first, text)
    second = admitted(pool, text, 290)
    assert second.tokens == text
    assert pool.n_free == CELLS - 240 - 50 - 50
    for sequence in (first, second):
        shared.decode([Part(sequence, prompt(sequence.id, n=50), 1)])
    pool.release(first)
    assert pool.n_free == CELLS - 290


def test_the_least_recently_used_is_emptied_first_and_only_when_needed(pool: Pool, shared: Shared) -> None:
    taken = [admitted(pool, prompt(i, n=100), 120) for i in range(N)]
    for i in (2, 0, 3, 1):
        read(shared, taken[i], prompt(i, n=100))
        pool.release(taken[i])
    pool.release(admitted(pool, prompt(2, n=100), 120))  # used again
    fresh = admitted(pool, prompt(7, n=250), 270)
    held = [s for s in taken if s is not fresh and s.tokens]
    assert len(held) == 3, "nothing is taken before it is needed"
    read(shared, fresh, prompt(7, n=250))
    held = [s for s in taken if s is not fresh and s.tokens]
    assert held == [taken[1], taken[2]]
    assert pool.n_held == 450


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_full_pool_never_fails_a_running_request(memory: str, request: pytest.FixtureRequest) -> None:
    """Requests that come, read, write all that they were promised and go, at random: every one that was admitted
    ends, and every row is right."""
    shared, choose = shared_as(memory, request, N, n_ctx=256), random.Random(3)
    pool = shared.context.pool
    for sequence in shared.context.sequences:
        sequence.n_reserved = 0
    running: dict[int, list[int]] = {}
    n_done = n_waited = n_reused = 0
    while n_done < 25:
        text = prompt(choose.randint(1, 3), choose.randint(4, 9), n=choose.choice([12, 30, 45]))
        n = len(text) + choose.choice([8, 30, 60])
        new = pool.admit(text[:-1], n)
        if new is not None:
            n_reused += len(new.tokens)
            running[new.id] = text
        else:
            n_waited += 1
        parts = []
        for sequence in choose.sample(shared.context.sequences, N):
            if sequence.id in running:
                at = len(sequence.tokens)
                rest = running[sequence.id][at : at + 40] or choose.choices(range(3, 8), k=choose.randint(1, 4))
                parts.append(Part(sequence, rest[: sequence.n_reserved - at], 1))
        shared.decode(parts)
        for sequence in shared.context.sequences:
            if len(sequence.tokens) == sequence.n_reserved > 0:
                pool.release(sequence)
                del running[sequence.id]
                n_done += 1
    assert n_waited > 0
    assert n_reused > 0 or not shared.context.sequences[0].rolls_back_freely
    shared.close()
