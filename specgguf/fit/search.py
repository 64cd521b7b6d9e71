"""What fits: the largest context, the cheapest change that makes a pair fit, and the preset for a machine.

Decides by free memory, never by a device's label, and says why in one line. Loads and downloads nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specgguf import presets
from specgguf.errors import ConfigError, SpecggufError
from specgguf.models import hparams, hub, remote_header
from specgguf.models.hparams import HParams
from specgguf.presets import HEADS, NO_FILE, ModelFile, Preset

from . import hardware
from .footprint import N_CTX_STEP, Footprint, LoadParams, footprint
from .hardware import MIB, Machine

LEAST_N_CTX = 4096  # what a conversation should have; below it another change is cheaper
BYTES_PER_CORE = 0.65e9  # weights a CPU core reads a prompt with at a bearable speed


@dataclass(frozen=True)
class Plan:
    """A pair, how it is to be loaded, and where."""

    machine: Machine
    target: LoadParams
    draft: LoadParams | None = None

    @property
    def footprint(self) -> Footprint:
        return footprint(self.target, self.draft, self.machine)

    @property
    def fits(self) -> bool:
        return self.footprint.fits

    def with_n_ctx(self, n_ctx: int) -> Plan:
        """The same with another context, the draft's too."""
        draft = replace(self.draft, n_ctx=n_ctx) if self.draft else None
        return replace(self, target=replace(self.target, n_ctx=n_ctx), draft=draft)

    def with_kv(self, kind: str) -> Plan:
        """The same with other KV types; a quantised cache needs flash attention."""
        changes = {"type_k": kind, "type_v": kind, "flash_attn": True}
        draft = replace(self.draft, **changes) if self.draft else None  # type: ignore[arg-type]
        return replace(self, target=replace(self.target, **changes), draft=draft)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Change:
    """A change that makes a pair fit: in words, as flags, and its plan (None: another file is needed)."""

    text: str
    flags: str
    plan: Plan | None


def plan_of(preset: Preset, machine: Machine, *, offline: bool | None = None) -> Plan:
    """A preset on a machine, by its files where they are here, else by its own description.

    Raises:
        SpecggufError: a user's preset whose reference leads nowhere.
    """
    target, draft = loads_of(preset, offline=offline)
    return Plan(machine, target, draft)


def loads_of(preset: Preset, *, offline: bool | None = None) -> tuple[LoadParams, LoadParams | None]:
    """How a preset's models are to be loaded. Raises as `plan_of`."""
    target = LoadParams(
        remote_header.read(preset.model, offline=offline).hparams,
        n_ctx=preset.n_ctx,
        n_gpu_layers=-1 if preset.n_gpu_layers is None else preset.n_gpu_layers,
        type_k=preset.type_k,
        type_v=preset.type_v,
        flash_attn=preset.flash_attn,
        n_ubatch=preset.n_ubatch,
        n_rs_seq=preset.draft_max if preset.draft_model is not None else 0,
    )
    if preset.draft_model is None or preset.draft_model in NO_FILE:
        return target, target.of_heads if preset.draft_model == HEADS else None
    of_draft = remote_header.read(preset.draft_model, offline=offline).hparams
    draft = replace(target, hparams=of_draft, type_k=preset.draft_type_k, type_v=preset.draft_type_v, n_rs_seq=0)
    return target, draft


def largest_n_ctx(plan: Plan) -> int:
    """The longest context with which the pair fits, at most what the target was trained for; 0 if none does."""
    return most_cells(plan, plan.target.hparams.n_ctx_train)


def most_cells(plan: Plan, wanted: int) -> int:
    """How many tokens the caches can hold, at most `wanted`, in steps of llama.cpp's; 0 if the pair fits with none."""
    low, high = 0, wanted // N_CTX_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if plan.with_n_ctx(middle * N_CTX_STEP).fits:
            low = middle
        else:
            high = middle - 1
    return low * N_CTX_STEP


def cheapest_change(plan: Plan) -> Change | None:
    """The first of these that makes the pair fit: KV caches in q8_0, a shorter context, both, fewer target
    layers on the device (the draft stays there whole), another quantisation. None when it fits already.
    """
    if plan.fits:
        return None
    return next(_changes(plan))


def _changes(plan: Plan) -> Iterator[Change]:
    q8 = plan.with_kv("q8_0")
    is_q8 = plan.target.type_k == "q8_0"
    has_file = plan.draft is not None and not plan.draft.hparams.are_heads
    draft_flags = " --draft-type-k q8_0 --draft-type-v q8_0" if has_file else ""
    kv_flags = f"--type-k q8_0 --type-v q8_0{draft_flags} --flash-attn"
    if not is_q8 and q8.fits:
        yield Change("KV caches in q8_0", kv_flags, q8)
    for candidate, text, flags in ((plan, "", ""), (q8, " and KV caches in q8_0", " " + kv_flags)):
        n_ctx = largest_n_ctx(candidate)
        if n_ctx >= min(LEAST_N_CTX, plan.target.n_ctx):
            yield Change(f"a context of {n_ctx} tokens{text}", f"-c {n_ctx}{flags}", candidate.with_n_ctx(n_ctx))
    if plan.machine.kind == "gpu":
        yield from _fewer_layers(q8.with_n_ctx(min(LEAST_N_CTX, plan.target.n_ctx)), kv_flags)
    yield _another_file(plan)


def _fewer_layers(plan: Plan, kv_flags: str) -> Iterator[Change]:
    for n in range(plan.target.hparams.n_layer, 0, -1):
        fewer = replace(plan, target=replace(plan.target, n_gpu_layers=n))
        if fewer.fits:
            text = f"{n} of {plan.target.hparams.n_layer + 1} target layers on the device, the rest on the CPU"
            yield Change(text, f"-ngl {n} -c {plan.target.n_ctx} {kv_flags}", fewer)
            return


def _another_file(plan: Plan) -> Change:
    bits = plan.target.hparams.bits_per_weight
    smallest = plan.with_kv("q8_0").with_n_ctx(min(LEAST_N_CTX, plan.target.n_ctx))
    if bits > 5.2 and _shrunk(smallest, 4.85).fits:
        return Change("the target in Q4_K_M instead of what it is", "-m org/repo:Q4_K_M", None)
    return Change("a smaller target: this one does not fit in any way that is worth it", "-p auto", None)


def _shrunk(plan: Plan, bits: float) -> Plan:
    """The plan as if the target had so many bits per weight."""
    d = plan.target.hparams
    share = bits / d.bits_per_weight
    smaller = replace(
        d,
        layer_bytes=tuple(int(n * share) for n in d.layer_bytes),
        embd_bytes=int(d.embd_bytes * share),
        output_bytes=int(d.output_bytes * share),
    )
    return replace(plan, target=replace(plan.target, hparams=smaller))


# --- the preset for a machine -------------------------------------------------------------------------------


def named(name: str, *, use: str = "chat", offline: bool = False, machine: Machine | None = None) -> tuple[Preset, str]:
    """The preset that `name` means on `machine` (None: this one), and why; "auto" chooses (offline: among those here).

    Raises:
        ConfigError: no such preset, or none that may be taken.
        BackendError: "auto", and llama-cpp-python is not usable.
    """
    if name != "auto":
        return presets.load(name), ""
    return choose(machine or hardware.this_machine(), use=use, available=is_here if offline else None)


def is_here(preset: Preset) -> bool:
    """Whether all files of a preset are on this machine."""
    try:
        return all(hub.cached(file, verify=False) is not None for file in preset.files)
    except SpecggufError:
        return False


def choose(
    machine: Machine, *, use: str = "chat", available: Callable[[Preset], bool] | None = None
) -> tuple[Preset, str]:
    """The best preset that fits into `machine`'s free memory, and why, in one line.

    Args:
        use: "chat" or "code".
        available: which presets may be taken (offline: those whose files are here).

    Raises:
        ConfigError: not even the smallest may be taken.
    """
    allowed = available or (lambda _preset: True)
    candidates = [p for p in _candidates(machine, use) if allowed(p)]
    by_target: dict[str, list[Preset]] = {}
    for preset in candidates:
        by_target.setdefault(str(preset.model), []).append(preset)
    for group in by_target.values():
        shortest = group[-1]
        cut = replace(shortest, n_ctx=LEAST_N_CTX) if shortest.n_ctx > LEAST_N_CTX else shortest
        for preset in (*group, cut):
            plan = plan_of(preset, machine, offline=True)
            if plan.fits:
                return preset, _reason(preset, plan)
    demo = presets.load("demo")
    if not allowed(demo):
        raise ConfigError(
            "no preset's models are on this machine, and offline mode is on",
            hint="specgguf models pull demo, when there is a network; or -m FILE",
        )
    return demo, _reason(demo, plan_of(demo, machine, offline=True))


def _candidates(machine: Machine, use: str) -> list[Preset]:
    """Presets for this kind of machine and no larger one: the largest target first, then the longest context.

    Only pairs of two files: what heads gain nobody has measured, and what was not run is not chosen for anybody.
    """
    found = []
    tier = (machine.gpus[0] if machine.kind == "gpu" else machine.cpu).total_bytes // MIB
    for name in presets.names():
        preset = presets.load(name)
        if not isinstance(preset.model, ModelFile) or preset.use != use or preset.match.device != machine.kind:
            continue
        if preset.draft_model in NO_FILE:
            continue
        if preset.match.n_devices > max(1, len(machine.gpus)) or preset.match.memory_mib > tier:
            continue
        if machine.kind == "cpu" and preset.model.bytes > machine.n_cores * BYTES_PER_CORE:
            continue
        found.append((preset.model.bytes, preset.n_ctx, preset))
    return [preset for _, _, preset in sorted(found, key=lambda row: row[:2], reverse=True)]


def _reason(preset: Preset, plan: Plan) -> str:
    sizes = plan.footprint
    where = ", ".join(d.description or d.name for d in plan.machine.gpus) or _cores(plan.machine)
    needed, free = sizes.device or sizes.host, sizes.device_free or plan.machine.cpu.free_bytes
    text = f"preset {preset.name}: takes {needed / 1e9:.1f} GB of {free / 1e9:.1f} GB free ({where})"
    if preset.n_ctx < presets.load(preset.name).n_ctx:
        text += f", with a context cut to {preset.n_ctx}"
    if preset.name == "demo" and plan.machine.kind == "cpu":
        text += "; a larger model would read prompts too slowly on so few cores"
    elif preset.name == "demo":
        text += "; no larger pair fits"
    return text


def _cores(machine: Machine) -> str:
    return f"{machine.n_cores} CPU core{'s' if machine.n_cores != 1 else ''}"


def describe(hparams: HParams) -> str:
    """A model in a few words: "1.5B, 5.8 bits a weight"."""
    n = hparams.n_params
    size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.0f}M"
    return f"{size}, {hparams.bits_per_weight:.1f} bits a weight"


def describe_slimmed(hparams: HParams) -> str:
    """What a slimmed draft is, in a line."""
    kept = f"{hparams.n_vocab:,} of {hparams.n_vocab_source:,} tokens"
    return f"slimmed: proposes {kept}; embeddings are read row by row from {hparams.source}, which is not loaded"


def slimmed_draft(path: Path) -> str:
    """The same of a file; "" for any that is no slimmed draft, or no file."""
    shape = hparams.of_file(path) if path.is_file() else None
    return describe_slimmed(shape) if shape is not None and shape.n_vocab_source else ""
