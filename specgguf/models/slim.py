"""Writes a slimmed draft: a GGUF whose vocabulary and output matrix hold only the ids that are worth proposing.

The layers are copied as they are. The embeddings of all ids stay in the file that it was cut from, so that the slim
draft reads every text; that file is named by the slim one, and told again by its fingerprint. Which ids are worth
keeping is decided elsewhere, and what numbers a row holds is not known here.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from specgguf.errors import ConfigError, ModelNotFound, SpecggufError, Unsupported

from . import header, inventory
from .header import Header, Tensor

# Architectures whose graph takes embeddings as it takes ids, and whether it scales those of ids alone.
ARCHITECTURES = {
    **dict.fromkeys(("llama", "smollm3", "qwen2", "qwen3", "phi3", "gemma", "gemma2"), False),
    "gemma3": True,
}
IDS, SOURCE, FINGERPRINT = "specgguf.slim.ids", "specgguf.slim.source", "specgguf.slim.fingerprint"
N_VOCAB, KEPT = "specgguf.slim.n_vocab", "specgguf.slim.kept"  # of the file it was cut from; in a usual text
N_IDS_MIN, STEP = 256, 64  # the fewest ids, and what their number is a multiple of: kernels take rows in groups
_TOKENS, _MERGES = "tokenizer.ggml.tokens", "tokenizer.ggml.merges"
_BY_TOKEN = (_TOKENS, "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
_EMBEDDING, _OUTPUT, _BIAS = "token_embd.weight", "output.weight", "output.bias"
_FLOAT, _STRING, _ARRAY = 6, 8, 9
_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a value, by its type
_CHUNK = 1 << 22

Rows = tuple[int, bytes]  # ggml type, and the rows


@dataclass(frozen=True)
class Slimmed:
    """What a slimmed draft says of itself.

    Attributes:
        ids: the id, in the file it was cut from, of each of its own.
        source: that file, which holds the embeddings.
        scales: whether the embeddings are to be multiplied by the square root of their length.
    """

    ids: tuple[int, ...]
    source: Path
    scales: bool


def read(path: Path) -> Slimmed | None:
    """What `path` says of itself; None for a file that is no slimmed draft.

    Raises:
        ModelNotFound: the file that it was cut from is not here. ConfigError: it is another one by now.
    """
    head = header.read(path, keep=(IDS,))
    if IDS not in head.arrays:
        return None
    name, wanted = str(head.metadata.get(SOURCE, "")), head.metadata.get(FINGERPRINT)
    here = [path.parent / name, path.with_name(Path(name).name)]
    here += [model.path for model in inventory.models() if model.path.name == Path(name).name]
    found = [file for file in here if file.is_file()]
    for file in found:
        if header.fingerprint(file) == wanted:
            return Slimmed(tuple(head.arrays[IDS]), file, ARCHITECTURES.get(head.architecture, False))
    why = f"{path.name} was cut from {Path(name).name}, whose embeddings it reads"
    if found:
        raise ConfigError(f"{why}: {found[0]} is another file by now", hint="specgguf models slim cuts it again")
    raise ModelNotFound(f"{why}: that file is not here", hint=f"put it beside {path.name}")


def kept_share(path: Path) -> float:
    """Of the tokens of a usual text, those that a slimmed draft keeps, as the file says; 1 for any other."""
    return float(header.read(path).metadata.get(KEPT, 1.0))


def check(path: Path) -> Header:
    """The header of a file that can be slimmed.

    Raises:
        Unsupported: it cannot, and why.
    """
    head = header.read(path)
    if head.count(IDS):
        raise Unsupported(f"{path.name} is a slimmed draft already", hint="give the file that it was cut from")
    if header.shards(path.name) != [path.name]:
        raise Unsupported(f"{path.name} is one of several files", hint="merge them first (llama-gguf-split --merge)")
    if head.architecture not in ARCHITECTURES:
        raise Unsupported(
            f"{path.name} cannot be slimmed: the architecture '{head.architecture}' is not among those tried",
            hint=f"{', '.join(ARCHITECTURES)} are",
        )
    if head.tensor(_BIAS) is not None:
        raise Unsupported(f"{path.name} cannot be slimmed: its output has a bias for each token")
    if head.tensor(_EMBEDDING) is None or not head.count(_TOKENS):
        raise Unsupported(f"{path.name} has no vocabulary to slim")
    return head


def kept_ids(head: Header, tokens: Sequence[str], ranked: Sequence[int], always: Sequence[int], n: int) -> list[int]:
    """The ids to keep, ascending: what every draft needs, then the first of `ranked`, then in the order of the file
    (that of merges, or of scores), `n` in all.

    Args:
        tokens: the texts of all ids.
        always: further ids that are kept, such as those that end a generation.

    Raises:
        ConfigError: those are all that there are, nearly.
    """
    named = [v for k, v in head.metadata.items() if k.endswith("_token_id") and isinstance(v, int)]
    bytes_ = [i for i, text in enumerate(tokens) if (len(text) == 1 and ord(text) < 512) or _is_byte(text)]
    kept = {int(token): None for token in (*named, *always, *bytes_) if 0 <= token < len(tokens)}
    n = -(-max(n, N_IDS_MIN, len(kept)) // STEP) * STEP
    if n >= len(tokens):
        raise ConfigError(f"of {len(tokens):,} tokens {n:,} would be kept: there is nothing to slim")
    for token in (*ranked, *range(len(tokens))):
        if len(kept) == n:
            break
        kept.setdefault(int(token))
    return sorted(kept)


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def write(
    source: Path, out: Path, ids: Sequence[int], kept: float, requantize: Callable[[Rows, int], Rows] | None = None
) -> None:
    """Write the slimmed draft, all of it or nothing.

    Args:
        ids: those to keep, ascending; a multiple of `STEP`.
        kept: of the tokens of a usual text, those that are among them.
        requantize: other numbers for the output matrix: (rows, their length) -> rows.

    Raises:
        SpecggufError: it cannot be written there, or the disk is full.
    """
    head = header.read(source)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with open(source, "rb") as stream, open(part, "wb") as file:
            _write(stream, file, head, ids, _metadata(source, out, head, ids, kept), requantize)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, out)
    except OSError as error:
        free = shutil.disk_usage(out.parent).free if out.parent.is_dir() else 0
        raise SpecggufError(
            f"{out} could not be written: {error.strerror or error}", hint=f"{free >> 20} MiB are free there; -o OUT"
        ) from error
    finally:
        part.unlink(missing_ok=True)


def _metadata(source: Path, out: Path, head: Header, ids: Sequence[int], kept: float) -> dict[str, bytes]:
    """What stands in the new file for some keys; b"" leaves one out. Others are copied."""
    place = {token: i for i, token in enumerate(ids)}
    named: dict[str, bytes] = {"tokenizer.chat_template": b"", f"{head.architecture}.vocab_size": _u32(len(ids))}
    for key, value in head.metadata.items():
        if key.startswith("tokenizer.") and key.endswith("_token_id") and isinstance(value, int):
            named[key] = _u32(place[value]) if value in place else b""
    try:
        relative = os.path.relpath(source.resolve(), out.parent.resolve())
    except ValueError:  # on another drive
        relative = source.name
    named[SOURCE] = _text(relative.replace(os.sep, "/"))
    named[FINGERPRINT] = _text(header.fingerprint(source))
    named[KEPT] = struct.pack("<If", _FLOAT, kept)
    named[N_VOCAB] = _u32(head.count(_TOKENS))
    named[IDS] = struct.pack(f"<IIQ{len(ids)}i", _ARRAY, 5, len(ids), *ids)
    return named


def _write(
    stream: IO[bytes],
    file: IO[bytes],
    head: Header,
    ids: Sequence[int],
    named: Mapping[str, bytes],
    requantize: Callable[[Rows, int], Rows] | None,
) -> None:
    values = dict(_values(stream, ids))
    values = {key: named.get(key, value) for key, value in (values | dict(named)).items()}
    values = {key: value for key, value in values.items() if value}
    alignment = int(head.metadata.get("general.alignment", 32))
    output = head.tensor(_OUTPUT) or head.tensor(_EMBEDDING)
    assert output is not None
    kind, rows = output.type, _rows(stream, head, output, ids)
    if requantize is not None:
        kind, rows = requantize((kind, rows), output.dims[0])
    # One matrix for both: embeddings come from elsewhere, and the output is the embedding's where it is missing.
    tensors = [t for t in head.tensors if t.name not in (_OUTPUT, _EMBEDDING)]
    plan = [(Tensor(_EMBEDDING, (output.dims[0], len(ids)), kind, 0), len(rows))]
    plan += [(t, t.n_bytes or 0) for t in tensors]
    file.write(header.MAGIC + struct.pack("<IQQ", 3, len(plan), len(values)))
    for key, value in values.items():
        file.write(_string(key.encode()) + value)
    offset = 0
    for tensor, size in plan:
        dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
        file.write(_string(tensor.name.encode()) + dims + struct.pack("<IQ", tensor.type, offset))
        offset += -(-size // alignment) * alignment
    for tensor, size in plan:
        file.write(bytes(-file.tell() % alignment))
        if tensor.name == _EMBEDDING:
            file.write(rows)
            continue
        stream.seek(head.data_start + tensor.offset)
        for start in range(0, size, _CHUNK):
            file.write(stream.read(min(_CHUNK, size - start)))
    file.write(bytes(-file.tell() % alignment))


def _rows(stream: IO[bytes], head: Header, tensor: Tensor, ids: Sequence[int]) -> bytes:
    """The rows of a matrix that belong to `ids`."""
    assert tensor.n_bytes is not None
    size = tensor.n_bytes // tensor.dims[1]
    found = bytearray()
    for token in ids:
        stream.seek(head.data_start + tensor.offset + token * size)
        found += stream.read(size)
    return bytes(found)


def _values(stream: IO[bytes], ids: Sequence[int]) -> Iterator[tuple[str, bytes]]:
    """Every key with its value as the file has it, type first; what lists tokens is cut to `ids`."""
    stream.seek(8)
    _, n = struct.unpack("<QQ", stream.read(16))
    texts: set[bytes] = set()
    for _ in range(n):
        key = _read_string(stream).decode("utf-8", "replace")
        (kind,) = struct.unpack("<I", stream.read(4))
        if kind == _STRING:
            value = _string(_read_string(stream))
        elif kind == _ARRAY:
            of, length = struct.unpack("<IQ", stream.read(12))
            items = _items(stream, of, length)
            if key in _BY_TOKEN:
                items = [items[token] for token in ids]
                texts = set(items) if key == _TOKENS else texts
            elif key == _MERGES:
                items = [item for item in items if item.replace(b" ", b"", 1) in texts] or items[:1]
            written = b"".join(map(_string, items) if of == _STRING else items)
            value = struct.pack("<IQ", of, len(items)) + written
        else:
            value = stream.read(_BYTES[kind])
        yield key, struct.pack("<I", kind) + value


def _items(stream: IO[bytes], of: int, n: int) -> list[bytes]:
    if of == _STRING:
        return [_read_string(stream) for _ in range(n)]
    data, size = stream.read(n * _BYTES[of]), _BYTES[of]
    return [data[i : i + size] for i in range(0, len(data), size)]


def _read_string(stream: IO[bytes]) -> bytes:
    (n,) = struct.unpack("<Q", stream.read(8))
    return stream.read(n)


def _string(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def _text(text: str) -> bytes:
    return struct.pack("<I", _STRING) + _string(text.encode())


def _u32(n: int) -> bytes:
    return struct.pack("<II", 4, n)


def texts(path: Path) -> list[str]:
    """The texts of all tokens as a file stores them."""
    found: list[Any] = header.read(path, keep=(_TOKENS,)).arrays.get(_TOKENS, [])
    return found
