"""Where a round's time goes: the functions that do its work are wrapped, and their seconds are added up by stage.

For `scripts/bench/run host`. It reaches into the library on purpose; nothing else may.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.lib.cells import say
from specgguf.decode import sampling, verifier
from specgguf.native import backend


@dataclass
class Stages:
    """Seconds by stage; a stage does not count what runs inside it under another name."""

    seconds: dict[str, float] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    _open: list[list[Any]] = field(default_factory=list)  # [stage, started]

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, counted under `stage`."""

        def run(*args: Any, **keywords: Any) -> Any:
            self._switch(stage)
            self.calls[stage] = self.calls.get(stage, 0) + 1
            try:
                return function(*args, **keywords)
            finally:
                self._switch(None)

        return run

    def _switch(self, stage: str | None) -> None:
        now = time.perf_counter()
        if self._open:
            name, started = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + now - started
        if stage is None:
            self._open.pop()
            if self._open:
                self._open[-1][1] = now
        else:
            self._open.append([stage, now])


def _stages() -> list[tuple[str, Any, str]]:
    """What is wrapped: (name, owner, attribute)."""
    from specgguf.control import controller
    from specgguf.decode import run, stats
    from specgguf.native import context
    from specgguf.text import detokenize as text

    return [
        ("native decode", backend, "decode"),
        ("logits to distributions (p and q)", sampling.Transform, "distribution"),
        ("random draws", sampling.Rng, "categorical"),
        ("acceptance coins", sampling.Rng, "bernoulli"),
        ("residual", verifier, "residual"),
        ("acceptance rule", verifier, "verify_block"),
        ("fill the batch", backend.Batch, "fill"),
        ("view the logits", backend, "rows"),
        ("extend, around decode", context.Model, "extend"),
        ("roll back", context.Model, "roll_back"),
        ("detokenize, check stops", text.Detokenizer, "check"),
        ("controller: plan", controller.Adaptive, "plan"),
        ("controller: observe", controller.Adaptive, "observe"),
        ("synchronise both caches", run.Run, "synchronise"),
        ("statistics", stats.Stats, "add"),
    ]


@contextmanager
def watched() -> Iterator[Stages]:
    """All stages wrapped inside the block."""
    watch, before = Stages(), []
    for name, owner, attribute in _stages():
        original = getattr(owner, attribute, None)
        if original is None:
            say(f"(there is no {attribute} to be timed)")
            continue
        before.append((owner, attribute, original))
        setattr(owner, attribute, watch.timed(name, original))
    rules = dict(verifier.RULES)
    verifier.RULES["block"] = verifier.verify_block  # the wrapped one
    try:
        yield watch
    finally:
        verifier.RULES.update(rules)
        for owner, attribute, original in before:
            setattr(owner, attribute, original)
