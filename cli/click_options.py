"""The table of settings as click's options: parsed by the settings themselves, and shown by section in `--help`.

What settings there are is `options`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click
from specgguf.cli.options import BY_NAME, KV, SETTINGS, Setting

from specgguf.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])


BARE = {flag: f"{flag}={setting.bare}" for setting in SETTINGS if setting.bare for flag in setting.flags}


class GroupedCommand(click.Command):
    """A command whose `--help` shows the table's settings under their sections, and whose flags may stand bare."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As in click, which would take the word after a bare flag for its value."""
        end = args.index("--") if "--" in args else len(args)
        return super().parse_args(ctx, [BARE.get(word, word) for word in args[:end]] + args[end:])

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options by section; those outside the table come last."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                setting = BY_NAME.get(param.name or "")
                section = getattr(param, "section", None) or (setting.section if setting else "Other")
                rows.setdefault(section, []).append(record)
        other = rows.pop("Other", [])
        for section, records in [*rows.items(), ("Other", other)]:
            if records:
                with formatter.section(section):
                    formatter.write_dl(records, col_max=34)


class SectionOption(click.Option):
    """An option that belongs to no setting but stands under a section of the help."""

    def __init__(self, *args: Any, section: str, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.section = section


class _Kind(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """Lets click read a setting's value with the setting's own parser."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        kind = setting.kind
        self.name = {"whole": "n", "number": "x"}.get(kind, "text") if isinstance(kind, str) else "word"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.setting.parse(value, where=self.setting.flags[-1])
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from error

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        from click.shell_completion import CompletionItem

        kind: Iterable[str] = self.setting.kind if isinstance(self.setting.kind, tuple) else ()
        if self.setting.kind == "draft":
            kind = ("auto", "off")
        if self.setting.name in ("model", "draft_model", "preset"):
            kind = model_names(files=self.setting.name != "preset")
        if self.setting.name == "preset":
            kind = ["auto", *kind]
        found = [CompletionItem(word) for word in kind if word.startswith(incomplete)]
        if not found and self.setting.name in ("model", "draft_model"):
            return [CompletionItem(incomplete, type="file")]
        return found


def model_names(*, files: bool = True) -> list[str]:
    """What `-m` takes by name: presets and, with `files`, the models on this machine."""
    from specgguf import presets
    from specgguf.models import inventory

    return presets.names() + ([model.name for model in inventory.models()] if files else [])


def option(setting: Setting) -> Callable[[F], F]:
    """The click option of one setting. Its default is None: "not given here"."""
    help_text = setting.help
    unsaid = setting.kind in ("bool", "draft") or setting.default in (None, "auto", "off")
    if not unsaid:
        help_text = f"{help_text[:-1]} [{setting.default}]."
    if setting.kind == "bool":
        return click.option(*setting.flags, setting.name, default=None, help=help_text)
    metavar = setting.metavar or ("|".join(setting.kind) if isinstance(setting.kind, tuple) else None)
    metavar = "TYPE" if setting.kind == KV else metavar
    return click.option(
        *setting.flags, setting.name, type=_Kind(setting), default=None, metavar=metavar, help=help_text
    )


def options(*sections: str) -> Callable[[F], F]:
    """Add the options of whole sections, in the table's order."""

    def decorate(function: F) -> F:
        for setting in reversed(SETTINGS):
            if setting.section in sections:
                function = option(setting)(function)
        return function

    return decorate
