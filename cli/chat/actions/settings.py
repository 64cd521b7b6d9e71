"""Commands about how answers are made and shown: settings, models, statistics, the context."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from specgguf.cli.chat.input import attachments
from specgguf.cli.options import BY_NAME, SETTINGS
from specgguf.cli.terminal import console, stats_view

from specgguf.config import parse_draft
from specgguf.errors import ConfigError

if TYPE_CHECKING:
    from specgguf.cli.chat.chat_session import ChatSession

SHOWN = 10


def draft(chat: ChatSession, words: str) -> None:
    """/draft: show or set how drafting is decided."""
    engine = chat.conversation.loaded.engine
    if words:
        engine.draft = parse_draft(words)
        chat.settings.put("draft", engine.draft, "by /draft")
    if not chat.conversation.loaded.draft_model:
        chat.status.tell("there is no draft model: every token is the target's own (/model REF DRAFT loads one)")
        return
    how = {
        "auto": "drafting is automatic: as many tokens as pay, none where it would slow you down",
        "off": "drafting is off: every token is the target's own",
    }
    n = engine.draft
    chat.status.tell(how[n] if isinstance(n, str) else f"drafting {stats_view.plural(n, 'token')} a round, always")


def highlight(chat: ChatSession, words: str) -> None:
    """/highlight: toggle, and show the last answer again in the new light."""
    how = "on" if chat.settings["highlight"] == "off" else "off"
    if words:
        how = BY_NAME["highlight"].parse(words, where="/highlight")
    chat.settings.put("highlight", how, "by /highlight")
    if how == "off":
        chat.status.tell("highlighting is off")
        return
    chat.status.tell(f"highlighting is on: {chat.display.legend()}")
    if chat.conversation.last is not None and chat.conversation.last.spans:
        chat.display.again(chat.conversation.last)


def stats(chat: ChatSession, words: str) -> None:
    """/stats: the page; on or off switches the line after each answer."""
    if words:
        on = BY_NAME["stats"].parse(words, where="/stats")
        chat.settings.put("stats", on, "by /stats")
        chat.status.tell(f"the line of statistics after each answer is {'on' if on else 'off'}")
        return
    engine, last = chat.conversation.loaded.engine, chat.conversation.last
    columns = console.width(chat.status.stream) if chat.status.style.tty else None
    first_s = last.first_s if last is not None else 0.0
    for row in stats_view.page(engine.last_stats, engine.stats, engine.n_ctx(), chat.status.style, columns, first_s):
        chat.status.tell(row)


def system(chat: ChatSession, words: str) -> None:
    """/system [TEXT|@FILE|none]"""
    if words:
        text = "" if words in ("none", '""') else attachments.given_text(words, "/system")
        chat.conversation.set_system(text)
        chat.autosave.changed(chat.conversation.messages)
    chat.status.tell(f"system prompt: {chat.conversation.system or 'none'}")


def set_(chat: ChatSession, words: str) -> None:
    """/set [NAME [VALUE]]"""
    name, _, text = words.partition(" ")
    name = {"temp": "temperature"}.get(name.replace("-", "_"), name.replace("-", "_"))
    known = [setting.name for setting in SETTINGS if setting.sampling]
    if name in BY_NAME and name not in known:
        own = "stats highlight think system model draft".split()
        how = (
            f"/{name} changes it"
            if name in own
            else f"at the start: specgguf chat --continue {BY_NAME[name].flags[-1]}"
        )
        raise ConfigError(f"{name} is not changed by /set", hint=how)
    if name and name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        hint = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
        raise ConfigError(f"/set knows no '{name}'", hint=hint)
    if text:
        before, origin = chat.settings[name], chat.settings.origin(name)
        value = BY_NAME[name].default if text == "default" else BY_NAME[name].parse(text, where="/set")
        chat.settings.put(name, value, "default" if text == "default" else "by /set")
        try:
            chat.settings.sampling()
        except ConfigError:
            chat.settings.put(name, before, origin)
            raise
    for shown in [name] if name else known:
        value = chat.settings[shown]
        chat.status.tell(
            f"{shown} = {'none' if value is None else value}  {chat.status.style.dim(chat.settings.origin(shown))}"
        )


def think(chat: ChatSession, words: str) -> None:
    """/think: on and off ask the template; dim, show and hide are how reasoning is displayed."""
    if words in ("on", "off"):
        chat.settings.put("thinking", words, "by /think")
    elif words:
        try:
            chat.settings.put("think", BY_NAME["think"].parse(words, where="/think"), "by /think")
        except ConfigError as error:
            raise ConfigError(f"/think takes on, off, dim, show or hide, not {words!r}") from error
    asked = chat.settings["thinking"] or "left to the model"
    chat.status.tell(f"thinking: {asked}; displayed: {chat.settings['think']}")


def model(chat: ChatSession, words: str) -> None:
    """/model [REF [DRAFT]]: one path with blanks in it, or two words, as a shell would take them."""
    if words.isdecimal() and 1 <= int(words) <= len(chat.listed):
        words = shlex.quote(chat.listed[int(words) - 1])
    if words:
        if Path(words).expanduser().exists():
            parts = [words]
        else:
            try:
                parts = shlex.split(words)
            except ValueError:  # a lone quote
                parts = [words]
        if len(parts) > 2:
            raise ConfigError("/model takes a model and a draft", hint="a path with blanks in it goes between quotes")
        chat.switch(parts[0], parts[1] if len(parts) > 1 else "")
    loaded = chat.conversation.loaded
    chat.status.tell(f"target  {loaded.model}  {chat.status.style.dim(loaded.model_ref)}")
    chat.status.tell(f"draft   {loaded.draft_model or 'none'}  {chat.status.style.dim(loaded.draft_ref)}")
    if not words:
        from specgguf.models import inventory

        chat.listed = [found.name for found in inventory.models()][:SHOWN]
        for n, name in enumerate(chat.listed, 1):
            chat.status.tell(f"{n:>2}  {name}")
        if chat.listed:
            chat.picks = "model"
            chat.status.tell("a number goes on with that one, and a draft that matches it")


def complete_set(_chat: ChatSession, _words: str) -> Iterable[str]:
    """Names of the settings that `/set` may change."""
    return [f"{setting.name} " for setting in SETTINGS if setting.sampling]


def complete_model(_chat: ChatSession, _words: str) -> Iterable[str]:
    """Names of presets, and of the models that are here."""
    from specgguf.cli.click_options import model_names

    return model_names()
