"""The caches of a pair: which sequences of the target and of the draft a generation gets, and what is saved of them.

A generation holds one of each. Whoever asks leads (`turns.lead`): nothing here waits, and nothing decodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specgguf.control.costs import PAD_MAX
from specgguf.decode.vocab_map import DraftText, VocabMap
from specgguf.errors import ConfigError
from specgguf.native.sequence import Owner
from specgguf.native.sequence import Sequence as Cached

CELLS_BESIDE = PAD_MAX + 1  # of a sequence's cells, beside its tokens: dummies that pad a pass


class Caches:
    """A target's context and perhaps a draft's, by one sequence of each.

    Attributes:
        n_sequences: how many generations they serve at once. With a `vocab_map` the draft's hold the draft's ids.
        contexts: the draft's first, which is freed before what it may stand on.
    """

    def __init__(self, target: Cached, draft: Cached | None, vocab_map: VocabMap | None = None) -> None:
        self._map = vocab_map
        self._models = {"target": target} | ({"draft": draft} if draft is not None else {})
        self.n_sequences = len(target.context.sequences)
        self.contexts: list[Owner] = [model.context for model in reversed(self._models.values())]

    def admit(self, prompt: Sequence[int], end: int) -> tuple[Cached, Cached | None] | None:
        """Sequences for a generation that may grow to `end` tokens, holding what is known of its prompt already; None
        while there is no room for it."""
        held: list[Cached] = []
        try:
            for name, model in self._models.items():
                sequence = model if self.n_sequences == 1 else self._admit(name, model, prompt, end)
                if sequence is None:
                    self.give_back(*held)
                    return None
                held.append(sequence)
        except BaseException:
            self.give_back(*held)
            raise
        return held[0], held[1] if len(held) > 1 else None

    def _admit(self, name: str, model: Cached, prompt: Sequence[int], end: int) -> Cached | None:
        tokens, n = prompt[:-1], end + CELLS_BESIDE
        if name == "draft" and self._map is not None:
            tokens, _ = DraftText(self._map).of(tokens)
            n += len(tokens) - len(prompt) + 1
        pool = model.context.pool
        admitted: Cached | None = pool.admit(tokens, min(n, pool.n_cells))
        return admitted

    def give_back(self, *sequences: Cached | None) -> None:
        """A generation has ended; what its sequences hold is kept while nobody needs the cells."""
        for sequence in sequences:
            if sequence is not None and self.n_sequences > 1:
                sequence.context.pool.release(sequence)

    def can_admit(self, n_tokens: int) -> bool:
        """Whether a generation that may grow to so many tokens could have sequences now."""
        pools = [model.context.pool for model in self._models.values()]
        return self.n_sequences == 1 or all(min(n_tokens + CELLS_BESIDE, p.n_cells) <= p.n_free for p in pools)

    def save(self) -> dict[str, Any]:
        """Of each context the sequence that was used last, for `load`."""
        if self.n_sequences == 1:
            return {name: model.save() for name, model in self._models.items()}
        return {name: max(m.context.sequences, key=_last_used).save() for name, m in self._models.items()}

    def check(self, state: object) -> None:
        """Raise ConfigError unless `state` is what `save` of such models returned."""
        if not isinstance(state, Mapping):
            raise ConfigError(
                f"load_state takes what save_state returned, not a {type(state).__name__}",
                hint="state = llm.save_state(); llm.load_state(state)",
            )
        if set(state) != set(self._models) or not all(m.fits(state[name]) for name, m in self._models.items()):
            raise ConfigError(
                "this state is of other models, longer than this context, or damaged",
                hint="load the files it was saved with, with their n_ctx, LoRA and rope settings",
            )

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `save`'s into empty caches; they are empty where that fails."""
        try:
            for name, model in self._models.items():
                model.load(state[name])
        except BaseException:
            self.clear()
            raise

    def clear(self) -> None:
        """Empty them all."""
        for context in self.contexts:
            for sequence in context.sequences:
                sequence.clear()

    def close(self) -> None:
        """Free the contexts."""
        for context in self.contexts:
            context.close()


def _last_used(sequence: Cached) -> int:
    return sequence.last_used
