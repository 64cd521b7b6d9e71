"""The keywords of `llama_cpp.Llama`: for the target or the draft, refused, or without effect.

`Llama` swallows what it does not know; here that is an error. `scripts/bench/run audit-llama` prints what becomes of
each, and a test gives each a value. Loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specgguf.config import did_you_mean, kv_type, require_whole
from specgguf.errors import ConfigError, Unsupported

from . import compat
from .rpc import wire

# ours to set: `Llama`'s own context is minimal, and without flash attention it refuses a quantised cache
CONTEXT_KEYS = ("n_ctx", "n_batch", "n_ubatch", "flash_attn", "type_k", "type_v")
# Another value than `Llama`'s default, None or False is refused, and why.
REFUSED = {
    "draft_model": "give the draft's file as draft_model_path",
    "embedding": "specgguf only generates text",
    "vocab_only": "specgguf only generates text",
    "pooling_type": "specgguf only generates text",
    "attention_type": "a token is verified by what stands before it: attention is causal",
    "chat_handler": "specgguf renders the model's own template; name a format with chat_format",
    "tokenizer": "specgguf uses the tokenizer in the file",
    "last_n_tokens_size": "penalties look at 64 tokens; generate takes SamplingParams(penalty_last_n=…)",
    "lora_base": "llama.cpp has no such base any more; give lora_path alone",
    "spm_infill": "the middle comes last in a prompt to be filled in",
}
# The same of the draft alone.
DRAFT_REFUSED = {
    "seed": "one seed draws for both",
    "chat_format": "a draft reads the target's prompt",
}
OURS = ("rpc_servers",)  # which llama-cpp-python swallows
IGNORED = {
    "logits_all": "rows of logits are computed where they are needed",
    "verbose": "native logs are kept off stderr",
}


def split(keywords: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Keywords of the target and of the draft (`draft_…`), checked against `Llama`'s own.

    Raises:
        ConfigError: an unknown one, or a value that is none. Unsupported: one of `REFUSED`.
    """
    defaults = compat.llama_keywords()
    known = {*defaults, *OURS}
    target: dict[str, Any] = {}
    draft: dict[str, Any] = {}
    for key, value in keywords.items():
        name = key.removeprefix("draft_") if key not in REFUSED else key
        why = REFUSED.get(name) or (DRAFT_REFUSED.get(name) if name != key else None)
        if why and value not in (None, False, defaults.get(name)):
            raise Unsupported(f"{key} is not supported: {why}")
        if name not in known:
            hint = did_you_mean(key, [*known, *(f"draft_{k}" for k in known)])
            raise ConfigError(f"unknown keyword '{key}'", hint=hint)
        if name not in IGNORED and not why:
            (target if name == key else draft)[name] = value
    _check_workers(target, draft)
    for side, prefix in ((target, ""), (draft, "draft_")):
        for name in ("type_k", "type_v"):
            if name in side:
                side[name] = kv_type(side[name], name=prefix + name)
        for name, low in (("n_ctx", 0), ("n_batch", 1), ("n_ubatch", 1)):
            if name in side:
                require_whole(prefix + name, side[name], low, 2**31 - 1)
        for name in ("n_threads", "n_threads_batch", "n_gpu_layers", "main_gpu", "split_mode"):
            if side.get(name) is not None:
                require_whole(prefix + name, side[name], -(2**31), 2**31 - 1)
    for name in ("n_threads", "n_threads_batch"):
        draft.setdefault(name, target.get(name))
    return target, draft


def _check_workers(target: dict[str, Any], draft: dict[str, Any]) -> None:
    """Read both sides' `rpc_servers`; a side without any has none."""
    taken: set[wire.Endpoint] = set()
    for side, prefix in ((target, ""), (draft, "draft_")):
        servers = side.pop("rpc_servers", None)
        if not servers:
            continue
        workers = wire.endpoints(servers, name=f"{prefix}rpc_servers")
        if twice := taken.intersection(workers):
            raise ConfigError(
                f"worker {min(twice)} cannot serve target and draft: it serves one model at a time",
                hint="start another on that machine: specgguf worker --port N",
            )
        if side.get("split_mode") not in (None, 1):
            raise Unsupported(
                f"{prefix}split_mode={side['split_mode']} is not supported with workers: they take layers"
            )
        taken.update(workers)
        side["rpc_servers"] = [str(worker) for worker in workers]
