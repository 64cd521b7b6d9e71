"""Plain tables: columns in line, text cleaned, numbers to the right. For people; scripts take `--json`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from specgguf.cli.terminal import console
from specgguf.cli.terminal.console import clean

LEAST_COLUMNS = 20  # columns: a last column that is narrower is left to the terminal


def lines(
    rows: Sequence[Sequence[object]],
    header: Sequence[str] = (),
    *,
    right: Sequence[int] = (),
    width: int | None = None,
) -> list[str]:
    """`rows` as aligned lines, the header first where there is one.

    Args:
        right: the columns that are numbers.
        width: columns of the terminal, where texts in the last column are to be broken to stay within it.
    """
    table = [[clean(str(cell)).replace("\n", " ") for cell in row] for row in ([header] if header else []) + list(rows)]
    if not table:
        return []
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    chat = (width or 0) - 1 - sum(w + 2 for w in widths[:-1])
    folds = chat >= LEAST_COLUMNS and len(widths) - 1 not in right
    padded = []
    for row in table:
        *cells, last = (
            f"{cell:>{w}}" if i in right else f"{cell:<{w}}"
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        start = "".join(cell + "  " for cell in cells)
        texts = console.rows(row[-1], chat) if folds else [last]
        padded += [start + texts[0], *(" " * len(start) + text for text in texts[1:])]
    return [line.rstrip() for line in padded]


def show(rows: Sequence[Sequence[object]], header: Sequence[str] = (), *, right: Sequence[int] = ()) -> None:
    """Print `lines` on stdout, fitted to it where it is a terminal."""
    width = console.width(sys.stdout) if sys.stdout.isatty() else None
    for line in lines(rows, header, right=right, width=width):
        click.echo(line)
