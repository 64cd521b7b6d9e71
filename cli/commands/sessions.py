"""`specgguf sessions`: the saved conversations, from outside."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import IO

import click
from specgguf.cli.chat.saved import sessions as store
from specgguf.cli.chat.saved.export import markdown
from specgguf.cli.exits import describe
from specgguf.cli.terminal import console

from specgguf.errors import SpecggufError

SHOWN = 20  # conversations that a terminal is shown, without --all


def _names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in store.names() if name.startswith(incomplete)]


@click.group()
def sessions() -> None:
    """List, show, export and remove saved conversations."""


@sessions.command("list")
@click.option("--all", "-a", "show_all", is_flag=True, help="Also older ones, and those of which all was taken back.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_(show_all: bool, as_json: bool) -> None:
    """The saved conversations, the latest first."""
    found = []
    for name in store.names():
        try:
            session = store.load(name)
        except SpecggufError as error:
            click.echo(f"{name}: {describe(error)[0]}", err=True)
            continue
        if show_all or not session.is_empty:
            found.append(session)
    if not found and not as_json:
        click.echo("no conversation is saved yet", err=True)
    n_older = 0 if show_all or as_json or not sys.stdout.isatty() else max(len(found) - SHOWN, 0)
    found = found[: len(found) - n_older]
    width = max((len(session.name) for session in found), default=0)
    for session in found:
        name, n = session.name, session.n_turns
        if as_json:
            about = {"name": name, "updated": session.updated, "turns": n, "model": session.model}
            click.echo(json.dumps(about | {"title": session.title}, ensure_ascii=False))
            continue
        when = session.updated[:16].replace("T", " ")
        start = f"{name:<{width}}  {when}  {n:>3} {'turn ' if n == 1 else 'turns'}  "
        columns = max(console.width(sys.stdout) - len(start), 20) if sys.stdout.isatty() else 200
        click.echo(start + console.one_line(session.title, columns))
    if n_older:
        click.echo(f"and {n_older} older ones (--all shows them)", err=True)


@sessions.command()
@click.argument("name", shell_complete=_names)
@click.option("--json", "as_json", is_flag=True, help="The whole record.")
def show(name: str, as_json: bool) -> None:
    """Print a conversation."""
    session = store.load(name)
    if as_json:
        click.echo(json.dumps(asdict(session), ensure_ascii=False, indent=1))
        return
    text = markdown(session)
    click.echo(console.clean(text) if sys.stdout.isatty() else text, nl=False)


@sessions.command()
@click.argument("name", shell_complete=_names)
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True, atomic=True), default="-")
def export(name: str, file: IO[str]) -> None:
    """Write a conversation as Markdown to FILE, or to stdout."""
    file.write(markdown(store.load(name)))


@sessions.command()
@click.argument("names", nargs=-1, required=True, shell_complete=_names)
def rm(names: tuple[str, ...]) -> None:
    """Remove conversations."""
    for name in names:
        store.remove(name)
        click.echo(f"removed {name}", err=True)
