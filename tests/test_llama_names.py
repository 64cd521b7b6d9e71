"""Every parameter and public attribute of `llama_cpp.Llama` is honoured, refused by name, or without effect."""

from __future__ import annotations

import contextlib
import copy
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from conftest import Pair

from bench import audit_llama
from specgguf import BackendError, SpeculativeLlama, Unsupported
from specgguf.errors import ModelNotFound
from specgguf.llama_names import REFUSED
from specgguf.models import hf_client, hub, patterns
from specgguf.native import backend, keywords
from specgguf.native.weights import Weights


@pytest.fixture(scope="module")
def llm(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    with SpeculativeLlama(str(tiny_chat.target), n_ctx=256, n_batch=64, n_threads=1, n_threads_batch=1) as llm:
        yield llm


ATTRIBUTES = audit_llama.attributes(llama_cpp.Llama)


@pytest.mark.parametrize("name", sorted(name for name in ATTRIBUTES if name not in REFUSED))
def test_attributes_that_are_honoured(llm: SpeculativeLlama, name: str) -> None:
    assert hasattr(llm, name), f"{name} is neither here nor refused by name"


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_attributes_that_are_refused_by_name(llm: SpeculativeLlama, name: str) -> None:
    assert name in ATTRIBUTES, "it is gone from llama-cpp-python"
    with pytest.raises(Unsupported, match=f"^{name} is not supported: "):
        getattr(llm, name)
    assert not hasattr(llm, name)


# --- the audit ------------------------------------------------------------------------------------------------------

# A value of each parameter that is not its default, and, of those that are honoured, where it arrives.
MODEL, CONTEXT = "the parameters of the model", "those of the context that texts are decoded in"
TRIALS: dict[str, tuple[Any, ...]] = {
    "n_gpu_layers": (7, MODEL, 7),
    "split_mode": (0, MODEL, 0),
    "main_gpu": (1, MODEL, 1),
    "use_mlock": (True, MODEL, llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK, "load_mode"),
    "use_mmap": (False, MODEL, llama_cpp.LLAMA_LOAD_MODE_NONE, "load_mode"),
    "n_ctx": (128, CONTEXT, 128),
    "n_batch": (48, CONTEXT, 48),
    "n_ubatch": (32, CONTEXT, 32),
    "n_threads": (3, CONTEXT, 3),
    "n_threads_batch": (5, CONTEXT, 5),
    "rope_scaling_type": (llama_cpp.LLAMA_ROPE_SCALING_TYPE_LINEAR, CONTEXT, llama_cpp.LLAMA_ROPE_SCALING_TYPE_LINEAR),
    "rope_freq_base": (5000.0, CONTEXT, 5000.0),
    "rope_freq_scale": (0.5, CONTEXT, 0.5),
    "yarn_ext_factor": (0.5, CONTEXT, 0.5),
    "yarn_attn_factor": (0.5, CONTEXT, 0.5),
    "yarn_beta_fast": (16.0, CONTEXT, 16.0),
    "yarn_beta_slow": (2.0, CONTEXT, 2.0),
    "yarn_orig_ctx": (64, CONTEXT, 64),
    "offload_kqv": (False, CONTEXT, False),
    "flash_attn": (True, CONTEXT, llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED, "flash_attn_type"),
    "op_offload": (False, CONTEXT, False),
    "swa_full": (False, CONTEXT, False),
    "no_perf": (True, CONTEXT, True),
    "type_k": (0, CONTEXT, 0),
    "type_v": (0, CONTEXT, 0),
    # looked for in tests of their own
    "tensor_split": ([1.0],),
    "kv_overrides": ({"llama.context_length": 77},),
    "lora_path": ("/no/such.gguf",),
    "lora_scale": (0.5,),
    "numa": (True,),
    "seed": (5,),
    "chat_format": ("llama-2",),
    # refused, or without effect
    "vocab_only": (True,),
    "pooling_type": (llama_cpp.LLAMA_POOLING_TYPE_MEAN,),
    "attention_type": (llama_cpp.LLAMA_ATTENTION_TYPE_NON_CAUSAL,),
    "embedding": (True,),
    "last_n_tokens_size": (128,),
    "lora_base": ("base.gguf",),
    "chat_handler": (object(),),
    "draft_model": (object(),),
    "tokenizer": (object(),),
    "spm_infill": (True,),
    "logits_all": (True,),
    "verbose": (True,),
}
ARRIVE = [name for name, trial in TRIALS.items() if len(trial) > 1]


@pytest.fixture
def given(tiny_chat: Pair) -> Iterator[Callable[..., SpeculativeLlama]]:
    """given(name=value) -> an engine that was loaded so."""
    with contextlib.ExitStack() as stack:

        def load(**given: Any) -> SpeculativeLlama:
            smallest: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1}
            return stack.enter_context(SpeculativeLlama(str(tiny_chat.target), **smallest | given))

        yield load


def test_the_audit_accounts_for_every_name() -> None:
    entries = audit_llama.audit()
    assert [entry for entry in entries if entry.becomes == audit_llama.UNKNOWN] == []
    assert {entry.name for entry in entries} == {*ATTRIBUTES, *(f"{name}=" for name in audit_llama.parameters())}
    assert {"n_ctx", "spm_infill", "model_path"} <= set(audit_llama.parameters())
    assert {"n_tokens", "eval", "n_embd"} <= ATTRIBUTES


def test_the_audit_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit_llama.main() == 0
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()}
    assert len(lines) == len(audit_llama.audit())
    assert lines["n_ctx="].startswith("honoured: ")
    assert lines["spm_infill="].startswith("refused by name: ")
    assert lines["verbose="].startswith("inapplicable: ")


class Newer(llama_cpp.Llama):  # type: ignore[misc]
    """With a parameter and an attribute that nobody here has heard of."""

    def __init__(self, model_path: str, *, n_ctx: int = 512, warp: int = 0, **keywords: Any) -> None:
        self.warped = warp


def test_what_a_newer_llama_has_is_not_called_honoured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "Llama", Newer)
    assert audit_llama.main() == 1
    last = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith(audit_llama.UNKNOWN)]
    assert last == ["warp=", "warped"]


def test_every_parameter_has_a_trial() -> None:
    assert {"model_path", *TRIALS} == set(audit_llama.parameters())
    tried = {*keywords.REFUSED, *keywords.IGNORED, *audit_llama.HOW}
    assert tried == set(audit_llama.parameters())
    assert len(tried) == len(keywords.REFUSED) + len(keywords.IGNORED) + len(audit_llama.HOW), "one is in two tables"


@pytest.mark.parametrize("name", ARRIVE)
def test_a_parameter_that_is_honoured_arrives(
    given: Callable[..., SpeculativeLlama], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    made: list[Any] = []

    def recording(llama: Any, params: Any) -> Any:
        made.append(backend.copy_params(params))
        return new_context(llama, params)

    new_context = backend.new_context
    monkeypatch.setattr(backend, "new_context", recording)
    value, where, arrives, *field = TRIALS[name]
    llm = given(**{name: value})
    params = llm.model_params if where == MODEL else made[-1]
    assert getattr(params, *field or [name]) == arrives
    assert inspect.signature(llama_cpp.Llama.__init__).parameters[name].default != value


@pytest.mark.parametrize("name", sorted(keywords.REFUSED))
def test_a_parameter_that_is_refused(given: Callable[..., SpeculativeLlama], name: str) -> None:
    """For the draft, too; `Llama`'s own default, and None, are nothing to refuse."""
    for key in (name, f"draft_{name}"):
        if key != "draft_draft_model":
            with pytest.raises(Unsupported, match=f"^{key} is not supported: "):
                given(**{key: TRIALS[name][0]})
    default = inspect.signature(llama_cpp.Llama.__init__).parameters[name].default
    for value in (default, None):
        given(**{name: value}).create_completion("a", max_tokens=1)


@pytest.mark.parametrize("name", sorted(keywords.DRAFT_REFUSED))
def test_a_parameter_that_is_refused_of_the_draft_alone(given: Callable[..., SpeculativeLlama], name: str) -> None:
    with pytest.raises(Unsupported, match=f"^draft_{name} is not supported: "):
        given(**{f"draft_{name}": TRIALS[name][0]})
    given(**{name: TRIALS[name][0]})


@pytest.mark.parametrize("name", sorted(keywords.IGNORED))
def test_a_parameter_without_effect(
    given: Callable[..., SpeculativeLlama], capfd: pytest.CaptureFixture[str], name: str
) -> None:
    texts = [
        llm.create_completion("a", max_tokens=4, temperature=0.0)["choices"]
        for llm in (given(), given(**{name: TRIALS[name][0]}))
    ]
    assert texts[0] == texts[1]
    assert capfd.readouterr().err == ""


def test_parameters_that_arrive_elsewhere(
    given: Callable[..., SpeculativeLlama], monkeypatch: pytest.MonkeyPatch
) -> None:
    strategies: list[int] = []
    monkeypatch.setattr(llama_cpp.llama_cpp, "llama_numa_init", strategies.append)
    given(numa=TRIALS["numa"][0])
    assert strategies == [llama_cpp.GGML_NUMA_STRATEGY_DISTRIBUTE]

    split = given(tensor_split=TRIALS["tensor_split"][0])
    assert split.model_params.tensor_split[0] == 1.0
    overridden = given(kv_overrides=TRIALS["kv_overrides"][0], n_ctx=0)
    assert overridden.n_ctx() == 77
    assert given(lora_scale=TRIALS["lora_scale"][0]).lora_scale == 0.5
    with pytest.raises(BackendError, match=r"could not load the LoRA /no/such\.gguf"):
        given(lora_path=TRIALS["lora_path"][0])

    seed = TRIALS["seed"][0]
    first, second, other = (
        llm.create_completion("a", max_tokens=12, temperature=1.0)["choices"][0]["text"]
        for llm in (given(seed=seed), given(seed=seed), given(seed=seed + 1))
    )
    assert first == second != other

    messages: Any = [{"role": "user", "content": "a"}]
    named, own = given(chat_format=TRIALS["chat_format"][0]), given()
    assert b"[INST]" in named.detokenize(named.render(messages), special=True)
    assert b"[INST]" not in own.detokenize(own.render(messages), special=True)


# --- attributes -----------------------------------------------------------------------------------------------------


class Guarded:
    """A `Llama` whose calls are made while its file is kept open for them, and fail where it is not."""

    def __init__(self, weights: Weights) -> None:
        self._weights, self._llama = weights, weights.llama

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._llama, name)
        if not callable(value):
            return value

        def called(*arguments: Any) -> Any:
            assert threading.get_ident() in self._weights._users._depths, f"{name} is called outside of in_use"
            return value(*arguments)

        return called


def test_no_attribute_goes_native_while_another_thread_may_close_the_file(
    llm: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = llm._pair.weights
    monkeypatch.setattr(weights, "_llama", Guarded(weights))
    with pytest.raises(AssertionError, match="outside of in_use"):
        weights.llama.n_embd()
    for name in ("n_ctx", "n_vocab", "n_embd", "token_bos", "token_eos", "token_nl"):
        assert isinstance(getattr(llm, name)(), int)
    assert llm.detokenize(llm.tokenize(b"a word")) == b"a word"
    assert llm.tokenizer().decode(llm.tokenizer().encode("a word")) == "a word"
    for name in sorted(ATTRIBUTES - REFUSED.keys()):
        getattr(llm, name)


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
