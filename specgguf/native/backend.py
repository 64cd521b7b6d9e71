"""Every call into llama.cpp, typed and without state.

The rest of the program never touches ctypes: it asks here for a context, a batch, a decode, rows of logits.
What a call returns is what llama.cpp returned; what it means is decided by `context` and `rollback`. Importing
this module loads llama-cpp-python.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt

from specgguf.errors import BackendError

from . import compat
from .rpc.elsewhere import Elsewhere, anywhere

Context = Any  # llama_context_p
Logits = npt.NDArray[np.float32]

DECODE_OK, DECODE_NO_SLOT, DECODE_ABORTED = 0, 1, 2
STATE_PARTIAL_ONLY = 1
LOG_ERROR = 4

_log: collections.deque[tuple[int, str]] = collections.deque(maxlen=200)
_listeners: list[list[str]] = []


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _keep_log(level: int, text: bytes, _data: Any) -> None:
    line = text.decode("utf-8", "replace")
    _log.append((level, line))
    for lines in _listeners:
        lines.append(line)


def start() -> None:
    """Check that this llama-cpp-python has what is needed, and keep native log lines off stderr.

    Raises:
        BackendError: something is missing (a version outside the supported range).
    """
    compat.check()
    llama_cpp.llama_log_set(_keep_log, ctypes.c_void_p(0))


def last_log_error() -> str:
    """The last error line of llama.cpp's log that says why, or an empty string."""
    lines = [text.strip() for level, text in _log if level == LOG_ERROR and text.strip()]
    telling = [line for line in lines if compat.LOAD_FAILED not in line]
    return (telling or lines or [""])[-1]


@contextlib.contextmanager
def captured_log() -> Iterator[list[str]]:
    """All native log lines written inside the block, as they are written."""
    lines: list[str] = []
    _listeners.append(lines)
    try:
        yield lines
    finally:
        _listeners[:] = [other for other in _listeners if other is not lines]


def supports_gpu_offload() -> bool:
    """Whether this build of llama.cpp can put layers on a GPU."""
    return bool(llama_cpp.llama_supports_gpu_offload())


# --- contexts ---------------------------------------------------------------------------------------------


def set_field(structure: ctypes.Structure, name: str, value: Any) -> None:
    """Set a field of a ctypes structure that must exist: ctypes itself takes unknown names in silence."""
    if name not in compat.field_names(structure):
        raise BackendError(f"this llama-cpp-python has no parameter {name} in {type(structure).__name__}")
    setattr(structure, name, value)


def copy_params(params: ctypes.Structure) -> ctypes.Structure:
    """A copy of context parameters, for a context of our own."""
    copy = type(params)()
    ctypes.pointer(copy)[0] = params
    return copy


def new_context(llama: Any, params: ctypes.Structure) -> Context:
    """A context over the model that `llama` (llama_cpp.Llama) loaded.

    Raises:
        BackendError: it could not be made; the message carries llama.cpp's last error line.
    """
    ctx = llama_cpp.llama_init_from_model(llama.model, params)
    if not ctx:
        why = last_log_error()
        raise BackendError(f"llama.cpp could not create a context{': ' + why if why else ''}")
    return ctx


def apply_lora(ctx: Context, adapter: Any, scale: float) -> None:
    """Apply the LoRA adapter that a `Llama` loaded to a context of our own."""
    adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(adapter)
    if llama_cpp.llama_set_adapters_lora(ctx, adapters, 1, (ctypes.c_float * 1)(scale)):
        raise BackendError("llama.cpp refused the LoRA adapter for this context")


@anywhere
def free_context(ctx: Context) -> None:
    llama_cpp.llama_free(ctx)


class Limits(NamedTuple):  # of a context, in tokens
    n_ctx: int  # its length: llama.cpp rounds what was asked for up
    n_ubatch: int  # computed at once
    n_rs_seq: int  # that a recurrent state can be rolled back natively; 0 where the architecture cannot


@anywhere
def limits(ctx: Context) -> Limits:
    sizes = llama_cpp.llama_n_ctx(ctx), llama_cpp.llama_n_ubatch(ctx), llama_cpp.llama_n_rs_seq(ctx)
    return Limits(*map(int, sizes))


class Memory(NamedTuple):
    """What of a model decides how its memory can be rolled back."""

    n_swa: int  # the sliding window in tokens; 0 for full attention
    is_recurrent: bool  # whether any layer keeps a recurrent state


def memory(llama: Any) -> Memory:
    """Of the model that `llama` loaded."""
    model = llama.model
    recurrent = llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
    return Memory(int(llama_cpp.llama_model_n_swa(model)), bool(recurrent))


# --- batches and decoding ---------------------------------------------------------------------------------


class BatchPart(NamedTuple):
    """Consecutive tokens of one sequence in a batch; logits of the last `n_outputs` are asked for."""

    sequence: int
    position: int  # of the first token
    tokens: Sequence[int]
    n_outputs: int


class Batch:
    """A llama_batch over numpy arrays, so that filling it is a few assignments a part whatever its length."""

    def __init__(self, n_tokens: int) -> None:
        self._token, self._pos, self._seq = (np.zeros(n_tokens, np.int32) for _ in range(3))
        self._logits = np.zeros(n_tokens, np.int8)
        self._n_seq_id = np.ones(n_tokens, np.int32)
        self.parts: list[BatchPart] = []
        # llama.cpp wants a pointer to each token's list of sequences: here, each is one long.
        self._seq_id = self._seq.ctypes.data + self._seq.itemsize * np.arange(n_tokens, dtype=np.uintp)
        self.raw: Any = llama_cpp.llama_batch(
            n_tokens=0,
            token=_pointer(self._token, "token"),
            pos=_pointer(self._pos, "pos"),
            n_seq_id=_pointer(self._n_seq_id, "n_seq_id"),
            seq_id=_pointer(self._seq_id, "seq_id"),
            logits=_pointer(self._logits, "logits"),
        )

    def fill(self, parts: Iterable[BatchPart]) -> None:
        """Any number of sequences, each with consecutive positions."""
        start, self.parts = 0, list(parts)
        for sequence, position, tokens, n_outputs in self.parts:
            n = len(tokens)
            end = start + n
            self._token[start:end] = tokens
            self._pos[start:end] = np.arange(position, position + n)
            self._seq[start:end] = sequence
            self._logits[start:end] = 0
            self._logits[end - n_outputs : end] = 1
            start = end
        self.raw.n_tokens = start


def _pointer(array: npt.NDArray[Any], field: str) -> Any:
    """To an array that outlives it, of the type that this field of a batch has."""
    return ctypes.cast(array.ctypes.data, dict(llama_cpp.llama_batch._fields_)[field])


@anywhere
def decode(ctx: Context, batch: Batch) -> int:
    """llama_decode's own code: 0 ok, 1 no slot, 2 aborted, below 0 failed."""
    return int(llama_cpp.llama_decode(ctx, batch.raw))


@anywhere
def rows(ctx: Context, n_outputs: int, n_vocab: int) -> Logits:
    """The logits of the last decode, (n_outputs, n_vocab) float32: a view that the next decode overwrites."""
    pointer = llama_cpp.llama_get_logits(ctx)
    if not pointer:
        raise BackendError("llama.cpp returned no logits")
    return _view(ctypes.addressof(pointer.contents), n_outputs, n_vocab)


@functools.lru_cache(maxsize=64)  # the buffer of a context stays where it is: made anew, a view takes a third of a pass
def _view(address: int, n_outputs: int, n_vocab: int) -> Logits:
    pointer = ctypes.cast(address, ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (n_outputs, n_vocab))


class AbortFlag:
    """Aborts a running decode from any thread, without the GIL: llama.cpp asks libc's strlen whether the
    two-byte buffer is empty. On backends without abort support (GPUs) it does nothing; the flag between
    prefill chunks does."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(2)
        self._callback = None
        with contextlib.suppress(OSError, AttributeError):
            strlen = ctypes.CDLL(None).strlen
            self._callback = ctypes.cast(strlen, type(llama_cpp.llama_context_default_params().abort_callback))

    def attach(self, ctx: Context) -> None:
        if self._callback is not None and not isinstance(ctx, Elsewhere):
            address = ctypes.cast(self._buffer, ctypes.c_void_p)
            llama_cpp.llama_set_abort_callback(ctx, self._callback, address)

    def set(self) -> None:
        self._buffer[0] = b"\x01"

    def clear(self) -> None:
        self._buffer[0] = b"\x00"


# --- memory -----------------------------------------------------------------------------------------------


@anywhere
def seq_rm(ctx: Context, seq: int, n: int) -> bool:
    """Drop everything of a sequence from position n on; whether llama.cpp says that it could."""
    return bool(llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(ctx), seq, n, -1))


@anywhere
def seq_cp(ctx: Context, source: int, target: int, n: int) -> None:
    """Let a sequence share the cells of another's first n positions. Within a unified cache only: anywhere else
    llama.cpp ends the process."""
    llama_cpp.llama_memory_seq_cp(llama_cpp.llama_get_memory(ctx), source, target, 0, n)


@anywhere
def pos_max(ctx: Context, seq: int) -> int:
    """The last position held; -1 when empty."""
    return int(llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(ctx), seq))


@anywhere
def clear(ctx: Context, seq: int) -> None:
    """Empty a sequence's memory."""
    memory = llama_cpp.llama_get_memory(ctx)
    if llama_cpp.llama_n_seq_max(ctx) == 1:
        llama_cpp.llama_memory_clear(memory, True)
    else:
        llama_cpp.llama_memory_seq_rm(memory, seq, -1, -1)


@anywhere
def state_size(ctx: Context, seq: int, flags: int = 0) -> int:
    """The bytes that `get_state` would return."""
    return int(llama_cpp.llama_state_seq_get_size_ext(ctx, seq, flags))


@anywhere
def get_state(ctx: Context, seq: int, flags: int = 0) -> bytes:
    """The state of a sequence; with STATE_PARTIAL_ONLY just what cannot be rolled back by position.

    Raises:
        BackendError: llama.cpp wrote nothing.
    """
    size = state_size(ctx, seq, flags)
    buffer = (ctypes.c_uint8 * size)()
    written = int(llama_cpp.llama_state_seq_get_data_ext(ctx, buffer, size, seq, flags))
    if written <= 0:
        raise BackendError("llama.cpp could not save the state of the sequence")
    return bytes(memoryview(buffer)[:written])


@anywhere
def set_state(ctx: Context, data: bytes | bytearray | memoryview, seq: int, flags: int = 0) -> bool:
    """Restore what `get_state` saved; whether it worked."""
    size = memoryview(data).nbytes
    buffer = (ctypes.c_uint8 * size).from_buffer_copy(data)
    return int(llama_cpp.llama_state_seq_set_data_ext(ctx, buffer, size, seq, flags)) > 0
