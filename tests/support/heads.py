"""Files with prediction heads, opened, and an oracle that reads every text from the start by plain native calls.

The oracle shares no code with what it judges: it pairs tokens with hidden states itself, and rolls nothing back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp_ext

from specgguf.decode.heads.drafter import HeadDrafter
from specgguf.native.context import Model
from specgguf.native.heads.contexts import LOAD, PredictionHeads
from specgguf.native.heads.sequence import HeadSequence
from specgguf.native.weights import Weights

KEYWORDS = {"n_threads": 1, "n_threads_batch": 1, "type_k": 0, "type_v": 0}
NOISE = 1e-4  # rows of other batch sizes differ in the sixth digit
WRONG = 1e-2  # a wrong state is off by so much and more


class Oracle:
    """Two contexts over a loaded model: one of the target, one of its heads."""

    def __init__(self, weights: Weights, n_ctx: int = 512) -> None:
        self._model = weights.llama.model
        self._n_vocab = weights.n_vocab
        self._n_embd = int(llama_cpp.llama_model_n_embd(self._model))
        self.n_heads = int(llama_cpp.llama_model_n_layer_nextn(self._model))
        self._target = self._context(n_ctx)
        self._heads = self._context(n_ctx, ctx_type=llama_cpp.LLAMA_CONTEXT_TYPE_MTP, ctx_other=self._target)
        llama_cpp_ext.llama_set_embeddings_nextn(self._target, True, False)
        llama_cpp_ext.llama_set_embeddings_nextn(self._heads, True, True)
        self._known: dict[tuple[int, ...], tuple[np.ndarray, np.ndarray]] = {}

    def _context(self, n_ctx: int, **fields: Any) -> Any:
        params = llama_cpp.llama_context_default_params()
        values = {"n_ctx": n_ctx, "n_batch": n_ctx, "n_ubatch": n_ctx, "n_outputs_max": n_ctx, "type_k": 0, "type_v": 0}
        for name, value in {**values, "n_threads": 1, "n_threads_batch": 1, "flash_attn_type": 0, **fields}.items():
            setattr(params, name, value)
        return llama_cpp.llama_init_from_model(self._model, params)

    def _read(
        self, context: Any, tokens: Sequence[int], states: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Logits and hidden states of all tokens, read in one batch after nothing."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        n = len(tokens)
        batch = llama_cpp.llama_batch_init(n, 0, 1)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        batch.n_tokens = n
        if states is not None:
            states = np.ascontiguousarray(states, np.float32)
            batch.embd = states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        assert llama_cpp.llama_decode(context, batch) == 0
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(context), (n, self._n_vocab)).copy()
        pointer: Any = llama_cpp_ext.llama_get_embeddings_nextn(context)
        hidden = np.ctypeslib.as_array(pointer, (n, self._n_embd)).copy()
        batch.embd = None
        llama_cpp.llama_batch_free(batch)
        return logits, hidden

    def target(self, text: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Its logits and hidden states, of each token."""
        key = tuple(text)
        if key not in self._known:
            self._known[key] = self._read(self._target, text)
        return self._known[key]

    def head(self, text: Sequence[int], drafted: Sequence[int] = (), depth: int = 0) -> np.ndarray:
        """Its logits after text and what was drafted after that, which the target has not read. With several heads,
        each drafted token's state comes from the head of its depth."""
        states = np.vstack([np.zeros((1, self._n_embd), np.float32), self.target(text)[1]])[: len(text)]
        for i in range(len(drafted)):
            row = self._chained(text, drafted[:i], states, i if self.n_heads > 1 else 0)[1]
            states = np.vstack([states, row])
        return self._chained(text, drafted, states, depth)[0]

    def _chained(
        self, text: Sequence[int], drafted: Sequence[int], states: np.ndarray, depth: int
    ) -> tuple[np.ndarray, np.ndarray]:
        llama_cpp_ext.llama_set_nextn_layer_offset(self._heads, depth)
        logits, hidden = self._read(self._heads, [*text, *drafted], states)
        return logits[-1], hidden[-1]

    def close(self) -> None:
        for context in (self._heads, self._target):
            llama_cpp.llama_free(context)


class Watched:
    """A head's sequence whose every last row is compared with the oracle's."""

    def __init__(self, head: HeadSequence, oracle: Oracle, depth: int) -> None:
        self.head, self.oracle, self.depth = head, oracle, depth
        self.worst = 0.0
        self.n_rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.head, name)

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> np.ndarray:
        rows = self.head.extend(tokens, n_outputs, n_padding)
        if n_outputs:
            self.compare(rows[-1])
        return rows

    def compare(self, row: np.ndarray) -> None:
        held, n_read = list(self.head.tokens), self.head.n_readable
        wanted = self.oracle.head(held[:n_read], held[n_read:], self.depth)
        error = np.nan_to_num(np.abs(row - wanted), nan=np.inf)
        self.worst = max(self.worst, float(error.max()))
        self.n_rows += 1


class Headed:
    """A file with heads, opened: the model that drafts are verified with, its heads, and an oracle."""

    def __init__(self, path: Path, *, n_ctx: int = 256, n_batch: int = 32, n_rs_seq: int = 0) -> None:
        self.weights = Weights(str(path), KEYWORDS, native_params=LOAD)
        self.model = Model(
            self.weights, n_ctx=n_ctx, n_batch=n_batch, n_rs_seq=n_rs_seq, n_outputs_max=24, pad_to=2, flash_attn=False
        )
        self.heads = PredictionHeads(self.model.context)
        self.oracle = Oracle(self.weights)
        self.sequences = self.heads.follow(self.model, 0)
        self.watched = [Watched(head, self.oracle, depth) for depth, head in enumerate(self.sequences)]

    @property
    def drafter(self) -> HeadDrafter:
        """A new one, whose rows are watched."""
        return HeadDrafter(self.watched, eog=self.model.eog)

    @property
    def worst(self) -> float:
        return max(one.worst for one in self.watched)

    def close(self) -> None:
        self.oracle.close()
        for part in (self.heads, self.model, self.weights):
            part.close()
