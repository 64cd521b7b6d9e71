"""Conversations on disk: one JSON file each, written whole and private (0600) after every step.

While a conversation is open its lock file is held, and while an answer is written what came of it lies in a file
beside it (see `partial`), so that a program that died in mid-answer is noticed at the next start and loses next to
nothing. Nothing here knows an engine or a terminal.
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

from specgguf.cli.chat.saved import branch, partial
from specgguf.cli.chat.saved.lock import Lock
from specgguf.cli.settings import data_dir

from specgguf.config import did_you_mean
from specgguf.errors import ConfigError, ModelNotFound, SpecggufError

VERSION = 1
ONE_SHOT = "one-shot"  # the latest single question is kept under this name
_NAME = re.compile(r"[\w][\w. -]{0,99}")


@dataclass
class Session:
    """One saved conversation.

    Attributes:
        messages: OpenAI messages; an assistant's may carry `reasoning_content`.
        turns: of each answer that was ever given, when it came, how it ended, and llama.cpp's timings.
        branches: answers that another one replaced and turns that were taken back (see `branches`).
        summary, n_summed: what is sent instead of the first messages after the system prompt, and of how many.
        settings: the settings that somebody had set, by name.
        model, draft_model: the references that load the same pair.
        pending: the last question, while it has no answer.
        unanswered: earlier questions that never got one.
    """

    name: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)
    branches: list[dict[str, Any]] = field(default_factory=list)
    summary: str = ""
    n_summed: int = 0
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
        said = [*self.messages, *(m for left in self.branches for m in left["messages"])]
        asked = [m["content"] for m in said if m.get("role") == "user"]
        return str(asked[0]) if asked else self.pending

    @property
    def n_turns(self) -> int:
        """Questions that were asked and not taken back."""
        return sum(1 for message in self.messages if message.get("role") == "user")

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left of it that anybody said."""
        return not (self.n_turns or self.pending or self.unanswered)


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
    """The conversation `name`, with what came of an answer that was cut off. Keys of later versions are ignored.

    Raises:
        ModelNotFound: there is none of that name.
        SpecggufError: its file is damaged.
    """
    path = _path(check_name(name))
    try:
        session = _read(path, name)
    except FileNotFoundError:
        hint = did_you_mean(name, names()) or "specgguf sessions list shows what there is"
        raise ModelNotFound(f"there is no conversation '{name}'", hint=hint) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecggufError(
            f"{path} is damaged: {error}", hint="it is left as it is; a text editor may still read it"
        ) from error
    if session.pending:
        _recover(session)
    return session


def _read(path: Path, name: str) -> Session:
    content = json.loads(path.read_text(encoding="utf-8"))
    known = {f.name for f in fields(Session)}
    session = Session(**{**{k: v for k, v in content.items() if k in known}, "name": name})
    for key, value in vars(session).items():
        if type(value) is not type(getattr(Session(name), key)):
            raise TypeError(f"its '{key}' is of the wrong kind")
    for message in [*session.messages, *(m for left in session.branches for m in left["messages"])]:
        if not isinstance(message["content"], str) or not isinstance(message["role"], str):
            raise TypeError(message)
    if not all(isinstance(question, str) for question in session.unanswered):
        raise TypeError("its 'unanswered' is of the wrong kind")
    json.dumps(content, ensure_ascii=False).encode()  # a lone surrogate could be neither shown nor saved
    return session


def _recover(session: Session) -> None:
    """Give the last question the answer that was begun, or the one that was to be replaced."""
    begun = partial.read(partial_path(session.name), session.pending)
    earlier = branch.answers(session.branches, session.messages, session.pending)
    if begun is not None:
        exchange = [{"role": "user", "content": session.pending}, begun]
        if earlier:
            branch.keep(session.branches, session.messages, exchange)
        session.turns.append({"when": now(), "finish_reason": None, "interrupted": True, "timings": {}})
    elif earlier:
        exchange = earlier[-1]
    else:
        return
    session.messages += exchange
    session.pending = ""


def latest() -> tuple[Session | None, list[Path]]:
    """The conversation to go on with: the last one that holds anything, a single question only where there is no other.

    Returns also the files that are damaged: they are set aside, under the names returned.
    """
    damaged = []
    for name in sorted(names(), key=lambda name: name == ONE_SHOT):
        try:
            session = load(name)
        except ModelNotFound:  # removed a moment ago
            continue
        except SpecggufError:
            damaged.append(_set_aside(name))
            continue
        if not session.is_empty:
            return session, damaged
    return None, damaged


def _set_aside(name: str) -> Path:
    path, n = _path(name), 1
    while (aside := path.with_suffix(f".damaged-{n}")).exists():
        n += 1
    return path.rename(aside)


def is_single(name: str) -> bool:
    """Whether the conversation `name` holds one question at most, or cannot be read."""
    with contextlib.suppress(SpecggufError):
        return load(name).n_turns <= 1
    return True


def promote() -> str:
    """Make a conversation with a name of its own of the latest single question; returns that name.

    Raises as `load`.
    """
    name = fresh_name(load(ONE_SHOT).title)
    os.rename(_path(ONE_SHOT), _path(name))  # which a full disk allows, too
    with contextlib.suppress(FileNotFoundError):
        os.rename(partial_path(ONE_SHOT), partial_path(name))
    return name


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
        partial_path(session.name).unlink(missing_ok=True)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def remove(name: str) -> None:
    """Delete the conversation `name`. Raises as `load`, and Busy while it is open somewhere."""
    if name not in names():
        load(name)  # says that there is none
    with lock(name):
        _path(name).unlink(missing_ok=True)
        partial_path(name).unlink(missing_ok=True)


def lock(name: str) -> Lock:
    """Hold the conversation `name`. Raises Busy when another program has it open."""
    return Lock(_lock_path(name), name)


def crashed() -> Iterator[Session]:
    """Conversations whose program died in mid-answer; each is told once."""
    for path in folder().glob(".*.lock"):
        name = path.name[1 : -len(".lock")]
        with contextlib.suppress(SpecggufError, OSError):
            lock(name).release()
            cut_off = partial_path(name).exists()
            session = load(name)
            if session.pending or cut_off:
                yield session


def _path(name: str) -> Path:
    return folder() / f"{name}.json"


def partial_path(name: str) -> Path:
    """Where the answer lies that is being written in the conversation `name`."""
    return folder() / f".{name}.partial"


def _lock_path(name: str) -> Path:
    return folder() / f".{name}.lock"
