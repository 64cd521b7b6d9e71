"""The slash commands, in one table: names, help, completion and what they do.

A command gets the chat (see `chat_session`) and the words after its name. It may return a text, which is then
asked as if it had been typed. What it says goes to stderr.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specgguf.cli.chat.actions import context, files, keep, race, settings, turns
from specgguf.cli.options import HIGHLIGHTS
from specgguf.cli.terminal import console

from specgguf.config import did_you_mean
from specgguf.errors import ConfigError

if TYPE_CHECKING:
    from specgguf.cli.chat.chat_session import ChatSession

Run = Callable[["ChatSession", str], str | None]


@dataclass(frozen=True)
class Command:
    """One slash command.

    Attributes:
        argument: how its argument is written in `/help`; "" when it takes none.
        section: the heading in `/help`.
        choices: what its argument may be, for completion: words, or a function of the chat.
    """

    name: str
    argument: str
    section: str
    help: str
    run: Run
    choices: tuple[str, ...] | Callable[[ChatSession, str], Iterable[str]] = ()


COMMANDS: tuple[Command, ...] = (
    Command("draft", "off|auto|N", "Draft", "switch drafting off or on, or always draft N tokens", settings.draft,
            ("auto", "off", "4")),
    Command("highlight", "[STYLE|off]", "Draft", "show which words the draft wrote: green, underline or bold",
            settings.highlight, ("on", "off", *HIGHLIGHTS)),
    Command("stats", "", "Draft", "how often drafts were accepted, and where the time went", settings.stats,
            ("on", "off")),
    Command("race", "", "Draft", "the last question again, plain and drafted, without keeping it", race.race),
    Command("undo", "", "Turns", "take the last question and its answer back", turns.undo),
    Command("redo", "", "Turns", "bring back what /undo took", turns.redo),
    Command("retry", "", "Turns", "answer the last question again; the old answer is kept", turns.retry),
    Command("more", "", "Turns", "go on with an answer that was cut or stopped", turns.more),
    Command("prev", "", "Turns", "turn to the answer before this one, of several to the last question",
            turns.previous),
    Command("next", "", "Turns", "turn to the answer after this one", turns.next_),
    Command("edit", "", "Turns", "write a message in $EDITOR (after /undo: starts from that question)",
            turns.edit),
    Command("file", "[PATH…|rm N]", "Turns", "send text files with your next message; list them, take one off",
            files.file, files.complete_path),
    Command("clear", "", "Turns", "start a new conversation; the old one stays saved", keep.clear),
    Command("save", "[NAME]", "Keep", "give this conversation a name (it is saved as you go)", keep.save),
    Command("load", "[NAME|N]", "Keep", "go on with a saved conversation; alone: the latest ones, numbered",
            keep.load, keep.complete_session),
    Command("copy", "[code|N|all]", "Keep", "the last answer, its code, the Nth or all to the clipboard", keep.copy,
            ("code", "all")),
    Command("write", "FILE", "Keep", "write the last answer to a file", keep.write, files.complete_path),
    Command("system", "[TEXT|@FILE]", "Settings", "show or set the system prompt; 'none' removes it", settings.system,
            ("none",)),
    Command("set", "[NAME VALUE]", "Settings", "show or change temperature, top_p, max_tokens, seed …",
            settings.set_, settings.complete_set),
    Command("think", "on|off|dim|show|hide", "Settings", "let the model reason or not; how that is displayed",
            settings.think, ("on", "off", "dim", "show", "hide")),
    Command("model", "[REF [DRAFT]]", "Settings", "show the models, those here by number, or go on with others",
            settings.model, settings.complete_model),
    Command("context", "", "Settings", "what fills the context", context.context),
    Command("compact", "[undo]", "Settings", "send a summary instead of what was said before the last turn",
            context.compact, ("undo",)),
    Command("help", "[NAME]", "Leave", "this list, or one command", lambda chat, words: show_help(chat, words)),
    Command("exit", "", "Leave", "leave; specgguf chat --continue comes back", turns.leave),
)  # fmt: skip

ALIASES = {"quit": "exit", "bye": "exit", "q": "exit", "?": "help", "h": "help", "new": "clear"}
BY_NAME = {command.name: command for command in COMMANDS}

KEYS = (
    ("Enter", "send"),
    ("Alt-Enter, Shift-Enter", 'new line; or begin with """ and end with """'),
    ("Ctrl-C", "stop the answer; twice: leave"),
    ("Ctrl-D", "leave"),
    ("@path", "in a message: the file goes along with it"),
    ("Tab, ↑, Ctrl-R", "complete; earlier messages; search them"),
    ("a space, then /text", "send it as a message; what is pasted is never a command"),
)


_COMMAND = re.compile(r"/([A-Za-z]+|\?)(?=\s|$)")


def is_command(text: str) -> bool:
    """Whether `text` is a command: a slash and a word, not a path, a comment, or a text of many lines."""
    found = _COMMAND.match(text)
    if found is None:
        return False
    name = found[1].lower()
    return name in BY_NAME or name in ALIASES or not ("\n" in text.strip() or Path(found[0]).exists())


def dispatch(chat: ChatSession, line: str) -> str | None:
    """Do what `line` ("/name words") says; a returned text is to be asked."""
    name, *words = line[1:].split(maxsplit=1)
    name = ALIASES.get(name.lower(), name.lower())
    command = BY_NAME.get(name)
    if command is None:
        near = difflib.get_close_matches(name, [*BY_NAME, *ALIASES], n=1, cutoff=0.5)
        hint = f"did you mean /{near[0]}? " if near else ""
        chat.status.error(
            f"there is no command /{name}", f"{hint}/help lists them; a space before the slash sends it as text"
        )
        return None
    return command.run(chat, "".join(words).strip())


def show_help(chat: ChatSession, words: str = "") -> None:
    """The table, for people, or one row of it."""
    name = words.lstrip("/").lower()
    if found := BY_NAME.get(ALIASES.get(name, name)):
        _row(chat, _usage(found), found.help)
        return
    if name:
        raise ConfigError(f"there is no command /{name}", hint=did_you_mean(name, BY_NAME) or "/help lists them")
    for section in dict.fromkeys(command.section for command in COMMANDS):
        chat.status.tell(chat.status.style.bold(section))
        for command in COMMANDS:
            if command.section == section:
                _row(chat, _usage(command), command.help)
    chat.status.tell(chat.status.style.bold("Keys"))
    for key, what in KEYS:
        _row(chat, key, what)


def _row(chat: ChatSession, left: str, right: str) -> None:
    """One row of the help, its right side wrapped where the terminal is narrow."""
    start = max(len(_usage(command)) for command in COMMANDS) + 4
    columns = console.width(chat.status.stream) - start - 1
    first, *more = console.rows(right, max(columns, 24))
    chat.status.tell(f"  {left:<{start - 2}}{chat.status.style.dim(first)}")
    for row in more:
        chat.status.tell(" " * start + chat.status.style.dim(row))


def _usage(command: Command) -> str:
    return f"/{command.name} {command.argument}".rstrip()


def complete(chat: ChatSession, text: str) -> Iterable[tuple[str, int, str]]:
    """What may follow `text`: command names, and a command's arguments."""
    mention = text[text.rfind(" ") + 1 :].rpartition("\n")[2]
    if mention.startswith("@") and len(mention) > 1:
        for path in files.complete_path(chat, mention[1:]):
            if path.startswith(mention[1:]):
                yield f"@{path}", len(mention), ""
        return
    if not text.startswith("/") or "\n" in text:
        return
    name, space, words = text[1:].partition(" ")
    if not space:
        for command in COMMANDS:
            if command.name.startswith(name):
                yield command.name + (" " if command.argument else ""), len(name), command.help
        return
    known = BY_NAME.get(ALIASES.get(name, name))
    if known is None:
        return
    choices = known.choices(chat, words) if callable(known.choices) else known.choices
    for choice in choices:
        if choice.startswith(words):
            yield choice, len(words), ""
