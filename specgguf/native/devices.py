"""ggml's list of devices and llama.cpp's dry load: the calls that `backend` does not need for decoding.

Typed and without state, like `backend`. Importing this module loads llama-cpp-python; asking for the devices
initialises the GPU drivers that it was built with.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import llama_cpp

from specgguf.errors import BackendError

from . import backend

_TYPES = {0: "cpu", 1: "gpu", 2: "igpu", 3: "accel", 4: "meta"}


class RawDevice(NamedTuple):
    """One entry of ggml's list; bytes as the backend reports them."""

    name: str
    description: str
    type: str
    registry: str
    free_bytes: int
    total_bytes: int


def devices() -> list[RawDevice]:
    """All devices that the compiled-in backends find.

    Raises:
        BackendError: this llama-cpp-python exposes no ggml library.
    """
    lib = _library()
    found = []
    for index in range(int(lib.ggml_backend_dev_count())):
        device = lib.ggml_backend_dev_get(index)
        free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
        lib.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append(
            RawDevice(
                _text(lib.ggml_backend_dev_name(device)),
                _text(lib.ggml_backend_dev_description(device)),
                _TYPES.get(int(lib.ggml_backend_dev_type(device)), "other"),
                _text(lib.ggml_backend_reg_name(lib.ggml_backend_dev_backend_reg(device))),
                free.value,
                total.value,
            )
        )
    return found


def build_info() -> tuple[str, str]:
    """Version of llama-cpp-python, and llama.cpp's own line about what it was compiled with."""
    backend.start()
    return str(llama_cpp.__version__), _text(llama_cpp.llama_print_system_info()).strip()


def _library() -> Any:
    backend.start()
    try:
        from llama_cpp._ggml import libggml as lib
    except (ImportError, OSError, FileNotFoundError) as error:
        raise BackendError(f"this llama-cpp-python has no ggml library to ask: {error}") from error
    pointer, text, size = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "ggml_backend_dev_count": (size, []),
        "ggml_backend_dev_get": (pointer, [size]),
        "ggml_backend_dev_name": (text, [pointer]),
        "ggml_backend_dev_description": (text, [pointer]),
        "ggml_backend_dev_type": (ctypes.c_int, [pointer]),
        "ggml_backend_dev_memory": (None, [pointer, ctypes.POINTER(size), ctypes.POINTER(size)]),
        "ggml_backend_dev_backend_reg": (pointer, [pointer]),
        "ggml_backend_reg_name": (text, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(lib, name)
        except AttributeError as error:
            raise BackendError(f"this llama-cpp-python lacks {name}") from error
        function.restype, function.argtypes = result, arguments
    return lib


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


@contextmanager
def vocabulary(path: str) -> Iterator[Any]:
    """The native vocabulary of a file, without its weights; freed at the end of the block.

    Raises:
        BackendError: llama.cpp cannot read it.
    """
    backend.start()
    params = llama_cpp.llama_model_default_params()
    backend.set_field(params, "vocab_only", True)
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise BackendError(f"llama.cpp could not read {path}: {backend.last_log_error()}")
    try:
        yield llama_cpp.llama_model_get_vocab(model)
    finally:
        llama_cpp.llama_model_free(model)


class Allocated(NamedTuple):
    """What llama.cpp said it would allocate for one context, in bytes, by device."""

    compute: dict[str, int]
    kv_bytes: int
    state_bytes: int


_BUFFER = re.compile(r"(\S+)\s+compute buffer size\s*=\s*([\d.]+) MiB")
_KV = re.compile(r"llama_kv_cache\w*: size =\s*([\d.]+) MiB")
_STATE = re.compile(r"llama_memory_recurrent: size =\s*([\d.]+) MiB")


def dry_load(path: str, settings: Mapping[str, int]) -> Allocated:
    """Load `path` without its weights and make a context; nothing large is allocated.

    Run it in a process of its own: a llama.cpp that cannot simulate this model aborts.

    Args:
        settings: n_gpu_layers, and fields of llama_context_params.

    Raises:
        BackendError: the model or the context could not be made.
    """
    backend.start()
    params = llama_cpp.llama_model_default_params()
    for name, value in (("no_alloc", True), ("load_mode", 0), ("n_gpu_layers", settings["n_gpu_layers"])):
        backend.set_field(params, name, value)
    with _whole_log() as lines:
        model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not model:
            raise BackendError(f"llama.cpp could not read {path}: {backend.last_log_error()}")
        context = llama_cpp.llama_context_default_params()
        for name, value in settings.items():
            if name != "n_gpu_layers":
                backend.set_field(context, name, value)
        lines.clear()
        ctx = llama_cpp.llama_init_from_model(model, context)
        if not ctx:
            raise BackendError(f"llama.cpp could not plan a context: {''.join(lines)[-200:]}")
        log = "".join(lines)
        llama_cpp.llama_free(ctx)
        llama_cpp.llama_model_free(model)
    compute: dict[str, int] = {}
    for device, size in _BUFFER.findall(log):
        compute[device] = compute.get(device, 0) + _mib(size)
    return Allocated(compute, sum(map(_mib, _KV.findall(log))), sum(map(_mib, _STATE.findall(log))))


def _mib(text: str) -> int:
    return round(float(text) * 2**20)


@contextmanager
def _whole_log() -> Iterator[list[str]]:
    """All native log lines: `backend` keeps only the last few hundred."""
    lines: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def keep(_level: int, text: bytes, _data: Any) -> None:
        lines.append(text.decode("utf-8", "replace"))

    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    try:
        yield lines
    finally:
        backend.start()
