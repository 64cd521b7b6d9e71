"""The formula against llama.cpp's own plan: caches exact, compute buffers within 3 %."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Pair
from support import models, requantize

from specgguf.errors import BackendError
from specgguf.fit import footprint, search
from specgguf.fit.dry_load import dry_settings, measured
from specgguf.fit.footprint import LoadParams, estimate, graph_bytes, minimal_context_bytes
from specgguf.fit.hardware import GIB, MIB, described
from specgguf.fit.slimming import cutting
from specgguf.models import hparams
from specgguf.native import devices

PRINTED = 0.006 * MIB  # llama.cpp logs hundredths of a MiB
REAL: dict[str, Callable[[], Path]] = {
    "smollm2": models.smollm2,
    "gemma": models.gemma,
    "qwen-1.5b": lambda: models.demo_pair()[0],
    "qwen-0.5b": lambda: models.demo_pair()[1],
}


@pytest.mark.real
@pytest.mark.parametrize("model", list(REAL))
@pytest.mark.parametrize(("n_ctx", "kv"), [(512, "f16"), (4096, "q8_0"), (16384, "f16"), (16384, "q8_0")])
def test_the_formula_agrees_with_llama_cpp(model: str, n_ctx: int, kv: str) -> None:
    path = REAL[model]()
    load = LoadParams(hparams.of_file(path), n_ctx=n_ctx, type_k=kv, type_v=kv)
    theirs = devices.dry_load(str(path), dry_settings(load, "cpu"))
    caches = 2 if load.hparams.n_masks == 2 else 1  # each is printed, and rounded, by itself
    assert abs(estimate(load, "cpu").host_kv - theirs.kv_bytes) <= caches * PRINTED
    assert graph_bytes(load) == pytest.approx(sum(theirs.compute.values()), rel=0.03)
    assert load.hparams.weights_bytes == pytest.approx(path.stat().st_size, rel=0.03)


@pytest.mark.real
@pytest.mark.parametrize("change", [{"flash_attn": False}, {"n_outputs": 512}, {"n_ubatch": 128}], ids=str)
def test_the_formula_holds_for_other_settings(change: dict[str, int]) -> None:
    path = models.demo_pair()[1]
    load = replace(LoadParams(hparams.of_file(path)), **change)  # type: ignore[arg-type]
    theirs = devices.dry_load(str(path), dry_settings(load, "cpu"))
    assert graph_bytes(load) == pytest.approx(sum(theirs.compute.values()), rel=0.03)


@pytest.mark.real
def test_a_child_process_says_the_same() -> None:
    path = models.smollm2()
    load = LoadParams(hparams.of_file(path))
    theirs = measured(load, path)
    assert theirs.host_compute == pytest.approx(graph_bytes(load) + minimal_context_bytes(load.hparams), rel=0.03)
    assert theirs.host_weights == estimate(load, "cpu").host_weights


def test_a_wrong_formula_would_be_seen(tiny_chat: Pair) -> None:
    """Negative control: forgetting one cache, or a quantisation, is far outside the bounds."""
    load = LoadParams(hparams.of_file(tiny_chat.target), n_ctx=4096)
    theirs = measured(load, tiny_chat.target)
    halved = replace(load, hparams=replace(load.hparams, v_width=(0,) * load.hparams.n_layer))
    assert abs(estimate(halved, "cpu").host_kv - theirs.host_kv) > PRINTED
    q8 = replace(load, type_k="q8_0", type_v="q8_0")
    assert abs(estimate(q8, "cpu").host_kv - theirs.host_kv) > PRINTED


@pytest.mark.parametrize("fixture", ["tiny_chat", "tiny_sliding", "tiny_hybrid", "tiny_recurrent"])
def test_llama_cpp_plans_every_kind_of_memory(fixture: str, request: pytest.FixtureRequest) -> None:
    path: Path = request.getfixturevalue(fixture).target
    load = LoadParams(hparams.of_file(path), n_ctx=512)
    theirs = measured(load, path)
    assert theirs.host_compute > 0
    assert load.hparams.is_sure == (fixture in ("tiny_chat", "tiny_sliding"))
    if load.hparams.is_sure:
        assert abs(estimate(load, "cpu").host_kv - theirs.host_kv) <= 2 * PRINTED


def test_a_file_that_cannot_be_planned_says_so(tmp_path: Path, tiny_chat: Pair) -> None:
    load = LoadParams(hparams.of_file(tiny_chat.target))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(tiny_chat.target.read_bytes()[:1000])
    with pytest.raises(BackendError, match=r"broken\.gguf"):
        measured(load, broken)


RESIDENT = """
import sys
from specgguf import SamplingParams, SpeculativeLlama
with SpeculativeLlama(sys.argv[1], n_ctx=4096, flash_attn=True) as llm:
    prompt = llm.tokenize(b"def f(x): return x + 1 " * 100)[:512]
    list(llm.generate(prompt, SamplingParams(max_tokens=4)))
    status = open("/proc/self/status").read()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
"""


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_whole_process_is_within_a_tenth() -> None:
    """A loaded engine that has read 512 tokens, all that is resident of it."""
    path = models.smollm2()
    done = subprocess.run([sys.executable, "-P", "-c", RESIDENT, str(path)], capture_output=True, text=True, check=True)
    resident = int(done.stdout.split()[-1]) * 1024
    n = estimate(LoadParams(hparams.of_file(path)), "cpu")
    assert n.host + n.host_pages + footprint.HOST_OVERHEAD_MIB["cpu"] * MIB == pytest.approx(resident, rel=0.1)


DRAFT_RESIDENT = """
import sys
import llama_cpp
from specgguf.native import backend
from specgguf.native.context import Model
from specgguf.native.mapped.slimmed import open_draft

def resident():
    status = open("/proc/self/status").read()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))

backend.start()
before = resident()
weights = open_draft(sys.argv[1], {})
model = Model(weights, n_ctx=4096, n_outputs_max=17, flash_attn=True)
tokens = weights.tokenize(("def f(x): return x + 1  # " + "".join(map(chr, range(200, 800)))).encode() * 3)[:512]
model.extend(tokens, 1)
for token in tokens[:20]:
    model.extend([token], 1)
print(resident() - before)
"""


@pytest.mark.real
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(("size", "head"), [(None, None), (32768, None), (8192, None), (32768, "q4_0")])
def test_what_a_slimmed_draft_takes(tmp_path: Path, size: int | None, head: str | None) -> None:
    """Within 5 % of what is resident of it: both vocabularies, and none of the file that it was cut from."""
    path = requantize.q4_0(models.demo_pair()[1])
    if size is not None:
        path = cutting.cut(path, tmp_path / "slim.gguf", size, head=head).path
    command = [sys.executable, "-P", "-c", DRAFT_RESIDENT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    resident = int(done.stdout.split()[-1]) * 1024
    n = estimate(LoadParams(hparams.of_file(path)), "cpu")
    assert n.host + n.host_pages == pytest.approx(resident, rel=0.05)
    if size is not None:
        forgotten = replace(hparams.of_file(path), n_vocab_source=0)
        n = estimate(LoadParams(forgotten), "cpu")
        assert n.host + n.host_pages != pytest.approx(resident, rel=0.05)


@pytest.mark.real
def test_on_a_card_a_slimmed_draft_takes_its_smaller_matrix(tmp_path: Path) -> None:
    """As any tied model: the output matrix there, the same again on the host, and both vocabularies."""
    whole = hparams.of_file(models.smollm2())
    slim = hparams.of_file(cutting.cut(models.smollm2(), tmp_path / "slim.gguf", 8192).path)
    ours, theirs = (estimate(LoadParams(d), "gpu") for d in (slim, whole))
    saved = whole.output_bytes - slim.output_bytes
    assert saved > 0.7 * whole.output_bytes
    assert theirs.weights - ours.weights == saved
    assert ours.kv == theirs.kv
    assert ours.host_vocab > theirs.host_vocab


@pytest.mark.real
def test_copies_that_a_cpu_makes_are_counted() -> None:
    """As llama.cpp logs them on x86 with AVX2: "CPU_REPACK model buffer size"."""
    logged = {"qwen-1.5b": 596.53, "qwen-0.5b": 28.05, "gemma": 12.66, "smollm2": 0.0}
    for name, mib in logged.items():
        d = hparams.of_file(REAL[name]())
        assert footprint.repacked_bytes(d, "x86_64") == pytest.approx(mib * MIB, abs=PRINTED)


# --- where things go ----------------------------------------------------------------------------------------


@pytest.fixture
def load(tiny_chat: Pair) -> LoadParams:
    return LoadParams(hparams.of_file(tiny_chat.target), n_ctx=1024)


def test_a_card_takes_all_but_the_embedding(load: LoadParams) -> None:
    d = load.hparams
    n = estimate(load, "gpu")
    assert n.weights == sum(d.layer_bytes) + d.output_bytes
    assert n.host_weights == d.embd_bytes
    assert n.host_kv == 0
    assert estimate(load, "gpu", 2).compute == 2 * n.compute


def test_partial_offload_splits_layers_and_caches(load: LoadParams) -> None:
    whole, none = estimate(load, "gpu"), estimate(replace(load, n_gpu_layers=0), "gpu")
    one = estimate(replace(load, n_gpu_layers=2), "gpu")
    assert none.device == 0
    assert 0 < one.kv < whole.kv
    assert one.kv + one.host_kv == whole.kv
    assert one.weights + one.host_weights == whole.weights + whole.host_weights
    assert estimate(replace(load, n_gpu_layers=99), "gpu") == whole


def test_one_memory_counts_weights_once(load: LoadParams) -> None:
    n = estimate(load, "apple")
    assert n.weights + n.host_weights == load.hparams.weights_bytes
    assert estimate(load, "cpu").host_weights == load.hparams.weights_bytes


def test_caches_grow_with_the_context_in_steps(load: LoadParams) -> None:
    sizes = [estimate(replace(load, n_ctx=n), "cpu").host_kv for n in (1, 256, 257, 512)]
    assert sizes[0] == sizes[1]
    assert sizes[2] == sizes[3] == 2 * sizes[1]
    assert (
        estimate(replace(load, type_k="q8_0", type_v="q8_0"), "cpu").host_kv == estimate(load, "cpu").host_kv * 34 // 64
    )


# --- what to change -----------------------------------------------------------------------------------------


def plan(name: str, **machine: str) -> search.Plan:
    from specgguf import presets

    return search.plan_of(presets.load(name), described(**machine), offline=True)  # type: ignore[arg-type]


def test_nothing_is_changed_that_fits() -> None:
    assert search.cheapest_change(plan("gpu-12gb", device="RTX 3060")) is None


def test_the_largest_context_is_the_last_that_fits() -> None:
    p = plan("gpu-12gb", device="RTX 3060")
    n = search.largest_n_ctx(p)
    assert p.with_n_ctx(n).fits
    assert not p.with_n_ctx(n + 256).fits
    assert n > p.target.n_ctx


@pytest.mark.parametrize(
    ("name", "machine", "text"),
    [
        ("apple-16gb", {"unified": "12GB"}, "KV caches in q8_0"),
        ("gpu-16gb", {"vram": "12GB"}, "a context of "),
        ("gpu-24gb", {"vram": "16GB"}, "target layers on the device"),
        ("apple-32gb", {"unified": "24GB"}, "the target in Q4_K_M"),
        ("apple-36gb", {"unified": "16GB"}, "a smaller target"),
    ],
)
def test_the_cheapest_change_comes_first(name: str, machine: dict[str, str], text: str) -> None:
    p = plan(name, **machine)
    assert not p.fits
    change = search.cheapest_change(p)
    assert change is not None
    assert text in change.text
    if change.plan is not None:
        assert change.plan.fits


def test_with_fewer_layers_the_draft_stays_whole() -> None:
    change = search.cheapest_change(plan("gpu-24gb", vram="16GB"))
    assert change is not None
    assert change.plan is not None
    assert change.plan.draft is not None
    assert change.plan.draft.n_gpu_layers == -1
    n = change.plan.target.n_gpu_layers
    more = replace(change.plan, target=replace(change.plan.target, n_gpu_layers=n + 1))
    assert not more.fits, "as many layers as fit"


def test_overhead_is_per_card() -> None:
    one = plan("gpu-24gb-code", vram="24GB").footprint
    two = plan("gpu-24gb-code", vram="24GB").machine
    both = replace(two, devices=(two.devices[0], *two.devices))
    assert footprint.footprint(*_loads("gpu-24gb-code"), both).overhead == 2 * one.overhead
    assert one.device < 24 * GIB


def _loads(name: str) -> tuple[LoadParams, LoadParams | None]:
    from specgguf import presets

    return search.loads_of(presets.load(name), offline=True)
