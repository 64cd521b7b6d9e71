"""From logits to distributions, and from distributions to tokens.

`Transform.distribution` turns one row of logits into the sparse distribution that a token is drawn from: in the order
and with the defaults of llama-cpp-python's own sampler chain. The same function makes p (target) and q (draft), so the
array that a probability is read from is the array that the token was drawn from. `Rng` holds the only two
random primitives in the program. This module knows no model, no text and no clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specgguf.config import SamplingParams
from specgguf.errors import BackendError, ConfigError

Ids = npt.NDArray[np.int32]
Probs = npt.NDArray[np.float64]
Logits = npt.NDArray[np.float32]

FOLDS = 32  # logits per block of the block-maxima top-k; a block is a column of the row folded into so many
COLDEST = 1e-30  # a temperature below it is the same distribution, and overflows
LOOKED_AT = 256  # of the best ids: only where they hold too few legal ones is everything legal looked at
GREEDY_SEEN = 8  # candidates that a greedy distribution's confidence is taken over


class Distribution:
    """A sparse probability distribution over token ids.

    Attributes:
        ids: (n,) int32, distinct, in descending order of probability.
        probs: (n,) float64, all positive, summing to 1 within 1e-9.
        confidence: the likeliest id's share at temperature 1 among the candidates, before any truncation: what
            a greedy distribution (one id, probability 1) no longer shows.
    """

    __slots__ = ("confidence", "ids", "probs")

    def __init__(self, ids: Ids, probs: Probs, confidence: float = 1.0) -> None:
        self.ids = ids
        self.probs = probs
        self.confidence = confidence

    @property
    def n(self) -> int:
        """How many ids have a positive probability."""
        return len(self.ids)

    def prob(self, token: int) -> float:
        """The probability of `token`; 0 for an id outside the support."""
        at = (self.ids == token).nonzero()[0]
        return float(self.probs[at[0]]) if len(at) else 0.0

    def on(self, ids: Ids) -> Probs:
        """The probabilities of `ids`, in their order: shape (len(ids),)."""
        if len(ids) * self.n <= 16384:
            return np.asarray((ids[:, None] == self.ids) @ self.probs, dtype=np.float64)
        order = self.ids.argsort()
        at = np.minimum(self.ids.searchsorted(ids, sorter=order), self.n - 1)
        found = order[at]
        return np.where(self.ids[found] == ids, self.probs[found], 0.0)

    def overlap(self, other: Distribution) -> float:
        """Σ min(p, q) = 1 − total variation: the chance that token verification accepts."""
        return float(np.minimum(self.probs, other.on(self.ids)).sum())


def one_hot(token: int) -> Distribution:
    """The distribution of a token that was not drawn but chosen."""
    return Distribution(np.array([token], dtype=np.int32), np.ones(1))


def residual(p: Distribution, q: Distribution, scale: float = 1.0) -> tuple[Distribution, float]:
    """norm(max(0, scale·p − q)) and its mass before normalising; a zero residual falls back to p."""
    weights = np.maximum(0.0, scale * p.probs - q.on(p.ids))
    mass = float(weights.sum())
    if mass <= 0.0:
        return p, 0.0
    keep = weights > 0.0
    return Distribution(p.ids[keep], weights[keep] / mass), mass


class Rng:
    """The random source of one generation. A seed (0 is one too) makes it repeatable; None does not."""

    def __init__(self, seed: int | None = None) -> None:
        self._generator = np.random.Generator(np.random.PCG64(None if seed is None else seed % 2**64))

    def categorical(self, probs: Probs) -> int:
        """An index into `probs`, drawn with these weights (their sum need not be exactly 1)."""
        if len(probs) == 1:
            return 0
        cumulative = probs.cumsum()
        at = cumulative.searchsorted(self._generator.random() * cumulative[-1], side="right")
        return int(min(at, len(probs) - 1))

    def bernoulli(self, p: float) -> bool:
        """True with probability `p`: u < p, so 0 never and 1 always."""
        return bool(self._generator.random() < p)


def draw(distribution: Distribution, rng: Rng) -> int:
    """A token id drawn from `distribution`."""
    return int(distribution.ids[rng.categorical(distribution.probs)])


def largest(logits: Logits, k: int) -> Ids:
    """The ids of the k largest logits, in descending order (ties: the lower id first); all when k <= 0.

    Block maxima: the k-th largest maximum over blocks is a lower bound of the k-th logit, so only the blocks at
    or above it are looked at and only what passes it is sorted. Blocks are strided, which makes their maxima one
    pass over the row in order.

    Raises:
        BackendError: there is a NaN or +inf among them.
    """
    n = len(logits)
    blocks = n // FOLDS
    if k <= 0 or blocks < 8 * k:
        _refuse_broken(logits.max())
    if k <= 0 or k >= n:
        return (-logits).argsort(kind="stable").astype(np.int32)
    if blocks < 8 * k:
        ids = logits.argpartition(n - k)[n - k :]
        ids = (logits >= logits[ids].min()).nonzero()[0]
    else:
        whole = blocks * FOLDS
        folded, rest = logits[:whole].reshape(FOLDS, blocks), logits[whole:]
        maxima = folded.max(axis=0)
        ordered = maxima.copy()
        ordered.partition(blocks - k)  # NaNs come last
        _refuse_broken(np.maximum(ordered[blocks - k :].max(), rest.max(initial=-np.inf)))
        bound = ordered[blocks - k]
        columns = (maxima >= bound).nonzero()[0]
        row, column = (folded[:, columns] >= bound).nonzero()
        ids = row * blocks + columns[column]
        if len(rest):
            ids = np.concatenate((ids, whole + (rest >= bound).nonzero()[0]))
    order = (-logits[ids]).argsort(kind="stable")[:k]
    return ids[order].astype(np.int32)


class GrammarCursor(Protocol):
    """What decoding needs of a grammar: which ids may come next, and which must."""

    def mask(self, generated: Sequence[int]) -> npt.NDArray[np.uint8]:
        """The ids that may come after `generated`: bit `id % 8` of byte `id // 8`; the bytes reach over all ids."""

    def forced(self, generated: Sequence[int]) -> Sequence[int]:
        """The ids that must come after `generated`; none where there is a choice."""


class Transform:
    """Logits and history to a distribution, for one set of sampling parameters. Pure.

    Order: logit_bias (with min_tokens and ignore_eos) → penalties → grammar → [temperature 0: argmax; below 0:
    plain softmax] → top_k → typical_p → top_p → min_p → temperature.

    Args:
        params: the sampling parameters.
        n_vocab: only ids below it can be drawn (the other model may have fewer ids).
        eog: the end-of-generation ids, for min_tokens and ignore_eos.
        grammar: the cursor of a grammar, or None.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        n_vocab: int,
        eog: frozenset[int] = frozenset(),
        grammar: GrammarCursor | None = None,
    ) -> None:
        self.params = params
        self.n_vocab = n_vocab
        self.grammar = grammar
        for token in params.logit_bias:
            if not 0 <= token < n_vocab:
                raise ConfigError(f"logit_bias names token {token}; this model's ids are 0 to {n_vocab - 1}")
        self._bias_ids = np.array(list(params.logit_bias), dtype=np.int32)
        self._bias = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self._eog = np.array(sorted(t for t in eog if t < n_vocab), dtype=np.int32)
        self._penalised = params.penalty_last_n > 0 and (
            params.repeat_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        )

    def distribution(self, logits: Logits, generated: Sequence[int]) -> Distribution:
        """The distribution of the next token.

        Args:
            logits: one row, shape (>= n_vocab,) float32; not modified.
            generated: all tokens generated so far, the drafted ones before this row included.

        Raises:
            BackendError: the row holds a NaN or +inf.
            ConfigError: the parameters allow no token.
        """
        logits = self._adjusted(logits[: self.n_vocab], generated)
        params = self.params
        if params.temperature == 0.0:
            ids = self._candidates(logits, GREEDY_SEEN, generated, enough=1)
            return Distribution(ids[:1], np.ones(1), float(1.0 / np.exp(logits[ids] - logits[ids[0]]).sum()))
        if params.temperature < 0.0:
            ids = self._candidates(logits, 0, generated)
            return _normalised(ids, logits[ids].astype(np.float64), 1.0)
        ids = self._candidates(logits, params.top_k, generated)
        scores = logits[ids].astype(np.float64)
        weights = np.exp(scores - scores[0])
        confidence = float(1.0 / weights.sum())
        if params.typical_p < 1.0:
            kept = _typical(scores, params.typical_p)
            ids, scores = ids[kept], scores[kept]
            weights = np.exp(scores - scores[0])
        n = len(ids)
        if params.top_p < 1.0:
            n = int(weights.cumsum().searchsorted(params.top_p * weights.sum(), side="left")) + 1
        if params.min_p > 0.0:
            n = min(n, int((-scores).searchsorted(-(scores[0] + np.log(params.min_p)), side="right")))
        n = max(n, 1)
        return _normalised(ids[:n], scores[:n] / max(params.temperature, COLDEST), confidence)

    def _adjusted(self, logits: Logits, generated: Sequence[int]) -> Logits:
        """`logits` with biases and penalties: a copy where anything changes, else the row itself."""
        params = self.params
        forbid_eog = len(self._eog) and (params.ignore_eos or len(generated) < params.min_tokens)
        if not (len(self._bias_ids) or forbid_eog or (self._penalised and generated)):
            return logits
        logits = logits.copy()
        logits[self._bias_ids] += self._bias
        if forbid_eog:
            logits[self._eog] = -np.inf
        if self._penalised and generated:
            ids, counts = np.unique(generated[-params.penalty_last_n :], return_counts=True)
            ids, counts = ids[ids < self.n_vocab], counts[ids < self.n_vocab]
            scores = logits[ids]
            scores = np.where(scores <= 0, scores * params.repeat_penalty, scores / params.repeat_penalty)
            scores -= counts * params.frequency_penalty + params.presence_penalty
            logits[ids] = scores
        return logits

    def _candidates(self, logits: Logits, k: int, generated: Sequence[int], enough: int | None = None) -> Ids:
        """The k best legal ids in descending order (all when k <= 0), or at least the `enough` best."""
        if self.grammar is not None:
            return self._legal(logits, k, k if enough is None else enough, generated)
        ids = largest(logits, k)
        if logits[ids[-1]] == -np.inf:
            ids = ids[logits[ids] > -np.inf]
        if not len(ids):
            raise ConfigError("logit_bias forbids every token")
        return ids

    def _legal(self, logits: Logits, k: int, enough: int, generated: Sequence[int]) -> Ids:
        """As `_candidates`, under the grammar. The same ids as masking everything first, but mostly the few best
        hold enough legal ones; where the grammar is narrow, only what it allows is looked at."""
        assert self.grammar is not None
        mask = self.grammar.mask(generated)
        best = largest(logits, LOOKED_AT)
        ids: Ids = best[(mask[best >> 3] >> (best & 7) & 1).astype(bool)]
        if not 0 < enough <= len(ids):
            allowed = np.flatnonzero(np.unpackbits(mask, count=len(logits), bitorder="little"))
            ids = allowed[largest(logits[allowed], k)].astype(np.int32) if len(allowed) else ids[:0]
        ids = ids[logits[ids] > -np.inf]
        if not len(ids):
            raise ConfigError("the grammar allows no token of this model here")
        return ids[:k] if k > 0 else ids


def _refuse_broken(peak: np.floating[Any]) -> None:
    """`peak` is a maximum of logits, which numpy makes a NaN where one of them is. A logit of +inf would make a NaN of
    the whole distribution, and min(1, NaN) accepts everything."""
    if not peak < np.inf:
        raise BackendError(f"the model's logits are not numbers ({'NaN' if np.isnan(peak) else 'infinite'})")


def _normalised(ids: Ids, scores: Probs, confidence: float) -> Distribution:
    """softmax(scores) as a distribution over `ids`, without the entries that underflow to 0."""
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    if probs[-1] == 0.0:
        ids, probs = ids[probs > 0.0], probs[probs > 0.0]
    return Distribution(ids, probs, confidence)


def _typical(scores: Probs, typical_p: float) -> npt.NDArray[np.intp]:
    """Indices kept by locally typical sampling, in descending order of score."""
    logprobs = scores - scores[0]
    logprobs -= np.log(np.exp(logprobs).sum())
    probs = np.exp(logprobs)
    surprise = np.where(probs > 0.0, -logprobs, 0.0)
    order = np.argsort(np.abs(-logprobs - (probs * surprise).sum()), kind="stable")
    n = int(np.searchsorted(np.cumsum(probs[order]), typical_p, side="right")) + 1
    return np.sort(order[:n])


def logprob(logits: Logits, token: int, n_top: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """log softmax(logits)[token] and the `n_top` likeliest (id, logprob): the model's own, untransformed."""
    peak = logits.max()
    norm = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    ids = largest(logits, n_top) if n_top > 0 else np.empty(0, dtype=np.int32)
    return float(logits[token]) - norm, tuple((int(i), float(logits[i]) - norm) for i in ids)
