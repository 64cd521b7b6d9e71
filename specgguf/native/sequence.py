"""One token sequence of a context, whose cache always holds what `tokens` says.

It drops tails, marks places to come back to, shares a prefix with another sequence of its context, and is saved. What
is decoded when, beside whom, and who may have how many cells is the context's and the pool's to know.
"""

from __future__ import annotations

import itertools
from collections import abc
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from specgguf.decode.sequence import common_prefix
from specgguf.errors import BackendError
from specgguf.models import header

from . import backend
from .rollback import Plain, Rollback
from .rpc.elsewhere import Elsewhere
from .weights import Weights

NO_ROWS: backend.Logits = np.empty((0, 0), dtype=np.float32)

_families = itertools.count()  # never used again: an old family's cells may outlive its first member's


class Part(NamedTuple):
    """What a forward pass decodes of one sequence: `tokens` after those it holds, then `n_padding` dummies that are
    dropped at once, since some kernels are faster with a full tile of tokens. Logits of the last `n_outputs` tokens."""

    sequence: Sequence
    tokens: abc.Sequence[int]
    n_outputs: int = 0
    n_padding: int = 0

    @property
    def n_tokens(self) -> int:
        """Tokens in the batch."""
        return len(self.tokens) + self.n_padding

    @property
    def n_rows(self) -> int:
        """Rows of logits in the batch: dummies get some too, since the output's kernel may be the one that wants a full
        tile."""
        return self.n_outputs + self.n_padding if self.n_outputs else 0


class Owner(Protocol):
    """A sequence's context, see `context.Context`."""

    weights: Weights
    handle: Any
    n_ctx: int
    n_batch: int
    n_outputs_max: int
    pad_to: int
    decode_s: float
    settings: dict[str, Any]
    sequences: list[Sequence]
    pool: Any  # of `pool.Pool`, which is made of sequences

    def decode(self, parts: abc.Sequence[Part]) -> list[backend.Logits]:
        """See `context.Context.decode`."""

    def cancel(self) -> None:
        """Stop reading a prompt."""

    def resume(self) -> None:
        """Take `cancel` back."""

    def close(self) -> None:
        """Free it."""


class Sequence:
    """A sequence of tokens in a context.

    Attributes:
        id: llama.cpp's.
        tokens: what the cache holds, in order. Read-only for others.
        rollback: how rejected tokens are dropped, see `rollback`.
        n_ctx: the most tokens that it can hold.
        n_vocab, eog: of the vocabulary.
        n_reserved: cells that are promised to it; 0 while it is idle, and its tokens are but a cached prompt.
        n_shared: how many of its first cells another sequence may hold too; of which family, if any.
        in_doubt: a native call did not come back; what is held is found out at the next use.
    """

    def __init__(self, context: Owner, id: int, rollback: Rollback) -> None:
        self.context = context
        self.id = id
        self.rollback = rollback
        self.tokens: list[int] = []
        self.weights = context.weights
        self.n_ctx = context.n_ctx
        self.n_vocab = context.weights.n_vocab
        self.eog = context.weights.eog
        self.n_reserved = self.n_shared = self.last_used = 0
        self.family: int | None = None
        self.in_doubt = False

    def extend(self, tokens: abc.Sequence[int], n_outputs: int, n_padding: int = 0) -> backend.Logits:
        """Decode `tokens` after the cached ones, alone; with the last of them `n_padding` dummies (only where the cache
        `rolls_back_freely`).

        Returns:
            The logits of the last `n_outputs` tokens, (n_outputs, n_vocab) float32: a view that the next call
            overwrites.

        Raises:
            As `context.Context.decode`.
        """
        return self.context.decode([Part(self, tokens, n_outputs, n_padding)])[0]

    def mark(self, n_ahead: int, *, pin: bool = False) -> None:
        """Up to `n_ahead` of the tokens decoded next may be dropped again; `pin` keeps this place beside the
        latest one. Costs nothing where the cache `rolls_back_freely`."""
        self.resync()
        self.rollback.mark(len(self.tokens), n_ahead, pin=pin)

    @property
    def rolls_back_freely(self) -> bool:
        """Whether `roll_back` always keeps what it is asked to, without marks."""
        return self.rollback.name == "plain"

    def roll_back(self, n: int) -> int:
        """Keep at most the first `n` tokens; how many are kept (a checkpoint may hold fewer)."""
        self.resync()
        if n >= len(self.tokens):
            return len(self.tokens)
        self.in_doubt = True
        self._keep(self.rollback.roll_back(len(self.tokens), max(n, 0)))
        self.check()
        return len(self.tokens)

    def reuse(self, tokens: abc.Sequence[int]) -> int:
        """Keep the longest prefix that the cache shares with `tokens`; its length. Never raises."""
        if isinstance(self.context.handle, Elsewhere):
            self.context.handle.refresh()
        held = self.tokens
        if len(held) <= len(tokens) and held == tokens[: len(held)]:
            self.resync()
            return len(self.tokens)
        return self.roll_back(common_prefix(held, tokens))

    def copy(self, source: Sequence, n: int) -> int:
        """Hold the first `n` tokens of another sequence of this context instead of what is held now, without decoding;
        how many are held then. An attention cache shares its cells; any other gives all that it holds or nothing."""
        source.resync()
        self.clear()
        n = min(n, len(source.tokens))
        if n == 0 or (not self.rolls_back_freely and n < len(source.tokens)):
            return 0
        self.in_doubt = True
        ctx = self.context.handle
        if isinstance(self.rollback, Plain):
            backend.seq_cp(ctx, source.id, self.id, n)
            if backend.pos_max(ctx, self.id) == n - 1 and (n == len(source.tokens) or self.rollback.is_whole(n)):
                self._join(source, n)
                self.tokens[:] = source.tokens[:n]
        elif backend.set_state(ctx, backend.get_state(ctx, source.id), self.id):
            self.tokens[:] = source.tokens
        self.in_doubt = False
        if not self.tokens:
            self.clear()
        self.check()
        return len(self.tokens)

    def clear(self) -> None:
        """Empty the cache."""
        self.in_doubt = True
        backend.clear(self.context.handle, self.id)
        self.rollback.reset()
        self._keep(0)

    def emptied(self) -> None:
        """Nothing is held any more: the context is gone, and the next decode makes another."""
        self.rollback.reset()
        self._keep(0)

    def decoded(self, n_padding: int) -> None:
        """A pass came back whole, and `tokens` has what it read; its dummies are dropped."""
        if n_padding and not backend.seq_rm(self.context.handle, self.id, len(self.tokens)):
            raise BackendError("llama.cpp could not drop what padded a pass")
        self.in_doubt = False
        self.check()

    def resync(self) -> None:
        """After a native call that did not come back whole: believe the cache, or clear it."""
        if self.in_doubt:
            self._keep(self.rollback.resync(len(self.tokens)))

    def check(self) -> None:
        """Raise BackendError, emptied, unless the cache ends where `tokens` does."""
        last, wanted = backend.pos_max(self.context.handle, self.id), len(self.tokens) - 1
        if last != wanted:
            self.clear()
            raise BackendError(f"the cache ends at position {last}, not {wanted}: cleared")

    def _keep(self, n: int) -> None:
        """The cache holds n tokens for sure. Cells that were shared and are dropped are nobody's to promise: whoever
        shares them may keep them."""
        del self.tokens[n:]
        lost = max(self.n_shared - n, 0)
        if lost:
            self.n_shared -= lost
            self.n_reserved = max(self.n_reserved - lost, 1) if self.n_reserved else 0
        self.in_doubt = False

    def _join(self, source: Sequence, n: int) -> None:
        """Become one of `source`'s family. Of a member's cells beyond those that the family has in common, a copy is
        counted as if it took its own: too many, and never too few."""
        if source.family is None or source.n_shared == 0:
            source.family, source.n_shared = next(_families), n
        self.family, self.n_shared = source.family, min(n, source.n_shared)

    # --- saving -------------------------------------------------------------------------------------------

    def save(self) -> dict[str, Any]:
        """The cache, for `load` by a sequence of the same file, loaded alike, whose context can hold it."""
        self.resync()
        data = backend.get_state(self.context.handle, self.id)
        return {"model": self._identity, "tokens": list(self.tokens), "data": data}

    def fits(self, saved: object) -> bool:
        """Whether `saved` was written by such a sequence."""
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
        self.in_doubt = True  # until the tokens are here too, what it holds is nobody's
        if not backend.set_state(self.context.handle, saved["data"], self.id):
            self.clear()
            raise BackendError("llama.cpp refused the saved state")
        self.tokens[:] = saved["tokens"]
        self.in_doubt = False
        self.check()

    @property
    def _identity(self) -> dict[str, Any]:
        """What two files must share for a cache of one to mean the same in the other."""
        description = {k: v for k, v in self.weights.metadata.items() if not k.startswith("tokenizer.")}
        shaping = {k: v for k, v in self.weights.keywords.items() if k.startswith(("lora_", "rope_", "yarn_", "kv_"))}
        file = header.fingerprint(self.weights.path)
        return {"metadata": description, "n_vocab": self.n_vocab, "file": file, "keywords": shaping}
