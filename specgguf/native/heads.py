"""A model's own prediction heads (MTP, NextN) as sequences that draft.

A head is a block after the model's layers: from a token and the hidden state that the model had one token earlier it
predicts the token after next. Each head has a context of its own over the same weights, and reads what the target has
read, with the target's states; beyond that, with the states that the heads themselves predict. A `HeadSequence` is
otherwise a sequence like a draft model's. How many tokens to draft, and what becomes of them, is not known here.

Two things that llama.cpp does not say. With masked outputs it takes the states of a pass from its first rows on,
whichever rows were asked for: so in a pass whose states are needed every token has an output. And its contexts multiply
what they mask by zero: a state that was never written may be no number at all, so a batch starts out zeroed.
"""

from __future__ import annotations

import ctypes
from collections import abc
from collections.abc import Callable, Mapping
from typing import Any

import llama_cpp
import numpy as np

from specgguf.decode.sequence import common_prefix
from specgguf.errors import Unsupported

from . import backend, compat
from .context import Context
from .pool import Pool
from .rollback import Plain
from .sequence import Part, Sequence
from .weights import Weights

LOAD = {"load_mtp": True}  # fields of llama_model_params: without it the heads' tensors are skipped
SHARED = "gemma4-assistant"


def check_available() -> None:
    """Raise Unsupported unless this llama-cpp-python has what prediction heads need."""
    compat.head_calls()


def n_heads(weights: Weights) -> int:
    """How many prediction heads a loaded file has."""
    return int(llama_cpp.llama_model_n_layer_nextn(weights.llama.model))


class HiddenStates:
    """The hidden state after each token that one sequence of the target has read, and guesses for the tokens after.

    Attributes:
        tokens: whose states are known.
    """

    def __init__(self, n_embd: int) -> None:
        self.tokens: list[int] = []
        self._rows = np.zeros((256, n_embd), np.float32)
        self._guessed: list[backend.Logits] = []

    def take(self, tokens: abc.Sequence[int], rows: backend.Logits) -> None:
        """The target holds `tokens`; `rows` are the states of the last of them."""
        start = len(tokens) - len(rows)
        if len(tokens) > len(self._rows):
            n_more = max(len(self._rows), len(tokens) - len(self._rows))
            self._rows = np.concatenate([self._rows, np.zeros((n_more, self._rows.shape[1]), np.float32)])
        self._rows[start : len(tokens)] = rows
        self.tokens[start:] = tokens[start:]
        self._guessed.clear()

    def reuse(self, tokens: abc.Sequence[int]) -> int:
        """Keep what is known of a prefix of `tokens`; its length."""
        kept = common_prefix(self.tokens, tokens)
        if kept < len(self.tokens) or self._guessed:
            del self.tokens[kept:]
            self._guessed.clear()
        return kept

    def copy(self, source: HiddenStates, n: int) -> None:
        """Know what `source` knows of its first n tokens."""
        self.tokens.clear()
        self.take(source.tokens[:n], source._rows[:n])

    def guess(self, position: int, row: backend.Logits) -> None:
        """What a head takes for the state at a position that the target has not read."""
        i = position - len(self.tokens)
        if 0 <= i <= len(self._guessed):
            self._guessed[i:] = [row.copy()]

    def before(self, position: int, n: int) -> backend.Logits:
        """The states that n tokens from `position` on are read with, those of one position earlier each: zero before
        the first token and where nothing is known."""
        rows = np.zeros((n, self._rows.shape[1]), np.float32)
        first, n_known = max(position - 1, 0), len(self.tokens)
        known = self._rows[first : min(position + n - 1, n_known)]
        rows[first - (position - 1) :][: len(known)] = known
        for i, row in enumerate(self._guessed, n_known + 1 - position):
            if 0 <= i < n:
                rows[i] = row
        return rows

    def save(self) -> dict[str, Any]:
        """For `load`."""
        return {"tokens": list(self.tokens), "rows": self._rows[: len(self.tokens)].tobytes()}

    def fits(self, saved: object) -> bool:
        """Whether `saved` can be loaded."""
        match saved:
            case {"tokens": list(tokens), "rows": bytes() | bytearray() | memoryview() as rows}:
                return memoryview(rows).nbytes == len(tokens) * self._rows[0].nbytes
        return False

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore `save`'s."""
        self.tokens.clear()
        self.take(saved["tokens"], np.frombuffer(saved["rows"], np.float32).reshape(-1, self._rows.shape[1]))


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
        model = target.weights.llama.model
        n = n_heads(target.weights)
        if not n:
            raise Unsupported(
                f"{target.weights.path} has no prediction heads", hint="name a draft file, or --draft off"
            )
        self._n_embd = int(llama_cpp.llama_model_n_embd_out(model))
        if int(llama_cpp.llama_model_n_embd_inp(model)) != self._n_embd:
            raise Unsupported(f"{target.weights.path} has prediction heads of a shape that is not supported")
        self._states = [HiddenStates(self._n_embd) for _ in target.sequences]
        # A row for every token read: what a prompt's tokens were read with is what the heads read them with.
        self._calls["llama_set_embeddings_nextn"](target.handle, True, False)
        target.on_pass = self._take
        self.contexts: list[HeadContext] = []
        try:
            for depth in range(n):
                self.contexts.append(HeadContext(target, depth, self._calls, self._n_embd))
        except BaseException:
            self.close()
            raise

    def follow(self, target: Sequence, index: int) -> list[HeadSequence]:
        """The heads' sequences of that index, one a depth, which read from now on what `target` reads."""
        found = [context.sequences[index] for context in self.contexts]
        for sequence in found:
            sequence.states = self._states[target.id]
        return found

    def _take(self, parts: list[Part]) -> None:
        """Copy the states of a pass of the target: the next pass overwrites them."""
        n_tokens = sum(part.n_tokens for part in parts)
        pointer = self._calls["llama_get_embeddings_nextn"](self._target.handle)
        rows = backend.view(ctypes.addressof(pointer.contents), n_tokens, self._n_embd)
        end = 0
        for part in parts:
            start, end = end, end + part.n_tokens
            tokens, n = part.sequence.tokens, len(part.tokens)
            states, n_before = self._states[part.sequence.id], len(tokens) - n
            if states.tokens[:n_before] != tokens[:n_before]:
                self._share(states, tokens[:n_before])
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
        for context in self.contexts:
            context.close()


class HeadContext(Context):
    """A context in which a head, the `depth`th after the model's layers, reads tokens with their hidden states."""

    sequences: list[HeadSequence]  # type: ignore[assignment]

    def __init__(self, target: Context, depth: int, calls: Mapping[str, Callable[..., Any]], n_embd: int) -> None:
        settings = target.settings
        self._calls = calls
        flash_attn = settings["flash_attn_type"]
        super().__init__(
            target.weights,
            n_ctx=settings["n_ctx"],
            n_batch=settings["n_batch"],
            n_ubatch=settings["n_ubatch"],
            n_seq_max=len(target.sequences),
            n_outputs_max=target.n_outputs_max,
            flash_attn=None if flash_attn < 0 else bool(flash_attn),
            type_k=settings["type_k"],
            type_v=settings["type_v"],
            n_embd=n_embd,
            native={"ctx_type": llama_cpp.LLAMA_CONTEXT_TYPE_MTP, "ctx_other": target.handle},
        )
        del self.settings["ctx_other"]  # an address: it says nothing about this context
        if self._calls["llama_get_ctx_other"](self.handle):
            self.close()
            raise Unsupported(f"{target.weights.path}: heads that share the target's cache are not supported")
        calls["llama_set_nextn_layer_offset"](self.handle, depth)
        calls["llama_set_embeddings_nextn"](self.handle, True, True)
        # Heads attend and keep no other state, whatever the layers before them do.
        window = found.window if isinstance(found := self.sequences[0].rollback, Plain) else None
        self._equal = False
        self.sequences = [HeadSequence(self, one.id, Plain(self.handle, one.id, window)) for one in self.sequences]
        self.pool = Pool(self.sequences, self.n_ctx)
        if len(self.sequences) == 1:
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
        return [next(rows)[-part.n_outputs :] if part.n_outputs else backend.NO_ROWS for part in parts]

    def _fill(self, parts: list[Part]) -> tuple[int, list[int]]:
        n_tokens, n_outputs = super()._fill(parts)
        end = 0
        for part in parts:
            sequence = _as_head(part.sequence)
            start, end = end, end + len(part.tokens)
            self._batch.embd[start:end] = sequence.states.before(len(sequence.tokens), len(part.tokens))
        return n_tokens, n_outputs

    def _pass(self, parts: list[Part]) -> list[backend.Logits]:
        found = super()._pass(parts)
        for part in parts:
            _as_head(part.sequence).has_read(len(part.tokens))
        if parts[0].n_outputs:
            n_tokens = sum(len(part.tokens) for part in parts)
            pointer = self._calls["llama_get_embeddings_nextn"](self.handle)
            rows = backend.view(ctypes.addressof(pointer.contents), n_tokens, self._batch.embd.shape[1])
            end = 0
            for part in parts:
                end += len(part.tokens)
                _as_head(part.sequence).states.guess(len(part.sequence.tokens) - 1, rows[end - 1])
        return found


class HeadSequence(Sequence):
    """A head's view of one text.

    Attributes:
        states: what the target knows of it.
    """

    states: HiddenStates

    def __init__(self, context: HeadContext, id: int, rollback: Plain) -> None:
        super().__init__(context, id, rollback)
        self.states = HiddenStates(context._batch.embd.shape[1])
        self._n_certain = 0  # of its tokens: read with the target's own states

    @property
    def n_readable(self) -> int:
        """How many tokens of its text can be read with the target's own states."""
        return len(self.states.tokens) + 1

    def has_read(self, n: int) -> None:
        """The last n tokens were read with the states known now."""
        if self._n_certain >= len(self.tokens) - n:
            self._n_certain = min(len(self.tokens), self.n_readable)

    def reuse(self, tokens: abc.Sequence[int]) -> int:
        """As `Sequence.reuse`, but what was read with guessed states is dropped even where its tokens were right."""
        self.states.reuse(tokens)
        return self.roll_back(min(common_prefix(self.tokens, tokens), self._n_certain))

    def copy(self, source: Sequence, n: int) -> int:
        n_certain = _as_head(source)._n_certain
        n_copied = super().copy(source, min(n, n_certain))
        self._n_certain = n_copied
        return n_copied

    def save(self) -> dict[str, Any]:
        self.roll_back(self._n_certain)
        return {**super().save(), "states": self.states.save()}

    def fits(self, saved: object) -> bool:
        return super().fits(saved) and isinstance(saved, Mapping) and self.states.fits(saved.get("states"))

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        self._n_certain = len(self.tokens)
        self.states.load(saved["states"])

    def _keep(self, n: int) -> None:
        super()._keep(n)
        self._n_certain = min(self._n_certain, n)


def _as_head(sequence: Sequence) -> HeadSequence:
    assert isinstance(sequence, HeadSequence)
    return sequence
