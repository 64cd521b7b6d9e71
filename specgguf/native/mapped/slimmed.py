"""A slimmed draft loaded: it reads the ids of the file that it was cut from, and its rows are of those that it kept.

Knows no target: which of the two vocabularies' ids stand for each other is `pair`'s business.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specgguf.errors import BackendError, ModelNotFound, Unsupported
from specgguf.models import header, slim
from specgguf.native import backend, devices, vocab
from specgguf.native.weights import Weights

from .rows import EmbeddingBatch, Embeddings


def open_draft(path: str, keywords: Mapping[str, Any]) -> Weights:
    """A draft's file, slimmed or not. Raises what `Weights` and `slim.read` raise."""
    try:
        found = slim.read(Path(path))
    except ModelNotFound:
        raise
    except (header.GgufError, OSError):  # what cannot be read is `Weights`' to refuse
        found = None
    return Weights(path, keywords) if found is None else SlimmedWeights(path, keywords, found)


class SlimmedWeights(Weights):
    """See the module. `vocab`, `n_vocab`, `eog` and pieces are of the vocabulary that it reads."""

    def __init__(self, path: str | os.PathLike[str], keywords: Mapping[str, Any], slimmed: slim.Slimmed) -> None:
        if keywords.get("rpc_servers"):
            raise Unsupported("a slimmed draft cannot lie on workers", hint="without --draft-rpc-servers")
        self._full: Any = None
        self._stack = contextlib.ExitStack()
        super().__init__(path, keywords)
        try:
            ids = slimmed.ids
            if len(ids) != self.n_vocab:
                raise BackendError(f"{self.path} is damaged: it names {len(ids)} ids of {self.n_vocab}")
            self._full = self._stack.enter_context(devices.vocabulary(str(slimmed.source)))
            self._embeddings = Embeddings(slimmed.source, scales=slimmed.scales)
            self._stack.callback(self._embeddings.close)
            self._pieces = {False: {}, True: {}}
            self.columns, self.n_columns = ids, len(ids)
            self.n_vocab = vocab.vocab_size(self.vocab)
            self.eog = vocab.eog_tokens(self.vocab)
            self.fim = vocab.fim_tokens(self.vocab)
            self.bos, self.eos, self.nl = (ids[t] if t >= 0 else t for t in (self.bos, self.eos, self.nl))
        except BaseException:
            self.close()
            raise

    @property
    def vocab(self) -> Any:
        return super().vocab if self._full is None else (self.llama and self._full)

    def batch(self, n_tokens: int) -> backend.Batch:
        return EmbeddingBatch(n_tokens, self._embeddings)

    def tokenize(self, text: bytes, *, add_bos: bool = True, special: bool = False) -> list[int]:
        with self.in_use():
            return vocab.tokenize(self.vocab, text, add_bos=add_bos, special=special)

    def close(self) -> None:
        super().close()
        if os.getpid() == self._pid:
            self._stack.close()
        else:
            self._stack.pop_all()
