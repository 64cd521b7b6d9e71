"""A generation: one answer under way, from the first token to whatever ends it.

It owns the end of its text, its statistics, and the wish to end it. Its rounds come from a driver, which owns the
models; what the tokens mean as text is the text stream's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from specgguf.errors import ConfigError, ContextFull

from .drafters import Drafter, NgramDrafter
from .records import Candidate, Chunk, Plan, Round
from .run import Run, StopCheck
from .sampling import GrammarCursor, Rng, Transform
from .sequence import CachedSequence
from .stats import Stats
from .step import step
from .verifier import Rule, verify_token


class TextStream(StopCheck, Protocol):
    """Turns committed tokens into text."""

    @property
    def n_tokens(self) -> int:
        """Kept so far, the end-of-generation token not counted."""

    def chunks(self, round: Round) -> list[Chunk]:
        """The chunks of the tokens that the last `check` kept."""

    def flush(self) -> list[Chunk]:
        """What is still held back, where the generation ends without a reason of its own."""


class Driver(Protocol):
    """Owns the models and runs the rounds of a generation."""

    def advance(self, generation: Generation) -> Round | None:
        """Its next round; None where it was stopped."""

    def interrupt(self, generation: Generation) -> None:
        """It was cancelled: do not let it read on."""

    def release(self, generation: Generation) -> None:
        """It has ended, however: its caches are kept valid."""


class Generation:
    """One answer; iterating gives its chunks, once.

    Attributes:
        n_prompt: tokens of the prompt.
        stats: sums over its rounds so far.
        cancelled, stopped: what was asked of it from outside, before or while it runs.
        finish_reason: "eos", "stop" or "length" once it has ended by itself or was stopped, else None.

    Raises:
        Cancelled, Busy, BackendError, ConfigError: while iterating; what came before stands.
    """

    def __init__(self, driver: Driver, text: TextStream, n_prompt: int) -> None:
        self.n_prompt = n_prompt
        self.stats = Stats()
        self.cancelled = self.stopped = False
        self.finish_reason: str | None = None
        self._driver = driver
        self._text = text
        self._rounds = self._run()
        self._chunks = self._read()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def rounds(self) -> Iterator[Round]:
        """The rounds instead of the chunks: for who measures."""
        return self._rounds

    @property
    def n_completion(self) -> int:
        """Generated tokens, the end-of-generation token not counted."""
        return self._text.n_tokens

    def cancel(self) -> None:
        """End it without a result, from any thread or a signal handler: it raises Cancelled within a round, or soon
        while it reads the prompt, or as soon as it begins. Every cache stays valid."""
        self.cancelled = True
        self._driver.interrupt(self)

    def stop(self) -> None:
        """End it after its round, from any thread: the text so far stands, with rounds that were made ahead of the
        reader beside others; finish_reason "length"."""
        self.stopped = True

    def close(self) -> None:
        """Nobody reads on."""
        self._chunks.close()
        self._rounds.close()

    def _run(self) -> Generator[Round, None, None]:
        try:
            while (round := self._driver.advance(self)) is not None:
                self.finish_reason = round.finish_reason
                yield round
                if round.finish_reason is not None:
                    return
            self.finish_reason = "length"
        finally:
            self._driver.release(self)

    def _read(self) -> Generator[Chunk, None, None]:
        try:
            for round in self._rounds:
                chunks = self._text.chunks(round)
                if round.finish_reason is not None:
                    chunks = [*chunks, *self._text.flush()] or [Chunk("", -1)]
                    chunks[-1] = replace(chunks[-1], finish_reason=round.finish_reason)
                yield from chunks
                if round.finish_reason is not None:
                    return
            rest = self._text.flush() or [Chunk("", -1)]
            yield from rest[:-1]
            yield replace(rest[-1], finish_reason="length")
        finally:
            self._rounds.close()


def check_prompt(prompt: Sequence[int], n_ctx: int) -> None:
    """Raise ConfigError for an empty prompt, ContextFull for one that leaves no room for a token."""
    if not prompt:
        raise ConfigError("the prompt is empty", hint="give at least one token")
    if len(prompt) >= n_ctx:
        raise ContextFull(
            f"the prompt has {len(prompt)} tokens and the context holds {n_ctx}",
            hint="a larger n_ctx (--n-ctx), or a shorter prompt",
        )


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
