"""Attacks add to what was saved: a file that they could not add to is refused before anything runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.attacks import arrivals, crowd, header_fuzz, http_fuzz

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
Json = dict[str, Any]
ARRIVALS: Json = {
    "n_clients": 100, "n_parallel": 4, "seconds": 60.0, "runs": [{"seconds": 60.0, "requests": {"left": 1}}],
}  # fmt: skip
SCRIPTS = {"crowd": crowd, "arrivals": arrivals, "http-fuzz": http_fuzz, "header-fuzz": header_fuzz}


class BegunError(Exception):
    """The script would run now."""


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, Any], None]:
    """run(script, saved) -> BegunError, where it adds to that."""

    def begin(*_: object, **__: object) -> None:
        raise BegunError

    def main(name: str, saved: Any) -> None:
        script, file = SCRIPTS[name], tmp_path / "saved.json"
        file.write_text(saved if isinstance(saved, str) else json.dumps(saved))
        monkeypatch.setattr(script, "Child" if script is header_fuzz else "serving", begin)
        files = ["x.gguf"] if script is header_fuzz else ["--model", "x.gguf"]
        monkeypatch.setattr("sys.argv", [name, *files, "--save", str(file)])
        script.main()

    return main


def saved(name: str) -> Json:
    """A result that is there."""
    if name == "arrivals":
        return ARRIVALS
    found: Json = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_is_saved_is_added_to(run: Callable[[str, Any], None], name: str) -> None:
    with pytest.raises(BegunError):
        run(name, saved(name))


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("crowd", {"n_clients": 64, "seconds": 120.0, "honest": {"200": 718}, "rss_mb": [64.0, 162.8]}),  # of before
        ("crowd", {"n_clients": 8}),  # other clients than asked for
        ("arrivals", {"n_parallel": 1}),
        ("arrivals", {"runs": [{}]}),
        ("http-fuzz", {"rss_mb": [70.2, 80.1]}),  # of before: one server's, not a pair for each
        ("http-fuzz", {"seed": 5}),
        ("header-fuzz", {"seed": 5}),
        ("header-fuzz", {"tried": []}),
        *((name, text) for name in SCRIPTS for text in ("", "[]", "{}", "{")),
    ],
)
def test_what_could_not_be_added_to_is_refused_before_the_run(
    run: Callable[[str, Any], None], name: str, wrong: Any
) -> None:
    is_whole = isinstance(wrong, str) or "honest" in wrong
    with pytest.raises(SystemExit, match=r"holds no result that this run could be added to\n.*--save"):
        run(name, wrong if is_whole else saved(name) | wrong)
