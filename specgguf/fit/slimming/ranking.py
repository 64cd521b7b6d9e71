"""Which ids a draft is likeliest to need, the likeliest first: what a slimmed draft keeps.

By a table of counts over code and prose in several languages (made by scripts/count_texts.py), which any tokenizer can
read; by the order of ids, which is that of merges or scores and so of frequency; and by the user's own texts, which
weigh most. Knows nothing of files of models.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from importlib import resources

import numpy as np

Tokenize = Callable[[bytes], list[int]]

OWN_SHARE, ORDER_SHARE = 0.75, 0.1  # of the user's own texts beside the rest; of the order of ids beside the table


def ranked_ids(tokenize: Tokenize, n_vocab: int, own: Iterable[str] = ()) -> list[tuple[int, float]]:
    """(id, expected share of all tokens), in descending order of the share.

    Args:
        own: texts of the user's.
    """
    table, mine = np.zeros(n_vocab), np.zeros(n_vocab)
    for piece, count in pieces():
        table[tokenize(piece.encode())] += count
    for text in own:
        np.add.at(mine, tokenize(text.encode()), 1.0)
    order = 1.0 / np.arange(1, n_vocab + 1)  # Zipf's law
    shares = (1.0 - ORDER_SHARE) * table / table.sum() + ORDER_SHARE * order / order.sum()
    if mine.any():
        shares = (1.0 - OWN_SHARE) * shares + OWN_SHARE * mine / mine.sum()
    best = np.argsort(-shares, kind="stable")
    return [(int(token), float(shares[token])) for token in best]


def pieces() -> Iterator[tuple[str, int]]:
    """The table: a word, blank or sign, and how often it occurs."""
    packed = resources.files(__package__).joinpath("text_counts.txt.gz").read_bytes()
    for line in gzip.decompress(packed).decode().splitlines():
        count, piece = line.split("\t", 1)
        yield json.loads(piece), int(count)
