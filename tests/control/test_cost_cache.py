"""Costs that are kept between runs: believed while they are true, measured again when anything changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from support.contexts import KEYWORDS

from specgguf import SpeculativeLlama
from specgguf.control import cost_cache
from specgguf.control.cost_cache import costs_for
from specgguf.control.costs import Costs
from specgguf.native.context import Model
from specgguf.native.weights import Weights


class Clock:
    """Moves by a second per native call, whatever it does; counts the looks at it."""

    def __init__(self) -> None:
        self.looks = 0
        self.factor = 1.0

    def __call__(self) -> float:
        self.looks += 1
        return self.looks * self.factor


FOLDER = cost_cache.folder  # before the session's own takes its place


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    import platformdirs

    monkeypatch.setattr(platformdirs, "user_cache_dir", lambda name: str(tmp_path / name))
    monkeypatch.setattr(cost_cache, "folder", FOLDER)
    return tmp_path / "specgguf" / "costs"


def test_an_engine_of_the_tests_keeps_its_costs_apart(tiny_pair: Pair, costs_folder: Path) -> None:
    """Not in the user's cache: the models of the tests are gone after them."""
    before = set(costs_folder.iterdir())
    with SpeculativeLlama(str(tiny_pair.target), str(tiny_pair.draft), n_ctx=300, n_threads=1) as llm:
        llm.create_completion([1, 2, 3], max_tokens=4)
    assert len(set(costs_folder.iterdir()) - before) == 1
    assert not FOLDER().is_relative_to(costs_folder.parent)


@pytest.fixture
def models(tiny_pair: Pair) -> Iterator[tuple[Model, Model]]:
    weights = [Weights(str(path), KEYWORDS) for path in (tiny_pair.target, tiny_pair.draft)]
    models = [Model(w, n_ctx=256) for w in weights]
    yield models[0], models[1]
    for model in models:
        model.close()
    for file in weights:
        file.close()


def looks(models: tuple[Model, Model | None], draft_max: int = 5, clock: Clock | None = None) -> tuple[Costs, int]:
    """The costs, and how often the clock was looked at."""
    clock = clock or Clock()
    clock.looks = 0
    costs = costs_for(models[0], models[1], draft_max, clock=clock)
    assert models[0].tokens == []
    return costs, clock.looks


def test_a_second_run_believes_the_first(folder: Path, models: tuple[Model, Model]) -> None:
    first, measured = looks(models)
    second, checked = looks(models)
    assert second.to_json() == first.to_json()
    assert checked < measured / 2
    assert len(list(folder.glob("*.json"))) == 1


def test_another_setting_is_another_measurement(folder: Path, models: tuple[Model, Model]) -> None:
    _, measured = looks(models)
    for other in ((models[0], None), (models[1], models[0])):
        looks(other)
    assert looks(models, draft_max=7)[1] > measured / 2
    longer = Model(models[0].weights, n_ctx=512)
    assert looks((longer, models[1]))[1] > measured / 2
    longer.close()
    assert len(list(folder.glob("*.json"))) == 5


def test_a_changed_file_is_measured_again(folder: Path, models: tuple[Model, Model]) -> None:
    _, measured = looks(models)
    path = models[1].weights.path
    os.utime(path, ns=(1, os.stat(path).st_mtime_ns + 10**9))
    assert looks(models)[1] == measured


def test_a_machine_that_changed_is_measured_again(folder: Path, models: tuple[Model, Model]) -> None:
    """A plain pass that takes twice as long: one of the two runs shared the machine."""
    first, measured = looks(models)
    slower = Clock()
    slower.factor = 2.0
    second, again = looks(models, clock=slower)
    assert again > measured
    assert second.verify_s(1) == pytest.approx(2 * first.verify_s(1))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"verify_s": {"1": "x"}}', "\0"])
def test_a_broken_file_is_no_reason_to_fail(folder: Path, models: tuple[Model, Model], content: str) -> None:
    first, measured = looks(models)
    (path,) = folder.glob("*.json")
    path.write_text(content)
    again, n = looks(models)
    assert n == measured
    assert again.to_json() == first.to_json()
    assert json.loads(path.read_text()) == first.to_json()


def test_old_measurements_are_not_believed(folder: Path, models: tuple[Model, Model]) -> None:
    _, measured = looks(models)
    (path,) = folder.glob("*.json")
    old = path.stat().st_mtime - cost_cache.MAX_AGE_S - 60
    os.utime(path, (old, old))
    assert looks(models)[1] == measured


def test_a_folder_that_cannot_be_written(
    folder: Path, models: tuple[Model, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "mkdir", refuse)
    costs, _ = looks(models)
    assert costs.known
    assert not folder.exists()


def test_what_workers_compute_is_measured_at_every_load(folder: Path, models: tuple[Model, Model]) -> None:
    """With a network of 20 ms in between, costs of one of 0 ms would pass for those of a machine that is a bit slow."""
    weights: Any = models[0].weights
    weights.keywords = {**weights.keywords, "rpc_servers": ["10.8.0.2:50052"]}
    assert looks(models)[1] == looks(models)[1]
    assert not folder.exists()
