"""What `specgguf doctor` found, for people: versions and devices, the pair's speed, and the lines to type.

Knows nothing of how it was found.
"""

from __future__ import annotations

from typing import Any

import click
from specgguf.cli.terminal import console, tables


def show(report: dict[str, Any]) -> None:
    """The report of `specgguf doctor`, as its JSON has it: what there is, then what to change."""
    heads = ("prediction heads", _on_heads(report["prediction_heads"]))
    tables.show([*report["versions"].items(), heads, *report["machine"].items()])
    pair = report.get("pair")
    if pair:
        click.echo()
        tables.show(_pair_rows(pair))
        if pair["draft"]:
            click.echo(_outlook(pair["break_even"]))
    click.echo()
    for finding in report["warnings"]:
        click.echo(f"{'!' if finding['is_fault'] else '·'} {console.clean(finding['text'])}")
        if finding["line"]:
            click.echo(f"    {finding['line']}")
    if not any(finding["is_fault"] for finding in report["warnings"]):
        click.echo("nothing to change")


def _on_heads(heads: dict[str, Any]) -> str:
    runs = heads["missing"] or "can be run"
    if not heads["target"]:
        return runs
    return f"{runs}; {heads['target']} has {heads['n'] or 'none'}{' (-d heads)' if heads['n'] else ''}"


def _outlook(break_even: float | None) -> str:
    if break_even is None:
        return "drafting cannot pay with this pair here: drafting will be off"
    return f"drafting pays here when more than {break_even:.0%} of the drafted tokens are accepted"


def _pair_rows(pair: dict[str, Any]) -> list[tuple[str, str]]:
    plain = pair["verify_s"][1]
    verify = ", ".join(f"{n}: {s * 1e3:.0f} ms" for n, s in pair["verify_s"].items())
    rows = [("target", pair["target"]), ("draft", pair["draft"] or "none")]
    if pair["slimmed"]:
        rows.append(("", pair["slimmed"]))
    rows.append(("rollback", ", ".join(f"{who} {rollback}" for who, rollback in pair["rollback"].items())))
    rows += [(f"layers of the {side}", where) for side, where in pair["placement"].items()]
    rows.append(("plain decoding", f"{1 / plain:.1f} tokens/s"))
    rows.append(("a pass over n tokens", verify))
    if pair["draft_s"]:
        rows.append(("a draft token", f"{pair['draft_s'] * 1e3:.1f} ms, {plain / pair['draft_s']:.1f} times faster"))
    return rows
