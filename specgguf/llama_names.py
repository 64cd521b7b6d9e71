"""What `llama_cpp.Llama` has beside its calls: attributes that programs read, and names that are refused with a reason.

A base of `SpeculativeLlama`. It knows the loaded pair's weights, vocabulary and contexts, and nothing of drafting.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Self

from .errors import Unsupported
from .loading import LoadedPair
from .text import tokenize as prompts

# Public attributes of `llama_cpp.Llama` that are not here, and why.
REFUSED = {
    "eval": "it would change the caches behind a generation; use generate or create_completion",
    "eval_logits": "logits are reduced to what sampling needs; use logprobs",
    "eval_tokens": "use generate, whose chunks carry tokens",
    "sample": "a token is drawn and verified inside a round; use generate",
    "scores": "logits are reduced to what sampling needs; use logprobs",
    "input_ids": "use tokenize or render",
    "embed": "specgguf only generates text",
    "create_embedding": "specgguf only generates text",
    "pooling_type": "specgguf only generates text",
    "set_cache": "the prefix that texts share is kept by itself; use save_state and load_state",
    "cache": "the prefix that texts share is kept by itself; use save_state and load_state",
    "logits_to_logprobs": "use logprobs",
    "longest_token_prefix": "the prefix that texts share is found by itself",
    "chat_handler": "the model's own template is rendered; name a format with chat_format",
    "draft_model": "see draft_model_path",
    "ctx": "use save_state and load_state; llama.cpp's context is not handed out",
    "model": "llama.cpp's model is not handed out",
    "tokenizer_": "the tokenizer is the file's own",
    "last_n_tokens_size": "penalties look at 64 tokens",
    "numa": "it is a setting of the process",
    "lora_base": "llama.cpp has no such base any more",
    "spm_infill": "the middle comes last in a prompt to be filled in",
}


class UnsupportedAttribute(Unsupported, AttributeError):
    """A name of `llama_cpp.Llama` that is not here: `hasattr` says so, too."""


class Tokenizer:
    """What `Llama.tokenizer()` returns: texts as str."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of UTF-8 bytes."""
        ids: list[int] = self._llm.tokenize(text, add_bos, special)
        return ids

    def detokenize(self, tokens: list[int], prev_tokens: object = None, special: bool = False) -> bytes:
        """The bytes of `tokens`."""
        data: bytes = self._llm.detokenize(tokens, prev_tokens, special)
        return data

    def encode(self, text: str, add_bos: bool = True, special: bool = True) -> list[int]:
        """Token ids of a text."""
        return self.tokenize(text.encode("utf-8", "ignore"), add_bos, special)

    def decode(self, tokens: list[int]) -> str:
        """The text of `tokens`."""
        return self.detokenize(tokens).decode("utf-8", "ignore")


class LlamaNames:
    """The attributes of `llama_cpp.Llama`.

    Attributes:
        verbose: always False: llama.cpp's log is kept off the terminal.
    """

    _pair: LoadedPair
    _arguments: dict[str, Any]  # that this was made with
    verbose = False

    @classmethod
    def from_pretrained(
        cls,
        repo_id: str,
        filename: str | None = None,
        *,
        draft_repo_id: str | None = None,
        draft_filename: str | None = None,
        offline: bool | None = None,
        additional_files: Sequence[str] | None = None,
        local_dir: str | os.PathLike[str] | None = None,
        local_dir_use_symlinks: object = "auto",
        cache_dir: object = None,
        **keywords: Any,
    ) -> Self:
        """Load files of Hugging Face repositories: `filename` is a file's name, a pattern ("*q8_0.gguf") or a
        quantisation ("Q4_K_M").

        Args:
            local_dir: keep them there. additional_files: fetch these too.
        """
        from .models import patterns

        if cache_dir is not None:
            raise Unsupported("cache_dir is not supported", hint="set HF_HUB_CACHE, or give local_dir")

        def path(repo: str, file: str | None) -> str:
            return str(patterns.resolve(repo, file, local_dir=local_dir, offline=offline))

        for file in additional_files or ():
            path(repo_id, file)
        model = path(repo_id, filename)
        draft = path(draft_repo_id, draft_filename) if draft_repo_id else None
        return cls(model, draft, **keywords)  # type: ignore[call-arg]  # as `SpeculativeLlama` does

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED:
            raise UnsupportedAttribute(f"{name} is not supported: {REFUSED[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by path and keywords, and loaded anew."""
        return _load_again, (type(self), self._arguments)

    def __deepcopy__(self, _memo: object) -> Any:
        raise Unsupported("a loaded model is not copied", hint="load it a second time, or pickle it: by path")

    @property
    def metadata(self) -> dict[str, str]:
        """The target file's metadata."""
        return self._pair.weights.metadata

    def n_ctx(self) -> int:
        """The context's length in tokens."""
        return self._pair.engine.target.n_ctx

    def n_vocab(self) -> int:
        """The target's vocabulary size."""
        return self._pair.engine.target.n_vocab

    def token_bos(self) -> int:
        """The beginning-of-text id; -1 where there is none."""
        return self._pair.weights.bos

    def token_eos(self) -> int:
        """The end-of-text id."""
        return self._pair.weights.eos

    @property
    def eog_tokens(self) -> frozenset[int]:
        """The ids that end a text, the end-of-text id among them."""
        return self._pair.weights.eog

    def token_nl(self) -> int:
        """The id of a newline."""
        return self._pair.weights.nl

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of `text`; `special` reads special tokens' texts as those tokens."""
        return prompts.tokenize(self._pair.weights, text, add_bos=add_bos, special=special)

    def detokenize(self, tokens: Iterable[int], prev_tokens: object = None, special: bool = False) -> bytes:
        """The bytes of `tokens`, whole however long a token's text is."""
        return prompts.detokenize(self._pair.weights, tokens, special=special)

    def tokenizer(self) -> Tokenizer:
        """Its tokenizer, with `encode` and `decode`."""
        return Tokenizer(self)

    def n_embd(self) -> int:
        """Dimensions of an embedding."""
        with self._pair.weights.in_use() as weights:
            return int(weights.llama.n_embd())

    @property
    def n_tokens(self) -> int:
        """How many tokens the target's cache holds."""
        return len(self._pair.engine.target.tokens)

    @property
    def n_batch(self) -> int:
        """The most tokens of a forward pass."""
        return self._pair.engine.target.context.n_batch

    @property
    def n_threads(self) -> int:
        """Threads that decode one token."""
        return int(self._pair.weights.keywords["n_threads"])

    @property
    def n_threads_batch(self) -> int:
        """Threads that read a prompt."""
        return int(self._pair.weights.keywords["n_threads_batch"])

    @property
    def chat_format(self) -> str | None:
        """The format that was named; None for the file's own template."""
        return self._arguments.get("chat_format")

    @property
    def lora_path(self) -> str | None:
        """The LoRA that was loaded with the target."""
        return self._arguments.get("lora_path")

    @property
    def lora_scale(self) -> float:
        """Its weight."""
        return float(self._arguments.get("lora_scale", 1.0))

    @property
    def kv_overrides(self) -> Any:
        """Metadata that were taken instead of the file's."""
        return self._arguments.get("kv_overrides")

    @property
    def tensor_split(self) -> Any:
        """How the weights were split over devices."""
        return self._arguments.get("tensor_split")

    @property
    def model_params(self) -> Any:
        """llama.cpp's parameters that the target was loaded with."""
        return self._pair.weights.llama.model_params

    @property
    def context_params(self) -> Any:
        """llama.cpp's parameters of the context that the file was opened with; texts are decoded in another."""
        return self._pair.weights.llama.context_params


def _load_again(cls: type, arguments: dict[str, Any]) -> Any:
    if not os.path.exists(arguments["model_path"]):
        raise Unsupported(f"pickled by path, and {arguments['model_path']} is not here")
    return cls(**arguments)
