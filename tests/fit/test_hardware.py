"""Machines, this one and described ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specgguf.errors import ConfigError
from specgguf.fit import hardware
from specgguf.fit.hardware import GIB, MIB, described, parse_size
from specgguf.native import devices as ggml
from specgguf.native.devices import RawDevice


def test_this_machine_has_a_cpu_and_memory() -> None:
    machine = hardware.this_machine()
    assert machine.devices[-1].kind == "cpu"
    assert machine.n_cores >= 1
    assert 0 < machine.cpu.free_bytes <= machine.cpu.total_bytes
    assert machine.kind in ("cpu", "gpu", "apple")


def fake(monkeypatch: pytest.MonkeyPatch, *devices: RawDevice) -> hardware.Machine:
    monkeypatch.setattr(ggml, "devices", lambda: list(devices))
    monkeypatch.setattr(hardware, "host_memory", lambda: (32 * GIB, 20 * GIB))
    return hardware.this_machine()


CPU = RawDevice("CPU", "Some CPU", "cpu", "CPU", 32 * GIB, 32 * GIB)


def test_graphics_cards_come_first_with_their_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    card = RawDevice("CUDA0", "NVIDIA GeForce RTX 4060 Ti", "gpu", "CUDA", 15 * GIB, 16 * GIB)
    blas = RawDevice("BLAS", "OpenBLAS", "accel", "BLAS", 0, 0)
    machine = fake(monkeypatch, card, blas, CPU)
    assert [d.name for d in machine.devices] == ["CUDA0", "CPU"]
    assert machine.kind == "gpu"
    assert machine.gpus[0].bandwidth == 288e9
    assert machine.cpu.free_bytes == 20 * GIB


def test_metal_is_unified_and_never_freer_than_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    chip = RawDevice("MTL0", "Apple M3 Pro", "gpu", "MTL", 26 * GIB, 27 * GIB)
    machine = fake(monkeypatch, chip, CPU)
    assert machine.kind == "apple"
    assert machine.gpus[0].bandwidth == 150e9
    assert machine.gpus[0].free_bytes == 20 * GIB


def test_vulkan_and_rocm_are_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in ("Vulkan", "ROCm"):
        card = RawDevice(f"{registry}0", "AMD Radeon RX 7900 XTX", "gpu", registry, 23 * GIB, 24 * GIB)
        assert fake(monkeypatch, card, CPU).kind == "gpu"


@pytest.mark.parametrize(
    ("text", "n"),
    [("24GB", 24 * GIB), ("24", 24 * GIB), ("8192MiB", 8 * GIB), ("1.5 gib", 3 * GIB // 2), ("12g", 12 * GIB)],
)
def test_sizes_are_read_as_people_write_them(text: str, n: int) -> None:
    assert parse_size(text) == n


@pytest.mark.parametrize("text", ["", "big", "-3GB", "0", "12TB"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="size of memory"):
        parse_size(text)


def test_a_card_by_name() -> None:
    for name in ("RTX 4090", "4090", "NVIDIA GeForce RTX 4090", "rtx4090"):
        machine = described(device=name)
        assert machine.gpus[0].total_bytes == 24080 * MIB
        assert machine.gpus[0].bandwidth == 1008e9
        assert not machine.is_here
    assert described(device="4070 ti super").gpus[0].bandwidth == 672e9
    with pytest.raises(ConfigError) as caught:
        described(device="RTX 4091")
    assert "RTX 4090" in caught.value.hint
    with pytest.raises(ConfigError, match="different sizes"):
        described(device="M3 Pro")


def test_metal_gets_two_thirds_and_from_36_gb_on_three_quarters() -> None:
    assert described(unified="32GB").gpus[0].total_bytes == 32 * GIB * 2 // 3
    assert described(unified="36GB").gpus[0].total_bytes == 27 * GIB


def test_a_size_is_needed_and_only_one() -> None:
    for wrong in ({}, {"vram": "8GB", "unified": "8GB"}):
        with pytest.raises(ConfigError, match="--vram"):
            described(**wrong)  # type: ignore[arg-type]


def test_vm_stat_is_read() -> None:
    text = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10.
Pages active:                            500.
Pages inactive:                           20.
Pages speculative:                         5.
Pages wired down:                         99.
Pages purgeable:                           1.
"""
    assert hardware.parse_vm_stat(text) == 36 * 16384


@pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")
def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_container_limit", lambda: (4 * GIB, 1 * GIB))
    total, free = hardware.host_memory()
    assert total == 4 * GIB
    assert free <= 3 * GIB


@pytest.mark.parametrize(
    ("load", "running", "said"),
    [
        (3.2, 3, "other programs keep 2.0 of 2 cores busy"),
        (1.4, 2, "other programs keep 1.4 of 2 cores busy"),
        (0.3, 2, ""),
        (3.2, 1, ""),
    ],
)
def test_a_machine_that_others_keep_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, load: float, running: int, said: str
) -> None:
    """The load of a program that has just ended is nobody's any more."""
    about = tmp_path / "loadavg"
    about.write_text(f"{load} 1.00 1.00 {running}/300 4711\n")
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr(hardware, "LOAD", about)
    assert hardware.others_keep_busy() == said
    monkeypatch.setattr(hardware, "LOAD", tmp_path / "none")
    assert hardware.others_keep_busy() == ""
