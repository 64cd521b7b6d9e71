"""The scripts that explain the controller: each part can be taken away, and a trace can be drawn."""

from __future__ import annotations

import importlib
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from support import worlds
from support.simulator import CODE, F16, STORY, calibrated, run

from specgguf.control.controller import Adaptive

ablation, plot_trace = (importlib.import_module(f"bench.{name}") for name in ("ablation", "plot_trace"))


@pytest.mark.parametrize("part", ablation.PARTS)
def test_a_part_can_be_taken_away_and_comes_back(part: str) -> None:
    """The names it replaces exist, an answer still ends, and nothing is left replaced."""
    replaced = ablation.PARTS[part]
    before = [getattr(owner, name) for owner, name, _ in replaced]
    cell = worlds.recordings()[0]
    with ablation.without(replaced):
        assert [getattr(owner, name) for owner, name, _ in replaced] != before
        assert cell.adaptive(seeds=1) > 0.0
    assert [getattr(owner, name) for owner, name, _ in replaced] == before


def test_the_page_has_the_saved_table() -> None:
    page = ablation.PAGE.read_text(encoding="utf-8")
    assert ablation.table(json.loads(ablation.RESULTS.read_text())) in page


def test_a_trace_can_be_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its last answer; a file that holds none is refused."""
    trace: list[dict[str, Any]] = []
    made = Adaptive(5, calibrated(F16, 5), trace=trace.append)
    run(made, F16, worlds.at((STORY, CODE)), n_tokens=200, n_turns=2)
    pairs = plot_trace.last_answer(trace)
    assert sum(round["tokens"] for _, round in pairs) == 199
    source, out = tmp_path / "trace.jsonl", tmp_path / "out.svg"
    source.write_text("".join(json.dumps(record) + "\n" for record in trace))
    monkeypatch.setattr("sys.argv", ["plot-trace", str(source), str(out)])
    assert plot_trace.main() == 0
    assert len(ElementTree.parse(out).getroot().findall(".//{*}path")) == 4
    source.write_text("")
    assert plot_trace.main() == 1
