"""A vocabulary as llguidance reads it: the bytes of every token, which ones are special, and which end a text.

What is done with it is `grammar`'s business. The result points into the vocabulary: it must not outlive the file.
"""

from __future__ import annotations

from typing import Any

import llama_cpp

from . import compat
from . import vocab as vocabulary

SPECIAL = b"\xff"  # before the bytes of a token that no text spells


def make(vocab: Any) -> Any:
    """An `llguidance.LLTokenizer` over a native vocabulary. Takes about a second for 150,000 tokens."""
    from llguidance import LLTokenizer

    n = vocabulary.vocab_size(vocab)
    make_native: Any = LLTokenizer.from_llamacpp  # type: ignore[attr-defined]
    return make_native(
        tokens=[_bytes(vocab, token) for token in range(n)],
        vocab_ptr=vocab,
        tokenize_fptr=compat.tokenize_address(),
        eos_token=sorted(vocabulary.eog_tokens(vocab)),
        slices=None,
    )


def _bytes(vocab: Any, token: int) -> bytes:
    """What a token spells: nothing but itself where it is special, by what it is for or by how it looks."""
    text = vocabulary.piece(vocab, token, special=True)
    kind = llama_cpp.llama_vocab_get_attr(vocab, token)
    looks_special = kind & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED and text.startswith(b"<") and text.endswith(b">")
    is_special = kind & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN)
    return SPECIAL + text if is_special or looks_special else text
