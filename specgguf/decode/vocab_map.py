"""Drafts whose ids are not the target's: which stand for which, and how the draft reads the target's text.

One map serves a draft of another vocabulary and a slimmed one. The draft's distribution is restricted to the ids that
both have and carried over to the target's (Timor et al. 2025, arXiv 2502.05202: token-level intersection), so the
verifier sees nothing new. It knows no bytes and no llama.cpp: who makes a map has compared the vocabularies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from specgguf.config import SamplingParams

from .sampling import Distribution, GrammarCursor, Ids, Logits, Transform
from .sequence import common_prefix

UNREADABLE = 2**31 - 1  # stands for a token that the draft cannot read: no vocabulary has this id

Spell = Callable[[int], Sequence[int]]


class VocabMap:
    """Which columns of the draft's logits stand for which of the target's ids. Without state of any text.

    Args:
        ids: (n_columns,) the target's id that each column of the draft's logits stands for; -1 for none. Several may
            stand for one.
        n_vocab: of the target.
        spell: the ids by which the draft reads a token of the target, () for one without any text. A token that the
            draft can propose is read as one id.
        start: ids that the draft reads before any text.
    """

    def __init__(self, ids: Iterable[int], *, n_vocab: int, spell: Spell, start: Sequence[int] = ()) -> None:
        all_ids = np.asarray(list(ids), dtype=np.int32)
        self.columns: Ids = np.flatnonzero((all_ids >= 0) & (all_ids < n_vocab)).astype(np.int32)
        self.ids: Ids = all_ids[self.columns]
        self.n_columns, self.n_vocab, self.start = len(all_ids), n_vocab, tuple(start)
        self._spell = spell
        self._spelled: dict[int, tuple[int, ...]] = {}
        # the place in `columns` of each of the target's ids; one beyond the end where it has none
        self._place = np.full(n_vocab, len(self.columns), dtype=np.int32)
        self._place[self.ids[::-1]] = np.arange(len(self.columns))[::-1]
        self._has_duplicates = len(np.unique(self.ids)) < len(self.ids)

    @property
    def share(self) -> float:
        """The part of the draft's ids that are the target's too."""
        return len(self.columns) / max(1, self.n_columns)

    def spelled(self, token: int) -> tuple[int, ...]:
        """The ids by which the draft reads a token of the target."""
        known = self._spelled.get(token)
        if known is None:
            known = self._spelled[token] = tuple(self._spell(token))
        return known

    def row(self, logits: Logits) -> Logits:
        """The logits of `columns`, in their order."""
        return logits if len(self.columns) == len(logits) else logits[self.columns]

    def places(self, tokens: Sequence[int]) -> list[int]:
        """Where the target's `tokens` stand in `columns` (the first of several); len(columns) for those that do not."""
        places: list[int] = self._place[np.asarray(tokens, dtype=np.int32)].tolist()
        return places

    def carried(self, distribution: Distribution) -> Distribution:
        """A distribution over places in `columns` as one over the target's ids: duplicates are summed."""
        ids = self.ids[distribution.ids]
        if not self._has_duplicates:
            return Distribution(ids, distribution.probs, distribution.confidence)
        found, at = np.unique(ids, return_inverse=True)
        probs = np.zeros(len(found))
        np.add.at(probs, at, distribution.probs)
        order = np.argsort(-probs, kind="stable")
        return Distribution(found[order], probs[order], distribution.confidence)

    def mask(self, mask: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """A grammar's mask over the target's ids as one over places in `columns`."""
        allowed = np.unpackbits(mask, count=self.n_vocab, bitorder="little")
        return np.packbits(allowed[self.ids], bitorder="little")


class MappedTransform(Transform):
    """The draft's logits to a distribution over the target's ids. What it is given speaks of the target's ids too.

    Filters and normalisation see only what both vocabularies have: of a restricted row the probabilities sum to 1, and
    at temperature 0 there is always a token to draft.
    """

    def __init__(
        self,
        params: SamplingParams,
        vocab_map: VocabMap,
        *,
        eog: frozenset[int] = frozenset(),
        grammar: GrammarCursor | None = None,
    ) -> None:
        super().__init__(params, n_vocab=vocab_map.n_vocab, eog=eog, grammar=grammar)
        self._map = vocab_map
        self._restricted = _Restricted(params, vocab_map, eog, grammar)

    def distribution(self, logits: Logits, generated: Sequence[int]) -> Distribution:
        return self._map.carried(self._restricted.distribution(self._map.row(logits), generated))


class _Restricted(Transform):
    """Over places in `VocabMap.columns`; what was generated is the target's ids."""

    def __init__(
        self, params: SamplingParams, vocab_map: VocabMap, eog: frozenset[int], grammar: GrammarCursor | None
    ) -> None:
        ids = vocab_map.ids.tolist()
        bias = {place: params.logit_bias[token] for place, token in enumerate(ids) if token in params.logit_bias}
        super().__init__(
            replace(params, logit_bias=bias),
            n_vocab=len(ids),
            eog=frozenset(place for place, token in enumerate(ids) if token in eog),
            grammar=None if grammar is None else _MappedCursor(grammar, vocab_map),
        )
        self._map = vocab_map

    def _adjusted(self, logits: Logits, generated: Sequence[int]) -> Logits:
        return super()._adjusted(logits, self._map.places(generated) if self._penalised else generated)


class _MappedCursor:
    """A grammar over the target's ids, its masks over places in `VocabMap.columns`."""

    def __init__(self, cursor: GrammarCursor, vocab_map: VocabMap) -> None:
        self._cursor, self._map = cursor, vocab_map

    def mask(self, generated: Sequence[int]) -> npt.NDArray[np.uint8]:
        return self._map.mask(self._cursor.mask(generated))

    def forced(self, generated: Sequence[int]) -> Sequence[int]:
        return self._cursor.forced(generated)


class DraftText:
    """The committed tokens of one sequence as the draft reads them, token by token.

    A token outside the map is read as the draft's own tokens of its bytes, so positions in the two caches differ.
    Nothing is tokenized anew where the text goes on: what is cached stays a prefix.
    """

    def __init__(self, vocab_map: VocabMap) -> None:
        self._map = vocab_map
        self._tokens: list[int] = []
        self._text: list[int] = list(vocab_map.start)
        self._ends: list[int] = []

    def of(self, committed: Sequence[int]) -> tuple[list[int], list[int]]:
        """What the draft reads for `committed`, and ends[i]: how many ids of it committed[:i + 1] are. Both until the
        next call."""
        n = common_prefix(self._tokens, committed)
        del self._tokens[n:], self._ends[n:]
        del self._text[self._ends[-1] if n else len(self._map.start) :]
        for token in committed[n:]:
            self._text += self._map.spelled(token)
            self._ends.append(len(self._text))
        self._tokens += committed[n:]
        return self._text, self._ends
