"""vLLM's two ways of naming a draft, as one record: what drafts, how much, and on how many devices.

It resolves no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specgguf.config import did_you_mean, require_whole
from specgguf.errors import ConfigError, Unsupported
from specgguf.presets import HEADS, NGRAM, NO_FILE

# The model's own prediction heads, by families whose heads llama.cpp can run; which one it is, the file says.
HEADS_METHODS = tuple(
    "mtp deepseek_mtp glm4_moe_mtp qwen3_next_mtp qwen3_5_mtp mimo_v2_mtp nemotron_h_mtp bailing_hybrid_v3_mtp "
    "step3p5_mtp hy_v3_mtp".split()
)
METHODS = (None, "draft_model", NGRAM, *HEADS_METHODS)
WITHOUT_MEANING = {
    "disable_by_batch_size": "drafting stops by itself where it does not pay",
    "disable_padded_drafter_batch": "drafts of different lengths share a pass as they are",
    "prompt_lookup_max": "the longest n-gram that matches is taken",
    "prompt_lookup_min": "the longest n-gram that matches is taken",
    "enforce_eager": "llama.cpp has no such step",
    "disable_logprobs": "log-probabilities come where they are asked for",
}
REFUSED = {
    "revision": "name a file",
    "code_revision": "name a file",
    "quantization": "the GGUF file says it",
    "max_model_len": "the draft's context is as long as the target's",
    "speculative_token_tree": "drafts are chains",
    "parallel_drafting": "drafts are chains",
    "rejection_sample_method": "acceptance is exact",
    "synthetic_acceptance_rate": "acceptance is exact",
    "posterior_threshold": "acceptance is exact",
    "posterior_alpha": "acceptance is exact",
    "draft_load_config": "name a file",
    "moe_backend": "the GGUF file says it",
    "attention_backend": "the target's is taken",
    "use_local_argmax_reduction": "drafts are drawn from the whole distribution",
    "suffix_decoding_max_tree_depth": "no suffix trees are kept; method='ngram' drafts from the text itself",
    "suffix_decoding_max_cached_requests": "no suffix trees are kept; method='ngram' drafts from the text itself",
    "suffix_decoding_max_spec_factor": "no suffix trees are kept; method='ngram' drafts from the text itself",
    "suffix_decoding_min_token_prob": "no suffix trees are kept; method='ngram' drafts from the text itself",
}
HONOURED = ("model", "method", "num_speculative_tokens", "draft_tensor_parallel_size", "tensor_parallel_size")


@dataclass(frozen=True)
class Speculation:
    """What drafts.

    Attributes:
        model: a reference to the draft, "ngram", "heads" (the target's own), or None: nothing does.
        draft_max: the most tokens of a draft; None: the default.
        n_devices: GPUs that the draft is split over.
        remarks: on what has no meaning here.
    """

    model: str | None = None
    draft_max: int | None = None
    n_devices: int = 1
    remarks: tuple[str, ...] = ()

    @property
    def file(self) -> str | None:
        """The reference of a file, where one drafts."""
        return None if self.model in NO_FILE else self.model


def speculation(model: str | None, n_tokens: int | None, config: Mapping[str, Any] | None) -> Speculation:
    """From `speculative_model` and `num_speculative_tokens`, or from `speculative_config`.

    Raises:
        ConfigError, Unsupported: what it cannot be.
    """
    if config is None:
        if model is None and n_tokens is not None:
            raise ConfigError("num_speculative_tokens needs a draft", hint="speculative_model=FILE")
        return _made(model, n_tokens, 1, ())
    if model is not None or n_tokens is not None:
        raise ConfigError(
            "speculative_config says all of it", hint="leave out speculative_model and num_speculative_tokens"
        )
    given = {name: value for name, value in config.items() if value not in (None, False)}
    for name in given:
        if name in REFUSED:
            raise Unsupported(f"speculative_config: {name} is not supported: {REFUSED[name]}")
        if name not in HONOURED and name not in WITHOUT_MEANING:
            known = (*HONOURED, *WITHOUT_MEANING)
            raise ConfigError(f"speculative_config: unknown key '{name}'", hint=did_you_mean(name, known))
    method = given.get("method")
    if method not in METHODS:
        raise Unsupported(f"the speculative method {method!r:.40} is not supported", hint="draft_model, mtp, or ngram")
    if method in HEADS_METHODS:
        _check_heads(str(method), given)
        model = HEADS
    elif method == NGRAM:
        model = NGRAM
    elif (model := given.get("model")) is None:
        hint = '{"model": FILE}, {"method": "mtp"}, or {"method": "ngram"}'
        raise ConfigError("speculative_config names no draft", hint=hint)
    n_devices = given.get("draft_tensor_parallel_size", given.get("tensor_parallel_size", 1))
    remarks = tuple(
        f"speculative_config: {name} has no effect: {reason}"
        for name, reason in WITHOUT_MEANING.items()
        if name in given
    )
    return _made(model, given.get("num_speculative_tokens"), n_devices, remarks)


def _check_heads(method: str, given: Mapping[str, Any]) -> None:
    for name in ("model", "draft_tensor_parallel_size", "tensor_parallel_size"):
        if name in given:
            raise Unsupported(
                f"speculative_config: {name} is not supported with method={method!r}: the target's own heads draft",
                hint=f"leave out {name}; a head file of its own is not read",
            )


def _made(model: str | None, n_tokens: int | None, n_devices: int, remarks: tuple[str, ...]) -> Speculation:
    if n_tokens is not None:
        require_whole("num_speculative_tokens", n_tokens, 1, 16)
    require_whole("draft_tensor_parallel_size", n_devices, 1)
    return Speculation(NGRAM if model == "[ngram]" else model, n_tokens, n_devices, remarks)
