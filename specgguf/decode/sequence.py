"""What decoding needs of a sequence: tokens whose cache is kept, forward passes over them, and a way back.

One protocol for the target's sequences and the draft's, and for whoever measures them. It says nothing of how a cache
drops what was rejected: that is `native.rollback`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple, Protocol, TypeVar

from .sampling import Logits

T = TypeVar("T")


class CachedSequence(Protocol):
    """One sequence of tokens in a context of a model."""

    n_ctx: int
    n_vocab: int
    eog: frozenset[int]

    @property
    def rolls_back_freely(self) -> bool:
        """Whether `roll_back` and `reuse` always keep what they are asked to, without marks."""

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds, in order."""

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> Logits:
        """Decode `tokens` after the cached ones, beside dummies that are dropped again; the logits of the last
        `n_outputs`, shape (n_outputs, n_vocab), until the next one."""

    def mark(self, n_ahead: int, *, pin: bool = False) -> None:
        """Up to `n_ahead` of the tokens decoded next may be dropped again; `pin` keeps this place for longer."""

    def roll_back(self, n: int) -> int:
        """Keep at most the first `n` tokens; how many are kept (a checkpoint may hold fewer)."""

    def reuse(self, tokens: Sequence[int]) -> int:
        """Keep the longest prefix that the cache shares with `tokens`; its length. Never raises."""


class Forward(NamedTuple):
    """A sequence's part of a forward pass.

    Attributes:
        tokens: decoded after what `sequence` holds.
        n_outputs: rows of logits that are wanted, of the last tokens.
        n_padding: dummies beside them, because a larger batch is faster.
        kind: what the pass is for: "draft", "prefill" or "verify".
    """

    sequence: CachedSequence
    tokens: Sequence[int]
    n_outputs: int
    n_padding: int = 0
    kind: str = "draft"


Decode = Callable[[Sequence[Forward]], Sequence[Logits]]


def decode_in_turn(parts: Sequence[Forward]) -> Sequence[Logits]:
    """One forward pass per part, for sequences of contexts of their own. Rows of several are copied: each may overwrite
    those of the one before it."""
    rows = [part.sequence.extend(part.tokens, part.n_outputs, part.n_padding) for part in parts[:1]]
    for part in parts[1:]:
        rows[-1] = rows[-1].copy()
        rows.append(part.sequence.extend(part.tokens, part.n_outputs, part.n_padding))
    return rows


def run_alone(asking: Generator[Forward, Logits, T]) -> T:
    """What comes of a proposal or a score that shares its forward passes with no other."""
    try:
        part = next(asking)
        while True:
            part = asking.send(decode_in_turn([part])[0])
    except StopIteration as done:
        result: T = done.value
        return result


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens `a` and `b` share."""
    a, b = list(a), list(b)  # a tuple's slice equals no list's
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while low < high:  # a[:low] is shared, a[:high + 1] is not
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
