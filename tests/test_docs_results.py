"""The figures in the documents are those of the saved results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"


def result(name: str) -> Any:
    return json.loads((DOCS / "results" / f"{name}.json").read_text(encoding="utf-8"))


def attacks() -> Iterator[str]:
    fuzz, crowd, headers = result("http-fuzz"), result("crowd"), result("header-fuzz")
    yield f"{fuzz['n_bodies']:,} random bodies and {fuzz['n_raw']:,} damaged requests"
    before, after = (max(of_one[i] for of_one in fuzz["rss_mb"]) for i in (0, 1))  # a pair for each server
    yield f"{before:.0f} MB before and {after:.0f} MB after"
    runs = crowd["runs"]
    yield f"{crowd['n_clients']} clients for {sum(run['seconds'] for run in runs):.0f} seconds"
    yield f"{sum(run['honest']['200'] for run in runs)} answers, none refused for good"
    yield f"the client that got the fewest got {min(run['least_served'] for run in runs)}"
    memory = [mb for run in runs for mb in run["rss_mb"].values()]
    yield f"Memory went from {min(memory):.0f} to {max(memory):.0f} MB"
    yield f"{headers['n']} damaged headers of {len(headers['tried'])} files"
    assert not fuzz["faults"]
    for run in runs:
        assert not run["faults"]
        assert run["health"] == "ok"
        assert set(run["honest"]) - {"200", "429, asked again", "503, asked again"} == set()


def structured() -> Iterator[str]:
    answers, schemas, fuzz = result("schema-answers"), result("schemas"), result("schema-fuzz")
    right = answers["right, drafted"] + answers["right, plain"]
    cut = answers["cut, drafted"] + answers["cut, plain"]
    yield f"{answers['n']} schemas of our own"
    yield f"{right} answers ended, and every one validates; {cut} were cut"
    yield f"{schemas['schemas']} real schemas {schemas['share_served']:.1%}".replace("%", " %")
    yield f"{fuzz['n']:,} random schemas"
    for name in ("structured-f16", "structured-q4"):
        speed = result(name)
        yield f"| {speed['n_samples']} |"
        for ratio in (
            "auto_against_plain",
            "forced_against_not",
            "compact_against_plain",
            "forced_against_not_compact",
        ):
            yield f"{speed[ratio]:.2f}×"
        yield f"{speed['grammar_ms_per_token']:.1f} ms"
        assert speed["grammar_overhead"] < 0.03
    assert "wrong, drafted" not in answers
    assert "wrong, plain" not in answers
    assert not schemas["faults"]
    assert not fuzz["faults"]


def over_ray() -> Iterator[str]:
    found = result("ray-batch")
    settings = found["settings"]
    yield f"{settings['requests']} requests of {settings['tokens']} tokens"
    for run in found["runs"]:
        yield f"{run['seconds']:.0f} s"
        yield f"at {run['tokens_per_second']:.1f}"
    assert {run["n_rows"] for run in found["runs"]} == {settings["requests"]}


@pytest.mark.parametrize(
    ("page", "sentences"), [("batch", over_ray), ("server", attacks), ("structured-output", structured)]
)
def test_figures_are_those_that_were_saved(page: str, sentences: Any) -> None:
    text = " ".join((DOCS / f"{page}.md").read_text(encoding="utf-8").split())
    for sentence in sentences():
        assert sentence in text


def test_the_tables_of_drafts_are_what_was_saved() -> None:
    """docs/models.md's, as the scripts that measured make them."""
    from bench.exactness import acceptance
    from bench.speed import slim

    text, saved = (DOCS / "models.md").read_text(encoding="utf-8"), result("acceptance")
    others = [acceptance.table(result(path.stem)) for path in (DOCS / "results").glob("acceptance-*.json")]
    for table in (acceptance.table(saved), acceptance.break_even(saved), slim.tables(), *others):
        assert table in text
