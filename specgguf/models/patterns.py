"""Files of a hub's repository by a pattern, and in a folder of the caller's: as `Llama.from_pretrained` takes them.

It knows nothing of quantisations; what has no wildcard is `hub.resolve`'s.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path

from specgguf.errors import ModelNotFound

from . import hf_client, hub
from .header import shards


def resolve(
    repo: str, file: str | None, *, local_dir: str | os.PathLike[str] | None = None, offline: bool | None = None
) -> Path:
    """The local file of `repo` that `file` means: a name, a pattern ("*q8_0.gguf"), a quantisation, or None.

    Args:
        local_dir: put it there (linked where that can be, else copied), and take it from there the next time.

    Raises:
        ModelNotFound: no file, or several that are not one model. DownloadError: see `hub.resolve`.
    """
    if local_dir is not None and file is not None and (found := _in_folder(Path(local_dir), file)):
        return found
    if file is not None and any(character in file for character in "*?["):
        file = match(repo, file, offline=hf_client.is_offline() if offline is None else offline)
    path = hub.resolve(f"{repo}:{file}" if file else repo, offline=offline)
    return path if local_dir is None else _put(path, Path(local_dir))


def match(repo: str, pattern: str, *, offline: bool) -> str:
    """The one file of `repo` that `pattern` means; the first shard of a split model.

    Raises:
        ModelNotFound: none, or several.
    """
    if offline:
        files = [p.relative_to(s).as_posix() for s in hf_client.snapshots(repo) for p in s.rglob("*.gguf")]
    else:
        files = list(hf_client.list_files(repo)[1])
    found = sorted({f for f in files if f.endswith(".gguf") and fnmatch(f, pattern)})
    firsts = [f for f in found if f.rpartition("/")[2] == shards(f.rpartition("/")[2])[0]]
    if len(firsts) == 1:
        return firsts[0]
    some = ", ".join(firsts[:5]) or ", ".join(sorted(f for f in files if f.endswith(".gguf"))[:5])
    what = "several files match" if firsts else "no file matches"
    raise ModelNotFound(f"{repo}: {what} {pattern!r}", hint=f"there are {some}" if some else "")


def _in_folder(folder: Path, file: str) -> Path | None:
    found = sorted(p for p in folder.glob("**/*.gguf") if fnmatch(p.relative_to(folder).as_posix(), file))
    firsts = [p for p in found if p.name == shards(p.name)[0]]
    whole = len(firsts) == 1 and all(firsts[0].with_name(name).exists() for name in shards(firsts[0].name))
    return firsts[0] if whole else None


def _put(path: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in shards(path.name):
        source, made = path.with_name(name).resolve(), folder / name
        if not made.exists():
            with suppress(OSError):
                os.link(source, made)
                continue
            shutil.copyfile(source, made.with_suffix(".part"))
            made.with_suffix(".part").rename(made)
    return folder / path.name
