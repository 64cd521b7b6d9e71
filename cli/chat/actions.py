"""What each slash command does. The table in `commands` names them; errors are raised, the loop tells them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from specgguf.cli.chat import sessions
from specgguf.cli.options import BY_NAME, SETTINGS
from specgguf.cli.terminal import stats_view, console

from specgguf.config import parse_draft
from specgguf.errors import ConfigError

if TYPE_CHECKING:
    from specgguf.cli.chat.loop import Room

CONTEXT_BAR = 40
MAX_FILE = 2**26  # bytes


class Leave(Exception):
    """The user wants to leave."""


def leave(_room: Room, _words: str) -> None:
    """/exit"""
    raise Leave


def draft(room: Room, words: str) -> None:
    """/draft: show or set how drafting is decided."""
    engine = room.talk.loaded.engine
    if words:
        engine.draft = parse_draft(words)
        room.settings.put("draft", engine.draft, "by /draft")
    if not room.talk.loaded.draft_model:
        room.notes.tell("there is no draft model: every token is the target's own (/model REF DRAFT loads one)")
        return
    how = {
        "auto": "drafting is automatic: as many tokens as pay, none where it would slow you down",
        "off": "drafting is off: every token is the target's own",
    }
    n = engine.draft
    room.notes.tell(how[n] if isinstance(n, str) else f"drafting {stats_view.plural(n, 'token')} a round, always")


def highlight(room: Room, words: str) -> None:
    """/highlight: toggle, and show the last answer again in the new light."""
    on = not room.settings["highlight"]
    if words:
        on = BY_NAME["highlight"].parse(words, where="/highlight")
    room.settings.put("highlight", on, "by /highlight")
    if not on:
        room.notes.tell("highlighting is off")
        return
    room.notes.tell(f"highlighting is on: {room.display.legend()}")
    if room.talk.last is not None and room.talk.last.spans:
        room.display.again(room.talk.last)


def stats(room: Room, words: str) -> None:
    """/stats: the page; on or off switches the line after each answer."""
    if words:
        on = BY_NAME["stats"].parse(words, where="/stats")
        room.settings.put("stats", on, "by /stats")
        room.notes.tell(f"the line of statistics after each answer is {'on' if on else 'off'}")
        return
    engine = room.talk.loaded.engine
    columns = console.width(room.notes.stream) if room.notes.ink.tty else None
    for row in stats_view.page(engine.last, engine.stats, engine.n_ctx(), room.notes.ink, columns):
        room.notes.tell(row)


def undo(room: Room, _words: str) -> None:
    """/undo"""
    question = room.keeper.take_back(room.talk.messages, room.talk.undo())
    if not question:
        room.notes.tell("there is nothing to take back")
        return
    room.talk.undone = question
    room.notes.tell(f"took back: {room.short(question)} (/edit changes it, ↑ brings it back)")


def retry(room: Room, _words: str) -> str | None:
    """/retry"""
    question = room.talk.unanswered or room.talk.undo()
    if not question:
        room.notes.tell("there is nothing to answer again")
        return None
    return question


def edit(room: Room, _words: str) -> str | None:
    """/edit: what comes out of the editor takes the place of a question that got no answer."""
    import click

    start = room.talk.unanswered or room.talk.undone
    text = click.edit(start, extension=".md", require_save=not start)
    if text is None or not text.strip():
        room.notes.tell("nothing to send")
        return None
    room.notes.raw(f"{text.rstrip()}\n")
    if room.talk.lost:
        room.keeper.take_back(room.talk.messages, room.talk.undo())
    return text.strip()


def file(room: Room, words: str) -> None:
    """/file PATH: hold a text for the next message."""
    if not words:
        raise ConfigError("/file needs the path of a text file")
    path = Path(words.strip("'\"")).expanduser()
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigError(f"{path} is not a file")  # a device or a pipe may never end
        if path.stat().st_size > MAX_FILE:
            raise ConfigError(f"{path} is larger than {MAX_FILE // 2**20} MiB")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text") from error
    except OSError as error:
        raise ConfigError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    n = room.talk.count([{"role": "user", "content": text}])  # refuses what no context holds
    room.attached.append(f"{path.name}:\n```\n{text.rstrip()}\n```")
    room.notes.tell(f"{path.name}, about {n:,} tokens, goes with your next message")


def clear(room: Room, _words: str) -> None:
    """/clear"""
    name = room.keeper.name
    room.talk.clear()
    room.keeper.close()
    kept = f"; the old one is kept as '{name}'" if name else ""
    room.notes.tell(f"a new conversation{kept}")


def save(room: Room, words: str) -> None:
    """/save [NAME]"""
    if not room.talk.n_turns:
        room.notes.tell("there is nothing to save yet")
        return
    room.keeper.rename(words or room.keeper.name or sessions.fresh_name(room.talk.first_question), room.talk.messages)
    room.notes.tell(f"saved as '{room.keeper.name}': specgguf chat --resume '{room.keeper.name}'")


def load(room: Room, words: str) -> None:
    """/load NAME"""
    if not words:
        known = sessions.names()[:10]
        raise ConfigError("/load needs a name", hint=", ".join(known) or "nothing is saved yet")
    session = sessions.load(words)
    room.keeper.open(session)
    room.take(session)


def system(room: Room, words: str) -> None:
    """/system [TEXT|none]"""
    if words:
        text = "" if words in ("none", '""') else words
        room.talk.set_system(text)
        room.keeper.changed(room.talk.messages)
    room.notes.tell(f"system prompt: {room.talk.system or 'none'}")


def set_(room: Room, words: str) -> None:
    """/set [NAME [VALUE]]"""
    name, _, text = words.partition(" ")
    name = {"temp": "temperature"}.get(name.replace("-", "_"), name.replace("-", "_"))
    known = [setting.name for setting in SETTINGS if setting.sampling]
    if name and name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        raise ConfigError(f"/set knows no '{name}'", hint=hint)
    if text:
        before, origin = room.settings[name], room.settings.origin(name)
        value = BY_NAME[name].default if text == "default" else BY_NAME[name].parse(text, where="/set")
        room.settings.put(name, value, "default" if text == "default" else "by /set")
        try:
            room.settings.sampling()
        except ConfigError:
            room.settings.put(name, before, origin)
            raise
    for shown in [name] if name else known:
        value = room.settings[shown]
        room.notes.tell(
            f"{shown} = {'none' if value is None else value}  {room.notes.ink.dim(room.settings.origin(shown))}"
        )


def think(room: Room, words: str) -> None:
    """/think: on and off ask the template; dim, show and hide are how reasoning is displayed."""
    if words in ("on", "off"):
        room.settings.put("thinking", words, "by /think")
    elif words:
        try:
            room.settings.put("think", BY_NAME["think"].parse(words, where="/think"), "by /think")
        except ConfigError as error:
            raise ConfigError(f"/think takes on, off, dim, show or hide, not {words!r}") from error
    asked = room.settings["thinking"] or "left to the model"
    room.notes.tell(f"thinking: {asked}; displayed: {room.settings['think']}")


def model(room: Room, words: str) -> None:
    """/model [REF [DRAFT]]"""
    if words:
        ref, _, draft_ref = words.partition(" ")
        room.switch(ref, draft_ref.strip())
    loaded = room.talk.loaded
    room.notes.tell(f"target  {loaded.model}  {room.notes.ink.dim(loaded.model_ref)}")
    room.notes.tell(f"draft   {loaded.draft_model or 'none'}  {room.notes.ink.dim(loaded.draft_ref)}")


def context(room: Room, _words: str) -> None:
    """/context: what fills the context, counted by the model's own template."""
    from specgguf.text.template import counted

    talk, notes = room.talk, room.notes
    window = talk.window()
    n_ctx = talk.loaded.engine.n_ctx()
    n = counted(talk.count, window) if window else 0
    filled = round(CONTEXT_BAR * min(n / n_ctx, 1))
    more = f"more than the {n_ctx:,} tokens that fit"
    held = f"{n:,} of {n_ctx:,} tokens, {stats_view.percent(n / n_ctx)}" if n < math.inf else more
    notes.tell(f"{'█' * filled}{'░' * (CONTEXT_BAR - filled)}  {held}")
    if talk.system:
        n_system = counted(talk.count, [window[0], {"role": "user", "content": ""}])
        notes.tell(f"system prompt  {f'{n_system:,} tokens' if n_system < math.inf else 'more than fits'}")
    n_sent = sum(1 for m in window if m["role"] == "user")
    sent = f"{stats_view.plural(n_sent, 'turn')} sent with the next message"
    notes.tell(sent if n <= n_ctx else f"{sent}, as far as they fit")
    if talk.n_turns > n_sent:
        notes.tell(
            f"{stats_view.plural(talk.n_turns - n_sent, 'older turn')} no longer sent (kept in the saved conversation)"
        )


def complete_session(_room: Room, _words: str) -> Iterable[str]:
    """Names of saved conversations."""
    return sessions.names()


def complete_set(_room: Room, _words: str) -> Iterable[str]:
    """Names of the settings that `/set` may change."""
    return [f"{setting.name} " for setting in SETTINGS if setting.sampling]


def complete_model(_room: Room, _words: str) -> Iterable[str]:
    """Names of presets, and of the models that are here."""
    from specgguf.cli.options import model_names

    return model_names()


def complete_path(_room: Room, words: str) -> Iterable[str]:
    """Paths that begin as typed."""
    typed = Path(words).expanduser()
    folder = typed if words.endswith("/") or not words else typed.parent
    shown = words[: words.rfind("/") + 1]
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if not entry.name.startswith(".") or Path(words).name.startswith("."):
            yield shown + entry.name + ("/" if entry.is_dir() else "")
