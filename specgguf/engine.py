"""A loaded pair and its generations: who owns the caches, which rule and which controller are in force.

`Engine` puts the parts together (target, drafter, costs, controller) and drives one generation at a time. A new
one takes over; the older one raises when it is read on. The lock is held per round, never across a yield. It
speaks tokens: text, messages and dicts are `api`'s.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .config import DraftConfig, SamplingParams
from .control.controller import Adaptive, Fixed
from .control.cost_cache import costs_for
from .control.trace import Trace
from .decode.drafters import Drafter, ModelDrafter
from .decode.generation import Generation, TextStream, advance
from .decode.ngrams import NgramDrafter
from .decode.records import Round
from .decode.run import Run
from .decode.sampling import GrammarCursor, Rng, Transform
from .decode.stats import Stats
from .decode.verifier import choose_rule
from .errors import Busy, Cancelled, ConfigError, Unsupported
from .native.context import Model


class Engine:
    """One target, perhaps a draft, and the generation that owns them.

    Args:
        target: the target's model.
        draft: the draft's model, "ngram", or None.
        config: drafting defaults.
        trace: called with a record per decision of the adaptive controller.

    Attributes:
        stats: sums over all generations. `last_stats`: of the one that began last.
        off_reason: one line that says why drafting is off for good; "" when it is not.
    """

    def __init__(
        self, target: Model, draft: Model | str | None, config: DraftConfig, *, trace: Trace | None = None
    ) -> None:
        self.target = target
        self.draft_model = draft if isinstance(draft, Model) else None
        self.config = config
        self.stats = Stats()
        self.last_stats = Stats()
        self.off_reason = ""
        self.drafter: Drafter | None = None
        if target.rollback.name == "none":
            self.off_reason = "drafting is off: this target's memory cannot drop rejected tokens"
        elif self.draft_model is not None and self.draft_model.rollback.name == "none":
            self.off_reason = "drafting is off: this draft's memory cannot drop rejected tokens"
        elif self.draft_model is not None:
            self.drafter = ModelDrafter(self.draft_model, eog=target.eog)
        elif draft != "ngram":
            self.off_reason = "no draft model"
        ngrams = NgramDrafter(target.n_vocab, target.eog)
        self.ngrams = None if self.off_reason else ngrams
        n_vocab = min(target.n_vocab, self.draft_model.n_vocab) if self.draft_model else target.n_vocab
        self._draft_vocab = n_vocab
        self._trace = trace
        self._adaptive: Adaptive | None = None
        self._lock = threading.RLock()
        self.owner: Turn | None = None  # it has begun, and the caches are its own
        self._current: list[weakref.ref[Generation]] = []  # the one that runs, and the one that was asked for last
        self._closed = False
        self._pid = os.getpid()
        if config.draft == "auto":
            self.controller(config)

    @contextlib.contextmanager
    def lock(self, timeout: float | None = None) -> Iterator[None]:
        """Keep other threads out for a whole generation.

        Raises:
            Busy: not free within `timeout` seconds (None waits). ConfigError: the engine was closed. Unsupported: this
            is a fork of the process that loaded the models.
        """
        if self._is_forked:
            raise Unsupported(
                "a loaded model cannot be used after fork: llama.cpp's threads stayed behind in the parent process",
                hint='load it in the child, or start children with multiprocessing.get_context("spawn")',
            )
        if not self._lock.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX)):
            raise Busy("another thread is generating with this engine", hint="wait for it, or load a second engine")
        try:
            self._check_open()
            yield
        finally:
            self._lock.release()

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
        draft_params = replace(params, logit_bias={t: b for t, b in params.logit_bias.items() if t < self._draft_vocab})
        if config.temperature is not None:
            draft_params = replace(draft_params, temperature=config.temperature)
        turn = Turn(
            self,
            prompt=prompt,
            params=params,
            config=config,
            transform=Transform(params, n_vocab=target.n_vocab, eog=target.eog, grammar=grammar),
            draft_transform=Transform(draft_params, n_vocab=self._draft_vocab, eog=target.eog),
            text=text,
            max_tokens=max_tokens,
            timeout=timeout,
        )
        generation = Generation(turn, text, len(prompt))
        self._current = [*self._current[:1], weakref.ref(generation)]
        return generation

    def controller(self, config: DraftConfig) -> Fixed | Adaptive:
        if self.off_reason:
            return Fixed(0, self.off_reason)
        if config.draft == "off":
            return Fixed(0, "drafting is switched off")
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

    def take_over(self, turn: Turn, generation: Generation) -> None:
        """The caches are `turn`'s from now on; the one before it raises when it is read on."""
        self._stop_running()
        self.owner = turn
        self._current = [weakref.ref(generation), *self._current[-1:]]
        for model in self._models():
            model.resume()

    def interrupt(self) -> None:
        """Do not let what runs read on."""
        for model in self._models():
            model.cancel()

    def release(self, turn: Turn) -> None:
        """`turn` has ended: its caches are rolled back to a prefix of what it committed."""
        if self._is_forked:  # the lock may be of a thread that stayed behind, and so are the caches
            return
        if self.owner is turn:  # one that never began does not wait for the lock
            with self._lock:
                if self.owner is turn:
                    self._stop_running()

    def cancel(self) -> None:
        """`Generation.cancel` for what runs, and for what was asked for last."""
        for one in self._current:
            if (generation := one()) is not None:
                generation.cancel()

    def stop(self) -> None:
        """`Generation.stop` for what runs, and for what was asked for last."""
        for one in self._current:
            if (generation := one()) is not None:
                generation.stop()

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
            for name, model in models:
                model.load(state[name])

    def _named_models(self) -> list[tuple[str, Model]]:
        return [("target", self.target), *([("draft", self.draft_model)] if self.draft_model else [])]

    def clear(self) -> None:
        """Empty both caches."""
        with self.lock():
            self._stop_running()
            for model in self._models():
                model.clear()

    def close(self) -> None:
        """Stop what runs, in another thread too, and free both contexts, the draft's first. Safe to call twice;
        whatever else is asked of the engine from then on raises ConfigError. In a fork nothing is freed: that is the
        parent's, and so may be the lock."""
        self._closed = True
        if self._is_forked:
            return
        self.cancel()
        with self._lock:
            self._stop_running()
            for model in self._models():
                model.close()

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._pid

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigError("these models were closed", hint="load them again")

    def _stop_running(self) -> None:
        """Nothing owns the caches any more; they are valid."""
        turn, self.owner = self.owner, None
        if turn is not None and turn.run is not None:
            turn.run.synchronise()


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


@dataclass(eq=False)
class Turn:
    """One generation's turn with the engine, the driver of its rounds: what it was asked to do, and its run once it
    has begun."""

    engine: Engine
    prompt: Sequence[int]
    params: SamplingParams
    config: DraftConfig
    transform: Transform
    draft_transform: Transform
    text: TextStream
    max_tokens: int
    timeout: float | None
    run: Run | None = None
    controller: Fixed | Adaptive | None = None

    def advance(self, generation: Generation) -> Round | None:
        """The next round, the first of which takes the engine over; None where the generation was stopped."""
        engine = self.engine
        if self.run is None:
            with engine.lock(self.timeout):
                self._begin(generation)
        with engine.lock():
            if engine.owner is not self:
                raise Busy("a newer generation took this engine over")
            if generation.cancelled:
                raise Cancelled("stopped")
            if generation.stopped:
                return None
            assert self.run is not None
            assert self.controller is not None
            round = advance(self.run, self.controller)
            for stats in (engine.stats, generation.stats):
                stats.add(round)
                stats.off_reason = self.run.off_reason or self.controller.off_reason
            return round

    def _begin(self, generation: Generation) -> None:
        engine, target = self.engine, self.engine.target
        engine.take_over(self, generation)
        if generation.cancelled:  # in this order: a cancel that comes now finds it running
            raise Cancelled("stopped")
        self.controller = engine.controller(self.config)
        is_adaptive = isinstance(self.controller, Adaptive)
        self.run = Run(
            target=target,
            drafter=engine.drafter if is_adaptive or engine.drafter is not None else engine.ngrams,
            ngrams=engine.ngrams if is_adaptive else None,
            committed=list(self.prompt),
            n_prompt=len(self.prompt),
            end=min(len(self.prompt) + self.max_tokens, target.n_ctx),
            transform=self.transform,
            draft_transform=self.draft_transform,
            rng=Rng(self.params.seed),
            stop_check=self.text,
            verify=choose_rule(self.config.verify),
            n_logprobs=self.params.logprobs,
        )
        engine.last_stats = generation.stats
        self.run.synchronise()
        n_cached = len(target.tokens)  # a checkpoint may keep fewer than are shared
        for stats in (engine.stats, generation.stats):
            stats.begin(len(self.prompt), n_cached)

    def interrupt(self, generation: Generation) -> None:
        """It was cancelled: stop what it reads, if it is the one that runs."""
        if self.engine.owner is self:
            self.engine.interrupt()

    def release(self, generation: Generation) -> None:
        """It has ended, however: its caches are a prefix of what it committed."""
        self.engine.release(self)
