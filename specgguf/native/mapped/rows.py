"""What a slimmed draft reads: embeddings of all ids, row by row from the file that it was cut from.

Only rows that occur are read, and none is kept: the system's file cache does that, and takes no memory of the process.
ggml itself turns them into numbers: the very ones that llama.cpp would look up. Knows nothing of what the ids mean.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specgguf.errors import BackendError
from specgguf.models import header
from specgguf.models.slim import Rows
from specgguf.native import backend, compat

F32 = 0
GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "q6_k": 14}

Values = npt.NDArray[np.float32]


class Embeddings:
    """The rows of a file's token embedding.

    Args:
        scales: multiply by the square root of their length, as the model's graph does with those of ids.
    """

    def __init__(self, path: Path, *, scales: bool) -> None:
        head = header.read(path)
        tensor = head.tensor("token_embd.weight")
        if tensor is None or tensor.n_bytes is None:
            raise BackendError(f"{path} has no embeddings that can be read")
        self.n_embd, n_rows = tensor.dims
        self._type = tensor.type
        self._start, self._size = head.data_start + tensor.offset, tensor.n_bytes // n_rows
        self._file, self._lock = open(path, "rb", buffering=0), threading.Lock()  # noqa: SIM115 - closed by `close`
        self._scale = np.float32(math.sqrt(self.n_embd)) if scales else None

    def of(self, tokens: Sequence[int] | npt.NDArray[np.int32]) -> Values:
        """Shape (len(tokens), n_embd)."""
        ids = np.asarray(tokens)
        found, place = np.unique(ids, return_inverse=True)
        data = bytearray()
        with self._lock:
            for token in found.tolist():
                self._file.seek(self._start + token * self._size)
                data += self._file.read(self._size)
        if len(data) != len(found) * self._size:
            raise BackendError(f"{self._file.name} was cut off while its embeddings were read")
        rows = to_float(self._type, bytes(data), self.n_embd)[place]
        return rows if self._scale is None else rows * self._scale

    def close(self) -> None:
        self._file.close()


class EmbeddingBatch(backend.Batch):
    """A batch that gives llama.cpp the embeddings of tokens instead of their ids."""

    def __init__(self, n_tokens: int, embeddings: Embeddings) -> None:
        super().__init__(n_tokens)
        self._embeddings = embeddings
        self._embd = np.zeros((n_tokens, embeddings.n_embd), np.float32)
        self.raw.embd = ctypes.cast(self._embd.ctypes.data, type(self.raw.embd))
        self.raw.token = None

    def fill(self, parts: Iterable[backend.BatchPart]) -> None:
        super().fill(parts)
        n = self.raw.n_tokens
        self._embd[:n] = self._embeddings.of(self._token[:n])


class _Traits(ctypes.Structure):
    """ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("blck_size", ctypes.c_int64),
        ("blck_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)),
        ("from_float_ref", ctypes.c_void_p),
    )


def to_float(kind: int, data: bytes, n_row: int) -> Values:
    """Rows of `n_row` numbers, stored in a ggml type."""
    if kind == F32:
        return np.frombuffer(data, np.float32).reshape(-1, n_row)
    traits = ctypes.cast(compat.ggml().ggml_get_type_traits(kind), ctypes.POINTER(_Traits)).contents
    if not traits.to_float or n_row % traits.blck_size:
        raise BackendError(f"ggml cannot read numbers of type {kind}")
    n_rows = len(data) // (n_row // traits.blck_size * traits.type_size)
    found = np.empty((n_rows, n_row), np.float32)
    traits.to_float(data, found.ctypes.data, found.size)
    return found


def requantized(rows: Rows, n_row: int, name: str) -> Rows:
    """Rows in another ggml type, one of `GGML_TYPES`.

    Raises:
        BackendError: rows of this length have no such blocks.
    """
    kind = GGML_TYPES[name]
    values = to_float(rows[0], rows[1], n_row)
    lib = compat.ggml()
    traits = ctypes.cast(lib.ggml_get_type_traits(kind), ctypes.POINTER(_Traits)).contents
    if n_row % traits.blck_size:
        raise BackendError(
            f"rows of {n_row} numbers cannot be stored as {name}", hint="q8_0 and q4_0 take multiples of 32"
        )
    size = n_row // traits.blck_size * traits.type_size
    out = ctypes.create_string_buffer(len(values) * size)
    lib.ggml_quantize_chunk(kind, values.ctypes.data, out, 0, len(values), n_row, None)
    return kind, out.raw
