"""The two scripts behind docs/exactness.md, on tiny files: what they measure is right, and what they print is whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Pair

RUN = Path(__file__).resolve().parent.parent / "scripts" / "bench" / "run"


def run(name: str, *arguments: object, code: int = 0) -> str:
    command = [sys.executable, str(RUN), name, "-t", "1", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_width_noise(tiny_chat: Pair) -> None:
    """F32: rows move in the last digits; a greedy text has no flip."""
    found = json.loads(run("width-noise", "-m", tiny_chat.target, "--tokens", 24, "--widths", 2, 3, "--json"))
    assert [(row["kind"], row["width"]) for row in found] == [
        (kind, width) for kind in ("code", "story") for width in ("1, padded", "2", "3")
    ]
    for row in found:
        assert row["n"] == 24
        assert row["gap"] < 1e-2
        assert row["overlap"] > 0.999
        assert (row["n_flips"], row["flip_gap"]) == (0, 0.0)
    assert any(row["gap"] > 0.0 for row in found), "one token at a time is computed by another kernel"


def test_width_noise_in_words(tiny_chat: Pair) -> None:
    lines = run("width-noise", "-m", tiny_chat.target, "--tokens", 8, "--widths", 2).splitlines()
    assert lines[0].split()[:2] == ["text", "width"]
    assert len(lines) == 1 + 4 + 2
    assert lines[-1].startswith("Drafted and plain greedy text may part where")
    assert "no such file" in run("width-noise", "-m", "/nowhere.gguf", code=1)


@pytest.fixture(scope="module")
def saved(tiny_chat: Pair, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    path = tmp_path_factory.mktemp("accepted") / "accepted.json"
    arguments = (
        "-m",
        tiny_chat.target,
        "-d",
        tiny_chat.draft,
        "--blocks",
        3,
        "-k",
        4,
        "--temperature",
        1,
        "--out",
        path,
    )
    return path, run("accepted-length", *arguments)


def test_accepted_length(saved: tuple[Path, str]) -> None:
    """Both rules on the same blocks: the block rule never below, and above in the mean of a disagreeing pair."""
    data = json.loads(saved[0].read_text())
    assert set(data["files"]) == {"model", "draft_model"}
    assert data["settings"]["k"] == 4
    blocks = data["blocks"]
    assert len(blocks) > 15
    for block in blocks:
        assert 0.0 <= block["token"] <= block["block"] + 1e-6 <= 4.0 + 2e-6
    assert sum(b["block"] for b in blocks) > 1.02 * sum(b["token"] for b in blocks)


def test_accepted_length_in_words(saved: tuple[Path, str]) -> None:
    path, said = saved
    table = run("accepted-length", "--table", "--out", path)
    assert said.endswith(table)
    rows = [line.split() for line in table.splitlines()]
    assert rows[1][:2] == ["1", "all"]
    blocks = json.loads(path.read_text())["blocks"]
    assert int(rows[1][2]) == len(blocks)
    assert float(rows[1][3]) == pytest.approx(sum(b["token"] for b in blocks) / len(blocks), abs=1e-3)
    assert float(rows[1][5]) == pytest.approx(float(rows[1][4]) - float(rows[1][3]), abs=2e-3)
