"""Draft length, acceptance and speed over one answer, as SVG: run plot-trace TRACE.jsonl OUT.svg

TRACE is what `specgguf chat --trace FILE` or SpeculativeLlama(trace=FILE) wrote; its last answer is drawn.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .pages.charts import STYLE

LEFT, WIDTH, HEIGHT, GAP, TOP = 66, 620, 90, 34, 34
SMOOTH = 8  # rounds over which speed is averaged

Json = dict[str, Any]
Point = tuple[float, float]


def last_answer(records: Sequence[Json]) -> list[tuple[Json, Json]]:
    """The plan and the round of each round of the last answer."""
    pairs = [(a, b) for a, b in itertools.pairwise(records) if (a["event"], b["event"]) == ("plan", "round")]
    begins = [i for i, (plan, _) in enumerate(pairs) if plan["why"] == "first token"]
    return pairs[begins[-1] + 1 :] if begins else pairs


def seconds(round: Json) -> float:
    """What a round took."""
    return float(round["prefill_s"] + round["draft_s"] + round["verify_s"] + round["host_s"])


def svg(pairs: Sequence[tuple[Json, Json]]) -> str:
    """Three panels over the tokens of the answer."""
    at, lengths, rates, speeds, plain = [0], [], [], [], []
    for i, (plan, round) in enumerate(pairs):
        recent = [r for _, r in pairs[max(i - SMOOTH + 1, 0) : i + 1]]
        lengths.append(float(round["drafted"]))
        rates.append(100 * plan["acceptance"])
        speeds.append(sum(r["tokens"] for r in recent) / max(sum(map(seconds, recent)), 1e-9))
        plain.append(plan["speeds"][0])
        at.append(at[-1] + round["tokens"])
    n = max(at[-1], 1)
    x: Callable[[int], float] = lambda token: LEFT + WIDTH * token / n  # noqa: E731 - a scale
    parts = [_text(0, 18, "One answer: draft tokens a round, acceptance, tokens per second", "title")]
    panels: list[tuple[str, list[tuple[str, list[float]]], float]] = [
        ("draft tokens", [("line3", lengths)], max(lengths, default=1.0)),
        ("acceptance, %", [("line2", rates)], 100.0),
        ("tokens/s", [("line1", plain), ("line3", speeds)], max([*speeds, *plain], default=1.0)),
    ]
    for number, (name, lines, top) in enumerate(panels):
        base = TOP + HEIGHT + number * (HEIGHT + GAP)
        parts.append(f'<line class="axis" x1="{LEFT}" y1="{base}" x2="{LEFT + WIDTH}" y2="{base}"/>')
        parts.append(_text(LEFT, base - HEIGHT - 4, name, "small"))
        parts += [
            _text(LEFT - 6, base, "0", "small end"),
            _text(LEFT - 6, base - HEIGHT + 10, f"{top:.3g}", "small end"),
        ]
        for style, values in lines:
            points = [(x(a), base - HEIGHT * v / max(top, 1e-9)) for a, v in zip(at, values, strict=False)]
            parts.append(f'<path class="{style}" d="{_steps(points, x(n))}"/>')
    bottom = TOP + len(panels) * (HEIGHT + GAP)
    parts.append(_text(LEFT, bottom - GAP + 18, "0", "small"))
    parts.append(_text(LEFT + WIDTH, bottom - GAP + 18, f"{n} tokens; grey: plain decoding, expected", "small end"))
    style = STYLE + "  path { fill: none; stroke-width: 1.5 } .end { text-anchor: end }\n"
    style += "  .line1 { stroke: #8c959f } .line2 { stroke: #bf8700 } .line3 { stroke: #0969da }\n"
    size = f'viewBox="0 0 {LEFT + WIDTH + 10} {bottom}" width="{LEFT + WIDTH + 10}" height="{bottom}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<style>{style}</style>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _steps(points: Sequence[Point], end: float) -> str:
    """A path that stays level until the next point."""
    path = ""
    for i, (px, py) in enumerate(points):
        until = points[i + 1][0] if i + 1 < len(points) else end
        path += f"{'L' if path else 'M'}{px:.1f} {py:.1f}L{until:.1f} {py:.1f}"
    return path


def _text(x: float, y: float, words: str, style: str) -> str:
    return f'<text class="{style}" x="{x:.0f}" y="{y:.0f}">{words}</text>'


def main() -> int:
    """Read the trace, draw its last answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, metavar="TRACE.jsonl")
    parser.add_argument("out", type=Path, metavar="OUT.svg")
    args = parser.parse_args()
    pairs = last_answer([json.loads(line) for line in args.trace.read_text(encoding="utf-8").splitlines()])
    if not pairs:
        print(f"error: {args.trace} holds no rounds of an answer", file=sys.stderr)
        return 1
    args.out.write_text(svg(pairs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
