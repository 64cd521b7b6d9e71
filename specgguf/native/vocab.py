"""Vocabularies: their calls, typed and without state, and whether a draft's may serve a target.

Knows no text beyond single tokens' and tokenizes nothing. The rule is llama.cpp's own: two vocabularies are compatible
when their type is the same, the bos and eos tokens that they add by themselves are the same, their sizes differ by at
most 128, and every text from id 5 on is equal (the first five hold unused and special tokens that files disagree
about). The first difference is named where they are not.
"""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp

from specgguf.errors import ConfigError, ContextFull, VocabMismatch

from . import compat

SIZE_DIFFERENCE_MAX = 128
FIRST_COMPARED_ID = 5
Vocab = Any  # llama_vocab *
_SPECIAL = b"\xff"  # llguidance's mark of a token that no text spells


def of_model(llama: Any) -> Any:
    """The native vocabulary of a loaded `llama_cpp.Llama`; it dies with the file."""
    return llama_cpp.llama_model_get_vocab(llama.model)


def vocab_type(vocab: Any) -> int:
    return int(llama_cpp.llama_vocab_type(vocab))


def vocab_size(vocab: Any) -> int:
    return int(llama_cpp.llama_vocab_n_tokens(vocab))


def vocab_ends(vocab: Any) -> dict[str, int]:
    """The bos and eos ids where the tokenizer adds them by itself; -1 elsewhere."""
    return {
        "bos": int(llama_cpp.llama_vocab_bos(vocab)) if llama_cpp.llama_vocab_get_add_bos(vocab) else -1,
        "eos": int(llama_cpp.llama_vocab_eos(vocab)) if llama_cpp.llama_vocab_get_add_eos(vocab) else -1,
    }


def token_texts(vocab: Any) -> list[bytes]:
    """All tokens' texts as the vocabulary stores them."""
    get_text = llama_cpp.llama_vocab_get_text
    return [get_text(vocab, token) or b"" for token in range(vocab_size(vocab))]


def eog_tokens(vocab: Any) -> frozenset[int]:
    """All ids that end a generation."""
    is_eog = llama_cpp.llama_vocab_is_eog
    return frozenset(t for t in range(vocab_size(vocab)) if is_eog(vocab, t))


def fim_tokens(vocab: Any) -> tuple[int, int, int] | None:
    """The prefix, suffix and middle marks of fill-in-the-middle; None where the vocabulary lacks one."""
    marks = tuple(int(getattr(llama_cpp, f"llama_vocab_fim_{name}")(vocab)) for name in ("pre", "suf", "mid"))
    return None if min(marks) < 0 else (marks[0], marks[1], marks[2])


def usual_end(vocab: Any) -> int:
    """The token that ends a turn, or a text where there is none; -1 without both."""
    turn = int(llama_cpp.llama_vocab_eot(vocab))
    return turn if turn >= 0 else int(llama_cpp.llama_vocab_eos(vocab))


def is_byte(vocab: Any, token: int) -> bool:
    """Whether a token stands for a byte where no other token does (SentencePiece's fallback)."""
    return bool(llama_cpp.llama_vocab_get_attr(vocab, token) & llama_cpp.LLAMA_TOKEN_ATTR_BYTE)


def special_texts(vocab: Any, *, control_only: bool = False) -> list[str]:
    """The texts that tokenizing with special tokens reads as one token each, see `special_tokens`."""
    ids = sorted(special_tokens(vocab, control_only=control_only))
    return [piece(vocab, token, special=True).decode("utf-8", "replace") for token in ids]


def special_tokens(vocab: Any, *, control_only: bool = False) -> frozenset[int]:
    """The ids that only tokenizing with special tokens gives; `control_only` leaves out those that are read so in any
    text (llama.cpp's user-defined tokens)."""
    wanted = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
    if not control_only:
        wanted |= llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
    get = llama_cpp.llama_vocab_get_attr
    return frozenset(token for token in range(vocab_size(vocab)) if int(get(vocab, token)) & wanted)


def piece(vocab: Any, token: int, *, special: bool = False) -> bytes:
    """The bytes that a token stands for, of any length; special tokens give b"" unless asked for."""
    size = 32
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = int(llama_cpp.llama_token_to_piece(vocab, token, buffer, size, 0, special))
        if n >= 0:
            return buffer.raw[:n]
        size = -n


def pieces(vocab: Any) -> list[bytes]:
    """The bytes of every token, b"" for special ones."""
    size = longest(vocab) + 1
    buffer = ctypes.create_string_buffer(size)
    spell, found = llama_cpp.llama_token_to_piece, []
    for token in range(vocab_size(vocab)):
        n = int(spell(vocab, token, buffer, size, 0, False))
        found.append(ctypes.string_at(buffer, n))
    return found


def check_characters(text: bytes, known: frozenset[str] | None) -> None:
    """Raise ConfigError for a text that has others, see `header_check.only_characters`."""
    if known is not None and text:
        unknown = set((" " + text.decode("utf-8", "replace")).replace(" ", "\u2581")) - known
        if unknown:
            raise ConfigError(
                f"the vocabulary has no token for {min(unknown)!r}, and none for bytes",
                hint="give token ids, or convert the model again",
            )


def tokenize(vocab: Any, text: bytes, *, add_bos: bool, special: bool) -> list[int]:
    """Token ids of `text`; `special` reads special tokens' texts as those tokens."""
    size = len(text) + 2
    ids = (llama_cpp.llama_token * size)()
    n = int(llama_cpp.llama_tokenize(vocab, text, len(text), ids, size, add_bos, special))
    return list(ids[: max(n, 0)])


# --- compatibility ----------------------------------------------------------------------------------------


def difference(target: Any, draft: Any) -> str:
    """What first keeps the draft's vocabulary from serving the target, in one line; "" when nothing does.

    Args:
        target, draft: native vocabularies (`Weights.vocab`).
    """
    types = vocab_type(target), vocab_type(draft)
    if types[0] != types[1]:
        return f"the tokenizers are of different types ({types[0]} and {types[1]})"
    ends = vocab_ends(target), vocab_ends(draft)
    for name in ("bos", "eos"):
        if ends[0][name] != ends[1][name]:
            return f"the {name} token added to a prompt is {ends[0][name]} in one and {ends[1][name]} in the other"
    sizes = vocab_size(target), vocab_size(draft)
    texts = token_texts(target), token_texts(draft)
    for token in range(FIRST_COMPARED_ID, min(sizes)):
        if texts[0][token] != texts[1][token]:
            ours, theirs = (t[token].decode("utf-8", "replace") for t in texts)
            return f"token {token} is {ours!r} in the target and {theirs!r} in the draft"
    if abs(sizes[0] - sizes[1]) > SIZE_DIFFERENCE_MAX:
        return f"the target has {sizes[0]} tokens and the draft {sizes[1]} (at most {SIZE_DIFFERENCE_MAX} apart)"
    return ""


def mismatch(why: str, names: tuple[str, str]) -> VocabMismatch:
    """The error of a target's and a draft's file whose vocabularies may not differ, and do: `why`."""
    return VocabMismatch(
        f"{names[1]} cannot draft for {names[0]}: {why}",
        hint="a smaller model of the same family, or --draft-vocab any, which maps what both have",
    )


def longest(vocab: Any) -> int:
    """The bytes of the longest token text (an upper bound: byte-level vocabularies store some bytes as two)."""
    return max(map(len, token_texts(vocab)))


def check_length(vocab: Any, n_bytes: int, n_ctx: int) -> None:
    """Refuse at once a text that no tokens could make fit: tokenizing a megabyte takes up to minutes.

    Raises:
        ContextFull: even the longest tokens would be too many.
    """
    if n_bytes > 16 * n_ctx and n_bytes > n_ctx * longest(vocab):
        raise ContextFull(
            f"{n_bytes:,} bytes of prompt do not fit: the context holds {n_ctx:,} tokens",
            hint="a larger n_ctx (--n-ctx), or a shorter prompt",
        )


# --- for llguidance ---------------------------------------------------------------------------------------


def grammar_tokenizer(vocab: Any) -> Any:
    """An `llguidance.LLTokenizer` over a native vocabulary, which it must not outlive. Takes about a second for 150,000
    tokens."""
    from llguidance import LLTokenizer

    make_native: Any = LLTokenizer.from_llamacpp  # type: ignore[attr-defined]
    return make_native(
        tokens=[_spelled_for_llguidance(vocab, token) for token in range(vocab_size(vocab))],
        vocab_ptr=vocab,
        tokenize_fptr=compat.tokenize_address(),
        eos_token=sorted(eog_tokens(vocab)),
        slices=None,
    )


def _spelled_for_llguidance(vocab: Any, token: int) -> bytes:
    """What a token spells: nothing but itself where it is special, by what it is for or by how it looks."""
    text = piece(vocab, token, special=True)
    kind = llama_cpp.llama_vocab_get_attr(vocab, token)
    looks_special = kind & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED and text.startswith(b"<") and text.endswith(b">")
    is_special = kind & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN)
    return _SPECIAL + text if is_special or looks_special else text
