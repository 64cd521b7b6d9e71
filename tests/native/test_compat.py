"""The contract with llama-cpp-python: all that is relied on exists here, and what does not is named at start.

Each entry of `compat`'s lists is taken away in turn. What a symbol does is tested where it is used; the log texts are
matched against what this version writes.
"""

from __future__ import annotations

import ast
import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from conftest import Pair
from llama_cpp import llama_chat_format
from support import tiny
from support.contexts import KEYWORDS

import specgguf.native
from specgguf.errors import BackendError
from specgguf.native import backend, compat, devices
from specgguf.native.context import Model
from specgguf.native.weights import Weights

NATIVE = sorted(Path(next(iter(specgguf.native.__path__))).glob("*.py"))


def refused(name: str, check: Callable[[], None] = backend.start) -> None:
    with pytest.raises(BackendError, match=f"{re.escape(compat.version())} lacks {re.escape(name)}$") as caught:
        check()
    assert caught.value.hint == 'pip install "llama-cpp-python>=0.3.36,<0.4"'


@pytest.fixture(scope="module")
def weights(tiny_chat: Pair) -> Iterator[Weights]:
    weights = Weights(str(tiny_chat.target), KEYWORDS)
    yield weights
    weights.close()


def test_this_version_has_everything(weights: Weights) -> None:
    compat.check()
    compat.check_loaded(weights.llama)


@pytest.mark.parametrize("name", compat.SYMBOLS)
def test_a_missing_symbol_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(llama_cpp, name)
    refused(name)


def test_every_symbol_that_is_called_is_checked() -> None:
    """What `native` reads of llama_cpp is in the lists: a new call cannot be forgotten there."""
    used = {
        node.attr
        for path in NATIVE
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "llama_cpp"
    }
    built = {f"llama_vocab_fim_{name}" for name in ("pre", "suf", "mid")}
    assert used | built == {*compat.SYMBOLS, "Llama", "llama_cpp"}


@pytest.mark.parametrize(("structure", "name"), [(s, n) for s, names in compat.FIELDS.items() for n in names])
def test_a_missing_field_is_named(structure: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = getattr(llama_cpp, structure)

    class Less(ctypes.Structure):
        _fields_ = [field for field in whole._fields_ if field[0] != name]

    monkeypatch.setattr(llama_cpp, structure, Less)
    refused(f"{structure}.{name}")


@pytest.mark.parametrize("name", compat.LLAMA_CLASS)
def test_a_missing_method_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(llama_cpp.Llama, name)
    refused(f"Llama.{name}")


class Bare:
    """A `Llama` without one of its attributes."""

    def __init__(self, llama: Any, without: str) -> None:
        self.__dict__ = {n: getattr(llama, n) for n in compat.LLAMA_INSTANCE if n != without}


@pytest.mark.parametrize("name", compat.LLAMA_INSTANCE)
def test_a_missing_attribute_of_a_loaded_file_is_named(name: str, weights: Weights) -> None:
    bare = Bare(weights.llama, name)
    refused(f"Llama.{name}", lambda: compat.check_loaded(bare))


@pytest.mark.parametrize("part", ["_model", "_ctx", "_batch"])
def test_a_part_that_does_not_free_itself_as_expected_is_named(part: str, weights: Weights) -> None:
    bare = Bare(weights.llama, "")
    setattr(bare, part, object())
    refused(f"Llama.{part}._exit_stack", lambda: compat.check_loaded(bare))


def test_missing_chat_formats_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.delattr(llama_chat_format, "Jinja2ChatFormatter")
        refused("llama_chat_format.Jinja2ChatFormatter")
    monkeypatch.setattr(llama_chat_format, "LlamaChatCompletionHandlerRegistry", object)
    refused("llama_chat_format.LlamaChatCompletionHandlerRegistry()._chat_handlers")


def test_a_missing_tokenize_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function itself, which other libraries call."""
    assert compat.tokenize_address() > 0
    monkeypatch.setattr(llama_cpp.llama_cpp, "_lib", object())
    refused("llama_cpp._lib.llama_tokenize")


def test_a_missing_ggml_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import llama_cpp._ggml

    class Some:
        ggml_backend_dev_count = ctypes.c_int

    with monkeypatch.context() as patch:
        patch.setattr(llama_cpp._ggml, "libggml", Some)
        refused("ggml_backend_dev_get")
    monkeypatch.delattr(llama_cpp._ggml, "libggml")
    refused("its ggml library (llama_cpp._ggml.libggml)")


def test_keywords_are_those_of_the_class() -> None:
    known = compat.llama_keywords()
    assert {"n_ctx", "n_gpu_layers", "lora_path", "swa_full", "type_k", "chat_format"} <= known.keys()
    assert not known.keys() & {"self", "model_path", "kwargs"}
    assert (known["n_ctx"], known["last_n_tokens_size"], known["spm_infill"]) == (512, 64, False)


def test_templates_are_not_seen_while_a_file_is_loaded(weights: Weights) -> None:
    key = "tokenizer.chat_template"
    assert weights.metadata[key] == tiny.CHAT_TEMPLATE
    assert key not in weights.llama.metadata
    assert "general.architecture" in weights.llama.metadata


def test_chat_formats_render() -> None:
    text = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    for generate, end in ((True, ">"), (False, "")):
        formatter = compat.chat_formatter(text, bos="<s>", eos="</s>", generate=generate)
        assert formatter(messages=[{"role": "user", "content": "hi"}]).prompt == f"<s>hi{end}"
    assert {"chatml", "gemma", "llama-2"} <= set(compat.chat_handlers())


def test_the_texts_that_are_parsed_are_written(weights: Weights, tiny_recurrent: Pair) -> None:
    with backend.captured_log() as lines:
        Model(weights, n_ctx=64).close()
    log = "".join(lines)
    assert compat.COMPUTE_BUFFER.search(log)
    assert compat.KV_SIZE.search(log)
    planned = devices.dry_load(str(tiny_recurrent.target), {"n_gpu_layers": 0, "n_ctx": 64})
    assert planned.state_bytes > 0


def test_a_failed_load_ends_with_the_line_that_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "head.gguf").write_bytes(b"GGUF\3\0\0\0")
    with backend.captured_log() as lines, pytest.raises(BackendError):
        Weights(str(tmp_path / "head.gguf"), KEYWORDS)
    assert compat.LOAD_FAILED in "".join(lines)
