"""Which reader a terminal gets: an editor where it can move its cursor, a plain one where it cannot."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from specgguf.cli.chat.input import prompt
from specgguf.cli.keyboard import Keyboard
from specgguf.cli.terminal.status import StatusOutput


def capable() -> bool:
    """Whether the terminal can move its cursor."""
    seen = sys.stdout.isatty() or sys.stderr.isatty()
    return seen and os.environ.get("TERM", "") not in ("", "dumb")


def open_reader(
    keyboard: Keyboard, status: StatusOutput, *, history: Path | None, complete: prompt.Complete, color: bool
) -> prompt.Reader:
    """The best reader that the terminal allows."""
    if capable() and keyboard.held:
        from specgguf.cli.chat.input.editor import LineEditor

        return LineEditor(keyboard, status, history=history, complete=complete, color=color)
    from specgguf.cli.chat.input.plain import PlainReader

    return PlainReader(keyboard, status)
