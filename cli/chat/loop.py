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
from specgguf.cli.chat.autosave import Autosave
from specgguf.cli.chat.conversation import Conversation
from specgguf.cli.chat.display import Display
from specgguf.cli.chat.sessions import Session
from specgguf.cli.interrupts import LeaveNow
from specgguf.cli.settings import Settings, data_dir
from specgguf.cli.terminal import console
from specgguf.cli.terminal.stats_view import joined
from specgguf.cli.terminal.status import StatusOutput

LEAVE_WITHIN_S = 2.0


@dataclass
class ChatSession:
    """Everything that a conversation in a terminal holds on to; what slash commands work on.

    Attributes:
        attached: texts of files that go with the next message.
        debug: show the tracebacks of errors.
    """

    conversation: Conversation
    display: Display
    status: StatusOutput
    settings: Settings
    autosave: Autosave
    attached: list[str] = field(default_factory=list)
    debug: bool = False

    def short(self, text: str) -> str:
        """`text` on one line, as long as the terminal has room."""
        return console.one_line(text, max(console.width(self.status.stream) - 50, 30))

    def take(self, session: Session) -> None:
        """Go on with `session`, and say where it stood."""
        self.conversation.resume(session.messages, session.pending)
        self.tell(session)

    def tell(self, session: Session) -> None:
        """Say where a conversation stands that goes on."""
        n = self.conversation.n_turns
        self.status.say(f"'{session.name}', {n} {'turn' if n == 1 else 'turns'}: {self.short(session.title)}")
        asked, said = self.conversation.last_exchange
        if said:
            self.status.say(f"  {prompt.PROMPT}{self.short(asked)}\n  {self.short(said)}")
        if session.pending:
            self.status.say(f"its last question has no answer (/retry asks it again): {self.short(session.pending)}")

    def switch(self, ref: str, draft_ref: str) -> None:
        """Go on with other models. The old ones come back when the new ones cannot be loaded."""
        self.conversation.loaded = open_pair.switch(
            self.conversation.loaded, ref, draft_ref, self.settings, self.status
        )
        self.describe()

    def describe(self) -> None:
        """Tell the keeper which models and settings belong to the conversation."""
        loaded = self.conversation.loaded
        self.autosave.describe(model=loaded.model_ref, draft_model=loaded.draft_ref, settings=self.settings.to_keep())

    def ask(self, question: str) -> None:
        """Send a question with what is attached, and show the answer."""
        text = "\n\n".join([question, *self.attached])
        self.attached.clear()  # from here on they are part of the question
        self.display.legend_once()
        self.describe()
        with console.quiet_keyboard():
            answer = self.conversation.send(text, self.display.sink())
        self.display.after(answer, self.conversation.loaded.engine)
        if answer.interrupted and not answer.spans:
            self.status.say("stopped before the first word; the question is taken back (/retry asks it again)")


def run(chat: ChatSession, session: Session | None = None) -> int:
    """Hold the conversation, which may go on from `session`; returns the exit code."""
    with _orderly_end():
        return _converse(chat, session)


def _converse(chat: ChatSession, session: Session | None) -> int:
    history = data_dir() / "history" if chat.settings["history"] else None
    banner(chat, first_run=history is None or not history.exists())
    if session is not None:
        chat.tell(session)
    keyboard = prompt.keyboard(
        chat.status,
        history=history,
        complete=lambda text: slash.complete(chat, text),
        color=chat.display.style.color,
    )
    pressed = -LEAVE_WITHIN_S
    while True:
        try:
            turn(chat, keyboard.read())
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


def turn(chat: ChatSession, text: str) -> None:
    """Obey a slash command or ask a question; errors are told, and the conversation goes on."""
    try:
        question: str | None = text
        if text.startswith("/") and not text.startswith("//"):
            question = slash.dispatch(chat, text)
        elif text.startswith("//"):
            question = text[1:]
        if question is not None and (question.strip() or chat.attached):
            chat.ask(question)
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
    say("/help: commands; Alt-Enter: new line; Ctrl-C: stop an answer; Ctrl-D: leave")
    if first_run and loaded.draft_model and not chat.settings["highlight"]:
        say("/highlight shows which words the draft model wrote")
    chat.display.legend_once()


def goodbye(chat: ChatSession, code: int) -> int:
    """Close the conversation's file and say how to come back."""
    name = chat.autosave.name
    chat.autosave.close()
    if name:
        chat.status.say(f"saved as '{name}'; specgguf chat --continue comes back")
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
