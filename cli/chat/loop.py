"""The conversation in a terminal: read, obey or ask, again; and the rules of leaving."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from specgguf.cli import exits
from specgguf.cli.chat import slash
from specgguf.cli.chat.actions.turns import Leave
from specgguf.cli.chat.chat_session import ChatSession
from specgguf.cli.chat.input import prompt, reader
from specgguf.cli.chat.saved.sessions import Session
from specgguf.cli.interrupts import LeaveNow
from specgguf.cli.keyboard import Keyboard
from specgguf.cli.settings import Settings, data_dir
from specgguf.cli.terminal import console
from specgguf.cli.terminal.stats_view import joined

LEAVE_WITHIN_S = 2.0
LEAVING = ("exit", "quit", "bye")  # alone, they are no question


def run(chat: ChatSession, keyboard: Keyboard, session: Session | None = None) -> int:
    """Hold the conversation, which may go on from `session`; returns the exit code."""
    history = history_of(chat.settings)
    banner(chat, first_run=history is None or not history.exists())
    if session is not None:
        chat.tell(session)
    messages = reader.open_reader(
        keyboard,
        chat.status,
        history=history,
        complete=lambda text: slash.complete(chat, text),
        color=chat.display.style.color,
        plain=chat.settings["plain"],
    )
    try:
        return _converse(chat, messages)
    finally:
        messages.close()
        with contextlib.suppress(OSError):  # the terminal is gone
            chat.status.unring()


def history_of(settings: Settings) -> Path | None:
    """The file that keeps what was typed, or None where nothing is to be kept."""
    return data_dir() / "history" if settings["history"] else None


def _converse(chat: ChatSession, messages: prompt.Reader) -> int:
    pressed = -LEAVE_WITHIN_S
    while True:
        try:
            message = messages.read()
            chat.status.unring()
            turn(chat, message)
            if chat.status.style.tty:
                chat.status.raw("\n")
        except (EOFError, Leave):
            return goodbye(chat, exits.OK)
        except LeaveNow:
            chat.status.raw("\n")
            return goodbye(chat, exits.INTERRUPTED)
        except KeyboardInterrupt:  # at the prompt, or when an answer had just ended
            if time.monotonic() - pressed < LEAVE_WITHIN_S:
                return goodbye(chat, exits.INTERRUPTED)
            pressed = time.monotonic()
            chat.status.say("Ctrl-C again leaves; so does Ctrl-D. /help lists commands.")


def turn(chat: ChatSession, message: prompt.Typed) -> None:
    """Obey a slash command or ask a question; errors are told, and the conversation goes on."""
    text, literal = message
    if not literal and text.strip().lower() in LEAVING:
        raise Leave
    picks, chat.picks = chat.picks, ""
    if picks and not literal and text.strip().isdecimal() and 1 <= int(text) <= len(chat.listed):
        text = f"/{picks} {text.strip()}"
    try:
        question: str | None = text
        if not literal and slash.is_command(text):
            question = slash.dispatch(chat, text)
        if question is not None and (question.strip() or chat.attached):
            chat.ask(question, mentions=not literal)
    except (Leave, BrokenPipeError):
        raise
    except Exception as error:
        if chat.debug:
            chat.status.raw(traceback.format_exc())
        chat.status.error(*exits.describe(error))


def banner(chat: ChatSession, *, first_run: bool) -> None:
    """What is loaded, and how to find out more."""
    loaded, say = chat.conversation.loaded, chat.status.say
    drafted = f"draft {loaded.draft_model}" if loaded.draft_model else "no draft model"
    n_ctx = loaded.engine.n_ctx()
    width = console.width(chat.status.stream)
    say(joined([loaded.model, drafted, f"context {n_ctx:,}, loaded in {loaded.load_s:.1f} s"], width))
    new_line = '""": many lines' if chat.settings["plain"] else "Alt-Enter: new line"
    say(f"/help: commands; {new_line}; Ctrl-C: stop an answer; Ctrl-D: leave")
    if first_run and loaded.draft_model and chat.display.style.styles and chat.settings["highlight"] == "off":
        say("/highlight shows which words the draft model wrote")
    chat.display.legend_once()


def goodbye(chat: ChatSession, code: int) -> int:
    """Close the conversation's file and say how to come back."""
    chat.autosave.save(chat.conversation.messages)
    name, unsaved = chat.autosave.name, chat.autosave.unsaved
    empty = not chat.conversation.n_turns
    chat.autosave.close()
    if unsaved:
        chat.status.warn(f"what was said last is not saved: {unsaved}")
    elif name and not empty:
        chat.status.say(f"saved as '{name}'; specgguf chat --continue comes back")
    return code


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """SIGTERM and SIGHUP leave by way of every `finally`, so that the terminal gets its echo back."""

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
