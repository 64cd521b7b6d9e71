"""What is typed at the prompt, and what of it is sent: three typed quotes open a text of many lines that three quotes
close; what is pasted is sent exactly as it was pasted. Knows nothing of what the words mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from specgguf.cli.terminal.status import StatusOutput

QUOTES = '"""'
PROMPT, PLAIN_PROMPT = "> ", "You: "
MORE = "… "

# Given the words typed so far, what could stand next: (text, replaced characters, description).
Complete = Callable[[str], Iterable[tuple[str, int, str]]]


class Typed(NamedTuple):
    """A message as it is to be sent. `literal`: its beginning was pasted or quoted, so it is no command."""

    text: str
    literal: bool = False


class Reader(Protocol):
    """Where messages come from."""

    def read(self) -> Typed:
        """The next message. Raises EOFError at Ctrl-D, KeyboardInterrupt at Ctrl-C on an empty line."""

    def close(self) -> None:
        """No more is read: what was typed and not sent goes into the history."""


def is_open(text: str) -> bool:
    """Whether `text` opened three quotes that are not closed."""
    start = text.lstrip()
    if not start.startswith(QUOTES):
        return False
    return not start[len(QUOTES) :].rstrip().endswith(QUOTES)


def typed(text: str, *, literal: bool = False) -> Typed:
    """The message that `text` is: without its three quotes, where it has them and is not to be taken literally."""
    body = text.strip()
    if not literal and body.startswith(QUOTES) and body.endswith(QUOTES) and len(body) >= 2 * len(QUOTES):
        return Typed(body[len(QUOTES) : -len(QUOTES)].strip("\n"), literal=True)
    return Typed(text, literal)


def readable(text: str, status: StatusOutput) -> str:
    """`text` with what is no UTF-8 replaced, and that said."""
    whole = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if whole.count("\ufffd") > text.count("\ufffd"):
        status.warn("the message held bytes that are not UTF-8; \ufffd stands in their place")
    return whole
