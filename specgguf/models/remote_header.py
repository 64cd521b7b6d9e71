"""A model's head without its weights: from the disk, from the hub by range requests, or as a preset describes it.

A few megabytes tell everything that memory arithmetic needs of a model of many gigabytes; extended by a hole to
its real size, the same head lets llama.cpp plan a context over a model that is not here.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import Path

from specgguf.errors import ModelNotFound, Unsupported
from specgguf.presets import ModelFile, Shape

from . import header, hf_client, hub
from . import hparams as hparams
from .hparams import Q4_K, Q6_K, Q8_0, HParams

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
        return RemoteHeader(of_preset_model(ref), None, ref.bytes)
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


def of_preset_model(model: ModelFile) -> HParams:
    """From a preset's own description, without the file.

    Raises:
        Unsupported: the preset gives no shape.
    """
    s = model.shape
    if s is None:
        raise Unsupported(f"{model} is not here and its preset gives no dimensions")
    output = s.output_bytes or s.token_embd_bytes
    layers = model.bytes - s.token_embd_bytes - (0 if s.tied else output) - s.prediction_heads_bytes
    per_embd = 2 * s.n_head * s.head_dim + 2 * s.n_head_kv * s.head_dim + 3 * s.n_ff
    per_layer = s.n_embd * per_embd
    n_attending, width, skipped = s.n_attending or s.n_layer, s.n_head_kv * s.head_dim, (0,) * s.n_prediction_heads
    attends = [(i + 1) * n_attending // s.n_layer > i * n_attending // s.n_layer for i in range(s.n_layer)]
    widths = tuple(width if one else 0 for one in attends)
    state = s.state_bytes // max(1, s.n_layer - n_attending)
    found = HParams(
        name=model.name,
        n_embd=s.n_embd,
        n_ff=s.n_ff,
        q_width=s.n_head * s.head_dim,
        n_head=s.n_head,
        head_dim=s.head_dim,
        n_vocab=s.n_vocab,
        n_ctx_train=32768,
        k_width=widths + skipped,
        v_width=widths + skipped,
        state_bytes=tuple(0 if one else state for one in attends) + skipped,
        layer_bytes=(layers // s.n_layer,) * s.n_layer + skipped,
        embd_bytes=s.token_embd_bytes,
        output_bytes=output,
        tied=s.tied,
        n_params=s.n_params or s.n_layer * per_layer + s.n_vocab * s.n_embd * (1 if s.tied else 2),
        matrix_bytes=_matrices_of_quant(model.name.lower(), layers),
        is_sure=not s.state_bytes,
        has_state_rollback=s.state_bytes > 0,
    )
    return replace(found, heads=_heads_of_preset(found, s, model.name.lower())) if s.n_prediction_heads else found


def _heads_of_preset(whole: HParams, s: Shape, name: str) -> HParams:
    """The prediction heads of `whole` by a preset's shape; each is a layer that attends, and a projection onto it of
    token and state."""
    n, width = s.n_prediction_heads, s.n_head_kv * s.head_dim
    per_head = s.n_embd * (2 * s.n_embd + 2 * s.n_head * s.head_dim + 2 * width + 3 * s.n_ff)
    return replace(
        whole,
        k_width=(width,) * n,
        v_width=(width,) * n,
        state_bytes=(0,) * n,
        layer_bytes=(s.prediction_heads_bytes // n,) * n,
        embd_bytes=0,
        tied=True,
        n_params=n * per_head,
        matrix_bytes=_matrices_of_quant(name, s.prediction_heads_bytes),
        is_sure=True,
        are_heads=True,
    )


def _matrices_of_quant(name: str, layers: int) -> tuple[tuple[int, int], ...]:
    """About how much of the layers is stored in the type that a file's name speaks of."""
    shares = {"q4_k_m": (Q4_K, 0.79), "q6_k": (Q6_K, 1.0), "q8_0": (Q8_0, 1.0)}
    return tuple((kind, int(layers * share)) for word, (kind, share) in shares.items() if word in name)
