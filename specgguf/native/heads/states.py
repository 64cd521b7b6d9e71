"""What the target's layers gave for each token it has read: what a prediction head reads the token after with.

It knows rows and tokens; where they come from and who reads them is `contexts`' business.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Mapping
from typing import Any

import numpy as np

from specgguf.decode.sequence import common_prefix
from specgguf.native import backend


class HiddenStates:
    """The hidden state after each token that one sequence of the target has read, and guesses for the tokens after.

    Attributes:
        tokens: whose states are known.
    """

    def __init__(self, n_embd: int) -> None:
        self.tokens: list[int] = []
        self._rows = np.zeros((256, n_embd), np.float32)
        self._guessed: list[backend.Logits] = []

    def take(self, tokens: abc.Sequence[int], rows: backend.Logits) -> None:
        """The target holds `tokens`; `rows` are the states of the last of them."""
        start = len(tokens) - len(rows)
        if len(tokens) > len(self._rows):
            n_more = max(len(self._rows), len(tokens) - len(self._rows))
            self._rows = np.concatenate([self._rows, np.zeros((n_more, self._rows.shape[1]), np.float32)])
        self._rows[start : len(tokens)] = rows
        self.tokens[start:] = tokens[start:]
        self._guessed.clear()

    def reuse(self, tokens: abc.Sequence[int]) -> int:
        """Keep what is known of a prefix of `tokens`; its length."""
        kept = common_prefix(self.tokens, tokens)
        if kept < len(self.tokens) or self._guessed:
            del self.tokens[kept:]
            self._guessed.clear()
        return kept

    def copy(self, source: HiddenStates, n: int) -> None:
        """Know what `source` knows of its first n tokens."""
        self.tokens.clear()
        self.take(source.tokens[:n], source._rows[:n])

    def guess(self, position: int, row: backend.Logits) -> None:
        """What a head takes for the state at a position that the target has not read."""
        i = position - len(self.tokens)
        if 0 <= i <= len(self._guessed):
            self._guessed[i:] = [row.copy()]

    def before(self, position: int, n: int) -> backend.Logits:
        """The states that n tokens from `position` on are read with, those of one position earlier each: zero before
        the first token and where nothing is known."""
        rows = np.zeros((n, self._rows.shape[1]), np.float32)
        first, n_known = max(position - 1, 0), len(self.tokens)
        known = self._rows[first : min(position + n - 1, n_known)]
        rows[first - (position - 1) :][: len(known)] = known
        for i, row in enumerate(self._guessed, n_known + 1 - position):
            if 0 <= i < n:
                rows[i] = row
        return rows

    def save(self) -> dict[str, Any]:
        """For `load`."""
        return {"tokens": list(self.tokens), "rows": self._rows[: len(self.tokens)].tobytes()}

    def fits(self, saved: object) -> bool:
        """Whether `saved` can be loaded."""
        match saved:
            case {"tokens": list(tokens), "rows": bytes() | bytearray() | memoryview() as rows}:
                return bool(memoryview(rows).nbytes == len(tokens) * self._rows[0].nbytes)
        return False

    def load(self, saved: Mapping[str, Any]) -> None:
        """Restore `save`'s."""
        self.tokens.clear()
        self.take(saved["tokens"], np.frombuffer(saved["rows"], np.float32).reshape(-1, self._rows.shape[1]))
