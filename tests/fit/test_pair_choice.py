"""One rule for which pair to load, whoever asks: a model before a preset, a named draft before one that is found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from specgguf import ConfigError, Unsupported, presets
from specgguf.fit import draft_candidates, pair_choice, search
from specgguf.fit.pair_choice import choose_pair
from specgguf.models import hub
from specgguf.models.nextn import prediction_heads

DEMO = presets.load("demo")


@dataclass(frozen=True)
class Found:
    path: Path
    name: str = "small"


def resolve(ref: Any) -> Path:
    return Path(f"/here/{ref}")


@pytest.fixture(autouse=True)
def auto_is_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "choose", lambda machine, **_: (DEMO, "it fits"))
    monkeypatch.setattr(draft_candidates, "best", lambda path: Found(Path("/here/small.gguf")))


def test_without_anything_the_preset_for_this_machine_is_taken() -> None:
    choice = choose_pair()
    assert (choice.model, choice.draft_model) == (DEMO.model, DEMO.draft_model)
    assert (choice.preset, choice.why, choice.model_ref, choice.draft_ref) == (DEMO, "it fits", "demo", "demo")


@pytest.mark.parametrize(
    "asked", [{"preset": "demo"}, {"model": "demo"}, {"model": "demo", "preset": "gpu-8gb"}], ids=str
)
def test_a_presets_name_may_stand_where_a_model_does(asked: dict[str, str]) -> None:
    choice = choose_pair(**asked)  # type: ignore[arg-type]
    assert (choice.preset, choice.why) == (DEMO, "")
    assert choice.files(resolve).draft_model == resolve(DEMO.draft_model)


def test_a_model_wins_over_a_preset_whose_settings_still_hold() -> None:
    choice = choose_pair("own.gguf", preset="demo")
    assert (choice.model, choice.preset) == ("own.gguf", DEMO)
    assert choice.files(resolve).draft_model == Path("/here/small.gguf"), "the preset's draft is not this model's"


def test_a_draft_that_matches_is_looked_for_where_none_was_named() -> None:
    files = choose_pair("own.gguf").files(resolve)
    assert (files.draft_model, files.draft_ref) == (Path("/here/small.gguf"), "small")
    assert "small.gguf, which matches" in files.why
    assert choose_pair("own.gguf", drafts=False).files(resolve).draft_model is None


def test_a_models_own_heads_come_before_a_draft_that_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_heads, "count_in", lambda path: 1)
    files = choose_pair("own.gguf").files(resolve)
    assert (files.draft_model, files.draft_ref) == ("heads", "heads")
    assert choose_pair("own.gguf", "small.gguf").files(resolve).draft_model == Path("/here/small.gguf")
    assert choose_pair("own.gguf", heads=False).files(resolve).draft_model == Path("/here/small.gguf")


def test_heads_that_cannot_be_run_leave_the_draft_that_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_heads, "count_in", lambda path: 1)
    monkeypatch.setattr(pair_choice, "heads_missing", lambda: "no calls")
    files = choose_pair("own.gguf").files(resolve)
    assert files.draft_model == Path("/here/small.gguf")
    assert files.why == "no calls; drafting with small.gguf, which matches (-d none: without)"


@pytest.mark.parametrize("draft", ["heads,small.gguf", "small.gguf+heads", "heads,ngram"])
def test_heads_and_something_else_are_refused_together(draft: str) -> None:
    with pytest.raises(Unsupported, match="cannot draft together") as caught:
        choose_pair("own.gguf", draft)
    assert "specgguf bench" in caught.value.hint


def test_none_that_matches_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_candidates, "best", lambda path: None)
    files = choose_pair("own.gguf").files(resolve)
    assert files.draft_model is None
    assert "no matching draft" in files.why


@pytest.mark.parametrize("asked", [{"model": "own.gguf"}, {"preset": "demo"}, {}], ids=str)
@pytest.mark.parametrize(
    ("draft", "file"),
    [
        ("none", None),
        ("off", None),
        ("ngram", "ngram"),
        ("d.gguf", resolve("d.gguf")),
        ("demo", resolve(DEMO.draft_model)),
    ],
)
def test_a_named_draft_is_taken(asked: dict[str, str], draft: str, file: Any) -> None:
    choice = choose_pair(draft_model=draft, **asked)  # type: ignore[arg-type]
    assert not choice.seeks_draft
    assert choice.files(resolve).draft_model == file
    assert all(isinstance(resolve(ref), Path) for ref in choice.references)
    assert "ngram" not in choice.references


def test_a_preset_without_a_draft_cannot_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = next((n for n in presets.names() if presets.load(n).draft_model is None), None)
    if alone is None:
        from dataclasses import replace

        alone = "demo"
        monkeypatch.setattr(presets, "load", lambda name: replace(DEMO, draft_model=None))
    with pytest.raises(ConfigError, match=f"preset {alone} has no draft model"):
        choose_pair("own.gguf", alone)


def test_what_is_here_is_not_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "resolve", lambda ref, offline: Path(f"{ref}-{offline}"))
    assert pair_choice.here("own.gguf") == Path("own.gguf-True")
