"""GGUF files of a preset's shape with random weights: as large and as slow as the real model, and saying nothing.

For measuring memory and time where no weights can be had. Rows are cut from one random pattern whose length is a
prime number of blocks, so that writing costs no more than copying and no two rows are alike. Weights are scaled by
their fan-in, so that logits stay finite and spread like a language model's. Knows nothing of what is measured.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import gguf
import numpy as np
from specgguf.presets import Shape

LOGITS_STD = 4.0  # of the logits: the likeliest of 152,000 ids then gets some tenths of the mass
N_CTX_TRAIN = 40960
N_TINY = 3  # ids without a word of their own: <unk> <s> </s>

# name: (ggml type, values in a block, the block's fields, standard deviation of its numbers)
KINDS: dict[str, tuple[gguf.GGMLQuantizationType, int, list[Any], float]] = {
    "f16": (gguf.GGMLQuantizationType.F16, 1, [("x", "<f2")], 1.0),
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, 32, [("d", "<f2"), ("q", "i1", 32)], 73.6),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, 32, [("d", "<f2"), ("q", "u1", 16)], 4.32),
}
N_BLOCKS = {"f16": 8388617, "q8_0": 500009, "q4_0": 1000003}  # primes: row r begins r * blocks-per-row further on


@dataclass(frozen=True)
class Tensor:
    """A tensor to be written: rows and columns as numpy has them; columns None is a vector, kept in F32, as is what
    `is_f32` says. Of several matrices in one (experts), each has so many rows."""

    name: str
    rows: int
    columns: int | None
    std: float = 1.0
    mean: float = 0.0
    n_matrices: int = 1
    is_f32: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """As numpy has it."""
        matrix = (self.rows,) if self.columns is None else (self.rows, self.columns)
        return matrix if self.n_matrices == 1 else (self.n_matrices, *matrix)

    @property
    def n_values(self) -> int:
        return prod(self.shape)


class Pattern:
    """Random blocks of one kind, rescaled on demand."""

    def __init__(self, kind: str, seed: int) -> None:
        _, self.block, fields, self.std = KINDS[kind]
        rng = np.random.default_rng(seed)
        self.blocks = np.zeros(N_BLOCKS[kind], dtype=fields)
        if kind == "f16":
            self._values = rng.standard_normal(N_BLOCKS[kind], dtype=np.float32)
        elif kind == "q8_0":
            self.blocks["q"] = rng.integers(-127, 128, self.blocks["q"].shape, dtype=np.int8)
        else:  # two numbers from -7 to 7 in a byte, stored as 1 to 15
            low, high = rng.integers(1, 16, (2, *self.blocks["q"].shape), dtype=np.uint8)
            self.blocks["q"] = low | high << 4
        self._scale = 0.0

    def scaled(self, std: float) -> memoryview:
        """All blocks as bytes, of weights with this standard deviation."""
        if std != self._scale:
            if "x" in (self.blocks.dtype.names or ()):
                self.blocks["x"] = self._values * std
            else:
                self.blocks["d"] = std / self.std
            self._scale = std
        return self.blocks.view(np.uint8).reshape(-1).data


def architecture(name: str) -> str:
    """llama.cpp's name for the family of a preset's file."""
    name = name.lower()
    return "qwen3" if name.startswith("qwen3") else "qwen2" if name.startswith("qwen2") else "llama"


def write(path: Path, shape: Shape, kind: str, *, arch: str, seed: int = 1) -> int:
    """Write a model whose matrices are all of `kind` ("f16", "q8_0", "q4_0"); its size in bytes."""
    return write_tensors(header(path, shape, arch), list(_tensors(shape, arch)), kind, seed=seed)


def write_tensors(writer: gguf.GGUFWriter, tensors: Sequence[Tensor], kind: str, *, seed: int = 1) -> int:
    """Write a file whose metadata `writer` has; its size in bytes."""
    type_, block, _, _ = KINDS[kind]
    pattern = Pattern(kind, seed)
    rng = np.random.default_rng(seed)
    block_bytes = pattern.blocks.dtype.itemsize
    for t in tensors:
        if t.columns is None or t.is_f32:
            writer.add_tensor_info(t.name, t.shape, np.dtype(np.float32), 4 * t.n_values)
        else:
            n_bytes = t.n_values // block * block_bytes
            writer.add_tensor_info(t.name, t.shape, np.dtype(np.float32), n_bytes, type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    assert writer.fout is not None
    file = writer.fout[0]
    writer.write_padding(file, file.tell())
    for t in tensors:
        if t.columns is None or t.is_f32:
            values = (t.mean + t.std * rng.standard_normal(t.n_values)).astype("<f4")
            file.write(values.tobytes())
            n_bytes = values.nbytes
        else:
            start = zlib.crc32(f"{seed} {t.name}".encode()) % N_BLOCKS[kind] * block_bytes
            n_bytes = t.n_values // block * block_bytes
            _fill(file, pattern.scaled(t.std), start, n_bytes)
        writer.write_padding(file, n_bytes)
    size = int(file.tell())
    writer.close()
    return size


def _fill(file: IO[bytes], pattern: memoryview, start: int, n_bytes: int) -> None:
    while n_bytes:
        piece = pattern[start : start + n_bytes]
        file.write(piece)
        n_bytes, start = n_bytes - len(piece), 0


def _tensors(shape: Shape, arch: str) -> Iterator[Tensor]:
    """All tensors of a dense transformer, in the order of the layers; a matrix's spread is 1 / sqrt(fan-in)."""
    n, ff, q = shape.n_embd, shape.n_ff, shape.n_head * shape.head_dim
    kv = shape.n_head_kv * shape.head_dim

    def matrix(name: str, rows: int, columns: int, std: float = 1.0) -> Tensor:
        return Tensor(name + ".weight", rows, columns, std / columns**0.5)

    def norm(name: str, size: int) -> Tensor:
        return Tensor(name + ".weight", size, None, 0.1, 1.0)

    yield matrix("token_embd", shape.n_vocab, n, LOGITS_STD)
    yield norm("output_norm", n)
    if not shape.tied:
        yield matrix("output", shape.n_vocab, n, LOGITS_STD)
    for i in range(shape.n_layer):
        at = f"blk.{i}."
        yield norm(at + "attn_norm", n)
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            yield matrix(f"{at}attn_{name}", rows, n)
            if arch == "qwen2":
                yield Tensor(f"{at}attn_{name}.bias", rows, None, 0.1)
        if arch == "qwen3":
            yield norm(at + "attn_q_norm", shape.head_dim)
            yield norm(at + "attn_k_norm", shape.head_dim)
        yield matrix(at + "attn_output", n, q)
        yield norm(at + "ffn_norm", n)
        yield matrix(at + "ffn_gate", ff, n)
        yield matrix(at + "ffn_up", ff, n)
        yield matrix(at + "ffn_down", n, ff)


def header(path: Path, shape: Shape, arch: str) -> gguf.GGUFWriter:
    """The metadata that llama.cpp asks for; token ids are words like "t12345"."""
    w = gguf.GGUFWriter(path, arch)
    w.add_name(f"random-{arch}")
    w.add_context_length(N_CTX_TRAIN)
    w.add_embedding_length(shape.n_embd)
    w.add_block_count(shape.n_layer)
    w.add_feed_forward_length(shape.n_ff)
    w.add_head_count(shape.n_head)
    w.add_head_count_kv(shape.n_head_kv)
    w.add_key_length(shape.head_dim)
    w.add_value_length(shape.head_dim)
    w.add_rope_dimension_count(shape.head_dim)
    w.add_rope_freq_base(1e6)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_vocab_size(shape.n_vocab)
    w.add_tokenizer_model("llama")
    n = shape.n_vocab
    w.add_token_list(["<unk>", "<s>", "</s>", *(f"t{i}" for i in range(N_TINY, n))])
    w.add_token_scores([-float(i) for i in range(n)])
    w.add_token_types([2, 3, 3, *[1] * (n - N_TINY)])
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_add_bos_token(False)
    w.add_add_space_prefix(False)
    return w
