"""What saved cells say, against what was asked for: numbers for the terminal, the page and the chart alike."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specgguf.cli.terminal.tables import lines

from bench.lib.cells import Cell
from specgguf.bench.recommend import gains, speed
from specgguf.bench.runs import KINDS, Sample

Cells = Mapping[Cell, tuple[dict[str, Any], list[Sample]]]
REGULAR = ("code", "json", "edit")  # text that a small draft foresees well
PLAIN_WANTED = 0.97  # of plain, where drafting cannot pay
FIXED_WANTED = 0.95  # of the best fixed length
WANTED = {"f16": 1.5, "q8": 1.25, "q4": PLAIN_WANTED}  # times plain, on regular text
PEER_WANTED = {0.0: 1.0, 0.8: 1.1}  # times llama-server's best setting, by temperature


@dataclass(frozen=True)
class RegimeRow:
    """A cell of the regimes' table.

    Attributes:
        llama, ours, auto: tokens per second of llama_cpp.Llama, our engine without drafting, and auto.
        gain, low, high: auto over the faster of the two, and the range over the repeats.
        fixed, of_fixed: the fixed length that was best on odd repeats, and auto over it on even ones.
        draft_n: tokens per round that auto drafted, those without a draft included.
        wanted: the gain that was asked for; met: whether everything was.
    """

    cell: Cell
    llama: float
    ours: float
    auto: float
    gain: float
    low: float
    high: float
    fixed: int | None
    fixed_speed: float
    of_fixed: float | None
    draft_n: float
    acceptance: float | None
    wanted: float
    met: bool


def _in_order(cells: Iterable[Cell]) -> list[Cell]:
    def place(cell: Cell) -> tuple[Any, ...]:
        regimes, kinds = list(WANTED), list(KINDS)
        kind = kinds.index(cell.kind) if cell.kind in kinds else len(kinds)
        return regimes.index(cell.regime) if cell.regime in regimes else 9, cell.temperature, kind, cell.kind

    return sorted(cells, key=place)


def pick(samples: Sequence[Sample], engine: str, draft: int | str) -> list[Sample]:
    """The samples of one runner."""
    return [s for s in samples if (s.engine, s.draft) == (engine, draft)]


def ratio(own: Sequence[Sample], other: Sequence[Sample], temperature: float) -> float:
    """At temperature 0 every repeat writes the same text: the median of the repeats' ratios. Above it the texts
    differ: all tokens over all seconds."""
    if temperature == 0:
        return statistics.median(gains(own, other))
    return speed(own) / speed(other)


def regime_rows(cells: Cells) -> list[RegimeRow]:
    """A row per cell that has plain and auto."""
    rows = []
    for cell in _in_order(cells):
        samples = cells[cell][1]
        llama, ours, auto = (pick(samples, *runner) for runner in _BASIC)
        if not (llama and ours and auto):
            continue
        plain = max(llama, ours, key=speed)
        own_gains = gains(auto, plain)
        gain = ratio(auto, plain, cell.temperature)
        fixed, of_fixed = best_fixed(samples, auto)
        wanted = WANTED.get(cell.regime, PLAIN_WANTED) if cell.kind in REGULAR else PLAIN_WANTED
        judged_by_fixed = cell.regime == "f16" and cell.kind in REGULAR
        met = gain >= wanted and (not judged_by_fixed or (of_fixed is not None and of_fixed >= FIXED_WANTED))
        draft_n, n_rounds = sum(s.draft_n for s in auto), sum(s.n_rounds for s in auto)
        rows.append(
            RegimeRow(
                cell=cell,
                llama=speed(llama),
                ours=speed(ours),
                auto=speed(auto),
                gain=gain,
                low=min(own_gains),
                high=max(own_gains),
                fixed=fixed,
                fixed_speed=speed(pick(samples, "specgguf", fixed)) if fixed else 0.0,
                of_fixed=of_fixed,
                draft_n=draft_n / max(n_rounds, 1),
                acceptance=sum(s.draft_n_accepted for s in auto) / draft_n if draft_n else None,
                wanted=wanted,
                met=met,
            )
        )
    return rows


_BASIC: tuple[tuple[str, int | str], ...] = (("llama_cpp.Llama", "off"), ("specgguf", "off"), ("specgguf", "auto"))


def best_fixed(samples: Sequence[Sample], auto: Sequence[Sample]) -> tuple[int | None, float | None]:
    """The fixed length that was fastest on the first, third, … repeat, and auto over it on the others: chosen and
    compared on different samples, so that luck in choosing does not count."""
    lengths = sorted({s.draft for s in samples if s.engine == "specgguf" and isinstance(s.draft, int)})
    if not lengths:
        return None, None
    chosen = max(lengths, key=lambda k: speed(s for s in pick(samples, "specgguf", k) if s.repeat % 2 == 0))
    even = [s for s in pick(samples, "specgguf", chosen) if s.repeat % 2]
    own = [s for s in auto if s.repeat % 2]
    return chosen, speed(own) / speed(even) if own and even else None


HEADER = ("regime", "T", "kind", "Llama", "ours off", "auto", "× plain", "range", "K", "of best K", "wanted", "")


def regime_table(cells: Cells) -> list[str]:
    """The table as lines of text."""
    rows = [regime_cells(row) for row in regime_rows(cells)]
    return lines(rows, HEADER, right=(3, 4, 5, 6, 9)) if rows else ["no cell is complete yet"]


def regime_cells(row: RegimeRow) -> list[str]:
    """A row as text, in HEADER's order."""
    return [
        row.cell.regime,
        f"{row.cell.temperature:g}",
        row.cell.kind,
        f"{row.llama:.1f}",
        f"{row.ours:.1f}",
        f"{row.auto:.1f}",
        f"{row.gain:.2f}",
        f"{row.low:.2f}–{row.high:.2f}",
        str(row.fixed or ""),
        f"{row.of_fixed:.2f}" if row.of_fixed is not None else "",
        f"≥ {row.wanted:g}",
        "ok" if row.met else "MISSED",
    ]


@dataclass(frozen=True)
class PeerRow:
    """A kind at a temperature, against llama-server's best setting.

    Attributes:
        speeds: tokens per second by runner.
        best: the fastest setting of llama-server.
        gain: specgguf auto over it, generating; whole: the same with reading the prompt.
    """

    cell: Cell
    speeds: dict[str, float]
    best: str
    gain: float
    whole: float


def peer_rows(cells: Cells) -> list[PeerRow]:
    """A row per cell that has llama-server and auto."""
    rows = []
    for cell in _in_order(cells):
        samples = cells[cell][1]
        runners = list(dict.fromkeys((s.engine, s.draft) for s in samples))
        of = {f"{engine} {draft}": pick(samples, engine, draft) for engine, draft in runners}
        servers = {name: own for name, own in of.items() if name.startswith("llama-server")}
        auto = of.get("specgguf auto")
        if not servers or not auto:
            continue
        best = max(servers, key=lambda name: speed(servers[name]))
        gain = ratio(auto, servers[best], cell.temperature)
        whole = _whole_speed(auto) / max(_whole_speed(own) for own in servers.values())
        rows.append(PeerRow(cell, {name: speed(own) for name, own in of.items()}, best, gain, whole))
    return rows


def _whole_speed(samples: Sequence[Sample]) -> float:
    return sum(s.n_generated for s in samples) / sum(s.total_s for s in samples)


def geometric_means(rows: Sequence[PeerRow]) -> dict[float, tuple[float, float]]:
    """By temperature, over the kinds: the gain in generating, and with the prompt."""

    def mean(values: Sequence[float]) -> float:
        return math.exp(statistics.fmean(math.log(v) for v in values))

    return {
        t: (mean([r.gain for r in of_t]), mean([r.whole for r in of_t]))
        for t in sorted({r.cell.temperature for r in rows})
        for of_t in [[r for r in rows if r.cell.temperature == t]]
    }


PEER_HEADER = ("T", "kind", "Llama", "server", "server's best", "", "specgguf auto", "× best", "with prompt")


def peer_cells(row: PeerRow) -> list[str]:
    """A row as text, in PEER_HEADER's order."""
    speeds = row.speeds
    return [
        f"{row.cell.temperature:g}",
        row.cell.kind,
        f"{speeds['llama_cpp.Llama off']:.1f}" if "llama_cpp.Llama off" in speeds else "",
        f"{speeds['llama-server off']:.1f}" if "llama-server off" in speeds else "",
        f"{speeds[row.best]:.1f}",
        row.best.removeprefix("llama-server "),
        f"{speeds['specgguf auto']:.1f}",
        f"{row.gain:.2f}",
        f"{row.whole:.2f}",
    ]


def peer_table(cells: Cells) -> list[str]:
    """The table as lines of text, and the means."""
    rows = peer_rows(cells)
    if not rows:
        return ["no cell is complete yet"]
    text = lines([peer_cells(row) for row in rows], PEER_HEADER, right=(2, 3, 4, 6, 7, 8))
    for t, (gain, whole) in geometric_means(rows).items():
        wanted = PEER_WANTED.get(t, 1.0)
        recommendation = "ok" if gain >= wanted else "MISSED"
        text.append(
            f"T = {t:g}: geometric mean {gain:.2f} (wanted ≥ {wanted:g}: {recommendation}), with the prompt {whole:.2f}"
        )
    return text
