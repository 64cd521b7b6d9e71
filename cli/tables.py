"""Plain tables: columns in line, text cleaned, numbers to the right. For people; scripts take `--json`."""

from __future__ import annotations

from collections.abc import Sequence

import click
from specgguf.cli.terminal import clean


def lines(rows: Sequence[Sequence[object]], header: Sequence[str] = (), *, right: Sequence[int] = ()) -> list[str]:
    """`rows` as aligned lines, the header first where there is one.

    Args:
        right: the columns that are numbers.
    """
    table = [[clean(str(cell)).replace("\n", " ") for cell in row] for row in ([header] if header else []) + list(rows)]
    if not table:
        return []
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    padded = (
        "  ".join(
            f"{cell:>{w}}" if i in right else f"{cell:<{w}}"
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in table
    )
    return [line.rstrip() for line in padded]


def show(rows: Sequence[Sequence[object]], header: Sequence[str] = (), *, right: Sequence[int] = ()) -> None:
    """Print `lines` on stdout."""
    for line in lines(rows, header, right=right):
        click.echo(line)
