"""From files and keywords to a pair: what is taken, shared, refused, warned about, and closed again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from support import models, tiny

from specgguf import BackendError, ConfigError, ModelNotFound, Unsupported, VocabMismatch, loading
from specgguf.config import DraftConfig
from specgguf.loading import open_pair, physical_cores
from specgguf.native import backend
from specgguf.native.context import Context
from specgguf.native.weights import Weights

OFF = DraftConfig(draft=3)  # a fixed length: nothing is measured at load


class Opener:
    """Opens pairs and closes them at the end."""

    def __init__(self, pair: Pair) -> None:
        self.target, self.draft = str(pair.target), str(pair.draft)
        self.open: list[loading.LoadedPair] = []

    def given(self, key: str, value: Any) -> loading.LoadedPair:
        keywords: dict[str, Any] = {key: value}
        return self(**keywords)

    def __call__(
        self, draft: str | None = "", *, config: DraftConfig = OFF, strict: bool = False, **keywords: Any
    ) -> loading.LoadedPair:
        keywords = {"n_ctx": 256, "n_threads": 1, **keywords}
        path = self.draft if draft == "" else draft
        self.open.append(open_pair(self.target, path, config, strict=strict, keywords=keywords))
        return self.open[-1]


@pytest.fixture
def opener(tiny_pair: Pair) -> Iterator[Opener]:
    opener = Opener(tiny_pair)
    yield opener
    for pair in opener.open:
        pair.close()


# --- keywords -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "hint"),
    [("n_gpu_layer", "n_gpu_layers"), ("draft_n_thread", "draft_n_threads"), ("nctx", "n_ctx"), ("zzzzzzzz", "")],
)
def test_an_unknown_keyword_is_refused(opener: Opener, key: str, hint: str) -> None:
    """`llama_cpp.Llama` would swallow it."""
    with pytest.raises(ConfigError, match=f"unknown keyword '{key}'") as caught:
        opener.given(key, 1)
    assert caught.value.hint == (f"did you mean '{hint}'?" if hint else "")


@pytest.mark.parametrize(
    "key", ["embedding", "vocab_only", "chat_handler", "tokenizer", "draft_model", "draft_embedding"]
)
def test_what_is_not_done_is_refused_by_name(opener: Opener, key: str) -> None:
    with pytest.raises(Unsupported, match=f"^{key} is not supported: "):
        opener.given(key, True)
    opener.given(key, None)


def test_keywords_reach_the_side_that_they_are_for(opener: Opener) -> None:
    pair = opener(
        n_ctx=200, draft_n_ctx=100, n_batch=64, draft_n_batch=48, type_k="f32", type_v="f32", rope_freq_base=5000.0
    )
    target, draft = pair.engine.target, pair.engine.draft_model
    assert draft is not None
    assert (target.n_ctx, draft.n_ctx) == (200, 100)
    assert (target.context.n_batch, draft.context.n_batch) == (64, 48)
    assert pair.weights.llama.context_params.rope_freq_base == 5000.0
    assert pair.draft_weights is not None
    assert pair.draft_weights.llama.context_params.rope_freq_base != 5000.0


def test_the_draft_takes_the_targets_threads_and_context(opener: Opener) -> None:
    pair = opener(n_ctx=192, n_threads=3, n_threads_batch=5)
    assert pair.draft_weights is not None
    assert (pair.draft_weights.llama.n_threads, pair.draft_weights.llama.n_threads_batch) == (3, 5)
    assert pair.engine.draft_model is not None
    assert pair.engine.draft_model.n_ctx == 192
    own = opener(n_threads=3, draft_n_threads=1)
    assert own.draft_weights is not None
    assert own.draft_weights.llama.n_threads == 1


def test_what_is_ours_to_decide_is_taken_and_ignored(opener: Opener) -> None:
    """Rows are computed where they are needed; native logs are kept off stderr."""
    pair = opener(logits_all=True, verbose=True)
    assert not pair.weights.llama._logits_all
    assert not pair.weights.llama.verbose


@pytest.mark.parametrize("key", ["type_k", "draft_type_v"])
def test_cache_types_have_names(opener: Opener, key: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{key} must be one of f32, f16, .*, not 'q9'"):
        opener.given(key, "q9")
    for number in (999, -1, 4, 1.5):  # llama.cpp would end the process
        with pytest.raises(ConfigError, match=f"^{key} must be one of "):
            opener.given(key, number)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("n_ctx", -1),
        ("n_ctx", 2**33),
        ("n_batch", 0),
        ("draft_n_ctx", 1.5),
        ("draft_n_ubatch", "8"),
        ("n_threads", "2"),
        ("draft_n_gpu_layers", "all"),
    ],
)
def test_sizes_are_whole_numbers(opener: Opener, key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{key} must be a whole number"):
        opener.given(key, value)


@pytest.mark.parametrize("key", ["n_ctx", "draft_n_ctx"])
def test_a_context_holds_two_tokens(opener: Opener, key: str) -> None:
    with pytest.raises(ConfigError, match="n_ctx must be 0 or at least 2, not 1"):
        opener.given(key, 1)
    opener.given(key, 2)


@pytest.mark.parametrize("key", ["lora_path", "draft_lora_path"])
@pytest.mark.parametrize("name", ["no.gguf", "text.gguf"])
def test_a_lora_that_cannot_be_read_is_named(opener: Opener, key: str, name: str, tmp_path: Path) -> None:
    """`llama_cpp.Llama` passes the null pointer on."""
    path = tmp_path / name
    if name == "text.gguf":
        path.write_text("no LoRA")
    with pytest.raises(BackendError, match=f"could not load the LoRA .*{name}"):
        opener.given(key, str(path))


@pytest.mark.parametrize(("n_batch", "n_ubatch"), [(1, 1), (3, 512), (4096, 7)])
def test_any_batch_size_holds_a_verify_pass(opener: Opener, n_batch: int, n_ubatch: int) -> None:
    """Seventeen rows at once: llama.cpp would abort the process on a batch that is too small."""
    pair = opener(config=DraftConfig(draft=16), n_batch=n_batch, n_ubatch=n_ubatch)
    for model in (pair.engine.target, pair.engine.draft_model):
        assert model is not None
        assert 17 <= model.context.n_batch <= 256
        assert model.extend([5] * 40, 17).shape == (17, 8)


# --- graphics cards -----------------------------------------------------------------------------------------------


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The layers that `Llama` was asked to offload, per file; nothing is loaded with them."""
    asked: list[Any] = []
    make = Weights.__init__

    def recording(weights: Weights, path: str, keywords: Any = None) -> None:
        asked.append(keywords["n_gpu_layers"])
        make(weights, path, {**keywords, "n_gpu_layers": 0})

    monkeypatch.setattr(Weights, "__init__", recording)
    return asked


def test_layers_for_a_build_without_a_gpu_are_a_loud_warning(
    opener: Opener, layers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "supports_gpu_offload", lambda: False)
    pair = opener(n_gpu_layers=20, draft_n_gpu_layers=-1)
    assert len(pair.warnings) == 2
    for warning, name in zip(pair.warnings, ("n_gpu_layers=20", "draft_n_gpu_layers=-1"), strict=True):
        assert warning.startswith(f"WARNING: {name} ")
        assert "CPU only" in warning
        assert 'CMAKE_ARGS="-DGGML_CUDA=on" pip install' in warning
    assert opener().warnings == opener(n_gpu_layers=0).warnings == []
    assert layers[2:] == [0, 0, 0, 0]


def test_a_build_with_a_gpu_offloads_everything_unless_told_otherwise(
    opener: Opener, layers: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "supports_gpu_offload", lambda: True)
    assert opener().warnings == opener(n_gpu_layers=7, draft_n_gpu_layers=0).warnings == []
    assert layers == [-1, -1, 7, 0]


# --- pairs --------------------------------------------------------------------------------------------------------


def test_kinds_of_drafts(opener: Opener) -> None:
    with_model, ngrams, alone = opener(), opener("ngram"), opener(None)
    assert with_model.engine.has_drafter
    assert with_model.engine.off_reason == ngrams.engine.off_reason == ""
    assert ngrams.engine.has_ngrams
    assert ngrams.draft_weights is None
    assert not ngrams.engine.has_drafter
    assert not alone.engine.has_drafter
    assert not alone.engine.has_ngrams
    assert alone.engine.off_reason == "no draft model"
    assert alone.warnings == [], "nobody asked for a draft"


def test_a_file_as_its_own_draft_is_loaded_once(opener: Opener, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(opener.target)
    for path in (opener.target, str(link)):
        pair = opener(path)
        assert pair.draft_weights is pair.weights
        assert pair.engine.draft_model is not None
        assert pair.engine.draft_model.weights is pair.weights
    other = opener(opener.target, draft_use_mmap=False)
    assert other.draft_weights is not pair.weights


@pytest.mark.parametrize("strict", [False, True])
def test_strict_pads_single_tokens(opener: Opener, strict: bool) -> None:
    pair = opener(strict=strict)
    assert pair.engine.draft_model is not None
    assert pair.engine.target.context.pad_to == pair.engine.draft_model.context.pad_to == 1 + strict


def test_native_rollback_is_asked_for_where_something_drafts(tiny_hybrid: Pair) -> None:
    opener = Opener(tiny_hybrid)
    assert opener(config=DraftConfig(draft=7)).engine.target.rollback.name == "native"
    draft = opener.open[0].engine.draft_model
    assert draft is not None
    assert draft.rollback.name == "checkpoint", "a draft decodes single tokens"
    assert opener(None).engine.target.rollback.name == "checkpoint"
    for pair in opener.open:
        pair.close()


# --- what cannot be loaded ----------------------------------------------------------------------------------------


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was closed, in order."""
    order: list[str] = []
    for cls in (Context, Weights):
        close = cls.close

        def closing(part: Any, close: Any = close, name: str = cls.__name__) -> None:
            path = part.path if name == "Weights" else part.weights.path
            order.append(f"{name} {'draft' if 'draft' in path else 'target'}")
            close(part)

        monkeypatch.setattr(cls, "close", closing)
    return order


def test_the_draft_is_closed_first(opener: Opener, closed: list[str]) -> None:
    opener()
    opener.open.pop().close()
    assert closed == ["Context draft", "Context target", "Weights draft", "Weights target"]


def broken(folder: Path, name: str, source: str) -> tuple[str, type[Exception], str]:
    """A path that cannot be loaded, the error, and what it says."""
    path = folder / f"{name}-draft.gguf"
    data = Path(source).read_bytes()
    if name == "missing":
        return str(path), ModelNotFound, "no such file"
    path.write_bytes({"truncated": data[: len(data) // 2], "text": b"not a model", "folder": b""}[name])
    if name == "folder":
        path.unlink()
        path.mkdir()
        return str(path), ModelNotFound, "is a folder"
    return str(path), BackendError, "not a GGUF file" if name == "text" else "could not load"


@pytest.mark.parametrize("name", ["missing", "truncated", "text", "folder"])
def test_a_draft_that_cannot_be_loaded(opener: Opener, tmp_path: Path, name: str, closed: list[str]) -> None:
    """The message names the file and the fault; the target that was loaded before it is freed."""
    path, error, says = broken(tmp_path, name, opener.draft)
    with pytest.raises(error, match=says) as caught:
        opener(path)
    assert path in str(caught.value)
    assert closed == ["Weights target"]


def test_a_draft_of_another_vocabulary_is_mapped(opener: Opener, tmp_path: Path) -> None:
    """Said with the part that both have."""
    path = tiny.write_llama(tmp_path / "other.gguf", tiny.byte_level(["ab"]))
    pair = opener(str(path))
    assert pair.warnings == [
        "3% of other.gguf's tokens are the target's; it may draft these alone: acceptance is lower"
    ]


def test_a_draft_of_another_vocabulary_that_is_not_wanted(opener: Opener, tiny_chat: Pair, closed: list[str]) -> None:
    with pytest.raises(VocabMismatch) as caught:
        opener(str(tiny_chat.draft), config=DraftConfig(draft=3, vocab="same"))
    assert str(tiny_chat.draft) in str(caught.value)
    assert opener.target in str(caught.value)
    assert closed == ["Weights draft", "Weights target"]


def test_a_context_that_cannot_be_made_says_what_to_do(
    opener: Opener, monkeypatch: pytest.MonkeyPatch, closed: list[str]
) -> None:
    def refuse(llama: Any, params: Any) -> Any:
        raise BackendError("llama.cpp could not create a context: out of memory")

    monkeypatch.setattr(backend, "new_context", refuse)
    with pytest.raises(BackendError, match="out of memory") as caught:
        opener()
    assert "--n-ctx" in caught.value.hint
    assert closed == ["Context target", "Weights draft", "Weights target"]


@pytest.mark.real
def test_smollm2_is_refused_for_qwen_where_the_vocabulary_must_be_the_same() -> None:
    """The first token that differs is named."""
    qwen, smollm = str(models.demo_pair()[1]), str(models.smollm2())
    with pytest.raises(VocabMismatch, match=r"smollm2|SmolLM2") as caught:
        open_pair(qwen, smollm, DraftConfig(draft=3, vocab="same"), keywords={"n_ctx": 64})
    assert "token " in str(caught.value)
    assert "in the target and" in str(caught.value)


def test_cores() -> None:
    assert physical_cores() >= 1
