"""Presets: pairs of models with the settings that fit them to a kind of machine.

One TOML file per preset, here and in the user's own folder (which wins). Reading is strict: an unknown key, a
missing one or a value of the wrong kind is an error that names the file. This package describes; it downloads
nothing, asks no device, and knows no speeds. What a preset holds: `schema`.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specgguf.presets.schema import HEADS, NGRAM, NO_FILE, Match, ModelFile, Preset, Shape

from specgguf.config import did_you_mean, from_mapping
from specgguf.errors import ConfigError

__all__ = [
    "HEADS", "NGRAM", "NO_FILE", "Match", "ModelFile", "Preset", "Shape", "is_name", "load", "names", "parse", "read",
    "user_folder",
]  # fmt: skip

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


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
        for key in ("summary", "model"):
            if key not in values:
                raise ConfigError(f"'{key}' is missing")
        for key in ("model", "draft_model"):
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
    for key in ("file", "bytes", "sha256", "repo", "revision"):
        if key not in values:
            raise ConfigError(f"{where}: '{key}' is missing")
    if "shape" in values:
        shape = _table(values["shape"], f"{where}.shape")
        missing = [
            f.name for f in dataclasses.fields(Shape) if f.default is dataclasses.MISSING and f.name not in shape
        ]
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
