"""`specgguf config` and `specgguf use`: where settings come from, what holds now, and what is to hold from now on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from specgguf.cli import settings as settings_module
from specgguf.cli.click_options import model_names
from specgguf.cli.options import BY_NAME, SETTINGS

from specgguf.config import did_you_mean
from specgguf.errors import ConfigError


def _names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in BY_NAME if name.startswith(incomplete)]


def _models(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in model_names() if name.startswith(incomplete)]


@click.group()
def config() -> None:
    """Show settings and where each came from, and change config.toml.

    Flags win over SPECGGUF_ variables, these over config.toml, that over a preset, that over the defaults.
    """


@config.command()
def path() -> None:
    """Print the path of config.toml, whether it exists or not."""
    click.echo(settings_module.config_file())


@config.command()
@click.option("--all", "-a", "show_all", is_flag=True, help="Also what is unset.")
@click.option("-p", "--preset", metavar="NAME", help="As it would be with this preset.")
def show(show_all: bool, preset: str | None) -> None:
    """Print every setting, its value and its origin."""
    from specgguf.cli.pairing import preset_values

    from specgguf.fit import search

    now = settings_module.gather({"preset": preset})
    if now["preset"]:
        chosen, _ = search.named(now["preset"])
        now.under(preset_values(chosen), f"preset {chosen.name}")
    rows = [(s.name, _toml(now[s.name]), now.origin(s.name), s.env) for s in SETTINGS]
    shown = [row for row in rows if show_all or row[1] != "unset"]
    name_width = max(len(row[0]) for row in shown)
    value_width = min(max(len(row[1]) for row in shown), 40)
    for name, value, origin, env in shown:
        extra = f"  ({env})" if show_all and origin != env else ""
        click.echo(f"{name:<{name_width}}  {value:<{value_width}}  {origin}{extra}")


@config.command("set")
@click.argument("name", shell_complete=_names)
@click.argument("value")
def set_(name: str, value: str) -> None:
    """Write a setting into config.toml, as a default of every later run."""
    _write({_known(name): BY_NAME[_known(name)].parse(value, where="config set")})


@config.command()
@click.argument("name", shell_complete=_names)
def unset(name: str) -> None:
    """Take a setting out of config.toml."""
    _write({_known(name): None})


def _known(name: str) -> str:
    name = name.replace("-", "_")
    if name not in BY_NAME:
        raise ConfigError(f"there is no setting '{name}'", hint=did_you_mean(name, BY_NAME) or "config show --all")
    return name


def _write(changes: Mapping[str, Any]) -> None:
    """Change config.toml, and say what it holds now. What is out of range is refused first."""
    path = settings_module.config_file()
    before = settings_module.read_config(path)
    values = {name: settings_module.Value(value, str(path)) for name, value in changes.items() if value is not None}
    settings_module.Settings(values).sampling()
    settings_module.write_config(path, changes)
    for name, value in changes.items():
        if value is not None:
            click.echo(f"{name} = {_toml(value)} in {path}")
        elif name in before:
            click.echo(f"{name} is no longer set in {path}")
    for name in changes:
        if variable := os.environ.get(BY_NAME[name].env):
            click.echo(f"warning: {BY_NAME[name].env}={variable} is set, and wins over the file", err=True)


@click.command(short_help="Remember a pair: every later run begins with it.")
@click.argument("model", metavar="REF", shell_complete=_models)
@click.argument("draft_model", metavar="[DRAFT]", required=False, shell_complete=_models)
def use(model: str, draft_model: str | None) -> None:
    """Remember a pair in config.toml: chat, bench and serve begin with it, unless a flag names another one.

    REF is what -m takes, and DRAFT what -d takes; without DRAFT one that is here and matches is looked for each time.

    \b
      specgguf use qwen2.5-coder-7b-q4_k_m          a model that is here
      specgguf use ./big.gguf ./small.gguf          two files
      specgguf use demo                             a preset's pair
    """
    from specgguf.fit import pair_choice

    model, draft_model = _lasting(model), _lasting(draft_model) if draft_model else None
    choice = pair_choice.choose_pair(model, draft_model)
    if choice.preset is None or choice.model != choice.preset.model:
        files = choice.files(pair_choice.here)
        if files.why:
            click.echo(files.why, err=True)
    _write({"model": model, "draft_model": draft_model, "preset": None})


def _lasting(ref: str) -> str:
    """A reference that means the same in another folder."""
    path = Path(ref).expanduser()
    return str(path.resolve()) if path.is_file() else ref


def _toml(value: object) -> str:
    """A value as it would stand in config.toml; "unset" where there is none."""
    return "unset" if value is None else settings_module.toml(value)
