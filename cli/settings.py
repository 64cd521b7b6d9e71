"""What holds now, and who said so: flag > variable > file > preset > default.

Reads config.toml and the environment once; a value always carries its origin. Knows the table of
`options`, no model and no terminal.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specgguf.cli.options import BY_NAME, SETTINGS

from specgguf.config import SamplingParams, did_you_mean
from specgguf.errors import ConfigError

CONFIG_NAME = "config.toml"
BY = "by "  # begins the origin of what a slash command set
CONVERSATION = "conversation "  # begins the origin of what a saved conversation brought
PREFIX = "SPECGGUF_"
# Variables that are read elsewhere: here and in `exits`, by `serve`, by the project's own tests.
READ_ELSEWHERE = tuple(PREFIX + name for name in "CONFIG DEBUG HOST PORT API_KEY TEST_THREADS".split())
# What Kubernetes tells every container about a service that is named specgguf or specgguf-something.
_SERVICE = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d")


@dataclass(frozen=True)
class Value:
    """A value and where it came from: "flag --temp", "SPECGGUF_TEMPERATURE", a file, "preset demo", "default"."""

    value: Any
    origin: str


class Settings(Mapping[str, Any]):
    """All settings by name; `origin(name)` tells where one came from."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = {setting.name: Value(setting.default, "default") for setting in SETTINGS}
        self._values.update(values)
        self._chosen: dict[str, Value] = {}  # by slash commands and the conversation: over all others, until it ends

    def __getitem__(self, name: str) -> Any:
        return self._value(name).value

    def _value(self, name: str) -> Value:
        return self._chosen.get(name) or self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def origin(self, name: str) -> str:
        """Where the value of `name` came from."""
        return self._value(name).origin

    def given(self, name: str) -> bool:
        """Whether anybody set `name`: it is not the built-in default."""
        return self.origin(name) != "default"

    def given_here(self, name: str) -> bool:
        """Whether this very run sets `name`: by a flag, a variable or a slash command."""
        return self.origin(name).startswith(("flag ", "SPECGGUF_", BY))

    def without_preset(self) -> Settings:
        """The same settings, to be changed apart, as they would be without a preset."""
        other = Settings({k: v for k, v in self._values.items() if not v.origin.startswith("preset ")})
        other._chosen = dict(self._chosen)
        return other

    def without_conversation(self) -> Settings:
        """The same settings, to be changed apart, without what was chosen for the conversation."""
        other = Settings(self._values)
        mine = ("model", "draft_model", "preset")
        other._chosen = {
            name: value
            for name, value in self._chosen.items()
            if BY_NAME[name].section != "Sampling" and name not in mine and value.origin.startswith(BY)
        }
        return other

    def become(self, other: Settings) -> None:
        """Take over all values of `other`."""
        self._values, self._chosen = dict(other._values), dict(other._chosen)

    def put(self, name: str, value: Any, origin: str) -> None:
        """Set a value for the rest of this run (a slash command)."""
        self._chosen.pop(name, None)
        if origin.startswith((BY, CONVERSATION)):
            self._chosen[name] = Value(value, origin)
        else:
            self._values[name] = Value(value, origin)

    def under(self, values: Mapping[str, Any], origin: str) -> None:
        """Fill in a preset's values wherever only the default stood."""
        for name, value in values.items():
            if name in self._values and self._values[name].origin == "default" and value is not None:
                self._values[name] = Value(BY_NAME[name].parse(value, where=origin), origin)

    def to_keep(self) -> dict[str, Any]:
        """What belongs to a conversation rather than to a machine or a terminal, as far as it was chosen for it."""
        mine = (s.name for s in SETTINGS if s.section == "Sampling")
        return {n: self[n] for n in mine if self.given_here(n) or self.origin(n).startswith(CONVERSATION)}

    def resumed(self, values: Mapping[str, Any], name: str) -> None:
        """Take a saved conversation's settings where neither a flag nor a variable speaks."""
        for key, value in values.items():
            if key in BY_NAME and not self.given_here(key):
                origin = f"{CONVERSATION}{name}"
                self._chosen[key] = Value(BY_NAME[key].parse(value, where=origin), origin)

    def sampling(self) -> dict[str, Any]:
        """The sampling settings as keywords of a generation. Raises ConfigError when one is out of range."""
        chosen = {s.name: self[s.name] for s in SETTINGS if s.sampling}
        if chosen["temperature"] is not None and chosen["temperature"] < 0:
            raise ConfigError(
                f"temperature must be 0 or more, not {chosen['temperature']:g}", hint="0: the likeliest token"
            )
        SamplingParams(**chosen)
        return chosen


def config_dir() -> Path:
    """The folder of config.toml and of a user's own presets."""
    import platformdirs

    return Path(platformdirs.user_config_dir("specgguf"))


def data_dir() -> Path:
    """The folder of saved conversations and of the typing history."""
    import platformdirs

    return Path(platformdirs.user_data_dir("specgguf"))


def config_file() -> Path:
    """The settings file, whether it exists or not; SPECGGUF_CONFIG names another one."""
    named = os.environ.get("SPECGGUF_CONFIG")
    return Path(named).expanduser() if named else config_dir() / CONFIG_NAME


def gather(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from flags (None: not given), the environment and the config file.

    Raises:
        ConfigError: an unknown key or a value of the wrong kind, with its origin.
    """
    values: dict[str, Value] = {}
    path = config_file()
    for name, raw in read_config(path).items():
        values[name] = Value(BY_NAME[name].parse(raw, where=str(path)), str(path))
    environ = os.environ if environ is None else environ
    for setting in SETTINGS:
        text = environ.get(setting.env, "")
        if text:
            values[setting.name] = Value(setting.parse(text, where=setting.env), setting.env)
    for name, value in flags.items():
        if value is not None and name in BY_NAME:
            values[name] = Value(value, f"flag {BY_NAME[name].flags[-1].split('/')[0]}")
    return Settings(values)


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """A remark on each variable that looks like a setting and is none, with the nearest one's name."""
    import difflib

    environ = os.environ if environ is None else environ
    known = {setting.env for setting in SETTINGS}.union(READ_ELSEWHERE)
    names = {name.removeprefix(PREFIX): name for name in known} | {s.name.upper(): s.env for s in SETTINGS}
    remarks = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and environ[name] and name not in known and not _SERVICE.search(name):
            near = difflib.get_close_matches(name.removeprefix(PREFIX), names, n=1)
            hint = f"did you mean {names[near[0]]}?" if near else "specgguf config show --all lists those of settings"
            remarks.append(f"{name} is not read: {hint}")
    return remarks


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a settings file; none when there is no file.

    Raises:
        ConfigError: not TOML, or an unknown key (with the nearest known one).
    """
    import tomllib

    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    for key in content:
        if key not in BY_NAME:
            raise ConfigError(f"{path}: unknown key '{key}'", hint=did_you_mean(key, BY_NAME))
    return content


def write_config(path: Path, changes: Mapping[str, Any]) -> None:
    """Change keys of a settings file, and nothing else in it; None takes one out. The file is replaced as a whole.

    Raises:
        ConfigError: it is no settings file, or one that cannot be changed line by line. OSError: it cannot be written.
    """
    expected = {name: value for name, value in {**read_config(path), **changes}.items() if value is not None}
    text = path.read_text(encoding="utf-8-sig") if path.exists() else ""
    for name, value in changes.items():
        line = "" if value is None else f"{name} = {toml(value)}\n"
        text, n = re.subn(rf"(?m)^[ \t]*{name}[ \t]*=.*(?:\n|\Z)", lambda _: line, text, count=1)  # noqa: B023
        if not n and line:
            text = (text if text.endswith("\n") or not text else text + "\n") + line
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new")
    try:
        temporary.write_text(text, encoding="utf-8")
        if _is_not(temporary, expected):
            raise ConfigError(f"{path} cannot be changed by a program", hint=f"edit it: {', '.join(changes)}")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _is_not(path: Path, expected: Mapping[str, Any]) -> bool:
    try:
        return read_config(path) != expected
    except ConfigError:
        return True


def toml(value: object) -> str:
    """A value as it stands in config.toml."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | tuple) else str(value)
