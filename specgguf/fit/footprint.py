"""The memory that a pair needs, before anything is loaded.

A formula over a model's `HParams` gives weights, KV caches and compute buffers, on the device and on the host; what
llama.cpp itself says, `dry_load` asks. Speaks of bytes and layers; what to change when it does not fit is `search`'s
business.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

from specgguf.config import DRAFT_MAX_LIMIT
from specgguf.models.hparams import HParams

from .hardware import MIB, Machine

# Bytes of a value in a KV cache.
KV_BYTES = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32, "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}  # fmt: skip
OVERHEAD_MIB = {"gpu": 457, "apple": 512, "cpu": 64}  # driver and runtime, per GPU; on a CPU the interpreter
HOST_OVERHEAD_MIB = {"gpu": 300, "apple": 64, "cpu": 64}
# ggml types that the CPU backend keeps a second, interleaved copy of (x86 with AVX2; else ARM)
REPACKED = {"x86_64": (2, 12, 20, 39), "AMD64": (2, 12, 20, 39)}
REPACKED_ARM = (2, 8, 12, 13, 14, 20, 39)
N_CTX_STEP = 256  # llama.cpp rounds contexts up to a multiple of this
VOCAB_BYTES = 330  # per id, measured on vocabularies of 33,000 to 152,000 ids: its text, its place, its merge
STATES_STEP = 256  # hidden states that are allocated at first
OWN_CONTEXT = 256  # cells of the minimal context that `llama_cpp.Llama` keeps beside ours


@dataclass(frozen=True)
class LoadParams:
    """How a model is to be loaded; n_gpu_layers -1 puts all of it on the device, 0 nothing.

    `n_outputs` is how many rows of logits a pass may give; specgguf's own contexts allow the longest draft and one.
    `n_rs_seq` is how many tokens llama.cpp is asked to roll a recurrent memory back: each costs one more state. A
    target's is its longest draft.
    """

    hparams: HParams
    n_ctx: int = 4096
    n_gpu_layers: int = -1
    type_k: str = "f16"
    type_v: str = "f16"
    flash_attn: bool = True
    n_ubatch: int = 512
    n_outputs: int = DRAFT_MAX_LIMIT + 1
    n_rs_seq: int = 0

    @property
    def of_heads(self) -> LoadParams | None:
        """Of the model's prediction heads, which are loaded as it is; None where it has none."""
        return replace(self, hparams=self.hparams.heads) if self.hparams.heads is not None else None

    @property
    def n_offloaded(self) -> int:
        """Layers on the device, the output counted as one more."""
        return self.hparams.n_layer + 1 if self.n_gpu_layers < 0 else min(self.n_gpu_layers, self.hparams.n_layer + 1)


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of one model on the device and on the host.

    `host_pages` are pages of the file that stay in memory after loading although nothing needs them (a CPU works
    on an interleaved copy, counted in host_weights): resident, and dropped when memory runs short. `host_states` are
    the hidden states that prediction heads read beside tokens.
    """

    weights: int = 0
    kv: int = 0
    compute: int = 0
    host_weights: int = 0
    host_kv: int = 0
    host_compute: int = 0
    host_vocab: int = 0
    host_pages: int = 0
    host_states: int = 0

    @property
    def device(self) -> int:
        return self.weights + self.kv + self.compute

    @property
    def host(self) -> int:
        own = self.host_weights + self.host_kv + self.host_compute
        return own + self.host_vocab + self.host_states


@dataclass(frozen=True)
class Footprint:
    """A pair on a machine."""

    machine: Machine
    target: MemoryEstimate
    draft: MemoryEstimate
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


def footprint(target: LoadParams, draft: LoadParams | None, machine: Machine) -> Footprint:
    """What the pair needs on `machine`, by the formula."""
    n = max(1, len(machine.gpus))
    return Footprint(
        machine,
        estimate(target, machine.kind, n),
        estimate(draft, machine.kind, n) if draft else MemoryEstimate(),
        overhead=OVERHEAD_MIB[machine.kind] * MIB * (n if machine.gpus else 0),
        host_overhead=HOST_OVERHEAD_MIB[machine.kind] * MIB,
    )


def estimate(load: LoadParams, kind: str, n_devices: int = 1) -> MemoryEstimate:
    """Bytes of one model on a machine of this kind ("gpu", "apple", "cpu")."""
    if load.hparams.are_heads:
        return _estimate_heads(load, kind, n_devices)
    hparams, n_up = load.hparams, load.n_offloaded if kind != "cpu" else 0
    first = max(hparams.n_layer + 1 - n_up, 0)  # llama.cpp offloads the last layers, the output first of all
    kv = kv_bytes_by_layer(load)
    if n_up == 0:
        return MemoryEstimate(
            host_weights=hparams.weights_bytes,
            host_kv=sum(kv),
            host_compute=compute_bytes(load),
            host_vocab=vocab_bytes(hparams),
            host_pages=repacked_bytes(hparams),
        )
    up_weights = sum(hparams.layer_bytes[first:]) + hparams.output_bytes
    down_weights = sum(hparams.layer_bytes[:first]) + hparams.embd_bytes
    if kind == "apple":  # one memory: a tied matrix is mapped once, the embedding counts too
        up_weights = (
            sum(hparams.layer_bytes[first:]) + hparams.embd_bytes + (0 if hparams.tied else hparams.output_bytes)
        )
        down_weights = sum(hparams.layer_bytes[:first])
    compute = compute_bytes(load)
    inputs = 2 * load.n_ubatch * rounded(load.n_ctx) * hparams.n_masks + 4 * load.n_ubatch * hparams.n_embd
    return MemoryEstimate(
        weights=up_weights,
        kv=sum(kv[first:]),
        compute=compute * n_devices,
        host_weights=down_weights,
        host_kv=sum(kv[:first]),
        host_compute=compute if first else inputs,
        host_vocab=vocab_bytes(hparams),
    )


def _estimate_heads(load: LoadParams, kind: str, n_devices: int) -> MemoryEstimate:
    """Of prediction heads: their layers, which are offloaded first but for the output, and for each head a context that
    keeps caches of all of them."""
    hparams, n = load.hparams, load.hparams.n_layer
    n_up = 0 if kind == "cpu" else n if load.n_gpu_layers < 0 else min(max(load.n_gpu_layers - 1, 0), n)
    up = slice(n - n_up, n)
    kv, weights = kv_bytes_by_layer(load), hparams.layer_bytes
    compute = n * _head_graph_bytes(load)
    rows = STATES_STEP  # of the text: they grow by doubling
    while rows < load.n_ctx:
        rows *= 2
    rows += (n + 1) * load.n_ubatch  # of a batch in each context
    return MemoryEstimate(
        weights=(n_weights := sum(weights[up])),
        kv=(n_kv := n * sum(kv[up])),
        compute=compute * n_devices if n_up else 0,
        host_weights=sum(weights) + hparams.embd_bytes - n_weights,
        host_kv=n * sum(kv) - n_kv,
        host_compute=0 if n_up else compute,
        host_pages=0 if n_up else repacked_bytes(hparams),
        host_states=4 * hparams.n_embd * rows,
    )


def vocab_bytes(hparams: HParams) -> int:
    """The texts of all ids; of a slimmed draft both its own and those of the file that it was cut from."""
    return VOCAB_BYTES * (hparams.n_vocab + hparams.n_vocab_source)


def repacked_bytes(hparams: HParams, processor: str = "") -> int:
    """Weights of which this computer's CPU backend makes a copy in another order."""
    types = REPACKED.get(processor or platform.machine(), REPACKED_ARM)
    return sum(n for kind, n in hparams.matrix_bytes if kind in types)


def rounded(n_ctx: int) -> int:
    """The context that llama.cpp makes of `n_ctx`."""
    return -(-n_ctx // N_CTX_STEP) * N_CTX_STEP


def kv_bytes_by_layer(load: LoadParams) -> list[int]:
    """The KV cache of each layer at this context and these types, or the recurrent states that it keeps instead."""
    d, cells = load.hparams, rounded(load.n_ctx)
    n_states = 1 + load.n_rs_seq if d.has_state_rollback else 1
    k, v = KV_BYTES[load.type_k], KV_BYTES[load.type_v]
    widths = zip(d.k_width, d.v_width, d.state_bytes, strict=True)
    return [int(cells * (a * k + b * v)) + n_states * state for a, b, state in widths]


def compute_bytes(load: LoadParams) -> int:
    """The compute buffer of our context, and what the minimal context of `llama_cpp.Llama` beside it takes."""
    return graph_bytes(load) + minimal_context_bytes(load.hparams)


def minimal_context_bytes(hparams: HParams) -> int:
    """The caches, state and logits of the context that `llama_cpp.Llama` keeps for itself."""
    caches = 2 * OWN_CONTEXT * sum(hparams.k_width + hparams.v_width) + sum(hparams.state_bytes)
    return caches + 16 * 4 * hparams.n_vocab


def graph_bytes(load: LoadParams) -> int:
    """llama.cpp's compute buffer: the widest moment of a graph over n_ubatch tokens.

    That is the feed-forward block, the attention block, or the logits. Fitted to what llama.cpp reserves for
    dense models: within 3 % on SmolLM2, Gemma 3 and Qwen2.5.
    """
    d, u, cells = load.hparams, load.n_ubatch, rounded(load.n_ctx)
    quantised = KV_BYTES[load.type_k] < 2
    q_kept = 0 if quantised and d.q_width == d.n_embd else d.q_width
    kv_width = max(d.k_width, default=0)
    feed_forward = 3 * d.n_ff + 3 * d.n_embd + q_kept
    if load.flash_attn:
        attention = 2 * d.q_width + 2 * d.n_embd + 2 * kv_width
        masks = d.n_masks * (2 * u * cells + (4 * d.head_dim**2 if quantised else 0))
    else:
        attention = 3 * d.n_embd + 2 * d.q_width + 2 * d.n_masks * kv_width + cells * d.n_head
        feed_forward = 3 * d.n_ff + 3 * d.n_embd + 2 * d.n_masks * kv_width
        masks = d.n_masks * 4 * u * cells
    logits = 4 * load.n_outputs * (d.n_vocab + 2 * d.n_embd)
    if load.n_outputs < u:
        logits += masks
    return max(4 * u * max(feed_forward, attention) + masks, logits)


def _head_graph_bytes(load: LoadParams) -> int:
    """The same of one head: a single layer, whose mask is no longer needed where the feed-forward block begins."""
    d, u = load.hparams, load.n_ubatch
    masks = 2 * u * rounded(load.n_ctx) if load.flash_attn else (4 * u + 4 * u * d.n_head) * rounded(load.n_ctx)
    attention = 4 * u * (2 * d.q_width + 3 * d.n_embd + 2 * max(d.k_width)) + masks
    logits = 4 * load.n_outputs * (d.n_vocab + 2 * d.n_embd)
    return max(attention, 4 * u * (3 * d.n_ff + 2 * d.n_embd), logits)
