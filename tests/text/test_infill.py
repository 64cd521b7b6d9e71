"""Infilling: what the model reads is the file's own marks around the two texts, and what no context holds is refused
before it is tokenized."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import tiny
from support.serve_support import serving

from specgguf import ContextFull, SpeculativeLlama

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
KEYWORDS: Any = {"n_ctx": 128, "n_threads": 1, "n_threads_batch": 1}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpeculativeLlama]:
    plain = tiny.chat()
    vocab = replace(
        plain,
        texts=[*plain.texts, *(mark.encode() for mark in MARKS)],
        types=[*plain.types, *[tiny.CONTROL] * len(MARKS)],
        bias=np.array([*plain.bias, *[-12.0] * len(MARKS)]),
    )
    folder: Path = tmp_path_factory.mktemp("infill")
    target = tiny.write_llama(folder / "target.gguf", vocab)
    draft = tiny.write_llama(folder / "draft.gguf", vocab, noise=0.3)
    with SpeculativeLlama(str(target), str(draft), draft=3, **KEYWORDS) as llm:
        yield llm


def test_an_infill_is_the_plain_completion_of_prefix_suffix_middle(llm: SpeculativeLlama) -> None:
    pre, suf, mid = (llm.tokenize(mark.encode(), add_bos=False, special=True)[0] for mark in MARKS)
    before, after = "a word <|im_end|>", " the list"
    texts = [llm.tokenize(text.encode(), add_bos=False) for text in (before, after)]
    prompt = [pre, *texts[0], suf, *texts[1], mid]
    with SpeculativeLlama(llm.model_path, **KEYWORDS) as alone:
        wanted: Any = alone.create_completion(prompt, max_tokens=24, temperature=0.0)
    filled: Any = llm.create_completion(before, suffix=after, max_tokens=24, temperature=0.0)
    assert filled["choices"][0]["text"] == wanted["choices"][0]["text"] != ""
    assert filled["usage"] == wanted["usage"]
    streamed: Any = llm.create_completion(before, suffix=after, max_tokens=24, temperature=0.0, stream=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in streamed) == wanted["choices"][0]["text"]
    with serving(llm) as server:
        asked = {"input_prefix": before, "input_suffix": after, "n_predict": 24, "temperature": 0}
        assert server.post("/infill", asked).json()["content"] == wanted["choices"][0]["text"]


@pytest.mark.parametrize(("before", "after"), [("a " * 10**5, "b"), ("a", "b " * 10**5), ([5], "b " * 10**5)])
def test_texts_that_no_context_holds_are_not_tokenized(
    llm: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch, before: Any, after: str
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(llm._pair.weights, "tokenize", lambda text, **_: asked.append(len(text)) or [5])  # type: ignore[func-returns-value]
    with pytest.raises(ContextFull, match="bytes of prompt do not fit"):
        llm.create_completion(before, suffix=after, max_tokens=4)
    assert asked == []
