"""`specgguf export`: the same pair and settings as a command line for another engine, or a compose file."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from specgguf.cli.click_options import GroupedCommand, SectionOption, options
from specgguf.cli.commands.machines import handover
from specgguf.cli.settings import gather
from specgguf.cli.terminal import console
from specgguf.cli.terminal.status import StatusOutput

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def export() -> None:
    """Hand a pair over to another engine: its command line, with what was measured and what will differ.

    \b
      specgguf export llama-server -m FILE -d FILE > serve.sh
      specgguf export compose -p demo --measured bench.json > compose.yaml
    """


def _target(text: Callable[[handover.Handover], str], name: str, help: str) -> None:
    @export.command(name, cls=GroupedCommand, help=help, short_help=help)
    @options("Models")
    @click.option(
        "--measured", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="What `specgguf bench --save FILE` found, for the draft length and the comments.",
    )  # fmt: skip
    @click.option(
        "--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", cls=SectionOption, section="Server"
    )
    @click.option("--port", default=8080, show_default=True, metavar="N", cls=SectionOption, section="Server")
    @options("Drafting", "Sampling", "Hardware")
    def command(measured: Path | None, host: str, port: int, **flags: Any) -> None:
        click.echo(text(_handover(measured, host, port, flags)), nl=False)


def _handover(measured: Path | None, host: str, port: int, flags: dict[str, Any]) -> handover.Handover:
    from specgguf.cli.pairing import pick
    from specgguf.presets import HEADS

    from specgguf.bench import recommend, results
    from specgguf.errors import Unsupported

    settings = gather(flags)
    reports = recommend.report(results.load(measured)[1]) if measured else []
    pair = pick(settings, StatusOutput(console.style_for(sys.stderr)))
    if pair.draft_model == HEADS:
        raise Unsupported("a model's prediction heads are not exported", hint="-d FILE, -d ngram or -d none")
    settings.sampling()
    given = {name: settings[name] for name in settings if settings.given(name) and settings[name] is not None}
    return handover.Handover(pair.model, pair.draft_model, given, host, port, reports)


_target(handover.llama_server, "llama-server", "A command line for llama.cpp's server.")
_target(handover.vllm, "vllm", "A command line for vLLM.")
_target(handover.compose, "compose", "A compose file with llama.cpp's server.")
