"""llama.cpp's grammar sampler: typed calls without state, beside `backend`.

What a mask or a state means is `grammar`'s business. A sampler that is made to accept a forbidden token, or any
token after its grammar's end, ends the process: callers ask for the mask first.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from specgguf.config import one_line

from . import compat


def is_eog(vocab: Any, token: int) -> bool:
    """Whether `token` ends a generation."""
    return bool(llama_cpp.llama_vocab_is_eog(vocab, token))


def init_grammar(vocab: Any, gbnf: str, root: str) -> tuple[Any | None, str]:
    """A grammar sampler, or None and what llama.cpp's parser says about it ("" if nothing)."""
    if "\0" in gbnf:
        return None, "it contains a NUL character"
    if not gbnf.strip():
        return None, ""  # llama.cpp would take it, and allow everything
    with _NativeStderr() as captured:
        sampler = llama_cpp.llama_sampler_init_grammar(vocab, gbnf.encode(errors="replace"), root.encode())
    if sampler:
        return sampler, ""
    found = compat.GRAMMAR_ERROR.search(captured.text)
    return None, one_line(found[1]) if found else ""


def apply_grammar(sampler: Any, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Which of `ids` (each below the vocabulary's size) the grammar allows."""
    data = np.zeros(len(ids), dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    data["id"] = ids
    array = llama_cpp.llama_token_data_array(
        data=ctypes.cast(data.ctypes.data, llama_cpp.llama_token_data_p),
        size=len(ids),
        selected=-1,
        sorted=False,
    )
    llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    return np.asarray(data["logit"] == 0.0)


def accept(sampler: Any, token: int) -> None:
    """Advance a sampler. A token that `apply_grammar` does not allow ends the process."""
    llama_cpp.llama_sampler_accept(sampler, token)


def clone_sampler(sampler: Any) -> Any:
    """An independent copy of a sampler."""
    return llama_cpp.llama_sampler_clone(sampler)


def free(sampler: Any) -> None:
    """Free a sampler that belongs to no chain."""
    llama_cpp.llama_sampler_free(sampler)


class _NativeStderr:
    """Keeps what native code writes to file descriptor 2: llama.cpp's grammar parser bypasses its log."""

    _one_at_a_time = threading.Lock()

    def __enter__(self) -> _NativeStderr:
        self._one_at_a_time.acquire()
        try:
            self._file = tempfile.TemporaryFile()
            self._saved = os.dup(2)
            os.dup2(self._file.fileno(), 2)
        except BaseException:
            self._one_at_a_time.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)
        self._file.seek(0)
        self.text = self._file.read().decode(errors="replace")
        self._file.close()
        self._one_at_a_time.release()
