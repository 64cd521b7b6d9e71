"""Every preset validates, adds up and fits its budget; a file that is wrong says where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from specgguf.presets import ModelFile, Preset

from specgguf import presets
from specgguf.config import DRAFT_MAX_LIMIT
from specgguf.errors import ConfigError
from specgguf.fit import footprint, search
from specgguf.fit.hardware import MIB, Machine, described
from specgguf.models import remote_header

NAMES = presets.names()
BY_HEADS = [name for name in NAMES if name.endswith("-heads")]
BY_DRAFT = [name for name in NAMES if name not in BY_HEADS]
BUDGETED = [name for name in NAMES if name != "demo"]


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's preset folder of the test's own."""
    monkeypatch.setattr(presets, "user_folder", lambda: tmp_path)
    return tmp_path


def files(preset: Preset) -> list[ModelFile]:
    found = [file for file in preset.files if isinstance(file, ModelFile)]
    assert len(found) == len(preset.files)
    return found


def test_there_is_a_preset_for_every_tier() -> None:
    tiers = {f"gpu-{n}gb" for n in (8, 10, 12, 16, 24, 32)} | {f"apple-{n}gb" for n in (8, 16, 24, 32, 36, 48, 64, 96)}
    code = {f"gpu-{n}gb-code" for n in (8, 12, 16, 24, 32)} | {f"apple-{n}gb-code" for n in (16, 24, 32, 36, 48, 64)}
    assert set(BY_DRAFT) == tiers | code | {"gpu-2x24gb", "cpu-8gb", "cpu-16gb", "cpu-16gb-chat", "demo"}
    assert BY_HEADS == ["cpu-8gb-heads", "gpu-8gb-heads", "gpu-24gb-heads"]


def test_names_are_sorted_as_people_count() -> None:
    assert [n for n in NAMES if n.startswith("gpu-") and n.endswith("b")][1:4] == ["gpu-8gb", "gpu-10gb", "gpu-12gb"]


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_is_complete(name: str) -> None:
    preset = presets.load(name)
    assert preset.summary
    assert preset.source
    target = files(preset)[0]
    for model in files(preset):
        assert model.repo
        assert len(model.revision) == 40
        assert model.license
        assert model.shape is not None
        assert model.is_open or name in ("gpu-2x24gb", "apple-96gb")
    quantised = {preset.type_k, preset.type_v, preset.draft_type_k, preset.draft_type_v} - {"f16"}
    assert preset.flash_attn or not quantised
    assert target.shape is not None
    if name in BY_HEADS:
        assert (preset.draft_model, preset.experimental) == (presets.HEADS, True)
        assert target.shape.n_prediction_heads > 0
        assert "not run" in preset.summary
        assert preset.source.startswith("Not run: ")
        return
    draft = files(preset)[1]
    assert draft.shape is not None
    assert target.bytes > draft.bytes
    assert abs(target.shape.n_vocab - draft.shape.n_vocab) <= 128


@pytest.mark.parametrize("name", BUDGETED)
@pytest.mark.parametrize("n_outputs", [DRAFT_MAX_LIMIT + 1, 512])
def test_a_preset_fits_its_budget(name: str, n_outputs: int) -> None:
    """With our contexts, and also with those that reserve logits for a whole batch."""
    preset = presets.load(name)
    kind, n = preset.match.device, preset.match.n_devices
    target, draft = search.loads_of(preset, offline=True)
    assert draft is not None
    needs = [footprint.estimate(replace(load, n_outputs=n_outputs), kind, n) for load in (target, draft)]
    used = (
        sum(estimate.host if kind == "cpu" else estimate.device for estimate in needs) / MIB
        + footprint.OVERHEAD_MIB[kind] * n
    )
    assert 0.4 * preset.budget_mib < used < preset.budget_mib


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("gpu-8gb", 6675),
        ("gpu-24gb-code", 22451),
        ("apple-36gb", 22753),
        ("apple-96gb", 58545),
        ("cpu-16gb", 6285 - 236),
    ],
)
def test_the_arithmetic_agrees_with_published_measurements(name: str, mib: int) -> None:
    """Totals that were checked against what people report for these pairs, logits of a whole batch included. (On a
    CPU they take 300 MiB for the interpreter and the vocabularies' tables; the former is 64, the latter counted.)"""
    preset = presets.load(name)
    kind = preset.match.device
    loads = [replace(load, n_outputs=512) for load in search.loads_of(preset, offline=True) if load]
    needs = [footprint.estimate(load, kind) for load in loads]
    used = (
        sum(estimate.host - estimate.host_vocab if kind == "cpu" else estimate.device for estimate in needs) / MIB
        + footprint.OVERHEAD_MIB[kind]
    )
    assert used == pytest.approx(mib, rel=0.02)


# Of one state of each in public logs of llama.cpp, in MiB, and what the pair takes in all: with our contexts, and
# with those that reserve logits for a whole batch.
STATES = {"gpu-24gb-heads": 149.62, "gpu-8gb-heads": 50.25, "cpu-8gb-heads": 50.25}
TOTALS = {"gpu-24gb-heads": (18239, 18967), "gpu-8gb-heads": (6271, 7073), "cpu-8gb-heads": (3392, 4237)}


def total_mib(preset: Preset, n_outputs: int, **changes: object) -> float:
    """What the pair takes, with such `changes` to the target."""
    kind = preset.match.device
    target, draft = search.loads_of(preset, offline=True)
    assert draft is not None
    target = replace(target, hparams=replace(target.hparams, **changes))  # type: ignore[arg-type]
    needs = [footprint.estimate(replace(load, n_outputs=n_outputs), kind) for load in (target, draft)]
    used = sum(estimate.host if kind == "cpu" else estimate.device for estimate in needs)
    return used / MIB + footprint.OVERHEAD_MIB[kind]


@pytest.mark.parametrize("name", BY_HEADS)
def test_states_are_those_of_public_logs(name: str) -> None:
    preset = presets.load(name)
    target, heads = search.loads_of(preset, offline=True)
    assert heads is not None
    assert heads.hparams.are_heads
    one = sum(target.hparams.state_bytes) / MIB
    assert one == pytest.approx(STATES[name], abs=0.006)
    without = replace(target, hparams=replace(target.hparams, state_bytes=(0,) * target.hparams.n_layer))
    kept = sum(footprint.kv_bytes_by_layer(target)) - sum(footprint.kv_bytes_by_layer(without))
    assert kept / MIB == pytest.approx((1 + preset.draft_max) * STATES[name], abs=0.03)


@pytest.mark.parametrize("name", BY_HEADS)
@pytest.mark.parametrize("whole_batch", [False, True])
def test_a_pair_by_heads_takes_what_was_worked_out(name: str, whole_batch: bool) -> None:
    preset, wanted = presets.load(name), TOTALS[name][whole_batch]
    n_outputs = 512 if whole_batch else DRAFT_MAX_LIMIT + 1
    assert total_mib(preset, n_outputs) == pytest.approx(wanted, abs=0.6)
    found = search.loads_of(preset, offline=True)[0].hparams
    states_left_out = total_mib(preset, n_outputs, state_bytes=(0,) * found.n_layer)
    assert states_left_out < wanted - 4 * STATES[name]
    everywhere = (max(found.k_width),) * found.n_layer
    assert total_mib(preset, n_outputs, k_width=everywhere, v_width=everywhere) > wanted + 200


def test_what_a_shape_says_of_states_and_heads_is_complete() -> None:
    target = files(presets.load("gpu-8gb-heads"))[0]
    assert target.shape is not None
    for change, fault in (
        ({"state_bytes": 0}, "go together"),
        ({"n_attending": 0}, "go together"),
        ({"prediction_heads_bytes": 0}, "go together"),
        ({"n_attending": 33}, "n_attending must be"),
        ({"output_bytes": -1}, "output_bytes must be"),
        ({"n_layer": 0}, "n_layer must be"),
    ):
        with pytest.raises(ConfigError, match=fault):
            replace(target.shape, **change)  # type: ignore[arg-type]


def test_layers_of_a_hybrid_attend_as_those_of_its_file_would() -> None:
    """Every fourth; the heads' layer is counted and skipped."""
    found = remote_header.of_preset_model(files(presets.load("gpu-8gb-heads"))[0])
    assert [i for i, k in enumerate(found.k_width) if k] == list(range(3, 32, 4))
    assert found.layer_bytes[-1] == found.k_width[-1] == found.state_bytes[-1] == 0
    assert all(bool(k) != bool(n) for k, n in zip(found.k_width[:-1], found.state_bytes[:-1], strict=True))
    assert found.is_recurrent
    assert not found.is_sure
    assert found.heads is not None
    whole = found.weights_bytes + found.heads.weights_bytes
    assert whole == pytest.approx(files(presets.load("gpu-8gb-heads"))[0].bytes, abs=found.n_layer)


@pytest.mark.parametrize("name", NAMES)
def test_a_shape_describes_its_file(name: str) -> None:
    """Parameters counted from the shape, times the quantisation's bits, are the file's bytes."""
    bits = {"q4_k_m": (4.7, 6.4), "q6_k": (6.5, 7.4), "q8_0": (8.4, 8.8)}
    for model in files(presets.load(name)):
        kind = next(k for k in bits if k in model.name.lower())
        low, high = bits[kind]
        assert low < 8 * model.bytes / remote_header.of_preset_model(model).n_params < high


VALID = """
summary = "x"
model = "org/repo:Q4_K_M"
draft_model = "a.gguf"
"""
TABLE = """
summary = "x"
[model]
file = "a.gguf"
bytes = 5
sha256 = "{sha}"
repo = "o/r"
revision = "main"
"""


def write(folder: Path, text: str, name: str = "mine") -> str:
    (folder / f"{name}.toml").write_text(text)
    return name


def test_a_users_preset_wins(own: Path) -> None:
    write(own, VALID)
    assert presets.load("mine").model == "org/repo:Q4_K_M"
    write(own, VALID, "demo")
    assert presets.load("demo").model == "org/repo:Q4_K_M"
    assert "mine" in presets.names()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (VALID + "n_ctxx = 5", "unknown key 'n_ctxx'"),
        (VALID.replace('model = "org/repo:Q4_K_M"\n', ""), "'model' is missing"),
        (VALID + "[sampling]\ntemperatur = 1", "sampling: unknown key 'temperatur'"),
        (VALID + "[sampling]\ntop_p = 'x'", "top_p must be a number"),
        (VALID + "n_ctx = 'big'", "n_ctx must be a whole number"),
        (VALID + "type_k = 'q9'", "type_k must be one of"),
        (VALID + "flash_attn = 1", "flash_attn must be true or false"),
        (VALID + "draft_first = 9", "draft_first must be"),
        (VALID + "name = 'other'", "the name of a preset is the name of its file"),
        (VALID + "[match]\ndevice = 'tpu'", "match.device must be one of"),
        ("summary = ", "Invalid value"),
        (TABLE.format(sha="0" * 63), "64 hexadecimal"),
        (TABLE.format(sha="0" * 64).replace('repo = "o/r"', 'repo = ""'), "repo and revision say where"),
        (TABLE.format(sha="0" * 64).replace('repo = "o/r"', ""), "'repo' is missing"),
        (TABLE.format(sha="0" * 64) + 'mirror = ["x"]', "unknown key 'mirror'"),
        (TABLE.format(sha="0" * 64).replace("a.gguf", "../a.gguf"), "file must be the path"),
        (TABLE.format(sha="0" * 64) + "[model.shape]\nn_layer = 1", "'n_embd' is missing"),
    ],
)
def test_a_faulty_preset_is_refused_by_file_and_fault(own: Path, text: str, fault: str) -> None:
    name = write(own, text)
    with pytest.raises(ConfigError, match=fault) as caught:
        presets.load(name)
    assert "mine.toml" in str(caught.value)


def test_a_misspelt_key_or_name_is_guessed(own: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        presets.load(write(own, VALID + "n_ctxx = 5"))
    assert "n_ctx" in caught.value.hint
    with pytest.raises(ConfigError, match="no preset 'dmeo'") as caught:
        presets.load("dmeo")
    assert "demo" in caught.value.hint
    with pytest.raises(ConfigError, match="no preset"):
        presets.load("../demo")


# --- the preset for a machine -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "chat", "code"),
    [
        (described(vram="6GB"), "demo", "demo"),
        (described(vram="8GB"), "gpu-8gb", "gpu-8gb-code"),
        (described(device="RTX 3060"), "gpu-12gb", "gpu-12gb-code"),
        (described(device="RTX 4090"), "gpu-24gb", "gpu-24gb-code"),
        (described(device="RTX 5090"), "gpu-32gb", "gpu-32gb-code"),
        (described(vram="24GB", n_devices=2), "gpu-2x24gb", "gpu-24gb-code"),
        (described(unified="8GB"), "apple-8gb", "demo"),
        (described(unified="18GB"), "apple-16gb", "apple-16gb-code"),
        (described(device="M3 Max", unified="36GB"), "apple-36gb", "apple-36gb-code"),
        (described(unified="128GB"), "apple-96gb", "apple-64gb-code"),
    ],
    ids=lambda value: value.devices[0].name if isinstance(value, Machine) else value,
)
def test_a_machine_gets_its_tier(machine: Machine, chat: str, code: str) -> None:
    for use, name in (("chat", chat), ("code", code)):
        preset, reason = search.choose(machine, use=use)
        assert preset.name == name
        assert reason.startswith(f"preset {name}: ")
        assert "GB free" in reason


def with_free(machine: Machine, mib: int) -> Machine:
    first = replace(machine.devices[0], free_bytes=mib * MIB)
    return replace(machine, devices=(first, *machine.devices[1:]))


def test_free_memory_decides_first_by_context_then_by_tier() -> None:
    card = described(device="RTX 4090")
    assert search.choose(with_free(card, 21600))[0].n_ctx == 8192
    preset, reason = search.choose(with_free(card, 20900))
    assert (preset.name, preset.n_ctx) == ("gpu-24gb", 4096)
    assert "cut to 4096" in reason
    assert search.choose(with_free(card, 15000))[0].name == "gpu-16gb"
    assert search.choose(with_free(card, 3000))[0].name == "demo"


def cpu(n_cores: int, gib: int) -> Machine:
    machine = described(vram="8GB")
    host = replace(machine.cpu, total_bytes=gib << 30, free_bytes=(gib - 1) << 30)
    return Machine((host,), n_cores, is_here=True)


@pytest.mark.parametrize("name", BY_HEADS)
def test_a_pair_by_heads_is_never_chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not run is nobody's automatic choice, even where nothing else may be taken."""
    machine = cpu(8, 8) if name.startswith("cpu") else described(vram=name.split("-")[1].upper())
    assert search.plan_of(presets.load(name), machine, offline=True).fits
    assert search.choose(machine, available=lambda p: p.name in (name, "demo"))[0].name == "demo"
    monkeypatch.setattr(search, "NO_FILE", ())
    assert name in [preset.name for preset in search._candidates(machine, "chat")], "the negative control"


def test_few_cores_get_a_small_model() -> None:
    assert search.choose(cpu(2, 24))[0].name == "demo"
    assert search.choose(cpu(4, 8))[0].name == "cpu-8gb"
    assert search.choose(cpu(8, 16))[0].name == "cpu-16gb-chat"
    assert search.choose(cpu(8, 16), use="code")[0].name == "cpu-16gb"


def test_offline_only_what_is_here_is_chosen() -> None:
    card = described(device="RTX 4090")
    assert search.choose(card, available=lambda p: p.name == "gpu-16gb")[0].name == "gpu-16gb"
    with pytest.raises(ConfigError, match="no preset's models are on this machine"):
        search.choose(card, available=lambda _p: False)
