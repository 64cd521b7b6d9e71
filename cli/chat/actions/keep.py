"""Commands about saved conversations: a new one, a name, another one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from specgguf.cli.chat import resume
from specgguf.cli.chat.saved import sessions

from specgguf.errors import ConfigError, SpecggufError

if TYPE_CHECKING:
    from specgguf.cli.chat.chat_session import ChatSession


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
        known = [name for name in sessions.names() if name != chat.autosave.name][:10]
        raise ConfigError("/load needs a name", hint=", ".join(known) or "nothing is saved yet")
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
