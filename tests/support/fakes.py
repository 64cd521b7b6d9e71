"""Table-driven models whose output depends on what their cache really holds.

A `FakeModel` behaves as `specgguf.model.Model` does for the loop: it has tokens, it extends, rewinds, reuses.
Its logits are a function of its cells, the tokens decoded and not dropped, so a cache that is stale, shifted
or doubled changes the law of what follows. It is strict where llama.cpp would fail or abort: unknown ids,
more rows than tokens, a full context. Rows are overwritten by the next `extend`, as llama.cpp's are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from specgguf.decode.records import Candidate, Plan, Round, always

Table = Callable[[tuple[int, ...]], np.ndarray]  # context -> logits (n_vocab,) float32
KeepDrafting = Callable[[int, Any], bool]


def logits_of(probs: np.ndarray) -> np.ndarray:
    """float32 logits of a law; -inf where it is 0."""
    with np.errstate(divide="ignore"):
        logits: np.ndarray = np.log(probs).astype(np.float32)
    return logits


def random_table(seed: int, n_vocab: int, *, zeros: float = 0.0, of: Table | None = None, mix: float = 0.5) -> Table:
    """A law per context, drawn once from `seed` and the context.

    Args:
        zeros: the share of ids that a context forbids (one is always left).
        of: blend with this table's law, `mix` parts of it: a draft that agrees with its target in part.
    """
    known: dict[tuple[int, ...], np.ndarray] = {}

    def table(context: tuple[int, ...]) -> np.ndarray:
        if context not in known:
            rng = np.random.default_rng([seed, len(context), *context])
            probs = rng.dirichlet(np.ones(n_vocab))
            if of is not None:
                base = np.zeros(n_vocab)
                other = np.exp(of(context).astype(np.float64))
                n = min(n_vocab, len(other))
                base[:n] = other[:n]
                probs = (1.0 - mix) * probs + mix * base
            allowed = rng.random(n_vocab) >= zeros
            allowed[rng.integers(n_vocab)] = True
            probs = np.where(allowed, probs, 0.0)
            known[context] = logits_of(probs / probs.sum())
        return known[context]

    return table


class FakeModel:
    """See the module. `cells` is the truth.

    Args:
        table: context -> logits.
        memory: "plain" keeps any prefix; "checkpoint" only what was marked (the latest mark and the pinned one),
            as a recurrent memory does; "never" nothing.
    """

    def __init__(
        self,
        table: Table,
        n_vocab: int,
        *,
        n_ctx: int = 64,
        eog: frozenset[int] = frozenset(),
        memory: str = "plain",
    ) -> None:
        self.table = table
        self.n_vocab = n_vocab
        self.n_ctx = n_ctx
        self.eog = eog
        self.memory = memory
        self.cells: list[int] = []
        self.marks = {False: 0, True: 0}  # the latest one, and the pinned one
        self.n_decodes = 0
        self.n_decoded = self.n_padded = 0
        self._rows: np.ndarray | None = None

    @property
    def tokens(self) -> Sequence[int]:
        return tuple(self.cells)

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> np.ndarray:
        """Decode after the cached tokens; (n_rows, n_vocab) float32, overwritten by the next call. Dummies need
        room, and a memory that drops them."""
        if not 0 <= n_outputs <= len(tokens) or not tokens:
            raise ValueError(f"{n_outputs} rows of {len(tokens)} tokens")
        if len(self.cells) + len(tokens) + n_padding > self.n_ctx:
            raise ValueError(f"{len(self.cells)} + {len(tokens)} + {n_padding} tokens do not fit into {self.n_ctx}")
        if n_padding and not self.rolls_back_freely:
            raise ValueError("this memory cannot drop dummies")
        self.n_padded += n_padding
        if self._rows is not None:
            self._rows[:] = np.nan
        self._rows = np.empty((n_outputs, self.n_vocab), dtype=np.float32)
        self.n_decodes += 1
        self.n_decoded += len(tokens)
        for i, token in enumerate(tokens):
            if not 0 <= token < self.n_vocab:
                raise ValueError(f"token {token} is not in a vocabulary of {self.n_vocab}")
            self.cells.append(int(token))
            row = i - (len(tokens) - n_outputs)
            if row >= 0:
                self._rows[row] = self.table(tuple(self.cells))
        return self._rows

    @property
    def rolls_back_freely(self) -> bool:
        return self.memory == "plain"

    def mark(self, n_ahead: int, *, pin: bool = False) -> None:
        """The memory may have to go back to here."""
        self.marks[pin] = len(self.cells)

    def roll_back(self, n: int) -> int:
        """Keep at most the first `n` tokens; how many are kept."""
        if n < len(self.cells):
            if self.memory == "checkpoint":
                n = max(m for m in (0, *self.marks.values()) if m <= n)
                self.marks = {pin: min(m, n) for pin, m in self.marks.items()}
            elif self.memory == "never":
                n = 0
            del self.cells[n:]
        return len(self.cells)

    def reuse(self, tokens: Sequence[int]) -> int:
        """Keep the longest common prefix with `tokens`; its length."""
        n = 0
        while n < min(len(tokens), len(self.cells)) and tokens[n] == self.cells[n]:
            n += 1
        return self.roll_back(n)


class FakeStopCheck:
    """Where a text ends, on token ids: eog, a stop sequence of ids, a number of tokens; in this order."""

    def __init__(self, max_tokens: int, *, eog: frozenset[int] = frozenset(), stop: tuple[int, ...] = ()) -> None:
        self.max_tokens = max_tokens
        self.eog = eog
        self.stop = stop
        self.seen: list[int] = []

    def check(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        for i, token in enumerate(tokens):
            self.seen.append(token)
            if token in self.eog:
                return i + 1, "eos"
            if self.stop and tuple(self.seen[-len(self.stop) :]) == self.stop:
                return i + 1, "stop"
            if len(self.seen) >= self.max_tokens:
                return i + 1, "length"
        return len(tokens), None


class Script:
    """A controller that drafts by a list of lengths, over and over, whatever happens.

    Args:
        probe: where it rests, the draft scores so many of the last plain tokens.
        lookup: takes what a lookup offers, where it offers something.
        padding: pads every pass by so many dummies.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        keep_drafting: KeepDrafting | None = None,
        *,
        probe: int = 0,
        ngrams: bool = False,
        padding: int = 0,
    ) -> None:
        self.lengths = lengths
        self.keep_drafting = keep_drafting
        self.probe = probe
        self.ngrams = ngrams
        self.padding = padding
        self.rounds: list[Round] = []

    def plan(self, n_draft_max: int, candidate: Candidate | None = None) -> Plan:
        n_max = min(self.lengths[len(self.rounds) % len(self.lengths)], n_draft_max)
        probe = 0 if n_max else self.probe
        ngrams = self.ngrams and candidate is not None
        return Plan(
            n_max,
            self.keep_drafting or always,
            source="ngram" if ngrams else "",
            probe=0 if ngrams else probe,
            padding=lambda _width: self.padding,
        )

    def observe(self, plan: Plan, round: Round) -> None:
        self.rounds.append(round)


class FakeClock:
    """A clock that moves by the tokens that its models decode: deterministic costs for the controller.

    Args:
        costs: model -> (seconds a decode, seconds a token).
        host: seconds that every look at the clock takes.
    """

    def __init__(self, costs: Sequence[tuple[FakeModel, float, float]], host: float = 1e-6) -> None:
        self.costs = costs
        self.host = host
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        models = sum(m.n_decodes * a + m.n_decoded * b for m, a, b in self.costs)
        return models + self.looks * self.host
