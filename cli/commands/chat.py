"""`specgguf chat`: reads the flags, opens the engine, and hands over to one answer or a conversation."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import click
from specgguf.cli import open_pair
from specgguf.cli.chat import loop, oneshot, sessions
from specgguf.cli.chat.autosave import Autosave
from specgguf.cli.chat.conversation import Conversation
from specgguf.cli.chat.display import Display
from specgguf.cli.chat.loop import ChatSession
from specgguf.cli.chat.sessions import Session
from specgguf.cli.options import GroupedCommand, SectionOption, options
from specgguf.cli.settings import Settings, gather
from specgguf.cli.terminal import console
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import ConfigError

ONE_SHOT = "one-shot"  # the latest single question is kept under this name, for --continue


def _complete_session(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in sessions.names() if name.startswith(incomplete)]


@click.command(cls=GroupedCommand)
@click.argument("question", nargs=-1)
@options("Models")
@click.option("--yes", "-y", is_flag=True, cls=SectionOption, section="Models", help="Download without asking.")
@options("Drafting", "Conversation")
@click.option(
    "--continue",
    "-C",
    "continue_",
    is_flag=True,
    cls=SectionOption,
    section="Conversation",
    help="Go on with the latest conversation.",
)
@click.option(
    "--resume",
    metavar="NAME",
    cls=SectionOption,
    section="Conversation",
    help="Go on with a saved conversation.",
    shell_complete=_complete_session,
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    cls=SectionOption,
    section="Display",
    help="One chat.completion object per answer on stdout.",
)
@click.option(
    "--quiet",
    "-q",
    is_flag=True,
    cls=SectionOption,
    section="Display",
    help="Nothing on stderr but warnings and errors.",
)
@options("Display", "Sampling", "Hardware")
def chat(
    question: tuple[str, ...],
    yes: bool,
    continue_: bool,
    resume: str | None,
    as_json: bool,
    quiet: bool,
    **flags: Any,
) -> int:
    """Talk to a model. With a QUESTION, or text on stdin, answer it and end.

    \b
      specgguf chat                               a conversation
      specgguf chat "What is a mutex?"            one answer
      git diff | specgguf chat "Review this"      stdin follows the question
      specgguf chat -m FILE -d FILE --highlight   your pair; see who wrote what
    """
    settings = gather(flags)
    settings.sampling()  # out of range: say so at once
    status = StatusOutput(console.style_for(sys.stderr, settings["color"]), quiet=quiet)
    text = oneshot.read_question(question)
    system = read_system(settings)
    autosave = Autosave(status, enabled=settings["save"], slot=ONE_SHOT if text is not None else "")
    session = _session(continue_, resume, settings, autosave)
    if text is None:
        _tell_crashes(status)
    with contextlib.closing(autosave):
        loaded = open_pair.open_engine(settings, status, yes=yes)
        with contextlib.closing(loaded.engine):
            conversation = Conversation(loaded, settings, status, autosave)
            display = Display(settings, status, as_json=as_json)
            debug = bool(click.get_current_context().find_root().obj)
            chat = ChatSession(conversation, display, status, settings, autosave, debug=debug)
            if session is not None:
                conversation.resume(session.messages, session.pending)
            if system and (session is None or settings.given_here("system")):
                conversation.set_system(system)
            return loop.run(chat, session) if text is None else oneshot.run(chat, text)


def _session(continue_: bool, resume: str | None, settings: Settings, autosave: Autosave) -> Session | None:
    """The conversation to go on with, opened; its models and settings enter `settings`."""
    if continue_ and resume:
        raise click.UsageError("--continue and --resume exclude each other")
    if continue_:
        names = sessions.names()
        if not names:
            raise ConfigError("there is no conversation to go on with", hint="specgguf chat starts one")
        resume = names[0]
    if not resume:
        return None
    session = sessions.load(resume)
    autosave.open(session)
    values = dict(session.settings)
    if session.model and not any(settings.given_here(name) for name in ("model", "preset", "draft_model")):
        values.update(model=session.model, draft_model=session.draft_model or "none")
    settings.resumed(values, session.name)
    return session


def _tell_crashes(status: StatusOutput) -> None:
    for session in sessions.crashed():
        status.warn(
            f"'{session.name}' ended in mid-answer; its question is kept: specgguf chat --resume '{session.name}'"
        )


def read_system(settings: Settings) -> str:
    """The system prompt that the settings name, read from its file where it is @FILE."""
    text: str = settings["system"] or ""
    if not text.startswith("@"):
        return text
    path = Path(text[1:]).expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise ConfigError(f"--system @{path}: {reason.lower()}") from error
