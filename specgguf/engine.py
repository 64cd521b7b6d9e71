"""A loaded pair and its generations: who owns the caches, which rule and which controller are in force.

`Engine` puts the parts together (target, drafter, costs, controller) and runs one generation at a time. A new
one takes over; the older generator raises when it is resumed. The lock is held per round, never across a
yield. It speaks tokens: text, messages and dicts are `api`'s.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .config import DraftConfig, SamplingParams
from .control.controller import Adaptive, Fixed
from .control.cost_cache import costs_for
from .control.trace import Trace
from .decode.drafters import Drafter, ModelDrafter
from .decode.ngrams import NgramDrafter
from .decode.records import Round
from .decode.sampling import GrammarCursor, Rng, Transform
from .decode.stats import Stats
from .decode.step import Cutter, generate
from .decode.verifier import choose_rule
from .errors import Busy, Cancelled, ConfigError, Unsupported
from .native.context import Model


class _StopFlags:
    """What was asked of one generation from outside, before or while it runs."""

    def __init__(self) -> None:
        self.cancelled = self.stopping = False


class Engine:
    """One target, perhaps a draft, and the generation that owns them.

    Args:
        target: the target's model.
        draft: the draft's model, "ngram", or None.
        config: drafting defaults.
        trace: called with a record per decision of the adaptive controller.

    Attributes:
        stats: sums over all generations. `last_stats`: of the latest one.
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
            self.off_reason = "this target's memory cannot drop rejected tokens"
        elif self.draft_model is not None and self.draft_model.rollback.name == "none":
            self.off_reason = "this draft's memory cannot drop rejected tokens"
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
        self._owner: Iterator[Round] | None = None
        self._running = self._latest = _StopFlags()  # of the generation that owns the caches; that was asked for last
        self._closed = False
        self._pid = os.getpid()
        if config.draft == "auto":
            self._controller(config)

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
        cutter: Cutter,
        grammar: GrammarCursor | None = None,
        max_tokens: int,
        timeout: float | None = None,
    ) -> Iterator[Round]:
        """Rounds after `prompt`. See `generate.generate` for what is raised, and `hold` for `timeout`.

        Wrong parameters are refused now; the models are not touched before the first round is asked for.
        """
        config = config or self.config
        target = self.target
        transform = Transform(params, n_vocab=target.n_vocab, eog=target.eog, grammar=grammar)
        draft_params = replace(params, logit_bias={t: b for t, b in params.logit_bias.items() if t < self._draft_vocab})
        if config.temperature is not None:
            draft_params = replace(draft_params, temperature=config.temperature)
        draft_transform = Transform(draft_params, n_vocab=self._draft_vocab, eog=target.eog)

        def start(controller: Fixed | Adaptive) -> Iterator[Round]:
            adaptive = isinstance(controller, Adaptive)
            return generate(
                target,
                self.drafter if adaptive or self.drafter is not None else self.ngrams,
                prompt,
                ngrams=self.ngrams if adaptive else None,
                transform=transform,
                draft_transform=draft_transform,
                rng=Rng(params.seed),
                controller=controller,
                cutter=cutter,
                max_tokens=max_tokens,
                verify=choose_rule(config.verify),
                n_logprobs=params.logprobs,
            )

        flags = self._latest = _StopFlags()
        return self._owned(start, prompt, config, timeout, flags)

    def _controller(self, config: DraftConfig) -> Fixed | Adaptive:
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

    def _owned(
        self,
        start: Callable[[Fixed | Adaptive], Iterator[Round]],
        prompt: Sequence[int],
        config: DraftConfig,
        timeout: float | None,
        flags: _StopFlags,
    ) -> Iterator[Round]:
        """What `start` makes, under the lock and the ownership rule, with statistics."""
        with self.lock(timeout):
            self._stop_running()
            self._running = flags
            for model in self._models():
                model.resume()
            if flags.cancelled:  # in this order: a cancel that comes now finds it running
                raise Cancelled("stopped")
            controller = self._controller(config)
            rounds = self._owner = start(controller)
            self.last_stats = Stats()
            n_cached = self.target.reuse(prompt[:-1])  # a checkpoint may keep fewer than are shared
            for stats in (self.stats, self.last_stats):
                stats.begin(len(prompt), n_cached)
        try:
            while True:
                with self.lock():
                    if self._owner is not rounds:
                        raise Busy("a newer generation took this engine over")
                    if flags.cancelled:
                        raise Cancelled("stopped")
                    round = None if flags.stopping else next(rounds, None)
                    if round is None:
                        return
                    self._count(round, controller.off_reason)
                yield round
        finally:
            if not self._is_forked:  # there the lock may be of a thread that stayed behind, and so are the caches
                with self._lock:
                    rounds.close()  # type: ignore[attr-defined]
                    if self._owner is rounds:
                        self._owner = None

    def _count(self, round: Round, off_reason: str) -> None:
        for stats in (self.stats, self.last_stats):
            stats.add(round)
            stats.off_reason = off_reason

    def cancel(self) -> None:
        """Stop the running generation: it raises Cancelled within a round, or within a chunk of its prefill. One
        that was asked for and has not begun raises as soon as it does."""
        self._running.cancelled = self._latest.cancelled = True
        for model in self._models():
            model.cancel()

    def stop(self) -> None:
        """End the running generation after its round (its first one, while it reads the prompt). One that was asked
        for and has not begun ends without a round."""
        self._running.stopping = self._latest.stopping = True

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
        """End the generation that owns the caches."""
        if self._owner is not None:
            self._owner.close()  # type: ignore[attr-defined]
            self._owner = None
