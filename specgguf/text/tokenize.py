"""Between texts and the target's token ids: prompts, infilling, and a file's chat template.

What is asked goes through the target's own tokenizer, with its special tokens where they belong. This module
knows nothing of contexts' contents, sampling or answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from specgguf.errors import ConfigError, Unsupported
from specgguf.native.weights import Weights

from .arguments import token_ids
from .template import ChatTemplate, NamedTemplate


def tokenize(weights: Weights, text: bytes, *, add_bos: bool = True, special: bool = False) -> list[int]:
    """Token ids of `text`; `special` reads special tokens' texts as those tokens."""
    return weights.tokenize(text, add_bos=add_bos, special=special)


def detokenize(weights: Weights, tokens: Iterable[int], *, special: bool = False) -> bytes:
    """The bytes of `tokens`, whole however long a token's text is.

    Raises:
        ConfigError: an id that this model lacks.
    """
    tokens = token_ids(tokens)
    if any(not 0 <= t < weights.n_vocab for t in tokens):
        raise ConfigError(f"token ids of this model are 0 to {weights.n_vocab - 1}")
    data = b"".join(weights.piece(token, special=special) for token in tokens)
    starts_text = bool(tokens) and tokens[0] == weights.bos and data.startswith(b" ")
    return data[1:] if starts_text else data


def prompt_ids(weights: Weights, prompt: str | Sequence[int], suffix: str | None, n_ctx: int) -> list[int]:
    """The ids of a prompt to complete; with a suffix, to complete what stands between the two.

    Raises:
        ConfigError: it is no prompt. ContextFull: no context of `n_ctx` tokens could hold it.
        Unsupported: a suffix, and this model knows no infilling.
    """
    if suffix is not None:
        return _infill(weights, prompt, suffix)
    if not isinstance(prompt, str):
        return token_ids(prompt)
    data = prompt.encode("utf-8", "surrogatepass")
    weights.check_length(len(data), n_ctx)
    return tokenize(weights, data, special=True)


def _infill(weights: Weights, prompt: str | Sequence[int], suffix: str) -> list[int]:
    """Prefix, suffix, middle: the file's own fill-in-the-middle tokens around the two texts."""
    marks = weights.fim
    if marks is None:
        raise Unsupported("this model has no fill-in-the-middle tokens, so suffix cannot be used")
    prefix = tokenize(weights, prompt.encode(), add_bos=False) if isinstance(prompt, str) else token_ids(prompt)
    return [marks[0], *prefix, marks[1], *tokenize(weights, suffix.encode(), add_bos=False), marks[2]]


def template_of(weights: Weights, chat_format: str | None) -> ChatTemplate:
    """The file's own chat template, or the format of llama-cpp-python that is named instead.

    Raises:
        ConfigError: no such format. Unsupported: the file has no template, or a broken one.
    """
    texts: dict[str, Any] = {
        name: weights.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
        for name, token in (("bos", weights.bos), ("eos", weights.eos))
    }
    return ChatTemplate(weights.metadata, **texts) if chat_format is None else NamedTemplate(chat_format, **texts)
