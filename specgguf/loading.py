"""From files and keywords to a loaded pair.

Any keyword of `llama_cpp.Llama` goes to the target, the same with `draft_` to the draft: see `native.keywords`. What
the build cannot do, and why drafting is off, is said in `warnings`: one line each, for whoever shows them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .config import DRAFT_MAX_LIMIT, DraftConfig, require_whole
from .control.calibration import ROWS_MAX
from .control.trace import Trace
from .decode.vocab_map import VocabMap
from .engine import Engine
from .errors import ConfigError, SpecggufError, Unsupported
from .fit.instructions import reinstall
from .models import header, slim
from .models.nextn import prediction_heads
from .native import backend
from .native.context import Context, Model
from .native.heads import contexts as heads
from .native.keywords import CONTEXT_KEYS, split
from .native.mapped import pair
from .native.mapped.slimmed import open_draft
from .native.sequence import Sequence
from .native.weights import Weights
from .presets import HEADS, NO_FILE
from .turns.caches import CELLS_BESIDE

N_PARALLEL_MAX = 64


@dataclass(frozen=True)
class Places:
    """For how many generations at once contexts are made.

    Attributes:
        n_parallel: generations.
        cache_tokens: that the caches hold for all of them together; None: the context length for each.
    """

    n_parallel: int = 1
    cache_tokens: int | None = None

    def __post_init__(self) -> None:
        require_whole("n_parallel", self.n_parallel, 1, N_PARALLEL_MAX)
        if self.cache_tokens is not None:
            require_whole("cache_tokens", self.cache_tokens, 2, 2**31 - 1)
            if self.n_parallel == 1:
                raise ConfigError("cache_tokens is for n_parallel above 1", hint="n_ctx sets the length of a context")

    def keywords(self, n_ctx: int) -> dict[str, Any]:
        """Of `native.context.Context`, for sequences of `n_ctx` tokens."""
        if self.n_parallel == 1:
            return {}
        return {"n_seq_max": self.n_parallel, "n_cells": self.cache_tokens or self.n_parallel * (n_ctx + CELLS_BESIDE)}


@dataclass
class LoadedPair:
    """A loaded pair and what there is to say about it."""

    engine: Engine
    weights: Weights
    draft_weights: Weights | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def placement(self) -> dict[str, str]:
        """Which layers lie where, in words, of the models that have some on workers."""
        sides = {"target": self.weights, "draft": self.draft_weights}
        return {side: one.placement for side, one in sides.items() if one is not None and one.placement}

    def close(self) -> None:
        """Free both, the draft first."""
        self.engine.close(self._close_weights)

    def _close_weights(self) -> None:
        try:
            if self.draft_weights is not None and self.draft_weights is not self.weights:
                self.draft_weights.close()
        finally:
            self.weights.close()


def open_pair(
    model_path: str,
    draft_model_path: str | None,
    config: DraftConfig,
    *,
    strict: bool = False,
    places: Places = Places(),
    keywords: Mapping[str, Any],
    trace: Trace | None = None,
) -> LoadedPair:
    """Load a target, and a draft if one is named.

    Args:
        model_path, draft_model_path: files; the draft may be "ngram", or "heads": the model's own.
        config: drafting defaults.
        strict: pad single tokens to two, see `native.context.Context`.
        places: for how many generations at once.
        keywords: of `llama_cpp.Llama`, for the target and with `draft_` for the draft; and `rpc_servers`.

    Raises:
        ConfigError, Unsupported: a keyword; "heads" of a file without any.
        ModelNotFound, BackendError: a file.
        VocabMismatch: the draft has another vocabulary, or hardly any token in common.
    """
    warnings: list[str] = []
    prediction_heads.check_sole(draft_model_path)
    target_keys, draft_keys = split(keywords)
    weights, target, draft_weights, draft, found, limit = None, None, None, None, None, None
    try:
        own_heads = draft_model_path == HEADS
        weights = _open_target(model_path, target_keys, warnings, own_heads=own_heads)
        if draft_model_path is not None and draft_model_path not in NO_FILE:
            _check_draft_file(draft_model_path)
            load_keys = _load_keys(draft_keys, warnings, "draft_n_gpu_layers")
            is_itself = os.path.realpath(draft_model_path) == os.path.realpath(model_path)
            draft_weights = weights if is_itself and load_keys == weights.keywords else None
            if draft_weights is None:
                draft_weights = open_draft(draft_model_path, load_keys)
                found = pair.vocab_map(weights, draft_weights, draft_vocab=config.vocab)
            if found is not None and found.share < 1.0:
                warnings.append(_told(found, draft_model_path))
        pad_to = 2 if strict else 1
        target = _model(weights, target_keys, places, pad_to, n_rs_seq=config.draft_max if draft_model_path else 0)
        if draft_weights is not None:
            draft = _model(draft_weights, {"n_ctx": target.n_ctx, **draft_keys}, places, pad_to)
        if own_heads:
            assert isinstance(target.context, Context)
            own = heads.PredictionHeads(target.context)
            draft, limit = own.follow(target, 0)[0], own.draft_limit
        engine = Engine(target, draft or draft_model_path, config, vocab_map=found, draft_limit=limit, trace=trace)
    except BaseException:
        for part in (draft, target, draft_weights, weights):
            if part is not None:
                (part if isinstance(part, Weights) else part.context).close()
        raise
    if engine.off_reason and draft_model_path is not None:
        warnings.append(f"drafting is off: {engine.off_reason}")
    return LoadedPair(engine, weights, draft_weights, warnings)


def _open_target(path: str, keys: Mapping[str, Any], warnings: list[str], *, own_heads: bool) -> Weights:
    if own_heads:
        if "rpc_servers" in keys:
            raise prediction_heads.not_on_workers()
        _check_heads(path)
    own = {"native_params": heads.LOAD} if own_heads else {}
    weights = Weights(path, _load_keys(keys, warnings, "n_gpu_layers"), **own)
    if slim.SOURCE in weights.metadata:
        weights.close()
        raise Unsupported(f"{path} is a slimmed draft: it cannot answer by itself", hint="-d takes it")
    return weights


def _check_heads(path: str) -> None:
    """Raise Unsupported unless a file has heads that can draft. What cannot be read is llama.cpp's to refuse."""
    header.check_gguf(path)
    heads.check_available()
    if not prediction_heads.count_in(path):
        raise prediction_heads.none_in(path)


def _check_draft_file(path: str) -> None:
    try:
        found = header.read(path)
    except (header.GgufError, OSError):
        return
    if found.architecture == "gemma4-assistant":
        raise Unsupported(f"{path} shares the cache of its Gemma 4: not supported", hint="-d ngram, or a small Gemma")
    if prediction_heads.are_alone(found):
        raise Unsupported(
            f"{path} holds prediction heads alone", hint="-d heads, with a file of the model that has them inside"
        )


def _told(vocab_map: VocabMap, path: str) -> str:
    name = os.path.basename(path)
    return f"{vocab_map.share:.0%} of {name}'s tokens are the target's; it may draft these alone: acceptance is lower"


def _load_keys(keys: Mapping[str, Any], warnings: list[str], name: str) -> dict[str, Any]:
    """The keywords that `Llama` gets: layers and threads decided, context lengths left out."""
    keys = {k: v for k, v in keys.items() if k not in CONTEXT_KEYS}
    layers = keys.get("n_gpu_layers")
    offload = backend.supports_gpu_offload() or "rpc_servers" in keys
    if layers is None:
        keys["n_gpu_layers"] = -1 if offload else 0
    elif layers != 0 and not offload:
        warnings.append(
            f"WARNING: {name}={layers} was asked for, but this llama-cpp-python was built for the CPU only. "
            f"Reinstall it for your GPU: {reinstall('CUDA')} (or METAL, VULKAN, HIP for CUDA)"
        )
    threads = keys.get("n_threads") or physical_cores()
    keys["n_threads"] = threads
    keys["n_threads_batch"] = keys.get("n_threads_batch") or max(threads, physical_cores())
    return keys


def _model(weights: Weights, keys: Mapping[str, Any], places: Places, pad_to: int, n_rs_seq: int = 0) -> Sequence:
    own = {key: keys[key] for key in CONTEXT_KEYS if key in keys and keys[key] is not None}
    settings = {"n_outputs_max": DRAFT_MAX_LIMIT + 1, "pad_to": pad_to, "n_rs_seq": n_rs_seq, **own}
    try:
        if places.n_parallel == 1:
            return Model(weights, **settings)
        settings["n_ctx"] = own.get("n_ctx") or weights.n_ctx_train
        settings["n_outputs_max"] = min(places.n_parallel * (DRAFT_MAX_LIMIT + 1), max(ROWS_MAX, places.n_parallel))
        return Context(weights, **settings, **places.keywords(settings["n_ctx"])).sequences[0]
    except SpecggufError as error:
        error.hint = error.hint or "a smaller --n-ctx, fewer GPU layers, or a smaller KV cache (--type-k q8_0)"
        raise


def physical_cores() -> int:
    """Cores this process may use, counted once per pair of hardware threads where Linux tells; at least 1."""
    try:
        usable = os.sched_getaffinity(0)
    except AttributeError:
        return max(1, os.cpu_count() or 1)
    cores = set()
    for cpu in usable:
        try:
            with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list") as file:
                cores.add(file.read().strip())
        except OSError:
            cores.add(str(cpu))
    return max(1, len(cores))
