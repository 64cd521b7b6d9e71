"""`specgguf chat`: reads the flags, opens the engine, and hands over to one answer or a conversation."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import click
from specgguf.cli import open_pair
from specgguf.cli.chat import loop, oneshot, resume
from specgguf.cli.chat.chat_session import ChatSession
from specgguf.cli.chat.conversation import Conversation
from specgguf.cli.chat.display import Display
from specgguf.cli.chat.input import attachments, reader
from specgguf.cli.chat.saved import sessions
from specgguf.cli.chat.saved.autosave import Autosave
from specgguf.cli.chat.saved.sessions import Session
from specgguf.cli.click_options import GroupedCommand, SectionOption, options
from specgguf.cli.keyboard import Keyboard, agreed
from specgguf.cli.settings import Settings, gather
from specgguf.cli.terminal import console
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import ModelNotFound
from specgguf.fit.hardware import others_keep_busy


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
    "resume_",
    metavar="NAME",
    cls=SectionOption,
    section="Conversation",
    help="Go on with a saved conversation.",
    shell_complete=_complete_session,
)
@click.option(
    "--file",
    "-f",
    "files",
    multiple=True,
    type=click.Path(),
    cls=SectionOption,
    section="Conversation",
    help="Send a text file with the (first) question; may be given several times.",
)
@click.option(
    "--schema",
    metavar="FILE",
    cls=SectionOption,
    section="Conversation",
    help="Answer in JSON that validates against the JSON schema in FILE.",
)
@click.option(
    "--grammar",
    metavar="FILE",
    cls=SectionOption,
    section="Conversation",
    help="Answer within the GBNF grammar in FILE.",
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
    resume_: str | None,
    files: tuple[str, ...],
    schema: str | None,
    grammar: str | None,
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
    status = StatusOutput(console.style_for(sys.stderr, settings["color"], plain=settings["plain"]), quiet=quiet)
    shape = oneshot.answer_shape(schema, grammar)
    text = oneshot.read_question(question, asked_by="--resume" if resume_ else "--continue" if continue_ else "")
    system = attachments.given_text(settings["system"] or "", "--system")
    autosave = Autosave(status, enabled=settings["save"], slot=sessions.ONE_SHOT if text is not None else "")
    session = _session(continue_, resume_, settings, autosave, status)
    if text is None:
        _tell_crashes(status)
    with contextlib.ExitStack() as held:
        history = loop.history_of(settings)
        keyboard = Keyboard(
            bracketed_paste=reader.capable() and not settings["plain"],
            unsent=lambda bursts: reader.remember(history, bursts),
        )
        held.enter_context(loop.orderly_end())
        if text is None:
            held.enter_context(keyboard)
        held.enter_context(contextlib.closing(autosave))
        busy = others_keep_busy() if text is None else ""  # before this program is one of those that run
        try:
            loaded = open_pair.open_engine(settings, status, yes=yes, brief=text is not None)
        except ModelNotFound as error:
            raise resume.without_its_model(session, settings, error) from error
        conversation = Conversation(loaded, settings, status, autosave, shape=shape)
        held.callback(lambda: conversation.loaded.engine.close())  # by then /model may have put another there
        if keyboard.held:
            conversation.agreed = lambda question: agreed(status, question)
        chat = _chat_session(conversation, status, settings, autosave, as_json=as_json)
        if session is not None:
            conversation.take_up(session)
        if system and (session is None or settings.given_here("system")):
            conversation.set_system(system)
        open_pair.check_template(loaded)
        for path in files:
            chat.attach(Path(path).expanduser())
        if busy:
            status.say(f"{busy}: answers will be slow")
        return loop.run(chat, keyboard, session) if text is None else oneshot.run(chat, text)


def _chat_session(
    conversation: Conversation, status: StatusOutput, settings: Settings, autosave: Autosave, *, as_json: bool
) -> ChatSession:
    display = Display(settings, status, as_json=as_json)
    conversation.quietly = display.show_quietly
    debug = bool(click.get_current_context().find_root().obj)
    return ChatSession(conversation, display, status, settings, autosave, debug=debug)


def _session(
    continue_: bool, name: str | None, settings: Settings, autosave: Autosave, status: StatusOutput
) -> Session | None:
    """The conversation to go on with, opened; its models and settings enter `settings`."""
    if continue_ and name:
        raise click.UsageError("--continue and --resume exclude each other")
    if not continue_ and not name:
        return None
    session = sessions.load(name) if name else resume.latest(status)
    session = resume.own_name(session) if settings["save"] else session
    autosave.open(session)
    pair = resume.take_settings(session, settings)
    if pair is not None:
        for key, value in zip(("model", "draft_model"), pair, strict=True):
            settings.put(key, value, f"conversation {session.name}")
    return session


def _tell_crashes(status: StatusOutput) -> None:
    for session in sessions.crashed():
        again = f"specgguf chat --resume '{session.name}'"
        status.warn(f"'{session.name}' ended in mid-answer; what was asked and answered is kept: {again}")
