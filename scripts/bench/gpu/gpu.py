"""Does this machine's GPU do what specgguf says? Memory, times, drafting, arguments; on random weights.

No model is needed: GGUF files of several presets' shapes are written with random weights (15 GB at most at a time) and
removed. Measured: device memory against `specgguf fit`'s arithmetic; passes over 1 to 17 tokens, draft steps;
Python's share; what calibration and controller make of it; a model that drafts for itself; greedy text with and
without a draft; and what llama.cpp's log says to each argument. Runs wherever llama-cpp-python does; without a GPU
there is no device memory to compare. Needs the package gguf (pip install gguf).

  scripts/bench/run gpu                      everything; the result goes to docs/results/gpu.json
  scripts/bench/run gpu --only 1.5b          one of the pairs, or the arguments; --append adds it to an earlier result
  scripts/bench/run gpu --quick              does the script work? Models of a few megabytes
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from specgguf.cli.terminal.tables import lines
from specgguf.presets import ModelFile, Shape

from bench.gpu import generations, measures, random_gguf
from bench.gpu.measures import Json, PairPlan
from bench.lib.cells import RESULTS, commit, say
from specgguf import presets
from specgguf.bench import results

# name: (preset, the target's kind of weights and the draft's, whether the target also drafts for itself)
PAIRS = {
    "8b": ("gpu-10gb", ("q4_0", "q8_0"), True),
    "1.5b": ("demo", ("f16", "f16"), True),
    "14b": ("gpu-16gb", ("q8_0", "q8_0"), False),
}
ARGUMENTS, ARGUMENTS_PAIR = "arguments", "1.5b"  # they are tried on the draft of a small pair
TINY = Shape(3, 256, 512, 4, 2, 64, 2048, 1, False)
DEPTH, TOKENS, SAMPLES, REPEATS = 512, 128, 12, 2
MIB = 2**20


def plans(quick: bool) -> list[PairPlan]:
    """The pairs, from their presets; with `quick` of a few megabytes."""
    found = []
    for name, (preset_name, kinds, self_draft) in PAIRS.items():
        preset = presets.load(preset_name)
        target, draft = preset.model, preset.draft_model
        assert isinstance(target, ModelFile)
        assert isinstance(draft, ModelFile)
        assert target.shape is not None
        assert draft.shape is not None
        plan = PairPlan(
            name=name,
            shapes=(target.shape, draft.shape),
            kinds=kinds,
            archs=(random_gguf.architecture(target.name), random_gguf.architecture(draft.name)),
            n_ctx=preset.n_ctx,
            type_kv=preset.type_k,
            draft_type_kv=preset.draft_type_k,
            depth=DEPTH,
            n_tokens=TOKENS,
            n_samples=SAMPLES,
            self_draft=self_draft,
        )
        if quick:
            small = (replace(TINY, tied=target.shape.tied), replace(TINY, n_layer=2, tied=draft.shape.tied))
            plan = replace(plan, shapes=small, n_ctx=1024, depth=32, n_tokens=24, n_samples=2)
        found.append(plan)
    return found


class Result:
    """The saved JSON: whole after each stage, so that stopping loses one stage at most."""

    def __init__(self, path: Path, head: Json, seconds: float, *, append: bool = False) -> None:
        before = json.loads(path.read_text(encoding="utf-8")) if append and path.exists() else {}
        self.path, self.data = path, {**head, "stages": {}, "stage_s": {}, **before}
        self.started, self.seconds = time.monotonic(), seconds
        path.parent.mkdir(parents=True, exist_ok=True)
        self.save()

    def stage(self, name: str, function: Callable[[], Json]) -> Json:
        """Run a stage and save what came of it; a stage that fails is recorded, and the next one runs."""
        if time.monotonic() - self.started > self.seconds:
            self.data["stages"][name] = {"skipped": f"after {self.seconds:.0f} s"}
            say(f"{name}: skipped, out of time")
            self.save()
            return {}
        started = time.monotonic()
        try:
            found = function()
        except Exception:
            found = {"error": traceback.format_exc()}
            say(f"{name}: FAILED\n{found['error']}")
        self.data["stages"][name] = found
        self.data["stage_s"][name] = time.monotonic() - started
        self.save()
        say(f"{name}: {self.data['stage_s'][name]:.1f} s")
        return {} if "error" in found else found

    def save(self) -> None:
        text = json.dumps(_rounded(self.data), indent=1, ensure_ascii=False)
        text = re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda m: "[" + re.sub(r"\s*\n\s*", " ", m[1]) + "]", text)
        part = self.path.with_name(self.path.name + ".part")
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(self.path)


def _rounded(value: Any) -> Any:
    """Six digits are enough."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(k): _rounded(v) for k, v in value.items()}
    return [_rounded(v) for v in value] if isinstance(value, list | tuple) else value


def nvidia_smi() -> str:
    """What NVIDIA's tool says of the devices before this process touches them; "" where there is none."""
    query = "--query-gpu=name,driver_version,memory.total,memory.used,power.limit,clocks.max.sm"
    try:
        done = subprocess.run(["nvidia-smi", query, "--format=csv"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def write_pair(plan: PairPlan, folder: Path, roles: Sequence[str] = ("target", "draft")) -> tuple[list[Path], Json]:
    """The pair's files."""
    paths, found = [], {}
    for i, role in enumerate(("target", "draft")):
        if role not in roles:
            continue
        shape, kind, arch, seed = plan.shapes[i], plan.kinds[i], plan.archs[i], 1 + i
        path, started = folder / f"{plan.name}-{role}.gguf", time.monotonic()
        n_bytes = random_gguf.write(path, shape, kind, arch=arch, seed=seed)
        paths.append(path)
        seconds = time.monotonic() - started
        found[role] = {"shape": asdict(shape), "kind": kind, "arch": arch, "seed": seed}
        found[role] |= {"bytes": n_bytes, "write_s": seconds}
        say(f"{path.name}: {n_bytes / 1e9:.2f} GB of random {kind}, {seconds:.1f} s")
    return paths, found


def run_pair(plan: PairPlan, folder: Path, result: Result, repeats: int) -> None:
    """All stages of one pair; its files are removed at the end."""
    paths: list[Path] = []

    def write() -> Json:
        written, found = write_pair(plan, folder)
        paths.extend(written)
        return found | {"n_ctx": plan.n_ctx, "type_kv": [plan.type_kv, plan.draft_type_kv]}

    try:
        if not result.stage(f"{plan.name} files", write):
            return
        alone = result.stage(f"{plan.name} alone", lambda: measures.pair_alone(plan, paths))
        if alone:
            show_alone(plan, alone)
        runs = result.stage(f"{plan.name} runs", lambda: generations.pair_runs(plan, paths, repeats))
        if runs:
            show_runs(runs)
        if plan.self_draft:
            own = result.stage(f"{plan.name} self-draft", lambda: generations.self_draft(plan, paths[0]))
            if own:
                show_self(own)
    finally:
        for path in folder.glob(f"{plan.name}-*.gguf"):
            path.unlink()


def run_arguments(plan: PairPlan, folder: Path, result: Result) -> None:
    """What each argument does, on the pair's draft."""

    def run() -> Json:
        paths, found = write_pair(plan, folder, ["draft"])
        return {**found, "cases": generations.arguments(paths[0], min(plan.n_ctx, 2048), say)}

    result.stage(ARGUMENTS, run)


# --- the result in words --------------------------------------------------------------------------------------


def show_alone(plan: PairPlan, found: Json) -> None:
    """Memory step by step, and what passes cost."""
    predicted, free = found["predicted"], [(s["step"], s["free_bytes"], s["logged"]) for s in found["steps"]]
    rows = []
    for (_, before, _), (step, after, said) in itertools.pairwise(free):
        role, _, what = step.partition(" ")
        estimate = predicted.get(role, {})
        wanted = estimate.get("weights") if what == "weights" else estimate.get("kv", 0) + estimate.get("compute", 0)
        wanted_text = f"{wanted / MIB:.0f}" if role in predicted and wanted is not None else ""
        on_host = sum(n for key, n in said.items() if re.match(r"CPU|\S+_Host", key))
        said_text = f"{(sum(said.values()) - on_host) / MIB:.0f}" if said else ""
        rows.append((f"  {step}", f"{(before - after) / MIB:.0f}", wanted_text, said_text))
    total = sum(estimate[part] for estimate in predicted.values() for part in ("weights", "kv", "compute"))
    rows.append(("  in all, before closing", f"{(free[0][1] - free[-2][1]) / MIB:.0f}", f"{total / MIB:.0f}", ""))
    for line in lines(rows, ("  device memory, MiB", "taken", "predicted", "logged"), right=(1, 2, 3)):
        say(line)
    verify = {int(w): 1e3 * statistics.median(s) for w, s in found["verify_s"].items()}
    draft = 1e3 * statistics.median(found["draft_s"])
    say("  verify, ms: " + ", ".join(f"{w}: {ms:.2f}" for w, ms in verify.items()))
    say(f"  draft step: {draft:.2f} ms; calibration {found['calibration']['seconds']:.2f} s")
    even = found["decision"]["break_even"]
    best = {a: f"K {k}, {gain:.2f}x" for a, (k, gain) in found["decision"]["best_by_acceptance"].items()}
    say(f"  pays from an acceptance of {'none' if even is None else f'{even:.2f}'} on; best: {best}")
    for role, noise in zip(("target", "draft"), found["width_noise"], strict=True):
        widths = {
            w: f"gap ±{max(x['gap_change']):.3f}, overlap {statistics.fmean(x['overlap']):.4f}, {x['n_flips']} flips"
            for w, x in noise["widths"].items()
        }
        say(f"  {role}: logits finite {noise['finite']}, std {noise['std']:.2f}; width 1 against {widths}")


def show_runs(found: Json) -> None:
    """Speeds and Python's share."""
    rows = [_row(f"T = {s['temperature']:g}", s) for s in found["host"]]
    rows += [_row(name, s) for name, samples in found["levels"].items() for s in samples]
    for line in lines(rows, ("  run", "draft", "tok/s", "host", "accepted", "rounds"), right=(2, 3, 4, 5)):
        say(line)


def _row(name: str, s: Json) -> tuple[str, ...]:
    accepted = "" if s["acceptance"] is None else f"{s['acceptance']:.2f}"
    speed, share = f"{s['tokens_per_second']:.1f}", f"{s['host_share']:.1%}"
    return (f"  {name}", str(s["draft"]), speed, share, accepted, str(s["n_rounds"]))


def show_self(found: Json) -> None:
    """What the target drafting for itself showed."""
    kinds = ("temperature_1", "whole_softmax", "auto", "plain_greedy", "drafted_greedy")
    rows = [_row(kind, found[kind]) for kind in kinds]
    for line in lines(rows, ("  self-draft", "draft", "tok/s", "host", "accepted", "rounds"), right=(2, 3, 4, 5)):
        say(line)
    say(f"  greedy, first difference from plain: {found['first_difference']}")


def main() -> int:
    """Write, measure, save; non-zero where a stage failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=[*PAIRS, ARGUMENTS], default=[], help="only this; again")
    parser.add_argument("--save", type=Path, default=None, metavar="FILE", help="[docs/results/gpu.json]")
    parser.add_argument("--append", action="store_true", help="add to what FILE holds")
    parser.add_argument("--folder", type=Path, metavar="DIR", help="for the models, 16 GB [the system's for such]")
    parser.add_argument("--seconds", type=float, default=1e9, metavar="N", help="begin no stage later than this")
    parser.add_argument("--commit", default=None, help="what is measured, where git is not at hand")
    parser.add_argument("--quick", action="store_true", help="a trial of the script itself")
    args = parser.parse_args()
    smi = nvidia_smi()
    with tempfile.TemporaryDirectory(prefix="specgguf-gpu-", dir=args.folder) as name:
        folder = Path(name)
        os.environ["XDG_CACHE_HOME"] = name  # calibrations of models that will be gone
        path = args.save or (Path(tempfile.gettempdir()) / "gpu-quick.json" if args.quick else RESULTS / "gpu.json")
        head = results.describe({}, commit=args.commit or commit(), quick=args.quick, nvidia_smi=smi)
        head["free_bytes_at_start"] = measures.free_bytes()
        result = Result(path, head, args.seconds, append=args.append)
        say(f"{len(head['machine']['devices']) - 1} GPUs: {head['machine']['devices']}")
        chosen = args.only or [*PAIRS, ARGUMENTS]
        for plan in plans(args.quick):
            if plan.name in chosen:
                run_pair(plan, folder, result, 1 if args.quick else REPEATS)
        if ARGUMENTS in chosen:
            run_arguments(next(p for p in plans(args.quick) if p.name == ARGUMENTS_PAIR), folder, result)
    failed = [name for name, found in result.data["stages"].items() if "error" in found]
    say(f"saved: {path}" + (f"; failed: {', '.join(failed)}" if failed else ""))
    return 1 if failed else 0
