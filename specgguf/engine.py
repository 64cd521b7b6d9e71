"""A loaded pair and its generations: which parts, which rule and which controller are in force.

`Engine` puts the parts together (target, drafter, costs, controller); whose turn it is with them is `turns`'
business. It speaks tokens: text, messages and dicts are `api`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

from .config import DraftConfig, SamplingParams
from .control.controller import Adaptive, Fixed
from .control.cost_cache import costs_for
from .control.trace import Trace
from .decode.drafters import Drafter, ModelDrafter, NgramDrafter
from .decode.generation import Generation, TextStream
from .decode.records import Round
from .decode.run import Run
from .decode.sampling import GrammarCursor, Rng, Transform
from .decode.stats import Stats
from .decode.verifier import choose_rule
from .decode.vocab_map import MappedTransform, VocabMap
from .errors import ConfigError
from .native.context import Model
from .turns import Turn, Turns


class Engine:
    """One target, perhaps a draft, and the generation that owns them.

    Args:
        target: the target's model.
        draft: the draft's model, "ngram", or None.
        config: drafting defaults.
        vocab_map: where the draft's ids are not the target's.
        trace: called with a record per decision of the adaptive controller.

    Attributes:
        stats: sums over all generations. `last_stats`: of the one that began last.
        off_reason: one line that says why drafting is off for good; "" when it is not.
    """

    def __init__(
        self,
        target: Model,
        draft: Model | str | None,
        config: DraftConfig,
        *,
        vocab_map: VocabMap | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.target = target
        self.draft_model = draft if isinstance(draft, Model) else None
        self.config = config
        self.stats = Stats()
        self.last_stats = Stats()
        self.off_reason = ""
        self.drafter: Drafter | None = None
        if target.rollback.name == "unsupported":
            self.off_reason = "this target's memory cannot drop rejected tokens"
        elif self.draft_model is not None and self.draft_model.rollback.name == "unsupported":
            self.off_reason = "this draft's memory cannot drop rejected tokens"
        elif self.draft_model is not None:
            self.drafter = ModelDrafter(self.draft_model, eog=target.eog, vocab_map=vocab_map)
        elif draft != "ngram":
            self.off_reason = "no draft model"
        ngrams = NgramDrafter(target.n_vocab, target.eog)
        self.ngrams = None if self.off_reason else ngrams
        self._draft_transform = partial(MappedTransform, vocab_map=vocab_map) if vocab_map else self._same_vocab
        self._trace = trace
        self._adaptive: Adaptive | None = None
        self._turns = Turns(self._models())
        if config.draft == "auto":
            self.controller(config)

    def lock(self, timeout: float | None = None) -> AbstractContextManager[None]:
        """Keep other threads out for a whole generation; see `Turns.lock` for what is raised."""
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

        def begin(generation: Generation) -> tuple[Run, Fixed | Adaptive]:
            controller = self.controller(config)
            is_adaptive = isinstance(controller, Adaptive)
            run = Run(
                target=target,
                drafter=self.drafter if is_adaptive or self.drafter is not None else self.ngrams,
                ngrams=self.ngrams if is_adaptive else None,
                committed=list(prompt),
                n_prompt=len(prompt),
                end=min(len(prompt) + max_tokens, target.n_ctx),
                transform=transform,
                draft_transform=draft_transform,
                rng=Rng(params.seed),
                stop_check=text,
                verify=choose_rule(config.verify),
                n_logprobs=params.logprobs,
                grammar=grammar,
            )
            run.synchronise()
            self.last_stats = generation.stats
            n_cached = len(target.tokens)  # a checkpoint may keep fewer than are shared
            for stats in (self.stats, generation.stats):
                stats.begin(len(prompt), n_cached)
            return run, controller

        generation = Generation(Turn(self._turns, begin, self._count, timeout), text, len(prompt))
        self._turns.ask_for(generation)
        return generation

    def _same_vocab(self, params: SamplingParams, **keywords: Any) -> Transform:
        """Of a draft of the target's vocabulary, which may lack its last ids."""
        n_vocab = min(self.target.n_vocab, self.draft_model.n_vocab) if self.draft_model else self.target.n_vocab
        bias = {token: bias for token, bias in params.logit_bias.items() if token < n_vocab}
        return Transform(replace(params, logit_bias=bias), n_vocab=n_vocab, **keywords)

    def _count(self, generation: Generation, round: Round, off_reason: str) -> None:
        for stats in (self.stats, generation.stats):
            stats.add(round)
            stats.off_reason = off_reason

    def controller(self, config: DraftConfig) -> Fixed | Adaptive:
        if self.off_reason:
            return Fixed(0, self.off_reason)
        if config.draft == "off":
            return Fixed(0, "switched off")
        if isinstance(config.draft, int):
            return Fixed(config.draft)
        if self._adaptive is None or self._adaptive.draft_max != config.draft_max:
            costs = costs_for(self.target, self.draft_model, config.draft_max)
            self._adaptive = Adaptive(
                config.draft_max,
                costs,
                has_model=self.drafter is not None,
                draft_first=config.draft_first,
                trace=self._trace,
            )
        self._adaptive.new_turn()
        return self._adaptive

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

    def _models(self) -> list[Model]:
        return [m for m in (self.draft_model, self.target) if m is not None]

    def save_state(self) -> dict[str, Any]:
        """Both caches, with what tells whether another pair may load them."""
        with self.lock():
            return {name: model.save() for name, model in self._named_models()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `save_state`'s; a state of other models is refused and changes nothing."""
        with self.lock():
            models = self._named_models()
            check_state(state, models)
            self.clear()
            try:
                for name, model in models:
                    model.load(state[name])
            except BaseException:
                self.clear()
                raise

    def _named_models(self) -> list[tuple[str, Model]]:
        return [("target", self.target), *([("draft", self.draft_model)] if self.draft_model else [])]

    def clear(self) -> None:
        """Empty both caches."""
        with self.lock():
            self._turns.end_running()
            for model in self._models():
                model.clear()

    def close(self, then: Callable[[], None] = lambda: None) -> None:
        """Stop what runs, in another thread too, and free both contexts, the draft's first, `then` what they stand on.
        Safe to call twice; whatever else is asked of the engine from then on raises ConfigError."""

        def free() -> None:
            try:
                for model in self._models():
                    model.close()
            finally:
                then()

        self._turns.close(free)


def check_state(state: object, models: Sequence[tuple[str, Model]]) -> None:
    """Raise ConfigError unless `state` is what `Engine.save_state` of such models returned."""
    if not isinstance(state, Mapping):
        raise ConfigError(
            f"load_state takes what save_state returned, not a {type(state).__name__}",
            hint="state = llm.save_state(); llm.load_state(state)",
        )
    if set(state) != {name for name, _ in models} or not all(m.fits(state[name]) for name, m in models):
        raise ConfigError(
            "this state is of other models, longer than this context, or damaged",
            hint="load the files it was saved with, with their n_ctx, LoRA and rope settings",
        )
