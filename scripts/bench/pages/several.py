"""The table and the chart of several requests at once, for docs/several.md."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.pages.charts import Bar, Panel, chart

TITLES = {"f16": "F16", "q8": "Q8_0", "q4": "Q4_K_M"}
WAYS = ("plain in turn", "plain together", "fixed 3", "auto")
Saved = dict[str, Any]


def load(results: Path) -> list[Saved]:
    """What `scripts/bench/run several` saved, a pair each, in the order of their formats."""
    paths = [results / f"several-{name}.json" for name in TITLES]
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def part(found: Sequence[Saved]) -> str:
    """The tables, one for each pair, and who measured them."""
    return "\n\n".join(_table(saved) for saved in found)


def _table(saved: Saved) -> str:
    device = saved["machine"]["devices"][0]["name"]
    head = (
        f"**{TITLES[saved['name']]}** (`{saved['model']}`, drafts of `{saved['draft_model']}`): {device},"
        f" {saved['machine']['n_cores']} cores; {saved['n_tokens']} tokens each, temperature 0,"
        f" {_repeats(saved)} interleaved repeats, medians; specgguf at {_commits(saved)}."
    )
    lines = [
        "| at once | in turn | together | fixed 3 | auto | auto of the best plain | auto of in turn"
        " | drafted a token | slowest 5 %: plain, auto |",
        "|" + " ---: |" * 9,
    ]
    for cell in saved["cells"]:
        ways, speeds = cell["ways"], [f"{cell['median'][way]:.1f}" for way in WAYS]
        gain = statistics.median(
            auto["tokens_per_s"] / turn["tokens_per_s"]
            for auto, turn in zip(ways["auto"], ways["plain in turn"], strict=True)
        )
        drafted = statistics.median(one["drafted"] for one in ways["auto"])
        late = [statistics.median(one["p95_s"] for one in ways[way]) for way in ("plain together", "auto")]
        row = [
            str(cell["size"]), *speeds, f"{cell['auto_of_best_plain']:.2f}×", f"{gain:.2f}×", f"{drafted:.2f}",
            f"{late[0]:.1f} s, {late[1]:.1f} s",
        ]  # fmt: skip
        lines.append("| " + " | ".join(row) + " |")
    beside = [cell for cell in saved["cells"] if "auto_of_server" in cell]
    if not beside:
        return head + "\n\n" + "\n".join(lines)
    said = "; ".join(
        f"{cell['size']} at once {cell['median']['llama-server plain']:.1f} plain,"
        f" {cell['median']['llama-server 3']:.1f} drafting: auto {cell['auto_of_server']:.2f}×"
        for cell in beside
    )
    lines += ["", f"llama-server with as many slots, plain and with three drafted tokens, over HTTP: {said}."]
    return head + "\n\n" + "\n".join(lines)


def _commits(saved: Saved) -> str:
    """Where sizes were measured again later, those of several."""
    return ", ".join(dict.fromkeys(str(cell.get("commit") or saved["commit"]) for cell in saved["cells"]))


def _repeats(saved: Saved) -> str:
    counts = sorted({len(cell["ways"]["auto"]) for cell in saved["cells"]})
    return " or ".join(map(str, counts))


def picture(found: Sequence[Saved]) -> str:
    """Tokens per second in all by how many run at once, a panel for each pair."""
    panels = []
    for saved in found:
        groups = []
        for cell in saved["cells"]:
            bars = [Bar(cell["median"][way], f"{cell['median'][way]:.1f}", WAYS.index(way)) for way in WAYS]
            groups.append((f"{cell['size']} at once", bars))
        panels.append(Panel(TITLES[saved["name"]], groups))
    return chart("Several requests at once: tokens per second in all", list(WAYS), panels)
