"""Contexts over tiny files, one for each kind of memory, and beside each a second one to compare with.

The second reads a text from the start and never drops anything. Both agree, whatever the first has been through:
bit for bit where single tokens can be padded, to rounding on recurrent memories. Flash attention is off, since its
kernels round by the layout of the cache.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specgguf.native import backend
from specgguf.native import sequence as native
from specgguf.native.context import Context, Model
from specgguf.native.sequence import Part
from specgguf.native.weights import Weights

TEXT = random.Random(7).choices(range(3, 8), k=400)
KEYWORDS = {"n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0}
WRONG = 1e-2  # a wrong state is off by so much and more

# name -> (the fixture of its files, keywords of the weights, keywords of the context)
MEMORIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("tiny_pair", {}, {}),
    "native": ("tiny_hybrid", {}, {"n_rs_seq": 4}),
    "checkpoint": ("tiny_hybrid", {}, {}),
    "recurrent": ("tiny_recurrent", {}, {}),
    "sliding": ("tiny_sliding", {}, {}),
    "sliding-small": ("tiny_sliding", {"swa_full": False}, {}),
}


@functools.cache
def noise(path: Path) -> float:
    """How far rows over this file may be apart for rounding alone, on this machine: three times what they are between
    batches of 1, 2, 5 and 32 tokens (single ones padded, where they can be), since the tests' runs are longer."""
    weights = Weights(str(path), KEYWORDS)
    model = Model(weights, n_ctx=300, n_batch=32, n_outputs_max=32, flash_attn=False, pad_to=2)
    rows = []
    for width in (32, 1, 2, 5):
        model.clear()
        parts = [TEXT[at : at + width] for at in range(0, 160, width)]
        rows.append(np.concatenate([model.extend(part, len(part)).copy() for part in parts]))
    model.close()
    weights.close()
    found = 3 * max(float(np.abs(other - rows[0]).max()) for other in rows[1:])
    assert found < WRONG / 10
    return max(found, 1e-5)


class Opened:
    """A file, a context to test, and one to compare with."""

    def __init__(self, path: Path, keywords: dict[str, Any] | None = None, **context: Any) -> None:
        self.weights = Weights(str(path), {**KEYWORDS, **(keywords or {})})
        self.context = {"n_ctx": 300, "n_batch": 32, "flash_attn": False, "pad_to": 2, **context}
        self.noise = noise(path)
        self.model = Model(self.weights, **self.context)
        self.fresh = Model(self.weights, n_ctx=max(300, self.model.n_ctx), n_batch=32, flash_attn=False, pad_to=2)

    def row(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after `tokens`, read from the start."""
        return _row(self.fresh, tokens)

    def check(self) -> None:
        """One more token gives what it would after reading the held text from the start."""
        held = list(self.model.tokens)
        assert self.error([*held, 5]) < self.noise
        assert list(self.model.tokens) == [*held, 5]

    def error(self, text: Sequence[int]) -> float:
        """How far the logits after `text` are from a fresh context's: read on from whatever is held of it."""
        kept = self.model.reuse(text[:-1])
        got = self.model.extend(list(text[kept:]), 1)[0].copy()
        return float(np.abs(got - self.row(text)).max())

    def close(self) -> None:
        for part in (self.model, self.fresh, self.weights):
            part.close()


class Shared:
    """A file, a context of several sequences to test, each with 100 cells promised, and a context of one to compare
    with."""

    def __init__(self, path: Path, n_seq_max: int, keywords: dict[str, Any], **context: Any) -> None:
        self.weights = Weights(str(path), {**KEYWORDS, **keywords})
        settings = {"n_ctx": 512, "n_batch": 32, "flash_attn": False, "pad_to": 2, **context}
        self.context = Context(self.weights, n_seq_max=n_seq_max, **settings)
        self.fresh = Model(self.weights, n_ctx=300, n_batch=32, flash_attn=False, pad_to=2)
        self.noise = max(noise(path), self._noise())
        self.empty()

    def _noise(self) -> float:
        """As `noise`, between a sequence that is alone and one whose cells lie between a neighbour's: sums of the same
        terms in another order. Ten times what is found, since a few positions round far worse than the others."""
        found = 0.0
        for step in (1, 2, 3, 5, 7):
            self.empty()
            a, b = self.context.sequences[:2]
            for at in range(0, 84, step):
                for sequence, text in ((a, TEXT[200:]), (b, TEXT[step:])):
                    row = self.context.decode([Part(sequence, text[at : at + step], 1)])[0][0].copy()
                found = max(found, float(np.abs(row - self.row(b.tokens)).max()))
        assert 10 * found < WRONG
        return 10 * found

    def empty(self) -> None:
        for sequence in self.context.sequences:
            sequence.clear()
            sequence.n_reserved = 100

    def row(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after `tokens`, read from the start by a sequence that is alone."""
        return _row(self.fresh, tokens)

    def decode(self, parts: Sequence[Part]) -> None:
        """Decode, and compare the first and last row of each part; the cache ends where the tokens do."""
        before = {part.sequence.id: list(part.sequence.tokens) for part in parts}
        found = [rows.copy() for rows in self.context.decode(parts)]
        for (sequence, tokens, n_outputs, _), rows in zip(parts, found, strict=True):
            text = [*before[sequence.id], *tokens]
            assert sequence.tokens == text
            assert backend.pos_max(self.context.handle, sequence.id) == len(text) - 1
            assert len(rows) == n_outputs
            for i in {0, n_outputs - 1} if n_outputs else ():
                error = float(np.abs(rows[i] - self.row(text[: len(text) - n_outputs + 1 + i])).max())
                assert error < self.noise, (sequence.id, i, error)

    def check(self, sequence: native.Sequence) -> None:
        """One more token gives what it would after reading the held text from the start."""
        self.decode([Part(sequence, [5], 1)])

    def close(self) -> None:
        for part in (self.context, self.fresh, self.weights):
            part.close()


def _row(fresh: Model, tokens: Sequence[int]) -> np.ndarray:
    fresh.clear()
    row: np.ndarray = fresh.extend(list(tokens), 1)[0].copy()
    return row


def opened_as(memory: str, request: pytest.FixtureRequest, *, which: str = "target", **context: Any) -> Opened:
    """The target or the draft of the files with this kind of memory."""
    fixture, keywords, own = MEMORIES[memory]
    return Opened(getattr(request.getfixturevalue(fixture), which), keywords, **{**own, **context})


def shared_as(memory: str, request: pytest.FixtureRequest, n_seq_max: int, **context: Any) -> Shared:
    """The same with several sequences."""
    fixture, keywords, own = MEMORIES[memory]
    return Shared(request.getfixturevalue(fixture).target, n_seq_max, keywords, **{**own, **context})
