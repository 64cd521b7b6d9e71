"""ggml's list of devices and llama.cpp's dry load: the calls that `backend` does not need for decoding.

Typed and without state, like `backend`. Importing this module loads llama-cpp-python; asking for the devices
initialises the GPU drivers that it was built with.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import llama_cpp

from specgguf.errors import BackendError

from . import backend, compat

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
    return compat.version(), _text(llama_cpp.llama_print_system_info()).strip()


def _library() -> Any:
    backend.start()
    return compat.ggml()


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
    with backend.captured_log() as lines:
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
    for device, size in compat.COMPUTE_BUFFER.findall(log):
        compute[device] = compute.get(device, 0) + _mib(size)
    return Allocated(
        compute, sum(map(_mib, compat.KV_SIZE.findall(log))), sum(map(_mib, compat.STATE_SIZE.findall(log)))
    )


def _mib(text: str) -> int:
    return round(float(text) * 2**20)
