"""The loop: draft, verify in one pass, commit, rewind. One round per turn of the loop.

It knows no text (the cutter does), no clock but the injected one, and no files. However it ends (finished,
closed early, cancelled, failed), both caches hold a prefix of the committed tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from .drafter import Drafter
from .errors import ConfigError, ContextFull
from .rounds import Draft, Plan, Round, TokenLogprob
from .sampling import Law, Logits, Rng, Transform, logprob
from .verifier import Rule, verify_token

OWED_RIDING_MAX = 8  # more owed tokens than this are replayed in a decode of their own before a verification


class Target(Protocol):
    """What the loop needs of `model.Model`."""

    n_ctx: int
    eog: frozenset[int]

    @property
    def tokens(self) -> Sequence[int]:
        """What the cache holds."""

    def extend(self, tokens: Sequence[int], n_rows: int) -> Logits:
        """Decode `tokens` after the cached ones; logits of the last `n_rows`."""

    def rewind(self, n: int) -> int:
        """Keep at most the first `n` tokens."""

    def reuse(self, tokens: Sequence[int]) -> int:
        """Keep the longest prefix shared with `tokens`; its length."""


class Controller(Protocol):
    """Decides how many tokens to draft."""

    def plan(self, room: int) -> Plan:
        """The next round, of at most `room` drafted tokens."""

    def observe(self, round: Round) -> None:
        """What came of it."""


class Cutter(Protocol):
    """Decides where the text ends."""

    def cut(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        """How many of `tokens` to keep, and "eos", "stop", "length" or None."""


class _Rows(Sequence[Law]):
    """The target's laws along a draft, each made when first asked for."""

    def __init__(
        self, logits: Logits, draft: Draft, law: Callable[[Logits, Sequence[int]], Law], n: int
    ) -> None:
        self._logits, self._draft, self._law, self._n = logits, draft, law, n
        self._made: dict[int, Law] = {}

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: int) -> Law:  # type: ignore[override]
        if i not in self._made:
            self._made[i] = self._law(self._logits[i], self._draft.tokens[:i])
        return self._made[i]


def generate(
    target: Target,
    drafter: Drafter | None,
    prompt: Sequence[int],
    *,
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
        transform, draft_transform: make p and q; the draft's is the target's unless given.
        max_tokens: at most so many, and never more than the context holds.
        verify: the acceptance rule.
        n_logprobs: report log-probabilities with so many alternatives; None does not.

    Raises:
        ConfigError: an empty prompt.
        ContextFull: the prompt leaves no room for a token.
        Cancelled, BackendError: from the models; what was yielded stands.
    """
    if not prompt:
        raise ConfigError("the prompt is empty", hint="give at least one token")
    if len(prompt) >= target.n_ctx:
        raise ContextFull(
            f"the prompt has {len(prompt)} tokens and the context holds {target.n_ctx}",
            hint="a larger n_ctx (--n-ctx), or a shorter prompt",
        )
    committed = list(prompt)
    n_prompt, end = len(prompt), min(len(prompt) + max_tokens, target.n_ctx)
    q_transform = draft_transform or transform

    def draft_law(logits: Logits, tail: Sequence[int]) -> Law:
        return q_transform.law(logits, [*committed[n_prompt:], *tail])

    def target_law(logits: Logits, tail: Sequence[int]) -> Law:
        return transform.law(logits, [*committed[n_prompt:], *tail])

    target.reuse(committed[:-1])
    try:
        while True:
            started = clock()
            plan = controller.plan(max(end - len(committed) - 1, 0))
            draft = Draft()
            if plan.n_max > 0 and drafter is not None:
                draft = drafter.propose(committed, plan.n_max, draft_law, rng, plan.go_on)
            drafted = clock()
            owed = committed[len(target.tokens) :]
            n_prefilled = 0
            if len(draft) and len(owed) > OWED_RIDING_MAX:
                n_prefilled = len(owed) - 1
                target.extend(owed[:-1], 0)
                owed = owed[-1:]
            prefilled = clock()
            logits = target.extend([*owed, *draft.tokens], len(draft) + 1)
            verified = clock()

            n_rows = len(draft) + (not draft.tokens or draft.tokens[-1] not in target.eog)
            verdict = verify(draft, _Rows(logits, draft, target_law, n_rows), rng)
            tokens = draft.tokens[: verdict.n_accepted]
            if verdict.next_token is not None:
                tokens = (*tokens, verdict.next_token)
            n_kept, reason = cutter.cut(tokens)
            tokens = tokens[:n_kept]
            logprobs = _logprobs(logits, tokens, n_logprobs)
            n_context = len(committed)
            committed.extend(tokens)
            if reason is None and len(committed) >= end:
                reason = "length"
            target.rewind(len(committed) - 1)
            if drafter is not None:
                drafter.sync(committed)

            reads_prompt = n_context == n_prompt and not len(draft)
            round = Round(
                tokens=tokens,
                n_from_draft=min(verdict.n_accepted, n_kept),
                draft_n=len(draft),
                draft_n_accepted=verdict.n_accepted,
                finish_reason=reason,
                survival=verdict.survival,
                logprobs=logprobs,
                source=draft.source,
                n_owed=len(owed),
                n_prefilled=len(owed) if reads_prompt else n_prefilled,
                n_synced=drafter.n_synced if len(draft) and drafter is not None else 0,
                n_context=n_context,
                prefill_s=(verified if reads_prompt else prefilled) - drafted,
                draft_s=drafted - started,
                verify_s=0.0 if reads_prompt else verified - prefilled,
                host_s=clock() - verified,
            )
            controller.observe(round)
            yield round
            if reason is not None:
                return
    finally:
        target.reuse(committed)
        if drafter is not None:
            drafter.sync(committed)


def _logprobs(logits: Logits, tokens: Sequence[int], n_top: int | None) -> tuple[TokenLogprob, ...]:
    if n_top is None:
        return ()
    return tuple(TokenLogprob(token, *logprob(logits[i], token, n_top)) for i, token in enumerate(tokens))
