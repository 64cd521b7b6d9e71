"""Layers over machines: whole, in order, none lost, by the shares that were asked for or by free memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny

from specgguf.errors import BackendError, ConfigError
from specgguf.models import hparams
from specgguf.native.rpc.placement import Placement, divide, place
from specgguf.native.rpc.wire import Endpoint, WorkerDevice, WorkerReport

GIB = 2**30
N_LAYER = 12


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of twelve layers."""
    from dataclasses import replace

    return tiny.write_llama(
        tmp_path_factory.mktemp("deep") / "deep.gguf", tiny.letters(8), shape=replace(tiny.SMALL, n_layer=N_LAYER)
    )


def report(host: str, *free: int) -> WorkerReport:
    return WorkerReport(Endpoint(host, 50052), "7.0.0", tuple(WorkerDevice(n, n) for n in free), 0.001)


def placed(path: Path, *workers: WorkerReport, **keywords: Any) -> Placement:
    return place(hparams.of_file(path), workers, **{"gpus": [], "cpu": 4 * GIB, **keywords})


def test_without_a_gpu_the_cpu_keeps_its_share_and_the_output(deep: Path) -> None:
    placement = placed(deep, report("a", 4 * GIB), report("b", 4 * GIB))
    assert placement.worker_layers == (4, 4)
    assert placement.keywords == {"n_gpu_layers": 9, "tensor_split": [4.0, 5.0]}  # the output counts as a layer
    assert placement.output_on_cpu
    assert placement.taken == [slice(4, 8), slice(8, 12)]
    assert str(placement) == "12 layers: 4 here, 4 on a:50052, 4 on b:50052"


def test_a_gpu_comes_last_so_that_the_output_lies_there(deep: Path) -> None:
    placement = placed(deep, report("a", 4 * GIB), gpus=[8 * GIB])
    assert placement.worker_layers == (4,)
    assert placement.keywords == {"n_gpu_layers": 13, "tensor_split": [4.0, 9.0]}
    assert not placement.output_on_cpu
    assert placement.taken == [slice(0, 4)]


def test_shares_are_this_machines_then_the_workers(deep: Path) -> None:
    placement = placed(deep, report("a", GIB), report("b", GIB), tensor_split=[1, 2, 3])
    assert placement.worker_layers == (4, 6)
    placement = placed(deep, report("a", GIB), tensor_split=(0, 1))
    assert placement.worker_layers == (12,)


def test_a_number_of_layers_is_what_the_workers_get(deep: Path) -> None:
    assert placed(deep, report("a", GIB), report("b", 3 * GIB), n_gpu_layers=8).worker_layers == (2, 6)
    assert placed(deep, report("a", GIB), n_gpu_layers=99).worker_layers == (12,)


def test_a_worker_with_several_devices_spreads_its_layers_over_them(deep: Path) -> None:
    placement = placed(deep, report("a", 3 * GIB, GIB), tensor_split=[1, 2])
    assert placement.worker_layers == (8,)
    assert placement.keywords["tensor_split"] == [6.0, 3.0]


@pytest.mark.parametrize("shares", [[1], [1, 1, 1, 1]])
def test_shares_that_are_not_one_for_each_are_refused(deep: Path, shares: list[float]) -> None:
    with pytest.raises(ConfigError, match=r"tensor_split has \d shares, and 3 are wanted: this machine, then a:50052"):
        placed(deep, report("a", GIB), report("b", GIB), tensor_split=shares)


def test_workers_that_would_get_nothing_are_refused(deep: Path) -> None:
    with pytest.raises(ConfigError, match="gives the workers nothing"):
        placed(deep, report("a", GIB), tensor_split=[1, 0])
    with pytest.raises(ConfigError, match=r"no layer of deep\.gguf would lie on a worker"):
        placed(deep, report("a", 1), cpu=99 * GIB)
    with pytest.raises(ConfigError, match=r"no layer of deep\.gguf would lie on a worker"):
        placed(deep, report("a", GIB), n_gpu_layers=0)


def test_a_worker_with_too_little_memory_is_named(deep: Path) -> None:
    layer = hparams.of_file(deep).layer_bytes[0]
    placed(deep, report("a", 12 * layer), tensor_split=[0, 1]).check(report("a", 12 * layer))
    with pytest.raises(BackendError, match=r"worker a:50052 has 0\.0 GiB free, and its 12 of 12 layers take") as caught:
        placed(deep, report("a", 12 * layer), tensor_split=[0, 1]).check(report("a", 12 * layer - 1))
    assert "--tensor-split" in caught.value.hint


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.integers(0, 200), st.lists(st.floats(0.0, 1e6), min_size=1, max_size=8).filter(lambda s: sum(s) > 1e-3))
def test_shares_of_whole_things_are_within_one_and_none_is_lost(n: int, shares: list[float]) -> None:
    counts = divide(n, shares)
    assert sum(counts) == n
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - n * share / sum(shares)) <= 1 + 1e-6
        assert count >= 0
