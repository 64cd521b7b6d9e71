"""What a pair takes of memory as people read it: the table of `specgguf fit`, its JSON, and predicted speed-ups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click
from specgguf.cli.terminal import tables

if TYPE_CHECKING:
    from specgguf.fit.footprint import Footprint, LoadParams, MemoryEstimate
    from specgguf.fit.predict import PairCosts
    from specgguf.fit.search import Plan
    from specgguf.fit.workers import WorkerShare

MB = 10**6  # the unit of files and of every other figure that is shown


def show(plan: Plan, sizes: Footprint, n_parallel: int = 1, largest: int | None = None) -> None:
    """The pair, the table of what it takes, and whether it fits.

    Args:
        n_parallel: texts that share the plan's context.
        largest: the longest context of each of them that fits; None: of one alone.
    """
    from specgguf.fit import search as planning

    for label, load in (("target", plan.target), (_drafts(plan), plan.draft)):
        if load:
            click.echo(
                f"{label:<7} {load.hparams.name}  ({planning.describe(load.hparams)})  {_how(load, plan, n_parallel)}"
            )
            if load.hparams.n_vocab_source:
                click.echo(f"        {planning.describe_slimmed(load.hparams)}")
    click.echo()
    has_gpu = bool(plan.machine.gpus)
    header = ("MB", "device", "host") if has_gpu else ("MB", "host")
    found = _rows(sizes, plan)
    rows = [[label, *columns] if has_gpu else [label, columns[1]] for label, *columns in found]
    tables.show(rows, header, right=(1, 2))
    pages = sizes.target.host_pages + sizes.draft.host_pages
    if pages:
        click.echo(f"and {_mb(pages)} MB of file pages, which are dropped when memory runs short")
    click.echo()
    if not plan.target.hparams.is_sure:
        click.echo("the formula was not fitted to this architecture's memory: --exact asks llama.cpp", err=True)
    if not sizes.fits and n_parallel > 1:
        click.echo("does not fit. Fewer at once (--parallel), or a shorter context (--n-ctx), would")
        return
    if not sizes.fits:
        change = planning.cheapest_change(plan)
        click.echo(f"does not fit. Cheapest change: {change.text}" if change else "does not fit")
        if change:
            click.echo(f"  {change.flags}")
        return
    largest = planning.largest_n_ctx(plan) if largest is None else largest
    own = " (the model's own limit)" if largest >= plan.target.hparams.n_ctx_train else ""
    each = f" for each of {n_parallel}" if n_parallel > 1 else ""
    click.echo(f"fits; so does a context of up to {largest} tokens{each}{own}")


def show_workers(lent: list[WorkerShare]) -> None:
    """What each worker gets."""
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


def _drafts(plan: Plan) -> str:
    """What drafts, as the rows are called."""
    return "heads" if plan.draft and plan.draft.hparams.are_heads else "draft"


def _how(load: LoadParams, plan: Plan, n_parallel: int) -> str:
    if load.hparams.are_heads:
        n = load.hparams.n_layer
        return (
            "a prediction head, with a context beside the target's"
            if n == 1
            else f"{n} prediction heads, as many contexts"
        )
    where = "on the CPU"
    if plan.machine.gpus:
        n, whole = load.n_offloaded, load.hparams.n_layer + 1
        where = "all layers on the device" if n == whole else f"{n} of {whole} layers on the device"
    flash = "" if load.flash_attn else ", no flash attention"
    cells = f"context {load.n_ctx}" if n_parallel == 1 else f"caches of {load.n_ctx} tokens for {n_parallel} at once"
    return f"{cells}, KV {load.type_k}/{load.type_v}{flash}, {where}"


def _rows(sizes: Footprint, plan: Plan) -> list[tuple[str, str, str]]:
    rows: list[tuple[str, int, int]] = []
    for label, estimate, load in (
        ("target", sizes.target, plan.target),
        (_drafts(plan), sizes.draft, plan.draft),
    ):
        if load and (estimate.device or estimate.host):
            states = ", states" if any(load.hparams.state_bytes) else ""
            rows.append((f"{label} weights", estimate.weights, estimate.host_weights))
            rows.append((f"{label} KV cache{states}", estimate.kv, estimate.host_kv))
            rows.append((f"{label} compute", estimate.compute, estimate.host_compute))
            if estimate.host_vocab:
                rows.append((f"{label} vocabulary", 0, estimate.host_vocab))
            if estimate.host_states:
                rows.append((f"{label} hidden states", 0, estimate.host_states))
    rows.append(("overhead", sizes.overhead if sizes.device else 0, sizes.host_overhead))
    rows.append(("in all", sizes.device, sizes.host))
    rows.append(("free", sizes.device_free, sizes.machine.cpu.free_bytes))
    rows.append(("left", sizes.device_free - sizes.device, sizes.machine.cpu.free_bytes - sizes.host))
    return [(label, _mb(device), _mb(host)) for label, device, host in rows]


def _mb(n: int) -> str:
    return f"{n / MB:,.0f}" if n else "-"


def as_json(plan: Plan, sizes: Footprint) -> dict[str, Any]:
    """The same for programs, in bytes."""
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
        "prediction_heads": plan.target.hparams.n_prediction_heads,
        "drafts": _drafts(plan) if plan.draft else None,
        "device_bytes": sizes.device,
        "device_free_bytes": sizes.device_free,
        "host_bytes": sizes.host,
        "host_free_bytes": sizes.machine.cpu.free_bytes,
        "change": {"text": change.text, "flags": change.flags} if change else None,
    }


_HOST = ("host_weights", "host_kv", "host_compute", "host_vocab", "host_states")


def show_prediction(costs: PairCosts, *, measured: bool) -> None:
    """The table of speed-ups, labelled with where its costs come from."""
    from specgguf.fit import predict

    source = "costs measured here" if measured else "bytes and bandwidth; a prediction, nothing was run"
    click.echo(f"speed-up over plain decoding, from {source}")
    header = ("accepted", *(f"K={n}" for n in costs.lengths), "best")
    rows = []
    for a in predict.ACCEPTANCES:
        n, gain = predict.best(costs, a)
        word = f"K={n}: {gain:.2f}x" if n else "off"
        rows.append((f"{a:.0%}", *(f"{predict.speed_up(costs, a, k):.2f}" for k in costs.lengths), word))
    tables.show(rows, header, right=tuple(range(1, len(costs.lengths) + 1)))
    limit = predict.break_even(costs)
    click.echo(
        "drafting cannot pay with this pair on this device"
        if limit is None
        else f"drafting pays when more than {limit:.0%} of the drafted tokens are accepted"
    )
