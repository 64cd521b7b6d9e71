"""Between texts and the target's token ids: prompts, infilling, and a file's chat template.

What is asked goes through the target's own tokenizer, with its special tokens where they belong. This module
knows nothing of contexts' contents, sampling or answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

from specgguf.errors import ConfigError, ContextFull, Unsupported
from specgguf.native import vocab
from specgguf.native.weights import Weights

from .arguments import token_ids
from .control_texts import ControlTexts, Rendered
from .template import ChatTemplate, NamedTemplate

SPECIALS_AT_ONCE = 256
_SPECIAL_TEXTS: WeakKeyDictionary[Weights, ControlTexts] = WeakKeyDictionary()  # found once a vocabulary


def tokenize(weights: Weights, text: bytes, *, add_bos: bool = True, special: bool = False) -> list[int]:
    """Token ids of `text`; `special` reads special tokens' texts as those tokens."""
    if not special:
        return weights.tokenize(text, add_bos=add_bos)
    decoded = text.decode("utf-8", "surrogateescape")  # bytes of all kinds, there and back
    return _in_parts(weights, decoded, _special_texts(weights).starts(decoded, len(decoded)), add_bos=add_bos)


def rendered_ids(weights: Weights, prompt: Rendered, *, add_bos: bool, n_ctx: int) -> list[int]:
    """The ids of a rendered prompt: control tokens where the template put them, text where a message spells them.

    Raises:
        ContextFull: no context of `n_ctx` tokens could hold it.
    """
    weights.check_length(len(prompt.encode()), n_ctx)
    ids: list[int] = []
    for i, (text, special) in enumerate(prompt.parts):
        bos = add_bos and i == 0
        ids += (
            special_ids(weights, text, n_ctx, add_bos=bos) if special else tokenize(weights, text.encode(), add_bos=bos)
        )
    return ids


def special_ids(weights: Weights, text: str, n_ctx: int, *, add_bos: bool = True) -> list[int]:
    """The ids of `text` with special tokens' texts read as those tokens, which are counted first.

    Raises:
        ContextFull: they are more than a context of `n_ctx` tokens holds.
    """
    found = _special_texts(weights).starts(text, n_ctx + 1)
    if len(found) > n_ctx:
        raise ContextFull(f"the prompt holds more than {n_ctx:,} special tokens: the context holds {n_ctx:,} tokens")
    return _in_parts(weights, text, found, add_bos=add_bos, errors="surrogatepass")


def _in_parts(
    weights: Weights, text: str, found: Sequence[tuple[int, int]], *, add_bos: bool, errors: str = "surrogateescape"
) -> list[int]:
    """The ids of a text in which special tokens' texts were found. llama.cpp copies the text for each of them, so many
    in a long text would take minutes: it is cut before some of them."""
    edges = [start for start, _ in found[SPECIALS_AT_ONCE::SPECIALS_AT_ONCE] if not text[start - 1].isspace()]
    ids: list[int] = []
    for start, end in pairwise((0, *edges, len(text))):
        ids += weights.tokenize(text[start:end].encode("utf-8", errors), add_bos=add_bos and start == 0, special=True)
    return ids


def _special_texts(weights: Weights) -> ControlTexts:
    if weights not in _SPECIAL_TEXTS:
        with weights.in_use():
            _SPECIAL_TEXTS[weights] = ControlTexts(vocab.special_texts(weights.vocab))
    return _SPECIAL_TEXTS[weights]


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
        return _infill(weights, prompt, suffix, n_ctx)
    if not isinstance(prompt, str):
        return token_ids(prompt)
    weights.check_length(len(prompt.encode("utf-8", "surrogatepass")), n_ctx)
    return special_ids(weights, prompt, n_ctx)


def _infill(weights: Weights, prompt: str | Sequence[int], suffix: str, n_ctx: int) -> list[int]:
    """Prefix, suffix, middle: the file's own fill-in-the-middle tokens around the two texts."""
    marks = weights.fim
    if marks is None:
        raise Unsupported("this model has no fill-in-the-middle tokens, so suffix cannot be used")
    before = prompt.encode("utf-8", "surrogatepass") if isinstance(prompt, str) else None
    after = suffix.encode("utf-8", "surrogatepass")
    weights.check_length(len(before or b"") + len(after), n_ctx)
    prefix = token_ids(prompt) if before is None else tokenize(weights, before, add_bos=False)
    return [marks[0], *prefix, marks[1], *tokenize(weights, after, add_bos=False), marks[2]]


def template_of(weights: Weights, chat_format: str | None) -> ChatTemplate:
    """The file's own chat template, or the format of llama-cpp-python that is named instead.

    Raises:
        ConfigError: no such format. Unsupported: the file has no template, or a broken one.
    """
    texts: dict[str, Any] = {
        name: weights.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""
        for name, token in (("bos", weights.bos), ("eos", weights.eos))
    }
    with weights.in_use():
        texts["control"] = vocab.special_texts(weights.vocab, control_only=True)
    return ChatTemplate(weights.metadata, **texts) if chat_format is None else NamedTemplate(chat_format, **texts)
