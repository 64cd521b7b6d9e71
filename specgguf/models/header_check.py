"""What the head of a GGUF file says that no model can be, and llama.cpp would end the process over.

Of the many ways in which a head can be wrong these are the ones that are known; tests/test_weights.py tries each on
the llama.cpp that is installed. Knows nothing of what a sound head means.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from .header import Header

MAX_LAYERS, MAX_EXPERTS = 512, 1024  # llama.cpp's own
# An architecture reads one of them; in a file that holds the other too, no negative one is sound either.
EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")
CONTEXT_MAX = 2**31 - 1  # tokens: positions are signed
INTEGERS = {24: "I8", 25: "I16", 26: "I32", 27: "I64"}
NORM_TYPES = (0, 1, 30)  # F32, F16, BF16: norms are multiplied by, never quantised
# The tables of whole numbers that llama.cpp knows: the experts of each token, and a draft's tokens as the target's.
_TABLE = re.compile(r"(blk\.\d+\.)?(ffn_gate_tid2eid\.weight|d2t)")
SENTENCEPIECE = "llama"  # as tokenizer.ggml.model has it
TOKENS = "tokenizer.ggml.tokens"
MAPPED_ALIGNMENT = 32  # bytes: where ggml takes tensors in a mapped file


def impossible(header: Header, overrides: Mapping[str, Any] | None = None) -> str:
    """The key of a head, and its value, over which llama.cpp would end the process; "" where there is none.

    Args:
        overrides: full keys and values that it is told to take instead.
    """
    values = header.metadata | dict(overrides or {})

    def number(key: str) -> int | float | None:
        value = values.get(f"{header.architecture}.{key}")
        return value if isinstance(value, int | float) else None  # llama.cpp has words for anything else

    n_layer, n_expert, n_used = (number(k) for k in ("block_count", "expert_count", "expert_used_count"))
    if n_layer is not None and not 1 <= n_layer <= MAX_LAYERS:
        return f"{header.architecture}.block_count is {n_layer}"
    if (n_expert or 0) > MAX_EXPERTS:
        return f"{header.architecture}.expert_count is {n_expert}"
    if (n_used or 0) > (n_expert or 0) or (n_expert and not n_used):
        return f"{header.architecture}.expert_used_count is {n_used or 0}, of {n_expert or 0} experts"
    for key in EPSILONS:
        if (epsilon := number(key)) is not None and not epsilon >= 0:
            return f"{header.architecture}.{key} is {epsilon}"
    if (n_ctx := number("context_length")) is not None and not 0 < n_ctx <= CONTEXT_MAX:
        return f"{header.architecture}.context_length is {n_ctx}"
    return _wrong_type(header)


def _wrong_type(header: Header) -> str:
    """A tensor, of all but the tables, whose type ggml computes nothing with."""
    for tensor in header.tensors:
        if _TABLE.fullmatch(tensor.name):
            continue
        if tensor.type in INTEGERS:
            return f"{tensor.name} holds whole numbers ({INTEGERS[tensor.type]}) where weights stand"
        if "_norm." in tensor.name and tensor.type not in NORM_TYPES:
            return f"{tensor.name} is quantised (type {tensor.type}), and norms never are"
    return ""


def unmappable(header: Header) -> str:
    """Why the tensors cannot be mapped into memory, or "": best effort, the first one of the first shard tells."""
    alignment = header.metadata.get("general.alignment")
    first = header.data_start + min((t.offset for t in header.tensors), default=0)
    if alignment is None or first % MAPPED_ALIGNMENT == 0:
        return ""
    return f"general.alignment is {alignment}, tensors begin at {first:,}"


def repeated_text(tokens: Sequence[str]) -> str:
    """The text that two tokens of a vocabulary have, or the first of them: llama.cpp counts texts and tokens, and ends
    the process where they differ. "" where all are different. It reads a text as far as its first NUL.

    Args:
        tokens: the texts of `TOKENS`; those that were no UTF-8 are not compared.
    """
    if len(set(tokens)) == len(tokens) and not any("\0" in text for text in tokens):
        return ""
    seen: set[str] = set()
    for text in tokens:
        text = text.partition("\0")[0]
        if text in seen and text and "\ufffd" not in text:
            return f"two tokens of the vocabulary have the text {text!r:.40}"
        seen.add(text)
    return ""


def missing_byte(header: Header, tokens: Sequence[str]) -> str:
    """The byte token that a SentencePiece vocabulary lacks beside others of the kind: over a character that needs it
    llama.cpp would end the process. "" where there is none.

    Args:
        tokens: the texts of `TOKENS`.
    """
    if header.metadata.get("tokenizer.ggml.model") != SENTENCEPIECE:
        return ""
    bytes_ = {f"<0x{byte:02X}>" for byte in range(256)}
    there = bytes_.intersection(tokens)
    return f"the vocabulary lacks the byte token {min(bytes_ - there)}" if there and there != bytes_ else ""


def only_characters(header: Header, tokens: Sequence[str]) -> frozenset[str] | None:
    """Where a SentencePiece vocabulary has no byte tokens: the characters that are tokens. Over a text with any other
    llama.cpp would end the process. None where it takes every text.

    Args:
        tokens: the texts of `TOKENS`.
    """
    if header.metadata.get("tokenizer.ggml.model") != SENTENCEPIECE or "<0x00>" in tokens:
        return None
    return frozenset(text for text in tokens if len(text) == 1)
