"""A loaded pair and its generations: which parts, which rule and which controller are in force.

`Engine` puts the parts together (target, drafter, costs, controllers, schedule); whose turn it is with them is `turns`'
business. It speaks tokens: text, messages and dicts are `api`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from .config import DraftConfig, SamplingParams
from .control.controller import Adaptive, Fixed
from .control.cost_cache import costs_for
from .control.costs import Costs
from .control.schedule import Schedule
from .control.trace import Trace
from .decode.drafters import Drafter, ModelDrafter, NgramDrafter
from .decode.generation import Generation, TextStream
from .decode.heads.drafter import HeadDrafter
from .decode.records import Round
from .decode.run import Run
from .decode.sampling import GrammarCursor, Rng, Transform
from .decode.stats import Stats
from .decode.verifier import choose_rule
from .decode.vocab_map import MappedTransform, VocabMap
from .native.heads.sequence import HeadSequence
from .native.sequence import Sequence as Cached
from .turns.caches import Caches
from .turns.rounds import Rounds
from .turns.turn import Begun, Turn
from .turns.turns import Turns


class Engine:
    """One target, perhaps a draft, and the generations that hold their sequences.

    Args:
        target: a sequence of the target's context, whose others serve further generations.
        draft: a sequence of the draft's or of a prediction head's context, "ngram", or None.
        config: drafting defaults.
        vocab_map: where the draft's ids are not the target's.
        draft_limit: of a draft's tokens, whatever is asked for: several heads draft one each.
        trace: called with a record per decision of the adaptive controller.

    Attributes:
        n_parallel: how many generations can run at once.
        stats: sums over all generations. `last_stats`: of the one that began last.
        off_reason: one line that says why drafting is off for good; "" when it is not.
        has_drafter: whether a draft model proposes tokens. has_ngrams: whether n-grams of the text do.
    """

    def __init__(
        self,
        target: Cached,
        draft: Cached | str | None,
        config: DraftConfig,
        *,
        vocab_map: VocabMap | None = None,
        draft_limit: int | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.target = target
        self.draft_model = draft if isinstance(draft, Cached) else None
        self.config = config
        self.caches = Caches(target, self.draft_model, vocab_map)
        self.n_parallel = self.caches.n_sequences
        self.stats = Stats()
        self.last_stats = Stats()
        self.off_reason = ""
        if target.rollback.name == "unsupported":
            self.off_reason = "this target's memory cannot drop rejected tokens"
        elif self.draft_model is not None and self.draft_model.rollback.name == "unsupported":
            self.off_reason = "this draft's memory cannot drop rejected tokens"
        elif self.draft_model is None and draft != "ngram":
            self.off_reason = "no draft model"
        self.has_drafter = self.draft_model is not None and not self.off_reason
        self.has_ngrams = not self.off_reason
        self._draft_transform = partial(MappedTransform, vocab_map=vocab_map) if vocab_map else self._same_vocab
        self._vocab_map = vocab_map
        self._draft_limit = draft_limit
        self._trace = trace
        self._adaptive: Adaptive | None = None
        schedule = Schedule(equal=not target.rolls_back_freely, trace=trace)
        self._schedule = schedule
        rounds = Rounds(schedule, target.context.n_batch)
        self._turns = Turns(self.caches.contexts, self.n_parallel, rounds.play)
        if self.n_parallel > 1 or config.draft == "auto":
            with self._spare() as (spare, spare_draft):
                schedule.costs = self._costs_of(config, spare, spare_draft) if self.n_parallel > 1 else None
                if config.draft == "auto":
                    self._controller(config, spare, spare_draft)

    def lock(self, timeout: float | None = None) -> AbstractContextManager[None]:
        """Keep other threads from making rounds; see `Lead.lock` for what is raised."""
        return self._turns.lock(timeout)

    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        config: DraftConfig | None = None,
        text: TextStream,
        grammar: GrammarCursor | None = None,
        max_tokens: int,
        timeout: float | None = None,
    ) -> Generation:
        """What follows `prompt`. See `lock` for `timeout`.

        Wrong parameters are refused now; the models are not touched before the first round is asked for.
        """
        config = config or self.config
        target = self.target
        draft_params = params
        if config.temperature is not None:
            draft_params = replace(draft_params, temperature=config.temperature)
        transform = Transform(params, n_vocab=target.n_vocab, eog=target.eog, grammar=grammar)
        draft_transform = self._draft_transform(draft_params, eog=target.eog, grammar=grammar)

        parts: dict[str, Any] = {
            "committed": list(prompt),
            "n_prompt": len(prompt),
            "end": min(len(prompt) + max_tokens, target.n_ctx),
            "transform": transform,
            "draft_transform": draft_transform,
            "rng": Rng(params.seed),
            "stop_check": text,
            "verify": choose_rule(config.verify),
            "n_logprobs": params.logprobs,
            "grammar": grammar,
        }
        turn = Turn(self._turns, lambda generation: self._begin(generation, config, parts), self._count, timeout)
        generation = Generation(turn, text, len(prompt))
        self._turns.ask_for(generation)
        return generation

    def _begin(self, generation: Generation, config: DraftConfig, parts: Mapping[str, Any]) -> Begun | None:
        """The run and the controller of a generation that has a place; None while the caches cannot hold it too."""
        prompt = parts["committed"]
        held = self.caches.admit(prompt, parts["end"])
        if held is None:
            return None
        target, draft = held
        try:
            ngrams = NgramDrafter(self.target.n_vocab, self.target.eog) if self.has_ngrams else None
            run = Run(target=target, drafter=self._drafter(target, draft), ngrams=ngrams, **parts)
            run.synchronise()
            controller = self._controller(config, target, draft)
            if isinstance(controller, Adaptive):
                controller.new_turn(len(draft.tokens) if draft is not None else 0)
            else:  # a draft of fixed length is of one kind
                run.drafter, run.ngrams = run.drafter or ngrams, None
        except BaseException:
            self.caches.give_back(*held)
            raise
        self.last_stats = generation.stats
        n_cached = len(target.tokens)  # a checkpoint may keep fewer than are shared
        for stats in (self.stats, generation.stats):
            stats.begin(len(prompt), n_cached)
        return run, controller, lambda: self.caches.give_back(*held)

    def _same_vocab(self, params: SamplingParams, **keywords: Any) -> Transform:
        """Of a draft of the target's vocabulary, which may lack its last ids."""
        n_vocab = min(self.target.n_vocab, self.draft_model.n_vocab) if self.draft_model else self.target.n_vocab
        bias = {token: bias for token, bias in params.logit_bias.items() if token < n_vocab}
        return Transform(replace(params, logit_bias=bias), n_vocab=n_vocab, **keywords)

    def _count(self, generation: Generation, round: Round, off_reason: str) -> None:
        self.stats.add(round, shared=True)
        generation.stats.add(round)
        for stats in (self.stats, generation.stats):
            stats.off_reason = off_reason

    def _drafter(self, target: Cached, draft: Cached | None) -> Drafter | None:
        """The drafter of one generation, over the sequences that it holds."""
        if draft is None or not self.has_drafter:
            return None
        if isinstance(draft, HeadSequence):
            return HeadDrafter(draft.follow(target), eog=target.eog, n_ctx=draft.n_reserved)
        return ModelDrafter(draft, eog=self.target.eog, vocab_map=self._vocab_map, n_ctx=draft.n_reserved)

    def _controller(self, config: DraftConfig, target: Cached, draft: Cached | None) -> Fixed | Adaptive:
        """The controller of a generation; may measure costs on these sequences."""
        if self.off_reason:
            return Fixed(0, self.off_reason)
        if config.draft == "off":
            return Fixed(0, "switched off")
        if isinstance(config.draft, int):
            return Fixed(min(config.draft, self._draft_limit or config.draft))
        draft_max = min(config.draft_max, self._draft_limit or config.draft_max)
        if self._adaptive is None or self._adaptive.draft_max != draft_max:
            self._adaptive = Adaptive(
                draft_max,
                self._schedule.costs or self._costs_of(config, target, draft),
                has_model=self.has_drafter,
                draft_first=config.draft_first,
                trace=self._trace,
            )
        self._adaptive = self._adaptive.fork()  # who begins next knows what this one will have learned by then
        return self._adaptive

    def _costs_of(self, config: DraftConfig, target: Cached, draft: Cached | None) -> Costs:
        return costs_for(target, draft if self.has_drafter else None, config.draft_max)

    @property
    def costs(self) -> Costs | None:
        """Of the pair, once they were measured."""
        return self._schedule.costs or (self._adaptive.costs if self._adaptive is not None else None)

    # --- sequences ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _spare(self) -> Iterator[tuple[Cached, Cached | None]]:
        """Sequences to measure with, while nothing runs."""
        held = self.caches.admit([0, 0], min(self.target.n_ctx, 128))
        assert held is not None
        try:
            yield held
        finally:
            self.caches.give_back(*held)

    @contextlib.contextmanager
    def borrow(self, n_tokens: int, cancelled: Callable[[], bool], timeout: float | None = None) -> Iterator[Cached]:
        """An empty sequence of the target for `n_tokens` tokens, for who reads a text without generating: decode with
        it under `lock`. `cancelled` says that nobody waits any more.

        Raises:
            As `lock`; ConfigError, ContextFull.
        """
        held: list[Cached] = []

        def begin() -> bool:
            found = self.caches.admit([0], n_tokens)
            if found is None:
                return False
            held[:] = [one for one in found if one is not None]
            return True

        with self._turns.place(begin, cancelled, timeout):
            try:
                with self.lock():
                    held[0].clear()
                yield held[0]
            finally:
                with self.lock():
                    self.caches.give_back(*held)

    def fits_now(self, n_tokens: int) -> bool:
        """Whether a generation that may grow to so many tokens could begin at once."""
        return self._turns.n_asked < self.n_parallel and self.caches.can_admit(n_tokens)

    def each_generation(self, told: Callable[[Generation], None]) -> AbstractContextManager[None]:
        """Inside it, `told` gets every generation that this thread asks for, before it begins."""
        return self._turns.each_generation(told)

    def cancel(self) -> None:
        """`Generation.cancel` for what runs, and for what was asked for last."""
        self._turns.cancel()

    def stop(self) -> None:
        """`Generation.stop` for what runs, and for what was asked for last."""
        self._turns.stop()

    # --- the caches -------------------------------------------------------------------------------------------

    def save_state(self) -> dict[str, Any]:
        """Both caches, of the generation that ended last, with what tells whether another pair may load them."""
        with self.lock():
            return self.caches.save()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `save_state`'s; a state of other models is refused and changes nothing."""
        with self.lock():
            self.caches.check(state)
            self.clear()
            self.caches.load(state)

    def clear(self) -> None:
        """End what runs, and empty both caches."""
        with self.lock():
            self._turns.end_running()
            self.caches.clear()

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Stop what runs, in another thread too, and free both contexts, the draft's first, `then` what they stand on.
        Safe to call twice; whatever else is asked of the engine from then on raises ConfigError."""

        def free() -> None:
            try:
                self.caches.close()
            finally:
                then()

        self._turns.close(free)
