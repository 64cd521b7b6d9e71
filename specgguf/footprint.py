"""The memory that a pair needs, before anything is loaded.

The formula comes from a file's own metadata and tensors (or, for a preset that is not here, from its shape):
weights, KV caches and compute buffers, on the device and on the host. `measured` asks llama.cpp itself, by a load
without weights in a child process. Speaks of bytes and layers; what to change when it does not fit is `fit`'s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import header, hub
from .config import KV_TYPES
from .errors import BackendError, Unsupported
from .hardware import MIB, Machine
from .header import Header
from .presets import ModelFile

# Bytes of a value in a KV cache.
KV_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}  # fmt: skip
OVERHEAD_MIB = {"gpu": 457, "apple": 512, "cpu": 300}  # driver and runtime, per GPU; on a CPU the interpreter
N_CTX_STEP = 256  # llama.cpp rounds contexts up to a multiple of this
OWN_CONTEXT = 256  # cells of the minimal context that `llama_cpp.Llama` keeps beside ours


@dataclass(frozen=True)
class Dims:
    """What of a model takes memory.

    Attributes:
        k_width, v_width: values that one token leaves in each layer's cache (0: a layer without one).
        n_masks: attention masks in use (2 with a sliding window).
        layer_bytes: weights of each repeating layer; other_bytes: norms and the like, counted with the output.
        output_bytes: of the output matrix; a tied one is the embedding a second time.
        is_sure: whether the formula knows this kind of memory; if not, only `measured` tells.
    """

    name: str
    n_embd: int
    n_ff: int
    q_width: int
    n_head: int
    head_dim: int
    n_vocab: int
    n_ctx_train: int
    k_width: tuple[int, ...]
    v_width: tuple[int, ...]
    layer_bytes: tuple[int, ...]
    embd_bytes: int
    output_bytes: int
    tied: bool
    n_masks: int = 1
    is_sure: bool = True

    @property
    def n_layer(self) -> int:
        return len(self.layer_bytes)

    @property
    def weights_bytes(self) -> int:
        """All weights once."""
        return sum(self.layer_bytes) + self.embd_bytes + (0 if self.tied else self.output_bytes)


@dataclass(frozen=True)
class Load:
    """How a model is to be loaded; n_gpu_layers -1 puts all of it on the device, 0 nothing.

    `n_outputs` is how many rows of logits a pass may give: draft_max + 1 in specgguf's own contexts.
    """

    dims: Dims
    n_ctx: int = 4096
    n_gpu_layers: int = -1
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool = True
    n_ubatch: int = 512
    n_outputs: int = 8

    @property
    def n_offloaded(self) -> int:
        """Layers on the device, the output counted as one more."""
        return self.dims.n_layer + 1 if self.n_gpu_layers < 0 else min(self.n_gpu_layers, self.dims.n_layer + 1)


@dataclass(frozen=True)
class Need:
    """Bytes of one model on the device and on the host."""

    weights: int = 0
    kv: int = 0
    compute: int = 0
    host_weights: int = 0
    host_kv: int = 0
    host_compute: int = 0

    @property
    def device(self) -> int:
        return self.weights + self.kv + self.compute

    @property
    def host(self) -> int:
        return self.host_weights + self.host_kv + self.host_compute


@dataclass(frozen=True)
class Footprint:
    """A pair on a machine."""

    machine: Machine
    target: Need
    draft: Need
    overhead: int
    host_overhead: int

    @property
    def device(self) -> int:
        """Bytes on the devices (0 on a CPU)."""
        used = self.target.device + self.draft.device
        return used + self.overhead if used else 0

    @property
    def host(self) -> int:
        return self.target.host + self.draft.host + self.host_overhead

    @property
    def device_free(self) -> int:
        return sum(d.free_bytes for d in self.machine.gpus)

    @property
    def fits(self) -> bool:
        """Whether both sides have room now."""
        return self.device <= self.device_free and self.host <= self.machine.cpu.free_bytes


def footprint(target: Load, draft: Load | None, machine: Machine) -> Footprint:
    """What the pair needs on `machine`, by the formula."""
    n = max(1, len(machine.gpus))
    return Footprint(
        machine,
        need(target, machine.kind, n),
        need(draft, machine.kind, n) if draft else Need(),
        overhead=OVERHEAD_MIB[machine.kind] * MIB * (n if machine.gpus else 0),
        host_overhead=OVERHEAD_MIB["cpu"] * MIB,
    )


def need(load: Load, kind: str, n_devices: int = 1) -> Need:
    """Bytes of one model on a machine of this kind ("gpu", "apple", "cpu")."""
    dims, n_up = load.dims, load.n_offloaded if kind != "cpu" else 0
    first = max(dims.n_layer + 1 - n_up, 0)  # llama.cpp offloads the last layers, the output first of all
    kv = kv_bytes_by_layer(load)
    if n_up == 0:
        return Need(host_weights=dims.weights_bytes, host_kv=sum(kv), host_compute=compute_bytes(load))
    up_weights = sum(dims.layer_bytes[first:]) + dims.output_bytes
    down_weights = sum(dims.layer_bytes[:first]) + dims.embd_bytes
    if kind == "apple":  # one memory: a tied matrix is mapped once, the embedding counts too
        up_weights = sum(dims.layer_bytes[first:]) + dims.embd_bytes + (0 if dims.tied else dims.output_bytes)
        down_weights = sum(dims.layer_bytes[:first])
    compute = compute_bytes(load)
    inputs = 2 * load.n_ubatch * rounded(load.n_ctx) * dims.n_masks + 4 * load.n_ubatch * dims.n_embd
    return Need(
        weights=up_weights,
        kv=sum(kv[first:]),
        compute=compute * n_devices,
        host_weights=down_weights,
        host_kv=sum(kv[:first]),
        host_compute=compute if first else inputs,
    )


def rounded(n_ctx: int) -> int:
    """The context that llama.cpp makes of `n_ctx`."""
    return -(-n_ctx // N_CTX_STEP) * N_CTX_STEP


def kv_bytes_by_layer(load: Load) -> list[int]:
    """The KV cache of each layer at this context and these types."""
    cells = rounded(load.n_ctx)
    k, v = KV_BYTES[load.type_k], KV_BYTES[load.type_v]
    return [int(cells * (a * k + b * v)) for a, b in zip(load.dims.k_width, load.dims.v_width, strict=True)]


def compute_bytes(load: Load) -> int:
    """The compute buffer of our context and of the minimal one beside it."""
    return graph_bytes(load) + int(
        OWN_CONTEXT * 2 * sum(load.dims.k_width + load.dims.v_width) + 16 * 4 * load.dims.n_vocab
    )


def graph_bytes(load: Load) -> int:
    """llama.cpp's compute buffer: the widest moment of a graph over n_ubatch tokens.

    That is the feed-forward block, the attention block, or the logits. Fitted to what llama.cpp reserves for
    dense models: within 3 % on SmolLM2, Gemma 3 and Qwen2.5.
    """
    d, u, cells = load.dims, load.n_ubatch, rounded(load.n_ctx)
    quantised = KV_BYTES[load.type_k] < 2
    q_kept = 0 if quantised and d.q_width == d.n_embd else d.q_width
    kv_width = max(d.k_width, default=0)
    feed_forward = 3 * d.n_ff + 3 * d.n_embd + q_kept
    if load.flash_attn:
        attention = 2 * d.q_width + 2 * d.n_embd + 2 * kv_width
        masks = d.n_masks * (2 * u * cells + (4 * d.head_dim**2 if quantised else 0))
        widest = 4 * u * max(feed_forward, attention) + masks
    else:
        attention = 3 * d.n_embd + 2 * d.q_width + 2 * d.n_masks * kv_width + cells * d.n_head
        feed_forward = 3 * d.n_ff + 3 * d.n_embd + 2 * d.n_masks * kv_width
        widest = 4 * u * max(feed_forward, attention) + d.n_masks * 4 * u * cells
    logits = 4 * (load.n_outputs * d.n_vocab + 2 * u * d.n_embd)
    return max(widest, logits)


# --- dimensions ---------------------------------------------------------------------------------------------


def dims_of_file(path: Path) -> Dims:
    """From a GGUF on disk, all shards of a split one.

    Raises:
        SpecggufError: it cannot be read, or describes no language model.
    """
    heads = [header.read(path.with_name(name)) for name in hub.shards(path.name)]
    return dims_of(heads, path.name)


def dims_of(heads: Sequence[Header], name: str) -> Dims:
    """From the heads of a model's file or files.

    Raises:
        Unsupported: the metadata lack what every language model has.
    """
    head, sizes = heads[0], _sizes(heads)
    n_layer, n_embd, n_head = (_one(head.get(k)) for k in ("block_count", "embedding_length", "attention.head_count"))
    if not n_layer or not n_embd:
        raise Unsupported(f"{name} describes no language model ({head.architecture or 'no architecture'})")
    head_dim = _one(head.get("attention.key_length")) or (n_embd // n_head if n_head else 0)
    v_dim = _one(head.get("attention.value_length")) or head_dim
    n_kv = _per_layer(head.get("attention.head_count_kv", n_head), n_layer)
    embedding, output = sizes.pop("token_embd.weight", 0), sizes.pop("output.weight", 0)
    layers = [0] * n_layer
    others = 0
    for tensor, size in sizes.items():
        index = tensor.split(".")[1] if tensor.startswith("blk.") else ""
        if index.isdigit() and int(index) < n_layer:
            layers[int(index)] += size
        else:
            others += size
    odd = ("attention.kv_lora_rank", "ssm.inner_size", "shortconv.l_cache", "wkv.head_size")
    return Dims(
        name=name,
        n_embd=n_embd,
        n_ff=max(_per_layer(head.get("feed_forward_length", 0), n_layer), default=0),
        q_width=n_head * head_dim,
        n_head=n_head,
        head_dim=head_dim,
        n_vocab=_n_vocab(head),
        n_ctx_train=_one(head.get("context_length")) or 4096,
        k_width=tuple(n * head_dim for n in n_kv),
        v_width=tuple(n * v_dim for n in n_kv),
        layer_bytes=tuple(layers),
        embd_bytes=embedding,
        output_bytes=(output or embedding) + others,
        tied=not output,
        n_masks=2 if _one(head.get("attention.sliding_window")) else 1,
        is_sure=not any(_one(head.get(key)) for key in odd),
    )


def dims_of_preset(model: ModelFile) -> Dims:
    """From a preset's own description, without the file.

    Raises:
        Unsupported: the preset gives no shape.
    """
    s = model.shape
    if s is None:
        raise Unsupported(f"{model} is not here and its preset gives no dimensions")
    output = s.token_embd_bytes
    layers = model.bytes - s.token_embd_bytes - (0 if s.tied else output)
    return Dims(
        name=model.name,
        n_embd=s.n_embd,
        n_ff=s.n_ff,
        q_width=s.n_head * s.head_dim,
        n_head=s.n_head,
        head_dim=s.head_dim,
        n_vocab=s.n_vocab,
        n_ctx_train=32768,
        k_width=(s.n_head_kv * s.head_dim,) * s.n_layer,
        v_width=(s.n_head_kv * s.head_dim,) * s.n_layer,
        layer_bytes=(layers // s.n_layer,) * s.n_layer,
        embd_bytes=s.token_embd_bytes,
        output_bytes=output,
        tied=s.tied,
    )


def _sizes(heads: Sequence[Header]) -> dict[str, int]:
    return {t.name: t.n_bytes or 0 for head in heads for t in head.tensors}


def _n_vocab(head: Header) -> int:
    embedding = head.tensor("token_embd.weight")
    counted = head.count("tokenizer.ggml.tokens") or _one(head.get("vocab_size"))
    return counted or (embedding.dims[-1] if embedding else 0)


def _one(value: Any) -> int:
    """A number, or the largest of a per-layer list."""
    if isinstance(value, list):
        return max((int(v) for v in value), default=0)
    return int(value) if isinstance(value, int | float) else 0


def _per_layer(value: Any, n_layer: int) -> list[int]:
    return [int(v) for v in value] if isinstance(value, list) else [_one(value)] * n_layer


# --- what llama.cpp itself says -----------------------------------------------------------------------------

_CHILD = "import sys; from specgguf.footprint import answer_dry_load; answer_dry_load(sys.argv[1])"


def measured(load: Load, path: Path, kind: str = "cpu", *, timeout_s: float = 120.0) -> Need:
    """As `need`, but KV caches and compute buffers are what llama.cpp plans for `path` (which may be a head
    extended by a hole): a load without weights, in a child process, because a build that cannot do it aborts.

    Raises:
        BackendError: llama.cpp could not plan this model.
    """
    settings = {
        "n_gpu_layers": 0 if kind == "cpu" else load.n_offloaded,
        "n_ctx": load.n_ctx,
        "n_batch": load.n_ubatch,
        "n_ubatch": load.n_ubatch,
        "n_outputs_max": load.n_outputs,
        "type_k": KV_TYPES[load.type_k],
        "type_v": KV_TYPES[load.type_v],
        "flash_attn_type": int(load.flash_attn),
    }
    request = json.dumps({"path": str(path), "settings": settings})
    command = [sys.executable, "-P", "-c", _CHILD, request]
    child = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    try:
        answer = json.loads(child.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise BackendError(f"llama.cpp cannot plan {path.name} without loading it") from None
    if "error" in answer:
        raise BackendError(answer["error"])
    return _with_measured(need(load, kind), answer, kind)


def _with_measured(by_formula: Need, answer: dict[str, Any], kind: str) -> Need:
    host = sum(n for device, n in answer["compute"].items() if device.upper().startswith("CPU"))
    device = sum(answer["compute"].values()) - host
    kv = answer["kv_bytes"] + answer["state_bytes"]
    if kind == "cpu":
        return replace(by_formula, host_compute=host + device, host_kv=kv)
    share = by_formula.kv / max(1, by_formula.kv + by_formula.host_kv)
    return replace(
        by_formula,
        compute=device,
        host_compute=host,
        kv=round(kv * share),
        host_kv=round(kv * (1 - share)),
    )


def answer_dry_load(request: str) -> None:
    """The child's part of `measured`: one line of JSON on stdout."""
    from . import ggml

    asked = json.loads(request)
    try:
        answer: dict[str, Any] = ggml.dry_load(asked["path"], asked["settings"])._asdict()
    except BackendError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer) + "\n")
