"""`specgguf serve`: reads the flags, takes the port, opens the engine, and answers until it is told to stop."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from specgguf.cli import exits, open_pair, parallel
from specgguf.cli.click_options import GroupedCommand, SectionOption, options
from specgguf.cli.open_pair import Loaded
from specgguf.cli.settings import Settings, gather
from specgguf.cli.terminal import console
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import ConfigError, SpecggufError

if TYPE_CHECKING:
    import socket

    from specgguf.serve.config import ApiKey, ServeConfig
    from specgguf.serve.doors import RequestRecord

F = TypeVar("F", bound=Callable[..., Any])

SECTION = "Server"
KEY_VARIABLE = "SPECGGUF_API_KEY"


def _option(*names: str, **keywords: Any) -> Callable[[F], F]:
    return click.option(*names, cls=SectionOption, section=SECTION, show_default=True, **keywords)


class _Whole(click.types.StringParamType):
    """A text that may hold blanks; click would split the variable's."""

    def split_envvar_value(self, rv: str) -> list[str]:
        return [rv]


class _Port(click.IntRange):
    """A port; Kubernetes sets our variable to an address where a service has our name."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and value.startswith("tcp://"):
            click.echo(
                f"SPECGGUF_PORT={value} is Kubernetes' own: port 8080 is taken; --port N takes another", err=True
            )
            return 8080
        return super().convert(value, param, ctx)


PARALLEL_MAX = 4  # requests at once, unless --parallel says


@click.command(cls=GroupedCommand)
@options("Models")
@click.option("--yes", "-y", is_flag=True, cls=SectionOption, section="Models", help="Download without asking.")
@_option("--host", default="127.0.0.1", envvar="SPECGGUF_HOST", metavar="ADDRESS", help="0.0.0.0, ::: every one.")
@_option("--port", default=8080, type=_Port(0, 65535), envvar="SPECGGUF_PORT", metavar="N", help="0: any free one.")
@_option(
    "--api-key", "api_keys", multiple=True, type=_Whole(), envvar=KEY_VARIABLE, metavar="KEY", help="Ask for this key."
)
@_option("--api-key-file", metavar="FILE", help="Keys, one a line; .toml: with names and quotas.")
@_option("--alias", "aliases", multiple=True, metavar="NAME", help="What clients call the model; '*': anything.")
@_option("--lenient", is_flag=True, help="Ignore fields that are unknown instead of refusing them.")
@_option("--cors", multiple=True, metavar="ORIGIN", help="Let pages of this origin ask; '*': all.")
@_option("--allow-host", "hosts", multiple=True, metavar="NAME", help="Answer to this name too; '*': any.")
@_option(
    "--queue", "queue_max", default=64, type=click.IntRange(1), metavar="N", help="Requests that may wait; then 429."
)
@_option("--queue-timeout", default=300.0, type=click.FloatRange(0, min_open=True), metavar="S", help="Wait so long.")
@_option("--time-limit", default=600.0, type=click.FloatRange(0, min_open=True), metavar="S", help="Then end a text.")
@_option("--max-body", default=4.0, type=click.FloatRange(0, min_open=True), metavar="MIB", help="Largest request.")
@_option("--connections", default=512, type=click.IntRange(1), metavar="N", help="Open at once.")
@_option("--root-path", default="", metavar="/PATH", help="What a proxy has taken from paths.")
@_option("--ssl-certfile", metavar="FILE", help="PEM: speak TLS with this certificate.")
@_option("--ssl-keyfile", metavar="FILE", help="PEM: its key.")
@_option("--log-format", default="text", type=click.Choice(["text", "json"]), help="Of the line per request.")
@_option("--grace", default=10.0, type=click.FloatRange(0), metavar="S", help="For the running text when stopping.")
@_option("--quiet", "-q", is_flag=True, help="Nothing on stderr but warnings and errors.")
@options("Together", "Drafting", "Sampling", "Hardware")
def serve(yes: bool, host: str, port: int, quiet: bool, **flags: Any) -> int:
    """Answer over HTTP, in OpenAI's protocol: /v1/chat/completions, /v1/completions, /v1/models.

    \b
      specgguf serve -p demo                    http://127.0.0.1:8080/v1
      specgguf serve -m FILE -d FILE --port 0   your own pair, on any free port

    Sampling flags are what requests get that leave it open. /health and /metrics (Prometheus) come along.
    """
    settings = gather(flags)
    settings.sampling()
    parallel.check(settings)
    if os.environ.get(KEY_VARIABLE) == "":
        raise ConfigError(f"{KEY_VARIABLE} is empty: anybody could show it", hint=f"unset {KEY_VARIABLE}, or set a key")
    read_api_keys(flags)
    status = StatusOutput(console.style_for(sys.stderr, settings["color"]), quiet=quiet)
    with contextlib.closing(take_port(host, port)) as listening:
        check_tls(flags)
        loaded = open_pair.open_engine(settings, status, yes=yes, n_parallel_max=PARALLEL_MAX)
        try:
            config = configure(loaded, settings, host, flags)
            if host not in ("127.0.0.1", "localhost", "::1") and not config.api_keys:
                status.warn(f"anybody who reaches {host} can ask: --api-key KEY (or SPECGGUF_API_KEY) asks for a key")
            clean = _run(loaded, config, listening, status, flags["log_format"])
        except BaseException:
            loaded.engine.close()
            raise
    if not clean:
        sys.stderr.flush()
        os._exit(exits.FAILED)  # the engine hangs in native code: its memory must not be freed beside it
    loaded.engine.close()
    return exits.OK


def take_port(host: str, port: int) -> socket.socket:
    """A listening socket, taken before anything is loaded.

    Raises:
        SpecggufError: the extra is not installed, or the port cannot be had.
    """
    try:
        from specgguf.serve.server import listen
    except ModuleNotFoundError as error:
        raise SpecggufError(
            f"serving needs {error.name}, which is not installed", hint="pip install 'specgguf[server]'"
        ) from error
    try:
        return listen(host, port)
    except OSError as error:
        number = error.errno or 0  # negative where a name does not resolve
        reason = (os.strerror(number) if number > 0 else error.strerror or str(error)).lower()
        raise SpecggufError(
            f"cannot listen on {host}, port {port}: {reason}", hint="--port N takes another one, --port 0 any free one"
        ) from error


def configure(loaded: Loaded, settings: Settings, host: str, flags: dict[str, Any]) -> ServeConfig:
    """What flags and settings say to the server."""
    from specgguf import presets
    from specgguf.serve.config import LOOPBACK
    from specgguf.serve.server import ServeConfig

    names = flags["aliases"] or (loaded.model.removesuffix(".gguf"),)
    if not flags["aliases"] and loaded.model_ref in presets.names():
        names = (*names, loaded.model_ref)
    local = host in LOOPBACK or host.startswith("127.")
    hosts = (*LOOPBACK, host, *flags["hosts"]) if (local or flags["hosts"]) and "*" not in flags["hosts"] else None
    return ServeConfig(
        names=names,
        defaults={name: value for name, value in settings.sampling().items() if value is not None},
        enable_thinking=open_pair.thinking(settings),
        lenient=flags["lenient"],
        api_keys=read_api_keys(flags),
        cors=tuple(flags["cors"]),
        hosts=hosts,
        root_path=flags["root_path"],
        connections_max=flags["connections"],
        certfile=flags["ssl_certfile"],
        keyfile=flags["ssl_keyfile"],
        queue_max=flags["queue_max"],
        queue_timeout_s=flags["queue_timeout"],
        generation_timeout_s=flags["time_limit"],
        body_max_bytes=int(flags["max_body"] * 2**20),
        grace_s=flags["grace"],
    )


def check_tls(flags: dict[str, Any]) -> None:
    """Refuse wrong certificates before anything is loaded."""
    from specgguf.serve.server import check_certificate

    if flags["ssl_keyfile"] and not flags["ssl_certfile"]:
        raise ConfigError("--ssl-keyfile needs its certificate", hint="--ssl-certfile FILE")
    check_certificate(flags["ssl_certfile"], flags["ssl_keyfile"])


def read_api_keys(flags: dict[str, Any]) -> tuple[ApiKey, ...]:
    """The keys of flags, variable and file, checked.

    Raises:
        ConfigError: one is empty, twice there, or cannot be read.
    """
    from specgguf.serve.config import named_keys, read_keys

    file = flags["api_key_file"]
    return named_keys((*flags["api_keys"], *(read_keys(file) if file else ())))


def _run(
    loaded: Loaded, config: ServeConfig, listening: socket.socket, status: StatusOutput, log_format: str = "text"
) -> bool:
    from specgguf.serve.server import Service, run

    def log(record: RequestRecord) -> None:
        status.say(record.text() if log_format == "text" else json.dumps({"time": time.time(), **record.fields()}))

    service = Service(loaded.engine, config, log=log)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    scheme = "https" if config.certfile else "http"
    line = f"serving {config.name} on {scheme}://{shown}:{port}/v1 (Ctrl-C stops)"
    return run(service, listening, started=lambda: status.tell(line))
