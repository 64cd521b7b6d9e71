"""Reads messages in a terminal that cannot move its cursor: no escape sequences; lines that arrive together are one
message, as they were pasted. Without a terminal to hold it takes line by line.
"""

from __future__ import annotations

import codecs
import sys

from specgguf.cli.chat.input.prompt import MORE, PROMPT, Typed, is_open, readable, typed
from specgguf.cli.keyboard import TOGETHER_S, Keyboard
from specgguf.cli.terminal.status import StatusOutput

ERASE_CHARACTER, ERASE_WORD, ERASE_LINE, END = "\x7f\b", "\x17", "\x15", "\x04"


class PlainReader:
    """See the module; a `Reader`."""

    def __init__(self, keyboard: Keyboard, status: StatusOutput, prompt: str = PROMPT) -> None:
        self._keyboard = keyboard
        self._status = status
        self._prompt = prompt

    def read(self) -> Typed:
        """See `Reader`."""
        if not self._keyboard.held:
            return self._lines()
        with self._keyboard.reading():
            while True:
                self._status.raw(self._prompt)
                line = _Line(self._keyboard, self._status)
                try:
                    return line.read()
                except KeyboardInterrupt:
                    if not line.text:
                        raise
                    self._status.raw("^C\n")

    def close(self) -> None:
        """See `Reader`; there is no history here."""

    def _lines(self) -> Typed:
        text = self._line(self._prompt)
        while is_open(text):
            text += "\n" + self._line(MORE)
        return typed(readable(text, self._status))

    def _line(self, prompt: str) -> str:
        self._status.raw(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")


class _Line:
    """One message while it is typed: a line that grows to several where they are pasted or quoted."""

    def __init__(self, keyboard: Keyboard, status: StatusOutput) -> None:
        self.text = ""
        self._keyboard = keyboard
        self._status = status
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._pasted = False  # more than one line arrived together

    def read(self) -> Typed:
        """Until Enter, and nothing after it. Raises EOFError at Ctrl-D on an empty line."""
        burst = self._keyboard.take()
        while True:
            at_once = bool(burst)
            data = burst or self._keyboard.wait()
            burst = b""
            if not data:
                raise EOFError
            self._take(data)
            while not at_once and self.text.endswith("\n") and (data := self._keyboard.wait(TOGETHER_S)):
                self._pasted = True
                self._take(data)
            if not self.text.endswith("\n"):
                burst = self._keyboard.take()
                continue
            text = self.text[:-1]
            if self._pasted or not is_open(text):
                return typed(readable(text, self._status), literal=self._pasted)
            self._show(MORE)

    def _take(self, data: bytes) -> None:
        characters = self._decoder.decode(data).replace("\r\n", "\n").replace("\r", "\n")
        self._pasted = self._pasted or "\n" in characters[:-1]
        for character in characters:
            if character in ERASE_CHARACTER:
                self._erase(1)
            elif character == ERASE_WORD:
                self._erase(len(self._line()) - self._line().rstrip().rfind(" ") - 1)
            elif character == ERASE_LINE:
                self._erase(len(self._line()))
            elif character == END and not self.text:
                raise EOFError
            elif character != END:
                self.text += character
                self._show(character)

    def _line(self) -> str:
        return self.text.rpartition("\n")[2]

    def _erase(self, n: int) -> None:
        n = min(n, len(self._line()))
        if n:
            self.text = self.text[:-n]
            self._show("\b \b" * n)

    def _show(self, text: str) -> None:
        if self._keyboard.echoes:
            self._status.raw(text.encode("utf-8", "replace").decode())
