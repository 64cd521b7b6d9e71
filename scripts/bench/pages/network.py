"""What docs/machines.md shows of docs/results/network.json: a table and a chart by round trip."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.pages.charts import Bar, Panel, chart

SERIES: dict[int | str, str] = {"off": "plain", 3: "3 drafted", "auto": "auto"}
HEADER = ["round trip", "plain", "3 drafted", "auto", "auto over plain", "drafted a round, auto", "KB a token, auto"]

Found = dict[str, Any]


def load(path: Path) -> Found | None:
    """The saved samples, where there are any."""
    found: Found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"samples": []}
    return found if found["samples"] else None


def rows(found: Found) -> list[list[str]]:
    """The table's rows: medians of tokens per second, and what auto did."""
    body = []
    for ms in _round_trips(found):
        speeds = {draft: _median(found, ms, draft, "tokens_per_second") for draft in SERIES}
        drafted = _median(found, ms, "auto", "drafted")
        kb = _median(found, ms, "auto", "kb_per_token")
        gain = speeds["auto"] / speeds["off"]
        body.append(
            [
                f"{ms:g} ms",
                *(f"{speed:.2f}" for speed in speeds.values()),
                f"{gain:.2f}×",
                f"{drafted:.1f}",
                f"{kb:.0f}",
            ]
        )
    return body


def remark(found: Found) -> str:
    """What ran it, in a line."""
    settings, files = found["settings"], found["files"]
    counts = [
        sum(s["round_trip_ms"] == ms and s["draft"] == "auto" for s in found["samples"]) for ms in _round_trips(found)
    ]
    n = " to ".join(map(str, sorted({min(counts), max(counts)})))
    return (
        f"{files['target']} with {files['draft']}, half of the layers on a worker of the same machine"
        f" ({settings['n_threads']} cores for all), code prompts, greedy, {settings['tokens']} tokens, {n} samples"
        f" each; {settings['mbit']:g} Mbit/s, drafts of at most {settings['draft_max']}."
    )


def shapes(found: Found) -> str:
    """What passes of changing size cost more than those of one size; "" where that was not measured."""
    if "shapes" not in found:
        return ""
    changing, *same = (found["shapes"][name] for name in ("5, 6", "5", "6"))
    kb = changing["kb"] - statistics.mean(one["kb"] for one in same)
    wire_ms = kb * 8 / found["settings"]["mbit"]
    listed = " and ".join(f"{one['ms']:.0f} ms" for one in same)
    return (
        f"A pass of another size than the one before sends its graph again: {kb:.0f} KB more, {wire_ms:.1f} ms on this"
        f" wire. Passes over five and six tokens in turn took {changing['ms']:.0f} ms, and {listed} where all are of"
        " one size: so sizes are not held to a few by padding, which would cost a row each."
    )


def picture(found: Found) -> str:
    """Bars by round trip."""
    groups = []
    for ms in _round_trips(found):
        plain = _median(found, ms, "off", "tokens_per_second")
        bars = []
        for series, draft in enumerate(SERIES):
            speed = _median(found, ms, draft, "tokens_per_second")
            note = f"{speed:.1f}" + ("" if draft == "off" else f"  ({speed / plain:.2f}×)")
            bars.append(Bar(speed, note, series))
        groups.append((f"{ms:g} ms", bars))
    return chart("Half of the layers on a worker, by the round trip to it", list(SERIES.values()), [Panel("", groups)])


def _round_trips(found: Found) -> Sequence[float]:
    return sorted({sample["round_trip_ms"] for sample in found["samples"]})


def _median(found: Found, ms: float, draft: int | str, name: str) -> float:
    samples = [s for s in found["samples"] if s["round_trip_ms"] == ms and s["draft"] == draft]
    return statistics.median(_value(sample, name) for sample in samples)


def _value(sample: Found, name: str) -> float:
    if name == "tokens_per_second":
        return float(sample["n_timed"] / (sample["total_s"] - sample["prompt_s"]))
    if name == "drafted":
        return float(sample["draft_n"] / max(sample["n_rounds"], 1))
    return float(sample[name])
