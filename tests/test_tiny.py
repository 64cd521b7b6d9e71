"""The tiny files are what other tests take them for: loadable, undecided, sensitive to their cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from llama_cpp import Llama
from support import tiny

TOKENS = [1, 5, 3, 7, 4, 6, 3, 3, 5, 7, 4, 2]


def probs(path: Path, tokens: list[int]) -> np.ndarray:
    """softmax of every row, (n_tokens, n_vocab)."""
    with_logits = Llama(
        str(path),
        n_ctx=64,
        logits_all=True,
        n_threads=1,
        n_threads_batch=1,
        type_k=0,
        type_v=0,
        verbose=False,
    )
    with_logits.eval(tokens)
    rows = np.array(with_logits.scores[: len(tokens)], dtype=np.float64)
    with_logits.close()
    e = np.exp(rows - rows.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("arch", tiny.WRITERS)
def test_target_and_draft_are_undecided_and_agree_in_part(
    arch: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    p = probs(tiny.WRITERS[arch](tmp_path / "p.gguf", tiny.letters(8)), TOKENS)
    q = probs(tiny.WRITERS[arch](tmp_path / "q.gguf", tiny.letters(8), noise=0.35), TOKENS)
    capfd.readouterr()  # llama.cpp's remarks
    assert np.isfinite(p).all()
    assert p.max() < 0.99
    assert 0.2 < np.minimum(p, q).sum(axis=1).mean() < 0.95


@pytest.mark.parametrize("arch", tiny.WRITERS)
def test_the_distribution_depends_on_every_cached_token(
    arch: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tiny.WRITERS[arch](tmp_path / "p.gguf", tiny.letters(8))
    last = probs(path, TOKENS)[-1]
    for i in range(len(TOKENS) - 5, len(TOKENS) - 1):
        other = [*TOKENS[:i], TOKENS[i] ^ 1, *TOKENS[i + 1 :]]
        assert np.abs(probs(path, other)[-1] - last).max() > 1e-3, i
    capfd.readouterr()


def test_chat_vocabulary_takes_any_bytes(tmp_path: Path) -> None:
    llm = Llama(str(tiny.write_llama(tmp_path / "chat.gguf", tiny.chat())), n_ctx=64, verbose=False)
    for text in (bytes(range(256)), "é 한국어 👍🙂\n\n  x\t=1".encode(), b"\xff\xfe\x80abc \xe2\x96"):
        assert llm.detokenize(llm.tokenize(text, add_bos=False)) == text
    llm.close()
