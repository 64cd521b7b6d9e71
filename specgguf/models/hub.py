"""A model reference becomes a local, verified GGUF file.

A reference is a path, the name of a model that `inventory` finds here, `org/repo[:quant or file]` on the Hugging
Face hub, or a preset's ModelFile. The hub's own cache and rules hold (resuming, HF_ENDPOINT, HF_TOKEN,
HF_HUB_OFFLINE). What is here already, in specgguf's cache or another program's, resolves without a network. Only this
module and `hf_client` fetch anything. It knows nothing of what a model computes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specgguf import presets
from specgguf.config import did_you_mean
from specgguf.errors import ModelNotFound, SpecggufError
from specgguf.presets import ModelFile

from . import cache, header, hf_client, inventory
from .cache import Progress
from .header import shards

# What a bare org/repo means, in order: the common best compromise first.
PREFERRED = ("Q4_K_M", "Q4_K_S", "Q4_0", "Q5_K_M", "Q8_0", "F16", "BF16")

FETCH = "specgguf models pull fetches it, where neither --offline nor HF_HUB_OFFLINE forbids that"
_REPO = re.compile(r"(?:https://)?(?:huggingface\.co/|hf\.co/)?([\w.-]+/[\w.-]+?)/?(?::([^:]+))?")


def resolve(ref: str | Path | ModelFile, *, offline: bool | None = None, progress: Progress | None = None) -> Path:
    """The local file that `ref` means, downloaded if need be (of a split model: its first shard).

    Args:
        offline: never open a connection; None asks HF_HUB_OFFLINE.
        progress: called as progress(what, bytes done, bytes in all).

    Raises:
        ModelNotFound: there is no such file, repository or quantisation.
        DownloadError: the network, the hub or a hash said no.
        SpecggufError: the file is no usable GGUF.
    """
    offline = hf_client.is_offline() if offline is None else offline
    found = cached(ref, progress=progress)
    if found is not None:
        return found
    if isinstance(ref, ModelFile):
        return _fetch_model(ref, offline=offline, progress=progress)
    repo, wanted = split_reference(str(ref))
    if offline:
        raise _not_here(repo, wanted)
    return _fetch_from_repo(repo, wanted, progress=progress)


def cached(ref: str | Path | ModelFile, *, progress: Progress | None = None, verify: bool = True) -> Path | None:
    """The local file that `ref` means, or None where it would have to be downloaded. No network.

    Args:
        verify: hold a ModelFile to its sha256 (which reads a file of unknown origin in full, once); without, its
            size is enough: for lists and plans.

    Raises:
        ModelNotFound, SpecggufError: `ref` is a path that leads to no usable GGUF.
    """
    if isinstance(ref, ModelFile):
        return _cached_model(ref, progress, verify)
    path = Path(ref).expanduser()
    if not path.exists() and (found := inventory.find(str(ref))) is not None:
        return check_file(found)
    if path.exists() or _looks_like_path(str(ref)):
        return check_file(path)
    repo, wanted = split_reference(str(ref))
    files = [p.relative_to(s).as_posix() for s in hf_client.snapshots(repo) for p in sorted(s.rglob("*.gguf"))]
    if not wanted and not any(_has_quant(f, PREFERRED[0]) for f in files):
        return None  # the hub may hold the preferred one
    name = choose_file(files, wanted)
    return None if name is None else _in_snapshots(repo, name)


def check_file(path: Path) -> Path:
    """`path`, if it is a complete GGUF (and every shard of a split one is beside it).

    Raises:
        ModelNotFound: no such file, or a folder.
        SpecggufError: not a GGUF, truncated, or a shard is missing.
    """
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.gguf"))
        hint = f"name a file in it: {', '.join(inside[:5])}" if inside else "there is no .gguf in it"
        raise ModelNotFound(f"{path} is a folder, not a GGUF file", hint=hint)
    if not path.is_file():
        siblings = [p.name for p in path.parent.glob("*.gguf")] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, siblings) or "give a path, or org/repo:quant on the Hugging Face hub"
        raise ModelNotFound(f"no such file: {path}", hint=hint)
    for shard in shards(path.name):
        _check_one(path.with_name(shard))
    return path


def _check_one(path: Path) -> None:
    if not path.is_file():
        raise ModelNotFound(f"a shard is missing: {path}", hint="a split model needs all its files in one folder")
    try:
        head = header.read(path)
    except header.GgufError as error:
        raise SpecggufError(f"{path}: {error}", hint="download it again, or give another file") from error
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}") from error
    size = path.stat().st_size
    if size < head.min_bytes:
        raise SpecggufError(
            f"{path} is truncated: {size:,} of at least {head.min_bytes:,} bytes", hint="download it again"
        )


def split_reference(ref: str) -> tuple[str, str]:
    """`org/repo[:quant or file]` in two; the second may be empty.

    Raises:
        ModelNotFound: `ref` is neither that nor a path.
    """
    match = _REPO.fullmatch(ref)
    if not match or _looks_like_path(ref):
        raise ModelNotFound(
            f"no such model: {ref}",
            hint=did_you_mean(ref, [*(model.name for model in inventory.models()), *presets.names()])
            or "give a path, org/repo:quant on the hub, a name from specgguf models list, or a preset with -p",
        )
    return match.group(1), match.group(2) or ""


def choose_file(files: Sequence[str], wanted: str) -> str | None:
    """The GGUF that `wanted` (a quant, a file name, or nothing) means among a repository's files.

    Only first shards count, and no projectors of multimodal models. None where nothing fits.
    """
    ggufs = [f for f in files if f.endswith(".gguf") and shards(f)[0] == f and "mmproj" not in f.lower()]
    if wanted.endswith(".gguf"):
        named = [f for f in ggufs if f == wanted or f.rsplit("/", 1)[-1] == wanted]
        return named[0] if named else None
    for quant in (wanted,) if wanted else PREFERRED:
        fitting = [f for f in ggufs if _has_quant(f, quant)]
        if fitting:
            return min(fitting, key=lambda f: (len(f), f))
    return min(ggufs) if ggufs and not wanted else None


def _has_quant(file: str, quant: str) -> bool:
    name = re.escape(quant.lower())
    return re.search(rf"(?:^|[-./]){name}(?:[-./]|$)", file.rsplit("/", 1)[-1].lower()) is not None


def _looks_like_path(ref: str) -> bool:
    return ref.startswith((".", "/", "~")) or (ref.endswith(".gguf") and ":" not in ref)


# --- a preset's model ---------------------------------------------------------------------------------------


def _cached_model(model: ModelFile, progress: Progress | None, verify: bool) -> Path | None:
    for path in [cache.path_of(model.sha256, model.name), *(s / model.file for s in hf_client.snapshots(model.repo))]:
        with suppress(OSError):
            right_size = path.stat().st_size == model.bytes
            if right_size and (not verify or cache.verified(path, model.sha256, progress)):
                return path
    return None


def _fetch_model(model: ModelFile, *, offline: bool, progress: Progress | None) -> Path:
    if offline:
        raise ModelNotFound(f"{model} is not on this machine, and nothing is fetched now", hint=FETCH)
    path = hf_client.download(model.repo, model.file, model.revision, progress=progress)
    return _keep_if_right(path, model.sha256, progress)


def _keep_if_right(path: Path, sha256: str, progress: Progress | None) -> Path:
    if cache.verified(path, sha256, progress, fetched=True):
        return path
    path.resolve().unlink()
    path.unlink(missing_ok=True)
    raise hf_client.HashError(
        f"{path.name}: the hub sent other bytes than promised (wrong sha256); the file was not kept",
        hint="try again; if it stays so, the upload was changed: report it",
    )


def remove(found: inventory.Found) -> None:
    """Delete a model that specgguf brought here, with what was noted about it.

    Raises:
        ValueError: it is not ours to delete.
    """
    if not found.removable:
        raise ValueError(f"{found.name} was not brought by specgguf")
    for name in shards(found.path.name):
        path = found.path.with_name(name)
        if not path.exists():
            continue
        real = path.resolve()
        real.unlink()
        path.unlink(missing_ok=True)  # in the hub's cache a link to the blob
        path.with_name(path.name + ".lock").unlink(missing_ok=True)
    if found.sha256:
        cache.note_of(found.sha256).unlink(missing_ok=True)
    with suppress(OSError):  # only if it is empty now
        found.path.parent.rmdir()


# --- a repository on the hub --------------------------------------------------------------------------------


def _in_snapshots(repo: str, name: str) -> Path | None:
    """`name` in the newest snapshot of the hub's cache that has it whole, all shards included."""
    for snapshot in hf_client.snapshots(repo):
        paths = [snapshot / shard for shard in shards(name)]
        if all(p.is_file() for p in paths):
            return check_file(paths[0])
    return None


def find_in_repo(repo: str, wanted: str) -> tuple[str, str, dict[str, str]]:
    """The commit, the file that `wanted` means there (of a split model the first shard), and all files' sha256.

    Raises:
        ModelNotFound, DownloadError: no such repository or file, or no network.
    """
    revision, files = hf_client.list_files(repo)
    name = choose_file(list(files), wanted)
    if name is None:
        raise _nothing_fits(repo, wanted, list(files))
    lacking = [shard for shard in shards(name) if shard not in files]
    if lacking:
        raise ModelNotFound(f"{repo} lacks {lacking[0]}, a shard of {name}")
    return revision, name, files


def _fetch_from_repo(repo: str, wanted: str, *, progress: Progress | None) -> Path:
    revision, name, files = find_in_repo(repo, wanted)
    paths = []
    for shard in shards(name):
        path = hf_client.download(repo, shard, revision, progress=progress)
        promised = files[shard]
        paths.append(_keep_if_right(path, promised, progress) if promised else path)
    return check_file(paths[0])


def _nothing_fits(repo: str, wanted: str, files: list[str]) -> ModelNotFound:
    ggufs = [f for f in files if f.endswith(".gguf") and shards(f)[0] == f]
    if not ggufs:
        return ModelNotFound(f"{repo} holds no GGUF file", hint="look for a repository whose name ends in -GGUF")
    names = ", ".join(ggufs[:12]) + (", ..." if len(ggufs) > 12 else "")
    return ModelNotFound(f"{repo} has no '{wanted}'", hint=f"it has {names}")


def _not_here(repo: str, wanted: str) -> ModelNotFound:
    name = f"{repo}:{wanted}" if wanted else repo
    here = [p.name for s in hf_client.snapshots(repo) for p in s.rglob("*.gguf")]
    hint = f"here of that repository: {', '.join(sorted(set(here)))}" if here else FETCH
    return ModelNotFound(f"{name} is not on this machine, and nothing is fetched now", hint=hint)
