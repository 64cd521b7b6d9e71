"""What of a model takes memory: layers, their sizes and bytes, from a GGUF header or a preset's shape.

The numbers come from the GGUF's own metadata and tensor list, never from a table of names. What a context then
needs is `footprint`'s arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from specgguf.errors import Unsupported
from specgguf.presets import ModelFile

from . import slim
from .header import GgufError, Header, read, shards
from .header_check import impossible

Q8_0, Q4_K, Q6_K = 8, 12, 14  # ggml types

# Metadata of memories that the formula does not know: latent attention, recurrent and convolutional states.
_OTHER_MEMORIES = ("attention.kv_lora_rank", "ssm.inner_size", "shortconv.l_cache", "wkv.head_size")


@dataclass(frozen=True)
class HParams:
    """What of a model takes memory.

    Attributes:
        k_width, v_width: values that one token leaves in each layer's cache (0: a layer without one).
        n_masks: attention masks in use (2 with a sliding window).
        layer_bytes: weights of each repeating layer.
        output_bytes: of the output matrix, and small things like norms; a tied matrix is the embedding again.
        matrix_bytes: weights of the matrices that are multiplied with, by ggml type.
        n_vocab_source: ids of the file that a slimmed draft was cut from, all of which it reads; 0 for other models.
        source: that file's name.
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
    n_params: int
    matrix_bytes: tuple[tuple[int, int], ...] = ()
    n_masks: int = 1
    n_vocab_source: int = 0
    source: str = ""
    is_sure: bool = True

    @property
    def n_layer(self) -> int:
        return len(self.layer_bytes)

    @property
    def is_recurrent(self) -> bool:
        """Whether layers keep a state instead of a cache: sequences share a forward pass only with equal lengths."""
        return 0 in self.k_width

    @property
    def weights_bytes(self) -> int:
        """All weights once."""
        return sum(self.layer_bytes) + self.embd_bytes + (0 if self.tied else self.output_bytes)

    @property
    def read_bytes(self) -> int:
        """Weights that one token has to read: all but the embedding, of which it reads a row."""
        return sum(self.layer_bytes) + self.output_bytes

    @property
    def bits_per_weight(self) -> float:
        return 8 * self.weights_bytes / max(1, self.n_params)


def of_file(path: Path) -> HParams:
    """From a GGUF on disk, all shards of a split one.

    Raises:
        SpecggufError: it cannot be read, or describes no language model.
    """
    headers = [read(path.with_name(name)) for name in shards(path.name)]
    return of_headers(headers, path.name)


def of_headers(headers: Sequence[Header], name: str) -> HParams:
    """From the heads of a model's file or files.

    Raises:
        Unsupported: the metadata lack what every language model has, or say the impossible.
    """
    header, sizes = headers[0], _sizes(headers)
    if why := impossible(header):
        raise Unsupported(f"{name} is damaged: {why}", hint="download or convert it again")
    n_layer, n_embd, n_head = (_one(header.get(k)) for k in ("block_count", "embedding_length", "attention.head_count"))
    if not n_layer or not n_embd:
        raise Unsupported(f"{name} describes no language model ({header.architecture or 'no architecture'})")
    head_dim = _one(header.get("attention.key_length")) or (n_embd // n_head if n_head else 0)
    v_dim = _one(header.get("attention.value_length")) or head_dim
    n_kv = _per_layer(header.get("attention.head_count_kv", n_head), n_layer)
    embedding, output = sizes.pop("token_embd.weight", 0), sizes.pop("output.weight", 0)
    layers = [0] * n_layer
    others = 0
    for tensor, size in sizes.items():
        index = tensor.split(".")[1] if tensor.startswith("blk.") else ""
        if index.isdigit() and int(index) < n_layer:
            layers[int(index)] += size
        else:
            others += size
    return HParams(
        name=name,
        n_embd=n_embd,
        n_ff=max(_per_layer(header.get("feed_forward_length", 0), n_layer), default=0),
        q_width=n_head * head_dim,
        n_head=n_head,
        head_dim=head_dim,
        n_vocab=_n_vocab(header),
        n_ctx_train=_one(header.get("context_length")) or 4096,
        k_width=tuple(n * head_dim for n in n_kv),
        v_width=tuple(n * v_dim for n in n_kv),
        layer_bytes=tuple(layers),
        embd_bytes=embedding,
        output_bytes=(output or embedding) + others,
        tied=not output,
        n_params=sum(prod(t.dims) for header in headers for t in header.tensors),
        matrix_bytes=_matrices(headers),
        n_masks=2 if _one(header.get("attention.sliding_window")) else 1,
        n_vocab_source=_one(header.metadata.get(slim.N_VOCAB)),
        source=PurePosixPath(str(header.metadata.get(slim.SOURCE, ""))).name,
        is_sure=not any(_one(header.get(key)) for key in _OTHER_MEMORIES),
    )


def of_preset_model(model: ModelFile) -> HParams:
    """From a preset's own description, without the file.

    Raises:
        Unsupported: the preset gives no shape.
    """
    s = model.shape
    if s is None:
        raise Unsupported(f"{model} is not here and its preset gives no dimensions")
    output = s.token_embd_bytes
    layers = model.bytes - s.token_embd_bytes - (0 if s.tied else output)
    per_embd = 2 * s.n_head * s.head_dim + 2 * s.n_head_kv * s.head_dim + 3 * s.n_ff
    per_layer = s.n_embd * per_embd
    return HParams(
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
        n_params=s.n_layer * per_layer + s.n_vocab * s.n_embd * (1 if s.tied else 2),
        matrix_bytes=_matrices_of_quant(model.name.lower(), layers),
    )


def _sizes(headers: Sequence[Header]) -> dict[str, int]:
    return {t.name: t.n_bytes or 0 for header in headers for t in header.tensors}


def _matrices(headers: Sequence[Header]) -> tuple[tuple[int, int], ...]:
    by_type: dict[int, int] = {}
    for header in headers:
        for t in header.tensors:
            if len(t.dims) > 1 and t.name != "token_embd.weight":
                by_type[t.type] = by_type.get(t.type, 0) + (t.n_bytes or 0)
    return tuple(by_type.items())


def _matrices_of_quant(name: str, layers: int) -> tuple[tuple[int, int], ...]:
    """About how much of the layers is stored in the type that a file's name speaks of."""
    shares = {"q4_k_m": (Q4_K, 0.79), "q6_k": (Q6_K, 1.0), "q8_0": (Q8_0, 1.0)}
    return tuple((kind, int(layers * share)) for word, (kind, share) in shares.items() if word in name)


def _n_vocab(header: Header) -> int:
    embedding = header.tensor("token_embd.weight")
    counted = header.count("tokenizer.ggml.tokens") or _one(header.get("vocab_size"))
    return counted or (embedding.dims[-1] if embedding else 0)


def _one(value: Any) -> int:
    """A number, or the largest of a per-layer list."""
    if isinstance(value, list):
        return max((int(v) for v in value), default=0)
    return int(value) if isinstance(value, int | float) else 0


def _per_layer(value: Any, n_layer: int) -> list[int]:
    return [int(v) for v in value] if isinstance(value, list) else [_one(value)] * n_layer


# Architectures whose prediction heads llama.cpp can run, and of how many heads a file may have (0: any number). For any
# other file it would end the process.
HEAD_ARCHITECTURES = {
    **dict.fromkeys("hy_v3 mimo2 step35".split(), 0),
    **dict.fromkeys("qwen35 qwen35moe qwen3next deepseek2 deepseek32 glm4moe glm-dsa bailingmoe3".split(), 1),
    **dict.fromkeys("cohere2moe nemotron_h_moe".split(), 1),
}


def prediction_heads(head: Header) -> int:
    """How many prediction heads (MTP, NextN) a file has that can draft; 0 where it has none, or only says so."""
    n = head.get("nextn_predict_layers", 0)
    n_max = HEAD_ARCHITECTURES.get(head.architecture)
    if not isinstance(n, int) or n <= 0 or n_max is None or (n_max and n > n_max) or holds_heads_alone(head):
        return 0
    named = any(".nextn.eh_proj." in tensor.name for tensor in head.tensors)
    return n if named or head.metadata.get("split.count", 0) > 1 else 0


def prediction_heads_of(path: str | Path) -> int:
    """The same of a file; 0 for one that cannot be read."""
    try:
        return prediction_heads(read(path))
    except (GgufError, OSError):
        return 0


def holds_heads_alone(head: Header) -> bool:
    """Whether a file has prediction heads and not the model that they belong to."""
    has_heads = any("nextn." in tensor.name for tensor in head.tensors)
    return (has_heads and head.tensor("blk.0.attn_norm.weight") is None) or head.architecture == "gemma4-assistant"
