"""The `specgguf` command: a group whose commands are imported only when they run.

`specgguf --help` reads the table below and nothing else, so it answers at once and works even where a
command's own dependencies are missing.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click
from specgguf.cli import exits

# name -> (section, one line of help). The module of that name in `commands`, or the one that is given below, has a
# click command of that name.
COMMANDS: dict[str, tuple[str, str]] = {
    "chat": ("Talk", "Talk to a model; with a question, answer it and end."),
    "serve": ("Talk", "Answer over HTTP, in OpenAI's protocol."),
    "batch": ("Talk", "Answer a file of requests, in OpenAI's batch format."),
    "bench": ("Measure", "Measure whether drafting pays: your machine, your pair, your text."),
    "fit": ("Measure", "Show what fits into this machine's memory, before loading anything."),
    "doctor": ("Measure", "Check the installation, the devices and a pair."),
    "models": ("Models", "List, fetch, verify and pair models."),
    "presets": ("Models", "Show the ready-made pairs, and save your own."),
    "worker": ("Machines", "Lend this machine's devices to a model on another one."),
    "export": ("Machines", "Hand a pair over to llama-server, vLLM or a compose file."),
    "sessions": ("Keep", "List, show, export and remove saved conversations."),
    "use": ("Models", "Remember a pair: every later run begins with it."),
    "config": ("Keep", "Show settings and where each came from; change them."),
    "completion": ("Keep", "Print the completion script for bash, zsh or fish."),
}
MODULES = {"worker": "machines.worker", "export": "machines.export", "use": "config"}


class Program(click.Group):
    """A group that imports a command on use, and turns every error into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command `cmd_name`; None when there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"{__package__}.commands.{MODULES.get(cmd_name, cmd_name)}")
        command = getattr(module, cmd_name)
        assert isinstance(command, click.Command)
        _accept_debug(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As in click, with a word about the nearest command."""
        name = args[0] if args else ""
        if args and name not in COMMANDS and not name.startswith("-"):
            from specgguf.config import did_you_mean

            hint = did_you_mean(name, COMMANDS) or f'a question goes to: specgguf chat "{name} …"'
            raise click.UsageError(f"no such command '{name}': {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands in their sections, from the table alone."""
        for section in dict.fromkeys(row[0] for row in COMMANDS.values()):
            with formatter.section(section):
                formatter.write_dl([(name, row[1]) for name, row in COMMANDS.items() if row[0] == section], col_max=12)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, report, and exit (return instead when `standalone_mode` is False)."""
        words = sys.argv[1:] if args is None else list(args)
        if not standalone_mode:
            return super().main(words, prog_name, complete_var, standalone_mode=False, **extra)
        sys.exit(self._run(words, prog_name, complete_var, **extra))

    def _run(self, words: list[str], prog_name: str | None, complete_var: str | None, **extra: Any) -> int:
        try:
            _tell_unknown_variables()
            extra.setdefault("obj", exits.wants_traceback(words))  # commands that live long ask for it
            result = super().main(list(words), prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            exits.silence_stdout()
            return exits.FAILED
        except (Exception, KeyboardInterrupt) as error:
            return exits.report(error, debug=exits.wants_traceback(words))
        return result if isinstance(result, int) else exits.OK


def _tell_unknown_variables() -> None:
    """A misspelt variable would be ignored: say so, but not into a shell that completes a line."""
    names = [name for name in os.environ if "SPECGGUF_" in name]
    if names and "_SPECGGUF_COMPLETE" not in names:
        from specgguf.cli import settings
        from specgguf.cli.terminal import status

        for remark in settings.unknown_variables():
            status.StatusOutput().warn(remark)


def _debug_option() -> click.Option:
    return click.Option(["--debug"], is_flag=True, expose_value=False, help="Show tracebacks.")


def _accept_debug(command: click.Command) -> None:
    """Let `--debug` stand anywhere: `exits.wants_traceback` reads it, click only has to accept it."""
    if not any("--debug" in option.opts for option in command.params):
        command.params.append(_debug_option())
    for child in getattr(command, "commands", {}).values():
        _accept_debug(child)


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"specgguf {version('specgguf')}")
        ctx.exit()


@click.group(
    cls=Program,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog='Start with: specgguf chat    or: specgguf chat "What is a mutex?"',
)
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Show it.")
def cli() -> None:
    """Local GGUF models, answering faster: a small model drafts, the large one decides every token."""


cli.params.append(_debug_option())


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point of the `specgguf` script."""
    exits.open_streams()
    cli.main(argv, prog_name="specgguf")
    raise AssertionError("unreachable")


if __name__ == "__main__":
    main()
