"""Write the tables and charts of docs/performance.md and docs/machines.md, and README's picture.

scripts/bench/run page              rewrite what stands between the markers
scripts/bench/run page --check      fail when a page is not what the results say
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.heads import heads
from bench.lib.cells import RESULTS, ROOT, load_all, say
from bench.lib.tables import (
    HEADER,
    PEER_HEADER,
    PEER_WANTED,
    Cells,
    RegimeRow,
    geometric_means,
    peer_cells,
    peer_rows,
    regime_cells,
    regime_rows,
)
from bench.pages import network
from bench.pages.charts import Bar, Panel, chart
from specgguf.config import DRAFT_MAX_DEFAULT
from specgguf.fit import predict

PAGE = ROOT / "docs" / "performance.md"
CHARTS = {"headline": "headline.svg", "regimes": "performance-regimes.svg", "peers": "performance-peers.svg"}
NETWORK = ("machines.md", "machines-network.svg")
TARGET_NAMES = {"f16": "F16", "q8": "Q8_0", "q4": "Q4_K_M"}
REGIME_NAMES = {"f16": "F16: memory-bound", "q8": "Q8_0: in between", "q4": "Q4_K_M: compute-bound"}
NOTHING = "*Not measured yet.*"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A Markdown table."""
    marks = ["---:" if i in right else "---" for i in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, marks, *rows])


def machine_of(cells: Cells) -> str:
    """One line on what ran it, of the latest cell."""
    if not cells:
        return ""
    head = max((head for head, _ in cells.values()), key=lambda h: str(h["date"]))
    device = head["machine"]["devices"][0]["name"]
    versions, settings = head["versions"], head["settings"]
    commits = ", ".join(sorted({str(h["commit"]) for h, _ in cells.values()}))
    return (
        f"{device}, {head['machine']['n_cores']} cores, {settings['n_threads']} threads;"
        f" llama-cpp-python {versions['llama-cpp-python']}, specgguf at {commits};"
        f" {settings['tokens']} tokens a sample; {head['date'][:10]}."
    )


def regimes_part(cells: Cells) -> str:
    """The table of the regimes, and what was missed."""
    rows = regime_rows(cells)
    if not rows:
        return NOTHING
    body = [[*regime_cells(row)[:-1], "yes" if row.met else "**no**"] for row in rows]
    text = table([*HEADER[:-1], "met"], body, right=(3, 4, 5, 6, 9))
    limits = {cell.regime: head.get("draft_max", DRAFT_MAX_DEFAULT) for cell, (head, _) in cells.items()}
    most = ", ".join(f"{limits[name]} on {TARGET_NAMES[name]}" for name in TARGET_NAMES if name in limits)
    missed = [row for row in rows if not row.met]
    recommendation = (
        "Every cell is met." if not missed else f"{len(missed)} of {len(rows)} cells are not met; see below."
    )
    picture = f"![Tokens per second, plain and auto]({CHARTS['regimes']})"
    return "\n\n".join([picture, f"{machine_of(cells)} Auto drafts at most {most}.", text, recommendation])


def absolute_part(cells: Cells) -> str:
    """Absolute speeds of the three targets side by side, at default sampling."""
    rows = [row for row in regime_rows(cells) if row.cell.temperature > 0]
    kinds = list(dict.fromkeys(row.cell.kind for row in rows))
    if not kinds:
        return NOTHING

    def entry(kind: str, regime: str) -> str:
        row = next((r for r in rows if (r.cell.kind, r.cell.regime) == (kind, regime)), None)
        return f"{max(row.llama, row.ours):.1f} → {row.auto:.1f}" if row else ""

    body = [[kind, *(entry(kind, regime) for regime in TARGET_NAMES)] for kind in kinds]
    return table(["plain → auto, tok/s", *TARGET_NAMES.values()], body, right=(1, 2, 3))


def peers_part(cells: Cells) -> str:
    """The table against llama-server, and the means."""
    rows = peer_rows(cells)
    if not rows:
        return NOTHING
    header = [word or "server's setting" for word in PEER_HEADER]
    text = table(header, [peer_cells(row) for row in rows], right=(2, 3, 4, 6, 7, 8))
    means = [
        f"At temperature {t:g} the geometric mean over the kinds is **{gain:.2f}×** llama-server's best setting"
        f" (wanted: {PEER_WANTED.get(t, 1.0):g}), {whole:.2f}× with the reading of the prompt."
        for t, (gain, whole) in geometric_means(rows).items()
    ]
    limits = {cell.temperature: head.get("draft_max", DRAFT_MAX_DEFAULT) for cell, (head, _) in cells.items()}
    most = ", ".join(f"{limits[t]} tokens at temperature {t:g}" for t in sorted(limits))
    picture = f"![Tokens per second beside llama-server]({CHARTS['peers']})"
    return "\n\n".join([picture, f"{machine_of(cells)} Auto drafts at most {most}.", text, *means])


def host_part(path: Path) -> str:
    """Python's share: the two costs, the stages of a round, and one distribution."""
    if not path.exists():
        return NOTHING
    head: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    costs = [
        [name, f"{found['ms_per_drafted_token']:.3f} (≤ 0.4)", f"{found['ms_per_round']:.3f} (≤ 0.5)"]
        for name, found in head["wide"].items()
    ]
    parts = [table(["V = 151,936", "ms per drafted token", "ms per round on top"], costs, right=(1, 2))]
    columns = {name: found["stages"]["4"]["stages_ms_and_calls"] for name, found in head["wide"].items()}
    stages = list(dict.fromkeys(stage for column in columns.values() for stage in column))
    body = [[s, *(f"{column[s][0]:.3f}" if s in column else "" for column in columns.values())] for s in stages]
    parts.append(table(["a round of four drafted tokens, ms", *columns], body, right=(1, 2)))
    parts.append(table(["one row of 151,936", "ms"], [[n, f"{ms:.3f}"] for n, ms in head["rows_ms"].items()], (1,)))
    auto = [s for s in head["samples"] if s["draft"] == "auto" and s["kind"] != "long"]
    if auto:
        share = 1.0 - sum(s["decode_s"] for s in auto) / sum(s["total_s"] for s in auto)
        parts.append(f"On the real pair, auto: {share:.2%} of the run outside llama.cpp (wanted: at most 1.5 %).")
        long = [s for s in head["samples"] if s["kind"] == "long"]
        plain, own = (statistics.median(s["first_s"] for s in long if s["draft"] == d) for d in ("off", "auto"))
        parts.append(
            f"The first token after a prompt of {long[0]['n_prompt']} tokens: plain {plain:.2f} s, auto {own:.2f} s,"
            f" {own / plain:.2f}× (wanted: at most 1.3)."
        )
    return "\n\n".join(parts)


def predictions_part(path: Path) -> str:
    """What forward passes cost by batch size, and the speed-up predicted from that beside the measured one."""
    if not path.exists():
        return NOTHING
    saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    sizes = [int(n) for n in saved["regimes"][0]["samples"][0]["verify_s"]]
    costs, gains = [], []
    for regime in saved["regimes"]:
        samples = regime["samples"]
        seconds = {n: statistics.median(s["verify_s"][str(n)] for s in samples) for n in sizes}
        pair = predict.from_measured(seconds, statistics.median(s["draft_s"] for s in samples))
        perfect, length = max((predict.speed_up(pair, 1.0, n - 1), n - 1) for n in sizes[1:])
        free = max(n * seconds[1] / seconds[n] for n in sizes)
        milliseconds = [f"{1e3 * seconds[n]:.0f}" for n in sizes]
        bounds = [f"{perfect:.2f}× (K = {length})", f"{free:.2f}×"]
        costs.append([REGIME_NAMES[regime["regime"]], *milliseconds, f"{1e3 * pair.draft_s:.1f}", *bounds])
        for row in regime["rows"]:
            off = row["predicted"] / row["measured"] - 1.0
            names = [regime["regime"], str(row["length"])]
            gains.append([*names, f"{row['predicted']:.2f}×", f"{row['measured']:.2f}×", f"{off:+.0%}"])
    header = [
        "a forward pass of the target over … tokens, ms",
        *map(str, sizes),
        "a draft token",
        "gain if every token were right",
        "and were n-gram matches",
    ]
    right = tuple(range(1, len(header)))
    parts = [table(header, costs, right)]
    parts.append(table(["regime", "K", "predicted", "measured", ""], gains, right=(1, 2, 3, 4)))
    return "\n\n".join(parts)


def heads_part(path: Path) -> str:
    """What drafting with prediction heads costs, and what it must reach."""
    if not path.exists():
        return NOTHING
    saved: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    machine, versions = saved["machine"], saved["versions"]
    about = (
        f"{machine['devices'][0]['name']}, {saved['settings']['n_threads']} threads; llama-cpp-python"
        f" {versions['llama-cpp-python']}, specgguf at {saved['commit']}; medians of {saved['settings']['repeats']};"
        f" {saved['date'][:10]}. Random weights: **no head of a real model was run**."
    )
    return about + "\n\n" + table(heads.HEADER, [heads.cells(row) for row in saved["rows"]], right=(2, 3, 4, 5, 6))


def network_part(found: network.Found | None, picture: str) -> str:
    """Speeds by the round trip to a worker."""
    if found is None:
        return NOTHING
    text = table(network.HEADER, network.rows(found), right=tuple(range(1, len(network.HEADER))))
    parts = [f"![Tokens per second by round trip]({picture})", network.remark(found), text, network.shapes(found)]
    return "\n\n".join(part for part in parts if part)


def headline_chart(rows: Sequence[RegimeRow]) -> str:
    """Auto over plain by kind, a bar per regime, at default sampling: README's picture."""
    warm = [row for row in rows if row.cell.temperature > 0]
    regimes = [name for name in ("q4", "q8", "f16") if any(row.cell.regime == name for row in warm)]
    groups = []
    for kind in dict.fromkeys(row.cell.kind for row in warm):
        of = {row.cell.regime: row.gain for row in warm if row.cell.kind == kind}
        groups.append(
            (kind, [Bar(of[name], f"{of[name]:.2f}×", regimes.index(name)) for name in regimes if name in of])
        )
    title = "Speed with drafting on auto, as a multiple of plain decoding"
    names = [REGIME_NAMES[name] for name in regimes]
    return chart(title, names, [Panel("", groups)], unit="times plain decoding (the line: 1×)", mark=1.0)


def regime_chart(rows: Sequence[RegimeRow]) -> str:
    """Plain and auto by kind, a panel per regime, at default sampling."""
    panels = []
    for regime, title in REGIME_NAMES.items():
        of = [row for row in rows if row.cell.regime == regime and row.cell.temperature > 0]
        groups = []
        for row in of:
            plain = max(row.llama, row.ours)
            bars = [Bar(plain, f"{plain:.1f}", 0), Bar(row.auto, f"{row.auto:.1f}  ({row.gain:.2f}×)", 1)]
            groups.append((row.cell.kind, bars))
        if groups:
            panels.append(Panel(title, groups))
    return chart("Plain and adaptive drafting, temperature 0.8", ["plain", "specgguf auto"], panels)


def peer_chart(cells: Cells) -> str:
    """Llama, llama-server plain and at its best, and auto, by kind, a panel per temperature."""
    rows, panels = peer_rows(cells), []
    for t in sorted({row.cell.temperature for row in rows}, reverse=True):
        groups = []
        for row in (r for r in rows if r.cell.temperature == t):
            runners = ("llama_cpp.Llama off", "llama-server off", row.best, "specgguf auto")
            notes = ("", "", f"  ({row.best.removeprefix('llama-server ')})", f"  ({row.gain:.2f}×)")
            bars = [
                Bar(row.speeds[name], f"{row.speeds[name]:.1f}{note}", i)
                for i, (name, note) in enumerate(zip(runners, notes, strict=True))
                if name in row.speeds
            ]
            groups.append((row.cell.kind, bars))
        panels.append(Panel(f"temperature {t:g}", groups))
    names = ["llama_cpp.Llama", "llama-server plain", "its best drafting", "specgguf auto"]
    return chart("The same F16 pair, prompts and sampling", names, panels)


def fill(page: str, parts: dict[str, str]) -> str:
    """`page` with new text between its markers."""
    for name, text in parts.items():
        pattern = re.compile(rf"(<!-- {name}: made by scripts/bench/run page -->\n).*?(<!-- end -->)", re.DOTALL)
        if not pattern.search(page):
            sys.exit(f"the page has no marker for {name}")
        start, end = pattern.split(page)[0], pattern.split(page)[-1]
        opening, closing = pattern.findall(page)[0]
        page = f"{start}{opening}\n{text}\n\n{closing}{end}"
    return page


def main() -> int:
    """Write the page and the charts, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail when something would change")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="[docs/results]")
    parser.add_argument("--out", type=Path, default=PAGE.parent, metavar="DIR", help="[docs]")
    args = parser.parse_args()
    regimes, peers = load_all(args.results / "regimes"), load_all(args.results / "peers")
    parts = {
        "regimes": regimes_part(regimes),
        "absolute": absolute_part(regimes),
        "peers": peers_part(peers),
        "host": host_part(args.results / "host.json"),
        "predictions": predictions_part(args.results / "predictions.json"),
        "heads": heads_part(args.results / "heads.json"),
    }
    page, picture = NETWORK
    found = network.load(args.results / "network.json")
    over = {"network": network_part(found, picture)}
    made = {args.out / page: fill((PAGE.parent / page).read_text(encoding="utf-8"), over)}
    if found is not None:
        made[args.out / picture] = network.picture(found)
    made[args.out / PAGE.name] = fill(PAGE.read_text(encoding="utf-8"), parts)
    if regime_rows(regimes):
        made[args.out / CHARTS["headline"]] = headline_chart(regime_rows(regimes))
        made[args.out / CHARTS["regimes"]] = regime_chart(regime_rows(regimes))
    if peer_rows(peers):
        made[args.out / CHARTS["peers"]] = peer_chart(peers)
    changed = []
    for path, text in made.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            changed.append(path.name)
            if not args.check:
                path.write_text(text, encoding="utf-8")
    say("changed: " + ", ".join(changed) if changed else "nothing to change")
    return 1 if args.check and changed else 0
