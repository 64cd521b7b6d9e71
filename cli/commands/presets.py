"""`specgguf presets`: the ready-made pairs, and one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from specgguf.cli.click_options import options
from specgguf.cli.settings import gather
from specgguf.cli.terminal import tables
from specgguf.cli.terminal.progress import human_bytes

from specgguf.errors import ConfigError, SpecggufError

if TYPE_CHECKING:
    from specgguf.presets import ModelFile, Preset

DEVICES = {"gpu": "graphics card", "apple": "Mac", "cpu": "CPU", "any": "any machine"}


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from specgguf import presets

    return [name for name in presets.names() if name.startswith(incomplete)]


@click.group(invoke_without_command=True)
@click.pass_context
def presets(ctx: click.Context) -> None:
    """Show the ready-made pairs, and save your own."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_)


@presets.command("list", short_help="All presets, what each needs, and for which machine.")
@click.option("--fits", is_flag=True, help="Only those that fit into this machine's free memory.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_(fits: bool = False, as_json: bool = False) -> None:
    """All presets: memory that the pair needs, what is to be downloaded, and for which machine."""
    from specgguf import presets as store

    rows = []
    for name in store.names():
        try:
            preset = store.load(name)
            if fits and not _fits(preset):
                continue
            rows.append(_row(preset))
        except SpecggufError as error:
            click.echo(f"{name}: {error}", err=True)
    if fits:
        from specgguf.fit.hardware import this_machine

        here = this_machine().kind
        rows.sort(key=lambda row: row["device"] not in (here, "any"))
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    shown = [
        (r["name"], r["use"], _shown(r["memory_mib"] * 2**20 or None), _shown(r["download_bytes"]), r["summary"])
        for r in rows
    ]
    tables.show(shown, ("name", "use", "memory", "download", ""), right=(2, 3))


def _row(preset: Preset) -> dict[str, Any]:
    return {
        "name": preset.name,
        "use": preset.use,
        "device": preset.match.device,
        "memory_mib": _memory_mib(preset),
        "download_bytes": _download_bytes(preset),
        "summary": preset.summary,
    }


def _download_bytes(preset: Preset) -> int | None:
    """What is to be downloaded; None where that cannot be told offline."""
    from specgguf.models import hub

    try:
        missing = [m for m in preset.files if hub.cached(m, verify=False) is None]
    except SpecggufError:
        return None
    sizes = [m.bytes for m in missing if not isinstance(m, str)]
    return sum(sizes) if len(sizes) == len(missing) else None


def _shown(n: int | None) -> str:
    return "?" if n is None else human_bytes(n)


def _memory_mib(preset: Preset) -> int:
    """What the pair needs on the kind of machine that it is for; 0 where that cannot be told offline."""
    from specgguf.fit import footprint, search
    from specgguf.fit.hardware import MIB

    kind = "cpu" if preset.match.device == "any" else preset.match.device
    try:
        target, draft = search.loads_of(preset, offline=True)
    except SpecggufError:
        return 0
    n = preset.match.n_devices
    needs = [footprint.estimate(load, kind, n) for load in (target, draft) if load]
    used = sum(estimate.host if kind == "cpu" else estimate.device for estimate in needs)
    return round(used / MIB) + footprint.OVERHEAD_MIB[kind] * n


def _fits(preset: Preset) -> bool:
    from specgguf.fit import search
    from specgguf.fit.hardware import this_machine

    return search.plan_of(preset, this_machine(), offline=True).fits


@presets.command(short_help="Print a preset as the complete plan that it is.")
@click.argument("name", shell_complete=_complete)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def show(name: str, as_json: bool) -> None:
    """Print a preset as the complete plan that it is: files, settings, memory, license. Needs no network."""
    from dataclasses import asdict

    from specgguf import presets as store

    preset = store.load(name)
    if as_json:
        about = {**asdict(preset), "memory_mib": _memory_mib(preset)}
        click.echo(json.dumps(about, ensure_ascii=False, indent=1))
        return
    tables.show([("name", preset.name), ("", preset.summary), ("for", _machine(preset)), *_about(preset)])
    for label, model in (("target", preset.model), ("draft", preset.draft_model)):
        if model is None:
            continue
        click.echo()
        tables.show(_model_rows(label, model))


def _machine(preset: Preset) -> str:
    match = preset.match
    count = f"{match.n_devices} × " if match.n_devices > 1 else ""
    budget = f", budget {human_bytes(preset.budget_mib * 2**20)}" if preset.budget_mib else ""
    return f"{count}{DEVICES[match.device]}{budget}, {preset.use}" + (", experimental" if preset.experimental else "")


def _about(preset: Preset) -> list[tuple[str, str]]:
    layers = {None: "as many as the build can offload", -1: "all on the device", 0: "all on the CPU"}
    thinking = {None: "left to the model", True: "on", False: "off"}
    return [
        ("memory", f"{_shown(_memory_mib(preset) * 2**20 or None)} by the formula"),
        ("context", f"{preset.n_ctx} tokens"),
        ("layers", layers.get(preset.n_gpu_layers, str(preset.n_gpu_layers))),
        ("KV cache", f"target {preset.type_k}/{preset.type_v}, draft {preset.draft_type_k}/{preset.draft_type_v}"),
        ("flash attention", "on" if preset.flash_attn else "off"),
        ("batch", f"{preset.n_batch}, {preset.n_ubatch} at a time"),
        ("drafting", f"0 to {preset.draft_max} tokens, {preset.draft_first} at first"),
        ("thinking", thinking[preset.thinking]),
        ("sampling", ", ".join(f"{k} {v}" for k, v in preset.sampling.items()) or "the defaults"),
        ("expect", preset.source or "nothing is known"),
    ]


def _model_rows(label: str, model: ModelFile | str) -> list[tuple[str, str]]:
    from specgguf.models import hub

    if isinstance(model, str):
        return [(label, model)]
    here = hub.cached(model, verify=False)
    license = model.license or "unknown"
    return [
        (label, model.name),
        ("  from", f"{model.repo} at {model.revision[:12]}"),
        ("  size", f"{model.bytes:,} bytes"),
        ("  sha256", model.sha256),
        ("  license", license if model.is_open else f"{license} (not an open-source license)"),
        ("  here", str(here) if here else "no; specgguf models pull brings it"),
    ]


@presets.command()
@click.argument("name")
@options("Models", "Drafting", "Hardware", "Sampling")
@click.option("--summary", default="", help="What it is, in a line.")
@click.option("--force", is_flag=True, help="Replace an existing one of yours.")
def save(name: str, summary: str, force: bool, **flags: Any) -> None:
    """Keep a pair and its settings under NAME, for -p NAME.

    \b
      specgguf presets save mine -m ~/big.gguf -d ~/small.gguf -c 8192 --temp 0.6
    """
    from specgguf import presets as store

    settings = gather(flags)
    if not settings["model"]:
        raise click.UsageError("name the target with -m")
    values = _to_save({k: settings[k] for k in settings if settings.given_here(k)}, summary)
    store.parse(values, name=name, where=name)
    path = store.user_folder() / f"{name}.toml"
    if path.stem != name or not store.is_name(name):
        raise ConfigError(f"'{name}' cannot be the name of a preset", hint="small letters, digits, dots and dashes")
    if path.exists() and not force:
        raise ConfigError(f"there is a preset '{name}' of yours already", hint="--force replaces it")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_toml(values), encoding="utf-8")
    click.echo(f"saved {path}", err=True)


def _to_save(given: Mapping[str, Any], summary: str) -> dict[str, Any]:
    """Settings as a preset's table."""
    from dataclasses import fields
    from pathlib import Path

    from specgguf.presets import Preset

    from specgguf.config import SamplingParams

    def reference(text: str) -> str:
        path = Path(text).expanduser()
        return str(path.resolve()) if path.exists() else text

    values: dict[str, Any] = {"summary": summary or "saved by the user", "model": reference(given["model"])}
    if given.get("draft_model") not in (None, "none"):
        values["draft_model"] = reference(given["draft_model"])
    known = {f.name for f in fields(Preset)} - {"name", "model", "draft_model", "sampling"}
    values |= {k: v for k, v in given.items() if k in known}
    if "thinking" in values:
        values["thinking"] = values["thinking"] == "on"
    if "draft_max" in values:
        values["draft_first"] = min(Preset.draft_first, values["draft_max"])
    sampling = {f.name for f in fields(SamplingParams)}
    chosen = {k: v for k, v in given.items() if k in sampling}
    return values | ({"sampling": chosen} if chosen else {})


def _toml(values: Mapping[str, Any]) -> str:
    """A flat table with at most one level below, as TOML; JSON's strings and numbers are TOML's too."""
    flat = [f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, Mapping)]
    for key, table in values.items():
        if isinstance(table, Mapping):
            flat += ["", f"[{key}]", *(f"{k} = {json.dumps(v)}" for k, v in table.items())]
    return "\n".join(flat) + "\n"


@presets.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=_complete)
def rm(names: Sequence[str]) -> None:
    """Remove presets of your own."""
    from specgguf import presets as store

    for name in names:
        path = store.user_folder() / f"{name}.toml"
        if not store.is_name(name) or not path.is_file():
            known = "it comes with specgguf" if name in store.names() else "there is no such preset"
            raise ConfigError(f"'{name}' cannot be removed: {known}")
        path.unlink()
        click.echo(f"removed {path}", err=True)
