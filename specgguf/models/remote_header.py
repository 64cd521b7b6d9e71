"""A model's head without its weights: from the disk, or from the hub by range requests.

A few megabytes tell everything that memory arithmetic needs of a model of many gigabytes; extended by a hole to
its real size, the same head lets llama.cpp plan a context over a model that is not here.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

from specgguf.errors import ModelNotFound
from specgguf.presets import ModelFile

from . import header, hf_client, hub
from . import hparams as hparams
from .hparams import HParams

BLOCK = 2 << 20  # bytes fetched at once


@dataclass(frozen=True)
class RemoteHeader:
    """What was found out about a reference.

    Attributes:
        path: where it lies, None when it would have to be downloaded.
        download_bytes: how much that would be.
    """

    hparams: HParams
    path: Path | None
    download_bytes: int = 0


def read(ref: str | Path | ModelFile, *, offline: bool | None = None) -> RemoteHeader:
    """Dimensions of a model, downloading no weights.

    Raises:
        ModelNotFound, DownloadError, SpecggufError: as `hub.resolve`.
    """
    path = hub.cached(ref, verify=False)
    if path is not None:
        return RemoteHeader(hparams.of_file(path), path)
    if isinstance(ref, ModelFile) and ref.shape is not None:
        return RemoteHeader(hparams.of_preset_model(ref), None, ref.bytes)
    if hf_client.is_offline() if offline is None else offline:
        raise ModelNotFound(f"{ref} is not on this machine, and nothing is fetched now", hint=hub.FETCH)
    files = _files(ref)
    headers, size = [], 0
    for repo, name, revision in files:
        source = hf_client.RangeFile(repo, name, revision)
        headers.append(header.read(io.BufferedReader(source, BLOCK)))
        size += source.size
    return RemoteHeader(hparams.of_headers(headers, files[0][1]), None, size)


def _files(ref: str | Path | ModelFile) -> list[tuple[str, str, str]]:
    """(repo, file, revision) of every file that `ref` consists of."""
    if isinstance(ref, ModelFile):
        if not ref.repo:
            raise ModelNotFound(f"{ref} is on no hub")
        return [(ref.repo, name, ref.revision) for name in header.shards(ref.file)]
    repo, wanted = hub.split_reference(str(ref))
    revision, name = hub.find_in_repo(repo, wanted)[:2]
    return [(repo, shard, revision) for shard in header.shards(name)]
