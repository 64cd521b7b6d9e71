"""Sizes and shares become llama.cpp's: over how many GPUs, by rows or layers, and how long the contexts may be."""

from __future__ import annotations

import pytest
from conftest import Pair

from specgguf.errors import ConfigError, SpecggufError, Unsupported
from specgguf.fit.footprint import LoadParams, footprint
from specgguf.fit.hardware import GIB, MIB, Device, Machine
from specgguf.models import remote_header
from specgguf.vllm.placement import Wanted, devices, keywords, lengths, within

CPU = Device("CPU", "cpu", 32 * GIB, 24 * GIB)


def machine(*free: int, cpu: Device = CPU) -> Machine:
    """One with GPUs of which so many bytes are free, of twice as many."""
    gpus = (Device(f"CUDA{i}", "gpu", 2 * n, n) for i, n in enumerate(free))
    return Machine((*gpus, cpu), 8)


def test_one_gpu_needs_no_split() -> None:
    assert devices(machine(GIB), by_row=1, by_layer=1, draft=1) == {}
    assert devices(machine(), by_row=1, by_layer=1, draft=1) == {}


def test_sizes_become_splits() -> None:
    four = machine(GIB, GIB, GIB, GIB)
    whole_draft = {"draft_split_mode": 0, "draft_main_gpu": 0}
    assert devices(four, by_row=1, by_layer=1, draft=1) == {"split_mode": 0, "main_gpu": 0, **whole_draft}
    rows = {"split_mode": 2, "tensor_split": [1.0, 1.0, 0.0, 0.0]}
    assert devices(four, by_row=2, by_layer=1, draft=1) == {**rows, **whole_draft}
    layers = {"split_mode": 1, "tensor_split": [1.0, 1.0, 1.0, 1.0]}
    both = {"draft_split_mode": 2, "draft_tensor_split": [1.0, 1.0, 0.0, 0.0]}
    assert devices(four, by_row=1, by_layer=4, draft=2) == {**layers, **both}


def test_more_gpus_than_there_are_is_refused() -> None:
    with pytest.raises(SpecggufError, match=r"^tensor_parallel_size=2: there is 1 GPU here$"):
        devices(machine(GIB), by_row=2, by_layer=1, draft=1)
    with pytest.raises(SpecggufError, match=r"^pipeline_parallel_size=2: there are 0 GPUs here$"):
        devices(machine(), by_row=1, by_layer=2, draft=1)
    with pytest.raises(Unsupported, match="together are not supported"):
        devices(machine(GIB, GIB, GIB, GIB), by_row=2, by_layer=2, draft=1)


def test_a_share_is_of_a_gpus_whole_memory_and_of_what_is_free_otherwise() -> None:
    assert [d.free_bytes for d in within(machine(GIB, GIB), 0.25, 1).gpus] == [GIB // 2]
    assert [d.free_bytes for d in within(machine(GIB, GIB), 0.9, 2).gpus] == [GIB, GIB]
    assert within(machine(), 0.5, 1).cpu.free_bytes == 12 * GIB
    assert within(machine(GIB), 0.5, 1).cpu == CPU


def fits(pair: Pair, n_ctx: int, where: Machine) -> bool:
    target, draft = (
        LoadParams(remote_header.read(str(path)).hparams, n_ctx=n_ctx) for path in (pair.target, pair.draft)
    )
    return footprint(target, draft, where).fits


def test_contexts_are_as_long_as_the_memory_allows(tiny_chat: Pair) -> None:
    """By the estimate itself: what is found fits, and a step more does not."""
    for share in (0.3, 0.6):
        where = within(machine(2 * GIB, cpu=CPU), share, 1)
        found = lengths(where, tiny_chat.target, tiny_chat.draft, n_ctx=None, n_sequences=10**6)
        assert found.cache_tokens > found.n_ctx
        assert fits(tiny_chat, found.cache_tokens, where)
        assert not fits(tiny_chat, found.cache_tokens + 256, where)


def test_contexts_are_no_longer_than_anybody_can_use(tiny_chat: Pair) -> None:
    trained = remote_header.read(str(tiny_chat.target)).hparams.n_ctx_train
    plenty = machine(64 * GIB)
    none_said = lengths(plenty, tiny_chat.target, None, n_ctx=None, n_sequences=1)
    assert (none_said.n_ctx, none_said.cache_tokens) == (trained, max(trained + 16, 4096))
    said = lengths(plenty, tiny_chat.target, None, n_ctx=100, n_sequences=4)
    assert (said.n_ctx, said.cache_tokens) == (100, 4 * 116)


def test_what_does_not_fit_is_refused_with_what_would(tiny_chat: Pair) -> None:
    small = machine(cpu=Device("CPU", "cpu", GIB, 110 * MIB))
    with pytest.raises(SpecggufError, match=r"^max_model_len=1000000 does not fit: .* holds \d+ tokens$") as refused:
        lengths(small, tiny_chat.target, None, n_ctx=10**6, n_sequences=1)
    longest = int(refused.value.hint.split("=")[1].split(",")[0])
    assert lengths(small, tiny_chat.target, None, n_ctx=longest, n_sequences=1).n_ctx == longest
    with pytest.raises(SpecggufError, match="does not fit into the memory that may be taken"):
        lengths(machine(cpu=Device("CPU", "cpu", GIB, MIB)), tiny_chat.target, None, n_ctx=None, n_sequences=1)


def test_everything_together(tiny_chat: Pair) -> None:
    wanted = Wanted(n_ctx=512, n_sequences=4, cache_type="q8_0")
    found = keywords(tiny_chat.target, tiny_chat.draft, wanted, machine())
    assert found["n_ctx"] == 512
    assert found["n_parallel"] == 4
    assert found["cache_tokens"] >= 4 * 512
    assert {name: found[name] for name in found if "type" in name} == dict.fromkeys(
        ("type_k", "type_v", "draft_type_k", "draft_type_v"), "q8_0"
    )
    alone = keywords(tiny_chat.target, None, Wanted(n_ctx=512), machine())
    assert alone == {"n_ctx": 512, "n_parallel": 1}


def test_how_many_run_together_where_nobody_says(tiny_chat: Pair, tiny_hybrid_chat: Pair) -> None:
    wanted = Wanted(n_ctx=512, n_sequences=None)
    assert keywords(tiny_chat.target, None, wanted, machine())["n_parallel"] == 8
    assert keywords(tiny_hybrid_chat.target, None, wanted, machine()) == {"n_ctx": 512, "n_parallel": 1}


def test_memory_of_other_machines_is_not_judged(tiny_chat: Pair) -> None:
    tiny = machine(cpu=Device("CPU", "cpu", GIB, MIB))
    said = keywords(tiny_chat.target, None, Wanted(n_ctx=512, n_sequences=2, is_here=False), tiny)
    assert said == {"n_ctx": 512, "n_parallel": 2}
    assert 0 < keywords(tiny_chat.target, None, Wanted(is_here=False), tiny)["n_ctx"] <= 4096


@pytest.mark.parametrize(("name", "error"), [("fp8_e4m3", Unsupported), ("q9", ConfigError)])
def test_cache_types_are_llama_cpps(tiny_chat: Pair, name: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="kv_cache_dtype"):
        keywords(tiny_chat.target, None, Wanted(cache_type=name), machine())
