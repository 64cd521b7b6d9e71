"""GGUF heads: the same as the gguf package reads, from files and from streams, and damage is named."""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgguf.models import header
from specgguf.models.header import ArrayInfo, GgufError


@pytest.fixture(params=["tiny_chat", "tiny_hybrid", "tiny_recurrent", "tiny_sliding"])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param).target
    return found


def test_tensors_lie_where_the_reference_reader_finds_them(path: Path) -> None:
    ours, theirs = header.read(path), gguf.GGUFReader(path)
    assert [(t.name, list(t.dims), t.type, t.n_bytes) for t in ours.tensors] == [
        (t.name, [int(n) for n in t.shape], int(t.tensor_type), t.n_bytes) for t in theirs.tensors
    ]
    assert [ours.data_start + t.offset for t in ours.tensors] == [t.data_offset for t in theirs.tensors]
    assert ours.min_bytes <= path.stat().st_size


def test_metadata_is_that_of_the_reference_reader(path: Path) -> None:
    ours, theirs = header.read(path), gguf.GGUFReader(path)
    for name, field in theirs.fields.items():
        if name.startswith("GGUF."):
            continue
        value, expected = ours.metadata[name], field.contents()
        if isinstance(value, ArrayInfo):
            assert value.n == len(expected)
        else:
            assert value == pytest.approx(expected) if isinstance(expected, float) else value == expected
    assert ours.architecture == theirs.fields["general.architecture"].contents()


def test_long_arrays_are_kept_when_asked_for(path: Path) -> None:
    key = "tokenizer.ggml.tokens"
    assert isinstance(header.read(path).metadata[key], ArrayInfo)
    kept = header.read(path, keep=[key])
    assert len(kept.arrays[key]) == kept.count(key) == header.read(path).count(key)


def with_strings(*lengths: int) -> bytes:
    """A head with an array of strings so long, and a number after it."""
    strings = b"".join(struct.pack("<Q", n) + n * b"\xff" for n in lengths)
    key = [struct.pack("<Q", 1) + name for name in (b"s", b"n")]
    array, number = struct.pack("<IIQ", 9, 8, len(lengths)) + strings, struct.pack("<IB", 0, 77)
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + key[0] + array + key[1] + number


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 30), st.integers(header.READ_AHEAD - 20, 2 * header.READ_AHEAD)), max_size=60))
def test_strings_are_walked_over_to_the_byte(lengths: list[int]) -> None:
    data = with_strings(*lengths)
    assert header.read(io.BytesIO(data)).metadata == {"s": ArrayInfo(8, len(lengths)), "n": 77}
    kept = header.read(io.BytesIO(data), keep=["s"])
    assert kept.metadata == {"s": ["\ufffd" * n for n in lengths], "n": 77}
    assert header.read(io.BytesIO(data)).data_start == kept.data_start


def test_strings_cut_short_are_seen() -> None:
    data = with_strings(3, 0, 40)
    for n in range(len(data)):
        for keep in ((), ("s",)):
            with pytest.raises(GgufError, match="ends inside"):
                header.read(io.BytesIO(data[:n] if n > 3 else b"GGUF"), keep=keep)
    with pytest.raises(GgufError, match="ends inside"):
        header.read(io.BytesIO(with_strings(header.READ_AHEAD * 3)[:-14]))
    with pytest.raises(GgufError, match="damaged"):
        header.read(io.BytesIO(data.replace(struct.pack("<Q", 40), struct.pack("<Q", 2**60))))


def test_a_stream_is_as_good_as_a_file(path: Path) -> None:
    assert header.read(io.BytesIO(path.read_bytes())) == header.read(path)


def test_block_sizes_are_those_of_the_reference() -> None:
    for kind, (values, size) in gguf.GGML_QUANT_SIZES.items():
        if kind != gguf.GGMLQuantizationType.Q8_1:  # never stored; the two disagree about its header
            assert header._BLOCKS[int(kind)] == (values, size)


@pytest.mark.parametrize("version", [0, 1, 4, 1 << 24])
def test_other_versions_are_refused(version: int) -> None:
    with pytest.raises(GgufError, match=f"version {version}"):
        header.read(io.BytesIO(b"GGUF" + struct.pack("<IQQ", version, 0, 0)))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=200), n=st.integers(0, 2000))
def test_damage_is_an_error_and_never_a_crash(tiny_bytes: bytes, data: bytes, n: int) -> None:
    damaged = tiny_bytes[:n] + data + tiny_bytes[n + len(data) :]
    with contextlib.suppress(GgufError):
        header.read(io.BytesIO(damaged))


@pytest.fixture(scope="module")
def tiny_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from support import tiny

    path = tmp_path_factory.mktemp("head") / "x.gguf"
    tiny.WRITERS["llama"](path, tiny.letters(8))
    return path.read_bytes()


@pytest.mark.parametrize(
    ("name", "n"),
    [
        ("model.gguf", 1),
        ("m-00001-of-00003.gguf", 3),
        ("m-00002-of-00003.gguf", 3),
        ("m-0001-of-0003.gguf", 1),
        ("m-00001-of-00000.gguf", 1),
        ("m-00004-of-00003.gguf", 1),
        ("m-00000-of-00003.gguf", 1),
    ],
)
def test_shards_by_the_name_of_one(name: str, n: int) -> None:
    found = header.shards(name)
    assert len(found) == n
    assert name in found
