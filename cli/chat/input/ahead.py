"""What was typed while nobody read, as it will stand at the next prompt: a message is followed key by key.

The keys themselves stay where they are, and the prompt gets them; this only tells what they amount to. History and
completion are the prompt's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from specgguf.cli.chat.input.paste import Pastes
from specgguf.cli.chat.input.prompt import is_open

_PASTE = re.compile("\x1b\\[200~(.*?)(?:\x1b\\[201~|$)", re.S)
_KEYS = re.compile(
    "\x1b\\[200~[\\s\\S]*?(?:\x1b\\[201~|$)|\x1b\\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|\x1b[\\s\\S]|[^\x00-\x1f\x7f]+|[\\s\\S]"
)
_NEW_LINE = re.compile("\x1b[\r\n]|\x1b\\[13;[234]u|\x1b\\[27;[234];13~")
LEFT, RIGHT = ("\x1b[D", "\x1bOD", "\x02"), ("\x1b[C", "\x1bOC", "\x06")
HOME, END = ("\x1b[H", "\x1bOH", "\x1b[1~", "\x01"), ("\x1b[F", "\x1bOF", "\x1b[4~", "\x05")
ERASE, DELETE = "\x7f\b", "\x1b[3~"


@dataclass
class Ahead:
    """See the module.

    Attributes:
        queued: messages that Enter ended.
        text, cursor: the one that is being typed, and where in it.
    """

    queued: list[str] = field(default_factory=list)
    text: str = ""
    cursor: int = 0
    _ended: list[str] = field(default_factory=list)  # those messages in full, with what was folded in them
    _pastes: Pastes = field(default_factory=Pastes)

    @classmethod
    def of(cls, bursts: Sequence[bytes]) -> Ahead:
        """What `bursts` of keys amount to."""
        ahead = cls()
        for key in _KEYS.findall(b"".join(bursts).decode("utf-8", "replace")):
            ahead.press(key)
        return ahead

    @property
    def messages(self) -> list[str]:
        """All of it in full, with the one that is being typed."""
        return [*self._ended, *([self._pastes.expand(self.text)] if self.text.strip() else [])]

    def press(self, key: str) -> None:
        """One key, a paste, or several characters that nothing stands between."""
        if paste := _PASTE.fullmatch(key):
            self._insert(self._pastes.take(paste[1], first=not self.text))
        elif key in "\r\n":
            self._enter()
        elif _NEW_LINE.fullmatch(key):
            self._insert("\n")
        elif key in ERASE:
            folded = self._pastes.fold_before(self.text[: self.cursor])
            self._erase(len(folded) or 1)
        elif key == DELETE:
            self.text = self.text[: self.cursor] + self.text[self.cursor + 1 :]
        elif key == "\x17":
            before = self.text[: self.cursor]
            self._erase(len(before) - (before.rstrip().rfind(" ") + 1))
        elif key == "\x15":
            self._erase(self.cursor)
        elif key == "\x0b":
            self.text = self.text[: self.cursor]
        else:
            self._move(key)

    def _move(self, key: str) -> None:
        if key in LEFT or key in RIGHT:
            self.cursor = min(max(self.cursor + (1 if key in RIGHT else -1), 0), len(self.text))
        elif key in HOME or key in END:
            self.cursor = 0 if key in HOME else len(self.text)
        elif not key.startswith("\x1b"):
            self._insert("".join(character for character in key if character.isprintable()))

    def _enter(self) -> None:
        if is_open(self.text) and not self._pastes.begins(self.text):
            self._insert("\n")
            return
        if self.text.strip():
            self.queued.append(self.text)
            self._ended.append(self._pastes.expand(self.text))
        self.text, self.cursor = "", 0
        self._pastes.clear()

    def _insert(self, text: str) -> None:
        self.text = self.text[: self.cursor] + text + self.text[self.cursor :]
        self.cursor += len(text)

    def _erase(self, n: int) -> None:
        n = min(n, self.cursor)
        self.text = self.text[: self.cursor - n] + self.text[self.cursor :]
        self.cursor -= n
