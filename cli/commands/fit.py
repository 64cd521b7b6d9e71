"""`specgguf fit`: what goes where in which memory, what is left, and what to change where it does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from specgguf.cli.click_options import GroupedCommand, SectionOption, options
from specgguf.cli.settings import Settings, gather
from specgguf.cli.terminal import tables

from specgguf.errors import SpecggufError

if TYPE_CHECKING:
    from specgguf.fit.footprint import Footprint, LoadParams, MemoryEstimate
    from specgguf.fit.hardware import Machine
    from specgguf.fit.pair_choice import PairChoice
    from specgguf.fit.predict import PairCosts
    from specgguf.fit.search import Plan
    from specgguf.fit.workers import WorkerShare
    from specgguf.models.remote_header import RemoteHeader

F = TypeVar("F", bound=Callable[..., Any])

MB = 10**6  # the unit of files and of every other figure that is shown
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
@options("Hardware")
def fit(
    vram: str, unified: str, device: str, gpus: int, exact: bool, predict: bool, as_json: bool, **flags: Any
) -> int:
    """Show what fits into this machine's memory, before loading anything.

    \b
      specgguf fit                         the pair that -p auto would take
      specgguf fit -m REF -d REF -c 0      the largest context that fits
      specgguf fit -p gpu-24gb --device "RTX 4090" --predict

    Exits with 1 where the pair does not fit.
    """
    from specgguf.fit.hardware import described, this_machine

    settings = gather(flags)
    elsewhere = bool(vram or unified or device)
    machine = described(vram=vram, unified=unified, device=device, n_devices=gpus) if elsewhere else this_machine()
    plan, paths, why = _plan(settings, machine)
    if plan.target.n_ctx == 0:
        from specgguf.fit.search import largest_n_ctx

        plan = plan.with_n_ctx(largest_n_ctx(plan) or 256)
    plan, lent = _lent(plan, settings)
    if lent and exact:
        raise SpecggufError("--exact knows only this machine", hint="leave it out for the formula")
    sizes = _measured(plan, paths) if exact else plan.footprint
    fits = sizes.fits and all(share.fits for share in lent)
    if as_json:
        about = _as_json(plan, sizes) | {"fits": fits, "workers": [share.as_json() for share in lent]}
        click.echo(json.dumps(about, ensure_ascii=False, indent=1))
        return 0 if fits else NO_FIT
    if why:
        click.echo(why, err=True)
    _show_workers(lent)
    _show(plan, sizes)
    if predict:
        click.echo()
        show_prediction(_costs(plan), measured=False)
    return 0 if fits else NO_FIT


def _plan(settings: Settings, machine: Machine) -> tuple[Plan, tuple[Path | None, Path | None], str]:
    """The plan, where its files lie, and why this pair."""
    from specgguf.fit import search as planning
    from specgguf.fit.footprint import LoadParams
    from specgguf.fit.pair_choice import choose_pair
    from specgguf.models import remote_header

    offline = settings["offline"] or None
    choice = choose_pair(
        settings["model"],
        settings["draft_model"],
        settings["preset"],
        offline=bool(settings["offline"]),
        machine=machine,
    )
    target = remote_header.read(choice.model, offline=offline)
    draft = _draft(choice, target.path, offline)
    if choice.preset is not None and choice.model == choice.preset.model:
        plan = planning.plan_of(choice.preset, machine, offline=offline)
        loads = (plan.target, (plan.draft or LoadParams(draft.hparams)) if draft else None)
    else:
        loads = (LoadParams(target.hparams), LoadParams(draft.hparams) if draft else None)
    plan = planning.Plan(
        machine, _load(loads[0], settings, ""), _load(loads[1], settings, "draft_") if loads[1] else None
    )
    return plan, (target.path, draft.path if draft else None), choice.why


def _draft(choice: PairChoice, target: Path | None, offline: bool | None) -> RemoteHeader | None:
    from specgguf.fit import draft_candidates
    from specgguf.fit.pair_choice import NO_FILE
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
    from specgguf.fit.footprint import measured

    if not plan.machine.is_here or paths[0] is None:
        raise SpecggufError("--exact needs the files and this machine", hint="leave it out for the formula")
    sizes = plan.footprint
    kind = plan.machine.kind
    target = measured(plan.target, paths[0], kind)
    draft = measured(plan.draft, paths[1], kind) if plan.draft and paths[1] else sizes.draft
    return replace(sizes, target=target, draft=draft)


# --- showing ------------------------------------------------------------------------------------------------


def _show(plan: Plan, sizes: Footprint) -> None:
    from specgguf.fit import search as planning

    for label, load in (("target", plan.target), ("draft", plan.draft)):
        if load:
            click.echo(f"{label:<7} {load.hparams.name}  ({planning.describe(load.hparams)})  {_how(load, plan)}")
            if load.hparams.n_vocab_source:
                click.echo(f"        {planning.describe_slimmed(load.hparams)}")
    click.echo()
    has_gpu = bool(plan.machine.gpus)
    header = ("MB", "device", "host") if has_gpu else ("MB", "host")
    rows = [[label, *columns] if has_gpu else [label, columns[1]] for label, *columns in _rows(sizes)]
    tables.show(rows, header, right=(1, 2))
    pages = sizes.target.host_pages + sizes.draft.host_pages
    if pages:
        click.echo(f"and {_mb(pages)} MB of file pages, which are dropped when memory runs short")
    click.echo()
    if not plan.target.hparams.is_sure:
        click.echo("the formula does not know this architecture's memory: --exact asks llama.cpp", err=True)
    if not sizes.fits:
        change = planning.cheapest_change(plan)
        click.echo(f"does not fit. Cheapest change: {change.text}" if change else "does not fit")
        if change:
            click.echo(f"  {change.flags}")
        return
    largest = planning.largest_n_ctx(plan)
    own = " (the model's own limit)" if largest >= plan.target.hparams.n_ctx_train else ""
    click.echo(f"fits; so does a context of up to {largest} tokens{own}")


def _show_workers(lent: list[WorkerShare]) -> None:
    if not lent:
        return
    header = ("worker", "layers", "MB", "free", "round trip")
    rows = []
    for share in lent:
        trip = f"{share.report.round_trip_s * 1e3:.2f} ms"
        word = str(share.report.endpoint) + ("" if share.fits else "  does not fit")
        rows.append((word, str(share.n_layer), _mb(share.bytes), _mb(share.report.free_bytes), trip))
    tables.show(rows, header, right=(1, 2, 3, 4))
    click.echo("here:")


def _how(load: LoadParams, plan: Plan) -> str:
    where = "on the CPU"
    if plan.machine.gpus:
        n, whole = load.n_offloaded, load.hparams.n_layer + 1
        where = "all layers on the device" if n == whole else f"{n} of {whole} layers on the device"
    flash = "" if load.flash_attn else ", no flash attention"
    return f"context {load.n_ctx}, KV {load.type_k}/{load.type_v}{flash}, {where}"


def _rows(sizes: Footprint) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, int, int]] = []
    for label, estimate in (("target", sizes.target), ("draft", sizes.draft)):
        if estimate.device or estimate.host:
            rows.append((f"{label} weights", estimate.weights, estimate.host_weights))
            rows.append((f"{label} KV cache", estimate.kv, estimate.host_kv))
            rows.append((f"{label} compute", estimate.compute, estimate.host_compute))
            rows.append((f"{label} vocabulary", 0, estimate.host_vocab))
    rows.append(("overhead", sizes.overhead if sizes.device else 0, sizes.host_overhead))
    rows.append(("in all", sizes.device, sizes.host))
    rows.append(("free", sizes.device_free, sizes.machine.cpu.free_bytes))
    rows.append(("left", sizes.device_free - sizes.device, sizes.machine.cpu.free_bytes - sizes.host))
    return [(label, _mb(device), _mb(host)) for label, device, host in rows]


def _mb(n: int) -> str:
    return f"{n / MB:,.0f}" if n else "-"


def _as_json(plan: Plan, sizes: Footprint) -> dict[str, Any]:
    from specgguf.fit import search as planning

    def estimate(n: MemoryEstimate) -> Mapping[str, int]:
        return {name: getattr(n, name) for name in ("weights", "kv", "compute", *_HOST)}

    change = planning.cheapest_change(plan)
    return {
        "fits": sizes.fits,
        "n_ctx": plan.target.n_ctx,
        "n_ctx_max": planning.largest_n_ctx(plan),
        "target": {"name": plan.target.hparams.name, **estimate(sizes.target)},
        "draft": {"name": plan.draft.hparams.name, **estimate(sizes.draft)} if plan.draft else None,
        "device_bytes": sizes.device,
        "device_free_bytes": sizes.device_free,
        "host_bytes": sizes.host,
        "host_free_bytes": sizes.machine.cpu.free_bytes,
        "change": {"text": change.text, "flags": change.flags} if change else None,
    }


_HOST = ("host_weights", "host_kv", "host_compute", "host_vocab")


def _costs(plan: Plan) -> PairCosts:
    from specgguf.fit.predict import from_bytes

    if plan.draft is None:
        raise SpecggufError("a prediction needs a draft", hint="-d REF names one")
    return from_bytes(plan.target.hparams, plan.draft.hparams, plan.machine.devices[0])


def show_prediction(costs: PairCosts, *, measured: bool) -> None:
    """The table of speed-ups, labelled with where its costs come from."""
    from specgguf.fit import predict

    source = "costs measured here" if measured else "bytes and bandwidth; a prediction, nothing was run"
    click.echo(f"speed-up over plain decoding, from {source}")
    header = ("accepted", *(f"K={n}" for n in predict.LENGTHS), "best")
    rows = []
    for a in predict.ACCEPTANCES:
        n, gain = predict.best(costs, a)
        word = f"K={n}: {gain:.2f}x" if n else "rest"
        rows.append((f"{a:.0%}", *(f"{predict.speed_up(costs, a, k):.2f}" for k in predict.LENGTHS), word))
    tables.show(rows, header, right=tuple(range(1, len(predict.LENGTHS) + 1)))
    limit = predict.break_even(costs)
    click.echo(
        "drafting cannot pay with this pair on this device"
        if limit is None
        else f"drafting pays when more than {limit:.0%} of the drafted tokens are accepted"
    )
