"""The bare calls into llama.cpp: what is checked before them, and what is made of the answers."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import pytest
from support.contexts import TEXT, Opened

from specgguf import BackendError
from specgguf.native import backend


def test_a_field_that_is_not_there_is_an_error() -> None:
    """ctypes itself takes any name in silence."""
    params = llama_cpp.llama_context_default_params()
    backend.set_field(params, "n_ctx", 77)
    assert params.n_ctx == 77
    with pytest.raises(BackendError, match="no parameter use_mmap"):
        backend.set_field(params, "use_mmap", True)


def test_copied_parameters_are_a_copy() -> None:
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = 99
    copy = backend.copy_params(params)
    copy.n_ctx = 1
    assert params.n_ctx == 99
    assert copy.n_batch == params.n_batch


def log(*lines: tuple[int, str]) -> None:
    backend._log.clear()
    for level, line in lines:
        backend._keep_log(level, line.encode(), None)


def test_the_line_that_says_why() -> None:
    log((4, "the real reason\n"), (2, "chatter"), (4, "llama_model_load_from_file: failed to load model\n"))
    assert backend.last_log_error() == "the real reason"
    log((4, "failed to load model"), (2, "chatter"))
    assert backend.last_log_error() == "failed to load model"
    log((2, "chatter"))
    assert backend.last_log_error() == ""
    backend._keep_log(4, b"\xff broken", None)
    assert backend.last_log_error() == "\ufffd broken"


def test_lines_of_a_block_and_no_others() -> None:
    log((2, "before"))
    with backend.captured_log() as lines:
        backend._keep_log(2, b"inside", None)
    assert lines == ["inside"]


@pytest.fixture
def opened(tiny_pair: Any) -> Any:
    opened = Opened(tiny_pair.target)
    yield opened
    opened.close()


def test_a_batch_asks_for_the_last_rows_of_each_sequence() -> None:
    batch = backend.Batch(8)
    raw = batch.raw
    batch.fill(
        [backend.BatchPart(2, 10, [5, 6, 7], 2), backend.BatchPart(0, 3, [4], 0), backend.BatchPart(1, 0, [9], 1)]
    )
    assert raw.n_tokens == 5
    assert [raw.token[i] for i in range(5)] == [5, 6, 7, 4, 9]
    assert [raw.pos[i] for i in range(5)] == [10, 11, 12, 3, 0]
    assert [raw.logits[i] for i in range(5)] == [0, 1, 1, 0, 1]
    assert [raw.seq_id[i][0] for i in range(5)] == [2, 2, 2, 0, 1]
    assert [raw.n_seq_id[i] for i in range(8)] == [1] * 8
    batch.fill([backend.BatchPart(0, 0, [4, 4], 0)])
    assert raw.n_tokens == 2
    assert [raw.logits[i] for i in range(2)] == [0, 0]


def test_rows_and_positions(opened: Opened) -> None:
    context = opened.model.context.handle
    assert backend.pos_max(context, 0) == -1
    rows = opened.model.extend(TEXT[:6], 3)
    assert rows.dtype == np.float32
    assert backend.pos_max(context, 0) == 5
    assert backend.seq_rm(context, 0, 4)
    assert backend.pos_max(context, 0) == 3
    backend.clear(context, 0)
    assert backend.pos_max(context, 0) == -1


def test_an_abort_is_seen_by_the_callback() -> None:
    """libc's strlen over a two-byte buffer: no Python in the callback."""
    flag = backend.AbortFlag()
    if flag._callback is None:
        pytest.skip("no strlen here: the flag between chunks does")
    address = ctypes.cast(flag._buffer, ctypes.c_void_p)
    assert not flag._callback(address)
    flag.set()
    assert flag._callback(address)
    flag.clear()
    assert not flag._callback(address)
