"""The GGUF models that are on this machine, whoever brought them.

Looks, and only looks, into specgguf's own cache, the Hugging Face hub's, llama.cpp's, LM Studio's folder and
Ollama's blobs with their manifests. Every model has a name that `-m` takes. Opens no connection, loads nothing.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import cache, hf_client
from .header import shards

OURS, HUB, LLAMA_CPP, LM_STUDIO, OLLAMA = "specgguf", "hub", "llama.cpp", "LM Studio", "Ollama"
_SHA256 = re.compile(r"[0-9a-f]{64}")
DEPTH = 5  # folders below a root that are looked into


@dataclass(frozen=True)
class Found:
    """A model that is here.

    Attributes:
        name: what `-m` takes.
        path: the file; of a split model its first shard.
        bytes: all shards together.
        source: who brought it.
        sha256: what it should have, "" where nobody promised anything.
        removable: whether specgguf brought it here.
    """

    name: str
    path: Path
    bytes: int
    source: str
    sha256: str = ""
    removable: bool = False


def home() -> Path:
    return Path.home()


def models() -> list[Found]:
    """All models found, specgguf's first; one that several names lead to is listed once."""
    found: dict[Path, Found] = {}
    for model in (*_ours(), *_hub(), *_llama_cpp(), *_lm_studio(), *_ollama()):
        with suppress(OSError):
            found.setdefault(model.path.resolve(), model)
    return list(found.values())


def find(name: str) -> Path | None:
    """The file of the model with this name, or None."""
    return next((m.path for m in (*_ours(), *_llama_cpp(), *_lm_studio(), *_ollama()) if m.name == name), None)


def _ours() -> Iterator[Found]:
    for path in _ggufs(cache.folder()):
        sha256 = _noted(path)
        yield Found(path.name, path, _bytes(path), OURS, sha256, removable=True)


def _noted(path: Path) -> str:
    """The sha256 under which a file of our own cache was verified."""
    folder = cache.note_of("").parent
    for note in folder.glob(f"{path.parent.name}*.json") if folder.is_dir() else ():
        return note.stem
    return ""


def _hub() -> Iterator[Found]:
    try:
        repos = sorted(hf_client.cache_folder().glob("models--*--*"))
    except OSError:
        return
    for folder in repos:
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        seen: set[str] = set()
        for snapshot in hf_client.snapshots(repo):
            for path in _ggufs(snapshot):
                file = path.relative_to(snapshot).as_posix()
                if file in seen:
                    continue
                seen.add(file)
                blob = path.resolve().name
                sha256 = blob if _SHA256.fullmatch(blob) else ""
                yield Found(f"{repo}:{file}", path, _bytes(path), HUB, sha256, removable=_was_fetched(sha256, path))


def _was_fetched(sha256: str, path: Path) -> bool:
    with suppress(OSError, ValueError, AttributeError):
        note = json.loads(cache.note_of(sha256).read_text())
        return bool(note.get("fetched")) and note.get("path") == str(path.resolve())
    return False


def _llama_cpp() -> Iterator[Found]:
    root = os.environ.get("LLAMA_CACHE")
    if root:
        folder = Path(root)
    elif sys.platform == "darwin":
        folder = home() / "Library" / "Caches" / "llama.cpp"
    else:
        cache = os.environ.get("XDG_CACHE_HOME")
        folder = (Path(cache) if cache else home() / ".cache") / "llama.cpp"
    for path in _ggufs(folder):
        yield Found(path.name, path, _bytes(path), LLAMA_CPP)


def _lm_studio() -> Iterator[Found]:
    roots = [home() / ".lmstudio" / "models", home() / ".cache" / "lm-studio" / "models"]
    with suppress(OSError, ValueError, TypeError, AttributeError):
        settings = json.loads((home() / ".lmstudio" / "settings.json").read_text())
        roots.append(Path(settings["downloadsFolder"]))
    for root in roots:
        for path in _ggufs(root):
            parts = path.relative_to(root).parts
            name = f"{'/'.join(parts[:2])}:{'/'.join(parts[2:])}" if len(parts) > 2 else "/".join(parts)
            yield Found(name, path, _bytes(path), LM_STUDIO)


def _ollama() -> Iterator[Found]:
    named = os.environ.get("OLLAMA_MODELS")
    roots = [Path(named)] if named else [home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]
    for root in roots:
        for manifest in sorted(_files(root / "manifests", "")):
            parts = manifest.relative_to(root / "manifests").parts
            if len(parts) > 2 and (blob := _blob(root, manifest)) is not None:
                name = _ollama_name(*parts)
                yield Found(name, blob, _bytes(blob), OLLAMA, blob.name.removeprefix("sha256-"))


def _ollama_name(registry: str, *path: str) -> str:
    """What `ollama run` would take: llama3.2:1b, user/model:tag, hf.co/org/repo:Q4_K_M."""
    *folders, tag = path
    if registry != "registry.ollama.ai":
        folders.insert(0, registry)
    elif folders[0] == "library":
        del folders[0]
    return f"{'/'.join(folders)}:{tag}"


def _blob(root: Path, manifest: Path) -> Path | None:
    """The blob with the weights of a manifest, where it is really here."""
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
        for layer in json.loads(manifest.read_text())["layers"]:
            digest = str(layer["digest"]).removeprefix("sha256:")
            if layer["mediaType"] == "application/vnd.ollama.image.model" and _SHA256.fullmatch(digest):
                path = root / "blobs" / f"sha256-{digest}"
                return path if path.is_file() else None
    return None


def _ggufs(root: Path) -> Iterator[Path]:
    """GGUF files below `root` that are no later shard and no projector."""
    for path in sorted(_files(root, ".gguf")):
        if shards(path.name)[0] == path.name and "mmproj" not in path.name.lower():
            yield path


def _files(root: Path, ending: str) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        if len(Path(folder).relative_to(root).parts) >= DEPTH:
            folders.clear()
        for name in names:
            if name.endswith(ending) and not name.startswith("."):
                yield Path(folder) / name


def _bytes(path: Path) -> int:
    total = 0
    for name in shards(path.name):
        with suppress(OSError):
            total += path.with_name(name).stat().st_size
    return total
