"""Which instruction sets of a processor the loaded llama.cpp leaves unused, and the line that builds it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specgguf.fit import instructions
from specgguf.fit.instructions import InstructionSets, compared, processor_flags, reinstall
from specgguf.native import devices

ZEN4 = "fpu pni ssse3 avx f16c fma avx2 bmi2 avx512f avx512vbmi avx512_vnni avx512_bf16".split()
GENERIC = "CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 0 | LLAMAFILE = 1 | "
NATIVE = (
    "CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : SSE3 = 1 | SSSE3 = 1 | AVX = 1 | AVX2 = 1 | F16C = 1 | FMA = 1 | "
    "BMI2 = 1 | AVX512 = 1 | AVX512_VBMI = 1 | AVX512_VNNI = 1 | AVX512_BF16 = 1 | "
)


def test_what_a_generic_wheel_leaves_unused() -> None:
    found = compared(ZEN4, GENERIC)
    assert found.used == ("AVX",)
    assert found.unused == tuple("F16C FMA AVX2 BMI2 AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16".split())


def test_a_native_build_leaves_nothing_unused() -> None:
    assert compared(ZEN4, NATIVE).unused == ()
    assert compared(ZEN4, NATIVE.replace("AVX512_VNNI = 1 | ", "")).unused == ("AVX512_VNNI",)


def test_what_the_processor_lacks_is_not_missed() -> None:
    assert compared(["avx"], GENERIC) == InstructionSets(("AVX",), ())
    assert compared([], GENERIC) == InstructionSets((), ())


def test_a_build_that_says_nothing_of_the_processor() -> None:
    assert compared(ZEN4, "") == compared(ZEN4, "CUDA : ARCHS = 890 | ") == InstructionSets((), ())


def test_processors_of_other_kinds() -> None:
    arm = compared(["asimd", "asimddp", "i8mm"], "CPU : NEON = 1 | ARM_FMA = 1 | DOTPROD = 1 | ")
    assert arm == InstructionSets(("DOTPROD",), ("MATMUL_INT8",))
    apple = compared(["hw.optional.arm.FEAT_DotProd", "hw.optional.arm.FEAT_I8MM"], "CPU : NEON = 1 | ")
    assert apple.unused == ("DOTPROD", "MATMUL_INT8")


def test_flags_are_read_from_the_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(instructions, "CPUINFO", tmp_path / "cpuinfo")
    assert processor_flags() == set(), "no such file"
    (tmp_path / "cpuinfo").write_text("model name\t: X\nflags\t\t: fpu avx2 fma\nvmx flags\t: vnmi\n\nflags\t: other\n")
    assert processor_flags() == {"fpu", "avx2", "fma"}
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd i8mm\n")
    assert processor_flags() == {"fp", "asimd", "i8mm"}

    said = "hw.optional.floatingpoint: 1\nhw.optional.arm.FEAT_I8MM: 1\nhw.optional.arm.FEAT_SME: 0\n"

    def sysctl(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command == ["sysctl", "hw.optional"]
        return subprocess.CompletedProcess(command, 0, said)

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(subprocess, "run", sysctl)
    assert processor_flags() == {"hw.optional.floatingpoint", "hw.optional.arm.FEAT_I8MM"}


def test_this_build_says_something() -> None:
    """llama.cpp's own line has the form that is read here."""
    known = set(instructions.SETS) | {"NEON", "SSE3", "RISCV_V", "VSX", "VXE"}
    assert any(f"{name} = 1" in devices.build_info()[1] for name in known)


@pytest.mark.parametrize(
    ("wanted", "backends", "flags"),
    [
        (["CUDA"], [], "-DGGML_CUDA=on"),
        (["NATIVE"], [], "-DGGML_NATIVE=on"),
        (["NATIVE"], ["CUDA", "CUDA", "CPU"], "-DGGML_NATIVE=on -DGGML_CUDA=on"),
        (["NATIVE"], ["MTL", "ROCm"], "-DGGML_NATIVE=on -DGGML_METAL=on -DGGML_HIP=on"),
    ],
)
def test_the_line_keeps_what_is_computed_on_now(wanted: list[str], backends: list[str], flags: str) -> None:
    line = reinstall(*wanted, backends=backends)
    assert line.startswith(f'CMAKE_ARGS="{flags}" pip install --force-reinstall --no-cache-dir ')
    assert "--no-binary llama-cpp-python" in line, "another wheel would be the same"
