"""The head of a GGUF file: its metadata and where its tensors lie.

Reads without loading anything, from any seekable binary stream, so a file on a server can be read by ranges.
Long arrays (token texts, merges) are walked over, not kept, unless asked for. This module knows the layout of
GGUF versions 2 and 3 and nothing of what the keys mean, of networks, or of llama.cpp.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from specgguf.errors import BackendError, ModelNotFound, SpecggufError

MAGIC = b"GGUF"
_SHARD = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
READ_AHEAD = 1 << 13  # bytes at once of strings that are walked over
KEPT_ARRAY = 4096  # numeric arrays up to this long are kept as values
MAX_COUNT = 1 << 28  # no real file has so many keys, tensors or bytes in a string: the head is damaged

# value type -> (struct code, bytes); 8 is a string, 9 an array
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

# ggml type -> (values in a block, bytes of a block)
_BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip
N_SAMPLES, SAMPLE_BYTES = 16, 4096  # of a fingerprint


class GgufError(SpecggufError):
    """The bytes are no GGUF head that can be read."""


@dataclass(frozen=True)
class ArrayInfo:
    """An array that was walked over: its length, not its values."""

    type: int
    n: int


@dataclass(frozen=True)
class Tensor:
    """One tensor's name, shape (innermost first), ggml type, and place after `Header.data_start`."""

    name: str
    dims: tuple[int, ...]
    type: int
    offset: int

    @property
    def n_bytes(self) -> int | None:
        """Bytes on disk; None for a type that this module does not know."""
        block = _BLOCKS.get(self.type)
        n = 1
        for dim in self.dims:
            n *= dim
        return None if block is None else n // block[0] * block[1]


@dataclass(frozen=True)
class Header:
    """Metadata and tensors of one GGUF file."""

    metadata: dict[str, Any]
    tensors: tuple[Tensor, ...]
    data_start: int
    arrays: dict[str, list[Any]] = field(default_factory=dict)  # those asked for by `keep`

    @property
    def min_bytes(self) -> int:
        """How long the file must be at least to hold its tensors."""
        return max((self.data_start + t.offset + (t.n_bytes or 1) for t in self.tensors), default=self.data_start)

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `<architecture>.<key>`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def tensor(self, name: str) -> Tensor | None:
        return next((t for t in self.tensors if t.name == name), None)

    def count(self, key: str) -> int:
        """Length of the array at the full key `key`, 0 when it is absent."""
        value = self.metadata.get(key)
        return value.n if isinstance(value, ArrayInfo) else len(value) if isinstance(value, list) else 0


class _Reader:
    """Little-endian values off a stream; a short read is a GgufError error."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream

    def take(self, n: int) -> bytes:
        data = self.stream.read(n)
        if len(data) != n:
            raise GgufError("the file ends inside its GGUF header")
        return data

    def unpack(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize(code)))[0]

    def count(self) -> int:
        n = int(self.unpack("Q"))
        if n > MAX_COUNT:
            raise GgufError("the GGUF header is damaged")
        return n

    def string(self) -> str:
        return self.take(self.count()).decode("utf-8", "replace")

    def strings(self, n: int) -> list[str]:
        """`n` strings: a vocabulary has hundreds of thousands, so `string` for each would take a second."""
        length = struct.Struct("<Q").unpack_from
        data, at, texts = b"", 0, []
        for _ in range(n):
            if at + 8 > len(data):
                data, at = data[at:] + self.stream.read(READ_AHEAD), 0
                if len(data) < 8:
                    raise GgufError("the file ends inside its GGUF header")
            (size,) = length(data, at)
            if size > MAX_COUNT:
                raise GgufError("the GGUF header is damaged")
            end = at + 8 + size
            if end > len(data):
                data, at, end = data[at:] + self.stream.read(size + READ_AHEAD), 0, 8 + size
                if end > len(data):
                    raise GgufError("the file ends inside its GGUF header")
            texts.append(data[at + 8 : end].decode("utf-8", "replace"))
            at = end
        self.stream.seek(at - len(data), os.SEEK_CUR)
        return texts

    def skip_strings(self, n: int) -> None:
        """Past `n` strings, as fast."""
        length = struct.Struct("<Q").unpack_from
        data, at = b"", 0  # what was read ahead; where in it, or beyond it, the next string begins
        for _ in range(n):
            if at + 8 > len(data):
                if at > len(data):
                    self.stream.seek(at - len(data), os.SEEK_CUR)
                data, at = data[at:] + self.stream.read(READ_AHEAD), 0
                if len(data) < 8:
                    raise GgufError("the file ends inside its GGUF header")
            (size,) = length(data, at)
            if size > MAX_COUNT:
                raise GgufError("the GGUF header is damaged")
            at += 8 + size
        if n:
            self.stream.seek(at - len(data) - 1, os.SEEK_CUR)
            self.take(1)  # the last byte, which a seek does not miss

    def value(self, kind: int, keep: bool) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self.array(keep)
        if kind not in _SCALARS:
            raise GgufError(f"the GGUF header holds a value of unknown type {kind}")
        return self.unpack(_SCALARS[kind])

    def array(self, keep: bool) -> Any:
        kind, n = int(self.unpack("I")), self.count()
        if kind == _STRING:
            if keep:
                return self.strings(n)
            self.skip_strings(n)
            return ArrayInfo(kind, n)
        if kind not in _SCALARS:
            raise GgufError(f"the GGUF header holds an array of unknown type {kind}")
        code = _SCALARS[kind]
        data = self.take(n * struct.calcsize(code))
        return list(struct.unpack(f"<{n}{code}", data)) if keep or n <= KEPT_ARRAY else ArrayInfo(kind, n)


def read(source: str | Path | IO[bytes], *, keep: Sequence[str] = ()) -> Header:
    """Read a GGUF head; `keep` names metadata keys whose arrays are wanted whole.

    Raises:
        GgufError: wrong magic, unknown version or alignment, a damaged or incomplete head.
    """
    if isinstance(source, str | Path):
        with open(source, "rb") as stream:
            return read(stream, keep=keep)
    reader = _Reader(source)
    if source.read(4) != MAGIC:
        raise GgufError("not a GGUF file (it does not begin with 'GGUF')")
    version = reader.unpack("I")
    if version not in (2, 3):
        raise GgufError(f"GGUF version {version} is not known (2 and 3 are)")
    n_tensors, n_keys = reader.count(), reader.count()
    metadata: dict[str, Any] = {}
    arrays: dict[str, list[Any]] = {}
    for _ in range(n_keys):
        key = reader.string()
        value = reader.value(int(reader.unpack("I")), key in keep)
        metadata[key] = value
        if key in keep and isinstance(value, list):
            arrays[key] = value
    tensors = tuple(_tensor(reader) for _ in range(n_tensors))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise GgufError(f"general.alignment is {alignment!r:.40}, not a power of two")
    return Header(metadata, tensors, -(-source.tell() // alignment) * alignment, arrays)


def _tensor(reader: _Reader) -> Tensor:
    name, n_dims = reader.string(), int(reader.unpack("I"))
    if n_dims > 8:
        raise GgufError("the GGUF header is damaged")
    dims = tuple(int(reader.unpack("Q")) for _ in range(n_dims))
    return Tensor(name, dims, int(reader.unpack("I")), int(reader.unpack("Q")))


def check_gguf(path: str) -> None:
    """Refuse what llama.cpp would refuse in words that nobody understands."""
    if not os.path.exists(path):
        raise ModelNotFound(f"no such file: {path}", hint="a model is a .gguf file, org/repo:quant, or a preset")
    if os.path.isdir(path):
        raise ModelNotFound(f"{path} is a folder", hint="name the .gguf file in it")
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise BackendError(f"{path} cannot be read: {error.strerror or error}") from error
    if magic != MAGIC:
        raise BackendError(f"{path} is not a GGUF file (it starts with {magic!r})")


def shards(name: str) -> list[str]:
    """All files of a split model by the name of one of them; just `name` for an ordinary file."""
    match = _SHARD.fullmatch(name)
    if not match:
        return [name]
    stem, number, count = match.groups()
    if not 1 <= int(number) <= int(count):
        return [name]  # only named like one
    return [f"{stem}-{i:05}-of-{count}.gguf" for i in range(1, int(count) + 1)]


def fingerprint(path: str | os.PathLike[str]) -> str:
    """A file's size and a hash of samples from all over it: tells two models of one shape apart."""
    size = os.path.getsize(path)
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        for i in range(N_SAMPLES):
            file.seek(i * max(size - SAMPLE_BYTES, 0) // (N_SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
