"""Drafts without a second model: what followed the last occurrence of the latest n-gram, in the prompt or the output.

N-gram drafting from the prompt (Saxena 2023). One-hot drafts at no cost, exact by the one-hot rule for any token. This
module knows no model and decides nothing about how many tokens are worth drafting.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from specgguf.config import DRAFT_MAX_LIMIT

from .drafters import Proposal, Scores
from .records import Candidate, Draft, KeepDrafting, ToDistribution
from .sampling import Distribution, Logits, Rng
from .sequence import Forward

SIZES = (4, 3, 2)  # n-grams tried, the longest first


class NgramDrafter:
    """Looks the latest tokens up in the text itself.

    Args:
        n_vocab: ids from here on are never proposed.
        eog: a draft ends at its first end-of-generation token, which it keeps.
    """

    name = "ngram"

    def __init__(self, n_vocab: int, eog: frozenset[int]) -> None:
        self._n_vocab, self._eog = n_vocab, eog
        self._tokens: list[int] = []
        self._ends: dict[tuple[int, ...], int] = {}  # n-gram -> the position after its last occurrence

    def candidate(self, committed: Sequence[int]) -> Candidate | None:
        """What could be drafted now; None where no n-gram occurred before."""
        self._index(committed)
        for size in SIZES:
            end = self._ends.get(tuple(committed[-size:]))
            if end is not None:
                tokens = self._usable(committed[end : end + DRAFT_MAX_LIMIT])
                return Candidate(tokens, size) if tokens else None
        return None

    def propose(
        self,
        committed: Sequence[int],
        n_max: int,
        distribution: ToDistribution,
        rng: Rng,
        keep_drafting: KeepDrafting,
    ) -> Proposal:
        yield from ()  # no forward pass
        candidate = self.candidate(committed)
        tokens = candidate.tokens[:n_max] if candidate is not None else ()
        return Draft(tokens, (None,) * len(tokens), self.name if tokens else "")

    def score(
        self,
        committed: Sequence[int],
        probs: Sequence[Distribution],
        distribution: ToDistribution,
    ) -> Generator[Forward, Logits, Scores]:
        yield from ()
        return ()  # trying costs nothing

    def synchronise(self, committed: Sequence[int]) -> None:
        """Forget what was noted about another text."""
        if self._tokens != list(committed[: len(self._tokens)]):
            self._tokens, self._ends = [], {}

    def _usable(self, tokens: Sequence[int]) -> tuple[int, ...]:
        usable: list[int] = []
        for token in tokens:
            if token >= self._n_vocab:
                break
            usable.append(token)
            if token in self._eog:
                break
        return tuple(usable)

    def _index(self, committed: Sequence[int]) -> None:
        """Note every n-gram that is followed by a token."""
        self.synchronise(committed)
        for end in range(max(len(self._tokens), 1), len(committed)):
            for size in SIZES:
                if end >= size:
                    self._ends[tuple(committed[end - size : end])] = end
        self._tokens = list(committed)
