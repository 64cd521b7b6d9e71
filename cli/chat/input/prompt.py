"""Reads what the user types: with prompt_toolkit in a terminal, line by line in a dumb one.

Enter sends; Alt-Enter starts a new line; three quotes open a text of many lines that three quotes close.
A paste of many lines stays one message. Knows nothing of what the words mean.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from specgguf.cli.terminal.status import StatusOutput

if TYPE_CHECKING:
    from prompt_toolkit.key_binding import KeyBindings

QUOTES = '"""'
PROMPT = "> "
MORE = "… "

# Given the words typed so far, what could stand next: (text, replaced characters, description).
Complete = Callable[[str], Iterable[tuple[str, int, str]]]


class Keyboard(Protocol):
    """Where messages come from."""

    def read(self) -> str:
        """The next message. Raises EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C on an empty line."""


def keyboard(status: StatusOutput, *, history: Path | None, complete: Complete, color: bool) -> Keyboard:
    """The best reader that the terminal allows."""
    seen = sys.stdout.isatty() or sys.stderr.isatty()
    if os.environ.get("TERM", "") in ("", "dumb") or not seen:
        return PlainKeyboard(status)
    return LineEditor(history=history, complete=complete, color=color)


def is_open(text: str) -> bool:
    """Whether `text` opened three quotes that are not closed."""
    start = text.lstrip()
    if not start.startswith(QUOTES):
        return False
    rest = start[len(QUOTES) :]
    return not rest.rstrip().endswith(QUOTES)


def unquoted(text: str) -> str:
    """The message without its three quotes, where it has them."""
    body = text.strip()
    if body.startswith(QUOTES) and body.endswith(QUOTES) and len(body) >= 2 * len(QUOTES):
        return body[len(QUOTES) : -len(QUOTES)].strip("\n")
    return text


class PlainKeyboard:
    """Lines from stdin, for terminals that cannot move the cursor."""

    def __init__(self, status: StatusOutput) -> None:
        self._status = status

    def read(self) -> str:
        """See `Keyboard`."""
        text = self._line(PROMPT)
        while is_open(text):
            text += "\n" + self._line(MORE)
        return unquoted(text)

    def _line(self, prompt: str) -> str:
        self._status.raw(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")


class LineEditor:
    """prompt_toolkit's editor: history, completion, many lines, bracketed paste."""

    def __init__(self, *, history: Path | None, complete: Complete, color: bool) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.output import ColorDepth, create_output
        from prompt_toolkit.shortcuts import CompleteStyle

        self._session: PromptSession[str] = PromptSession(
            [("bold", PROMPT)],
            multiline=True,
            prompt_continuation=lambda _width, _line, _wrapped: MORE,
            history=_history(history),
            completer=_completer(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.MULTI_COLUMN,
            reserve_space_for_menu=6,
            enable_open_in_editor=True,
            enable_suspend=True,
            tempfile_suffix=".md",
            key_bindings=_keys(),
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            output=create_output(always_prefer_tty=True),
        )

    def read(self) -> str:
        """See `Keyboard`."""
        return unquoted(self._session.prompt())


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("enter")
    @keys.add("c-j")  # Enter too, when it was pressed before the editor was there
    def _(event: Any) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif is_open(buffer.text):
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: Any) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _(event: Any) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys


def _history(path: Path | None) -> Any:
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _completer(complete: Complete) -> Any:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion
    from prompt_toolkit.document import Document

    class Words(Completer):
        """Adapts `complete` to prompt_toolkit."""

        def get_completions(self, document: Document, _event: CompleteEvent) -> Iterable[Completion]:
            for text, n_replaced, about in complete(document.text_before_cursor):
                yield Completion(text, start_position=-n_replaced, display_meta=about)

    return Words()
