"""Sums of rounds: what was drafted, reached and accepted, how long it took, and llama.cpp's `timings` keys.

Every figure follows from the rounds that were added; nothing here measures or decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from .records import Round

TRACE_MAX = 4096


@dataclass
class Stats:
    """Running sums over rounds.

    Attributes:
        n_prompt, n_cached: prompt tokens, and how many of them the target's cache already held.
        n_prefilled: prompt tokens that the target read. n_replayed: tokens that it read again, because its memory
            could only go back further than was needed; the time counts as verifying.
        n_generated: committed tokens, an end-of-generation token included.
        n_rounds: passes of the target. n_plain: those of them that checked no draft.
        draft_n, draft_n_accepted: drafted and accepted tokens.
        drafted_by_position, reached_by_position, accepted_by_position: per position in the draft, from 0. A
            position is reached when all before it were accepted.
        plain_n, plain_s: tokens and seconds of the rounds that checked no draft, but for those that read a prompt: how
            fast plain decoding was here, probes of the draft not counted.
        n_from_draft: accepted tokens that were kept (a block may be cut by the end of the text).
        prompt_s, draft_s, verify_s, host_s: seconds reading prompts, drafting, verifying, and outside both.
        draft_lengths: the draft length of each round, the last 4096.
        by_n_sequences: of rounds that so many sequences had together: how many, and drafted and accepted tokens.
        off_reason: why drafting is off now; "" when it is not.
    """

    n_prompt: int = 0
    n_cached: int = 0
    n_prefilled: int = 0
    n_replayed: int = 0
    n_generated: int = 0
    n_rounds: int = 0
    n_plain: int = 0
    plain_n: int = 0
    plain_s: float = 0.0
    n_from_draft: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0
    drafted_by_position: list[int] = field(default_factory=list)
    reached_by_position: list[int] = field(default_factory=list)
    accepted_by_position: list[int] = field(default_factory=list)
    prompt_s: float = 0.0
    draft_s: float = 0.0
    verify_s: float = 0.0
    host_s: float = 0.0
    draft_lengths: list[int] = field(default_factory=list)
    by_n_sequences: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    off_reason: str = ""
    _reading: bool = field(default=True, repr=False)  # the round that reads the prompt comes next

    def begin(self, n_prompt: int, n_cached: int) -> None:
        """A generation over `n_prompt` tokens starts, `n_cached` of them in the target's cache."""
        self.n_prompt += n_prompt
        self.n_cached += n_cached
        self._reading = True

    def add(self, round: Round, *, shared: bool = False) -> None:
        """One more round.

        Args:
            shared: these are the sums over all sequences: of seconds that several spent together each has its part.
        """
        if shared and round.n_sequences > 1:
            names = ("prefill_s", "draft_s", "verify_s", "host_s")
            round = replace(round, **{name: getattr(round, name) / round.n_sequences for name in names})
        n, drafted, accepted = self.by_n_sequences.get(round.n_sequences, (0, 0, 0))
        so_far = (n + 1, drafted + round.draft_n, accepted + round.draft_n_accepted)
        self.by_n_sequences[round.n_sequences] = so_far
        self.n_rounds += 1
        self.n_plain += round.draft_n == 0
        self.n_generated += len(round.tokens)
        if self._reading:
            self.n_prefilled += round.n_prefilled
            self.prompt_s += round.prefill_s
        else:
            self.n_replayed += round.n_prefilled
            self.verify_s += round.prefill_s
            if not round.draft_n:
                self.plain_n += len(round.tokens)
                self.plain_s += round.prefill_s + round.verify_s + round.host_s
        self._reading = False
        self.n_from_draft += round.n_from_draft
        self.draft_n += round.draft_n
        self.draft_n_accepted += round.draft_n_accepted
        while len(self.drafted_by_position) < round.draft_n:
            self.drafted_by_position.append(0)
            self.reached_by_position.append(0)
            self.accepted_by_position.append(0)
        for i in range(round.draft_n):
            self.drafted_by_position[i] += 1
            self.reached_by_position[i] += i <= round.draft_n_accepted
            self.accepted_by_position[i] += i < round.draft_n_accepted
        self.draft_s += round.draft_s
        self.verify_s += round.verify_s
        self.host_s += round.host_s
        self.draft_lengths.append(round.draft_n)
        del self.draft_lengths[:-TRACE_MAX]

    @property
    def predicted_s(self) -> float:
        """Seconds of generating, without reading the prompt."""
        return self.draft_s + self.verify_s + self.host_s

    @property
    def acceptance(self) -> float | None:
        """Accepted over drafted; None when nothing was drafted."""
        return self.draft_n_accepted / self.draft_n if self.draft_n else None

    @property
    def tokens_per_pass(self) -> float:
        """Committed tokens per forward pass of the target."""
        return self.n_generated / self.n_rounds if self.n_rounds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second of generating."""
        return self.n_generated / self.predicted_s if self.predicted_s else 0.0

    def timings(self) -> dict[str, Any]:
        """llama.cpp's keys and meanings: `predicted_*` is what was generated, `*_ms` are milliseconds."""

        def per(count: float, amount: float) -> float:
            return count / amount if amount else 0.0

        prompt_ms, predicted_ms = self.prompt_s * 1e3, self.predicted_s * 1e3
        return {
            "cache_n": self.n_cached,
            "prompt_n": self.n_prefilled,
            "prompt_ms": prompt_ms,
            "prompt_per_token_ms": per(prompt_ms, self.n_prefilled),
            "prompt_per_second": per(self.n_prefilled * 1e3, prompt_ms),
            "predicted_n": self.n_generated,
            "predicted_ms": predicted_ms,
            "predicted_per_token_ms": per(predicted_ms, self.n_generated),
            "predicted_per_second": per(self.n_generated * 1e3, predicted_ms),
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
        }
