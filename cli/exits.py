"""How the program ends: exit codes, and an error as one line with a hint.

Every exception that leaves a command comes through here. It knows nothing of models or conversations.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Sequence

import click

from specgguf.errors import Cancelled, ConfigError, SpecggufError

OK = 0
FAILED = 1
USAGE = 2
INTERRUPTED = 130


def wants_traceback(args: Sequence[str]) -> bool:
    """Whether `--debug` stands among `args` (before any `--`), or SPECGGUF_DEBUG is set."""
    words = list(args)
    if "--" in words:
        words = words[: words.index("--")]
    return "--debug" in words or os.environ.get("SPECGGUF_DEBUG", "") not in ("", "0")


def describe(error: BaseException) -> tuple[str, str]:
    """One line that names what is wrong, and what to do next (or an empty string)."""
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else "specgguf"
        return _one_line(error.format_message()), f"{path} --help lists what can be said"
    if isinstance(error, click.ClickException):
        return _one_line(error.format_message()), ""
    if isinstance(error, SpecggufError):
        return _one_line(str(error)), error.hint
    if isinstance(error, OSError) and error.strerror:
        name = f"{error.filename}: " if error.filename else "stdout: " if error.errno == errno.EBADF else ""
        return f"{name}{error.strerror.lower()}", ""
    if isinstance(error, MemoryError):
        return "out of memory", "a smaller --n-ctx or a smaller model needs less"
    text = _one_line(str(error))
    return f"unexpected {type(error).__name__}" + (f": {text}" if text else ""), (
        "--debug shows the traceback; please report it"
    )


def exit_code(error: BaseException) -> int:
    """The exit code that `error` leads to."""
    if isinstance(error, KeyboardInterrupt | click.Abort | Cancelled):
        return INTERRUPTED
    if isinstance(error, click.UsageError | ConfigError):
        return USAGE
    return FAILED


def report(error: BaseException, *, debug: bool) -> int:
    """Tell stderr about `error` and return the exit code. An interruption needs no words."""
    code = exit_code(error)
    if debug:
        traceback.print_exception(error, file=sys.stderr)
    if type(error).__name__ == "NoArgsIsHelpError":  # click 8.2 and later: a group without a command
        click.echo(str(error), err=True)
    elif code != INTERRUPTED:
        message, hint = describe(error)
        click.echo(f"error: {message}", err=True)
        if hint:
            click.echo(f"  hint: {hint}", err=True)
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        silence_stdout()
    return code


def open_streams() -> None:
    """Standard streams that can be used: a closed one becomes the null device, or, for answers, one that refuses
    them. What an encoding other than UTF-8 lacks is written as "?"."""
    for name, mode, flags in (("stdin", "r", os.O_RDONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY)):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), mode, encoding="utf-8", errors="replace"))
        elif mode == "w" and str(stream.encoding).lower() not in ("utf-8", "utf8"):
            stream.reconfigure(errors="replace")


def silence_stdout() -> None:
    """Where stdout takes no more: let nothing, not even the interpreter's last flush, write to stdout again."""
    try:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)
    except (OSError, ValueError):
        pass  # stdout is no file (a test's buffer): nothing to protect


def _one_line(text: str) -> str:
    return " ".join(text.split())
