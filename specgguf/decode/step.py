"""The loop: draft, verify in one pass, commit, rewind. One round per turn of the loop.

It knows no text (the cutter does), no clock but the injected one, and no files. However it ends (finished,
closed early, cancelled, failed), both caches hold a prefix of the committed tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from specgguf.errors import ConfigError, ContextFull

from .drafters import PENDING_MAX, Drafter
from .ngrams import NgramDrafter
from .records import PROBE_MAX, Candidate, Draft, Plan, Round, TokenLogprob
from .sampling import Distribution, Logits, Rng, Transform, logprob
from .verifier import Rule, verify_token


class Target(Protocol):
    """What the loop needs of `model.Model`."""

    n_ctx: int
    eog: frozenset[int]

    @property
    def rolls_back_freely(self) -> bool:
        """Whether `rewind` always keeps what it is asked to, without marks."""

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds."""

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> Logits:
        """Decode `tokens` after the cached ones, beside dummies that are dropped again; logits of the last
        `n_rows`."""

    def mark(self, n_ahead: int, *, pin: bool = False) -> None:
        """Up to `n_ahead` of the tokens decoded next may be dropped again."""

    def reuse(self, tokens: Sequence[int]) -> int:
        """Keep the longest prefix shared with `tokens`; its length."""


class Controller(Protocol):
    """Decides how many tokens to draft."""

    def plan(self, n_draft_max: int, candidate: Candidate | None = None) -> Plan:
        """The next round, of at most `room` drafted tokens; `offer` is what a lookup found."""

    def observe(self, plan: Plan, round: Round) -> None:
        """What came of it."""


class Cutter(Protocol):
    """Decides where the text ends."""

    def cut(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        """How many of `tokens` to keep, and "eos", "stop", "length" or None."""


class _Rows(Sequence[Distribution]):
    """The target's laws along a draft, each made when first asked for."""

    def __init__(
        self, logits: Logits, draft: Draft, distribution: Callable[[Logits, Sequence[int]], Distribution], n: int
    ) -> None:
        self._logits, self._draft, self._distribution, self._n = logits, draft, distribution, n
        self._made: dict[int, Distribution] = {}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Distribution:  # type: ignore[override]
        if i not in self._made:
            self._made[i] = self._distribution(self._logits[i], self._draft.tokens[:i])
        return self._made[i]


@dataclass
class _Run:
    """One generation: its parts and the tokens committed so far."""

    target: Target
    drafter: Drafter | None
    ngrams: NgramDrafter | None
    committed: list[int]
    n_prompt: int
    end: int  # the most tokens that may be committed, the prompt's included
    transform: Transform
    draft_transform: Transform
    rng: Rng
    cutter: Cutter
    verify: Rule
    n_logprobs: int | None
    clock: Callable[[], float]
    plain_probs: list[Distribution] = field(default_factory=list)  # of the tokens since the last drafted round

    @property
    def n_draft_max(self) -> int:
        """How many tokens may be drafted: the bonus token needs a place too."""
        return max(self.end - len(self.committed) - 1, 0)

    def p(self, logits: Logits, tail: Sequence[int]) -> Distribution:
        return self.transform.distribution(logits, [*self.committed[self.n_prompt :], *tail])

    def q(self, logits: Logits, tail: Sequence[int]) -> Distribution:
        return self.draft_transform.distribution(logits, [*self.committed[self.n_prompt :], *tail])

    def round(self, controller: Controller) -> Round:
        """Plan, draft, verify, commit, rewind."""
        lap = _laps(self.clock)
        candidate = self.ngrams.candidate(self.committed) if self.ngrams is not None else None
        plan = controller.plan(self.n_draft_max, candidate)
        n_context = len(self.committed)
        probe = self._probe(plan)
        draft = self._draft(plan)
        draft_asked = plan.n_max > 0 and plan.source != "ngram"
        draft_s = lap()
        n_prefilled, pending = self._replay(draft)
        if len(draft):
            self.target.mark(len(pending) + len(draft) - 1)
        prefill_s = lap()
        n_padding = self._padding(plan, len(pending) + len(draft))
        logits = self.target.extend([*pending, *draft.tokens], len(draft) + 1, n_padding)
        verify_s = lap()

        ended = bool(draft.tokens) and draft.tokens[-1] in self.target.eog
        rows = _Rows(logits, draft, self.p, len(draft) + (not ended))
        result = self.verify(draft, rows, self.rng)
        self._remember(rows, draft)
        tokens = draft.tokens[: result.n_accepted]
        if result.next_token is not None:
            tokens = (*tokens, result.next_token)
        n_kept, reason = self.cutter.cut(tokens)
        tokens = tokens[:n_kept]
        logprobs = _logprobs(logits, tokens, self.n_logprobs)
        confidences = tuple(rows[i].confidence for i in range(n_kept))
        self.committed.extend(tokens)
        self.synchronise()

        if n_context == self.n_prompt:  # this pass read the prompt's end, and nothing else where nothing was drafted
            n_prefilled += len(pending)
            if not len(draft):
                prefill_s, verify_s = prefill_s + verify_s, 0.0
        round = Round(
            tokens=tokens,
            n_from_draft=min(result.n_accepted, n_kept),
            draft_n=len(draft),
            draft_n_accepted=result.n_accepted,
            finish_reason=reason or ("length" if len(self.committed) >= self.end else None),
            survival=result.survival,
            logprobs=logprobs,
            confidences=confidences,
            source=draft.source,
            probe=probe,
            n_pending=len(pending),
            n_padding=n_padding,
            n_prefilled=n_prefilled,
            n_draft_prefilled=self.drafter.n_draft_prefilled if self.drafter is not None and draft_asked else 0,
            n_context=n_context,
            prefill_s=prefill_s,
            draft_s=draft_s,
            verify_s=verify_s,
            host_s=lap(),
        )
        controller.observe(plan, round)
        return round

    def _draft(self, plan: Plan) -> Draft:
        drafter = self.ngrams if plan.source == "ngram" else self.drafter
        if drafter is None or plan.n_max <= 0:
            return Draft()
        return drafter.propose(self.committed, plan.n_max, self.q, self.rng, plan.keep_drafting)

    def _padding(self, plan: Plan, width: int) -> int:
        n = plan.padding(width)
        return n if len(self.target.tokens) + width + n <= self.target.n_ctx else 0

    def _probe(self, plan: Plan) -> tuple[tuple[float, float], ...]:
        if self.drafter is None or not plan.probe:
            return ()
        return self.drafter.score(self.committed, self.plain_probs[-plan.probe :], self.q)

    def _remember(self, rows: _Rows, draft: Draft) -> None:
        """Keep the laws of the latest plain tokens, for a probe."""
        if len(draft):
            self.plain_probs.clear()
        else:
            self.plain_probs.append(rows[0])
            del self.plain_probs[:-PROBE_MAX]

    def _replay(self, draft: Draft) -> tuple[int, list[int]]:
        """Decode what the target owes in a pass of its own where it is too much to ride along with a draft, or
        where the end of the prompt must be marked for the next turn.

        Returns:
            How many tokens were decoded, and those that are still owed (at least one).
        """
        pending = self.committed[len(self.target.tokens) :]
        pin = len(self.committed) == self.n_prompt and not self.target.rolls_back_freely
        if len(pending) <= (1 if pin else PENDING_MAX) or not (len(draft) or pin):
            return 0, pending
        self.target.extend(pending[:-1], 0)
        if pin:
            self.target.mark(0, pin=True)
        return len(pending) - 1, pending[-1:]

    def synchronise(self) -> None:
        """Both caches hold a prefix of committed[:-1]: what the next round builds on."""
        self.target.reuse(self.committed[:-1])
        if self.drafter is not None:
            self.drafter.sync(self.committed)


def generate(
    target: Target,
    drafter: Drafter | None,
    prompt: Sequence[int],
    *,
    ngrams: NgramDrafter | None = None,
    transform: Transform,
    draft_transform: Transform | None = None,
    rng: Rng,
    controller: Controller,
    cutter: Cutter,
    max_tokens: int,
    verify: Rule = verify_token,
    n_logprobs: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Round]:
    """Generate after `prompt`, a round at a time (Leviathan et al. 2023, algorithm 1).

    Args:
        lookup: drafts for nothing; what it finds is offered to the controller.
        transform, draft_transform: make p and q; the draft's is the target's unless given.
        max_tokens: at most so many, and never more than the context holds.
        verify: the acceptance rule.
        n_logprobs: report log-probabilities with so many alternatives; None does not.

    Raises:
        ConfigError: an empty prompt.
        ContextFull: the prompt leaves no room for a token.
        Cancelled, BackendError: from the models; what was yielded stands.
    """
    check_prompt(prompt, target.n_ctx)
    end = min(len(prompt) + max_tokens, target.n_ctx)
    run = _Run(
        target=target,
        drafter=drafter,
        ngrams=ngrams,
        committed=list(prompt),
        n_prompt=len(prompt),
        end=end,
        transform=transform,
        draft_transform=draft_transform or transform,
        rng=rng,
        cutter=cutter,
        verify=verify,
        n_logprobs=n_logprobs,
        clock=clock,
    )
    try:
        run.synchronise()
        while True:
            round = run.round(controller)
            yield round
            if round.finish_reason is not None:
                return
    finally:
        run.synchronise()


def check_prompt(prompt: Sequence[int], n_ctx: int) -> None:
    """Raise ConfigError for an empty prompt, ContextFull for one that leaves no room for a token."""
    if not prompt:
        raise ConfigError("the prompt is empty", hint="give at least one token")
    if len(prompt) >= n_ctx:
        raise ContextFull(
            f"the prompt has {len(prompt)} tokens and the context holds {n_ctx}",
            hint="a larger n_ctx (--n-ctx), or a shorter prompt",
        )


def _laps(clock: Callable[[], float]) -> Callable[[], float]:
    """A function that returns the seconds since it was last called."""
    last = clock()

    def lap() -> float:
        nonlocal last
        now = clock()
        seconds, last = now - last, now
        return seconds

    return lap


def _logprobs(logits: Logits, tokens: Sequence[int], n_top: int | None) -> tuple[TokenLogprob, ...]:
    if n_top is None:
        return ()
    return tuple(TokenLogprob(token, *logprob(logits[i], token, n_top)) for i, token in enumerate(tokens))
