"""Engines by a preset's name or a repository: which files, which settings, and who overrides whom."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from specgguf.presets import Match, Preset
from support import tiny

from specgguf import ConfigError, SpeculativeLlama, Unsupported, presets
from specgguf.fit import search
from specgguf.models import hub, patterns


@pytest.fixture
def preset(tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch) -> Preset:
    """A preset over the tiny pair, the only one there is."""
    made = Preset(
        "tiny",
        "",
        str(tiny_chat.target),
        str(tiny_chat.draft),
        Match(),
        n_ctx=256,
        n_threads=1,
        draft_first=1,
        draft_max=2,
    )
    monkeypatch.setattr(presets, "load", lambda name: {"tiny": made}[name])
    monkeypatch.setattr(search, "choose", lambda machine, **_: (made, "it is the only one"))
    return made


@pytest.mark.parametrize("name", ["tiny", "auto"])
def test_from_preset(preset: Preset, name: str) -> None:
    with SpeculativeLlama.from_preset(name) as llm:
        assert (llm.model_path, llm.draft_model_path) == preset.files
        assert (llm.n_ctx(), llm.draft_max) == (256, 2)
    with SpeculativeLlama.from_preset(name, n_ctx=512, draft=1) as llm:
        assert (llm.n_ctx(), llm.draft) == (512, 1)


def test_an_unknown_preset_is_named() -> None:
    with pytest.raises(ConfigError, match="no preset 'demmo'"):
        SpeculativeLlama.from_preset("demmo")


def test_from_pretrained(tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """`filename` may be a pattern, as llama-cpp-python's often is."""
    asked: list[Any] = []

    def resolve(ref: str, *, offline: bool | None = None) -> Path:
        asked.append((ref, offline))
        return tiny_chat.draft if "small" in ref else tiny_chat.target

    monkeypatch.setattr(hub, "resolve", resolve)
    monkeypatch.setattr(patterns, "match", lambda repo, pattern, *, offline: pattern.replace("*", "large-"))
    with SpeculativeLlama.from_pretrained(
        "org/large", "*q4_k_m.gguf", draft_repo_id="org/small", offline=True, n_ctx=256, n_threads=1
    ) as llm:
        assert llm.draft_model_path == str(tiny_chat.draft)
    with SpeculativeLlama.from_pretrained("org/large", n_ctx=256, n_threads=1) as llm:
        assert llm.draft_model_path is None
    assert asked == [("org/large:large-q4_k_m.gguf", True), ("org/small", True), ("org/large", None)]


@pytest.mark.parametrize("template", ["{{", "{% unheard_of %}", "{% for m in messages %}"])
def test_a_broken_chat_template_is_in_the_way_of_chatting_alone(template: str, tmp_path: Path) -> None:
    """`llama_cpp.Llama` compiles it while loading, and would not load."""
    path = tiny.write_llama(tmp_path / "odd.gguf", dataclasses.replace(tiny.chat(), template=template))
    question = [{"role": "user", "content": "hi"}]
    with SpeculativeLlama(str(path), n_ctx=64, n_threads=1) as llm:
        assert llm.metadata["tokenizer.chat_template"] == template
        assert llm("a word", max_tokens=4)
        for chat in (llm.create_chat_completion, llm.render):
            with pytest.raises(Unsupported, match="this model file's chat template is broken: ") as caught:
                chat(question)
            assert "chat_format" in caught.value.hint
    with SpeculativeLlama(str(path), n_ctx=64, n_threads=1, chat_format="chatml") as llm:
        assert llm.create_chat_completion(question, max_tokens=4)
