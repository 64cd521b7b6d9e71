"""Drafts with the target's own prediction heads (MTP, NextN).

A head reads a token together with the hidden state that the target had one token earlier, and predicts the token after
the next; it drafts on from its own states. Where those come from is the sequences' business: here they are sequences
like any draft model's, one a head, that can read as far as the target has read, and one token further.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol

from specgguf.decode.drafters import Proposal, Scores, draw_along
from specgguf.decode.records import Draft, KeepDrafting, ToDistribution
from specgguf.decode.sampling import Distribution, Logits, Rng
from specgguf.decode.sequence import CachedSequence, Forward


class HeadSequence(CachedSequence, Protocol):
    """What a head has read of a text."""

    @property
    def n_readable(self) -> int:
        """How many tokens of the text kept last can be read with the target's own states."""


class HeadDrafter:
    """Drafts with one head over and over, or with the nth of several for the nth token.

    A draft that begins with tokens which the target has not read (the prompt, before its first pass; what a grammar
    forces) is empty: no states are known there.

    Args:
        heads: by depth.
        eog: end-of-generation ids.
        n_ctx: how many tokens they may hold; None takes the first one's context.
    """

    def __init__(
        self,
        heads: Sequence[HeadSequence],
        name: str = "heads",
        *,
        eog: frozenset[int] = frozenset(),
        n_ctx: int | None = None,
    ) -> None:
        self.heads = heads
        self.name = name
        self._eog = eog | heads[0].eog
        self._n_ctx = n_ctx or heads[0].n_ctx

    def propose(
        self,
        committed: Sequence[int],
        n_max: int,
        distribution: ToDistribution,
        rng: Rng,
        keep_drafting: KeepDrafting,
    ) -> Proposal:
        n_max = min(n_max, self._n_ctx - len(committed), len(self.heads) if len(self.heads) > 1 else n_max)
        if n_max <= 0:
            return Draft()
        heads = self.heads[:n_max]
        kept = [head.reuse(committed[:-1]) for head in heads]
        if heads[0].n_readable < len(committed):
            return Draft()
        text = list(committed)

        def forward(tokens: Sequence[int]) -> Forward:
            text.extend(tokens[-1:])
            head = heads[min(len(tokens), len(heads) - 1)]
            return Forward(head, text[len(head.tokens) :], 1)

        tokens, probs = yield from draw_along(forward, n_max, distribution, rng, keep_drafting, self._eog)
        return Draft(tokens, probs, self.name if tokens else "", len(committed) - kept[0])

    def score(
        self,
        committed: Sequence[int],
        probs: Sequence[Distribution],
        distribution: ToDistribution,
    ) -> Generator[Forward, Logits, Scores]:
        """One forward pass of the first head over all that it has not read: unlike a draft model it can skip nothing,
        since each token is read with the state before it."""
        head = self.heads[0]
        kept = head.reuse(committed[:-1])
        n = min(len(probs), len(committed) - 1 - kept)
        if n <= 0 or head.n_readable < len(committed) or len(committed) > self._n_ctx:
            return ()
        rows = yield Forward(head, committed[kept:-1], n)
        scores = []
        for i, (p, logits) in enumerate(zip(probs[-n:], rows, strict=True), len(committed) - n):
            q = distribution(logits, committed[:i])
            scores.append((q.confidence, p.overlap(q)))
        return tuple(scores)

    def synchronise(self, committed: Sequence[int]) -> None:
        for head in self.heads:
            head.reuse(committed)
