"""The few calls of ggml that its RPC backend needs, typed. A build without that backend has none of them.

It decides nothing: who connects to which worker, and when, is `child`'s; who serves is the worker's command's.
"""

from __future__ import annotations

import ctypes
from typing import Any

from specgguf.errors import BackendError, Unsupported
from specgguf.native import backend, compat

from . import keepalive
from .wire import Endpoint

INSTALL = 'CMAKE_ARGS="-DGGML_RPC=on" pip install --force-reinstall --no-cache-dir llama-cpp-python'
_CPU, _GPUS = 0, (1, 2)
_OUTPUT = b"^(output|token_embd)\\.weight$"  # the output matrix, under its own name or that of the one it is tied to


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override"""

    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def has_rpc() -> bool:
    """Whether this llama-cpp-python was built with the RPC backend."""
    return bool(_ggml().ggml_backend_reg_by_name(b"RPC"))


def require_rpc() -> None:
    """Raise Unsupported, with the line that installs it, unless `has_rpc`."""
    if not has_rpc():
        raise Unsupported("this llama-cpp-python was built without RPC: it knows only this machine", hint=INSTALL)


def start_server(endpoint: Endpoint, cache: str | None, n_threads: int) -> None:
    """Serve this machine's GPUs, or its CPU where it has none. Comes back only where it could not begin."""
    keepalive.watch(lambda connection: connection.getsockname()[1] == endpoint.port)
    devices = local_gpus() or [_ggml().ggml_backend_dev_by_type(_CPU)]
    signature = ctypes.CFUNCTYPE(
        None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    )
    start = signature(_function(b"ggml_backend_rpc_start_server"))
    start(
        str(endpoint).encode(),
        cache.encode() if cache else None,
        n_threads,
        len(devices),
        (ctypes.c_void_p * len(devices))(*devices),
    )


def local_gpus() -> list[int]:
    """Handles of this machine's GPUs."""
    lib = _ggml()
    devices = [lib.ggml_backend_dev_get(index) for index in range(int(lib.ggml_backend_dev_count()))]
    return [device for device in devices if int(lib.ggml_backend_dev_type(device)) in _GPUS]


def connect(endpoint: Endpoint) -> list[int]:
    """Handles of a worker's devices. The process ends if nothing answers there: see `wire.ask`."""
    add_server = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(_function(b"ggml_backend_rpc_add_server"))
    registry = add_server(str(endpoint).encode())
    if not registry:
        raise BackendError(f"worker {endpoint} has no devices")
    lib = _ggml()
    return [lib.ggml_backend_reg_dev_get(registry, n) for n in range(int(lib.ggml_backend_reg_dev_count(registry)))]


def placed_params(devices: list[int], *, output_on_cpu: bool) -> dict[str, Any]:
    """Fields of llama_model_params: layers on these devices alone, and the output matrix on the CPU if wanted.
    The arrays must live while the file is loaded, so whoever loads keeps this dict."""
    listed = (ctypes.c_void_p * (len(devices) + 1))(*devices, None)
    params: dict[str, Any] = {"devices": ctypes.addressof(listed)}
    kept: list[Any] = [listed]
    if output_on_cpu:
        lib = _ggml()
        buffer_type = lib.ggml_backend_dev_buffer_type(lib.ggml_backend_dev_by_type(_CPU))
        overrides = (_Override * 2)(_Override(_OUTPUT, buffer_type), _Override(None, None))
        params["tensor_buft_overrides"] = ctypes.addressof(overrides)
        kept.append(overrides)
    _kept.extend(kept)
    return params


_kept: list[Any] = []  # one model a process: its lists stay as long as it


def _function(name: bytes) -> int:
    require_rpc()
    lib = _ggml()
    address = lib.ggml_backend_reg_get_proc_address(lib.ggml_backend_reg_by_name(b"RPC"), name)
    if not address:
        raise BackendError(f"llama-cpp-python {compat.version()} lacks {name.decode()}", hint=compat.REQUIREMENT)
    return int(address)


def _ggml() -> Any:
    backend.start()
    return compat.ggml()
