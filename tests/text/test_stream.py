"""A chunk per token, in order, whose reasoning is told apart and whose origin stays, however the tags are cut."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from specgguf.decode.records import Chunk, Round, TokenLogprob
from specgguf.text.detokenize import Detokenizer, ReasoningSplitter
from specgguf.text.stream import ChunkStream

EOG = 10**6


def streamed(pieces: Sequence[tuple[str, bool]], tag: str | None = "", *, end: bool = True) -> list[Chunk]:
    """All chunks of a text whose tokens are `pieces`: text, and whether the draft wrote it; a round each."""
    detokenizer = Detokenizer(lambda i: pieces[i][0].encode(), eog={EOG}, max_tokens=10**6)
    stream = ChunkStream(detokenizer, None if tag is None else ReasoningSplitter(tag))
    chunks = []
    for token in [*range(len(pieces)), *([EOG] if end else [])]:
        assert stream.check([token])[0] == 1
        drafted = token < len(pieces) and pieces[token][1]
        chunks += stream.chunks(Round((token,), n_from_draft=int(drafted), logprobs=(TokenLogprob(token, -1.0),)))
    chunks += stream.flush()
    assert stream.n_tokens == len(pieces)
    return chunks


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("tag", ["", "<think>"])
def test_provenance_survives_however_tags_are_cut(n: int, tag: str) -> None:
    text = ("" if tag else " <think>") + "\nA </thi b < c</think>\n\nThe <think> answer"
    pieces = [(text[i : i + n], i // n % 2 == 0) for i in range(0, len(text), n)]
    chunks = streamed(pieces, tag)
    assert [c.token for c in chunks] == [*range(len(pieces)), EOG], "one per token, in order"
    assert [c.from_draft for c in chunks[:-1]] == [drafted for _, drafted in pieces]
    assert all(c.logprob is not None and c.logprob.token == c.token for c in chunks)
    assert "".join(c.reasoning for c in chunks) == "A </thi b < c"
    assert "".join(c.text for c in chunks) == "The <think> answer"
    for chunk, (piece, _) in zip(chunks, pieces, strict=False):
        assert chunk.reasoning + chunk.text in piece, "a character is shown with the token that wrote it"


@pytest.mark.parametrize("end", [True, False])
def test_an_answer_without_reasoning_is_untouched(end: bool) -> None:
    for text in ("plain", "  <b>", "<thin", "a <think>b</think>", "\n\n"):
        for n in (1, 100):
            chunks = streamed([(text[i : i + n], False) for i in range(0, len(text), n)], end=end)
            assert "".join(c.text for c in chunks) == text
            assert not any(c.reasoning for c in chunks)


def test_without_a_splitter_tags_are_text() -> None:
    assert "".join(c.text for c in streamed([("<think>a</think>b", False)], None)) == "<think>a</think>b"


def test_what_is_certain_does_not_wait() -> None:
    """Only what may yet become a tag is held back; an answer's tokens come at once."""
    detokenizer = Detokenizer(lambda i: ["Hello", " wor", "ld <think>"][i].encode(), eog=(), max_tokens=9)
    stream = ChunkStream(detokenizer, ReasoningSplitter())
    for token, text in enumerate(("Hello", " wor", "ld <think>")):
        stream.check([token])
        assert [c.text for c in stream.chunks(Round((token,)))] == [text]
