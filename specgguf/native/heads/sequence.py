"""What a prediction head has read of one text: a sequence like a draft model's, that is fed hidden states too.

It knows which of its tokens were read with the target's own states, and not what is made of its rows.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Mapping
from typing import Any

from specgguf.decode.sequence import common_prefix
from specgguf.native.rollback import Rollback
from specgguf.native.sequence import Owner, Sequence

from .states import HiddenStates

Follow = Callable[[Sequence, int], "list[HeadSequence]"]  # see `contexts.PredictionHeads.follow`


class HeadSequence(Sequence):
    """See the module.

    Attributes:
        states: what the target knows of it.
    """

    def __init__(self, context: Owner, id: int, rollback: Rollback, states: HiddenStates, follow: Follow) -> None:
        super().__init__(context, id, rollback)
        self.states = states
        self._follow = follow
        self._n_certain = 0  # of its tokens: read with the target's own states

    def follow(self, target: Sequence) -> list[HeadSequence]:
        """Read from now on what `target` reads; this one and those of the heads after it."""
        return self._follow(target, self.id)

    @property
    def n_readable(self) -> int:
        """How many tokens of its text can be read with the target's own states."""
        return len(self.states.tokens) + 1

    def has_read(self, n: int) -> None:
        """The last n tokens were read with the states known now."""
        if self._n_certain >= len(self.tokens) - n:
            self._n_certain = min(len(self.tokens), self.n_readable)

    def reuse(self, tokens: abc.Sequence[int]) -> int:
        """As `Sequence.reuse`, but what was read with guessed states is dropped even where its tokens were right."""
        self.states.reuse(tokens)
        return self.roll_back(min(common_prefix(self.tokens, tokens), self._n_certain))

    def copy(self, source: Sequence, n: int) -> int:
        n_certain = as_head(source)._n_certain
        n_copied = super().copy(source, min(n, n_certain))
        self._n_certain = n_copied
        return n_copied

    def save(self) -> dict[str, Any]:
        self.roll_back(self._n_certain)
        return {**super().save(), "states": self.states.save()}

    def fits(self, saved: object) -> bool:
        return super().fits(saved) and isinstance(saved, Mapping) and self.states.fits(saved.get("states"))

    def load(self, saved: Mapping[str, Any]) -> None:
        super().load(saved)
        self._n_certain = len(self.tokens)
        self.states.load(saved["states"])

    def _keep(self, n: int) -> None:
        super()._keep(n)
        self._n_certain = min(self._n_certain, n)


def as_head(sequence: Sequence) -> HeadSequence:
    assert isinstance(sequence, HeadSequence)
    return sequence
