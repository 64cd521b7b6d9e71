"""`specgguf chat`: reads the flags, opens the engine, and hands over to one answer or a conversation."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import click
from specgguf.cli import engine, oneshot, terminal
from specgguf.cli.display import Display
from specgguf.cli.notes import Notes
from specgguf.cli.options import GroupedCommand, SectionOption, options
from specgguf.cli.settings import Settings, gather
from specgguf.cli.talk import Talk

from specgguf.errors import ConfigError


@click.command(cls=GroupedCommand)
@click.argument("question", nargs=-1)
@options("Models")
@click.option("--yes", "-y", is_flag=True, cls=SectionOption, section="Models", help="Download without asking.")
@options("Drafting", "Conversation")
@click.option("--json", "as_json", is_flag=True, cls=SectionOption, section="Display",
              help="One chat.completion object per answer on stdout.")  # fmt: skip
@click.option("--quiet", "-q", is_flag=True, cls=SectionOption, section="Display",
              help="Nothing on stderr but warnings and errors.")  # fmt: skip
@options("Display", "Sampling", "Hardware")
def chat(question: tuple[str, ...], yes: bool, as_json: bool, quiet: bool, **flags: Any) -> int:
    """Talk to a model. With a QUESTION, or text on stdin, answer it and end.

    \b
      specgguf chat                                  a conversation
      specgguf chat "What is a mutex?"               one answer
      git diff | specgguf chat "Review this change"  text on stdin follows the question
      specgguf chat -m FILE -d FILE --highlight      your own pair; see who wrote what
    """
    settings = gather(flags)
    settings.sampling()
    notes = Notes(terminal.ink_for(sys.stderr, settings["color"]), quiet=quiet)
    text = oneshot.read_question(question)
    system = read_system(settings)
    loaded = engine.open_engine(settings, notes, yes=yes)
    with contextlib.closing(loaded.engine):
        talk = Talk(loaded, settings, notes)
        talk.set_system(system)
        display = Display(settings, notes, as_json=as_json)
        if text is not None:
            return oneshot.run(talk, display, text)
        raise click.UsageError("no conversation yet: give a question")


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
