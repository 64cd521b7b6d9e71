"""A model's own prediction heads (MTP, NextN) as sequences that draft.

Each head has a context of its own over the target's weights, and reads what the target has read, with the target's
hidden states; beyond that, with the states that the heads themselves predict. A `HeadSequence` is otherwise a sequence
like a draft model's. How many tokens to draft, and what becomes of them, is not known here.

Two things that llama.cpp does not say. With masked outputs it takes the states of a pass from its first rows on,
whichever rows were asked for: so in a pass whose states are needed every token has an output. And attention multiplies
what it masks by zero: a state that was never written may be no number at all, so a batch starts out zeroed.
"""

from __future__ import annotations

import ctypes
from collections import abc
from collections.abc import Callable, Mapping
from typing import Any

import llama_cpp
import numpy as np

from specgguf.errors import Unsupported
from specgguf.models.nextn import prediction_heads
from specgguf.native import backend, compat
from specgguf.native.context import Context
from specgguf.native.pool import Pool
from specgguf.native.sequence import NO_ROWS, Part, Sequence
from specgguf.native.weights import Weights

from .sequence import HeadSequence, as_head
from .states import HiddenStates

LOAD = {"load_mtp": True}  # fields of llama_model_params: without it the heads' tensors are skipped


def check_available() -> None:
    """Raise Unsupported unless this llama-cpp-python has what prediction heads need."""
    compat.head_calls()


def n_heads(weights: Weights) -> int:
    """How many prediction heads a loaded file has."""
    return int(llama_cpp.llama_model_n_layer_nextn(weights.llama.model))


class PredictionHeads:
    """All heads of a loaded target: a context for each.

    Attributes:
        contexts: by depth: the first one predicts the token after the next.

    Args:
        target: the context that drafts are verified in, over weights that were loaded with `LOAD`. It hands out hidden
            states from now on.

    Raises:
        Unsupported: this llama-cpp-python lacks a call; the file has no heads, or shares the target's cache.
        BackendError: llama.cpp could not make a context.
    """

    def __init__(self, target: Context) -> None:
        self._calls = compat.head_calls()
        self._target = target
        if target.weights.placement:
            raise Unsupported(
                "prediction heads cannot be used with workers", hint="without --rpc-servers, or --draft off"
            )
        model = target.weights.llama.model
        n = n_heads(target.weights)
        if not n:
            raise Unsupported(
                f"{target.weights.path} has no prediction heads", hint="name a draft file, or --draft off"
            )
        self.n_embd = int(llama_cpp.llama_model_n_embd_out(model))
        if int(llama_cpp.llama_model_n_embd_inp(model)) != self.n_embd:
            raise Unsupported(f"{target.weights.path} has prediction heads of a shape that is not supported")
        self._states = [HiddenStates(self.n_embd) for _ in target.sequences]
        # A row for every token read: what a prompt's tokens were read with is what the heads read them with.
        self._calls["llama_set_embeddings_nextn"](target.handle, True, False)
        target.on_pass = self._take
        self.contexts: list[HeadContext] = []
        try:
            for depth in range(n):
                self.contexts.append(HeadContext(self, target, depth, self._calls))
        except BaseException:
            self.close()
            raise

    @property
    def draft_limit(self) -> int | None:
        """See `prediction_heads.draft_limit`."""
        return prediction_heads.draft_limit(len(self.contexts))

    def follow(self, target: Sequence, first: int) -> list[HeadSequence]:
        """The first head's sequence of that index and those of the other heads beside it, which read from now on what
        `target` reads. What is promised to the first head's is promised to the others'."""
        found = [as_head(context.sequences[first]) for context in self.contexts]
        for sequence in found:
            sequence.states = self._states[target.id]
        for context in self.contexts[1:]:
            for other, leader in zip(context.sequences, self.contexts[0].sequences, strict=True):
                other.n_reserved = leader.n_reserved
        return found

    def _take(self, parts: list[Part]) -> None:
        """Copy the states of a pass of the target: the next forward pass overwrites them."""
        n_tokens = sum(part.n_tokens for part in parts)
        pointer = self._calls["llama_get_embeddings_nextn"](self._target.handle)
        rows = np.ctypeslib.as_array(pointer, (n_tokens, self.n_embd))
        end = 0
        for part in parts:
            start, end = end, end + part.n_tokens
            tokens, n = part.sequence.tokens, len(part.tokens)
            states, n_before = self._states[part.sequence.id], len(tokens) - n
            if states.tokens[:n_before] != tokens[:n_before]:
                self._share(states, tokens[:n_before])
            if len(states.tokens) >= n_before:  # else a part of the text was read by nobody: no states from there on
                states.take(tokens, rows[start : start + n])

    def _share(self, states: HiddenStates, tokens: list[int]) -> None:
        """The target's sequence holds `tokens` that it did not read itself: another one did."""
        n = len(tokens)
        source = next((other for other in self._states if other.tokens[:n] == tokens), None)
        if source is not None:
            states.copy(source, n)
        else:
            states.reuse(tokens)

    def close(self) -> None:
        """Free the contexts; the target and its weights stay."""
        contexts, self.contexts = self.contexts, []
        for context in contexts:
            context.close()


class _HeadBatch(backend.Batch):
    """Tokens, and the state that each is read with."""

    def __init__(self, n_tokens: int, n_embd: int) -> None:
        super().__init__(n_tokens)
        self.states = np.zeros((n_tokens, n_embd), np.float32)
        self.raw.embd = self.states.ctypes.data_as(ctypes.POINTER(ctypes.c_float))


class _HeadWeights:
    """The target's weights, for who makes a context of a head over them."""

    def __init__(self, target: Context, n_embd: int) -> None:
        self._weights = target.weights
        self._handle = target.handle
        self._n_embd = n_embd

    def __getattr__(self, name: str) -> Any:
        return getattr(self._weights, name)

    @property
    def memory(self) -> backend.Memory:
        """Heads attend and keep no other state, whatever the layers before them do."""
        return self._weights.memory._replace(is_recurrent=False)

    def batch(self, n_tokens: int) -> backend.Batch:
        return _HeadBatch(n_tokens, self._n_embd)

    def new_context(self, settings: Mapping[str, Any], emptied: Callable[[], None]) -> backend.Context:
        own = {"ctx_type": llama_cpp.LLAMA_CONTEXT_TYPE_MTP, "ctx_other": self._handle}
        return self._weights.new_context({**settings, **own}, emptied)


class HeadContext(Context):
    """A context in which a head, the `depth`th after the model's layers, reads tokens with their hidden states.

    Attributes:
        heads: all of them.
    """

    _batch: _HeadBatch

    def __init__(
        self, heads: PredictionHeads, target: Context, depth: int, calls: Mapping[str, Callable[..., Any]]
    ) -> None:
        settings: dict[str, Any] = target.settings
        n_seq_max = len(target.sequences)
        self.heads, n_embd = heads, heads.n_embd
        self._calls = calls
        flash_attn = settings["flash_attn_type"]
        super().__init__(
            _HeadWeights(target, n_embd),  # type: ignore[arg-type]
            n_ctx=target.n_ctx,
            n_cells=settings["n_ctx"] if n_seq_max > 1 else None,
            n_batch=settings["n_batch"],
            n_ubatch=settings["n_ubatch"],
            n_seq_max=n_seq_max,
            n_outputs_max=target.n_outputs_max,
            flash_attn=None if flash_attn < 0 else bool(flash_attn),
            type_k=settings["type_k"],
            type_v=settings["type_v"],
        )
        self.settings["depth"] = depth
        if calls["llama_get_ctx_other"](self.handle):
            self.close()
            raise Unsupported(f"{target.weights.path}: heads that share the target's cache are not supported")
        calls["llama_set_nextn_layer_offset"](self.handle, depth)
        calls["llama_set_embeddings_nextn"](self.handle, True, True)
        self.sequences = [
            HeadSequence(self, one.id, one.rollback, HiddenStates(n_embd), heads.follow) for one in self.sequences
        ]
        self.pool = Pool(self.sequences, self.pool.n_cells)
        if n_seq_max == 1:
            self.sequences[0].n_reserved = self.n_ctx

    def decode(self, parts: abc.Sequence[Part]) -> list[backend.Logits]:
        """As `Context.decode`. Tokens with outputs go into passes in which every token has one."""
        leading, last = [], []
        for part in parts:
            n_last = len(part.tokens) if len(part.tokens) <= self.n_outputs_max else part.n_outputs
            n_last *= part.n_outputs > 0
            n_leading = len(part.tokens) - n_last
            if n_leading:
                leading.append(Part(part.sequence, part.tokens[:n_leading]))
            if n_last:
                last.append(Part(part.sequence, part.tokens[n_leading:], n_last))
        if leading:
            super().decode(leading)
        rows = iter(super().decode(last) if last else ())
        return [next(rows)[-part.n_outputs :] if part.n_outputs else NO_ROWS for part in parts]

    def close(self) -> None:
        """Free it, and with it the contexts of the other heads."""
        super().close()
        self.heads.close()

    def _fill(self, parts: list[Part]) -> tuple[int, list[int]]:
        n_tokens, n_outputs = super()._fill(parts)
        end = 0
        for part in parts:
            sequence = as_head(part.sequence)
            start, end = end, end + len(part.tokens)
            self._batch.states[start:end] = sequence.states.before(len(sequence.tokens), len(part.tokens))
        return n_tokens, n_outputs

    def _pass(self, parts: list[Part]) -> list[backend.Logits]:
        found = super()._pass(parts)
        for part in parts:
            as_head(part.sequence).has_read(len(part.tokens))
        if parts[0].n_outputs:
            n_tokens = sum(len(part.tokens) for part in parts)
            pointer = self._calls["llama_get_embeddings_nextn"](self.handle)
            rows = np.ctypeslib.as_array(pointer, (n_tokens, self._batch.states.shape[1]))
            end = 0
            for part in parts:
                end += len(part.tokens)
                as_head(part.sequence).states.guess(len(part.sequence.tokens) - 1, rows[end - 1])
        return found
