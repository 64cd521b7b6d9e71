"""Prediction heads from the file to the answer: who is refused, in which words, and that the programs take them."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Pair
from specgguf.presets import HEADS
from support.tiny import SMALL, chat
from support.tiny_heads import agreeing_by_attention, write_hy_v3, write_qwen35

from specgguf import SamplingParams, SpeculativeLlama
from specgguf.control.costs import Costs
from specgguf.errors import Unsupported
from specgguf.fit.pair_choice import choose_pair, here
from specgguf.models import header
from specgguf.models.nextn import prediction_heads
from specgguf.native import compat


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that agrees with its target."""
    path = tmp_path_factory.mktemp("heads") / "agrees.gguf"
    return write_hy_v3(path, chat(), shape=replace(SMALL, n_layer=1), given=agreeing_by_attention(chat()))


@pytest.mark.parametrize("n_parallel", [1, 2])
def test_answers_are_drafted_and_survive_saving(file: Path, n_parallel: int) -> None:
    with SpeculativeLlama(str(file), "heads", draft=3, n_ctx=256, n_parallel=n_parallel) as llm:
        first = llm.create_completion("hello there", max_tokens=40, seed=3)
        stats = llm.last_stats
        assert stats.draft_n == stats.draft_n_accepted > 20
        llm.load_state(llm.save_state())
        again = llm.create_completion("hello there", max_tokens=40, seed=3)
        assert llm.last_stats.draft_n == llm.last_stats.draft_n_accepted > 20
    with SpeculativeLlama(str(file), None, n_ctx=256) as llm:
        plain = llm.create_completion("hello there", max_tokens=40, seed=3)
    texts = [answer["choices"][0]["text"] for answer in (first, again, plain)]
    assert all(len(text) > 10 for text in texts)


def test_two_answers_at_once_are_those_given_alone(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy and strict; each head reads its own sequence's states. Costs are given: a busy one may find two in turn
    to be faster."""
    monkeypatch.setattr("specgguf.engine.costs_for", lambda *_: Costs(16, {1: 1.0, 16: 1.0}, 1e-3, 1e-4))
    keywords = {"n_ctx": 256, "strict": True, "flash_attn": False, "type_k": "f32", "type_v": "f32", "n_threads": 1}
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=40)
    prompts = [[1, 3, 4, 5], [1, 5, 5, 3, 7, 4]]
    with SpeculativeLlama(str(file), draft="off", **keywords) as plain:  # type: ignore[arg-type]
        alone = [[chunk.token for chunk in plain.generate(prompt, params)] for prompt in prompts]
    with SpeculativeLlama(str(file), "heads", draft=3, n_parallel=2, **keywords) as llm:  # type: ignore[arg-type]
        for _ in range(2):  # from empty caches, and over what the first answers left
            running = [llm.generate(prompt, params) for prompt in prompts]
            found: list[list[int]] = [[], []]
            for chunks in itertools.zip_longest(*running):
                for mine, chunk in zip(found, chunks, strict=True):
                    mine += [chunk.token] if chunk is not None else []
            assert found == alone
            assert all(one.stats.draft_n > 10 and not one.stats.off_reason for one in running)
        assert max(llm.stats.by_n_sequences) == 2


def test_a_file_without_heads_is_refused(tiny_chat: Pair) -> None:
    with pytest.raises(Unsupported, match="has no prediction heads that can draft"):
        SpeculativeLlama(str(tiny_chat.target), "heads")


def test_heads_and_a_draft_model_are_refused_together(file: Path, tiny_chat: Pair) -> None:
    for both in (f"heads,{tiny_chat.draft}", ["heads", str(tiny_chat.draft)]):
        with pytest.raises(Unsupported, match="cannot draft together"):
            SpeculativeLlama(str(file), both)  # type: ignore[arg-type]


def test_of_several_heads_no_more_tokens_are_planned_than_they_can_draft(tmp_path: Path) -> None:
    path = write_hy_v3(tmp_path / "two.gguf", chat(), n_heads=2)
    with SpeculativeLlama(str(path), "heads", n_ctx=256, draft_max=5, draft_first=4) as llm:
        adaptive = llm._engine._adaptive
        assert adaptive is not None
        assert adaptive.draft_max == 2
        llm.create_completion("hello there", max_tokens=40, seed=3)
        assert max(llm.last_stats.draft_lengths) <= 2
        llm.create_completion("hello there", max_tokens=40, seed=3, draft=5)
        assert max(llm.last_stats.draft_lengths) == 2
        engine = llm._engine
        assert engine._controller(replace(engine.config, draft=5), engine.target, None).plan(5).n_max == 2


def test_a_library_without_the_calls_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat.HEAD_CALLS, "llama_get_ctx_other_", ("a", "b", None, []))
    with pytest.raises(Unsupported, match="has no prediction heads: llama_get_ctx_other_ is missing"):
        SpeculativeLlama(str(file), "heads")


def test_a_file_of_heads_alone_is_refused_as_a_draft(
    file: Path, tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, read = header.read(file), header.read
    alone = replace(whole, tensors=tuple(t for t in whole.tensors if not t.name.startswith("blk.0.")))
    assert prediction_heads.count(whole) == 1
    assert prediction_heads.count(alone) == 0
    monkeypatch.setattr(header, "read", lambda path, **kw: alone if path == str(file) else read(path, **kw))
    with pytest.raises(Unsupported, match="holds prediction heads alone"):
        SpeculativeLlama(str(tiny_chat.target), str(file))


def test_a_file_that_names_more_heads_than_llama_cpp_runs_is_not_taken(tmp_path: Path) -> None:
    head = header.read(write_qwen35(tmp_path / "hybrid.gguf", chat()))
    assert prediction_heads.count(head) == 1
    many = replace(head, metadata={**head.metadata, "qwen35.nextn_predict_layers": 2})
    assert prediction_heads.count(many) == 0


def test_programs_take_the_heads_where_no_draft_is_named(file: Path) -> None:
    files = choose_pair(str(file)).files(here)
    assert files.draft_model == HEADS
    assert "own prediction heads" in files.why
    assert choose_pair(str(file), "none").files(here).draft_model is None
    assert choose_pair(str(file), "heads").files(here).draft_model == HEADS
