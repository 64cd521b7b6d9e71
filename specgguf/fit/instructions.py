"""Instruction sets: which the processor has, and which of them the llama.cpp that is loaded was compiled for; and the
line that compiles it again.

A build on the machine itself uses all; a wheel made for many machines may not. AMX is left out: the scripts build
without it where the compiler breaks it (docs/install.md). Knows nothing of models.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
# As llama.cpp names them: the flag in /proc/cpuinfo, and the entry of macOS's sysctl where it has one.
SETS: dict[str, tuple[str, ...]] = {
    "AVX": ("avx", "hw.optional.avx1_0"),
    "F16C": ("f16c", "hw.optional.f16c"),
    "FMA": ("fma", "hw.optional.fma"),
    "AVX2": ("avx2", "hw.optional.avx2_0"),
    "BMI2": ("bmi2", "hw.optional.bmi2"),
    "AVX_VNNI": ("avx_vnni",),
    "AVX512": ("avx512f", "hw.optional.avx512f"),
    "AVX512_VBMI": ("avx512vbmi", "hw.optional.avx512vbmi"),
    "AVX512_VNNI": ("avx512_vnni",),
    "AVX512_BF16": ("avx512_bf16",),
    "FP16_VA": ("asimdhp", "hw.optional.arm.FEAT_FP16"),
    "DOTPROD": ("asimddp", "hw.optional.arm.FEAT_DotProd"),
    "MATMUL_INT8": ("i8mm", "hw.optional.arm.FEAT_I8MM"),
    "SVE": ("sve",),
}
# By the name that ggml gives a device's backend: the name of its build flag.
FLAGS = {"cuda": "CUDA", "metal": "METAL", "mtl": "METAL", "vulkan": "VULKAN", "rocm": "HIP", "hip": "HIP"}


@dataclass(frozen=True)
class InstructionSets:
    """Those that the processor has, by llama.cpp's names: used by what is loaded, and unused."""

    used: tuple[str, ...]
    unused: tuple[str, ...]


def here() -> InstructionSets:
    """Of this machine and the llama.cpp that is loaded."""
    from specgguf.native import devices

    return compared(processor_flags(), devices.build_info()[1])


def compared(flags: Collection[str], compiled: str) -> InstructionSets:
    """What is used of a processor's flags by a build that says `compiled` of itself: "CPU : AVX = 1 | AVX2 = 1 | …"."""
    on = {name for name, value in re.findall(r"(\w+) = (\d+)", compiled) if value != "0"}
    if "CPU :" not in compiled:  # it says nothing of the processor
        return InstructionSets((), ())
    has = [name for name, flags_of in SETS.items() if not set(flags_of).isdisjoint(flags)]
    return InstructionSets(tuple(n for n in has if n in on), tuple(n for n in has if n not in on))


def processor_flags() -> set[str]:
    """What the system says of the processor; empty where it does not."""
    if sys.platform == "darwin":
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(["sysctl", "hw.optional"], capture_output=True, text=True, timeout=5, check=True)
            return set(re.findall(r"^(hw\.optional\.\S+): 1$", said.stdout, re.MULTILINE))
        return set()
    with suppress(OSError):
        found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", CPUINFO.read_text(), re.MULTILINE)
        return set(found[1].split()) if found else set()
    return set()


def reinstall(*wanted: str, backends: Sequence[str] = ()) -> str:
    """The line that compiles llama-cpp-python again, for `wanted` ("CUDA", "NATIVE") and what it computes on now.

    Args:
        backends: ggml's names of those ("CUDA", "MTL").
    """
    from specgguf.native.compat import REQUIREMENT

    names = dict.fromkeys([*wanted, *(FLAGS[b.lower()] for b in backends if b.lower() in FLAGS)])
    flags = " ".join(f"-DGGML_{name}=on" for name in names)
    how = "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python"
    return f'CMAKE_ARGS="{flags}" {how} {REQUIREMENT.removeprefix("pip install ")}'
