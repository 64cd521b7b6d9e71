"""The rounds of one sequence alone, with a controller of the caller's: the loop without an engine around it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from specgguf.decode.drafters import Drafter, NgramDrafter
from specgguf.decode.generation import check_prompt
from specgguf.decode.records import Candidate, Plan, Round
from specgguf.decode.run import Run, StopCheck
from specgguf.decode.sampling import GrammarCursor, Rng, Transform
from specgguf.decode.sequence import CachedSequence
from specgguf.decode.step import step
from specgguf.decode.verifier import Rule, verify_token


class Controller(Protocol):
    """Decides how many tokens to draft."""

    def plan(self, n_draft_max: int, candidate: Candidate | None = None) -> Plan:
        """The next round, of at most `n_draft_max` drafted tokens; `candidate` is what an n-gram suggests."""

    def observe(self, plan: Plan, round: Round) -> None:
        """What came of it."""


def generate(
    target: CachedSequence,
    drafter: Drafter | None,
    prompt: Sequence[int],
    *,
    ngrams: NgramDrafter | None = None,
    transform: Transform,
    draft_transform: Transform | None = None,
    rng: Rng,
    controller: Controller,
    stop_check: StopCheck,
    max_tokens: int,
    verify: Rule = verify_token,
    n_logprobs: int | None = None,
    grammar: GrammarCursor | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[Round]:
    """Rounds after `prompt`, of one sequence alone.

    Args:
        ngrams: drafts for nothing; the controller is told what they suggest.
        transform, draft_transform: make p and q; the draft's is the target's unless given.
        max_tokens: at most so many, and never more than the context holds.
        verify: the acceptance rule.
        n_logprobs: report log-probabilities with so many alternatives; None does not.
        grammar: says which tokens must come; what may come is the transforms' to know.

    Raises:
        ConfigError: an empty prompt.
        ContextFull: the prompt leaves no room for a token.
        Cancelled, BackendError: from the models; what was yielded stands.
    """
    check_prompt(prompt, target.n_ctx)
    run = Run(
        target=target,
        drafter=drafter,
        ngrams=ngrams,
        committed=list(prompt),
        n_prompt=len(prompt),
        end=min(len(prompt) + max_tokens, target.n_ctx),
        transform=transform,
        draft_transform=draft_transform or transform,
        rng=rng,
        stop_check=stop_check,
        verify=verify,
        n_logprobs=n_logprobs,
        grammar=grammar,
    )
    run.synchronise()
    try:
        while True:
            round = advance(run, controller, clock)
            yield round
            if round.finish_reason is not None:
                return
    finally:
        run.synchronise()


def advance(run: Run, controller: Controller, clock: Callable[[], float] = time.perf_counter) -> Round:
    """One round of one sequence, planned and observed by its controller."""
    plans: list[Plan] = []

    def plan(runs: Sequence[Run]) -> Sequence[Plan]:
        plans.extend(controller.plan(one.n_draft_max, one.candidate) for one in runs)
        return plans

    (round,) = step([run], plan, clock=clock)
    if isinstance(round, Exception):
        raise round
    controller.observe(plans[0], round)
    return round
