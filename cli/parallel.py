"""How long a context, and how many texts at once, the free memory of this machine holds for a pair.

It reads heads of files and does arithmetic; it loads nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgguf.cli.pairing import ChosenPair
from specgguf.cli.settings import Settings

from specgguf.config import require_whole
from specgguf.errors import SpecggufError

if TYPE_CHECKING:
    from specgguf.fit.search import Plan


def keywords(settings: Settings, pair: ChosenPair, n_max: int) -> dict[str, Any]:
    """The keywords for several texts at once: as many as the settings say, or as fit, at most `n_max`; none where the
    memory of the target takes sequences one after the other anyway."""
    n_parallel, cache_tokens = settings["n_parallel"], settings["cache_tokens"]
    if n_parallel is None:
        n_parallel = how_many(settings, pair, n_max)
    found = {"n_parallel": n_parallel, "cache_tokens": cache_tokens}
    return {name: value for name, value in found.items() if value is not None}


def check(settings: Settings) -> None:
    """Raise ConfigError for numbers that are none, before anything is loaded."""
    for name, least in (("n_parallel", 1), ("cache_tokens", 2)):
        if settings[name] is not None:
            require_whole(name, settings[name], least)


@dataclass(frozen=True)
class Together:
    """So many texts at once, as a plan counts them: their caches are those of one long context.

    Attributes:
        n: the texts. cache_tokens: what the caches hold for all of them, where that is said.
    """

    n: int = 1
    cache_tokens: int | None = None

    @classmethod
    def of(cls, settings: Settings, plan: Plan) -> Together:
        """As the settings say; one alone where they do not."""
        check(settings)
        found = cls(settings["n_parallel"] or 1, settings["cache_tokens"])
        if found.n > 1 and plan.target.hparams.is_recurrent:
            raise SpecggufError("several recurrent states at once are not counted", hint="leave --parallel out")
        if found.n == 1 and found.cache_tokens:
            raise SpecggufError("--cache-tokens is for several texts at once", hint="--parallel N says how many")
        return found

    def of_all(self, plan: Plan) -> Plan:
        """`plan`, a text's, with the caches of all."""
        if self.n == 1:
            return plan
        return plan.with_n_ctx(self.cache_tokens or self.n * (plan.target.n_ctx + _cells_beside()))

    def largest_n_ctx(self, plan: Plan) -> int:
        """The longest context of each that fits; 0 if none does."""
        from specgguf.fit import search
        from specgguf.fit.footprint import N_CTX_STEP

        if self.n == 1:
            return search.largest_n_ctx(plan)
        longest = plan.target.hparams.n_ctx_train
        if self.cache_tokens:  # whatever their contexts are
            each = self.cache_tokens if self.of_all(plan).fits else 0
        else:
            each = search.most_cells(plan, self.n * (longest + _cells_beside()) + N_CTX_STEP) // self.n
        return min(max(each - _cells_beside(), 0), longest)


def _cells_beside() -> int:
    from specgguf.turns.caches import CELLS_BESIDE

    return CELLS_BESIDE


def how_many(settings: Settings, pair: ChosenPair, n_max: int) -> int:
    """So many texts at once fit with their contexts; 1 for recurrent memories. Where it is said what their caches hold,
    that is what they take."""
    plan = plan_of(settings, pair)
    if plan.target.hparams.is_recurrent:
        return 1
    if settings["cache_tokens"]:
        return n_max
    plan = plan.with_n_ctx(settings["n_ctx"] or plan.target.n_ctx)
    while n_max > 1 and not Together(n_max).of_all(plan).fits:
        n_max //= 2
    return n_max


def largest_n_ctx(settings: Settings, pair: ChosenPair) -> int:
    """The longest context with which the pair fits into this machine's free memory, for each of the texts at once that
    its keywords provide for.

    Raises:
        SpecggufError: it fits with none.
    """
    together = Together(pair.keywords.get("n_parallel", 1), pair.keywords.get("cache_tokens"))
    n_ctx = together.largest_n_ctx(plan_of(settings, pair))
    if not n_ctx:
        raise SpecggufError("this pair does not fit into the free memory", hint="specgguf fit shows what would")
    return n_ctx


def plan_of(settings: Settings, pair: ChosenPair) -> Plan:
    """The pair on this machine, loaded as the settings say."""
    from specgguf.presets import HEADS

    from specgguf.fit import search
    from specgguf.fit.footprint import LoadParams
    from specgguf.fit.hardware import this_machine
    from specgguf.models import remote_header

    def load(path: Path, prefix: str) -> LoadParams:
        names = ("n_gpu_layers", "flash_attn", "type_k", "type_v")
        given = {n: settings[prefix + n] for n in names if settings[prefix + n] is not None}
        return LoadParams(remote_header.read(str(path)).hparams, **given)

    n_rs_seq = settings["draft_max"] if pair.draft_model is not None else 0
    target = replace(load(pair.model, ""), n_rs_seq=n_rs_seq)
    draft = load(pair.draft_model, "draft_") if isinstance(pair.draft_model, Path) else None
    return search.Plan(this_machine(), target, target.of_heads if pair.draft_model == HEADS else draft)
