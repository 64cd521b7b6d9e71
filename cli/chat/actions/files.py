"""/file: text files that go with the next message, and completion of their paths."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from specgguf.cli.chat.input import attachments
from specgguf.cli.terminal.stats_view import plural

from specgguf.errors import ConfigError

if TYPE_CHECKING:
    from specgguf.cli.chat.chat_session import ChatSession


def file(chat: ChatSession, words: str) -> None:
    """/file PATH…, /file alone, /file rm N"""
    first, _, more = words.partition(" ")
    if not words:
        _list(chat)
    elif first == "rm" and not Path(words).expanduser().exists():
        _remove(chat, more.strip())
    else:
        for path in attachments.paths(words):
            attach(chat, path)


def attach(chat: ChatSession, path: Path) -> None:
    """Hold the file at `path` for the next message. Raises as `attachments.read`."""
    found = chat.attach(path)
    chat.status.tell(
        f"{path.name}, about {found.n_tokens:,} tokens, goes with your next message (/file rm takes it off)"
    )


def _list(chat: ChatSession) -> None:
    if not chat.attached:
        chat.status.tell("no file is attached (/file PATH attaches one)")
    for n, attached in enumerate(chat.attached, 1):
        chat.status.tell(f"{n}  {attached.path}  about {plural(attached.n_tokens, 'token')}")


def _remove(chat: ChatSession, which: str) -> None:
    n_all = len(chat.attached)
    if not n_all:
        raise ConfigError("no file is attached")
    if which in ("all", "") and (which or n_all == 1):
        removed, chat.attached[:] = list(chat.attached), []
    elif which.isdecimal() and 1 <= int(which) <= n_all:
        removed = [chat.attached.pop(int(which) - 1)]
    else:
        raise ConfigError(f"/file rm takes a number from 1 to {n_all}, or all", hint="/file lists them")
    chat.status.tell(f"taken off: {', '.join(attached.path.name for attached in removed)}")


def complete_path(_chat: ChatSession, words: str) -> Iterable[str]:
    """Paths that begin as typed."""
    typed = Path(words).expanduser()
    folder = typed if words.endswith("/") or not words else typed.parent
    shown = words[: words.rfind("/") + 1]
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(".") or Path(words).name.startswith("."):
            yield shown + entry.name + ("/" if entry.is_dir() else "")
