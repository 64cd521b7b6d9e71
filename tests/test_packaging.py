"""What is built is what was written: wheel and sdist carry every part, and the scripts fail in one line.

Built without a network from a copy of the sources (setuptools is in the environment that scripts/test makes).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("specgguf", "cli", "presets")
KINDS = (".py", ".toml", ".typed", ".jsonl")  # what the parts are made of


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


def expected() -> set[str]:
    """Every file of the package, as it is named once installed."""
    names = set()
    for part in PARTS:
        home = "specgguf" if part == "specgguf" else f"specgguf/{part}"
        files = [f for f in (ROOT / part).iterdir() if f.suffix in KINDS]
        names |= {f"{home}/{file.name}" for file in files}
    return names


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


def test_the_wheel_works_by_itself(built: Path, tmp_path: Path) -> None:
    """Its command answers, its presets load, and neither `cli` nor `presets` is importable on its own."""
    with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    code = """
import importlib.util, sys
import specgguf, specgguf.cli.main, specgguf.presets
assert specgguf.__file__.startswith(sys.argv[1]), specgguf.__file__
assert "demo" in specgguf.presets.names()
assert specgguf.presets.load("demo").target
assert importlib.util.find_spec("cli") is None and importlib.util.find_spec("presets") is None
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_no_file_of_a_part_is_forgotten() -> None:
    """A folder below the packages, or a file of another kind, would need a line in pyproject.toml."""
    for part in PARTS:
        for path in (ROOT / part).iterdir():
            assert path.name == "__pycache__" or path.suffix in KINDS, path


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the scripts need of a clone, and a folder of tools without any Python or compiler."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    for part in PARTS:
        (folder / part).mkdir()
    shutil.copy(ROOT / "pyproject.toml", folder)
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "env", "dirname", "cat", "ls", "cksum", "uname", "grep", "tail", "mkdir"):
        found = shutil.which(tool)
        assert found is not None, tool
        (tools / tool).symlink_to(found)
    return folder


def quickstart(clone: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(clone / "scripts" / "quickstart"), "hello"],
        env={"PATH": str(clone.parent / "tools"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_quickstart_without_a_python(clone: Path) -> None:
    script(clone.parent / "tools" / "python3", "exit 1")  # one that is too old
    done = quickstart(clone)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: no Python of version 3.11 or later was found\n")


def test_quickstart_without_a_compiler(clone: Path, tmp_path: Path) -> None:
    python = f'case "$*" in *"import llama_cpp"*) exit 1;; esac\nexec {sys.executable} "$@"'
    script(tmp_path / "venv" / "bin" / "python", python)
    done = quickstart(clone, VIRTUAL_ENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: no C++ compiler: llama-cpp-python is compiled when it is installed\n")


def test_quickstart_when_pip_fails(clone: Path, tmp_path: Path) -> None:
    pip = 'case "$*" in "-m pip"*) echo "ERROR: No matching distribution found for numpy"; exit 1;; esac'
    script(tmp_path / "venv" / "bin" / "python", f'{pip}\nexec {sys.executable} "$@"')
    done = quickstart(clone, VIRTUAL_ENV=str(tmp_path / "venv"), CXX="cat")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "No matching distribution found for numpy" in done.stderr
    assert str(tmp_path / "venv" / "install.log") in done.stderr


def test_quickstart_passes_its_arguments_on(clone: Path, tmp_path: Path) -> None:
    """An environment that has everything: nothing is installed, and the answer is all there is on stdout."""
    script(tmp_path / "venv" / "bin" / "python", f'case "$*" in "-m pip"*) exit 0;; esac\nexec {sys.executable} "$@"')
    script(tmp_path / "venv" / "bin" / "specgguf", 'printf "%s|" "$@"')
    done = quickstart(clone, VIRTUAL_ENV=str(tmp_path / "venv"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "chat|-p|demo|--yes|hello|"
    again = quickstart(clone, VIRTUAL_ENV=str(tmp_path / "venv"))
    assert again.stderr == ""
