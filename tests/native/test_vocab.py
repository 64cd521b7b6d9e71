"""Which draft may serve which target: llama.cpp's rule, with the first difference named."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import tiny

from specgguf.native import vocab
from specgguf.native.weights import Weights


@dataclass
class Vocab:
    """What the rule looks at."""

    texts: Sequence[bytes]
    type: int = 1
    bos: int = 1
    eos: int = -1


TEXTS = [b"<unk>", b"<s>", b"</s>", b"a", b"b", *(f"t{i}".encode() for i in range(5, 300))]


@pytest.fixture
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule by itself, over `Vocab` instead of native pointers."""
    monkeypatch.setattr(vocab, "vocab_type", lambda v: v.type)
    monkeypatch.setattr(vocab, "vocab_ends", lambda v: {"bos": v.bos, "eos": v.eos})
    monkeypatch.setattr(vocab, "vocab_size", lambda v: len(v.texts))
    monkeypatch.setattr(vocab, "token_texts", lambda v: list(v.texts))


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize("n_more", [-128, -127, 0, 1, 128])
def test_sizes_may_differ_a_little(n_more: int) -> None:
    """As those of Qwen2.5 do: 151936 and 152064."""
    target = Vocab(TEXTS)
    draft = Vocab((TEXTS + [b"more%d" % i for i in range(128)])[: 300 + n_more])
    assert vocab.difference(target, draft) == ""


@pytest.mark.usefixtures("_plain")
def test_the_first_five_may_differ() -> None:
    assert vocab.difference(Vocab(TEXTS), Vocab([b"?"] * 5 + TEXTS[5:])) == ""
    assert "token 5" in vocab.difference(Vocab(TEXTS), Vocab([b"?"] * 6 + TEXTS[6:]))


@pytest.mark.usefixtures("_plain")
@pytest.mark.parametrize(
    ("draft", "says"),
    [
        (Vocab(TEXTS[:171]), "the target has 300 tokens and the draft 171 (at most 128 apart)"),
        (Vocab([*TEXTS, *[b"x"] * 129]), "the target has 300 tokens and the draft 429 (at most 128 apart)"),
        (Vocab([*TEXTS[:7], b"other", b"more", *TEXTS[9:]]), "token 7 is 't7' in the target and 'other' in the draft"),
        (Vocab([*TEXTS[:299], b"\xff"]), "token 299 is 't299' in the target and '\ufffd' in the draft"),
        (Vocab(TEXTS, type=2), "the tokenizers are of different types (1 and 2)"),
        (Vocab(TEXTS, bos=2), "the bos token added to a prompt is 1 in one and 2 in the other"),
        (Vocab(TEXTS, eos=2), "the eos token added to a prompt is -1 in one and 2 in the other"),
    ],
    ids=["smaller", "larger", "text", "bytes", "type", "bos", "eos"],
)
def test_the_first_difference_is_named(draft: Vocab, says: str) -> None:
    assert vocab.difference(Vocab(TEXTS), draft) == says
    error = vocab.mismatch(says, ("target.gguf", "draft.gguf"))
    assert str(error) == f"draft.gguf cannot draft for target.gguf: {says}"
    assert "same family" in error.hint
    assert "--draft-vocab any" in error.hint


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Weights]]:
    folder: Path = tmp_path_factory.mktemp("vocab")
    chat = tiny.chat()
    kinds = {
        "chat": chat,
        "no bos": dataclasses.replace(chat, template=None),
        "shorter": dataclasses.replace(chat, texts=chat.texts[:-3], types=chat.types[:-3], bias=chat.bias[:-3]),
        "other": dataclasses.replace(chat, texts=[*chat.texts[:270], "▁hello".encode(), *chat.texts[271:]]),
        "letters": tiny.letters(8),
    }
    loaded = {name: Weights(str(tiny.write_llama(folder / f"{name}.gguf", v))) for name, v in kinds.items()}
    yield loaded
    for weights in loaded.values():
        weights.close()


def test_files(files: dict[str, Weights]) -> None:
    """The same rule on what llama.cpp says of real files."""

    def between(draft: str) -> str:
        return vocab.difference(files["chat"].vocab, files[draft].vocab)

    assert between("chat") == ""
    assert between("shorter") == ""
    assert between("other").startswith("token 270 is ")
    assert "'▁hello' in the draft" in between("other")
    assert "bos" in between("no bos")
    assert between("letters") != ""
