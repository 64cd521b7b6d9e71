"""`specgguf batch`: a file of requests in, a file of answers out; shows how far it is, and can be ended anywhere."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from specgguf.cli import exits, open_pair, parallel
from specgguf.cli.click_options import GroupedCommand, SectionOption, options
from specgguf.cli.interrupts import Interrupts
from specgguf.cli.settings import Settings, gather
from specgguf.cli.terminal import console
from specgguf.cli.terminal.progress import BAR, human_seconds
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import ConfigError

if TYPE_CHECKING:
    from specgguf.batch.answering import Opened
    from specgguf.batch.output import OutputFile
    from specgguf.batch.requests import Request
    from specgguf.batch.runner import Progress, Source

F = TypeVar("F", bound=Callable[..., Any])

SECTION = "Batch"
STDIN = "-"
NAMED_MAX = 3  # failures, or models, that one line names

PARALLEL_MAX = 8  # requests at once, unless --parallel says


def _option(*names: str, **keywords: Any) -> Callable[[F], F]:
    return click.option(*names, cls=SectionOption, section=SECTION, **keywords)


@click.command(cls=GroupedCommand)
@click.argument("source", type=click.Path(allow_dash=True), metavar="IN.jsonl")
@_option(
    "-o",
    "--output",
    "target",
    required=True,
    type=click.Path(),
    metavar="OUT.jsonl",
    help="Rows are added here as they come.",
)
@_option("--retry-failed", is_flag=True, help="Ask again what failed: its rows are taken out first.")
@_option("--lenient", is_flag=True, help="Ignore fields that are unknown instead of refusing them.")
@_option(
    "--ray", is_flag=False, flag_value="auto", metavar="[HOST:PORT]",
    help="Answer on every node of a Ray cluster; without an address, this machine's.",
)  # fmt: skip
@_option("--quiet", "-q", is_flag=True, help="Nothing on stderr but warnings and errors.")
@options("Models")
@click.option("--yes", "-y", is_flag=True, cls=SectionOption, section="Models", help="Download without asking.")
@options("Together", "Drafting", "Sampling", "Hardware")
def batch(
    source: str,
    target: str,
    retry_failed: bool,
    lenient: bool,
    ray: str | None,
    quiet: bool,
    yes: bool,
    **flags: Any,
) -> int:
    """Answer a file of requests, in OpenAI's batch format: custom_id, method, url, body on each line.

    \b
      specgguf batch requests.jsonl -o answers.jsonl -p demo
      specgguf batch requests.jsonl -o answers.jsonl -m FILE -d FILE --parallel 8
      specgguf batch requests.jsonl -o answers.jsonl -p demo --ray

    However it ends, the same command goes on where it was. "-" reads the requests from stdin. Sampling flags are what
    requests get that leave it open.
    """
    settings = gather(flags)
    settings.sampling()
    parallel.check(settings)
    status = StatusOutput(console.style_for(sys.stderr, settings["color"]), quiet=quiet)
    requests = read_input(source, target)
    with open_output(target, requests, source, retry_failed=retry_failed) as output:
        n_before = len(output.done)
        if output.repaired:
            status.say(f"{target}: its last row was cut short and is taken out")
        if n_before == len(requests):
            status.say(f"nothing is left to do: {summary(target, requests, output)}")
            return exits.FAILED if output.failed else exits.OK
        if n_before:
            status.say(f"{n_before} of {len(requests)} requests have their rows already")
        if ray is None:
            opened = open_here(settings, status, yes=yes, lenient=lenient)
            with contextlib.closing(opened.engine):
                ended = _run(_this_machine(opened), requests, output, status, opened.config.names)
        else:
            with contextlib.redirect_stdout(io.StringIO()):  # where Ray tells of each lost process, in a paragraph
                ended = _run(_cluster(ray, settings, status, yes=yes, lenient=lenient), requests, output, status)
        if not ended:
            done = f"{len(output.done)} of {len(requests)} requests have their rows in {target}"
            status.tell(f"stopped: {done}; the same command goes on")
            return exits.INTERRUPTED
        status.say(summary(target, requests, output))
        return exits.FAILED if output.failed else exits.OK


def read_input(source: str, target: str) -> list[Request]:
    """The requests of the file `source`, or of stdin.

    Raises:
        ConfigError: there are none, or it is the output.
        OSError: it cannot be read.
    """
    from specgguf.batch.requests import read_requests

    if source == STDIN:
        return read_requests(sys.stdin.buffer, "stdin")
    with open(source, "rb") as file:
        if Path(target).exists() and os.path.samefile(source, target):
            raise ConfigError(f"{target} is the input itself", hint="-o names a file of its own")
        return read_requests(file, source)


def open_output(target: str, requests: list[Request], source: str, *, retry_failed: bool) -> OutputFile:
    """See `OutputFile`."""
    from specgguf.batch.output import OutputFile

    return OutputFile(target, requests, "stdin" if source == STDIN else source, retry_failed=retry_failed)


def open_here(settings: Settings, status: StatusOutput, *, yes: bool, lenient: bool) -> Opened:
    """The pair, and how bodies are read: as by a server with these settings, whatever model they name."""
    from specgguf.batch.answering import Opened
    from specgguf.serve.config import ServeConfig

    loaded = open_pair.open_engine(settings, status, yes=yes, n_parallel_max=PARALLEL_MAX)
    config = ServeConfig(
        names=(loaded.model.removesuffix(".gguf"),),
        defaults={name: value for name, value in settings.sampling().items() if value is not None},
        enable_thinking=open_pair.thinking(settings),
        lenient=lenient,
    )
    return Opened(loaded.engine, config)


def open_on_node(settings: Settings, *, yes: bool, lenient: bool) -> Opened:
    """`open_here` in an actor: references lead to the node's own cache, paths must be there, too; nobody to ask."""
    return open_here(
        settings, StatusOutput(console.style_for(sys.stderr, "never"), quiet=True), yes=yes, lenient=lenient
    )


def _this_machine(opened: Opened) -> Source:
    from specgguf.batch.answering import ThisMachine

    return ThisMachine(opened.engine, opened.config, n_parallel=opened.engine.n_parallel)


def _cluster(address: str, settings: Settings, status: StatusOutput, *, yes: bool, lenient: bool) -> Source:
    """Its nodes get the settings as they are now: their own config.toml and variables are not asked."""
    from specgguf.batch.over_ray import Cluster

    if settings["trace"]:
        raise ConfigError("--trace is not for --ray: all nodes would write one file", hint="leave it out")
    for name in ("model", "draft_model"):  # a folder here is not the nodes' folder
        if settings[name] and Path(settings[name]).expanduser().exists():
            settings.put(name, str(Path(settings[name]).expanduser().resolve()), settings.origin(name))
    opening = partial(open_on_node, settings, yes=yes, lenient=lenient)
    n_max = settings["n_parallel"] or PARALLEL_MAX
    return Cluster(address, opening, n_parallel_max=n_max, told=status.say)


def _run(
    source: Source,
    requests: list[Request],
    output: OutputFile,
    status: StatusOutput,
    names: Sequence[str] = (),
) -> bool:
    """Answer what is left; whether it came to the end.

    Args:
        names: of the model, where it is known yet.
    """
    from specgguf.batch.runner import Batch

    _say_other_names(requests, names, status)
    batch = Batch(source, requests, output)
    started = time.monotonic()
    try:
        with Interrupts(batch.stop):
            ended = batch.run(lambda progress: status.wait(line(progress, time.monotonic() - started)))
    finally:
        status.clear()
    seconds = time.monotonic() - started
    status.say(
        f"{ended.n_done - ended.n_before} requests, {ended.n_tokens:,} tokens in {human_seconds(seconds)}: "
        f"{ended.n_tokens / max(seconds, 1e-9):.1f} tokens/s"
    )
    return ended.n_done == ended.n_requests


def _say_other_names(requests: Sequence[Request], names: Sequence[str], status: StatusOutput) -> None:
    named = sorted({r.model for r in requests} - {"", *names})
    if named:
        shown = ", ".join(f"{name!r:.60}" for name in named[:NAMED_MAX]) + (", …" if len(named) > NAMED_MAX else "")
        status.say(f"requests name the model {shown}: {names[0] if names else 'the pair'} answers them")


def line(progress: Progress, seconds: float) -> str:
    """The line that shows how far it is."""
    share = progress.n_done / progress.n_requests
    bar = "█" * round(share * BAR) + "░" * (BAR - round(share * BAR))
    n_here, n_left = progress.n_done - progress.n_before, progress.n_requests - progress.n_done
    left = f"  {human_seconds(seconds / n_here * n_left)} left" if n_here and n_left else ""
    speed = f"  {progress.n_tokens / seconds:.1f} tokens/s" if progress.n_tokens and seconds else ""
    failed = f"  {progress.n_failed} failed" if progress.n_failed else ""
    where = f"  {progress.where}" if progress.where else ""
    return f"{bar} {progress.n_done} of {progress.n_requests}{failed}{where}{speed}{left}"


def summary(target: str, requests: list[Request], output: OutputFile) -> str:
    """What the output holds, and which requests failed."""
    failed = [r for r in requests if r.id in output.failed]
    text = f"{target} has {len(output.done)} rows"
    if failed:
        names = [f"line {r.line}" if r.custom_id is None else f"{r.custom_id!r:.60}" for r in failed[:NAMED_MAX]]
        more = f" and {len(failed) - NAMED_MAX} more" if len(failed) > NAMED_MAX else ""
        text += f", {len(failed)} of them errors: {', '.join(names)}{more}; --retry-failed asks them again"
    return text
