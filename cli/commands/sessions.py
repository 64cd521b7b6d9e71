"""`specgguf sessions`: the saved conversations, from outside."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import IO

import click
from specgguf.cli.chat import sessions as store
from specgguf.cli.exits import describe
from specgguf.cli.terminal import console

from specgguf.errors import SpecggufError


def _names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in store.names() if name.startswith(incomplete)]


@click.group()
def sessions() -> None:
    """List, show, export and remove saved conversations."""


@sessions.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_(as_json: bool) -> None:
    """All conversations, the latest first."""
    found = store.names()
    if not found and not as_json:
        click.echo("no conversation is saved yet", err=True)
    width = max((len(name) for name in found), default=0)
    for name in found:
        try:
            session = store.load(name)
        except SpecggufError as error:
            click.echo(f"{name}: {describe(error)[0]}", err=True)
            continue
        n = sum(1 for message in session.messages if message["role"] == "user")
        if as_json:
            about = {"name": name, "updated": session.updated, "turns": n, "model": session.model}
            click.echo(json.dumps(about | {"title": session.title}, ensure_ascii=False))
            continue
        when = session.updated[:16].replace("T", " ")
        start = f"{name:<{width}}  {when}  {n:>3} {'turn ' if n == 1 else 'turns'}  "
        chat = max(console.width(sys.stdout) - len(start), 20) if sys.stdout.isatty() else 200
        click.echo(start + console.one_line(session.title, chat))


@sessions.command()
@click.argument("name", shell_complete=_names)
@click.option("--json", "as_json", is_flag=True, help="The whole record.")
def show(name: str, as_json: bool) -> None:
    """Print a conversation."""
    session = store.load(name)
    if as_json:
        click.echo(json.dumps(asdict(session), ensure_ascii=False, indent=1))
        return
    text = store.markdown(session)
    click.echo(console.clean(text) if sys.stdout.isatty() else text, nl=False)


@sessions.command()
@click.argument("name", shell_complete=_names)
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=True, atomic=True), default="-")
def export(name: str, file: IO[str]) -> None:
    """Write a conversation as Markdown to FILE, or to stdout."""
    file.write(store.markdown(store.load(name)))


@sessions.command()
@click.argument("names", nargs=-1, required=True, shell_complete=_names)
def rm(names: tuple[str, ...]) -> None:
    """Remove conversations."""
    for name in names:
        store.remove(name)
        click.echo(f"removed {name}", err=True)
