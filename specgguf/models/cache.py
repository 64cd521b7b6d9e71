"""specgguf's own model cache: where a file lies, and what was verified about it.

A file of known bytes lies under the first digits of its sha256. Reading gigabytes to hash them is done once: a note
remembers the file's size and change time. Fetches nothing, and knows neither the hub nor what a GGUF is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

Progress = Callable[[str, int, int], None]  # (what, bytes done, bytes in all; 0 where unknown)

CHUNK = 1 << 20


def folder() -> Path:
    """Where the cache is (it need not exist)."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("specgguf")) / "models"


def path_of(sha256: str, name: str) -> Path:
    """Where the file with this sha256 lies, if it is here."""
    return folder() / sha256[:12] / name


def note_of(sha256: str) -> Path:
    """The note on the file with this sha256: where it lies, its size and change time, and who brought it."""
    return folder() / "verified" / f"{sha256}.json"


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


def verified(
    path: Path,
    sha256: str,
    progress: Progress | None = None,
    *,
    known_sha256: str = "",
    fetched: bool = False,
) -> bool:
    """Whether the bytes are the promised ones: read once in full, remembered by size and change time.

    Args:
        known_sha256: spares the reading when the caller has just done it.
        fetched: remember also that specgguf brought the file here (and so may remove it).
    """
    real = path.resolve()
    stat = real.stat()
    facts = {"path": str(real), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    note = note_of(sha256)
    with suppress(OSError, ValueError, AttributeError):
        old = json.loads(note.read_text())
        if {key: old.get(key) for key in facts} == facts and (old.get("fetched") or not fetched):
            return True
        fetched = fetched or bool(old.get("fetched"))
    if known_sha256 != sha256 and sha256_of(real, progress, f"checking {path.name}") != sha256:
        return False
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps({**facts, "fetched": fetched}))
    return True
