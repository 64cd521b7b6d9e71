"""The line editor, prompt_toolkit's: history, completion, many lines, bracketed paste that is sent as it was pasted.

What was typed before the prompt appeared is fed to it first.
"""

from __future__ import annotations

import codecs
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding import KeyBindings
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import ColorDepth, create_output
from prompt_toolkit.shortcuts import CompleteStyle
from specgguf.cli.chat.input.ahead import Ahead
from specgguf.cli.chat.input.paste import Pastes
from specgguf.cli.chat.input.prompt import MORE, PROMPT, Complete, Typed, is_open, readable, typed
from specgguf.cli.keyboard import Keyboard
from specgguf.cli.terminal.status import StatusOutput

# Shift-Enter and Alt-Enter, as terminals report them in xterm's and in kitty's way: a new line.
for _modifier in (2, 3, 4):
    for _sequence in (f"\x1b[13;{_modifier}u", f"\x1b[27;{_modifier};13~"):
        ANSI_SEQUENCES[_sequence] = (Keys.Escape, Keys.ControlM)


class LineEditor:
    """See the module; a `Reader`."""

    def __init__(
        self, keyboard: Keyboard, status: StatusOutput, *, history: Path | None, complete: Complete, color: bool
    ) -> None:
        self._keyboard = keyboard
        self._status = status
        self._history = open_history(history)
        self._pastes = Pastes()
        self._input = _Input(sys.stdin)
        self._literal = False
        self._session: PromptSession[str] = PromptSession(
            [("bold", PROMPT)],
            multiline=True,
            prompt_continuation=lambda _width, _line, _wrapped: MORE,
            history=self._history,
            completer=_Words(complete),
            complete_while_typing=False,
            complete_style=CompleteStyle.MULTI_COLUMN,
            reserve_space_for_menu=6,
            enable_open_in_editor=True,
            enable_suspend=True,
            tempfile_suffix=".md",
            key_bindings=self._keys(),
            input_processors=[TabsProcessor(char1=" ", char2=" ")],
            color_depth=None if color else ColorDepth.DEPTH_1_BIT,
            input=self._input,
            output=create_output(always_prefer_tty=True),
        )

    def read(self) -> Typed:
        """See `Reader`."""
        self._pastes.clear()
        self._literal = False
        with self._keyboard.reading():
            while burst := self._keyboard.take():
                store_typeahead(self._input, self._input.parse(burst))
            line = self._session.prompt()
        return typed(readable(self._pastes.expand(line), self._status), literal=self._literal)

    def close(self) -> None:
        """See `Reader`."""
        bursts = []
        with self._keyboard.reading():
            while burst := self._keyboard.take():
                bursts.append(burst)
        append(self._history, Ahead.of(bursts).messages)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("enter")
        @keys.add("c-j")
        def _(event: Any) -> None:
            buffer = event.current_buffer
            pasted = self._pastes.begins(buffer.text)
            if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
                buffer.complete_state = None
            elif is_open(buffer.text) and not pasted:
                buffer.insert_text("\n")
            else:
                self._literal = pasted
                append(self._history, [self._pastes.expand(buffer.text)])
                event.app.exit(result=buffer.text)

        @keys.add("escape", "enter")
        def _(event: Any) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add(Keys.BracketedPaste)
        def _(event: Any) -> None:
            buffer = event.current_buffer
            buffer.insert_text(self._pastes.take(event.data, first=not buffer.text))

        @keys.add("backspace")
        def _(event: Any) -> None:
            buffer = event.current_buffer
            folded = self._pastes.fold_before(buffer.document.text_before_cursor)
            buffer.delete_before_cursor(count=len(folded) or event.arg)

        @keys.add("c-c")
        @keys.add("<sigint>")
        def _(event: Any) -> None:
            buffer = event.current_buffer
            if buffer.text:
                append(self._history, [self._pastes.expand(buffer.text)])
                self._pastes.clear()
                buffer.reset()
            else:
                event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

        return keys


class _Input(Vt100Input):
    """The terminal, with a way in for bytes that were read from it before."""

    def __init__(self, stdin: Any) -> None:
        super().__init__(stdin)
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def parse(self, data: bytes) -> list[Any]:
        """The keys that `data` stands for; what it leaves unfinished is finished by what is read next."""
        self.vt100_parser.feed(self._decoder.decode(data))
        keys, self._buffer = self._buffer, []
        return keys


class _Words(Completer):
    """Adapts `complete` to prompt_toolkit."""

    def __init__(self, complete: Complete) -> None:
        self._complete = complete

    def get_completions(self, document: Document, _event: CompleteEvent) -> Iterable[Completion]:
        for text, n_replaced, about in self._complete(document.text_before_cursor):
            yield Completion(text, start_position=-n_replaced, display_meta=about)


def append(history: History, messages: Iterable[str]) -> None:
    """Keep `messages`, but one that was just kept."""
    for message in messages:
        text = message.encode("utf-8", "replace").decode()
        if text.strip() and history.get_strings()[-1:] != [text]:
            history.append_string(text)


def open_history(path: Path | None) -> History:
    """The history in the file `path`, or one that is forgotten."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
