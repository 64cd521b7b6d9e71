"""One question from the command line or stdin, one answer on stdout, and the end."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click
from specgguf.cli import exits
from specgguf.cli.chat.chat_session import ChatSession
from specgguf.cli.chat.input import attachments

from specgguf.errors import ConfigError

STDIN = "-"
OPENAI_KEYS = {"schema", "strict", "name", "description"}  # of a schema's envelope; "schema" is no keyword of schemas


def read_question(words: Sequence[str], *, asked_by: str = "") -> str | None:
    """The question in `words` and stdin; None when there is none and a person sits at the keyboard.

    Text that is piped in follows the words after a blank line; "-" stands for stdin alone.

    Args:
        asked_by: the flag that wants a conversation to be gone on with.

    Raises:
        click.UsageError: there is nothing to ask.
    """
    said = " ".join(words).encode("utf-8", "surrogateescape").decode("utf-8", "replace").strip()
    at_keyboard = sys.stdin is not None and sys.stdin.isatty()
    if at_keyboard and said != STDIN:
        if words and not said:
            raise click.UsageError("the question is empty")
        return said or None
    piped = "" if sys.stdin is None else _read_stdin()
    parts = [part for part in ("" if said == STDIN else said, piped) if part.strip()]
    if not parts and asked_by:
        raise click.UsageError(f"{asked_by} goes on in a terminal, or with a question behind it: stdin is neither")
    if not parts:
        raise click.UsageError("nothing to ask: no question was given and stdin is empty")
    return "\n\n".join(parts)


def answer_shape(schema: str | None, grammar: str | None) -> dict[str, Any]:
    """What every answer is held to, from the files of --schema and --grammar, as the engine's keywords.

    A schema may stand in the file as it is, or in OpenAI's shape: {"schema": …, "strict": false}.

    Raises:
        ConfigError: a file cannot be read, or is no JSON.
    """
    if schema and grammar:
        raise click.UsageError("--schema and --grammar exclude each other")
    if grammar:
        return {"grammar": attachments.named_text(grammar, "--grammar ")}
    if not schema:
        return {}
    try:
        content = json.loads(attachments.named_text(schema, "--schema "))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"--schema {schema} is not JSON: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("schema"), dict) and not content.keys() - OPENAI_KEYS:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **content}}}
    return {"response_format": {"type": "json_object", "schema": content}}


def _read_stdin() -> str:
    buffer = getattr(sys.stdin, "buffer", None)
    text = buffer.read().decode("utf-8", "replace") if buffer is not None else sys.stdin.read()
    return str(text).removeprefix("\ufeff").rstrip("\n")


def run(chat: ChatSession, question: str) -> int:
    """Answer `question`; returns the exit code."""
    left = chat.conversation.still_unanswered
    chat.describe()
    chat.display.legend_once()
    try:
        answer = chat.conversation.send(chat.with_files(question), chat.display.show)
        chat.display.after(answer, chat.conversation.loaded.engine)
    finally:
        if left in chat.autosave.unanswered:
            shown = f"specgguf sessions show '{chat.autosave.name}'"
            chat.status.say(
                f"the question before this one got no answer and is set aside ({shown}): {chat.short(left)}"
            )
    return exits.INTERRUPTED if answer.interrupted else exits.OK
