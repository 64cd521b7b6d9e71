"""Commands about keeping things: a new conversation, a name, another one; an answer on the clipboard or in a file."""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from specgguf.cli.chat import resume
from specgguf.cli.chat.saved import sessions
from specgguf.cli.terminal.stats_view import plural

from specgguf.errors import ConfigError, SpecggufError

if TYPE_CHECKING:
    from specgguf.cli.chat.chat_session import ChatSession

SHOWN = 10
CLIPBOARD = 100_000  # characters of base64: more is dropped by some terminals
_CODE = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n(.*?)^ {0,3}\1[`~]*[ \t]*$", re.S | re.M)


def clear(chat: ChatSession, _words: str) -> None:
    """/clear"""
    _may_leave(chat, "/clear")
    name = chat.autosave.name
    chat.conversation.clear()
    chat.autosave.close()
    kept = f"; the old one is kept as '{name}'" if name else ""
    chat.status.tell(f"a new conversation{kept}")
    chat.drop_files()


def save(chat: ChatSession, words: str) -> None:
    """/save [NAME]"""
    if not chat.conversation.n_turns:
        chat.status.tell("there is nothing to save yet")
        return
    chat.autosave.rename(
        words or chat.autosave.name or sessions.fresh_name(chat.conversation.first_question), chat.conversation.messages
    )
    chat.status.tell(f"saved as '{chat.autosave.name}': specgguf chat --resume '{chat.autosave.name}'")


def load(chat: ChatSession, words: str) -> None:
    """/load NAME: as --resume, with its settings and its models."""
    if not words:
        _list(chat)
        return
    words = chat.listed[int(words) - 1] if _is_number(words, chat.listed) and words not in sessions.names() else words
    if words == chat.autosave.name:
        chat.status.tell(f"'{words}' is the conversation that is open here")
        return
    session = sessions.load(words)
    _may_leave(chat, f"/load {words}")
    chat.autosave.open(session)
    wanted = chat.settings.without_conversation()
    pair = resume.take_settings(session, wanted)
    chat.settings.become(wanted)
    chat.drop_files()
    chat.take(session)
    if pair and pair != (chat.conversation.loaded.model_ref, chat.conversation.loaded.draft_ref):
        try:
            chat.switch(*pair, origin=f"conversation {session.name}")
        except SpecggufError as error:
            chat.status.warn(f"its models are not used: {error}; {chat.conversation.loaded.model} goes on")
    chat.describe()


def _list(chat: ChatSession) -> None:
    """The latest conversations, by number."""
    chat.listed = []
    for name in sessions.names():
        with contextlib.suppress(SpecggufError):
            session = sessions.load(name)
            if name != chat.autosave.name and not session.is_empty and len(chat.listed) < SHOWN:
                chat.listed.append(name)
                chat.status.tell(f"{len(chat.listed):>2}  {name}  {chat.status.style.dim(chat.short(session.title))}")
    chat.picks = "load" if chat.listed else ""
    chat.status.tell("a number goes on with that one" if chat.listed else "no other conversation is saved")


def _is_number(words: str, listed: list[str]) -> bool:
    return words.isdecimal() and 1 <= int(words) <= len(listed)


def write(chat: ChatSession, words: str) -> None:
    """/write FILE"""
    if not words:
        raise ConfigError("/write needs the name of a file")
    text, path = chosen(chat, ""), Path(words.strip("'\"")).expanduser()
    if path.is_dir():
        raise ConfigError(f"{path} is a folder", hint=f"/write {path / 'answer.md'}")
    if path.exists() and chat.refused != f"/write {words}":
        chat.refused = f"/write {words}"
        raise ConfigError(f"{path} exists", hint=f"/write {words} again replaces it")
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    chat.status.tell(f"{path}: {plural(len(text), 'character')} written")


def copy(chat: ChatSession, words: str) -> None:
    """/copy [code|N|all]: by the terminal's own clipboard, which works through ssh and tmux too."""
    text = chosen(chat, words)
    data = base64.b64encode(text.encode()).decode()
    if not chat.status.style.live or len(data) > CLIPBOARD:
        why = "is too much for it" if chat.status.style.live else "has none"
        raise ConfigError(
            f"not copied: {'the text' if chat.status.style.live else 'this terminal'} {why}",
            hint="/write FILE keeps the answer in a file",
        )
    chat.status.raw(f"\x1b]52;c;{data}\x07")
    chat.status.tell(f"{plural(len(text), 'character')} handed to the terminal's clipboard (not there? /write FILE)")


def chosen(chat: ChatSession, words: str) -> str:
    """What /copy names: the last answer, its code, the Nth answer, or all that was said.

    Raises:
        ConfigError: there is no such thing.
    """
    messages = chat.conversation.messages
    answers = [str(m["content"]) for m in messages if m["role"] == "assistant"]
    if not answers:
        raise ConfigError("there is no answer yet")
    if words == "all":
        return "\n\n".join(f"{m['role']}:\n{m['content']}" for m in messages)
    if words == "code":
        blocks = _CODE.findall(answers[-1])
        if not blocks:
            raise ConfigError("the last answer has no code block")
        return "\n".join(block for _fence, block in blocks)
    if words and not _is_number(words, answers):
        raise ConfigError(f"/copy takes code, all, or a number from 1 to {len(answers)}, not {words!r}")
    return answers[int(words) - 1 if words else -1]


def _may_leave(chat: ChatSession, line: str) -> None:
    """Refuse to leave behind what is on no disk, until the same command is given again."""
    chat.autosave.save(chat.conversation.messages)
    if chat.autosave.unsaved and chat.refused != line:
        chat.refused = line
        raise ConfigError(
            f"this conversation is not saved: {chat.autosave.unsaved}",
            hint=f"/save NAME keeps it once there is space; {line} again leaves it unsaved",
        )


def complete_session(_chat: ChatSession, _words: str) -> Iterable[str]:
    """Names of saved conversations."""
    return sessions.names()
