"""Where a pair goes and how long its contexts are: vLLM's sizes and shares, as llama.cpp's.

Headers are read and the machine is looked at; nothing is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specgguf.config import DRAFT_MAX_DEFAULT, kv_type
from specgguf.errors import SpecggufError, Unsupported
from specgguf.fit import search
from specgguf.fit.footprint import LoadParams
from specgguf.fit.hardware import Machine, this_machine
from specgguf.models import remote_header
from specgguf.presets import HEADS
from specgguf.turns.caches import CELLS_BESIDE

WHOLE, BY_LAYER, BY_ROW = 0, 1, 2  # llama.cpp's split modes
KV_TYPES = {"auto": "f16", "float16": "f16", "half": "f16", "bfloat16": "bf16"}  # vLLM's names; else llama.cpp's
SEQUENCES = 8  # that run together, where nobody says how many
TOKENS_EACH = 4096  # what the caches hold for each sequence, where nobody says how long they are


@dataclass(frozen=True)
class Wanted:
    """What is asked of a machine, by vLLM's arguments.

    Attributes:
        by_row, by_layer, draft: GPUs: tensor_parallel_size, pipeline_parallel_size, and the draft's.
        share: gpu_memory_utilization. n_ctx: max_model_len. n_sequences: max_num_seqs. cache_type: kv_cache_dtype.
        draft_max: the longest draft.
        is_here: the model lies in this machine's memory alone, which can be looked at.
    """

    by_row: int = 1
    by_layer: int = 1
    draft: int = 1
    share: float = 0.9
    n_ctx: int | None = None
    n_sequences: int | None = 1
    cache_type: str = "auto"
    draft_max: int = DRAFT_MAX_DEFAULT
    is_here: bool = True


def keywords(
    model: Path, draft_model: Path | str | None, wanted: Wanted, machine: Machine | None = None
) -> dict[str, Any]:
    """Keywords of `SpeculativeLlama` for a pair on `machine` (None: this one). The draft is a file, or "heads".

    Raises:
        SpecggufError: it does not fit, or there are not so many GPUs. Unsupported: what llama.cpp cannot do.
    """
    machine = machine or this_machine()
    if wanted.cache_type.startswith("fp8"):
        raise Unsupported(
            f"kv_cache_dtype={wanted.cache_type!r} is not supported", hint='"q8_0" is llama.cpp\'s type of that size'
        )
    cache_type = KV_TYPES.get(wanted.cache_type, wanted.cache_type)
    kv_type(cache_type, name="kv_cache_dtype")
    own = devices(machine, by_row=wanted.by_row, by_layer=wanted.by_layer, draft=wanted.draft)
    hparams = remote_header.read(str(model)).hparams
    n_sequences = wanted.n_sequences or (1 if hparams.is_recurrent else SEQUENCES)  # which go in turn anyway
    own["n_parallel"] = n_sequences
    if cache_type != "f16":
        sides = ("", "draft_") if isinstance(draft_model, Path) else ("",)
        own |= {f"{side}type_{which}": cache_type for side in sides for which in "kv"}
    if not wanted.is_here:
        return own | {"n_ctx": wanted.n_ctx or min(TOKENS_EACH, hparams.n_ctx_train)}
    found = lengths(
        within(machine, wanted.share, max(wanted.by_row, wanted.by_layer)),
        model,
        draft_model,
        n_ctx=wanted.n_ctx,
        n_sequences=n_sequences,
        cache_type=cache_type,
        draft_max=wanted.draft_max,
    )
    own["n_ctx"] = found.n_ctx
    if n_sequences > 1:
        own["cache_tokens"] = found.cache_tokens
    return own


@dataclass(frozen=True)
class Lengths:
    """Of contexts, in tokens.

    Attributes:
        n_ctx: of each sequence. cache_tokens: of all together.
    """

    n_ctx: int
    cache_tokens: int


def devices(machine: Machine, *, by_row: int, by_layer: int, draft: int) -> dict[str, Any]:
    """Keywords that split the weights over so many GPUs, the target's by rows or by layers.

    Raises:
        SpecggufError: there are not so many. Unsupported: both.
    """
    if by_row > 1 and by_layer > 1:
        raise Unsupported(
            "tensor_parallel_size and pipeline_parallel_size together are not supported",
            hint="the one splits weights by rows, the other by layers: one of them",
        )
    n_gpus = len(machine.gpus)
    sizes = {"tensor_parallel_size": by_row, "pipeline_parallel_size": by_layer, "draft_tensor_parallel_size": draft}
    for name, size in sizes.items():
        if size > max(n_gpus, 1):
            raise SpecggufError(
                f"{name}={size}: there {'is 1 GPU' if n_gpus == 1 else f'are {n_gpus} GPUs'} here",
                hint="specgguf doctor lists the devices",
            )
    if n_gpus < 2:
        return {}
    mode = BY_LAYER if by_layer > 1 else BY_ROW
    own, drafts = _split(n_gpus, max(by_row, by_layer), mode), _split(n_gpus, draft, BY_ROW)
    return {**own, **{f"draft_{name}": value for name, value in drafts.items()}}


def _split(n_gpus: int, size: int, mode: int) -> dict[str, Any]:
    if size == 1:
        return {"split_mode": WHOLE, "main_gpu": 0}
    return {"split_mode": mode, "tensor_split": [1.0] * size + [0.0] * (n_gpus - size)}


def within(machine: Machine, share: float, n_devices: int) -> Machine:
    """The machine as far as it may be used: the first GPUs and a share of their memory; without GPUs, a share of what
    is free."""
    gpus = [replace(d, free_bytes=min(d.free_bytes, int(share * d.total_bytes))) for d in machine.gpus[:n_devices]]
    cpu = machine.cpu if gpus else replace(machine.cpu, free_bytes=int(share * machine.cpu.free_bytes))
    return replace(machine, devices=(*gpus, cpu))


def lengths(
    machine: Machine,
    model: Path,
    draft_model: Path | str | None,
    *,
    n_ctx: int | None,
    n_sequences: int,
    cache_type: str = "f16",
    draft_max: int = DRAFT_MAX_DEFAULT,
) -> Lengths:
    """The longest contexts that fit: `n_ctx` for each sequence (None: what the model was trained for), and for all of
    them as much as they can use.

    Raises:
        SpecggufError: they do not fit.
    """
    alone = LoadParams(remote_header.read(str(model)).hparams, type_k=cache_type, type_v=cache_type)
    draft = replace(alone, hparams=remote_header.read(draft_model).hparams) if isinstance(draft_model, Path) else None
    target = replace(alone, n_rs_seq=draft_max if draft_model is not None else 0)
    plan = search.Plan(machine, target, target.of_heads if draft_model == HEADS else draft)
    trained = target.hparams.n_ctx_train
    wanted = n_sequences * (n_ctx + CELLS_BESIDE) if n_ctx else max(trained + CELLS_BESIDE, n_sequences * TOKENS_EACH)
    cells = wanted if plan.with_n_ctx(wanted).fits else search.most_cells(plan, wanted)
    if cells <= CELLS_BESIDE:
        raise SpecggufError(
            "this pair does not fit into the memory that may be taken",
            hint="a larger gpu_memory_utilization; specgguf fit shows what would fit",
        )
    longest = min(cells - CELLS_BESIDE, n_ctx or trained)
    if n_ctx and longest < n_ctx:
        raise SpecggufError(
            f"max_model_len={n_ctx} does not fit: the memory that may be taken holds {longest} tokens",
            hint=f"max_model_len={longest}, or a larger gpu_memory_utilization",
        )
    return Lengths(longest, cells)
