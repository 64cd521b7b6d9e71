"""Bar charts as SVG, readable on light and dark pages: text and colours follow the reader's scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #24292f }
  .title { font-weight: 600; font-size: 15px }
  .small { font-size: 11px; fill: #57606a }
  .axis { stroke: #d0d7de; stroke-width: 1 } .mark { stroke: #cf222e; stroke-width: 1; stroke-dasharray: 4 3 }
  .c0 { fill: #afb8c1 } .c1 { fill: #6e7781 } .c2 { fill: #d4a72c } .c3 { fill: #0969da }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .axis { stroke: #3d444d }
    .c0 { fill: #656c76 } .c1 { fill: #9198a1 } .c2 { fill: #d29922 } .c3 { fill: #58a6ff }
  }
"""
BAR, GAP, GROUP_GAP = 13, 2, 12
LABEL, PLOT, NOTE = 74, 420, 116  # widths: names, bars, what stands after a bar
TOP, PANEL_TITLE, LEGEND = 34, 26, 26


@dataclass(frozen=True)
class Bar:
    """One bar: its length, what stands after it, and its series."""

    value: float
    note: str
    series: int


@dataclass(frozen=True)
class Panel:
    """A block of groups under a title; a group is a name and its bars."""

    title: str
    groups: Sequence[tuple[str, Sequence[Bar]]]


def chart(
    title: str,
    series: Sequence[str],
    panels: Sequence[Panel],
    *,
    unit: str = "tokens per second",
    mark: float | None = None,
) -> str:
    """Horizontal bars, all panels on one scale. `series` names the colours, at most four; `mark` draws a line there."""
    largest = max((bar.value for p in panels for _, bars in p.groups for bar in bars), default=1.0) or 1.0
    parts: list[str] = [_text(0, 18, title, "title")]
    x = 0.0
    for number, name in enumerate(series):
        parts.append(f'<rect class="c{_colour(number, series)}" x="{x:.0f}" y="{TOP}" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 17, TOP + 10.5, name))
        x += 34 + 7.2 * len(name)
    y = float(TOP + LEGEND)
    for panel in panels:
        if panel.title:
            parts.append(_text(0, y + 14, panel.title, "title"))
            y += PANEL_TITLE
        top = y
        for name, bars in panel.groups:
            height = len(bars) * (BAR + GAP)
            parts.append(_text(LABEL - 8, y + height / 2 + 4, name, anchor="end"))
            for bar in bars:
                width = bar.value / largest * PLOT
                parts.append(
                    f'<rect class="c{_colour(bar.series, series)}" x="{LABEL}" y="{y:.0f}" width="{width:.1f}"'
                    f' height="{BAR}" rx="2"/>'
                )
                parts.append(_text(LABEL + width + 6, y + BAR - 2.5, bar.note, "small"))
                y += BAR + GAP
            y += GROUP_GAP
        bottom = y - GROUP_GAP + 2
        parts.append(f'<line class="axis" x1="{LABEL}" y1="{top - 3:.0f}" x2="{LABEL}" y2="{bottom:.0f}"/>')
        if mark is not None:
            x = LABEL + mark / largest * PLOT
            parts.append(f'<line class="mark" x1="{x:.1f}" y1="{top - 3:.0f}" x2="{x:.1f}" y2="{bottom:.0f}"/>')
    parts.append(_text(LABEL, y + 10, unit, "small"))
    size = f'viewBox="0 0 {LABEL + PLOT + NOTE} {y + 18:.0f}" width="{LABEL + PLOT + NOTE}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"'
    body = "\n".join(parts)
    return f'{head} aria-label="{escape(title)}">\n<style>{STYLE}</style>\n{body}\n</svg>\n'


def _colour(number: int, series: Sequence[str]) -> int:
    """The last series is the one that the chart is about."""
    return 3 if number == len(series) - 1 else number


def _text(x: float, y: float, words: str, style: str = "", anchor: str = "start") -> str:
    kind = f' class="{style}"' if style else ""
    return f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
