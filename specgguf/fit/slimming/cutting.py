"""Writes a draft's slimmed file: which of its tokens are kept is asked of `ranking`, and how many of `size`.

The bytes are `models.slim`'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specgguf.errors import ConfigError, SpecggufError, Unsupported
from specgguf.models import hparams, slim
from specgguf.models.header import Header
from specgguf.native import devices, vocab
from specgguf.native.mapped import rows

from . import size as sizes
from .ranking import ranked_ids

HELD_OUT, PART = 4, 2000  # of the user's own texts every fourth part of so many characters tells what a size is worth


@dataclass(frozen=True)
class Cut:
    """What was written.

    Attributes:
        n_ids, n_vocab: kept, of how many.
        share: of the tokens of a usual text, those that are kept.
        step: bytes that a draft step reads, beside those of the whole draft.
        why: one line about a size that was measured to be best.
    """

    path: Path
    n_ids: int
    n_vocab: int
    share: float
    step: float
    why: str = ""


@dataclass(frozen=True)
class Ranking:
    """The ids of a draft, those first that are likeliest to be needed."""

    header: Header
    texts: Sequence[str]
    ranked: Sequence[tuple[int, float]]
    ends: Sequence[int]

    def first(self, n: int) -> list[int]:
        """The ids that a draft of so many keeps. Raises ConfigError where that is all of them, nearly."""
        return slim.kept_ids(self.header, self.texts, [token for token, _ in self.ranked], self.ends, n)

    def share(self, ids: Sequence[int]) -> float:
        """Of the tokens of a usual text, those that are among `ids`."""
        kept = set(ids)
        return sum(part for token, part in self.ranked if token in kept)


def parse_size(text: str) -> int | None:
    """ "32k" or a number of tokens; None for "auto".

    Raises:
        ConfigError: neither.
    """
    word = text.strip().lower()
    if word == "auto":
        return None
    number = word.removesuffix("k")
    if not number.isdigit() or not int(number):
        raise ConfigError(f"the vocabulary's size must be a number of tokens such as 32k, or auto, not {text!r}")
    return int(number) * (1024 if word.endswith("k") else 1)


def cut(source: Path, out: Path, size: int | None, *, corpus: Sequence[Path] = (), head: str | None = None) -> Cut:
    """Write the slimmed draft of `source`.

    Args:
        size: tokens to keep; None measures which number pays most.
        corpus: texts of the user's, whose tokens weigh most.
        head: another number format for the output matrix, one of `rows.GGML_TYPES`.

    Raises:
        Unsupported: not a file that can be slimmed, or no size pays. ConfigError: a corpus that cannot be read, or
        sizes that make no sense. SpecggufError: it cannot be written.
    """
    slim.check(source)
    if out.resolve() == source.resolve():
        raise ConfigError(f"{out} is the draft itself, whose embeddings are still read", hint="-o another file")
    own, why = [_text(path) for path in corpus], ""
    ranking = ranking_of(source, own)
    if size is None:
        choice = chosen(source, ranking, own)
        if not choice.pays:
            raise Unsupported(f"{source.name}: {choice.why}", hint="--vocab-size 64k cuts it nevertheless")
        size, why = choice.best.n, choice.why
    ids = ranking.first(size)
    share = ranking.share(ids)
    slim.write(source, out, ids, share, None if head is None else lambda data, n: rows.requantized(data, n, head))
    step = hparams.of_file(out).read_bytes / hparams.of_file(source).read_bytes
    return Cut(out, len(ids), len(ranking.texts), share, step, why)


def chosen(source: Path, ranking: Ranking, own: Sequence[str] = ()) -> sizes.Choice:
    """The size that pays most, measured here.

    Args:
        own: texts of the user's: some of each is what the size is measured on, and not ranked by.
    """
    parts = [text[at : at + PART] for text in own for at in range(0, len(text), PART)]
    if len(parts) >= HELD_OUT:
        ranking = ranking_of(source, [part for i, part in enumerate(parts) if i % HELD_OUT])
    return sizes.choose(source, ranking.first, parts[::HELD_OUT])


def ranking_of(source: Path, own: Sequence[str] = ()) -> Ranking:
    """How a draft's ids rank. Raises Unsupported for a file that cannot be slimmed."""
    header, texts = slim.check(source), slim.texts(source)
    with devices.vocabulary(str(source)) as native:
        ranked = ranked_ids(lambda text: vocab.tokenize(native, text, add_bos=False, special=False), len(texts), own)
        return Ranking(header, texts, ranked, sorted(vocab.eog_tokens(native)))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SpecggufError(f"{path} cannot be read: {error.strerror or error}") from error
