"""`specgguf doctor`: versions, devices, the pair's own speed, and what to change, each with the line to type."""

from __future__ import annotations

import contextlib
import json
import platform
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from specgguf.cli.click_options import options
from specgguf.cli.open_pair import HARDWARE, LOUD
from specgguf.cli.settings import Settings, gather
from specgguf.cli.terminal import console
from specgguf.cli.terminal.progress import human_bytes
from specgguf.cli.terminal.status import StatusOutput
from specgguf.cli.terminal.views import doctor_view

from specgguf.errors import BackendError, SpecggufError

if TYPE_CHECKING:
    from specgguf.control.costs import Costs
    from specgguf.fit.hardware import Machine
    from specgguf.fit.instructions import InstructionSets
    from specgguf.native.rpc.wire import WorkerReport

BATCH_SIZES = (1, 2, 4, 8)
LEAST_RATIO = 3.0  # how much faster a draft token should be than a target token


@dataclass(frozen=True)
class Finding:
    """Something to know, and the line to type about it.

    Attributes:
        is_fault: it should be changed; else it is a remark.
    """

    text: str
    line: str = ""
    is_fault: bool = False


@click.command()
@options("Models", "Hardware")
@click.option("--speed/--no-speed", default=True, help="Measure the pair for a few seconds.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(speed: bool, as_json: bool, **flags: Any) -> int:
    """Check the installation, the devices and a pair that is already here. Downloads nothing.

    Exits with 1 when something is wrong that should be changed; a remark is none.
    """
    from specgguf.fit import instructions
    from specgguf.fit.hardware import others_keep_busy, this_machine

    settings = gather(flags)
    status = StatusOutput(console.style_for(sys.stderr))
    machine = this_machine()
    workers, unreachable = _workers(settings)
    heads, on_heads = _heads(settings)
    report: dict[str, Any] = {"versions": _versions(), "machine": _machine(machine) | workers}
    sets = instructions.here()
    report |= {"prediction_heads": heads, "instruction_sets": asdict(sets)}
    findings = _machine_findings(machine, settings, sets) + unreachable + on_heads
    if busy := others_keep_busy():
        findings.append(Finding(f"{busy}: what is measured now is less than this machine can do"))
    if speed:
        status.wait("measuring …")
        try:
            report["pair"], more = _pair(settings, machine)
            findings += more
        except SpecggufError as error:
            findings.append(Finding(f"no pair was measured: {error}", error.hint))
        status.clear()
    report["warnings"] = [asdict(f) for f in findings]
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False, indent=1))
    else:
        doctor_view.show(report)
    return int(any(finding.is_fault for finding in findings))


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    from specgguf.native import devices

    python, compiled = devices.build_info()
    return {
        "specgguf": version("specgguf"),
        "llama-cpp-python": python,
        "Python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "compiled with": compiled,
    }


def _machine(machine: Machine) -> dict[str, str]:
    rows = {}
    for device in machine.devices:
        about = f"{human_bytes(device.free_bytes)} of {human_bytes(device.total_bytes)} free"
        rows[device.name] = f"{device.description or device.kind}: {about}"
    return rows | {"cores": str(machine.n_cores)}


def _workers(settings: Settings) -> tuple[dict[str, str], list[Finding]]:
    """What each worker says about itself, and which say nothing."""
    from specgguf.native.rpc import library, wire

    rows, found = {}, []
    servers = [*(settings["rpc_servers"] or ()), *(settings["draft_rpc_servers"] or ())]
    if servers and not library.has_rpc():
        found.append(
            Finding("this llama-cpp-python was built without RPC: it knows only this machine", library.INSTALL)
        )
    for worker in wire.endpoints(servers) if servers else ():
        try:
            rows[f"worker {worker}"] = _about_worker(wire.ask(worker))
        except BackendError as error:
            found.append(Finding(str(error), error.hint))
    return rows, found


def _about_worker(report: WorkerReport) -> str:
    memory = ", ".join(f"{human_bytes(d.free_bytes)} of {human_bytes(d.total_bytes)} free" for d in report.devices)
    return f"{memory}; a round trip takes {report.round_trip_s * 1e3:.2f} ms"


def _heads(settings: Settings) -> tuple[dict[str, Any], list[Finding]]:
    """Whether this llama-cpp-python can run prediction heads, and how many the model has that is here, if one is."""
    from specgguf.presets import HEADS

    from specgguf.fit.pair_choice import choose_pair, heads_missing, here
    from specgguf.models.nextn import prediction_heads
    from specgguf.native.compat import REQUIREMENT

    missing, target, n = heads_missing(), None, None
    with contextlib.suppress(SpecggufError):
        target = here(choose_pair(settings["model"], None, settings["preset"], offline=True).model)
        n = prediction_heads.count_in(target)
    about = {"missing": missing, "target": target.name if target else None, "n": n}
    if not n or target is None:
        return about, []
    has = f"{target.name} has {n} prediction head{'s' if n > 1 else ''}"
    if missing:
        return about, [Finding(f"{has}, and {missing}", REQUIREMENT)]
    if settings["draft_model"] in (None, HEADS):
        return about, []
    return about, [Finding(f"{has}, which would draft for it", f"specgguf bench -m {target} -d heads")]


def _machine_findings(machine: Machine, settings: Settings, sets: InstructionSets) -> list[Finding]:
    from specgguf.fit.hardware import unused_gpu
    from specgguf.fit.instructions import reinstall

    found = []
    if backend := unused_gpu(machine):
        text = "there seems to be a graphics device, but llama-cpp-python was built for the CPU alone"
        found.append(Finding(text, reinstall(backend), is_fault=True))
    if sets.unused:
        names = ", ".join(sets.unused)
        text = f"llama.cpp was compiled without {names}: what runs on the CPU is slower than it could be"
        found.append(Finding(text, reinstall("NATIVE", backends=[gpu.backend for gpu in machine.gpus])))
    if (threads := settings["n_threads"]) and threads > machine.n_cores:
        found.append(Finding(f"{threads} threads on {machine.n_cores} cores", f"-t {machine.n_cores}", is_fault=True))
    if machine.gpus and settings["draft_n_gpu_layers"] == 0:
        found.append(
            Finding("the draft runs on the CPU beside a graphics device", "--draft-n-gpu-layers -1", is_fault=True)
        )
    for prefix in ("", "draft_"):
        kinds = (settings[prefix + "type_k"], settings[prefix + "type_v"])
        if settings[prefix + "flash_attn"] is False and any(k and k.startswith("q") for k in kinds):
            flag = f"--{prefix.replace('_', '-')}flash-attn"
            found.append(Finding("a quantised KV cache needs flash attention, which is off", flag, is_fault=True))
    return found


def _pair(settings: Settings, machine: Machine) -> tuple[dict[str, Any], list[Finding]]:
    """Load the pair that is here and measure it."""
    from specgguf.config import DraftConfig
    from specgguf.control.calibration import calibrate
    from specgguf.loading import open_pair

    target, draft, keywords = _files(settings)
    pair = open_pair(str(target), draft, DraftConfig("off", max(BATCH_SIZES) - 1), keywords=keywords)
    try:
        engine = pair.engine
        costs = calibrate(engine.target, engine.draft_model, max(BATCH_SIZES) - 1)
        rollback = {"target": engine.target.rollback.name}
        if engine.draft_model:
            rollback["draft"] = engine.draft_model.rollback.name
        about = _about(target, draft, costs, rollback) | {"placement": pair.placement}
        found = [Finding(w.removeprefix(LOUD), is_fault=w.startswith(LOUD)) for w in pair.warnings]
        return about, found + (_pair_findings(costs, target, draft) if draft else [])
    finally:
        pair.close()


def _files(settings: Settings) -> tuple[Path, str | None, dict[str, Any]]:
    """The target's file and what drafts with weights (a file, or "heads"), of what is here, and the keywords that they
    are loaded with.

    Raises:
        SpecggufError: nothing is here.
    """
    from specgguf.presets import NGRAM

    from specgguf.config import DraftConfig
    from specgguf.fit.pair_choice import choose_pair, here

    given = {k: settings[k] for p in ("", "draft_") for k in (p + n for n in HARDWARE[1:]) if settings[k] is not None}
    keywords: dict[str, Any] = {"n_ctx": 512, "n_gpu_layers": None, **given}
    heads = not settings["rpc_servers"]
    choice = choose_pair(settings["model"], settings["draft_model"], settings["preset"], heads=heads, offline=True)
    files = choice.files(here)
    if choice.preset is not None and choice.model == choice.preset.model:
        names = [field.name for field in fields(DraftConfig)]
        drafting = {*names, *(f"draft_{name}" for name in names)}  # not the models'
        keywords = {**{k: v for k, v in choice.preset.keywords.items() if k not in drafting}, **keywords}
    draft = files.draft_model
    return files.model, None if draft in (None, NGRAM) else str(draft), keywords


def _about(target: Path, draft: str | None, costs: Costs, rollback: dict[str, str]) -> dict[str, Any]:
    from specgguf.presets import HEADS

    from specgguf.fit import predict, search
    from specgguf.models.nextn import prediction_heads

    about: dict[str, Any] = {
        "target": target.name,
        "draft": Path(draft).name if draft else None,
        "slimmed": search.slimmed_draft(Path(draft)) if draft else "",
        "rollback": rollback,
        "verify_s": {n: costs.verify_s(n) for n in BATCH_SIZES},
        "draft_s": costs.draft_s if draft else None,
        "break_even": None,
    }
    if draft and costs.known:
        n_heads = prediction_heads.count_in(target) if draft == HEADS else 0
        limit = prediction_heads.draft_limit(n_heads) or predict.LENGTHS[-1]
        about["break_even"] = predict.break_even(predict.from_measured(about["verify_s"], costs.draft_s, limit))
    return about


def _pair_findings(costs: Costs, target: Path, draft: str) -> list[Finding]:
    from specgguf.presets import HEADS

    if not costs.draft_s:
        return []
    ratio = costs.verify_s(1) / costs.draft_s
    if ratio >= LEAST_RATIO:
        return []
    text = f"a draft token is only {ratio:.1f} times faster than a target token (3 and more pays)"
    return [
        Finding(text, f"specgguf bench -m {target} -d heads" if draft == HEADS else f"specgguf models pair {target}")
    ]
