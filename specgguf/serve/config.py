"""How a server behaves, and who may ask: the settings of `Service`, checked when they are made.

It knows no HTTP and no flags; a file of keys is the only thing it reads.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from specgguf.config import from_mapping, require_whole
from specgguf.errors import ConfigError

LOOPBACK = ("localhost", "127.0.0.1", "::1")
ANY_MODEL = "*"  # among the names: every name that a client gives is taken


@dataclass(frozen=True)
class ApiKey:
    """A key that clients may show, and how much may be asked with it.

    Attributes:
        key: the secret, as it stands behind "Bearer ".
        name: what logs and metrics call its owner.
        requests_per_minute, tokens_per_minute: of any 60 seconds, prompt and answer together; None is no limit.
    """

    key: str = field(repr=False)
    name: str = ""
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        what = f"the API key of {self.name}" if self.name else "an API key"
        if not isinstance(self.key, str) or not self.key.strip():
            raise ConfigError(f"{what} is empty: anybody could show it", hint="leave it out to ask for no key")
        if self.key != self.key.strip() or not self.key.isprintable():
            raise ConfigError(f"{what} begins or ends with a blank, or holds a character that no header can carry")
        for limit in ("requests_per_minute", "tokens_per_minute"):
            if getattr(self, limit) is not None:
                require_whole(f"{limit} of {what.removeprefix('the ')}", getattr(self, limit), 1)


@dataclass(frozen=True)
class ServeConfig:
    """How a server behaves.

    Attributes:
        names: what clients may call the model; the first is its name, "*" takes any.
        defaults: sampling keywords for what a request leaves open.
        enable_thinking: the same for the chat template's switch.
        lenient: fields that nobody knows are ignored, and named in a header of the answer, instead of refused.
        api_keys: any of these must be given (a text is a key without a name); none: no key is asked for.
        cors: origins whose pages may call this server from a browser.
        hosts: names that requests may call this server by; None takes any.
        root_path: what a proxy in front has taken from the beginning of the path.
        queue_max: requests that may wait; one more is answered with 429.
        queue_timeout_s, generation_timeout_s: a request waits, then runs, at most so long. One that runs longer ends
            with what it has, finish_reason "length".
        connections_max: open connections; one more closes the one that is idle longest, or is told 503.
        head_timeout_s: for a request's line and headers. body_max_bytes, body_timeout_s: of a request's body.
        write_timeout_s: a client that reads nothing for so long is dropped.
        keepalive_s: a stream that has nothing to say sends a comment this often.
        stuck_s: an engine that gave no sign for so long makes /health fail.
        grace_s: when stopping, the running request may go on for so long.
        certfile, keyfile: PEM files; with them the server speaks TLS.
    """

    names: tuple[str, ...] = ("specgguf",)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    enable_thinking: bool | None = None
    lenient: bool = False
    api_keys: tuple[ApiKey | str, ...] = ()
    cors: tuple[str, ...] = ()
    hosts: tuple[str, ...] | None = LOOPBACK
    root_path: str = ""
    queue_max: int = 64
    queue_timeout_s: float = 300.0
    generation_timeout_s: float = 600.0
    connections_max: int = 512
    head_timeout_s: float = 15.0
    body_max_bytes: int = 4 * 2**20
    body_timeout_s: float = 30.0
    write_timeout_s: float = 60.0
    keepalive_s: float = 15.0
    stuck_s: float = 120.0
    grace_s: float = 10.0
    certfile: str | None = None
    keyfile: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", named_keys(self.api_keys))
        if self.root_path and (not self.root_path.startswith("/") or self.root_path.endswith("/")):
            raise ConfigError(f"root_path must begin with a slash and end without one, not {self.root_path!r:.60}")
        if self.keyfile and not self.certfile:
            raise ConfigError("keyfile needs its certificate", hint="certfile=FILE")

    keys: tuple[ApiKey, ...] = field(init=False, default=())

    @property
    def name(self) -> str:
        """The model's name: the first that is one."""
        return next((name for name in self.names if name != ANY_MODEL), "specgguf")


def named_keys(keys: tuple[ApiKey | str, ...]) -> tuple[ApiKey, ...]:
    """`keys` with a name each: their own, or key-1, key-2, … by position.

    Raises:
        ConfigError: an empty key, one with a blank at an end, or two that are the same.
    """
    made = [key if isinstance(key, ApiKey) else ApiKey(key) for key in keys]
    named = [k if k.name else ApiKey(k.key, f"key-{i}", *_limits(k)) for i, k in enumerate(made, 1)]
    for what in ("key", "name"):
        if len({getattr(k, what) for k in named}) < len(named):
            raise ConfigError(f"two API keys have the same {what}")
    return tuple(named)


def _limits(key: ApiKey) -> tuple[int | None, int | None]:
    return key.requests_per_minute, key.tokens_per_minute


def read_keys(path: str | os.PathLike[str]) -> tuple[ApiKey, ...]:
    """The keys in a file: one a line (blank lines and lines that begin with # are skipped), or, where its name ends in
    .toml, a table per name with `key` and, if wanted, `requests_per_minute` and `tokens_per_minute`.

    Raises:
        ConfigError: it cannot be read, holds no key, or one that is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror or "").lower() if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"cannot read the keys in {os.fspath(path)}: {why}") from error
    if os.fspath(path).endswith(".toml"):
        keys = _toml_keys(text, os.fspath(path))
    else:
        lines = (line.strip() for line in text.splitlines())
        keys = tuple(ApiKey(line) for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError(f"{os.fspath(path)} holds no key", hint="one a line")
    return keys


def _toml_keys(text: str, where: str) -> tuple[ApiKey, ...]:
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict) or "key" not in table or "name" in table:
            raise ConfigError(f"{where}: [{name}] needs a key", hint='[name], then key = "…"')
    return tuple(
        from_mapping(ApiKey, {**table, "name": name}, where=f"{where}: {name}") for name, table in tables.items()
    )
