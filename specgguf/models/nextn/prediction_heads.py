"""What a GGUF header tells of a model's own prediction heads (MTP, NextN): how many there are that can draft.

Whether this llama-cpp-python can run them is `native.heads`' to say, and what they take of memory `hparams`'.
"""

from __future__ import annotations

from pathlib import Path

from specgguf.errors import Unsupported
from specgguf.models.header import GgufError, Header, read
from specgguf.presets import HEADS

# Architectures whose prediction heads llama.cpp can run, and of how many heads a file may have (0: any number). For any
# other file it would end the process.
ARCHITECTURES = {
    **dict.fromkeys("hy_v3 mimo2 step35".split(), 0),
    **dict.fromkeys("qwen35 qwen35moe qwen3next deepseek2 deepseek32 glm4moe glm-dsa bailingmoe3".split(), 1),
    **dict.fromkeys("cohere2moe nemotron_h_moe".split(), 1),
}
MARK = ".nextn.eh_proj."  # of a tensor that every head has


def count(head: Header) -> int:
    """How many heads a file has that can draft; 0 where it has none, or only says so."""
    n = head.get("nextn_predict_layers", 0)
    n_max = ARCHITECTURES.get(head.architecture)
    if not isinstance(n, int) or n <= 0 or n_max is None or (n_max and n > n_max) or are_alone(head):
        return 0
    named = any(MARK in tensor.name for tensor in head.tensors)
    return n if named or head.metadata.get("split.count", 0) > 1 else 0


def count_in(path: str | Path) -> int:
    """The same of a file; 0 for one that cannot be read."""
    try:
        return count(read(path))
    except (GgufError, OSError):
        return 0


def draft_limit(n: int) -> int | None:
    """The most tokens of a draft: one head drafts over and over (None), of several the nth drafts the nth token."""
    return n if n > 1 else None


def are_alone(head: Header) -> bool:
    """Whether a file has prediction heads and not the model that they belong to."""
    has_heads = any("nextn." in tensor.name for tensor in head.tensors)
    return (has_heads and head.tensor("blk.0.attn_norm.weight") is None) or head.architecture == "gemma4-assistant"


def check_sole(draft: object) -> None:
    """Raise Unsupported for a draft that names heads beside something else: one thing drafts at a time."""
    names = draft.replace("+", ",").split(",") if isinstance(draft, str) else draft
    if isinstance(names, list | tuple) and len(names) > 1 and HEADS in names:
        raise Unsupported(
            "prediction heads and a draft model cannot draft together: one of them drafts",
            hint="-d heads, or -d FILE; specgguf bench with each tells which is faster",
        )


def not_on_workers() -> Unsupported:
    """The error that says so of heads: the hidden states that they read would have to come from there."""
    return Unsupported("a target on workers cannot draft by its own heads", hint="-d FILE, or -d ngram")


def none_in(name: object) -> Unsupported:
    """The error that says so of a model."""
    return Unsupported(
        f"{name} has no prediction heads that can draft", hint="name a draft's file, or ngram, or leave -d out"
    )
