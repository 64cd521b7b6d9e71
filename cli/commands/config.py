"""`specgguf config`: where settings come from, and what holds now."""

from __future__ import annotations

import click
from specgguf.cli import settings as settings_module
from specgguf.cli.options import SETTINGS


@click.group()
def config() -> None:
    """Show settings and where each came from.

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


def _toml(value: object) -> str:
    """A value as it would stand in config.toml; "unset" where there is none."""
    import json

    if value is None:
        return "unset"
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str | tuple) else str(value)
