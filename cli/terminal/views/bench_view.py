"""Measured samples as people read them: a table with bars, and what to do about each kind of prompt."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specgguf.cli.terminal.progress import human_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from specgguf.bench.recommend import Report, Row
    from specgguf.bench.runs import Sample

BAR = 10
POSITIONS = 6  # columns of acceptance that fit
WIDTH = 100  # where there is no terminal


def show(samples: Sequence[Sample], *, color: str = "auto") -> None:
    """The table and the recommendations, on stdout."""
    from specgguf.bench import recommend, results

    reports = recommend.report(samples)
    out = _console(color)
    out.print(_table(reports))
    out.print()
    widest = max(len(report.kind) for report in reports)
    for report in reports:
        draft = report.recommendation.draft
        style = "dim" if draft is None else "red" if draft == "off" else "green"
        out.print(f"{report.kind:{widest}}  ", end="", style="bold")
        out.print(report.recommendation.text, style=style, highlight=False)
    _show_break_even(samples, out)
    out.print()
    taken = ", ".join(f"{human_bytes(n)} {name}" for name, n in results.memory().items())
    out.print(f"memory: {taken}", style="dim", highlight=False)


def _show_break_even(samples: Sequence[Sample], out: Console) -> None:
    """By fixed draft length: what it costs, and how often its tokens must be accepted to be as fast as plain."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from specgguf.bench.break_even import break_even

    found = break_even(samples)
    if not found:
        return
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("a round, in plain tokens' time", no_wrap=True)
    for one in found:
        table.add_column(f"K={one.draft_n}", justify="right", no_wrap=True)
    table.add_row("drafting", *(f"{one.draft_cost:.2f}" for one in found))
    table.add_row("drafting and verifying", *(f"{one.round_cost:.2f}" for one in found))
    needed = ("never" if one.needed is None else f"{one.needed:.0%}" for one in found)
    table.add_row("breaks even when accepted", *needed, style="bold")
    table.add_row("accepted", *("" if one.measured is None else f"{one.measured:.0%}" for one in found))
    out.print(table)


def _console(color: str) -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH
    return Console(
        file=sys.stdout,
        width=width,
        force_terminal=True if color == "always" else None,
        no_color=True if color == "never" else None,
    )


def _table(reports: Sequence[Report]) -> Any:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("draft", no_wrap=True)
    table.add_column("tok/s", justify="right", no_wrap=True)
    table.add_column("range", justify="right", no_wrap=True, style="dim")
    table.add_column("", width=BAR)
    table.add_column("×", justify="right", no_wrap=True)
    table.add_column("% accepted", no_wrap=True)
    table.add_column("/pass", justify="right", no_wrap=True)
    table.add_column("first", justify="right", no_wrap=True)
    table.add_column("host", justify="right", no_wrap=True)
    for report in reports:
        table.add_row(report.kind, style="bold")
        fastest = max(row.speed for row in report.rows)
        for row in report.rows:
            table.add_row(*_cells(row, fastest), style="green" if row.draft == "auto" else "")
        table.add_section()
    return table


def _cells(row: Row, fastest: float) -> list[Any]:
    from rich.bar import Bar

    spread = f"{row.speed_low:.1f}–{row.speed_high:.1f}" if row.n_repeats > 1 else ""
    by_position = " ".join(f"{100 * a:.0f}" for a in row.by_position[:POSITIONS])
    return [
        f"  {row.draft}",
        f"{row.speed:.1f}",
        spread,
        Bar(fastest or 1.0, 0, row.speed, width=BAR),
        "?" if row.is_disturbed else f"{row.gain:.2f}" if row.gain is not None else "",
        by_position + (" …" if len(row.by_position) > POSITIONS else ""),
        f"{row.tokens_per_pass:.1f}",
        f"{row.first_s:.1f} s" if row.first_s >= 1 else f"{1000 * row.first_s:.0f} ms",
        f"{100 * row.host_share:.1f} %" if row.host_share is not None else "",
    ]
