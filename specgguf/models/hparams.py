"""What of a model takes memory: layers, their sizes and bytes, from a GGUF header (without the file: `remote_header`).

The numbers come from the GGUF's own metadata and tensor list, never from a table of names. What a context then
needs is `footprint`'s arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

from specgguf.errors import Unsupported

from . import slim
from .header import Header, Tensor, read, shards
from .header_check import impossible
from .nextn import prediction_heads

Q8_0, Q4_K, Q6_K = 8, 12, 14  # ggml types
EXPERTS = "_exps."  # in the names of their tensors

# Architectures of these states that llama.cpp can roll back; for others it asks for no more than one.
STATE_ROLLBACK = ("qwen35", "qwen35moe")
# Metadata of memories that the formula does not know: latent attention, recurrent and convolutional states.
_OTHER_MEMORIES = ("attention.kv_lora_rank", "ssm.inner_size", "shortconv.l_cache", "wkv.head_size")


@dataclass(frozen=True)
class HParams:
    """What of a model takes memory.

    Attributes:
        k_width, v_width: values that one token leaves in each layer's cache (0: a layer without one).
        state_bytes: of one recurrent state, of each layer (0: a layer without one, or of a kind that the formula does
            not know). has_state_rollback: llama.cpp keeps further ones to roll back to, where it is asked to.
        n_masks: attention masks in use (2 with a sliding window).
        layer_bytes: weights of each repeating layer; 0 for those of prediction heads, which llama.cpp counts as layers
            and skips.
        output_bytes: of the output matrix, and small things like norms; a tied matrix is the embedding again.
        matrix_bytes: weights of the matrices that are multiplied with, by ggml type.
        n_vocab_source: ids of the file that a slimmed draft was cut from, all of which it reads; 0 for other models.
        source: that file's name.
        is_sure: whether the formula knows this kind of memory; if not, only `measured` tells.
        expert_bytes: of the layers' weights, those of experts; expert_share: of these, what one token reads.
        heads: the prediction heads that can draft, as a model of their layers alone, which reads the whole model's
            output matrix; None without any.
        are_heads: it is such a model.
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
    state_bytes: tuple[int, ...]
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
    expert_bytes: int = 0
    expert_share: float = 1.0
    heads: HParams | None = None
    are_heads: bool = False
    has_state_rollback: bool = False

    @property
    def n_layer(self) -> int:
        return len(self.layer_bytes)

    @property
    def n_prediction_heads(self) -> int:
        """How many prediction heads can draft."""
        return self.heads.n_layer if self.heads is not None else 0

    @property
    def is_recurrent(self) -> bool:
        """Whether layers keep a state instead of a cache: sequences share a forward pass only with equal lengths."""
        return any(not k and n for k, n in zip(self.k_width, self.layer_bytes, strict=True))

    @property
    def weights_bytes(self) -> int:
        """All weights once."""
        return sum(self.layer_bytes) + self.embd_bytes + (0 if self.tied else self.output_bytes)

    @property
    def read_bytes(self) -> int:
        """Weights that one token has to read: all but the embedding, of which it reads a row, and the experts that it
        does not use."""
        return self.bytes_read(1)

    def bytes_read(self, n_tokens: int) -> int:
        """Weights that a forward pass over so many tokens has to read: each uses experts of its own."""
        unused = (1.0 - self.expert_share) ** n_tokens
        return sum(self.layer_bytes) + self.output_bytes - int(unused * self.expert_bytes)

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
    header, tensors = headers[0], [tensor for one in headers for tensor in one.tensors]
    if why := impossible(header):
        raise Unsupported(f"{name} is damaged: {why}", hint="download or convert it again")
    n_layer, n_embd, n_head = (_one(header.get(k)) for k in ("block_count", "embedding_length", "attention.head_count"))
    if not n_layer or not n_embd:
        raise Unsupported(f"{name} describes no language model ({header.architecture or 'no architecture'})")
    head_dim = _one(header.get("attention.key_length")) or (n_embd // n_head if n_head else 0)
    v_dim = _one(header.get("attention.value_length")) or head_dim
    n_own = n_layer - n if 0 < (n := _one(header.get("nextn_predict_layers"))) < n_layer else n_layer
    own = [t for t in tensors if not n_own <= _layer(t) < n_layer]
    n_kv = _kv_heads(header, n_head, n_layer, n_own)
    embedding, output = (_bytes(t for t in own if t.name == kind) for kind in ("token_embd.weight", "output.weight"))
    by_layer = _by_layer(own)
    layer_bytes = tuple(by_layer.get(i, 0) for i in range(n_layer))
    found = HParams(
        name=name,
        n_embd=n_embd,
        n_ff=max(_per_layer(header.get("feed_forward_length", 0), n_layer), default=0),
        q_width=n_head * head_dim,
        n_head=n_head,
        head_dim=head_dim,
        n_vocab=_n_vocab(header),
        n_ctx_train=_one(header.get("context_length")) or 4096,
        k_width=tuple(n * head_dim if i < n_own else 0 for i, n in enumerate(n_kv)),
        v_width=tuple(n * v_dim if i < n_own else 0 for i, n in enumerate(n_kv)),
        state_bytes=tuple(0 if n else _state_bytes(header) if i < n_own else 0 for i, n in enumerate(n_kv)),
        layer_bytes=layer_bytes,
        embd_bytes=embedding,
        output_bytes=(output or embedding) + _bytes(own) - sum(layer_bytes) - embedding - output,
        tied=not output,
        n_params=_n_params(own),
        matrix_bytes=_matrices(own),
        n_masks=2 if _one(header.get("attention.sliding_window")) else 1,
        n_vocab_source=_one(header.metadata.get(slim.N_VOCAB)),
        source=PurePosixPath(str(header.metadata.get(slim.SOURCE, ""))).name,
        is_sure=not any(_one(header.get(key)) for key in _OTHER_MEMORIES),
        expert_bytes=_bytes(t for t in own if EXPERTS in t.name),
        has_state_rollback=header.architecture in STATE_ROLLBACK,
        expert_share=min(1.0, (_one(header.get("expert_used_count")) or 1) / (_one(header.get("expert_count")) or 1)),
    )
    if not prediction_heads.count(header):
        return found
    caches = [(n * head_dim, n * v_dim) for n in n_kv[n_own:]]
    return replace(found, heads=_heads(found, header, [t for t in tensors if n_own <= _layer(t) < n_layer], caches))


def _heads(
    whole: HParams, header: Header, tensors: Sequence[Tensor], caches: Sequence[tuple[int, int]]
) -> HParams | None:
    """The prediction heads of `whole`, of these tensors and with so many values for a token in each one's cache."""
    if not any(prediction_heads.MARK in t.name for t in tensors):
        return None
    embedding = [t for t in tensors if ".nextn.embed_tokens." in t.name]
    read = [t for t in tensors if t not in embedding]
    has_output = any(".nextn.shared_head_head." in t.name for t in tensors)
    return replace(
        whole,
        k_width=tuple(k for k, _ in caches),
        v_width=tuple(v for _, v in caches),
        state_bytes=(0,) * len(caches),
        layer_bytes=tuple(n for _, n in sorted(_by_layer(read).items())),
        embd_bytes=_bytes(embedding),
        output_bytes=0 if has_output else whole.output_bytes,
        tied=True,
        n_params=_n_params(tensors),
        matrix_bytes=_matrices(read),
        is_sure=not _one(header.get("attention.kv_lora_rank")),  # heads attend, whatever the layers before them do
        expert_bytes=_bytes(t for t in read if EXPERTS in t.name),
        are_heads=True,
    )


def _layer(tensor: Tensor) -> int:
    """Whose tensor it is; -1: no layer's."""
    index = tensor.name.split(".")[1] if tensor.name.startswith("blk.") else ""
    return int(index) if index.isdigit() else -1


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.n_bytes or 0 for t in tensors)


def _by_layer(tensors: Iterable[Tensor]) -> dict[int, int]:
    found: dict[int, int] = {}
    for t in tensors:
        found[_layer(t)] = found.get(_layer(t), 0) + (t.n_bytes or 0)
    return found


def _n_params(tensors: Iterable[Tensor]) -> int:
    return sum(prod(t.dims) for t in tensors)


def _matrices(tensors: Iterable[Tensor]) -> tuple[tuple[int, int], ...]:
    by_type: dict[int, int] = {}
    for t in tensors:
        if len(t.dims) > 1 and t.name != "token_embd.weight":
            by_type[t.type] = by_type.get(t.type, 0) + (t.n_bytes or 0)
    return tuple(by_type.items())


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


def _state_bytes(header: Header) -> int:
    """Of one layer's state of the state space kind (Mamba's, gated delta nets'): what its convolution still sees and
    the matrix, in float32; 0 for other kinds."""
    kernel, inner, n_groups, n_state = (
        _one(header.get(f"ssm.{key}")) for key in ("conv_kernel", "inner_size", "group_count", "state_size")
    )
    return 4 * (max(kernel - 1, 0) * (inner + 2 * n_groups * n_state) + n_state * inner)


def _kv_heads(header: Header, n_head: int, n_layer: int, n_own: int) -> list[int]:
    """Of each layer; 0 for one that keeps a state instead, which some hybrids say apart: of each, or how often one of
    them attends."""
    found = _per_layer(header.get("attention.head_count_kv", n_head), n_layer)
    every = _one(header.get("full_attention_interval")) or 1
    recurrent = header.get("attention.recurrent_layers")
    if not isinstance(recurrent, list) or len(recurrent) != n_layer:
        recurrent = [i < n_own and (i + 1) % every for i in range(n_layer)]
    return [0 if keeps else n for n, keeps in zip(found, recurrent, strict=True)]
