"""What specgguf relies on in llama-cpp-python beyond its documented surface, in one place and checked at start.

Symbols, fields of native structures, private attributes, the package's chat formats, and the log texts that are
parsed. Whoever moves to another version reads this module and runs its contract test; the rest of `native` does not
know that any of it could be missing. It decides nothing and holds no state.
"""

from __future__ import annotations

import ctypes
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import llama_cpp
from llama_cpp import llama_chat_format

from specgguf.errors import BackendError, Unsupported

LLAMA: Any = llama_cpp.Llama  # programs put ours in its place
REQUIREMENT = 'pip install "llama-cpp-python>=0.3.36,<0.4"'

SYMBOLS = (
    "llama_batch llama_decode llama_get_logits llama_get_memory llama_memory_clear llama_memory_seq_rm "
    "llama_memory_seq_cp llama_memory_seq_pos_max llama_init_from_model llama_free "
    "llama_n_ctx llama_n_ubatch llama_n_rs_seq llama_n_seq_max llama_state_seq_get_data_ext "
    "llama_state_seq_set_data_ext llama_state_seq_get_size_ext llama_set_abort_callback llama_log_set "
    "llama_log_callback llama_progress_callback llama_supports_gpu_offload llama_set_adapters_lora "
    "llama_adapter_lora_p_ctypes llama_print_system_info llama_model_get_vocab llama_model_n_swa "
    "llama_model_is_recurrent llama_model_is_hybrid "
    "llama_model_load_from_file llama_model_free llama_model_default_params llama_context_default_params "
    "llama_vocab_type llama_vocab_n_tokens llama_vocab_bos llama_vocab_eos llama_vocab_get_add_bos "
    "llama_vocab_get_add_eos llama_vocab_get_text llama_vocab_is_eog llama_vocab_fim_pre llama_vocab_fim_suf "
    "llama_vocab_fim_mid llama_vocab_eot llama_tokenize llama_token llama_token_to_piece llama_vocab_get_attr "
    "LLAMA_TOKEN_ATTR_CONTROL LLAMA_TOKEN_ATTR_UNKNOWN LLAMA_TOKEN_ATTR_USER_DEFINED LLAMA_TOKEN_ATTR_BYTE"
).split()

FIELDS = {
    "llama_context_params": (
        "n_ctx n_batch n_ubatch n_seq_max n_outputs_max n_rs_seq n_threads n_threads_batch flash_attn_type type_k "
        "type_v swa_full kv_unified abort_callback"
    ).split(),
    "llama_model_params": (
        "n_gpu_layers load_mode vocab_only no_alloc devices tensor_buft_overrides progress_callback"
    ).split(),
    "llama_batch": "n_tokens token embd pos n_seq_id seq_id logits".split(),
}

# Of the class, and what its instances get while they load a file.
LLAMA_CLASS = "tokenize token_bos token_eos close model".split()
LLAMA_INSTANCE = "context_params metadata lora_scale _lora_adapter _model _ctx _batch _stack".split()

LOAD_FAILED = "failed to load model"  # the last error line of every failed load: says that, and not why
COMPUTE_BUFFER = re.compile(r"(\S+)\s+compute buffer size\s*=\s*([\d.]+) MiB")
KV_SIZE = re.compile(r"llama_kv_cache\w*: size =\s*([\d.]+) MiB")
STATE_SIZE = re.compile(r"llama_memory_recurrent: size =\s*([\d.]+) MiB")

_POINTER, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t

# Prediction heads: C++ functions that llama.cpp exports and promises nobody; looked up when heads are asked for.
# name -> (mangled by GCC and Clang, by MSVC, result, arguments)
HEAD_CALLS: dict[str, tuple[str, str, Any, list[Any]]] = {
    "llama_set_embeddings_nextn": (
        "_Z26llama_set_embeddings_nextnP13llama_contextbb",
        "?llama_set_embeddings_nextn@@YAXPEAUllama_context@@_N1@Z",
        None,
        [_POINTER, ctypes.c_bool, ctypes.c_bool],
    ),
    "llama_set_nextn_layer_offset": (
        "_Z28llama_set_nextn_layer_offsetP13llama_contexti",
        "?llama_set_nextn_layer_offset@@YAXPEAUllama_context@@H@Z",
        None,
        [_POINTER, ctypes.c_int32],
    ),
    "llama_get_embeddings_nextn": (
        "_Z26llama_get_embeddings_nextnP13llama_context",
        "?llama_get_embeddings_nextn@@YAPEAMPEAUllama_context@@@Z",
        ctypes.POINTER(ctypes.c_float),
        [_POINTER],
    ),
    "llama_get_ctx_other": (
        "_Z19llama_get_ctx_otherP13llama_context",
        "?llama_get_ctx_other@@YAPEAUllama_context@@PEAU1@@Z",
        _POINTER,
        [_POINTER],
    ),
}
HEAD_SYMBOLS = ("llama_model_n_layer_nextn", "llama_model_n_embd_out", "llama_model_n_embd_inp")
HEAD_FIELDS = {"llama_model_params": ["load_mtp"], "llama_context_params": ["ctx_type", "ctx_other"]}

GGML_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "ggml_backend_dev_count": (_SIZE, []),
    "ggml_backend_dev_get": (_POINTER, [_SIZE]),
    "ggml_backend_dev_name": (_TEXT, [_POINTER]),
    "ggml_backend_dev_description": (_TEXT, [_POINTER]),
    "ggml_backend_dev_type": (ctypes.c_int, [_POINTER]),
    "ggml_backend_dev_memory": (None, [_POINTER, ctypes.POINTER(_SIZE), ctypes.POINTER(_SIZE)]),
    "ggml_backend_dev_backend_reg": (_POINTER, [_POINTER]),
    "ggml_backend_reg_name": (_TEXT, [_POINTER]),
    "ggml_get_type_traits": (_POINTER, [ctypes.c_int]),
    "ggml_quantize_chunk": (
        _SIZE,
        [ctypes.c_int, _POINTER, _POINTER, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, _POINTER],
    ),
    "ggml_backend_reg_by_name": (_POINTER, [_TEXT]),
    "ggml_backend_reg_dev_count": (_SIZE, [_POINTER]),
    "ggml_backend_reg_dev_get": (_POINTER, [_POINTER, _SIZE]),
    "ggml_backend_reg_get_proc_address": (_POINTER, [_POINTER, _TEXT]),
    "ggml_backend_dev_by_type": (_POINTER, [ctypes.c_int]),
    "ggml_backend_dev_buffer_type": (_POINTER, [_POINTER]),
}


def version() -> str:
    """Of llama-cpp-python."""
    return str(getattr(llama_cpp, "__version__", "?"))


def check() -> None:
    """Raise BackendError, naming what is missing, unless this llama-cpp-python has all that is relied on."""
    for name in SYMBOLS:
        _require(llama_cpp, name, name)
    for structure, names in FIELDS.items():
        _require(llama_cpp, structure, structure)
        found = field_names(getattr(llama_cpp, structure))
        for name in names:
            if name not in found:
                raise _lacking(f"{structure}.{name}")
    for name in LLAMA_CLASS:
        _require(LLAMA, name, f"Llama.{name}")
    _require(llama_chat_format, "Jinja2ChatFormatter", "llama_chat_format.Jinja2ChatFormatter")
    chat_handlers()
    _require(getattr(llama_cpp.llama_cpp, "_lib", None), "llama_tokenize", "llama_cpp._lib.llama_tokenize")
    ggml()


def head_calls() -> dict[str, Callable[..., Any]]:
    """The calls that prediction heads need, typed, by name.

    Raises:
        Unsupported: one of them is missing.
    """
    found: dict[str, Callable[..., Any]] = {}
    missing = [name for name in HEAD_SYMBOLS if not hasattr(llama_cpp, name)]
    for structure, names in HEAD_FIELDS.items():
        missing += [f"{structure}.{name}" for name in names if name not in field_names(getattr(llama_cpp, structure))]
    for name, (*mangled, result, arguments) in HEAD_CALLS.items():
        for spelled in (name, *mangled):
            function = getattr(llama_cpp.llama_cpp._lib, str(spelled), None)
            if function is not None:
                function.restype, function.argtypes = result, arguments
                found[name] = function
                break
        else:
            missing.append(name)
    if missing:
        raise Unsupported(
            f"llama-cpp-python {version()} has no prediction heads: {missing[0]} is missing",
            hint=f"{REQUIREMENT}, or --draft off",
        )
    return found


def check_loaded(llama: Any) -> None:
    """The same for what a `Llama` has only once it holds a file."""
    for name in LLAMA_INSTANCE:
        _require(llama, name, f"Llama.{name}")
    _require(llama, "_stack", "Llama._stack")
    for part in ("_model", "_ctx", "_batch"):
        _require(getattr(llama, part), "_exit_stack", f"Llama.{part}._exit_stack")


def field_names(structure: Any) -> set[str]:
    """Of a ctypes structure, or its type."""
    return {field[0] for field in structure._fields_}


def _require(owner: Any, name: str, said: str) -> None:
    if not hasattr(owner, name):
        raise _lacking(said)


def _lacking(name: str) -> BackendError:
    return BackendError(f"llama-cpp-python {version()} lacks {name}", hint=REQUIREMENT)


# --- the Llama class --------------------------------------------------------------------------------------


class Untemplated(LLAMA):  # type: ignore[misc]
    """`llama_cpp.Llama`, seeing no chat template in a file: it would compile each while loading and fail over a broken
    one, where only who wants to chat needs them. It reads its own `metadata` for that, once it has set it."""

    all_metadata: dict[str, str]
    native_params: Mapping[str, Any] = {}  # fields of llama_model_params that `Llama` has no argument for

    def __init__(self, *args: Any, native_params: Mapping[str, Any] | None = None, **keywords: Any) -> None:
        self.native_params = native_params or {}
        super().__init__(*args, **keywords)

    @property
    def model_params(self) -> Any:
        return self.__dict__["model_params"]

    @model_params.setter
    def model_params(self, params: Any) -> None:
        for name, value in self.native_params.items():
            setattr(params, name, value)
        self.__dict__["model_params"] = params

    @property
    def metadata(self) -> dict[str, str]:
        return {k: v for k, v in self.all_metadata.items() if not k.startswith("tokenizer.chat_template")}

    @metadata.setter
    def metadata(self, values: dict[str, str]) -> None:
        self.all_metadata = values


def progress_callback(told: Callable[[float], bool]) -> Any:
    """A native callback that tells how much of a file is loaded, 0 to 1; loading ends where `told` returns False."""
    return llama_cpp.llama_progress_callback(lambda share, _data: told(share))


def llama_keywords() -> dict[str, Any]:
    """The keywords of `Llama` beside the file's path, with their defaults; it swallows unknown ones."""
    parameters = inspect.signature(LLAMA.__init__).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in ("self", "model_path", "kwargs")}


def lora_adapter(llama: Any) -> Any:
    """The native LoRA adapter that `llama` loaded; None without one, a null pointer where that failed unnoticed."""
    return llama._lora_adapter


def disown(llama: Any) -> None:
    """Let `llama` go without freeing anything: in a fork, freeing what lies on a GPU would end the process."""
    for part in (llama, llama._model, llama._ctx, llama._batch):
        (part._stack if part is llama else part._exit_stack).pop_all()


# --- chat formats -----------------------------------------------------------------------------------------


def chat_formatter(template: str, *, bos: str, eos: str, generate: bool) -> Callable[..., Any]:
    """A callable that renders `template`: (messages=…, tools=…, **switches) -> an object with `.prompt`.

    Args:
        generate: end the prompt with the beginning of an answer.

    Raises:
        jinja2.TemplateError: it is broken.
    """
    formatter: Callable[..., Any] = llama_chat_format.Jinja2ChatFormatter(
        template, eos_token=eos, bos_token=bos, add_generation_prompt=generate
    )
    return formatter


def chat_handlers() -> dict[str, Callable[..., Any]]:
    """llama-cpp-python's own chat formats by name."""
    try:
        handlers = llama_chat_format.LlamaChatCompletionHandlerRegistry()._chat_handlers
    except AttributeError:
        raise _lacking("llama_chat_format.LlamaChatCompletionHandlerRegistry()._chat_handlers") from None
    return dict(handlers)


# --- native libraries ------------------------------------------------------------------------------------


def tokenize_address() -> int:
    """Of the C function llama_tokenize, for libraries that call it themselves."""
    return int(ctypes.cast(llama_cpp.llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value or 0)


def ggml() -> Any:
    """The ggml library that llama.cpp was linked with, its functions typed."""
    try:
        from llama_cpp._ggml import libggml as lib
    except (ImportError, OSError):
        raise _lacking("its ggml library (llama_cpp._ggml.libggml)") from None
    for name, (result, arguments) in GGML_SIGNATURES.items():
        _require(lib, name, name)
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib
