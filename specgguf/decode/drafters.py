"""Who proposes tokens: `propose` turns the committed text into a Draft.

A drafter owns its model's cache and keeps it a prefix of the committed tokens; it knows neither the target nor
the verifier, and decides nothing about how many tokens are worth drafting: `go_on` does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from .records import Draft
from .sampling import Distribution, Logits, Rng, draw

# Owed tokens ride along with the next pass; more than these are replayed in one of their own, after which the
# cache is marked again (a checkpoint would otherwise fall further behind with each rejection).
PENDING_MAX = 8
SCORE_CONTEXT = 16  # tokens read before the scored ones when the middle of a text is skipped


class Extendable(Protocol):
    """What a drafter needs of `model.Model`."""

    n_ctx: int
    n_vocab: int
    eog: frozenset[int]

    @property
    def rolls_back_freely(self) -> bool:
        """Whether the cache keeps any prefix that it is asked to, without marks."""

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds."""

    def extend(self, tokens: Sequence[int], n_outputs: int) -> Logits:
        """Decode `tokens` after the cached ones; logits of the last `n_rows`."""

    def mark(self, n_ahead: int) -> None:
        """Up to `n_ahead` of the tokens decoded next may be dropped again."""

    def reuse(self, tokens: Sequence[int]) -> int:
        """Keep the longest prefix that the cache shares with `tokens`; its length."""


class Drafter(Protocol):
    """Proposes tokens after a committed text."""

    name: str
    n_draft_prefilled: int  # tokens decoded to catch up in the last propose()

    def propose(
        self,
        committed: Sequence[int],
        n_max: int,
        distribution: Callable[[Logits, Sequence[int]], Distribution],
        rng: Rng,
        keep_drafting: Callable[[int, Distribution | None], bool],
    ) -> Draft:
        """At most `n_max` tokens after `committed`.

        Args:
            law: law(logits, tail) is the law after committed + tail.
            go_on: see `rounds.Plan`.
        """

    def score(
        self,
        committed: Sequence[int],
        probs: Sequence[Distribution],
        distribution: Callable[[Logits, Sequence[int]], Distribution],
    ) -> tuple[tuple[float, float], ...]:
        """How well this drafter would have done on the latest plain tokens: (confidence, Σ min(p, q)) of each.

        Args:
            laws: laws[i] is the target's law that committed[len(committed) - len(laws) + i] was drawn from.
        """

    def sync(self, committed: Sequence[int]) -> None:
        """Drop what the cache holds beyond its common prefix with `committed`; never decodes."""


class ModelDrafter:
    """Drafts with a small model of the target's vocabulary, one token at a time.

    Args:
        eog: end-of-generation ids of the target, which the draft's file may not know as such.
    """

    def __init__(self, model: Extendable, name: str = "model", *, eog: frozenset[int] = frozenset()) -> None:
        self.model = model
        self.name = name
        self.n_draft_prefilled = 0
        self._eog = model.eog | eog

    def propose(
        self,
        committed: Sequence[int],
        n_max: int,
        distribution: Callable[[Logits, Sequence[int]], Distribution],
        rng: Rng,
        keep_drafting: Callable[[int, Distribution | None], bool],
    ) -> Draft:
        model = self.model
        self.n_draft_prefilled = 0
        n_max = min(n_max, model.n_ctx - len(committed))
        if n_max <= 0:
            return Draft()
        kept = model.reuse(committed[:-1])
        if max(committed[kept:]) >= model.n_vocab:
            return Draft()  # an id that only the target has: the draft cannot read on
        self.n_draft_prefilled = len(committed) - kept
        tokens: list[int] = []
        probs: list[Distribution] = []
        pending = committed[kept:]
        if len(pending) > PENDING_MAX and not model.rolls_back_freely:
            model.extend(pending[:-1], 0)
            pending = pending[-1:]
        model.mark(len(pending) + n_max - 1)
        logits = model.extend(pending, 1)[0]
        while True:
            q = distribution(logits, tokens)
            if not keep_drafting(len(tokens), q):
                break
            tokens.append(draw(q, rng))
            probs.append(q)
            if len(tokens) == n_max or tokens[-1] in self._eog or not keep_drafting(len(tokens), None):
                break
            logits = model.extend(tokens[-1:], 1)[0]
        return Draft(tuple(tokens), tuple(probs), self.name if tokens else "")

    def score(
        self,
        committed: Sequence[int],
        probs: Sequence[Distribution],
        distribution: Callable[[Logits, Sequence[int]], Distribution],
    ) -> tuple[tuple[float, float], ...]:
        """One batched decode. Where the cache lags far behind, the middle is skipped: the scored tokens and a few
        before them are read right after what is cached, and dropped again. The scores are then a little too low,
        at a small part of the price of catching up."""
        model = self.model
        kept = model.reuse(committed[:-1])
        n = min(len(probs), len(committed) - 1 - kept)
        window = n + SCORE_CONTEXT
        skips = len(committed) - 1 - kept > window and model.rolls_back_freely
        pending = committed[-1 - window : -1] if skips else committed[kept:-1]
        if n == 0 or kept + len(pending) > model.n_ctx or max(pending) >= model.n_vocab:
            return ()
        rows = model.extend(pending, n)
        scores = []
        for p, logits in zip(probs[-n:], rows, strict=True):
            q = distribution(logits, ())
            scores.append((q.confidence, p.overlap(q)))
        if skips:
            model.reuse(committed[:kept])
        return tuple(scores)

    def sync(self, committed: Sequence[int]) -> None:
        self.model.reuse(committed)
