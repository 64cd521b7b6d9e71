"""The state of one sequence under generation: its parts, the tokens committed so far, and the target's view of a draft.

It decides nothing: a round over it is `step.speculate`.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specgguf.config import DRAFT_MAX_LIMIT
from specgguf.errors import BackendError, ConfigError

from .drafters import Drafter, NgramDrafter
from .records import FORCED, Candidate, Draft
from .sampling import Distribution, GrammarCursor, Logits, Rng, Transform
from .sequence import CachedSequence
from .verifier import Rule, verify_token


class StopCheck(Protocol):
    """Decides where the text ends."""

    def check(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        """How many of `tokens` to keep, and "eos", "stop", "length" or None."""


@dataclass(eq=False)
class Run:
    """One sequence under generation: its parts and the tokens committed so far.

    Attributes:
        end: the most tokens that may be committed, the prompt's included.
        plain_probs: the target's distributions at the latest plain tokens, for a probe.
        grammar: says which tokens must come, and so can be drafted for nothing.
        off_reason: why the draft model is not asked any more, in one line; "" where it is.
    """

    target: CachedSequence
    drafter: Drafter | None
    ngrams: NgramDrafter | None
    committed: list[int]
    n_prompt: int
    end: int
    transform: Transform
    draft_transform: Transform
    rng: Rng
    stop_check: StopCheck
    verify: Rule = verify_token
    n_logprobs: int | None = None
    plain_probs: list[Distribution] = field(default_factory=list)
    grammar: GrammarCursor | None = None
    off_reason: str = ""
    _forced: tuple[int, ...] = ()
    _forced_at: int = -1

    @property
    def n_draft_max(self) -> int:
        """How many tokens may be drafted: the bonus token needs a place too."""
        return max(self.end - len(self.committed) - 1, 0)

    @property
    def candidate(self) -> Candidate | None:
        """What can be drafted for nothing now: the tokens that must come, else what an n-gram of the text suggests."""
        if self.ngrams is None:
            return None
        forced = self.forced
        return Candidate(forced, FORCED) if forced else self.ngrams.candidate(self.committed)

    @property
    def forced(self) -> tuple[int, ...]:
        """The tokens that must come now, as far as they are forced."""
        if self.grammar is None:
            return ()
        if self._forced_at != len(self.committed):  # asked for the plan, and again for the draft
            self._forced, self._forced_at = self._find_forced(self.grammar), len(self.committed)
        return self._forced

    def _find_forced(self, grammar: GrammarCursor) -> tuple[int, ...]:
        try:
            tokens = grammar.forced(self.committed[self.n_prompt :])[:DRAFT_MAX_LIMIT]
        except (BackendError, ConfigError):  # a limit of the search for them: plain decoding may go on
            return ()
        return tuple(itertools.takewhile(lambda token: token < self.draft_transform.n_vocab, tokens))

    @property
    def reads_prompt(self) -> bool:
        """Whether the next round is the first: its pass reads the end of the prompt."""
        return len(self.committed) == self.n_prompt

    def p(self, logits: Logits, tail: Sequence[int]) -> Distribution:
        """The target's distribution after the committed tokens and `tail`."""
        return self.transform.distribution(logits, [*self.committed[self.n_prompt :], *tail])

    def q(self, logits: Logits, tail: Sequence[int]) -> Distribution:
        """The draft's distribution after the committed tokens and `tail`."""
        return self.draft_transform.distribution(logits, [*self.committed[self.n_prompt :], *tail])

    def stop_drafting(self, error: Exception) -> None:
        """The draft model failed: what is left of this answer is generated without it."""
        self.off_reason = f"the draft model failed: {error}"
        if self.drafter is not None:
            with contextlib.suppress(BackendError):
                self.drafter.synchronise(self.committed)
            self.drafter = None

    def q_after(self, logits: Logits, text: Sequence[int]) -> Distribution:
        """The draft's distribution after `text`, which begins with the prompt."""
        return self.draft_transform.distribution(logits, text[self.n_prompt :])

    def synchronise(self) -> None:
        """Roll both caches back to a prefix of committed[:-1]: what the next round builds on."""
        self.target.reuse(self.committed[:-1])
        if self.drafter is not None:
            self.drafter.synchronise(self.committed)


class Rows(Sequence[Distribution]):
    """The target's distributions along a draft, each made when first asked for. No bonus row after a token that ends
    the generation."""

    def __init__(self, logits: Logits, draft: Draft, run: Run) -> None:
        ended = bool(draft.tokens) and draft.tokens[-1] in run.target.eog
        self._logits, self._draft, self._p, self._n = logits, draft, run.p, len(draft) + (not ended)
        self._made: dict[int, Distribution] = {}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Distribution:  # type: ignore[override]
        if i not in self._made:
            self._made[i] = self._p(self._logits[i], self._draft.tokens[:i])
        return self._made[i]
