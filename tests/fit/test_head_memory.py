"""What prediction heads take of memory, by the formula, against what llama.cpp logs when their contexts are made."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.tiny import Shape, chat, write_llama
from support.tiny_heads import write_hy_v3, write_qwen35

from specgguf.fit import dry_load, footprint, predict, search
from specgguf.fit.footprint import LoadParams, MemoryEstimate, estimate
from specgguf.fit.hardware import MIB, described
from specgguf.models import header, hparams
from specgguf.models.hparams import HParams
from specgguf.native import backend
from specgguf.native.context import Model
from specgguf.native.heads.contexts import LOAD, PredictionHeads
from specgguf.native.heads.states import HiddenStates
from specgguf.native.weights import Weights

N_CTX = 4096
SHAPE = Shape(n_embd=512, n_head=8, n_head_kv=4, n_layer=2, n_ff=1536)
NARROW = Shape(n_embd=512, n_head=8, n_head_kv=1, n_layer=2, n_ff=512)
PRINTED = 0.006 * MIB  # llama.cpp logs hundredths of a MiB
STATES = re.compile(r"RS buffer size =\s*([\d.]+) MiB")
KV, COMPUTE = (re.compile(rf"{what} buffer size =\s*([\d.]+) MiB") for what in ("KV", "compute"))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    return {
        "one": write_hy_v3(folder / "one.gguf", chat(), shape=SHAPE),
        "narrow": write_hy_v3(folder / "narrow.gguf", chat(), shape=NARROW),
        "two": write_hy_v3(folder / "two.gguf", chat(), shape=SHAPE, n_heads=2),
        "hybrid": write_qwen35(folder / "hybrid.gguf", chat(), shape=SHAPE),
        "none": write_llama(folder / "none.gguf", chat()),
    }


def load_of(path: Path, **changes: int) -> LoadParams:
    return LoadParams(hparams.of_file(path), n_ctx=N_CTX, **changes)  # type: ignore[arg-type]


def heads_of(path: Path) -> HParams:
    heads = hparams.of_file(path).heads
    assert heads is not None
    return heads


def estimated(path: Path, kind: str = "cpu", **changes: int) -> MemoryEstimate:
    of_heads = load_of(path, **changes).of_heads
    assert of_heads is not None
    return estimate(of_heads, kind)


def logged(path: Path) -> Iterator[tuple[float, float]]:
    """Bytes of the KV caches and of the compute buffers of all heads."""
    weights = Weights(str(path), {"n_threads": 1, "n_threads_batch": 1}, native_params=LOAD)
    model = Model(weights, n_ctx=N_CTX, n_outputs_max=LoadParams(hparams.of_file(path)).n_outputs, flash_attn=True)
    with backend.captured_log() as lines:
        heads = PredictionHeads(model.context)
    text = "".join(lines)
    for part in (heads, model, weights):
        part.close()
    for pattern in (KV, COMPUTE):
        yield sum(float(n) for n in pattern.findall(text)) * MIB, float(len(pattern.findall(text)))


@pytest.mark.parametrize("name", ["one", "narrow", "two", "hybrid"])
def test_caches_are_llama_cpps_and_compute_buffers_are_within_a_fifth(files: dict[str, Path], name: str) -> None:
    found = estimated(files[name])
    (kv, n), (compute, _) = logged(files[name])
    assert abs(found.host_kv - kv) <= n * PRINTED
    assert 0.95 * compute <= found.host_compute <= 1.2 * compute


def test_forgetting_that_each_head_keeps_caches_of_all_would_be_seen(files: dict[str, Path]) -> None:
    (kv, _), _ = logged(files["two"])
    of_heads = load_of(files["two"]).of_heads
    assert of_heads is not None
    assert abs(sum(footprint.kv_bytes_by_layer(of_heads)) - kv) > 4 * MIB


def test_recurrent_states_are_llama_cpps(tmp_path: Path) -> None:
    """In the minimal context of `Llama` one, in ours one and one more for each token that may be rolled back."""
    path = write_qwen35(tmp_path / "states.gguf", chat(), shape=SHAPE, n_state=128, n_v_heads=16)
    found = hparams.of_file(path)
    one = sum(found.state_bytes)
    assert one > MIB, "one more or less of them is seen in what is printed"
    with backend.captured_log() as lines:
        weights = Weights(str(path), {"n_threads": 1, "n_threads_batch": 1}, native_params=LOAD)
    without = replace(found, state_bytes=(0,) * found.n_layer)
    counted = footprint.minimal_context_bytes(found) - footprint.minimal_context_bytes(without)
    assert abs(states_in("".join(lines)) - counted) <= PRINTED
    for n in (0, 3, 6):
        with backend.captured_log() as lines:
            model = Model(weights, n_ctx=N_CTX, n_rs_seq=n, flash_attn=True)
        model.close()
        load = LoadParams(found, n_ctx=N_CTX, n_rs_seq=n)
        kept, attended = (estimate(replace(load, hparams=h), "cpu").host_kv for h in (found, without))
        assert abs(kept - attended - states_in("".join(lines))) <= PRINTED
        assert dry_load.measured(load, path).host_kv == pytest.approx(kept, abs=2 * PRINTED)
        fixed = replace(load, hparams=replace(found, has_state_rollback=False))
        assert estimate(fixed, "cpu").host_kv == attended + one, "as of architectures that cannot roll back"
    weights.close()


def states_in(log: str) -> float:
    """Bytes that llama.cpp says of recurrent states."""
    return sum(float(n) for n in STATES.findall(log)) * MIB


@pytest.mark.parametrize("name", ["one", "two", "hybrid"])
def test_weights_of_model_and_heads_are_those_of_the_file(files: dict[str, Path], name: str) -> None:
    """llama.cpp skips a head's layers where heads are not asked for: they are no part of the model."""
    found = hparams.of_file(files[name])
    heads = heads_of(files[name])
    whole = found.weights_bytes + heads.weights_bytes
    assert whole == pytest.approx(files[name].stat().st_size, rel=0.01)
    assert found.n_prediction_heads == heads.n_layer == (2 if name == "two" else 1)
    assert found.layer_bytes[-heads.n_layer :] == found.k_width[-heads.n_layer :] == (0,) * heads.n_layer
    assert heads.read_bytes == sum(heads.layer_bytes) + found.output_bytes


def test_a_file_without_heads_has_none(files: dict[str, Path]) -> None:
    assert hparams.of_file(files["none"]).heads is None
    assert load_of(files["none"]).of_heads is None


def test_a_hybrid_that_only_says_how_often_it_attends_is_recurrent(files: dict[str, Path]) -> None:
    found = hparams.of_file(files["hybrid"])
    assert found.is_recurrent
    assert found.k_width[0] == 0 < found.k_width[1]
    assert not hparams.of_file(files["one"]).is_recurrent
    assert heads_of(files["hybrid"]).is_sure


def test_a_hybrid_may_name_its_recurrent_layers(files: dict[str, Path]) -> None:
    found = header.read(files["hybrid"])
    named = {**found.metadata, "qwen35.attention.recurrent_layers": [False, True, False]}
    of_named = hparams.of_headers([replace(found, metadata=named)], "named")
    assert [bool(k) for k in of_named.k_width] == [True, False, False]
    assert of_named.heads == replace(heads_of(files["hybrid"]), name="named")


@pytest.mark.parametrize("n_ctx", [300, 4096, 5000])
def test_hidden_states_are_counted(files: dict[str, Path], n_ctx: int) -> None:
    """Those of the text, as they are allocated, and a batch of them in the contexts of target and head."""
    states = HiddenStates(SHAPE.n_embd)
    for n in range(50, n_ctx + 50, 50):
        states.take(list(range(min(n, n_ctx))), np.zeros((50, SHAPE.n_embd), np.float32))
    load = replace(load_of(files["one"]), n_ctx=n_ctx)
    assert load.of_heads is not None
    batches = 2 * 4 * SHAPE.n_embd * load.n_ubatch
    assert estimate(load.of_heads, "cpu").host_states == states._rows.nbytes + batches
    assert estimate(load, "cpu").host_states == 0


def test_heads_are_offloaded_after_the_output_and_before_the_other_layers(files: dict[str, Path]) -> None:
    """As llama.cpp counts its layers."""
    heads = heads_of(files["two"])
    for n, n_up in ((-1, 2), (0, 0), (1, 0), (2, 1), (3, 2), (4, 2)):
        found = estimated(files["two"], "gpu", n_gpu_layers=n)
        assert found.weights == sum(heads.layer_bytes[2 - n_up :])
        assert found.weights + found.host_weights == heads.weights_bytes
        assert (found.kv > 0) == (n_up > 0)
    up = estimate(load_of(files["two"], n_gpu_layers=4), "gpu")
    assert up.weights == hparams.of_file(files["two"]).layer_bytes[1] + hparams.of_file(files["two"]).output_bytes


def test_a_pair_with_heads_needs_what_both_need(files: dict[str, Path]) -> None:
    machine, load = described(vram="8GB"), load_of(files["one"])
    alone, both = search.Plan(machine, load), search.Plan(machine, load, load.of_heads)
    added = estimated(files["one"], "gpu")
    assert both.footprint.device - alone.footprint.device == added.device > added.weights > 0
    assert both.footprint.host - alone.footprint.host == added.host
    assert both.with_n_ctx(8192).footprint.draft.kv == 2 * added.kv


def test_what_makes_room_names_no_draft_file(files: dict[str, Path]) -> None:
    """The caches of heads are of the target's types."""
    load = replace(load_of(files["one"]), n_ctx=8192)
    tight = described(vram="8GB")
    need = search.Plan(tight, load, load.of_heads).footprint.device
    machine = replace(tight, devices=(replace(tight.devices[0], free_bytes=need - MIB), *tight.devices[1:]))
    change = search.cheapest_change(search.Plan(machine, load, load.of_heads))
    assert change is not None
    assert change.flags == "--type-k q8_0 --type-v q8_0 --flash-attn"


# --- predicted speed-ups --------------------------------------------------------------------------------------


def test_a_step_of_heads_reads_one_of_them_and_the_output(files: dict[str, Path]) -> None:
    device = described(device="RTX 4090").devices[0]
    one, two = (predict.from_bytes(hparams.of_file(files[n]), heads_of(files[n]), device) for n in ("one", "two"))
    assert one.draft_s == pytest.approx(two.draft_s)
    assert one.lengths == predict.LENGTHS
    assert two.lengths == (1, 2)


def test_experts_that_no_token_uses_are_not_read(files: dict[str, Path]) -> None:
    found = replace(hparams.of_file(files["one"]), expert_bytes=1000, expert_share=0.25)
    whole = sum(found.layer_bytes) + found.output_bytes
    assert whole - found.read_bytes == 750
    assert whole - found.bytes_read(2) == 562
    assert found.bytes_read(1000) == whole


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_needed_acceptance_commits_as_many_tokens(n: int) -> None:
    for n_tokens in (1.0, 1.3, 1.0 + n):
        needed = predict.needed_acceptance(n_tokens, n)
        assert needed is not None
        assert predict.expected_tokens(needed, n) == pytest.approx(n_tokens, abs=1e-3)
    assert predict.needed_acceptance(1.01 + n, n) is None
