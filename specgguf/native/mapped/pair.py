"""Two vocabularies side by side: which of the draft's ids are the target's, and how the draft spells the target's text.

Tokens are equal when they stand for the same *bytes*, whatever their files store (Ġ, ▁, <0x0A>). Special tokens have no
bytes: those that end a generation stand for each other, others are read as the draft's own of the same name, or as
text. Tokenizes single tokens' bytes and nothing longer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specgguf.decode.vocab_map import UNREADABLE, VocabMap
from specgguf.errors import VocabMismatch
from specgguf.native import vocab
from specgguf.native.weights import Weights

SHARE_MIN = 0.1  # of the smaller vocabulary: with fewer in common hardly a token could be proposed


def vocab_map(target: Weights, draft: Weights, *, draft_vocab: str = "any") -> VocabMap | None:
    """How the columns of the draft's logits stand for the target's ids; None where they are the same.

    Args:
        draft_vocab: "same" refuses a draft of another vocabulary.

    Raises:
        VocabMismatch: this draft cannot serve.
    """
    why = vocab.difference(target.vocab, draft.vocab)
    names = target.path, draft.path
    if why and draft_vocab == "same":
        raise vocab.mismatch(why, names)
    columns = range(draft.n_vocab) if draft.columns is None else draft.columns
    if not why:
        if draft.columns is None:
            return None
        return VocabMap(columns, n_vocab=target.n_vocab, spell=lambda token: (token,))
    known = by_bytes(draft.vocab)
    ids = shared_ids(target.vocab, draft.vocab, known)
    n = sum(token >= 0 for token in ids)
    if n < SHARE_MIN * min(target.n_vocab, draft.n_vocab):
        raise VocabMismatch(
            f"{draft.path} cannot draft for {target.path}: {n / len(ids):.0%} of the draft's tokens are the target's",
            hint="a smaller model of the target's family, or -d ngram, which needs none",
        )
    return VocabMap(
        [ids[column] for column in columns],
        n_vocab=target.n_vocab,
        spell=Speller(target, draft, known),
        start=[draft.bos] if vocab.vocab_ends(draft.vocab)["bos"] >= 0 else (),
    )


def shared_ids(target: vocab.Vocab, draft: vocab.Vocab, known: Mapping[bytes, Sequence[int]]) -> list[int]:
    """For each id of the draft the target's of equal bytes, or that ends a generation too; -1 where there is none.

    Args:
        known: `by_bytes` of the draft.
    """
    ids = [-1] * vocab.vocab_size(draft)
    for piece, tokens in by_bytes(target).items():
        for own in known.get(piece, ()):
            ids[own] = tokens[0]
    ends = vocab.eog_tokens(target)
    by_text = {vocab.piece(target, token, special=True): token for token in sorted(ends)}
    default = vocab.usual_end(target)
    for token in vocab.eog_tokens(draft):
        ids[token] = by_text.get(vocab.piece(draft, token, special=True), default)
    return ids


def shared(target: vocab.Vocab, draft: vocab.Vocab) -> tuple[int, float]:
    """How many of the draft's ids are the target's, and which part of them."""
    ids = shared_ids(target, draft, by_bytes(draft))
    n = sum(token >= 0 for token in ids)
    return n, n / len(ids)


def by_bytes(native: vocab.Vocab) -> dict[bytes, list[int]]:
    """The tokens of each sequence of bytes that a token spells; a raw byte's after a text's."""
    found: dict[bytes, list[int]] = {}
    for token, piece in enumerate(vocab.pieces(native)):
        if piece:
            found.setdefault(piece, []).append(token)
    for tokens in found.values():
        if len(tokens) > 1:
            tokens.sort(key=lambda token: vocab.is_byte(native, token))
    return found


class Speller:
    """The draft's ids for one token of the target: one where a token has the same bytes, else the draft's own
    tokenization of them, else the longest tokens that fit one after the other, down to single bytes."""

    def __init__(self, target: Weights, draft: Weights, known: Mapping[bytes, Sequence[int]]) -> None:
        self._target, self._draft, self._known = target, draft, known
        self._longest = max(map(len, known))
        # llama.cpp ends the process over a byte that a vocabulary without one for each cannot spell
        self._has_all_bytes = all(bytes([byte]) in known for byte in range(256))
        self._specials = {
            draft.piece(token, special=True): token for token in vocab.special_tokens(draft.vocab, control_only=True)
        }
        self._bos = vocab.vocab_ends(target.vocab)["bos"]

    def __call__(self, token: int) -> Sequence[int]:
        if token == self._bos:
            return ()  # the draft begins as it does itself
        text = self._target.piece(token)
        if not text:
            text = self._target.piece(token, special=True)
            if text in self._specials:
                return (self._specials[text],)
        return self.spell(text)

    def spell(self, text: bytes) -> Sequence[int]:
        """The draft's ids for some bytes."""
        if not text or text in self._known:
            return self._known[text][:1] if text else ()
        ids = self._draft.tokenize(text, add_bos=False) if self._has_all_bytes else []
        if b"".join(map(self._draft.piece, ids)) == text:
            return ids
        # A tokenizer that begins with a blank of its own, or bytes that are no text.
        ids, at = [], 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 0, -1)
            n = next((n for n in lengths if text[at : at + n] in self._known), 0)
            if not n:
                return (UNREADABLE,)
            ids.append(self._known[text[at : at + n]][0])
            at += n
        return ids
