"""The `specgguf` command itself: what it imports, how it groups, how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from specgguf.cli import exits, main
from specgguf.cli.terminal import tables
from support.cli_support import Run, home, run
from support.fake_engine import FakeEngine

from specgguf.errors import BackendError, Cancelled, ConfigError, ModelNotFound

__all__ = ["home", "run"]  # fixtures

HEAVY = ["llama_cpp", "numpy", "prompt_toolkit", "rich", "huggingface_hub", "platformdirs"]


@pytest.mark.parametrize("arguments", [["--help"], ["chat", "--help"], ["--version"]])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import json, sys\n"
        "from specgguf.cli.main import cli\n"
        f"try: cli.main({arguments!r}, 'specgguf')\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert "click" in loaded
    assert [name for name in HEAVY if name in loaded] == []


def test_help_groups_the_commands(run: Run) -> None:
    out = run("--help").out
    places = [out.index(f"{section}:") for section in ("Talk", "Measure", "Models", "Keep")]
    assert places == sorted(places)
    for name in main.COMMANDS:
        assert f"\n  {name} " in out


def helps(run: Run, name: str) -> Iterator[str]:
    """The lines of a command's help, and of those below it."""
    command = main.cli.get_command(click.Context(main.cli), name)
    for child in [[], *([child] for child in getattr(command, "commands", ()))]:
        ran = run(name, *child, "--help", COLUMNS="80")
        assert ran.out.startswith(" ".join(["Usage: specgguf", name, *child]))
        yield from ran.out.splitlines()


@pytest.mark.parametrize("name", ["", *main.COMMANDS])
def test_help_fits_80_columns_and_is_not_cut(run: Run, name: str) -> None:
    """What click cuts ends in dots; what is not to be wrapped may be too long."""
    lines = helps(run, name) if name else run("--help", COLUMNS="80").out.splitlines()
    for line in lines:
        assert len(line) <= 80, line
        assert not line.endswith("...") or line.endswith("]...") or line.startswith("Usage: "), line


def test_tables_fold_their_last_column() -> None:
    rows = [("demo", 1, "small and quick, a first try"), ("other", 22, "x")]
    whole = ["demo    1  small and quick, a first try", "other  22  x"]
    assert tables.lines(rows, right=(1,)) == tables.lines(rows, right=(1,), width=60) == whole
    folded = ["demo    1  small and quick, a", "           first try", "other  22  x"]
    assert tables.lines(rows, right=(1,), width=33) == folded
    assert tables.lines(rows, right=(1,), width=20) == whole  # no room: left to the terminal


def test_a_command_that_cannot_be_imported_does_not_break_help(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(main.COMMANDS, "ghost", ("Keep", "Not there."))
    assert "ghost" in run("--help").out
    ran = run("ghost")
    assert ran.code == exits.FAILED
    assert "ghost" in ran.err


@pytest.mark.parametrize("group", [(), ("sessions",), ("models",), ("config",)])
def test_a_group_without_a_command_shows_its_help(run: Run, group: tuple[str, ...]) -> None:
    ran = run(*group)
    shown = ran.out + ran.err  # click 8.1: on stdout
    assert shown.startswith(" ".join(["Usage: specgguf", *group]))
    assert shown.strip() == run(*group, "--help").out.strip()


def test_unknown_command_names_the_nearest(run: Run) -> None:
    ran = run("chta")
    assert ran.code == exits.USAGE
    assert "did you mean 'chat'?" in ran.err
    assert ran.out == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chat", "--bogus", "x"], "--bogus"),
        (["chat", "--temp", "warm", "x"], "must be a number, not 'warm'"),
        (["chat", "--draft", "99", "x"], "from 1 to 16"),
        (["chat", "--think", "loud", "x"], "dim, show, hide"),
        (["chat", "--top-p", "-1", "x"], "top_p"),
        (["chat", "--continue", "--resume", "a", "x"], "exclude each other"),
        (["chat", "--system", "@/no/such/file", "x"], "no such file"),
        (["completion", "tcsh"], "tcsh"),
    ],
)
def test_usage_errors_are_one_line_and_code_2(run: Run, arguments: list[str], said: str) -> None:
    ran = run(*arguments)
    assert ran.code == exits.USAGE
    first, *rest = ran.err.splitlines()
    assert first.startswith("error: ")
    assert said in first
    assert all(line.startswith("  hint: ") for line in rest)
    assert ran.out == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelNotFound("no such file: x.gguf", hint="look elsewhere"), exits.FAILED),
        (ConfigError("wrong"), exits.USAGE),
        (BackendError("llama.cpp\nfailed"), exits.FAILED),
        (RuntimeError("odd"), exits.FAILED),
        (Cancelled("stopped"), exits.INTERRUPTED),
        (KeyboardInterrupt(), exits.INTERRUPTED),
        (click.Abort(), exits.INTERRUPTED),
        (MemoryError(), exits.FAILED),
    ],
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.report(error, debug=False) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if line.startswith("error: ")]) == (code != 130)


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("<&- 2>&-", 0, ""),
        (">&-", 1, "error: stdout: bad file descriptor\n"),
        (">/dev/full", 1, "error: no space left on device\n"),
        ("<&- >&- 2>&-", 1, ""),
    ],
)
def test_streams_that_are_closed_or_full(how: str, code: int, said: str) -> None:
    """As daemons and cron leave them; Python makes None of them."""
    run = [sys.executable, "-P", "-c", "from specgguf.cli.main import main; main(['--version'])"]
    done = subprocess.run(
        ["bash", "-c", f'"$@" {how}', "bash", *run],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (code, said)


def test_what_an_encoding_lacks_does_not_end_an_answer() -> None:
    program = "from specgguf.cli import exits; exits.open_streams(); print('é ✓')"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, b"\xe9 ?\n")


def test_an_error_of_the_engine_is_one_line_and_a_hint(run: Run) -> None:
    ran = run("chat", "hi", fake=FakeEngine([ModelNotFound("gone", hint="fetch it")]))
    assert (ran.code, ran.out) == (exits.FAILED, "")
    assert ran.err == "error: gone\n  hint: fetch it\n"


@pytest.mark.parametrize("arguments", [["chat", "hi", "--debug"], ["chat", "--debug", "hi"], ["--debug", "chat", "hi"]])
def test_debug_shows_the_traceback(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments, fake=FakeEngine([RuntimeError("odd")]))
    assert ran.code == exits.FAILED
    assert "Traceback" in ran.err
    assert "unexpected RuntimeError: odd" in ran.err


def test_debug_after_two_dashes_is_text(run: Run) -> None:
    ran = run("chat", "--", "--debug", fake=FakeEngine([RuntimeError("odd")]))
    assert "Traceback" not in ran.err


def test_version(run: Run) -> None:
    assert run("--version").out.startswith("specgguf ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run: Run, shell: str) -> None:
    ran = run("completion", shell)
    assert ran.code == 0
    assert "_SPECGGUF_COMPLETE" in ran.out


def test_completion_knows_flags_and_words(run: Run) -> None:
    def complete(line: str) -> list[str]:
        words = line.split(" ")
        return run(_SPECGGUF_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)).out.splitlines()

    assert "plain,chat" in complete("specgguf ch")
    assert "plain,--draft-max" in complete("specgguf chat --draft-m")
    assert complete("specgguf chat --think d") == ["plain,dim"]
    assert complete("specgguf chat --type-k q8") == ["plain,q8_0"]
    assert "plain,demo" in complete("specgguf chat -m de")
    assert complete("specgguf chat -m ./x") == ["file,./x"]
