"""Which reader a terminal gets: an editor where it can move its cursor, a plain one where it cannot."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from specgguf.cli.chat.input import prompt
from specgguf.cli.keyboard import Keyboard
from specgguf.cli.terminal.status import StatusOutput


def capable() -> bool:
    """Whether the terminal can move its cursor."""
    seen = sys.stdout.isatty() or sys.stderr.isatty()
    return seen and os.environ.get("TERM", "") not in ("", "dumb")


def open_reader(
    keyboard: Keyboard,
    status: StatusOutput,
    *,
    history: Path | None,
    complete: prompt.Complete,
    color: bool,
    plain: bool = False,
) -> prompt.Reader:
    """The best reader that the terminal allows; with `plain` the one that moves no cursor, and prompts in words."""
    if capable() and not plain and keyboard.held:
        from specgguf.cli.chat.input.editor import LineEditor

        return LineEditor(keyboard, status, history=history, complete=complete, color=color)
    from specgguf.cli.chat.input.plain import PlainReader

    return PlainReader(keyboard, status, prompt.PLAIN_PROMPT if plain else prompt.PROMPT)


def remember(history: Path | None, bursts: Sequence[bytes]) -> None:
    """Put what was typed and never sent into the file `history`, where there is one."""
    from specgguf.cli.chat.input import editor
    from specgguf.cli.chat.input.ahead import Ahead

    if history is not None:
        editor.append(editor.open_history(history), Ahead.of(bursts).messages)
