"""A context in another process is what it would be here, and its loss costs what it held and one error.

No worker takes part: the child holds all layers, so these tests run on any build.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Pair
from support.contexts import KEYWORDS, MEMORIES, TEXT, Opened, Shared
from support.remotes import NOBODY, kill_child, live_elsewhere

from specgguf import SpeculativeLlama
from specgguf.errors import BackendError, Unsupported, WorkerLost
from specgguf.native.context import Model
from specgguf.native.rpc import remote
from specgguf.native.sequence import Part
from specgguf.native.weights import Weights


@pytest.fixture(scope="module", autouse=True)
def _elsewhere() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        live_elsewhere(patch)
        yield


@pytest.fixture(scope="module", params=MEMORIES)
def any_memory(request: pytest.FixtureRequest) -> Iterator[Opened]:
    fixture, keywords, own = MEMORIES[request.param]
    opened = Opened(request.getfixturevalue(fixture).target, keywords | NOBODY, **own)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def opened(tiny_pair: Pair) -> Iterator[Opened]:
    opened = Opened(tiny_pair.target, NOBODY)
    yield opened
    opened.close()


def test_it_decodes_and_rolls_back_as_here(any_memory: Opened) -> None:
    """Against a context of the same kind that reads every text from the start."""
    choose = random.Random(3)
    model = any_memory.model
    for _ in range(12):
        model.mark(4)
        kept = len(model.tokens)
        model.extend(TEXT[kept : kept + 5], 2)
        model.roll_back(kept + choose.randint(0, 5))
        any_memory.check()


def test_it_is_the_context_that_a_local_one_is(opened: Opened, tiny_pair: Pair) -> None:
    local = Weights(str(tiny_pair.target), KEYWORDS)
    model = Model(local, **opened.context)
    opened.model.clear()
    here, there = model.extend(TEXT[:30], 8), opened.model.extend(TEXT[:30], 8)
    assert np.array_equal(here, there)
    assert (model.n_ctx, model.rollback.name) == (opened.model.n_ctx, opened.model.rollback.name)
    assert (local.eog, local.bos, local.n_vocab) == (opened.weights.eog, opened.weights.bos, opened.weights.n_vocab)
    assert local.metadata == opened.weights.metadata
    model.close()
    local.close()


def test_what_was_saved_there_loads_here(opened: Opened, tiny_pair: Pair) -> None:
    opened.model.clear()
    opened.model.extend(TEXT[:30], 1)
    saved = opened.model.save()
    opened.model.clear()
    opened.model.load(saved)
    assert opened.model.tokens == TEXT[:30]
    opened.check()


def test_several_sequences_share_a_context_there(tiny_pair: Pair) -> None:
    shared = Shared(tiny_pair.target, 3, NOBODY)
    shared.decode([Part(s, TEXT[s.id : s.id + 20 + s.id], 1) for s in shared.context.sequences])
    a, b = shared.context.sequences[:2]
    b.copy(a, 10)
    shared.check(b)
    shared.close()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGABRT])
def test_a_child_that_dies_is_one_error_and_the_next_decode_starts_another(opened: Opened, how: int) -> None:
    model = opened.model
    model.clear()
    model.extend(TEXT[:20], 1)
    kill_child(opened.weights, how)
    with pytest.raises(BackendError, match=r"the process that held .*\.gguf ended") as caught:
        model.extend(TEXT[20:22], 1)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    assert model.tokens == []
    assert model.reuse(TEXT[:20]) == 0
    opened.check()
    assert opened.error(TEXT[:40]) < opened.noise


def test_a_child_that_died_while_nobody_asked_is_no_error(opened: Opened) -> None:
    """A cache that was lost between two turns is read again, like any prompt that is not held."""
    model = opened.model
    model.clear()
    model.extend(TEXT[:20], 1)
    kill_child(opened.weights)
    assert model.reuse(TEXT[:20]) == 0
    model.extend(TEXT[:25], 1)
    opened.check()


def test_every_sequence_of_every_context_is_emptied(tiny_pair: Pair) -> None:
    shared = Shared(tiny_pair.target, 2, NOBODY)
    a, b = shared.context.sequences
    shared.decode([Part(a, TEXT[:9], 1), Part(b, TEXT[3:9], 1)])
    shared.fresh.extend(TEXT[:4], 1)
    kill_child(shared.weights)
    with pytest.raises(BackendError):
        shared.context.decode([Part(a, [5], 1)])
    assert (a.tokens, b.tokens, shared.fresh.tokens) == ([], [], [])
    shared.decode([Part(b, TEXT[:9], 1)])
    shared.close()


def test_an_answer_that_does_not_come_is_given_up(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    process = opened.weights._remote._process  # type: ignore[union-attr]
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    monkeypatch.setattr(remote, "SILENT_S", 0.05)
    with pytest.raises(WorkerLost, match=r"no answer for 0\.05 s"):
        opened.model.extend([5], 1)
    monkeypatch.undo()
    opened.model.extend(TEXT[:3], 1)
    opened.check()


def test_closing_ends_the_child(tiny_pair: Pair) -> None:
    weights = Weights(str(tiny_pair.target), KEYWORDS | NOBODY)
    process = weights._remote._process  # type: ignore[union-attr]
    assert process is not None
    model = Model(weights, n_ctx=64)
    model.close()
    weights.close()
    assert process.poll() is not None
    weights.close()


def test_its_own_heads_are_out_of_reach(tiny_pair: Pair) -> None:
    with pytest.raises(Unsupported, match="a target on workers cannot draft by its own heads"):
        SpeculativeLlama(str(tiny_pair.target), "heads", rpc_servers="nobody:1")


def test_a_file_that_cannot_be_loaded_there_is_said_here(tmp_path: Path, tiny_pair: Pair) -> None:
    with pytest.raises(BackendError, match="could not load the LoRA"):
        Weights(str(tiny_pair.target), {**KEYWORDS, **NOBODY, "lora_path": str(tmp_path / "none.gguf")})
