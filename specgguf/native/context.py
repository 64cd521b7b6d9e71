"""One token sequence over a loaded model, whose cache always holds what `tokens` says.

`Model` is a context of our own over loaded `weights`, which others may share, with a batch of its own. It
decodes, hands out rows of logits, and drops tails; it knows nothing of drafting, sampling or text. Single tokens
can be padded to two (`pad_to=2`): on CPU with F32, F16, Q8_0, Q4_0 and Q4_1 weights rows of every width are then
bit-identical.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from specgguf.errors import BackendError, Cancelled, ConfigError, ContextFull
from specgguf.models import header

from . import backend, compat, rollback
from .prefixes import common_prefix
from .weights import Weights

_STOPPED = "stopped while reading the prompt"


class Model:
    """A context with one sequence.

    Attributes:
        tokens: what the cache holds, in order. Read-only for others.
        n_ctx: the most tokens it can hold.
        n_vocab, eog: of the vocabulary.
        settings: the context's parameters as asked for.
        way: how rejected tokens are dropped, see `rewind`.
        decode_s: seconds spent inside llama.cpp so far.

    Args:
        weights: the loaded file.
        n_ctx, n_batch, n_ubatch: as in `llama_cpp.Llama`; n_ctx 0 takes the model's own length.
        n_rows_max: the most rows that one `extend` may ask for.
        n_rs_seq: ask for native rollback of so many tokens, where the architecture has it. Not for a draft model:
            it decodes single tokens, which that rollback cannot reach back over.
        pad_to: 2 decodes a single token beside a dummy, dropped at once.
        flash_attn: None lets llama.cpp decide.
        type_k, type_v: ggml types of the cache; None is F16.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_outputs_max: int = 8,
        n_rs_seq: int = 0,
        pad_to: int = 1,
        flash_attn: bool | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
    ) -> None:
        self.weights = weights
        llama = weights.llama
        params = backend.copy_params(llama.context_params)
        n_ctx = n_ctx or int(weights.metadata.get(f"{self._architecture}.context_length", 4096))
        if n_ctx < 2:  # a token to read and one to write; llama.cpp ends the process at two in a context of one
            raise ConfigError(f"n_ctx must be 0 or at least 2, not {n_ctx}")
        n_batch = max(min(n_batch, n_ctx), n_outputs_max, 2)
        self.settings = {
            "n_ctx": n_ctx,
            "n_batch": n_batch,
            "n_ubatch": max(min(n_ubatch, n_batch), n_outputs_max, 2),
            "n_outputs_max": max(n_outputs_max, 2),
            "n_rs_seq": n_rs_seq,
            "flash_attn_type": -1 if flash_attn is None else int(flash_attn),
            "type_k": type_k,
            "type_v": type_v,
        }
        for name, value in self.settings.items():
            if value is not None:
                backend.set_field(params, name, value)
        self.abort = backend.AbortFlag()
        self._batch = backend.Batch(n_batch)
        self._ctx: backend.Context | None = None
        try:
            self._ctx = backend.new_context(llama, params)
            adapter = compat.lora_adapter(llama)
            if adapter is not None:
                backend.apply_lora(self._ctx, adapter, llama.lora_scale)
            self.abort.attach(self._ctx)
            self.rollback = rollback.select(llama, self._ctx, self._batch)
        except BaseException:
            self.close()
            raise
        self.cancelled = self._reading = False
        self.tokens: list[int] = []
        self.n_vocab = weights.n_vocab
        self.eog = weights.eog
        self.n_outputs_max = n_outputs_max
        self.pad_to = pad_to if self.rollback.name == "plain" else 1
        self.n_ctx = min(n_ctx, backend.n_ctx(self._ctx) - (self.pad_to - 1))
        self.n_batch = n_batch
        self.decode_s = 0.0
        self._dirty = False

    @property
    def _architecture(self) -> str:
        return self.weights.metadata.get("general.architecture", "")

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> backend.Logits:
        """Decode `tokens` after the cached ones; with the last of them `n_padding` dummies, dropped at once, since
        some kernels are faster with a full tile of tokens (only where the cache `rewinds_freely`).

        Returns:
            The logits of the last `n_rows` tokens, (n_rows, n_vocab) float32: a view that the next call
            overwrites.

        Raises:
            ContextFull: they do not fit; nothing was decoded.
            Cancelled: `cancel` was called; whole chunks before it are kept.
            BackendError: llama.cpp failed; `tokens` holds what the cache still holds.
        """
        self._resync()
        if len(self.tokens) + len(tokens) > self.n_ctx:
            raise ContextFull(
                f"{len(self.tokens) + len(tokens)} tokens do not fit into a context of {self.n_ctx}",
                hint="a larger --n-ctx, or a shorter prompt",
            )
        assert 0 <= n_outputs <= min(len(tokens), self.n_outputs_max)
        assert n_padding == 0 or (self.rolls_back_freely and len(tokens) + n_padding <= self.n_outputs_max)
        if not tokens:
            return _NO_ROWS
        last = max((len(tokens) - 1) % self.n_batch + 1, n_outputs)
        head = len(tokens) - last
        self._reading = len(tokens) > self.n_outputs_max
        try:
            if self._reading and self.cancelled:  # in this order: a cancel that comes now sees `_reading`
                raise Cancelled(_STOPPED)
            for start in range(0, head, self.n_batch):
                self._decode(tokens[start : min(start + self.n_batch, head)], 0)
                if self.cancelled:
                    raise Cancelled(_STOPPED)
            return self._decode(tokens[head:], n_outputs, n_padding)
        finally:
            self._reading = False

    def _decode(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> backend.Logits:
        """One native decode of at most n_batch tokens. Dummies get rows of logits too: the output's kernel may be
        the one that wants a full tile."""
        n = len(tokens)
        padding = list(tokens[-1:]) * max(n_padding, self.pad_to - n)
        n_out = max(n_outputs + len(padding), self.pad_to) if n_outputs else 0
        self.rollback.before(len(self.tokens), n + len(padding))
        self._batch.fill([*tokens, *padding], len(self.tokens), n_out)
        self._dirty = True
        started = perf_counter()
        code = backend.decode(self._ctx, self._batch)
        if code == backend.DECODE_OK:
            rows = backend.rows(self._ctx, n_out, self.n_vocab) if n_out else _NO_ROWS
            self.decode_s += perf_counter() - started
            self.tokens.extend(tokens)
            if padding and not backend.seq_rm(self._ctx, len(self.tokens)):
                raise BackendError("llama.cpp could not drop what padded a pass")
            self._dirty = False
            self._check()
            return rows[n_out - len(padding) - n_outputs : n_out - len(padding)]
        self.decode_s += perf_counter() - started
        self._resync()
        if code == backend.DECODE_ABORTED:
            raise Cancelled(_STOPPED)
        if code == backend.DECODE_NO_SLOT:
            raise BackendError(f"llama.cpp found no room for {n} tokens in the cache")
        raise BackendError(f"llama.cpp failed to decode (code {code}): {backend.last_log_error()}")

    def mark(self, n_ahead: int, *, pin: bool = False) -> None:
        """Up to `n_ahead` of the tokens decoded next may be dropped again; `pin` keeps this place beside the
        latest one. Costs nothing where the cache rewinds freely (`rewinds_freely`)."""
        self._resync()
        self.rollback.mark(len(self.tokens), n_ahead, pin=pin)

    @property
    def rolls_back_freely(self) -> bool:
        """Whether `rewind` always keeps what it is asked to, without marks."""
        return self.rollback.name == "plain"

    def roll_back(self, n: int) -> int:
        """Keep at most the first `n` tokens; how many are kept (a checkpoint may hold fewer)."""
        self._resync()
        if n >= len(self.tokens):
            return len(self.tokens)
        self._dirty = True
        kept = self.rollback.roll_back(len(self.tokens), max(n, 0))
        del self.tokens[kept:]
        self._dirty = False
        self._check()
        return kept

    def reuse(self, tokens: Sequence[int]) -> int:
        """Keep the longest prefix that the cache shares with `tokens`; its length. Never raises."""
        held = self.tokens
        if len(held) <= len(tokens) and held == tokens[: len(held)]:
            self._resync()
            return len(self.tokens)
        return self.roll_back(common_prefix(held, tokens))

    def cancel(self) -> None:
        """Stop a running `extend` that reads a prompt, from any thread or a signal handler; until `resume`.
        A decode of a few tokens is left to end."""
        self.cancelled = True
        if self._reading:
            self.abort.set()

    def resume(self) -> None:
        """Take `cancel` back."""
        self.cancelled = False
        self.abort.clear()

    def clear(self) -> None:
        """Empty the cache."""
        self._dirty = True
        self.tokens.clear()
        backend.clear(self._ctx)
        self.rollback.reset()
        self._dirty = False

    def save(self) -> dict[str, Any]:
        """The cache, for `load` by a model of the same file, loaded alike, whose context can hold it."""
        self._resync()
        return {"model": self._identity, "tokens": list(self.tokens), "data": backend.get_state(self._ctx)}

    def fits(self, saved: object) -> bool:
        """Whether `saved` was written by such a model."""
        match saved:
            case {
                "model": self._identity,
                "tokens": list(tokens),
                "data": bytes() | bytearray() | memoryview(contiguous=True),
            }:
                return len(tokens) <= self.n_ctx and all(isinstance(token, int) for token in tokens)
        return False

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore `save`'s. Raises BackendError where llama.cpp refuses it; the cache is empty then."""
        self.clear()
        self._dirty = True  # until the tokens are here too, what it holds is nobody's
        if not backend.set_state(self._ctx, saved["data"]):
            self.clear()
            raise BackendError("llama.cpp refused the saved state")
        self.tokens[:] = saved["tokens"]
        self._dirty = False
        self._check()

    @property
    def _identity(self) -> dict[str, Any]:
        """What two files must share for a cache of one to mean the same in the other."""
        description = {k: v for k, v in self.weights.metadata.items() if not k.startswith("tokenizer.")}
        shaping = {k: v for k, v in self.weights.keywords.items() if k.startswith(("lora_", "rope_", "yarn_", "kv_"))}
        file = header.fingerprint(self.weights.path)
        return {"metadata": description, "n_vocab": self.n_vocab, "file": file, "keywords": shaping}

    def close(self) -> None:
        """Free the context; the weights stay loaded."""
        self._batch.close()
        if self._ctx is not None:
            backend.free_context(self._ctx)
            self._ctx = None

    def _resync(self) -> None:
        """After a native call that did not come back whole: believe the cache, or clear it."""
        if not self._dirty:
            return
        del self.tokens[self.rollback.resync(len(self.tokens)) :]
        self._dirty = False

    def _check(self) -> None:
        last = backend.pos_max(self._ctx)
        wanted = len(self.tokens) - 1
        if last != wanted:
            self.clear()
            raise BackendError(f"the cache ends at position {last}, not {wanted}: cleared")


_NO_ROWS = np.empty((0, 0), dtype=np.float32)
