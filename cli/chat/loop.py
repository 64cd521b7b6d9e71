"""The conversation in a terminal: read, obey or ask, again; and the rules of leaving."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import NoReturn

from specgguf.cli import exits, open_pair
from specgguf.cli.chat import prompt, slash
from specgguf.cli.chat.actions import Leave
from specgguf.cli.chat.autosave import Keeper
from specgguf.cli.chat.conversation import Talk
from specgguf.cli.chat.display import Display
from specgguf.cli.chat.sessions import Session
from specgguf.cli.interrupts import LeaveNow
from specgguf.cli.settings import Settings, data_dir
from specgguf.cli.terminal import console
from specgguf.cli.terminal.stats_view import joined
from specgguf.cli.terminal.status import Notes

LEAVE_WITHIN_S = 2.0


@dataclass
class Room:
    """Everything that a conversation in a terminal holds on to; what slash commands work on.

    Attributes:
        attached: texts of files that go with the next message.
        debug: show the tracebacks of errors.
    """

    talk: Talk
    display: Display
    notes: Notes
    settings: Settings
    keeper: Keeper
    attached: list[str] = field(default_factory=list)
    debug: bool = False

    def short(self, text: str) -> str:
        """`text` on one line, as long as the terminal has room."""
        return console.one_line(text, max(console.width(self.notes.stream) - 50, 30))

    def take(self, session: Session) -> None:
        """Go on with `session`, and say where it stood."""
        self.talk.resume(session.messages, session.pending)
        self.tell(session)

    def tell(self, session: Session) -> None:
        """Say where a conversation stands that goes on."""
        n = self.talk.n_turns
        self.notes.say(f"'{session.name}', {n} {'turn' if n == 1 else 'turns'}: {self.short(session.title)}")
        asked, said = self.talk.last_exchange
        if said:
            self.notes.say(f"  {prompt.PROMPT}{self.short(asked)}\n  {self.short(said)}")
        if session.pending:
            self.notes.say(f"its last question has no answer (/retry asks it again): {self.short(session.pending)}")

    def switch(self, ref: str, draft_ref: str) -> None:
        """Go on with other models. The old ones come back when the new ones cannot be loaded."""
        self.talk.loaded = open_pair.switch(self.talk.loaded, ref, draft_ref, self.settings, self.notes)
        self.describe()

    def describe(self) -> None:
        """Tell the keeper which models and settings belong to the conversation."""
        loaded = self.talk.loaded
        self.keeper.describe(model=loaded.model_ref, draft_model=loaded.draft_ref, settings=self.settings.to_keep())

    def ask(self, question: str) -> None:
        """Send a question with what is attached, and show the answer."""
        text = "\n\n".join([question, *self.attached])
        self.attached.clear()  # from here on they are part of the question
        self.display.legend_once()
        self.describe()
        with console.quiet_keyboard():
            answer = self.talk.send(text, self.display.sink())
        self.display.after(answer, self.talk.loaded.engine)
        if answer.interrupted and not answer.spans:
            self.notes.say("stopped before the first word; the question is taken back (/retry asks it again)")


def run(room: Room, session: Session | None = None) -> int:
    """Hold the conversation, which may go on from `session`; returns the exit code."""
    with _orderly_end():
        return _converse(room, session)


def _converse(room: Room, session: Session | None) -> int:
    history = data_dir() / "history" if room.settings["history"] else None
    banner(room, first_run=history is None or not history.exists())
    if session is not None:
        room.tell(session)
    keyboard = prompt.keyboard(
        room.notes,
        history=history,
        complete=lambda text: slash.complete(room, text),
        color=room.display.ink.color,
    )
    pressed = -LEAVE_WITHIN_S
    while True:
        try:
            turn(room, keyboard.read())
        except (EOFError, Leave):
            return goodbye(room, exits.OK)
        except LeaveNow:
            room.notes.raw("\n")
            return goodbye(room, exits.INTERRUPTED)
        except KeyboardInterrupt:  # at the prompt, or when an answer had just ended
            if time.monotonic() - pressed < LEAVE_WITHIN_S:
                return goodbye(room, exits.INTERRUPTED)
            pressed = time.monotonic()
            room.notes.say("Ctrl-C again leaves; so does Ctrl-D. /help lists commands.")


def turn(room: Room, text: str) -> None:
    """Obey a slash command or ask a question; errors are told, and the conversation goes on."""
    try:
        question: str | None = text
        if text.startswith("/") and not text.startswith("//"):
            question = slash.dispatch(room, text)
        elif text.startswith("//"):
            question = text[1:]
        if question is not None and (question.strip() or room.attached):
            room.ask(question)
    except (Leave, BrokenPipeError):
        raise
    except Exception as error:
        if room.debug:
            room.notes.raw(traceback.format_exc())
        room.notes.error(*exits.describe(error))


def banner(room: Room, *, first_run: bool) -> None:
    """What is loaded, and how to find out more."""
    loaded, say = room.talk.loaded, room.notes.say
    drafted = f"draft {loaded.draft_model}" if loaded.draft_model else "no draft model"
    n_ctx = loaded.engine.n_ctx()
    width = console.width(room.notes.stream)
    say(joined([loaded.model, drafted, f"context {n_ctx:,}, loaded in {loaded.load_s:.1f} s"], width))
    say("/help: commands; Alt-Enter: new line; Ctrl-C: stop an answer; Ctrl-D: leave")
    if first_run and loaded.draft_model and not room.settings["highlight"]:
        say("/highlight shows which words the draft model wrote")
    room.display.legend_once()


def goodbye(room: Room, code: int) -> int:
    """Close the conversation's file and say how to come back."""
    name = room.keeper.name
    room.keeper.close()
    if name:
        room.notes.say(f"saved as '{name}'; specgguf chat --continue comes back")
    return code


@contextlib.contextmanager
def _orderly_end() -> Iterator[None]:
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
