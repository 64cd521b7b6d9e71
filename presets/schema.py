"""What a preset is: frozen dataclasses, strict about every field, that know no file and no folder."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specgguf.config import DRAFT_MAX_LIMIT, KV_TYPES, SamplingParams, from_mapping, require_draft_vocab, require_whole
from specgguf.errors import ConfigError

OPEN_LICENSES = ("Apache-2.0", "MIT")
NGRAM, HEADS = NO_FILE = ("ngram", "heads")  # what drafts without a file of its own
DEVICES = ("gpu", "apple", "cpu", "any")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Shape:
    """What the memory arithmetic needs of a model that is not here yet (see `specgguf.fit.footprint`).

    Attributes:
        n_head, n_head_kv, head_dim: of one layer that attends; they are all alike.
        token_embd_bytes: size of the token embedding, which stays in host memory when the output is untied.
        output_bytes: of an untied output matrix; 0: as the embedding.
        n_attending: layers with a KV cache, evenly spread; the others keep a recurrent state. 0: all of them.
        state_bytes: one recurrent state of one text, all layers together; of a kind that llama.cpp can roll back.
        n_prediction_heads, prediction_heads_bytes: inside the file; their layers are none of `n_layer`.
        n_params: of the model without them; 0: counted, of layers that attend and have a gated feed-forward block.
    """

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    token_embd_bytes: int
    tied: bool
    output_bytes: int = 0
    n_attending: int = 0
    state_bytes: int = 0
    n_prediction_heads: int = 0
    prediction_heads_bytes: int = 0
    n_params: int = 0

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if f.name != "tied":
                require_whole(f.name, getattr(self, f.name), int(f.default is dataclasses.MISSING))
        require_whole("n_attending", self.n_attending, 0, self.n_layer)
        for one, other in (("n_prediction_heads", "prediction_heads_bytes"), ("n_attending", "state_bytes")):
            if bool(getattr(self, one)) != bool(getattr(self, other)):
                raise ConfigError(f"{one} and {other} go together")
        if not isinstance(self.tied, bool):
            raise ConfigError(f"tied must be true or false, not {self.tied!r}")


@dataclass(frozen=True)
class ModelFile:
    """One GGUF, named so that only these very bytes pass.

    Attributes:
        repo, revision, file: where it lies on the hub.
        bytes, sha256: of the whole file.
        license: shown before a download when it is not an open-source one.
        shape: for the memory arithmetic before a download.
    """

    file: str
    bytes: int
    sha256: str
    repo: str
    revision: str
    license: str = ""
    shape: Shape | None = None

    def __post_init__(self) -> None:
        for key in ("file", "sha256", "repo", "revision", "license"):
            if not isinstance(getattr(self, key), str):
                raise ConfigError(f"{key} must be a text, not {getattr(self, key)!r}")
        require_whole("bytes", self.bytes, 1)
        if not self.file.endswith(".gguf") or self.file.startswith("/") or ".." in self.file:
            raise ConfigError(f"file must be the path of a .gguf in its repository, not {self.file!r}")
        if not _SHA256.fullmatch(self.sha256):
            raise ConfigError(f"sha256 of {self.file} must be 64 hexadecimal digits")
        if not self.repo or not self.revision:
            raise ConfigError(f"{self.file}: repo and revision say where it lies on the hub")

    @property
    def name(self) -> str:
        """The file's own name, without folders."""
        return self.file.rsplit("/", 1)[-1]

    @property
    def is_open(self) -> bool:
        """Whether the license is an open-source one."""
        return self.license in OPEN_LICENSES

    def __str__(self) -> str:
        return f"{self.repo}:{self.name}"


@dataclass(frozen=True)
class Match:
    """The machines that a preset is for: a kind of device and, in MiB, the least memory of each."""

    device: str = "any"
    memory_mib: int = 0
    n_devices: int = 1

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ConfigError(f"match.device must be one of {', '.join(DEVICES)}, not {self.device!r}")
        require_whole("match.memory_mib", self.memory_mib, 0)
        require_whole("match.n_devices", self.n_devices, 1, 16)


@dataclass(frozen=True)
class Preset:
    """A pair with its settings; field names are those of keywords, flags and config keys.

    Attributes:
        model, draft_model: target and draft; a ModelFile, or in a user's preset a reference (path, org/repo:quant). The
            draft may be "ngram", or "heads": the target's own.
        use: "chat" or "code".
        budget_mib: the memory this preset must fit in, 0 where nothing was worked out.
        draft_first: the draft length to begin with, before anything was measured.
        sampling: the maker's recommendation, as SamplingParams' fields.
        source: where the expectation comes from.
    """

    name: str
    summary: str
    model: ModelFile | str
    draft_model: ModelFile | str | None = None
    match: Match = field(default_factory=Match)
    use: str = "chat"
    budget_mib: int = 0
    n_ctx: int = 4096
    n_gpu_layers: int | None = None
    n_batch: int = 512
    n_ubatch: int = 512
    n_threads: int | None = None
    flash_attn: bool = True
    type_k: str = "f16"
    type_v: str = "f16"
    draft_type_k: str = "f16"
    draft_type_v: str = "f16"
    rpc_servers: tuple[str, ...] | None = None
    draft_rpc_servers: tuple[str, ...] | None = None
    tensor_split: tuple[float, ...] | None = None
    draft_tensor_split: tuple[float, ...] | None = None
    draft_first: int = 4
    draft_max: int = 5
    draft_vocab: str = "any"
    thinking: bool | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""
    experimental: bool = False

    def __post_init__(self) -> None:
        if self.use not in ("chat", "code"):
            raise ConfigError(f"use must be chat or code, not {self.use!r}")
        require_whole("n_ctx", self.n_ctx, 0)
        require_whole("budget_mib", self.budget_mib, 0)
        require_whole("n_batch", self.n_batch, 1)
        require_whole("n_ubatch", self.n_ubatch, 1)
        require_whole("draft_max", self.draft_max, 1, DRAFT_MAX_LIMIT)
        require_whole("draft_first", self.draft_first, 0, self.draft_max)
        require_draft_vocab(self.draft_vocab)
        for key in ("n_gpu_layers", "n_threads"):
            if getattr(self, key) is not None:
                require_whole(key, getattr(self, key), -1)
        for key in ("type_k", "type_v", "draft_type_k", "draft_type_v"):
            if getattr(self, key) not in KV_TYPES:
                raise ConfigError(f"{key} must be one of {', '.join(KV_TYPES)}, not {getattr(self, key)!r}")
        for key in ("flash_attn", "experimental"):
            if not isinstance(getattr(self, key), bool):
                raise ConfigError(f"{key} must be true or false, not {getattr(self, key)!r}")
        if self.thinking is not None and not isinstance(self.thinking, bool):
            raise ConfigError(f"thinking must be true or false, not {self.thinking!r}")
        for key in ("summary", "source"):
            if not isinstance(getattr(self, key), str):
                raise ConfigError(f"{key} must be a text, not {getattr(self, key)!r}")
        for key in ("rpc_servers", "draft_rpc_servers", "tensor_split", "draft_tensor_split"):
            value = getattr(self, key)
            kinds: Any = str if key.endswith("servers") else (int, float)
            if value is not None and not (isinstance(value, list | tuple) and all(isinstance(v, kinds) for v in value)):
                raise ConfigError(f"{key} must be a list of {'texts' if kinds is str else 'numbers'}, not {value!r}")
            object.__setattr__(self, key, tuple(value) if value else None)
        from_mapping(SamplingParams, self.sampling, where="sampling")

    @property
    def keywords(self) -> dict[str, Any]:
        """What this preset says to `specgguf.SpeculativeLlama`."""
        names = (
            "n_ctx n_gpu_layers n_batch n_ubatch n_threads flash_attn type_k type_v draft_type_k draft_type_v "
            "rpc_servers draft_rpc_servers tensor_split draft_tensor_split draft_first draft_max draft_vocab"
        )
        chosen = {name: getattr(self, name) for name in names.split()}
        chosen |= {"draft_flash_attn": self.flash_attn, "draft_n_gpu_layers": self.n_gpu_layers}
        return {k: v for k, v in chosen.items() if v is not None}

    @property
    def files(self) -> tuple[ModelFile | str, ...]:
        """Target and draft, as far as there are any."""
        has_file = self.draft_model is not None and self.draft_model not in NO_FILE
        return (self.model, self.draft_model) if has_file and self.draft_model else (self.model,)
