"""Every parameter and public attribute of `llama_cpp.Llama` is honoured, refused by name, or without effect."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from conftest import Pair

from specgguf import SpeculativeLlama, Unsupported, loading
from specgguf.errors import ModelNotFound
from specgguf.llama_names import REFUSED
from specgguf.models import hf_client, hub, patterns


@pytest.fixture(scope="module")
def llm(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    with SpeculativeLlama(str(tiny_chat.target), n_ctx=256, n_batch=64, n_threads=1, n_threads_batch=1) as llm:
        yield llm


def attributes() -> set[str]:
    """Public names of the class, and those that its constructor sets."""
    assigned = re.findall(r"self\.([a-z]\w*)\s*(?::[^=\n]+)?=", inspect.getsource(llama_cpp.Llama.__init__))
    return {name for name in dir(llama_cpp.Llama) if not name.startswith("_")} | set(assigned)


def audit() -> dict[str, str]:
    """What becomes of each parameter ("name=") and attribute ("name")."""
    found = {}
    for name in list(inspect.signature(llama_cpp.Llama.__init__).parameters)[1:-1]:
        if name in loading.REFUSED:
            found[f"{name}="] = "refused"
        else:
            found[f"{name}="] = "without effect" if name in loading.IGNORED else "honoured"
    for name in attributes():
        found[name] = "refused" if name in REFUSED else "honoured"
    return found


@pytest.mark.parametrize("name", sorted(name for name in attributes() if name not in REFUSED))
def test_attributes_that_are_honoured(llm: SpeculativeLlama, name: str) -> None:
    assert hasattr(llm, name), f"{name} is neither here nor refused by name"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_attributes_that_are_refused_by_name(llm: SpeculativeLlama, name: str) -> None:
    assert name in attributes(), "it is gone from llama-cpp-python"
    with pytest.raises(Unsupported, match=f"^{name} is not supported: "):
        getattr(llm, name)
    assert not hasattr(llm, name)


def test_nothing_is_left_out_of_the_audit() -> None:
    found = audit()
    assert found["embedding="] == found["eval"] == "refused"
    assert found["verbose="] == "without effect"
    assert found["n_ctx="] == found["n_tokens"] == "honoured"
    assert set(loading.REFUSED) | set(loading.IGNORED) <= {name.rstrip("=") for name in found if name.endswith("=")}


def test_a_name_that_nobody_has_is_an_attribute_error(llm: SpeculativeLlama) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'n_contexts'"):
        llm.n_contexts  # noqa: B018


def test_values(llm: SpeculativeLlama, tiny_chat: Pair) -> None:
    theirs = llama_cpp.Llama(str(tiny_chat.target), n_ctx=256, n_batch=64, n_threads=1, verbose=False)
    assert (llm.n_embd(), llm.n_batch, llm.n_threads) == (theirs.n_embd(), theirs.n_batch, theirs.n_threads)
    assert llm.tokenizer().encode("a word") == theirs.tokenizer().encode("a word")
    assert llm.tokenizer().decode(llm.tokenizer().encode("a word")) == "a word"
    assert llm.model_params.n_gpu_layers == theirs.model_params.n_gpu_layers
    theirs.close()
    llm.create_completion("a word", max_tokens=4)
    assert llm.n_tokens > 0


def test_it_is_pickled_by_path(llm: SpeculativeLlama) -> None:
    with pickle.loads(pickle.dumps(llm)) as again:
        assert (again.n_ctx(), again.n_batch) == (256, 64)
        ours, theirs = (one.create_completion("a", max_tokens=4, temperature=0.0) for one in (llm, again))
        assert ours["choices"] == theirs["choices"]
    with pytest.raises(Unsupported, match="not copied"):
        copy.deepcopy(llm)


def test_it_stands_in_for_llama(tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "Llama", SpeculativeLlama)
    llm = llama_cpp.Llama(
        model_path=str(tiny_chat.target), n_gpu_layers=0, n_ctx=128, verbose=True, logits_all=False, embedding=False
    )
    with llm:
        assert llm("a", max_tokens=2)["choices"][0]["finish_reason"] == "length"


FILES = {"a-q8_0.gguf": "", "a-q4_0.gguf": "", "big-q2_k-00001-of-00002.gguf": "", "big-q2_k-00002-of-00002.gguf": ""}


def test_files_by_a_pattern(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hf_client, "list_files", lambda repo: ("main", FILES))
    asked: list[str] = []

    def resolve(ref: str, **_: Any) -> Path:
        asked.append(ref)
        path = tmp_path / "cache" / ref.partition(":")[2]
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"GGUF")
        return path

    monkeypatch.setattr(hub, "resolve", resolve)
    assert patterns.resolve("o/r", "*q8_0.gguf", offline=False).name == "a-q8_0.gguf"
    assert patterns.match("o/r", "*q2_k*", offline=False) == "big-q2_k-00001-of-00002.gguf"
    for pattern, says in (("*.gguf", "several files match"), ("*q9*", "no file matches")):
        with pytest.raises(ModelNotFound, match=says) as caught:
            patterns.resolve("o/r", pattern, offline=False)
        assert "a-q4_0.gguf" in caught.value.hint
    there = patterns.resolve("o/r", "*q8_0.gguf", local_dir=tmp_path / "mine", offline=False)
    assert there == tmp_path / "mine" / "a-q8_0.gguf"
    n = len(asked)
    assert patterns.resolve("o/r", "*q8_0.gguf", local_dir=tmp_path / "mine", offline=False) == there
    assert len(asked) == n, "taken from there"
