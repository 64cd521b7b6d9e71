"""Cutting a draft: how many of its tokens are worth proposing, and which; the file is written by `models.slim`.

A step of a small draft reads its whole output matrix, so a smaller one is faster, and every token that is not in it
costs acceptance. What is best is worked out from the bytes that a step reads and the share of tokens that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specgguf.errors import ConfigError, SpecggufError
from specgguf.models import hparams, slim
from specgguf.native import devices, vocab
from specgguf.native.mapped import rows

from .token_ranking import ranked_ids

HEADS = tuple(name for name in rows.GGML_TYPES if name.startswith("q"))
SIZES = (8192, 16384, 24576, 32768, 49152, 65536, 98304)
# The pair that a size is chosen for: a target whose pass takes as long as so many draft steps, drafted for in rounds of
# so many tokens, of which so many are accepted. The best size hardly depends on them.
TARGET_COST, DRAFT_LENGTH, ACCEPTANCE = 6.0, 4, 0.8


@dataclass(frozen=True)
class Cut:
    """What was written.

    Attributes:
        n_ids, n_vocab: kept, of how many.
        share: of the tokens of a usual text, those that are kept.
        step: bytes that a draft step reads, beside those of the whole draft.
    """

    path: Path
    n_ids: int
    n_vocab: int
    share: float
    step: float


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
        size: tokens to keep; None chooses.
        corpus: texts of the user's, whose tokens weigh most.
        head: another number format for the output matrix, one of `HEADS`.

    Raises:
        Unsupported: not a file that can be slimmed. ConfigError: a corpus that cannot be read, or sizes that make no
        sense. SpecggufError: it cannot be written.
    """
    header = slim.check(source)
    if out.resolve() == source.resolve():
        raise ConfigError(f"{out} is the draft itself, whose embeddings are still read", hint="-o another file")
    texts = slim.texts(source)
    own = [_text(path) for path in corpus]
    with devices.vocabulary(str(source)) as native:
        ranked = ranked_ids(lambda text: vocab.tokenize(native, text, add_bos=False, special=False), len(texts), own)
        ends = sorted(vocab.eog_tokens(native))
    found = hparams.of_file(source)
    per_id = found.output_bytes / len(texts)
    if size is None:
        size = best_size([share for _, share in ranked], found.read_bytes, per_id)
    ids = slim.kept_ids(header, texts, [token for token, _ in ranked], ends, size)
    slim.write(source, out, ids, None if head is None else lambda data, n: rows.requantized(data, n, head))
    kept = set(ids)
    share = sum(part for token, part in ranked if token in kept)
    return Cut(out, len(ids), len(texts), share, 1.0 - (len(texts) - len(ids)) * per_id / found.read_bytes)


def best_size(shares: Sequence[float], step_bytes: int, id_bytes: float) -> int:
    """How many of the ids with these expected shares, likeliest first, give the most tokens per second."""

    def speed(n: int) -> float:
        accepted = ACCEPTANCE * sum(shares[:n])
        tokens = sum(accepted**i for i in range(DRAFT_LENGTH + 1))
        step = 1.0 - (len(shares) - n) * id_bytes / step_bytes
        return tokens / (TARGET_COST + DRAFT_LENGTH * step)

    fitting = [n for n in SIZES if n < len(shares)] or [max(len(shares) // 2, 1)]
    return max(fitting, key=speed)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise SpecggufError(f"{path} cannot be read: {error.strerror or error}") from error
