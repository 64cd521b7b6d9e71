"""Several sequences in one context: each is what it would be alone, whatever its neighbours go through.

The yardstick is a context of one sequence over the same file that reads each text from the start.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from support.contexts import MEMORIES, TEXT, WRONG, Shared, shared_as

from specgguf.errors import BackendError, Cancelled, ContextFull, SpecggufError
from specgguf.native import backend, rollback
from specgguf.native.context import Context
from specgguf.native.sequence import Part

N = 3  # sequences


@pytest.fixture(scope="module", params=MEMORIES)
def any_memory(request: pytest.FixtureRequest) -> Iterator[Shared]:
    shared = shared_as(request.param, request, N)
    yield shared
    shared.close()


@pytest.fixture(scope="module")
def dense(request: pytest.FixtureRequest) -> Iterator[Shared]:
    shared = shared_as("plain", request, N)
    yield shared
    shared.close()


@pytest.fixture(autouse=True)
def _emptied(request: pytest.FixtureRequest) -> None:
    """Contexts are shared within this module; each test begins with empty sequences that may hold a third each."""
    for name in {"any_memory", "dense"} & set(request.fixturenames):
        request.getfixturevalue(name).empty()


def texts(seed: int) -> list[list[int]]:
    choose = random.Random(seed)
    return [choose.choices(range(3, 8), k=120) for _ in range(N)]


# --- passes -----------------------------------------------------------------------------------------------


def test_ragged_passes_are_each_sequence_alone(any_memory: Shared) -> None:
    """Prompts of several lengths, then passes over any set of sequences, in any order, with any number of rows."""
    context, text, choose = any_memory.context, texts(1), random.Random(1)
    any_memory.decode([Part(s, text[s.id][: 5 + 9 * s.id], 1) for s in context.sequences])
    for _ in range(12):
        parts = []
        for sequence in choose.sample(context.sequences, choose.randint(1, N)):
            n, at = choose.choice([1, 1, 2, 4, 6]), len(sequence.tokens)
            parts.append(Part(sequence, text[sequence.id][at : at + n], choose.randint(0, n)))
        any_memory.decode(parts)
    for sequence in context.sequences:
        assert sequence.tokens == text[sequence.id][: len(sequence.tokens)]
        any_memory.check(sequence)


def test_plain_caches_read_any_set_in_one_native_pass(dense: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch)
    dense.context.decode([Part(s, TEXT[: 1 + 3 * s.id], 1) for s in dense.context.sequences])
    assert calls == [1 + 4 + 7]


@pytest.mark.parametrize("memory", ["native", "recurrent"])
def test_recurrent_states_go_together_where_they_read_as_many(
    memory: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = shared_as(memory, request, N)
    calls = counted(monkeypatch)
    a, b, c = shared.context.sequences
    shared.context.decode([Part(a, TEXT[:4], 1), Part(b, TEXT[:2], 2), Part(c, TEXT[2:6], 4)])
    assert calls == [2, 8]
    shared.close()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each native pass from now on."""
    decode, calls = backend.decode, list[int]()

    def counting(ctx: Any, batch: backend.Batch) -> int:
        calls.append(batch.raw.n_tokens)
        return decode(ctx, batch)

    monkeypatch.setattr(backend, "decode", counting)
    return calls


@pytest.mark.parametrize("n_outputs", [1, 6])
def test_more_than_one_pass_holds_keeps_every_row(any_memory: Shared, n_outputs: int) -> None:
    """Prompts longer than a batch beside short parts, and more rows than one pass may have."""
    context, text = any_memory.context, texts(2)
    any_memory.decode([Part(s, text[s.id][: (70, 6, 33)[s.id]], n_outputs) for s in context.sequences])
    for sequence in context.sequences:
        any_memory.check(sequence)


def test_padded_passes_leave_nothing_behind(dense: Shared) -> None:
    a, b, _ = dense.context.sequences
    for at in range(0, 30, 3):
        dense.decode([Part(a, TEXT[at : at + 3], 2, 2), Part(b, TEXT[at + 1 : at + 2], 1, 3)])
    assert len(a.tokens) == 30
    dense.check(a)
    dense.check(b)


def test_what_is_not_promised_is_refused_and_changes_nothing(dense: Shared) -> None:
    a, b, _ = dense.context.sequences
    dense.decode([Part(a, TEXT[:90], 1), Part(b, TEXT[:10], 1)])
    with pytest.raises(ContextFull, match="101 tokens do not fit into a context of 100"):
        dense.context.decode([Part(b, [5], 1), Part(a, TEXT[:11], 1)])
    assert (len(a.tokens), len(b.tokens)) == (90, 10)
    dense.check(b)


# --- rolling back, copying ----------------------------------------------------------------------------------


def test_a_roll_back_is_of_one_sequence(any_memory: Shared) -> None:
    context, text = any_memory.context, texts(3)
    any_memory.decode([Part(s, text[s.id][:20], 0) for s in context.sequences])
    for sequence in context.sequences:
        sequence.mark(4)
    any_memory.decode([Part(s, text[s.id][20:25], 5) for s in context.sequences])
    for sequence, n in zip(context.sequences, (25, 22, 21), strict=True):
        kept = sequence.roll_back(n)
        assert 20 <= kept <= n
    for sequence in context.sequences:
        any_memory.check(sequence)


def test_a_copied_prefix_is_as_if_read(any_memory: Shared) -> None:
    """All of a sequence everywhere; a part of it where the cache is plain; and each goes on by itself."""
    a, b, c = any_memory.context.sequences
    any_memory.decode([Part(a, TEXT[:40], 1)])
    assert b.copy(a, 40) == 40
    assert c.copy(a, 30) == (30 if a.rolls_back_freely else 0)
    any_memory.decode([Part(b, [3, 4, 3], 1), Part(a, [5, 5, 6], 3), Part(c, [7, 7, 4], 2)])
    a.clear()
    any_memory.check(b)
    any_memory.check(c)


def test_shared_cells_are_counted_once(dense: Shared) -> None:
    a, b, c = dense.context.sequences
    pool = dense.context.pool
    dense.decode([Part(a, TEXT[:40], 1)])
    b.copy(a, 30)
    c.copy(a, 20)
    assert pool.n_held == 40
    dense.decode([Part(b, [3] * 5, 1), Part(c, [4] * 5, 1)])
    assert pool.n_held == 50
    a.clear()
    assert pool.n_held == 40, "what the others share stays"
    b.roll_back(25)
    assert pool.n_held == 25 + 5
    c.clear()
    assert pool.n_held == 25


def cut_after_neighbours(shared: Shared, n: int) -> int:
    """How much sequence 0 keeps of 90 tokens when cut to `n` after neighbours came and went; what it keeps is right."""
    a, b, c = shared.context.sequences
    shared.empty()
    shared.decode([Part(a, TEXT[:90], 1)])
    for _ in range(3):
        for sequence in (b, c):
            sequence.clear()
            sequence.n_reserved = 200
            shared.context.decode([Part(sequence, TEXT[100:300], 1)])
    kept = a.roll_back(n)
    shared.check(a)
    return kept


@pytest.fixture(params=["sliding", "sliding-small"])
def sliding(request: pytest.FixtureRequest) -> Iterator[Shared]:
    shared = shared_as(request.param, request, N)
    yield shared
    shared.close()


def test_a_window_that_neighbours_took_cells_of_is_not_believed(sliding: Shared) -> None:
    kept = {n: cut_after_neighbours(sliding, n) for n in (4, 20, 50, 80, 89)}
    assert all(kept[n] in (0, n) for n in kept)
    if sliding.context.weights.keywords.get("swa_full", True):
        assert all(kept.values()), "there were cells enough"


def test_believing_every_window_is_seen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = shared_as("sliding-small", request, N)
    monkeypatch.setattr(rollback.Window, "is_whole", lambda window, ctx, seq, n: True)
    with pytest.raises((AssertionError, BackendError)):
        cut_after_neighbours(shared, 50)
    shared.close()


# --- random operations --------------------------------------------------------------------------------------


class Play:
    """Random operations over the sequences of one context; after each, what is held is a prefix of what was read."""

    def __init__(self, shared: Shared, seed: int) -> None:
        self.shared, self.choose = shared, random.Random(seed)
        self.sequences = shared.context.sequences
        self.read: list[list[int]] = [[] for _ in self.sequences]

    def tokens(self, n: int) -> list[int]:
        return self.choose.choices(range(3, 8), k=n)

    def decode(self) -> None:
        parts = []
        for sequence in self.choose.sample(self.sequences, self.choose.randint(1, N)):
            n = self.choose.choice([1, 1, 2, 3, 5, 8, 40])
            if len(sequence.tokens) + n < sequence.n_reserved:
                parts.append(Part(sequence, self.tokens(n), self.choose.randint(0, min(n, 5))))
        for sequence, tokens, _, _ in parts:
            self.read[sequence.id] = [*sequence.tokens, *tokens]
        self.shared.decode(parts)

    def fail(self) -> None:
        code, really = self.choose.choice([(1, False), (-1, False), (2, False), (2, True), (-3, True)])
        with pytest.MonkeyPatch.context() as patch:
            failing(patch, code, really=really)
            with contextlib.suppress(BackendError, Cancelled):
                self.decode()

    def roll_back(self) -> None:
        sequence = self.choose.choice(self.sequences)
        n = max(len(sequence.tokens) - self.choose.choice([1, 2, 4, 7, 30]), 0)
        assert sequence.roll_back(n) <= n

    def mark(self) -> None:
        self.choose.choice(self.sequences).mark(self.choose.choice([0, 2, 6]), pin=self.choose.random() < 0.3)

    def reuse(self) -> None:
        sequence = self.choose.choice(self.sequences)
        n = self.choose.randint(0, len(sequence.tokens))
        assert sequence.reuse([*sequence.tokens[:n], 2, 2]) <= n

    def copy(self) -> None:
        source, target = self.choose.sample(self.sequences, 2)
        n = self.choose.choice([len(source.tokens), len(source.tokens) // 2])
        n_reserved = [s.n_reserved for s in self.sequences]
        assert target.copy(source, n) in (0, n)
        for sequence, reserved in zip(self.sequences, n_reserved, strict=True):
            sequence.n_reserved = reserved
        self.read[target.id] = list(source.tokens)

    def clear(self) -> None:
        self.choose.choice(self.sequences).clear()

    def run(self, n: int) -> None:
        operations: list[Callable[[], None]] = [self.decode, self.roll_back, self.mark, self.reuse, self.copy]
        for _ in range(n):
            self.choose.choice([*operations, self.decode, self.decode, self.fail, self.clear])()
            for sequence in self.sequences:
                sequence.n_reserved = 100
                assert sequence.tokens == self.read[sequence.id][: len(sequence.tokens)]
                if not sequence.in_doubt:
                    last = backend.pos_max(self.shared.context.handle, sequence.id)
                    assert last == len(sequence.tokens) - 1
        for sequence in self.sequences:
            if len(sequence.tokens) < sequence.n_reserved - 2:
                self.shared.check(sequence)


@pytest.mark.parametrize("seed", range(3))
def test_random_operations_leave_what_fresh_contexts_hold(any_memory: Shared, seed: int) -> None:
    Play(any_memory, seed).run(60)


# --- failing ------------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, code: int, *, really: bool, after: int = 0) -> None:
    """llama_decode returns `code` once, after `after` good calls; `really`: having decoded all the same."""
    decode, calls = backend.decode, 0

    def wrong(ctx: Any, batch: backend.Batch) -> int:
        nonlocal calls
        calls += 1
        if calls - 1 != after:
            return decode(ctx, batch)
        if really:
            decode(ctx, batch)
        return code

    monkeypatch.setattr(backend, "decode", wrong)


@pytest.mark.parametrize(
    ("code", "really", "error"),
    [(1, False, BackendError), (-1, False, BackendError), (2, False, Cancelled), (2, True, Cancelled)],
)
def test_a_pass_that_fails_leaves_every_sequence_a_prefix(
    any_memory: Shared, code: int, really: bool, error: type[SpecggufError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neighbours that were in the pass, and the one that was not. (A mark within the reach
    of a native rollback saves nothing, so a pass that failed takes everything.)"""
    a, b, c = any_memory.context.sequences
    text = texts(4)
    any_memory.decode([Part(s, text[s.id][:20], 0) for s in (a, b, c)])
    for sequence in (a, b):
        sequence.mark(4)
    with monkeypatch.context() as patch:
        failing(patch, code, really=really)
        with pytest.raises(error):
            any_memory.context.decode([Part(s, text[s.id][20:25], 1) for s in (a, b)])
    for sequence in (a, b, c):
        kept = 20 if sequence is c or sequence.rollback.name != "native" else 0
        assert sequence.tokens == text[sequence.id][:kept]
        any_memory.check(sequence)


def test_a_later_pass_that_fails_keeps_what_earlier_ones_read(dense: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = dense.context.sequences
    with monkeypatch.context() as patch:
        failing(patch, -1, really=False, after=1)
        with pytest.raises(BackendError):
            dense.context.decode([Part(a, TEXT[:70], 1), Part(b, TEXT[:5], 1)])
    assert (len(a.tokens), len(b.tokens), len(c.tokens)) == (32, 0, 0)
    dense.check(a)


# --- controls -----------------------------------------------------------------------------------------------


def swaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sequences of each batch stand in each other's place."""
    fill = backend.Batch.fill

    def swapped(batch: backend.Batch, parts: Sequence[backend.BatchPart]) -> None:
        other = {0: 1, 1: 0}
        fill(batch, [part._replace(sequence=other.get(part.sequence, part.sequence)) for part in parts])

    monkeypatch.setattr(backend.Batch, "fill", swapped)


def cuts_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequence 0's tail is dropped from sequence 1."""
    seq_rm = backend.seq_rm
    monkeypatch.setattr(backend, "seq_rm", lambda ctx, seq, n: seq_rm(ctx, 1 - seq if seq < 2 else seq, n))


def copies_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy is of a third sequence's cells."""
    seq_cp = backend.seq_cp
    monkeypatch.setattr(backend, "seq_cp", lambda ctx, a, b, n: seq_cp(ctx, N - a - b, b, n))


@pytest.mark.parametrize("wrong", [swaps, cuts_another, copies_another])
def test_wrong_implementations_are_seen(
    wrong: Callable[[pytest.MonkeyPatch], None], dense: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparisons above fail on each: rows that are off, or a cache that ends where it should not."""
    wrong(monkeypatch)
    seen = 0
    for seed in range(6):
        dense.empty()
        try:
            Play(dense, seed).run(40)
        except (AssertionError, BackendError):
            seen += 1
    assert seen >= 3


def test_rows_of_swapped_neighbours_are_off(dense: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where both hold as many tokens, so that nothing but the rows can tell."""
    a, b, _ = dense.context.sequences
    text = texts(5)
    dense.decode([Part(s, text[s.id][:20], 0) for s in (a, b)])
    with monkeypatch.context() as patch:
        swaps(patch)
        rows = [rows.copy() for rows in dense.context.decode([Part(s, text[s.id][20:22], 1) for s in (a, b)])]
    assert min(np.abs(row[0] - dense.row(s.tokens)).max() for row, s in zip(rows, (a, b), strict=True)) > WRONG


def test_idle_sequences_decode_nothing(dense: Shared) -> None:
    context: Context = dense.context
    context.pool.release(context.sequences[0])
    with pytest.raises(AssertionError, match="idle"):
        context.decode([Part(context.sequences[0], [3], 1)])
