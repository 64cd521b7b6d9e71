"""The machine: its devices, their memory, its cores. What is not this machine can be described by name.

Asks ggml for devices (CUDA, Metal, Vulkan and ROCm answer alike) and the operating system for free host memory,
containers included. A `Machine` is plain data, so a test or `fit --vram` writes one down. Knows nothing of models.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from specgguf.config import did_you_mean
from specgguf.errors import ConfigError

MIB = 2**20
GIB = 2**30
LOAD = Path("/proc/loadavg")
BUSY_SHARE = 0.5  # of all cores: less does not slow a model much

# What is left to programs on a card of so many GB, in MiB, where the device cannot be asked.
CARD_MIB = {8: 7807, 10: 10037, 12: 12042, 16: 16056, 24: 24080, 32: 32110}

# Makers' figures: memory in GB (0: unified, say how much), bandwidth in GB/s.
CARDS: dict[str, tuple[int, int]] = {
    "RTX 3060": (12, 360), "RTX 3070": (8, 448), "RTX 3080": (10, 760), "RTX 3090": (24, 936),
    "RTX 4060": (8, 272), "RTX 4060 Ti": (16, 288), "RTX 4070": (12, 504), "RTX 4070 Ti SUPER": (16, 672),
    "RTX 4080": (16, 717), "RTX 4090": (24, 1008), "RTX 5060 Ti": (16, 448), "RTX 5070": (12, 672),
    "RTX 5070 Ti": (16, 896), "RTX 5080": (16, 960), "RTX 5090": (32, 1792),
    "RX 7900 XTX": (24, 960), "RX 9070 XT": (16, 640), "Arc B580": (12, 456), "Arc A770": (16, 560),
    "M1": (0, 68), "M2": (0, 100), "M3": (0, 100), "M4": (0, 120), "M5": (0, 153),
    "M1 Pro": (0, 200), "M2 Pro": (0, 200), "M3 Pro": (0, 150), "M4 Pro": (0, 273), "M5 Pro": (0, 307),
    "M1 Max": (0, 400), "M2 Max": (0, 400), "M3 Max": (0, 400), "M4 Max": (0, 546), "M5 Max": (0, 614),
    "M1 Ultra": (0, 800), "M2 Ultra": (0, 800), "M3 Ultra": (0, 819),
}  # fmt: skip


@dataclass(frozen=True)
class Device:
    """Something that computes.

    Attributes:
        name: as ggml names it ("CUDA0"), or as the user described it.
        kind: "gpu" (memory of its own), "apple" (shares the host's, under Metal's limit) or "cpu".
        total_bytes, free_bytes: what programs may use of it in all, and now.
        bandwidth: bytes per second, 0 where unknown.
    """

    name: str
    kind: str
    total_bytes: int
    free_bytes: int
    description: str = ""
    backend: str = ""
    bandwidth: float = 0.0


@dataclass(frozen=True)
class Machine:
    """Devices (GPUs first, the CPU last), cores, and whether it is this one."""

    devices: tuple[Device, ...]
    n_cores: int
    is_here: bool = True

    @property
    def gpus(self) -> tuple[Device, ...]:
        return tuple(d for d in self.devices if d.kind != "cpu")

    @property
    def cpu(self) -> Device:
        return next(d for d in self.devices if d.kind == "cpu")

    @property
    def kind(self) -> str:
        """Where a model would go: "gpu", "apple" or "cpu"."""
        return self.devices[0].kind


def this_machine() -> Machine:
    """Ask ggml and the operating system.

    Raises:
        BackendError: llama-cpp-python is not usable.
    """
    from specgguf.native import devices as ggml

    found = []
    for raw in ggml.devices():
        if raw.type not in ("gpu", "igpu"):
            continue
        kind = "apple" if raw.registry.lower() in ("metal", "mtl") else "gpu"
        found.append(
            Device(
                raw.name,
                kind,
                raw.total_bytes,
                raw.free_bytes,
                raw.description,
                raw.registry,
                bandwidth_of(raw.description),
            )
        )
    total, free = host_memory()
    found = [replace(d, free_bytes=min(d.free_bytes, free)) if d.kind == "apple" else d for d in found]
    return Machine((*found, Device("CPU", "cpu", total, free, cpu_name(), "CPU")), n_cores())


def described(*, vram: str = "", unified: str = "", device: str = "", n_devices: int = 1) -> Machine:
    """A machine that is not this one: `--vram 24GB`, `--unified 36GB`, `--device "RTX 4090"`.

    Raises:
        ConfigError: a size or a name that cannot be read.
    """
    bandwidth, name = 0.0, ""
    if device:
        name, (gigabytes, speed) = _card(device)
        bandwidth = speed * 1e9
        if gigabytes and not vram:
            vram = f"{gigabytes}GB"
        if not gigabytes and not unified:
            raise ConfigError(f"an {name} comes with different sizes of memory", hint="add --unified 36GB")
    if bool(vram) == bool(unified):
        raise ConfigError("give either --vram (a card's memory) or --unified (a Mac's)")
    if unified:
        size = parse_size(unified)
        budget = metal_budget(size)
        gpu = Device(name or f"Mac with {size / GIB:.0f} GB", "apple", budget, budget, name, "Metal", bandwidth)
        return Machine((gpu, Device("CPU", "cpu", size, size, "", "CPU")), 8, is_here=False)
    usable = card_budget(parse_size(vram))
    label = name or f"{vram} card"
    cards = tuple(
        Device(f"{label} #{i}" if n_devices > 1 else label, "gpu", usable, usable, name, "", bandwidth)
        for i in range(n_devices)
    )
    return Machine((*cards, Device("CPU", "cpu", 32 * GIB, 24 * GIB, "", "CPU")), 8, is_here=False)


def metal_budget(total_bytes: int) -> int:
    """What Metal lets programs use: two thirds of the memory below 36 GB, three quarters from there on."""
    return total_bytes * 3 // 4 if total_bytes >= 36 * GIB else total_bytes * 2 // 3


def card_budget(total_bytes: int) -> int:
    """What is left of a card's nominal memory."""
    gigabytes = round(total_bytes / GIB)
    return CARD_MIB[gigabytes] * MIB if gigabytes in CARD_MIB else int(total_bytes * 0.975)


def parse_size(text: str) -> int:
    """ "24GB", "24 GiB", "8192MiB" or "24" (gigabytes) in bytes; memory is sold in powers of two.

    Raises:
        ConfigError: anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:(m|g)i?b?)?\s*", text.lower())
    if not match or float(match[1]) <= 0:
        raise ConfigError(f"a size of memory looks like 24GB, not '{text}'")
    return int(float(match[1]) * (MIB if match[2] == "m" else GIB))


def bandwidth_of(description: str) -> float:
    """Bytes per second by a device's own description, 0 where it is not in the table."""
    text = description.lower()
    named = [card for card in CARDS if re.search(rf"\b{re.escape(card.lower())}\b", text)]
    return CARDS[max(named, key=len)][1] * 1e9 if named else 0.0


def _card(name: str) -> tuple[str, tuple[int, int]]:
    plain = re.sub(r"[^a-z0-9]", "", name.lower().replace("nvidia", "").replace("geforce", "").replace("apple", ""))
    for card, facts in CARDS.items():
        if plain in (squeezed := re.sub(r"[^a-z0-9]", "", card.lower()), squeezed.removeprefix("rtx")):
            return card, facts
    hint = did_you_mean(name, CARDS) or "give its memory instead: --vram 24GB"
    raise ConfigError(f"no card '{name}' in the table", hint=hint)


# --- the operating system -----------------------------------------------------------------------------------


def others_keep_busy() -> str:
    """One line where other programs take the processor from whoever asks; empty where they do not, or cannot be seen.

    The load of the last minute may be of a program that has ended: some other one must run now, too.
    """
    try:
        said = LOAD.read_text(encoding="ascii").split()
    except OSError:
        return ""
    load, running = float(said[0]), int(said[3].partition("/")[0])
    n = os.cpu_count() or 1  # the load is all cores', whichever of them this process may use
    if load < BUSY_SHARE * n or running < 2:
        return ""
    return f"other programs keep {min(load, n):.1f} of {n} cores busy"


def n_cores() -> int:
    """Cores that this process may use, a container's quota included."""
    try:
        n = len(os.sched_getaffinity(0))
    except AttributeError:
        n = os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        n = min(n, max(1, int(quota) // int(period)))
    return n


def host_memory() -> tuple[int, int]:
    """Bytes of main memory: in all, and available to programs now; a container's limit counts."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = _mac_available() if sys.platform == "darwin" else _linux_available(total)
    limit, used = _container_limit()
    if 0 < limit < total:
        return limit, max(0, min(free, limit - used))
    return total, min(free, total)


def _linux_available(total: int) -> int:
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(x for x in lines if x.startswith("MemAvailable")).split()[1]) * 1024
    return total * 3 // 4


def _mac_available() -> int:
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        text = subprocess.run(["vm_stat"], capture_output=True, text=True, timeout=5, check=True).stdout
        return parse_vm_stat(text)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def parse_vm_stat(text: str) -> int:
    """Available bytes by macOS's `vm_stat`: free, inactive, speculative and purgeable pages."""
    size = re.search(r"page size of (\d+)", text)
    page = int(size[1]) if size else 4096
    wanted = ("free", "inactive", "speculative", "purgeable")
    return page * sum(int(n) for name, n in re.findall(r"Pages (\w+):\s+(\d+)", text) if name in wanted)


def _container_limit() -> tuple[int, int]:
    """The memory limit of this control group and what counts against it; (0, 0) without one."""
    group = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())  # "max" is a ValueError: no limit
        used = int((group / "memory.current").read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return limit, max(0, used - int(stat.get("inactive_file", 0)) - int(stat.get("active_file", 0)))
    return 0, 0


def unused_gpu(machine: Machine) -> str:
    """A graphics device that this computer seems to have and this build of llama.cpp cannot use; "" if none."""
    if machine.gpus:
        return ""
    if Path("/proc/driver/nvidia/gpus").is_dir() or Path("/dev/nvidia0").exists():
        return "CUDA"
    if sys.platform == "darwin" and os.uname().machine == "arm64":
        return "METAL"
    if Path("/dev/kfd").exists():
        return "HIP"
    return "VULKAN" if any(Path("/dev/dri").glob("renderD*")) else ""


def cpu_name() -> str:
    """The processor's name, or an empty string."""
    with suppress(OSError):
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
        return found[1].strip() if found else ""
    return ""
