"""Who may have how many of a context's cells: admission by reservation, and idle sequences as a prompt cache.

A request is admitted when all the cells that it may come to need can be promised, so a running one never finds the
cache full. What an idle sequence holds is kept until its cells are needed, and taken from the least recently used
first. It counts; it decodes nothing and knows nothing of requests.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Iterable

from specgguf.errors import ContextFull

from .sequence import Sequence, common_prefix


class Pool:
    """The sequences of one context and its cells.

    Args:
        sequences: all of them, idle.
        n_cells: tokens that they can hold together.
    """

    def __init__(self, sequences: abc.Sequence[Sequence], n_cells: int) -> None:
        self.sequences = sequences
        self.n_cells = n_cells
        self._n_released = 0

    @property
    def idle(self) -> list[Sequence]:
        """Sequences that nobody has, least recently used first."""
        return sorted((s for s in self.sequences if not s.n_reserved), key=lambda s: s.last_used)

    @property
    def n_free(self) -> int:
        """Cells that may still be promised; what idle sequences hold is free."""
        return self.n_cells - _n_cells((s for s in self.sequences if s.n_reserved), lambda s: s.n_reserved)

    @property
    def n_held(self) -> int:
        """Cells in use, idle sequences' included; shared ones count once."""
        return _n_cells(self.sequences, lambda s: len(s.tokens))

    def admit(self, tokens: abc.Sequence[int], n: int) -> Sequence | None:
        """A sequence that may grow to `n` tokens, holding as many of `tokens` as any sequence here has already.

        Of the idle ones that is the one that loses least of what it holds; what a running or a longer one shares with
        `tokens` is copied into it.

        Args:
            tokens: of the prompt, without the last one, whose logits are wanted.
            n: tokens in all, dummies beside them included.

        Returns:
            The sequence, until `release`; None where no sequence or not enough cells are free at present.

        Raises:
            ContextFull: not even all cells would do.
        """
        if n > self.n_cells:
            raise ContextFull(f"{n} tokens do not fit into a context of {self.n_cells}", hint="a larger --n-ctx")
        idle = self.idle
        if not idle:
            return None
        shared = {s.id: common_prefix(s.tokens, tokens) for s in self.sequences}
        source = max(self.sequences, key=lambda s: shared[s.id])
        n_common = shared[source.id]
        if source.rolls_back_freely or n_common == len(source.tokens):
            chosen = min(idle, key=lambda s: (len(s.tokens) - shared[s.id], -shared[s.id], s.last_used))
        else:  # only all that a sequence holds could be copied
            chosen = max(idle, key=lambda s: (shared[s.id], -s.last_used))
            n_common = shared[chosen.id]
        copies = n_common > shared[chosen.id]
        # What two running sequences share is promised once.
        n_once = min(n_common, source.n_shared or n_common) if copies and source.n_reserved else 0
        if n - n_once * chosen.rolls_back_freely > self.n_free:
            return None
        if copies:
            self._copy(source, chosen, n_common)
        else:
            chosen.reuse(tokens)
        chosen.n_reserved = n
        if self.n_free < 0:  # less could be shared than it seemed
            self.release(chosen)
            return None
        return chosen

    def _copy(self, source: Sequence, target: Sequence, n: int) -> None:
        target.clear()
        if not target.rolls_back_freely:  # cells of its own
            self._n_released += 1
            source.last_used = self._n_released  # the last one to be emptied for them
            self.evict(n)
        target.copy(source, n)

    def release(self, sequence: Sequence) -> None:
        """The sequence is idle again; what it holds is kept while nobody needs the cells."""
        self._n_released += 1
        sequence.n_reserved, sequence.last_used = 0, self._n_released

    def evict(self, n: int) -> None:
        """Empty idle sequences, least recently used first, until `n` more tokens have cells. For tokens within what was
        promised there always are enough."""
        idle = None
        while self.n_held + n > self.n_cells:
            idle = self.idle if idle is None else idle
            if not idle:
                return
            idle.pop(0).clear()


def _n_cells(sequences: Iterable[Sequence], extent: Callable[[Sequence], int]) -> int:
    """Cells for sequences of these lengths; what a family shares is counted once."""
    n, families = 0, dict[int | None, int]()
    for sequence in sequences:
        n += extent(sequence) - sequence.n_shared
        if sequence.n_shared:
            families[sequence.family] = max(families.get(sequence.family, 0), sequence.n_shared)
    return n + sum(families.values())
