"""Commands about questions and answers: take back, bring back, answer again, turn to another answer, edit, leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specgguf.cli import keyboard

if TYPE_CHECKING:
    from specgguf.cli.chat.chat_session import ChatSession


class Leave(Exception):
    """The user wants to leave."""


def leave(_chat: ChatSession, _words: str) -> None:
    """/exit"""
    raise Leave


def undo(chat: ChatSession, _words: str) -> None:
    """/undo"""
    question = chat.autosave.take_back(chat.conversation.messages, chat.conversation.undo())
    if not question:
        chat.status.tell("there is nothing to take back")
        return
    chat.conversation.undone = question
    back = "/redo brings it back, /edit changes it" if chat.conversation.can_redo else "/edit changes it, ↑ has it"
    chat.status.tell(f"took back: {chat.short(question)} ({back})")


def redo(chat: ChatSession, _words: str) -> None:
    """/redo"""
    question = chat.conversation.redo()
    if not question:
        chat.status.tell("nothing was taken back here")
        return
    chat.autosave.changed(chat.conversation.messages)
    chat.status.tell(f"back again: {chat.short(question)}")
    chat.show_answer()


def retry(chat: ChatSession, _words: str) -> None:
    """/retry"""
    question = chat.conversation.step_back()
    if not question:
        chat.status.tell("there is nothing to answer again")
        return
    chat.ask(question, again=True)


def more(chat: ChatSession, _words: str) -> None:
    """/more"""
    chat.more()


def previous(chat: ChatSession, _words: str) -> None:
    """/prev"""
    _turn_by(chat, -1)


def next_(chat: ChatSession, _words: str) -> None:
    """/next"""
    _turn_by(chat, 1)


def _turn_by(chat: ChatSession, step: int) -> None:
    n, n_all = chat.conversation.answers()
    if n_all <= 1:
        chat.status.tell("there is no other answer (/retry makes one)" if n_all else "nothing was asked yet")
        return
    if not 1 <= n + step <= n_all:
        chat.status.tell(f"this is the {'first' if step < 0 else 'last'} of {n_all} answers")
        return
    chat.conversation.turn_to(n + step)
    chat.autosave.changed(chat.conversation.messages)
    chat.show_answer()


def edit(chat: ChatSession, _words: str) -> str | None:
    """/edit: what comes out of the editor takes the place of a question that got no answer."""
    import click

    start = chat.conversation.unanswered or chat.conversation.undone
    with keyboard.given_back():
        text = click.edit(start, extension=".md", require_save=not start)
    if text is None or not text.strip():
        chat.status.tell("nothing to send")
        return None
    chat.status.raw(f"{text.rstrip()}\n")
    if chat.conversation.still_unanswered:
        chat.autosave.take_back(chat.conversation.messages, chat.conversation.undo())
    return text.strip()
