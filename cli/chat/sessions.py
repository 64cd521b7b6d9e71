"""Conversations on disk: one JSON file each, written whole and private (0600) after every step.

While a conversation is open its lock file is held, so that two programs never write the same one and a
program that died in mid-answer is noticed at the next start. Nothing here knows an engine or a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any

from specgguf.cli.settings import data_dir

from specgguf.config import did_you_mean
from specgguf.errors import Busy, ConfigError, ModelNotFound, SpecggufError

VERSION = 1
_NAME = re.compile(r"[\w][\w. -]{0,99}")


@dataclass
class Session:
    """One saved conversation.

    Attributes:
        messages: OpenAI messages; an assistant's may carry `reasoning_content`.
        turns: per answer, when it came, how it ended, and llama.cpp's timings.
        settings: the settings that somebody had set, by name.
        model, draft_model: the references that load the same pair.
        pending: the last question, while it has no answer.
        aside: earlier questions that never got one.
    """

    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    model: str = ""
    draft_model: str = ""
    pending: str = ""
    unanswered: list[str] = field(default_factory=list)
    created: str = field(default_factory=lambda: now())
    updated: str = ""
    version: int = VERSION

    @property
    def title(self) -> str:
        """The first question, or what stands in its place."""
        asked = [m["content"] for m in self.messages if m.get("role") == "user"]
        return str(asked[0]) if asked else self.pending


def now() -> str:
    """The time of day with its zone, to the second."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


def folder() -> Path:
    """Where conversations are kept (it need not exist)."""
    return data_dir() / "sessions"


def check_name(name: str) -> str:
    """`name`, if it can be a file's name.

    Raises:
        ConfigError: it cannot.
    """
    if not _NAME.fullmatch(name) or name.endswith("."):
        raise ConfigError(f"a conversation cannot be named {name!r}", hint="use letters, digits, spaces, . _ and -")
    return name


def fresh_name(question: str) -> str:
    """A name for a new conversation: the date and its first words."""
    words = re.findall(r"[^\W_]+", question.lower())[:6]
    stem = "-".join([datetime.now().strftime("%Y-%m-%d"), *words])[:60].rstrip("-")
    name, n = stem, 1
    while _path(name).exists() or _lock_path(name).exists():
        n += 1
        name = f"{stem}-{n}"
    return name


def names() -> list[str]:
    """All saved conversations, the latest first."""
    found = []
    for path in folder().glob("*.json"):
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime, path.stem))
    return [name for _, name in sorted(found, reverse=True)]


def load(name: str) -> Session:
    """The conversation `name`. Keys that a later version may have added are ignored.

    Raises:
        ModelNotFound: there is none of that name.
        SpecggufError: its file is damaged.
    """
    path = _path(check_name(name))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        known = {f.name for f in fields(Session)}
        session = Session(**{**{k: v for k, v in content.items() if k in known}, "name": name})
        for key, value in vars(session).items():
            if type(value) is not type(getattr(Session(name), key)):
                raise TypeError(f"its '{key}' is of the wrong kind")
        for message in session.messages:
            if not isinstance(message["content"], str) or not isinstance(message["role"], str):
                raise TypeError(message)
        if not all(isinstance(question, str) for question in session.unanswered):
            raise TypeError("its 'unanswered' is of the wrong kind")
        json.dumps(content, ensure_ascii=False).encode()  # a lone surrogate could be neither shown nor saved
    except FileNotFoundError:
        hint = did_you_mean(name, names()) or "specgguf sessions list shows what there is"
        raise ModelNotFound(f"there is no conversation '{name}'", hint=hint) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecggufError(f"{path} is damaged: {error}", hint=f"specgguf sessions rm '{name}'") from error
    return session


def save(session: Session) -> None:
    """Write `session` as a whole or not at all, readable by its owner only."""
    session.updated = now()
    path = _path(check_name(session.name))
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")  # mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(asdict(session), stream, ensure_ascii=False, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove(name: str) -> None:
    """Delete the conversation `name`. Raises as `load`, and Busy while it is open somewhere."""
    if name not in names():
        load(name)  # says that there is none
    with Lock(name):
        _path(name).unlink(missing_ok=True)


def markdown(session: Session) -> str:
    """The conversation as Markdown."""
    lines = [f"# {session.name}", "", f"{session.model or 'unknown model'}, {session.updated[:10]}"]
    for message in session.messages:
        heading = {"user": "You", "assistant": "Model", "system": "System"}.get(message["role"], "Other")
        lines += ["", f"## {heading}", ""]
        if message.get("reasoning_content"):
            quoted = str(message["reasoning_content"]).splitlines()
            lines += [*(f"> {row}".rstrip() for row in quoted), ""]
        lines.append(message["content"])
    for question in [*session.unanswered, session.pending]:
        if question:
            lines += ["", "## You, without an answer", "", question]
    return "\n".join(lines) + "\n"


class Lock:
    """Held while a conversation is open. The kernel lets go of it when the program dies."""

    def __init__(self, name: str) -> None:
        """Raises Busy when another program has it open."""
        import fcntl

        self._path = _lock_path(name)
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        while True:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(self._fd)
                raise Busy(
                    f"the conversation '{name}' is open in another terminal",
                    hint="leave it there, or go on with another one: --resume NAME",
                ) from error
            if os.fstat(self._fd).st_nlink:
                return
            os.close(self._fd)  # its last holder removed it between our two calls

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Give it up."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def crashed() -> Iterator[Session]:
    """Conversations whose program died in mid-answer; each is told once."""
    for path in folder().glob(".*.lock"):
        name = path.name[1 : -len(".lock")]
        with contextlib.suppress(SpecggufError, OSError):
            Lock(name).release()
            session = load(name)
            if session.pending:
                yield session


def _path(name: str) -> Path:
    return folder() / f"{name}.json"


def _lock_path(name: str) -> Path:
    return folder() / f".{name}.lock"
