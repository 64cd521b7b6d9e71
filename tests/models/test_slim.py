"""Slimmed drafts: logits of kept ids are the full model's, bit for bit; refusals; files that are whole or not there."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import models, requantize, tiny
from support.tiny_archs import write_dense

from specgguf import ConfigError, ModelNotFound, SamplingParams, SpecggufError, SpeculativeLlama, Unsupported
from specgguf.fit.slimming import cutting, size
from specgguf.fit.slimming.ranking import pieces, ranked_ids
from specgguf.models import header, hparams, slim
from specgguf.native import devices, vocab
from specgguf.native.context import Model
from specgguf.native.mapped.pair import vocab_map
from specgguf.native.mapped.slimmed import SlimmedWeights, open_draft
from specgguf.native.weights import Weights

WORDS = [f" word{i}" for i in range(40)] + [" the", " of", " list", "ing", "日本", " return", "def"]
THREAD = {"n_threads": 1, "n_threads_batch": 1}


def whole(vocab: tiny.Vocab) -> tiny.Vocab:
    """With so many more words that kernels take the same tiles as for real vocabularies: a multiple of 64."""
    n = -len(vocab) % 64 + 128
    more = [f"{'▁' if vocab.model == 'llama' else 'Ġ'}more{i}".encode() for i in range(n)]
    return dataclasses.replace(
        vocab,
        texts=[*vocab.texts, *more],
        types=[*vocab.types, *[tiny.NORMAL] * n],
        bias=np.append(vocab.bias, np.full(n, 0.5)),
    )


BPE, SENTENCEPIECE = whole(tiny.byte_level(WORDS)), whole(tiny.chat())
WRITERS: dict[str, Callable[[Path], Path]] = {
    "llama": lambda path: write_dense(path, BPE, "llama"),
    "llama tied": lambda path: write_dense(path, BPE, "llama", tied=True),
    "llama sentencepiece": lambda path: tiny.write_llama(path, SENTENCEPIECE),
    "qwen2": lambda path: write_dense(path, BPE, "qwen2"),
    "qwen2 tied": lambda path: write_dense(path, BPE, "qwen2", tied=True),
    "qwen3": lambda path: write_dense(path, BPE, "qwen3"),
    "qwen3 tied": lambda path: write_dense(path, BPE, "qwen3", tied=True),
    "smollm3": lambda path: write_dense(path, BPE, "smollm3"),
    "smollm3 tied": lambda path: write_dense(path, BPE, "smollm3", tied=True),
    "phi3": lambda path: write_dense(path, BPE, "phi3"),
    "phi3 tied": lambda path: write_dense(path, BPE, "phi3", tied=True),
    "gemma": lambda path: write_dense(path, SENTENCEPIECE, "gemma"),
    "gemma2": lambda path: write_dense(path, SENTENCEPIECE, "gemma2"),
    "gemma3": lambda path: tiny.write_gemma3(path, SENTENCEPIECE),
}


@pytest.fixture
def full(tmp_path: Path) -> Path:
    return WRITERS["qwen2"](tmp_path / "full.gguf")


def slimmed(full: Path, name: str = "slim.gguf", size: int = 300, **keywords: Any) -> Path:
    out = full.parent / name
    cutting.cut(full, out, size, **keywords)
    return out


def worst_difference(full: Path, cut: Path, chunk: int, text: str = "") -> float:
    """Of the logits of kept ids, over a text read in chunks, ids that were not kept among it."""
    one, other = Weights(str(full), THREAD), open_draft(str(cut), THREAD)
    assert isinstance(other, SlimmedWeights)
    contexts = [Model(weights, n_ctx=256, n_outputs_max=17) for weights in (one, other)]
    try:
        assert other.columns is not None
        ids = np.array(other.columns)
        tokens = list(range(0, one.n_vocab, 9))
        if text:
            tokens = one.tokenize(text.encode())
            assert tokens == other.tokenize(text.encode())
        assert set(tokens) - set(other.columns)
        worst = 0.0
        for start in range(0, len(tokens), chunk):
            part = tokens[start : start + chunk]
            wanted, got = (model.extend(part, len(part)) for model in contexts)
            assert got.shape == (len(part), len(ids))
            worst = max(worst, float(np.abs(wanted[:, ids] - got).max()))
        return worst
    finally:
        for model in contexts:
            model.close()
        other.close()
        one.close()


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("chunk", [1, 7])
def test_logits_of_kept_ids_are_the_full_models(tmp_path: Path, name: str, chunk: int) -> None:
    full = WRITERS[name](tmp_path / "full.gguf")
    assert worst_difference(full, slimmed(full, size=300), chunk) == 0.0


def test_every_architecture_is_tried() -> None:
    assert {name.split()[0] for name in WRITERS} == set(slim.ARCHITECTURES)


@pytest.mark.parametrize("name", ["gemma", "gemma2", "gemma3"])
def test_a_scale_forgotten_or_applied_twice_would_be_seen(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = WRITERS[name](tmp_path / "full.gguf")
    cut = slimmed(full, size=300)
    monkeypatch.setitem(slim.ARCHITECTURES, name, not slim.ARCHITECTURES[name])
    assert worst_difference(full, cut, 7) > 1e-3


@pytest.mark.real
@pytest.mark.parametrize("which", ["qwen", "smollm2", "gemma"])
def test_logits_of_real_models(which: str, tmp_path: Path) -> None:
    """Each architecture's real file, ids beyond the kept ones in the text."""
    full = requantize.q4_0(models.demo_pair()[1]) if which == "qwen" else getattr(models, which)()
    cut = tmp_path / "slim.gguf"
    cutting.cut(full, cut, 8192)
    text = "def reverse(head):\n    Straße 日本語 👍🏽 Übergrößenträger, أهلا: perspicacious lighthouse keepers\n"
    for chunk in (1, 6):
        assert worst_difference(full, cut, chunk, text) == 0.0


def test_another_output_matrix_would_be_seen(full: Path) -> None:
    cut = slimmed(full, head="q4_0")
    assert worst_difference(full, cut, 4) > 1e-3


def test_a_slimmed_draft_drafts(full: Path) -> None:
    """For its own full model: greedy text is plain."""
    with SpeculativeLlama(str(full), str(slimmed(full)), draft=4, n_ctx=256, strict=True, n_threads=1) as llm:
        assert llm.warnings == []
        prompt = llm.tokenize(b"the list of word1 word39")
        params = SamplingParams(temperature=0.0, max_tokens=60)
        plain, drafted = (
            [t for round in llm.generate(prompt, params, draft=k).rounds() for t in round.tokens] for k in ("off", 4)
        )
        assert drafted == plain
        assert llm.last_stats.draft_n_accepted > 10


def test_a_slimmed_draft_of_another_vocabulary(full: Path, tmp_path: Path) -> None:
    """Both maps in one: kept ids to those of equal bytes."""
    target = Weights(str(tiny.write_llama(tmp_path / "target.gguf", SENTENCEPIECE)), THREAD)
    draft = open_draft(str(slimmed(full)), THREAD)
    found = vocab_map(target, draft)
    assert found is not None
    assert draft.columns is not None
    for column, token in zip(found.columns.tolist(), found.ids.tolist(), strict=True):
        own = draft.columns[column]
        assert own in draft.eog or draft.piece(own) == target.piece(token)
    draft.close()
    target.close()


# --- what is kept -----------------------------------------------------------------------------------------


def test_what_every_draft_needs_is_kept(full: Path) -> None:
    found = slim.read(slimmed(full, size=256))
    assert found is not None
    assert found.source.resolve() == full.resolve()
    with devices.vocabulary(str(full)) as native:
        assert vocab.eog_tokens(native) <= set(found.ids)
    texts = slim.texts(full)
    assert {i for i, text in enumerate(texts) if len(text) == 1} <= set(found.ids)
    assert len(found.ids) % slim.STEP == 0
    assert list(found.ids) == sorted(set(found.ids))


def test_ids_come_by_rank_and_then_in_the_order_of_the_file() -> None:
    head = header.Header({"tokenizer.ggml.eos_token_id": 999}, (), 0)
    tokens = [f"token{i}" for i in range(1000)]
    kept = slim.kept_ids(head, tokens, [700, 800, 700], [3, 5000], 256)
    assert {999, 700, 800, 3} <= set(kept)
    assert kept[:251] == list(range(251))
    assert len(kept) == 256


def test_the_users_own_texts_come_first() -> None:
    def tokenize(text: bytes) -> list[int]:
        return [len(text) % 50] if b"zebra" not in text else [77]

    plain, own = (dict(ranked_ids(tokenize, 100, texts)) for texts in ([], ["zebra"]))
    assert max(own, key=lambda token: own[token]) == 77
    assert max(plain, key=lambda token: plain[token]) != 77
    assert sum(plain.values()) == pytest.approx(1.0) == sum(own.values())


def test_the_table_is_of_many_kinds_of_text() -> None:
    table = dict(pieces())
    for piece in (" the", "self", "return", "\n", "    ", "function", " und", " de", "\n\n", "(self"):
        assert table.get(piece, 0) > 0, piece


SIZES = [8192, 32768, 65536, 151_936]
STEP = size.StepTime(base_s=0.010, row_s=0.010 / 151_936)


@pytest.mark.parametrize(
    ("step", "accepted", "wanted"),
    [
        (STEP, [0.50, 0.78, 0.79, 0.80], 32768),  # nearly all is kept: the smaller step wins
        (STEP, [0.79, 0.80, 0.80, 0.80], 8192),
        (STEP, [0.10, 0.20, 0.30, 0.80], 151_936),  # nothing is kept: the whole draft
        (size.StepTime(0.020, 0.0), [0.60, 0.70, 0.75, 0.80], 151_936),  # a step is no faster
        (STEP, [0.01, 0.02, 0.02, 0.02], 151_936),  # drafting pays with none of them
    ],
)
def test_auto_takes_the_size_with_the_best_speed(step: size.StepTime, accepted: list[float], wanted: int) -> None:
    choice = size.best(step, SIZES, accepted)
    assert choice.best.n == wanted
    assert choice.pays == (wanted != SIZES[-1])
    assert ("no size pays" in choice.why) == (not choice.pays)


def test_auto_says_in_one_line_what_it_measured() -> None:
    why = size.best(STEP, SIZES, [0.50, 0.78, 0.79, 0.80]).why
    assert why.startswith("32,768 tokens: a step takes 12.2 ms instead of 20.0 here, and recorded answers keep 98%")
    assert "\n" not in why


def test_acceptance_is_the_chance_of_recorded_tokens(full: Path) -> None:
    """Of all ids, of a part of them, and of none that the text has: softmax by hand."""
    weights = open_draft(str(full), THREAD)
    model = Model(weights, n_ctx=128, n_outputs_max=16)
    tokens = weights.tokenize(b"the list of word1 word39 word1 the")
    rows = model.extend(tokens[:-1], len(tokens) - 1).astype(float)
    probs = np.exp(rows) / np.exp(rows).sum(axis=1, keepdims=True)
    right = [probs[i, token] for i, token in enumerate(tokens[1:])]
    some = [id for id in range(weights.n_vocab) if id != tokens[2]]
    others = sorted(set(range(weights.n_vocab)) - set(tokens))
    without = [
        0.0 if t == tokens[2] else p / (1 - probs[i, tokens[2]])
        for i, (p, t) in enumerate(zip(right, tokens[1:], strict=True))
    ]
    found = size.acceptance(model, [tokens], [list(range(weights.n_vocab)), some, others])
    assert found == pytest.approx([np.mean(right), np.mean(without), 0.0], abs=1e-6)
    model.close()
    weights.close()


def test_a_step_without_logits_is_what_a_smaller_matrix_cannot_save() -> None:
    class Timed:
        now = 0.0

        def extend(self, tokens: list[int], n_outputs: int) -> None:
            self.now += 0.030 if n_outputs else 0.010

        def clear(self) -> None:
            pass

    model = Timed()
    shape = dataclasses.replace(
        hparams.of_file(models.smollm2()), output_bytes=900, layer_bytes=(100,) * 9, n_vocab=100
    )
    step = size.step_time(model, shape, clock=lambda: model.now)  # type: ignore[arg-type]
    assert step.of(100) == pytest.approx(0.030)
    assert step.of(0) == pytest.approx(0.012)  # a tenth of the difference is the last layer's


def test_auto_measures_a_file(full: Path) -> None:
    choice = cutting.chosen(full, cutting.ranking_of(full))
    assert choice.whole.n > choice.best.n or not choice.pays
    assert choice.whole.step_s > 0


@pytest.mark.parametrize(("text", "size"), [("32k", 32768), ("8K", 8192), ("5000", 5000), ("auto", None)])
def test_sizes(text: str, size: int | None) -> None:
    assert cutting.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "32kb", "-5", "0", "many"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 32k, or auto"):
        cutting.parse_size(text)


# --- refusals, and files that are whole or not there --------------------------------------------------------


@pytest.fixture
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specgguf.models.inventory.models", list)


@pytest.mark.usefixtures("_elsewhere")
def test_a_slimmed_draft_needs_the_file_that_it_was_cut_from(full: Path) -> None:
    cut = slimmed(full)
    full.rename(full.with_name("other.gguf"))
    with pytest.raises(ModelNotFound, match=r"slim\.gguf was cut from full\.gguf") as caught:
        open_draft(str(cut), THREAD)
    assert "beside slim.gguf" in caught.value.hint
    WRITERS["qwen3"](full)
    with pytest.raises(ConfigError, match="another file by now"):
        open_draft(str(cut), THREAD)


def test_both_files_may_move_together(full: Path, tmp_path: Path) -> None:
    cut = slimmed(full)
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in (full, cut):
        path.rename(moved / path.name)
    found = slim.read(moved / cut.name)
    assert found is not None
    assert found.source == moved / "full.gguf"


def test_a_slimmed_draft_answers_nothing_by_itself(full: Path) -> None:
    with pytest.raises(Unsupported, match="cannot answer by itself"):
        SpeculativeLlama(str(slimmed(full)), n_ctx=64)


def test_what_cannot_be_slimmed_is_refused_by_name(full: Path, tmp_path: Path) -> None:
    hybrid = tiny.write_lfm2(tmp_path / "hybrid.gguf", tiny.chat())
    for path, says in ((hybrid, "architecture 'lfm2'"), (slimmed(full), "slimmed draft already")):
        with pytest.raises(Unsupported, match=says):
            cutting.cut(path, tmp_path / "out.gguf", 300)
    text = tmp_path / "text.gguf"
    text.write_text("no model")
    with pytest.raises(SpecggufError, match="not a GGUF file"):
        cutting.cut(text, tmp_path / "out.gguf", 300)
    with pytest.raises(ConfigError, match="nothing to slim"):
        cutting.cut(full, tmp_path / "out.gguf", 10_000)
    with pytest.raises(ConfigError, match="the draft itself"):
        cutting.cut(full, full, 300)
    with pytest.raises(SpecggufError, match=r"notes\.txt cannot be read"):
        cutting.cut(full, tmp_path / "out.gguf", 300, corpus=[tmp_path / "notes.txt"])
    assert not (tmp_path / "out.gguf").exists()


def test_an_output_with_a_bias_is_refused(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number for each token, which would have to be cut too."""
    found = header.read(full)
    biased = dataclasses.replace(found, tensors=(*found.tensors, header.Tensor("output.bias", (300,), 0, 0)))
    monkeypatch.setattr(header, "read", lambda *_, **__: biased)
    with pytest.raises(Unsupported, match="a bias for each token"):
        slim.check(full)


def test_a_full_disk_leaves_nothing_behind(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = slimmed(full)
    before = out.read_bytes()

    def no_space(*_: Any) -> bytes:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(slim, "_rows", no_space)
    with pytest.raises(SpecggufError, match="No space left") as caught:
        slimmed(full)
    assert "MiB are free" in caught.value.hint
    assert out.read_bytes() == before
    assert sorted(path.name for path in full.parent.iterdir()) == ["full.gguf", "slim.gguf"]


def test_the_same_cut_is_the_same_file(full: Path) -> None:
    assert slimmed(full, "a.gguf").read_bytes() == slimmed(full, "b.gguf").read_bytes()


def test_the_bits_of_a_head_tell_in_its_logits(tmp_path: Path) -> None:
    """ggml's own quantiser: q8_0 is nearer to the full matrix than q6_k, and that nearer than q4_0."""
    shape = tiny.Shape(n_embd=256, n_head=8, n_head_kv=8)
    full = tiny.write_llama(tmp_path / "full.gguf", BPE, shape=shape)
    off = [worst_difference(full, slimmed(full, f"{name}.gguf", head=name), 7) for name in ("q8_0", "q6_k", "q4_0")]
    assert 0.0 < off[0] < off[1] < off[2]


def test_other_heads_load(full: Path) -> None:
    sizes = [slimmed(full, f"{name}.gguf", head=name).stat().st_size for name in ("q8_0", "q4_0")]
    assert sizes[0] > sizes[1]
    with pytest.raises(SpecggufError, match="rows of 32 numbers cannot be stored as q6_k"):
        slimmed(full, "no.gguf", head="q6_k")
