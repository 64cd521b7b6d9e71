"""Who proposes tokens: `propose` turns the committed text into a Draft.

A small model does, or the text itself: what followed the last occurrence of its latest n-gram. A drafter owns its
model's cache and keeps it a prefix of the committed tokens; it knows neither the target nor the verifier, and decides
nothing about how many tokens are worth drafting: `keep_drafting` does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Protocol

from specgguf.config import DRAFT_MAX_LIMIT
from specgguf.errors import ConfigError

from .records import PROBE_MAX, Candidate, Draft, KeepDrafting, ToDistribution
from .sampling import Distribution, Logits, Rng, draw
from .sequence import CachedSequence, Forward
from .vocab_map import DraftText, VocabMap

# Pending tokens ride along with the next pass; more than these are replayed in one of their own, after which the
# cache is marked again (a checkpoint would otherwise fall further behind with each rejection).
PENDING_MAX = 8
SCORE_CONTEXT = 16  # tokens read before the scored ones when the middle of a text is skipped
NGRAM_SIZES = (4, 3, 2)  # n-grams tried, the longest first


Proposal = Generator[Forward, Logits, Draft]
Scores = tuple[tuple[float, float], ...]


class Drafter(Protocol):
    """Proposes tokens after a committed text."""

    name: str

    def propose(
        self,
        committed: Sequence[int],
        n_max: int,
        distribution: ToDistribution,
        rng: Rng,
        keep_drafting: KeepDrafting,
    ) -> Proposal:
        """At most `n_max` tokens after `committed`.

        Args:
            distribution: distribution(logits, tail) is that after committed + tail.
            keep_drafting: see `records.Plan`.
        """

    def score(
        self,
        committed: Sequence[int],
        probs: Sequence[Distribution],
        distribution: ToDistribution,
    ) -> Generator[Forward, Logits, Scores]:
        """How well this drafter would have done on the latest plain tokens: (confidence, Σ min(p, q)) of each.

        Args:
            distribution: distribution(logits, text) is that after `text`, a prefix of `committed`.
            probs: probs[i] is the target's distribution that committed[len(committed) - len(probs) + i] was drawn from.
        """

    def synchronise(self, committed: Sequence[int]) -> None:
        """Drop what the cache holds beyond its common prefix with `committed`; never decodes."""


def draw_along(
    forward: Callable[[Sequence[int]], Forward],
    n_max: int,
    distribution: ToDistribution,
    rng: Rng,
    keep_drafting: KeepDrafting,
    eog: frozenset[int],
) -> Generator[Forward, Logits, tuple[tuple[int, ...], tuple[Distribution, ...]]]:
    """Draw tokens one after the other, at most `n_max` and none after one of `eog`: the tokens, and the distributions
    that they were drawn from.

    Args:
        forward: forward(drafted) is the pass whose row is the next token's; asked once for each token.
    """
    tokens, probs = list[int](), list[Distribution]()
    while True:
        logits = (yield forward(tokens))[0]
        try:
            q = distribution(logits, tokens)
        except ConfigError:
            break  # nothing that may follow is in the draft's vocabulary
        if not keep_drafting(len(tokens), q):
            break
        tokens.append(draw(q, rng))
        probs.append(q)
        if len(tokens) == n_max or tokens[-1] in eog or not keep_drafting(len(tokens), None):
            break
    return tuple(tokens), tuple(probs)


class ModelDrafter:
    """Drafts with a small model, one token at a time.

    Args:
        eog: end-of-generation ids of the target, which the draft's file may not know as such.
        vocab_map: where the draft's ids are not the target's.
        n_ctx: how many ids the model may hold; None: all that it can.
    """

    def __init__(
        self,
        model: CachedSequence,
        name: str = "model",
        *,
        eog: frozenset[int] = frozenset(),
        vocab_map: VocabMap | None = None,
        n_ctx: int | None = None,
    ) -> None:
        self.model = model
        self.name = name
        self._eog = eog if vocab_map is not None else model.eog | eog
        self._n_ctx = model.n_ctx if n_ctx is None else n_ctx
        self._map = vocab_map
        self._text = DraftText(vocab_map) if vocab_map is not None else None

    def propose(
        self,
        committed: Sequence[int],
        n_max: int,
        distribution: ToDistribution,
        rng: Rng,
        keep_drafting: KeepDrafting,
    ) -> Proposal:
        model = self.model
        text, _ = self._read(committed)
        n_max = min(n_max, self._n_ctx - len(text))
        if n_max <= 0 or not text:
            return Draft()
        kept = model.reuse(text[:-1])
        pending = text[kept:]
        if max(pending) >= model.n_vocab:
            return Draft()  # a token that only the target has: the draft cannot read on
        n_prefilled = len(pending)
        if len(pending) > PENDING_MAX and not model.rolls_back_freely:
            yield Forward(model, pending[:-1], 0)
            pending = pending[-1:]
        model.mark(len(pending) + n_max - 1)

        def forward(tokens: Sequence[int]) -> Forward:
            if not tokens:
                return Forward(model, pending, 1)
            return Forward(model, tokens[-1:] if self._map is None else self._map.spelled(tokens[-1]), 1)

        tokens, probs = yield from draw_along(forward, n_max, distribution, rng, keep_drafting, self._eog)
        return Draft(tokens, probs, self.name if tokens else "", n_prefilled)

    def score(
        self,
        committed: Sequence[int],
        probs: Sequence[Distribution],
        distribution: ToDistribution,
    ) -> Generator[Forward, Logits, Scores]:
        """One batched decode. Where the cache lags far behind, the middle is skipped: the scored tokens and a few
        before them are read right after what is cached, and dropped again. The scores are then a little too low,
        at a small part of what the draft's whole prefill costs."""
        model = self.model
        text, ends = self._read(committed[:-1])
        kept = model.reuse(text)
        first = max(len(committed) - len(probs), 1)
        rows_at = [ends[i - 1] - 1 for i in range(first, len(committed))]  # the row in `text` that token i is scored by
        rows_at = [at for at in rows_at if kept <= at and len(text) - at <= PROBE_MAX]
        if not rows_at:
            return ()
        n_rows = len(text) - rows_at[0]
        window = n_rows + SCORE_CONTEXT
        skips = len(text) - kept > window and model.rolls_back_freely
        pending = text[-window:] if skips else text[kept:]
        if kept + len(pending) > self._n_ctx or max(pending) >= model.n_vocab:
            return ()
        rows = yield Forward(model, pending, n_rows)
        scores = []
        for i, at in enumerate(rows_at, len(committed) - len(rows_at)):
            q = distribution(rows[at - rows_at[0]], committed[:i])
            scores.append((q.confidence, probs[i - len(committed)].overlap(q)))
        if skips:
            model.reuse(text[:kept])
        return tuple(scores)

    def synchronise(self, committed: Sequence[int]) -> None:
        self.model.reuse(self._read(committed)[0])

    def _read(self, committed: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
        """What the model reads for `committed`, and how many ids of it each of its prefixes is, see `DraftText.of`."""
        if self._text is None:
            return committed, range(1, len(committed) + 1)
        return self._text.of(committed)


class NgramDrafter:
    """Drafts without a model, from the prompt and the output (Saxena 2023): one-hot drafts at no cost, exact by the
    one-hot rule for any token.

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
        for size in NGRAM_SIZES:
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
            for size in NGRAM_SIZES:
                if end >= size:
                    self._ends[tuple(committed[end - size : end])] = end
        self._tokens = list(committed)
