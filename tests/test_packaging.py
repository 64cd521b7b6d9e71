"""What is built is what was written: wheel and sdist carry every part, and the scripts fail in one line.

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
    for tool in ("bash", "env", "dirname", "cat", "ls", "cksum", "uname", "grep", "tail", "mkdir", "find", "sort"):
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


@pytest.mark.parametrize(
    ("version", "cpu", "has_amx"),
    [("12.2.0", "amx_bf16 amx_tile amx_int8", False), ("13.1.0", "amx_tile", True), ("12.2.0", "avx2", True)],
    ids=["gcc 12 with AMX", "gcc 13", "no AMX"],
)
def test_llama_cpp_is_compiled_without_what_the_compiler_breaks(
    clone: Path, tmp_path: Path, version: str, cpu: str, has_amx: bool
) -> None:
    built_with, said = build_flags(clone, tmp_path, version, cpu)
    assert built_with["CMAKE_ARGS"] == "-DLLAVA_BUILD=OFF"
    assert ("-mno-amx-tile" not in built_with["CFLAGS"]) == has_amx
    assert ("-mno-amx-tile" not in built_with["CXXFLAGS"]) == has_amx
    assert (f"gcc {version} miscompiles llama.cpp's AMX code" not in said) == has_amx


def test_what_a_user_says_about_the_build_is_kept(clone: Path, tmp_path: Path) -> None:
    built_with, _ = build_flags(clone, tmp_path, "12.2.0", "amx_tile", CMAKE_ARGS="-DGGML_CUDA=on", CFLAGS="-O1")
    assert built_with["CMAKE_ARGS"] == "-DGGML_CUDA=on"
    assert built_with["CFLAGS"] == "-O1 -mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    assert built_with["CXXFLAGS"] == "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


def build_flags(clone: Path, folder: Path, version: str, cpu: str, **environment: str) -> tuple[dict[str, str], str]:
    """What the compiler would be told on a machine with this gcc and these CPU flags, and what is said about it."""
    names = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS")
    (folder / "cpuinfo").write_text(f"flags\t\t: fpu {cpu} avx512f\n")
    script(clone.parent / "tools" / "g++", f'[ "$1" = -dumpfullversion ] && echo {version}')
    told = " ".join(f'"{name}=${name}"' for name in names)
    pip = f"""case "$*" in
        *"import llama_cpp"*) exit 1;;
        *"-m pip"*requirements.txt) printf "%s\\n" {told} > "{folder}/told"; exit 1;;
        "-m pip"*) exit 0;;
    esac"""
    script(folder / "venv" / "bin" / "python", f'{pip}\nexec {sys.executable} "$@"')
    done = quickstart(clone, VIRTUAL_ENV=str(folder / "venv"), CPUINFO=str(folder / "cpuinfo"), **environment)
    assert done.returncode == 1, done.stderr
    return dict(line.split("=", 1) for line in (folder / "told").read_text().splitlines()), done.stderr


def test_quickstart_passes_its_arguments_on(clone: Path, tmp_path: Path) -> None:
    """An environment that has everything: nothing is installed, and the answer is all there is on stdout."""
    script(
        tmp_path / "venv" / "bin" / "python",
        f'case "$*" in "-m pip"*|*fetch_models.py*) exit 0;; esac\nexec {sys.executable} "$@"',
    )
    script(tmp_path / "venv" / "bin" / "specgguf", 'printf "%s|" "$@"')
    done = quickstart(clone, VIRTUAL_ENV=str(tmp_path / "venv"))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "chat|-p|demo|--yes|hello|"
    again = quickstart(clone, VIRTUAL_ENV=str(tmp_path / "venv"))
    assert again.stderr == ""
