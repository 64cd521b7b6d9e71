"""Which of a draft's ids are the target's, by their bytes, and how the draft spells what it lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support import tiny

from specgguf import VocabMismatch
from specgguf.decode.vocab_map import UNREADABLE
from specgguf.native import vocab
from specgguf.native.mapped.pair import by_bytes, shared, vocab_map
from specgguf.native.weights import Weights

WORDS = [" the", " word", " python", "ing", "\n\n", "日本", "👍", "é", " straße"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Weights]]:
    folder: Path = tmp_path_factory.mktemp("vocabularies")
    chat = tiny.chat()
    kinds = {
        "sentencepiece": chat,
        "prefixed": dataclasses.replace(chat, template=None),
        "bpe": tiny.byte_level(WORDS),
        "more": tiny.byte_level([*WORDS, *(f"w{i}" for i in range(300))]),
        "letters": tiny.letters(8),
        "numbers": tiny.numbered(40),
    }
    loaded = {name: Weights(str(tiny.write_llama(folder / f"{name}.gguf", v))) for name, v in kinds.items()}
    yield loaded
    for weights in loaded.values():
        weights.close()


PAIRS = [("sentencepiece", "bpe"), ("bpe", "sentencepiece"), ("bpe", "more"), ("more", "bpe"), ("letters", "bpe")]


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_ids_stand_for_the_same_bytes(files: dict[str, Weights], target: str, draft: str) -> None:
    """Whatever the files store: ▁the and Ġthe, <0x41> and A."""
    ours, theirs = files[target], files[draft]
    found = vocab_map(ours, theirs)
    assert found is not None
    assert len(found.columns) > 5
    for own, token in zip(found.columns.tolist(), found.ids.tolist(), strict=True):
        if own in theirs.eog:
            assert token in ours.eog
        else:
            assert theirs.piece(own) == ours.piece(token) != b""
    missing = set(range(theirs.n_vocab)) - set(found.columns.tolist())
    target_pieces = set(vocab.pieces(ours.vocab))
    assert all(theirs.piece(own) not in target_pieces or not theirs.piece(own) for own in missing - theirs.eog)
    assert shared(ours.vocab, theirs.vocab) == (len(found.columns), found.share)
    assert found.share == len(found.columns) / theirs.n_vocab


@pytest.mark.parametrize(("target", "draft"), [pair for pair in PAIRS if pair[0] != "letters"])
def test_every_text_is_read_byte_for_byte(files: dict[str, Weights], target: str, draft: str) -> None:
    """Also tokens that are half a character, and a tokenizer that begins with a blank of its own."""
    ours, theirs = files[target], files[draft]
    found = vocab_map(ours, theirs)
    assert found is not None
    for token in range(ours.n_vocab):
        spelled = b"".join(theirs.piece(own) for own in found.spelled(token))
        if piece := ours.piece(token):
            assert spelled == piece
    one = set(found.ids.tolist()) - ours.eog
    assert all(len(found.spelled(token)) == 1 for token in one)


def test_a_missing_token_is_spelled_as_the_draft_would(files: dict[str, Weights]) -> None:
    found = vocab_map(files["sentencepiece"], files["bpe"])
    assert found is not None
    tokens = by_bytes(files["sentencepiece"].vocab)
    texts = (b" list", b"\xe5", b"er")
    pieces = [[files["bpe"].piece(own) for own in found.spelled(tokens[text][0])] for text in texts]
    assert pieces == [[b" ", b"l", b"i", b"s", b"t"], [b"\xe5"], [b"e", b"r"]]


def test_special_tokens(files: dict[str, Weights]) -> None:
    """Those of the same name are read as such, the target's beginning as the draft's own, others as text."""
    target, draft = files["sentencepiece"], files["bpe"]
    found = vocab_map(target, draft)
    assert found is not None
    assert found.start == ()
    assert found.spelled(target.bos) == ()
    start = next(t for t in range(target.n_vocab) if target.piece(t, special=True) == b"<|im_start|>")
    (read,) = found.spelled(start)
    assert draft.piece(read, special=True) == b"<|im_start|>"
    assert b"".join(draft.piece(own) for own in found.spelled(2)) == b"</s>"
    back = vocab_map(draft, target)
    assert back is not None
    assert back.start == (target.bos,)


def test_ends_stand_for_ends(files: dict[str, Weights]) -> None:
    """Of the same name, or the target's usual one."""
    target, draft = files["sentencepiece"], files["bpe"]
    found = vocab_map(target, draft)
    assert found is not None
    ends = {draft.piece(own, special=True): int(found.ids[list(found.columns).index(own)]) for own in draft.eog}
    assert target.piece(ends[b"<|im_end|>"], special=True) == b"<|im_end|>"
    assert target.piece(ends[b"<|endoftext|>"], special=True) == b"<|im_end|>"


def test_the_same_vocabulary_needs_no_map(files: dict[str, Weights]) -> None:
    for weights in files.values():
        assert vocab_map(weights, weights) is None
        assert vocab_map(weights, weights, draft_vocab="same") is None


def test_another_vocabulary_can_be_refused(files: dict[str, Weights]) -> None:
    with pytest.raises(VocabMismatch, match="different types") as caught:
        vocab_map(files["bpe"], files["sentencepiece"], draft_vocab="same")
    assert "--draft-vocab any" in caught.value.hint


def test_hardly_anything_in_common_is_refused(files: dict[str, Weights]) -> None:
    with pytest.raises(VocabMismatch, match=r"\d% of the draft's tokens are the target's") as caught:
        vocab_map(files["bpe"], files["numbers"])
    assert "ngram" in caught.value.hint


def test_a_byte_that_the_draft_lacks_cannot_be_read(files: dict[str, Weights]) -> None:
    found = vocab_map(files["bpe"], files["letters"])
    assert found is not None
    tokens = by_bytes(files["bpe"].vocab)
    assert found.spelled(tokens[b"\n\n"][0]) == (UNREADABLE,)
    assert len(found.spelled(tokens[b"a"][0])) == 1


def test_sizes_that_differ_are_no_fault(files: dict[str, Weights]) -> None:
    """Rows as long as each model's own vocabulary; ids beyond either do not occur."""
    found = vocab_map(files["bpe"], files["more"])
    assert found is not None
    row = np.zeros(files["more"].n_vocab, np.float32)
    assert len(found.row(row)) == len(found.columns)
    assert found.ids.max() < files["bpe"].n_vocab
