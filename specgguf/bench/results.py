"""A benchmark on disk: every sample, with the machine, the versions, the files' hashes and the date.

One JSON object, a sample a line, so that a diff shows samples. It measures nothing and judges nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from specgguf.errors import ConfigError

from .runs import Sample

FORMAT = 1
BLOCK = 1 << 20
PACKAGES = ("specgguf", "llama-cpp-python", "numpy")


def describe(files: Mapping[str, str | os.PathLike[str]], **more: Any) -> dict[str, Any]:
    """The head of a result: date, machine, versions, the `files` by role with their hashes, and `more`."""
    return {
        "format": FORMAT,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": versions(),
        "files": {role: fingerprint(path) for role, path in files.items()},
        **more,
    }


def machine() -> dict[str, Any]:
    """What ran it."""
    from specgguf.fit.hardware import this_machine

    here = this_machine()
    return {
        "system": platform.platform(),
        "n_cores": here.n_cores,
        "devices": [
            {"name": d.description or d.name, "kind": d.kind, "total_bytes": d.total_bytes} for d in here.devices
        ],
    }


def versions() -> dict[str, str]:
    """Packages, Python, and what llama.cpp was compiled for."""
    from specgguf.native import devices

    found = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {**found, "llama.cpp": devices.build_info()[1]}


def fingerprint(path: str | os.PathLike[str], tick: Callable[[int], None] | None = None) -> dict[str, Any]:
    """A file's name, size and sha256; `tick` hears the bytes read so far."""
    digest, done = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            done += len(block)
            if tick is not None:
                tick(done)
    return {"name": Path(path).name, "bytes": done, "sha256": digest.hexdigest()}


def memory() -> dict[str, int]:
    """Bytes: the most that this process ever held, mapped weights included, and what is taken of each GPU."""
    from specgguf.fit.hardware import this_machine

    taken = {d.name: d.total_bytes - d.free_bytes for d in this_machine().gpus if d.kind == "gpu"}
    try:
        import resource
    except ImportError:  # Windows
        return taken
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"resident": peak * (1 if sys.platform == "darwin" else 1024), **taken}


def save(path: str | os.PathLike[str], head: Mapping[str, Any], samples: Iterable[Sample]) -> None:
    """Write a result, whole or not at all; folders are made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(_rounded(asdict(s)), ensure_ascii=False) for s in samples)
    top = json.dumps(dict(head), ensure_ascii=False, indent=1).rstrip("}").rstrip()
    part = path.with_name(path.name + ".part")
    part.write_text(f'{top},\n "samples": [\n{lines}\n]}}\n', encoding="utf-8")
    part.replace(path)


def _rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Microseconds are enough."""
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in values.items()}


def load(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Sample]]:
    """The head and the samples of a saved result.

    Raises:
        ConfigError: not a result of this format. OSError: no such file.
    """
    try:
        head = json.loads(Path(path).read_text(encoding="utf-8"))
        if head["format"] != FORMAT:
            raise ValueError(f"format {head['format']}")
        samples = [Sample.load(values) for values in head.pop("samples")]
    except (ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a saved benchmark: {error}") from error
    return head, samples
