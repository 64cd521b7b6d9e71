"""Who proposes tokens: `propose` turns the committed text into a Draft.

A drafter owns its model's cache and keeps it a prefix of the committed tokens; it knows neither the target nor
the verifier, and decides nothing about how many tokens are worth drafting: `go_on` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .rounds import Draft
from .sampling import Law, Logits, Rng, draw


class Extendable(Protocol):
    """What a drafter needs of `model.Model`."""

    tokens: Sequence[int]
    n_ctx: int
    eog: frozenset[int]

    def extend(self, tokens: Sequence[int], n_rows: int) -> Sequence[Logits]:
        """Decode `tokens` after the cached ones; logits of the last `n_rows`."""

    def reuse(self, tokens: Sequence[int]) -> int:
        """Keep the longest prefix that the cache shares with `tokens`; its length."""


class Drafter(Protocol):
    """Proposes tokens after a committed text."""

    name: str
    n_synced: int  # tokens decoded to catch up in the last propose()

    def propose(
        self,
        committed: Sequence[int],
        n_max: int,
        law: Callable[[Logits, Sequence[int]], Law],
        rng: Rng,
        go_on: Callable[[int, Law], bool],
    ) -> Draft:
        """At most `n_max` tokens after `committed`.

        Args:
            law: law(logits, tail) is the law after committed + tail.
            go_on: go_on(i, law) is asked before token i is drawn from `law`; False ends the draft.
        """

    def sync(self, committed: Sequence[int]) -> None:
        """Drop what the cache holds beyond its common prefix with `committed`; never decodes."""


class ModelDrafter:
    """Drafts with a small model of the target's vocabulary, one token at a time."""

    def __init__(self, model: Extendable, name: str = "model") -> None:
        self.model = model
        self.name = name
        self.n_synced = 0

    def propose(
        self,
        committed: Sequence[int],
        n_max: int,
        law: Callable[[Logits, Sequence[int]], Law],
        rng: Rng,
        go_on: Callable[[int, Law], bool],
    ) -> Draft:
        model = self.model
        self.n_synced = 0
        n_max = min(n_max, model.n_ctx - len(committed))
        if n_max <= 0:
            return Draft()
        kept = model.reuse(committed[:-1])
        self.n_synced = len(committed) - kept
        tokens: list[int] = []
        laws: list[Law] = []
        logits = model.extend(committed[kept:], 1)[0]
        while True:
            q = law(logits, tokens)
            if not go_on(len(tokens), q):
                break
            tokens.append(draw(q, rng))
            laws.append(q)
            if len(tokens) == n_max or tokens[-1] in model.eog:
                break
            logits = model.extend(tokens[-1:], 1)[0]
        return Draft(tuple(tokens), tuple(laws), self.name)

    def sync(self, committed: Sequence[int]) -> None:
        self.model.reuse(committed)
