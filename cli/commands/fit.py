"""`specgguf fit`: what goes where in which memory, what is left, and what to change where it does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from specgguf.cli import parallel
from specgguf.cli.click_options import GroupedCommand, SectionOption, options
from specgguf.cli.settings import Settings, gather
from specgguf.cli.terminal.views import fit_view

from specgguf.errors import SpecggufError

if TYPE_CHECKING:
    from specgguf.fit.footprint import Footprint, LoadParams
    from specgguf.fit.hardware import Machine
    from specgguf.fit.pair_choice import PairChoice
    from specgguf.fit.predict import PairCosts
    from specgguf.fit.search import Plan
    from specgguf.fit.workers import WorkerShare
    from specgguf.models.remote_header import RemoteHeader

F = TypeVar("F", bound=Callable[..., Any])

MACHINE = "Machine"
NO_FIT = 1  # exit code: the question was answered, with no


def _machine_option(*names: str, **keywords: Any) -> Callable[[F], F]:
    return click.option(*names, cls=SectionOption, section=MACHINE, **keywords)


@click.command(cls=GroupedCommand)
@options("Models")
@_machine_option("--vram", default="", metavar="24GB", help="A graphics card with so much memory, not this machine.")
@_machine_option("--unified", default="", metavar="36GB", help="A Mac with so much memory.")
@_machine_option("--device", default="", metavar="NAME", help='A card or chip by name: "RTX 4090", "M3 Pro".')
@_machine_option("--gpus", default=1, metavar="N", help="So many of that card.", type=click.IntRange(1, 16))
@click.option("--exact", is_flag=True, help="Ask llama.cpp itself about buffers, without loading weights.")
@click.option("--predict", is_flag=True, help="Expected speed-up by draft length and acceptance: a prediction.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@options("Together", "Hardware")
def fit(
    vram: str, unified: str, device: str, gpus: int, exact: bool, predict: bool, as_json: bool, **flags: Any
) -> int:
    """Show what fits into this machine's memory, before loading anything.

    \b
      specgguf fit                         the pair that -p auto would take
      specgguf fit -m REF -d REF -c 0      the largest context that fits
      specgguf fit --parallel 8            with caches for eight texts at once
      specgguf fit -p gpu-24gb --device "RTX 4090" --predict

    Exits with 1 where the pair does not fit.
    """
    from specgguf.fit.hardware import described, this_machine

    settings = gather(flags)
    elsewhere = bool(vram or unified or device)
    machine = described(vram=vram, unified=unified, device=device, n_devices=gpus) if elsewhere else this_machine()
    plan, paths, why = _plan(settings, machine)
    together = parallel.Together.of(settings, plan)
    if plan.target.n_ctx == 0:
        plan = plan.with_n_ctx(together.largest_n_ctx(plan) or 256)
    alone, plan = plan, together.of_all(plan)
    plan, lent = _lent(plan, settings)
    if lent and exact:
        raise SpecggufError("--exact knows only this machine", hint="leave it out for the formula")
    sizes = _measured(plan, paths) if exact else plan.footprint
    fits = sizes.fits and all(share.fits for share in lent)
    if as_json:
        about: dict[str, Any] = fit_view.as_json(plan, sizes) | {"fits": fits, "n_parallel": together.n}
        about |= {"workers": [share.as_json() for share in lent]}
        if together.n > 1:  # of each
            about |= {"n_ctx": alone.target.n_ctx, "n_ctx_max": together.largest_n_ctx(alone), "change": None}
        click.echo(json.dumps(about, ensure_ascii=False, indent=1))
        return 0 if fits else NO_FIT
    if why:
        click.echo(why, err=True)
    fit_view.show_workers(lent)
    fit_view.show(plan, sizes, together.n, together.largest_n_ctx(alone) if together.n > 1 else None)
    if predict:
        click.echo()
        fit_view.show_prediction(_costs(plan), measured=False)
    return 0 if fits else NO_FIT


def _plan(settings: Settings, machine: Machine) -> tuple[Plan, tuple[Path | None, Path | None], str]:
    """The plan, where its files lie, and why this pair."""
    from specgguf.fit import search as planning
    from specgguf.fit.footprint import LoadParams
    from specgguf.fit.pair_choice import choose_pair
    from specgguf.models import remote_header
    from specgguf.models.nextn import prediction_heads

    offline = settings["offline"] or None
    choice = choose_pair(
        settings["model"],
        settings["draft_model"],
        settings["preset"],
        heads=not settings["rpc_servers"],
        offline=bool(settings["offline"]),
        machine=machine,
    )
    target = remote_header.read(choice.model, offline=offline)
    if choice.preset is not None and choice.model == choice.preset.model:
        loads = planning.loads_of(choice.preset, offline=offline)
    else:
        loads = (LoadParams(target.hparams), None)
    load = _load(loads[0], settings, "")
    if _uses_heads(choice, target):
        if settings["rpc_servers"]:
            raise prediction_heads.not_on_workers()
        load = replace(load, n_rs_seq=_draft_max(choice, settings))
        return planning.Plan(machine, load, load.of_heads), (target.path, None), choice.why
    draft = _draft(choice, target.path, offline)
    drafts = draft is not None or choice.draft_model is not None
    load = replace(load, n_rs_seq=_draft_max(choice, settings) if drafts else 0)
    draft_load = (loads[1] or LoadParams(draft.hparams)) if draft else None
    plan = planning.Plan(machine, load, _load(draft_load, settings, "draft_") if draft_load else None)
    return plan, (target.path, draft.path if draft else None), choice.why


def _draft_max(choice: PairChoice, settings: Settings) -> int:
    if choice.preset is None or settings.given("draft_max"):
        return int(settings["draft_max"])
    return choice.preset.draft_max


def _uses_heads(choice: PairChoice, target: RemoteHeader) -> bool:
    """Whether the target's own heads draft: named, or because nothing is. Raises Unsupported where it has none."""
    from specgguf.presets import HEADS

    from specgguf.fit.pair_choice import heads_missing
    from specgguf.models.nextn import prediction_heads

    has_heads = target.hparams.heads is not None
    if choice.draft_model == HEADS and not has_heads:
        raise prediction_heads.none_in(choice.model)
    unnamed = choice.seeks_draft and choice.takes_heads
    return has_heads and (choice.draft_model == HEADS or (unnamed and not heads_missing()))


def _draft(choice: PairChoice, target: Path | None, offline: bool | None) -> RemoteHeader | None:
    from specgguf.presets import NO_FILE

    from specgguf.fit import draft_candidates
    from specgguf.models import remote_header

    if choice.seeks_draft:
        best = draft_candidates.best(target) if target else None
        return remote_header.read(best.path) if best else None
    ref = choice.draft_model
    return None if ref is None or ref in NO_FILE else remote_header.read(ref, offline=offline)


def _load(load: LoadParams, settings: Settings, prefix: str) -> LoadParams:
    """A model's plan with what flags, variables and the config file say; a draft's context is the target's."""
    changes: dict[str, Any] = {}
    for name in ("n_ctx", "n_gpu_layers", "flash_attn", "type_k", "type_v"):
        key = prefix + name
        if settings.given(key) and settings[key] is not None:
            changes[name] = settings[key]
    if prefix and "n_ctx" not in changes and settings.given("n_ctx"):
        changes["n_ctx"] = settings["n_ctx"]
    return replace(load, **changes)


def _lent(plan: Plan, settings: Settings) -> tuple[Plan, list[WorkerShare]]:
    """The plan of what stays here, and what each worker gets; asks the workers."""
    from specgguf.fit import workers

    def spread(load: LoadParams, prefix: str) -> tuple[LoadParams, list[WorkerShare]]:
        servers = settings[f"{prefix}rpc_servers"]
        shares = settings[f"{prefix}tensor_split"]
        return workers.spread(load, plan.machine, servers, shares) if servers else (load, [])

    target, lent = spread(plan.target, "")
    draft, lent_draft = spread(plan.draft, "draft_") if plan.draft else (None, [])
    return replace(plan, target=target, draft=draft), lent + lent_draft


def _measured(plan: Plan, paths: tuple[Path | None, Path | None]) -> Footprint:
    """The footprint with llama.cpp's own figures for what is on disk."""
    from specgguf.fit.dry_load import measured

    if not plan.machine.is_here or paths[0] is None:
        raise SpecggufError("--exact needs the files and this machine", hint="leave it out for the formula")
    sizes = plan.footprint
    kind = plan.machine.kind
    target = measured(plan.target, paths[0], kind)
    draft = measured(plan.draft, paths[1], kind) if plan.draft and paths[1] else sizes.draft
    return replace(sizes, target=target, draft=draft)


def _costs(plan: Plan) -> PairCosts:
    from specgguf.fit.predict import from_bytes

    if plan.draft is None:
        raise SpecggufError("a prediction needs a draft", hint="-d REF names one")
    return from_bytes(plan.target.hparams, plan.draft.hparams, plan.machine.devices[0])
