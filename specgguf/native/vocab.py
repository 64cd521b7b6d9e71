"""May this draft serve this target? llama.cpp's own rule, and the first difference where the answer is no.

Two vocabularies are compatible when their type is the same, the bos and eos tokens that they add by themselves
are the same, their sizes differ by at most 128, and every text from id 5 on is equal (the first five hold
unused and special tokens that files disagree about).
"""

from __future__ import annotations

from typing import Any

from specgguf.errors import ContextFull, VocabMismatch

from . import backend

SIZE_DIFFERENCE_MAX = 128
FIRST_COMPARED_ID = 5


def difference(target: Any, draft: Any) -> str:
    """What first keeps the draft's vocabulary from serving the target, in one line; "" when nothing does.

    Args:
        target, draft: native vocabularies (`Weights.vocab`).
    """
    types = backend.vocab_type(target), backend.vocab_type(draft)
    if types[0] != types[1]:
        return f"the tokenizers are of different types ({types[0]} and {types[1]})"
    ends = backend.vocab_ends(target), backend.vocab_ends(draft)
    for name in ("bos", "eos"):
        if ends[0][name] != ends[1][name]:
            return f"the {name} token added to a prompt is {ends[0][name]} in one and {ends[1][name]} in the other"
    sizes = backend.vocab_size(target), backend.vocab_size(draft)
    texts = backend.token_texts(target), backend.token_texts(draft)
    for token in range(FIRST_COMPARED_ID, min(sizes)):
        if texts[0][token] != texts[1][token]:
            ours, theirs = (t[token].decode("utf-8", "replace") for t in texts)
            return f"token {token} is {ours!r} in the target and {theirs!r} in the draft"
    if abs(sizes[0] - sizes[1]) > SIZE_DIFFERENCE_MAX:
        return f"the target has {sizes[0]} tokens and the draft {sizes[1]} (at most {SIZE_DIFFERENCE_MAX} apart)"
    return ""


def require_compatible(target: Any, draft: Any, names: tuple[str, str]) -> None:
    """Raise VocabMismatch, naming both files and the first difference, unless the draft can serve."""
    why = difference(target, draft)
    if why:
        raise VocabMismatch(
            f"{names[1]} cannot draft for {names[0]}: {why}",
            hint="a draft needs the target's own vocabulary: a smaller model of the same family",
        )


def longest(vocab: Any) -> int:
    """The bytes of the longest token text (an upper bound: byte-level vocabularies store some bytes as two)."""
    return max(map(len, backend.token_texts(vocab)))


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
