"""Contexts over tiny files, one for each kind of memory, and beside each a second one to compare with.

The second reads a text from the start and never drops anything. Both agree, whatever the first has been through:
bit for bit where single tokens can be padded, to rounding on recurrent memories. Flash attention is off, since its
kernels round by the layout of the cache.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specgguf.native.context import Model
from specgguf.native.weights import Weights

TEXT = random.Random(7).choices(range(3, 8), k=400)
KEYWORDS = {"n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0}
NOISE = 1e-5  # of rows between batch widths, with F32 weights and caches

# name -> (the fixture of its files, keywords of the weights, keywords of the context)
MEMORIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("tiny_pair", {}, {}),
    "native": ("tiny_hybrid", {}, {"n_rs_seq": 4}),
    "checkpoint": ("tiny_hybrid", {}, {}),
    "recurrent": ("tiny_recurrent", {}, {}),
    "sliding": ("tiny_sliding", {}, {}),
    "sliding-small": ("tiny_sliding", {"swa_full": False}, {}),
}


class Opened:
    """A file, a context to test, and one to compare with."""

    def __init__(self, path: Path, keywords: dict[str, Any] | None = None, **context: Any) -> None:
        self.weights = Weights(str(path), {**KEYWORDS, **(keywords or {})})
        self.context = {"n_ctx": 300, "n_batch": 32, "flash_attn": False, "pad_to": 2, **context}
        self.model = Model(self.weights, **self.context)
        self.fresh = Model(self.weights, n_ctx=max(300, self.model.n_ctx), n_batch=32, flash_attn=False, pad_to=2)

    def row(self, tokens: Sequence[int]) -> np.ndarray:
        """The logits after `tokens`, read from the start."""
        self.fresh.clear()
        row: np.ndarray = self.fresh.extend(list(tokens), 1)[0].copy()
        return row

    def check(self) -> None:
        """One more token gives what it would after reading the held text from the start."""
        held = list(self.model.tokens)
        assert self.error([*held, 5]) < NOISE
        assert list(self.model.tokens) == [*held, 5]

    def error(self, text: Sequence[int]) -> float:
        """How far the logits after `text` are from a fresh context's: read on from whatever is held of it."""
        kept = self.model.reuse(text[:-1])
        got = self.model.extend(list(text[kept:]), 1)[0].copy()
        return float(np.abs(got - self.row(text)).max())

    def close(self) -> None:
        for part in (self.model, self.fresh, self.weights):
            part.close()


def opened_as(memory: str, request: pytest.FixtureRequest, *, which: str = "target", **context: Any) -> Opened:
    """The target or the draft of the files with this kind of memory."""
    fixture, keywords, own = MEMORIES[memory]
    return Opened(getattr(request.getfixturevalue(fixture), which), keywords, **{**own, **context})
