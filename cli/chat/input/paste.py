"""What was pasted into the line: a large text is folded to its size there, and sent whole. Knows no editor."""

from __future__ import annotations

FOLD_LINES = 20
FOLD_CHARACTERS = 4000


class Pastes:
    """The pastes of one message."""

    def __init__(self) -> None:
        self._folded: dict[str, str] = {}
        self._start = ""

    def clear(self) -> None:
        """A new message begins."""
        self._folded, self._start = {}, ""

    def take(self, data: str, *, first: bool) -> str:
        """What stands in the line for `data`. `first`: nothing stands there yet, so that the message begins with it."""
        text = data.replace("\r\n", "\n").replace("\r", "\n")
        n_lines = len(text.rstrip("\n").split("\n"))
        shown = text
        if n_lines > FOLD_LINES or len(text) > FOLD_CHARACTERS:
            size = f"{n_lines:,} lines" if n_lines > 1 else f"{len(text):,} characters"
            shown, n = f"[{size}]", 1
            while shown in self._folded:
                n += 1
                shown = f"[{size}, {n}]"
            self._folded[shown] = text
        if first:
            self._start = shown
        return shown

    def expand(self, line: str) -> str:
        """`line` with everything that was folded in it."""
        for shown, text in self._folded.items():
            line = line.replace(shown, text, 1)
        return line

    def begins(self, line: str) -> bool:
        """Whether `line` still begins with what was pasted first."""
        return bool(self._start) and line.startswith(self._start[:8])

    def fold_before(self, text: str) -> str:
        """The folded paste that `text` ends with, to be erased as one; empty where it ends otherwise."""
        return next((shown for shown in self._folded if text.endswith(shown)), "")
