"""What is built is what was written: wheel and sdist carry every part.

Built without a network from a copy of the sources (setuptools is in the environment that scripts/test makes).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from fetch_models import SOURCES

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("specgguf", "cli", "presets")
KINDS = (".py", ".toml", ".typed", ".jsonl", ".gz")  # what the parts are made of


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and a wheel that was built from that sdist."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for part in PARTS:
        shutil.copytree(ROOT / part, source / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build(source, f"build_sdist({str(out)!r})")
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out, filter="data")
    build(next(p for p in out.iterdir() if p.is_dir()), f"build_wheel({str(out)!r})")
    return out


def build(folder: Path, call: str) -> None:
    code = f"import setuptools.build_meta as backend; backend.{call}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def files_of(part: str) -> list[Path]:
    return [p for p in sorted((ROOT / part).rglob("*")) if p.is_file() and "__pycache__" not in p.parts]


def installed(path: Path) -> str:
    """The name of a source file once it is installed."""
    name = path.relative_to(ROOT).as_posix()
    return name if name.startswith("specgguf/") else f"specgguf/{name}"


def expected() -> set[str]:
    """Every file of the package, as it is named once installed."""
    return {installed(path) for part in PARTS for path in files_of(part) if path.suffix in KINDS}


def test_the_wheel_has_every_module_and_preset_and_nothing_else_on_top(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        info = next(n.split("/")[0] for n in names if n.endswith("/METADATA"))
        metadata = wheel.read(f"{info}/METADATA").decode()
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert {n for n in names if not n.startswith(info)} == expected()
    assert f"{info}/licenses/LICENSE" in names
    assert "License-Expression: MIT" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "specgguf = specgguf.cli.main:main" in entry_points


def test_the_wheel_knows_no_package_that_carries_a_model(built: Path) -> None:
    """Where no hub is, the scripts of the repository put files together; an installed specgguf knows the hub alone."""
    packages = {part.package.partition("==")[0] for source in SOURCES.values() for part in source.parts}
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        whole = b"\n".join(wheel.read(name) for name in wheel.namelist() if not name.endswith("/METADATA"))
    assert packages
    for words in (*packages, *(name.replace("-", "_") for name in packages), "pip download", "find-links"):
        assert words.encode() not in whole, words


def test_the_wheel_works_by_itself(built: Path, tmp_path: Path) -> None:
    """Its command answers, its presets load, and neither `cli` nor `presets` is importable on its own."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    code = """
import importlib.util, sys
import specgguf, specgguf.cli.main, specgguf.presets
assert specgguf.__file__.startswith(sys.argv[1]), specgguf.__file__
assert "demo" in specgguf.presets.names()
assert specgguf.presets.load("demo").model
assert importlib.util.find_spec("cli") is None and importlib.util.find_spec("presets") is None
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_no_file_of_a_part_is_forgotten() -> None:
    """A file of another kind, or a folder that is no package, would need a line in pyproject.toml."""
    listed = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    for part in PARTS:
        for path in files_of(part):
            assert path.suffix in KINDS, path
            assert installed(path).rpartition("/")[0].replace("/", ".") in listed, path
