"""`specgguf batch` as it is typed: what it says, what it refuses, and that it can be killed anywhere."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specgguf.cli import exits, open_pair
from specgguf.cli.commands import batch as command
from specgguf.cli.main import cli
from specgguf.cli.settings import Settings
from specgguf.cli.terminal.status import StatusOutput
from support import batch_support
from support.batch_support import WAIT_S, Echo, chat, loaded, rows, text_of, write
from support.cli_support import Ran, home, private_home

from specgguf.batch.runner import Progress

__all__ = ["home"]  # fixture

DRIVER = [sys.executable, str(Path(batch_support.__file__)), "batch"]


@pytest.fixture
def engine() -> Echo:
    return Echo()


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch, engine: Echo) -> Any:
    """run(*arguments, stdin=b"") -> Ran: the command in the test's own folder."""
    monkeypatch.chdir(home)

    def open_engine(
        settings: Settings, status: StatusOutput, *, yes: bool = False, brief: bool = False, n_parallel_max: int = 1
    ) -> open_pair.Loaded:
        engine.n_parallel = settings["n_parallel"] or 1
        return loaded(engine)

    monkeypatch.setattr(open_pair, "open_engine", open_engine)

    def do(*arguments: str, stdin: bytes = b"") -> Ran:
        result: Any = CliRunner().invoke(cli, ["batch", *arguments], input=stdin, prog_name="specgguf")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)

    return do


def test_a_file_is_answered(run: Any, home: Path, engine: Echo) -> None:
    write(home / "in.jsonl", [chat("a", "one", model="gpt-4o"), chat("b", "two")])
    ran = run("in.jsonl", "-o", "out.jsonl", "--temperature", "0.3")
    assert (ran.code, ran.out) == (exits.OK, "")
    assert [text_of(row) for row in rows(home / "out.jsonl")] == ["answer to one", "answer to two"]
    assert "requests name the model 'gpt-4o': target answers them" in ran.err
    assert "2 requests, 6 tokens in " in ran.err
    assert ran.err.endswith("out.jsonl has 2 rows\n")
    assert {call["temperature"] for call in engine.asked} == {0.3}
    assert engine.closed


def test_a_second_run_has_nothing_to_do_and_loads_nothing(run: Any, home: Path, engine: Echo) -> None:
    write(home / "in.jsonl", [chat("a", "one")])
    run("in.jsonl", "-o", "out.jsonl")
    engine.closed = False
    ran = run("in.jsonl", "-o", "out.jsonl")
    assert (ran.code, ran.err) == (exits.OK, "nothing is left to do: out.jsonl has 1 rows\n")
    assert not engine.closed


def test_what_is_there_is_not_asked_again(run: Any, home: Path, engine: Echo) -> None:
    requests = [chat(str(i), f"question {i}") for i in range(5)]
    write(home / "in.jsonl", [*requests[:3]])
    run("in.jsonl", "-o", "out.jsonl")
    write(home / "in.jsonl", [*requests])
    ran = run("in.jsonl", "-o", "out.jsonl")
    assert "3 of 5 requests have their rows already" in ran.err
    assert [call["messages"][0]["content"] for call in engine.asked[3:]] == ["question 3", "question 4"]


def test_failures_are_rows_and_the_exit_code_says_so(run: Any, home: Path) -> None:
    write(home / "in.jsonl", [chat("good", "x"), chat("long one", "FULL"), "{", chat("stream", "x", stream=True)])
    ran = run("in.jsonl", "-o", "out.jsonl")
    assert ran.code == exits.FAILED
    assert "out.jsonl has 4 rows, 3 of them errors: 'long one', line 3, 'stream'; --retry-failed" in ran.err
    assert len(rows(home / "out.jsonl")) == 4
    again = run("in.jsonl", "-o", "out.jsonl")
    assert again.code == exits.FAILED
    assert "nothing is left to do: out.jsonl has 4 rows, 3 of them errors" in again.err


def test_failures_are_asked_again_where_that_is_wanted(run: Any, home: Path, engine: Echo) -> None:
    write(home / "in.jsonl", [chat("good", "x"), chat("bad", "FULL")])
    run("in.jsonl", "-o", "out.jsonl")
    engine._obey = lambda words, handle: None  # type: ignore[method-assign]
    ran = run("in.jsonl", "-o", "out.jsonl", "--retry-failed")
    assert ran.code == exits.OK
    assert sorted((row["custom_id"], text_of(row)) for row in rows(home / "out.jsonl")) == [
        ("bad", "answer to FULL"), ("good", "answer to x"),
    ]  # fmt: skip


def test_requests_come_from_stdin(run: Any, home: Path) -> None:
    data = write(home / "in.jsonl", [chat("a", "one")]).read_bytes()
    ran = run("-", "-o", "out.jsonl", stdin=data)
    assert ran.code == exits.OK
    assert len(rows(home / "out.jsonl")) == 1


def test_quiet_says_nothing(run: Any, home: Path) -> None:
    write(home / "in.jsonl", [chat("a", "one", model="x")])
    assert run("in.jsonl", "-o", "out.jsonl", "-q").err == ""


@pytest.mark.parametrize(
    ("arguments", "said", "code"),
    [
        (["no.jsonl", "-o", "out.jsonl"], "error: no.jsonl: no such file or directory\n", exits.FAILED),
        (["in.jsonl", "-o", "no/out.jsonl"], "error: no/out.jsonl: no such file or directory\n", exits.FAILED),
        (["in.jsonl", "-o", "."], "error: .: is a directory\n", exits.FAILED),
        (["in.jsonl", "-o", "in.jsonl"], "error: in.jsonl is the input itself\n  hint: -o names", exits.USAGE),
        (["in.jsonl"], "error: Missing option '-o'", exits.USAGE),
        (["twice.jsonl", "-o", "out.jsonl"], "custom_id stands on several lines: 'a' on lines 1, 2\n", exits.USAGE),
        (["empty.jsonl", "-o", "out.jsonl"], "error: empty.jsonl holds no request\n", exits.USAGE),
        (["in.jsonl", "-o", "notes.txt"], "error: notes.txt, line 1, is no row of a batch\n", exits.USAGE),
        (["in.jsonl", "-o", "other.jsonl"], "error: other.jsonl belongs to another input: ", exits.USAGE),
        (["in.jsonl", "-o", "out.jsonl", "--parallel", "x"], "n_parallel must be a whole number", exits.USAGE),
        (["in.jsonl", "-o", "out.jsonl", "--parallel", "0"], "n_parallel must be ", exits.USAGE),
        (
            ["in.jsonl", "-o", "out.jsonl", "--ray", "x"],
            "error: --ray x is no HOST:PORT\n  hint: ray status",
            exits.USAGE,
        ),
        (
            ["in.jsonl", "-o", "out.jsonl", "--ray", "127.0.0.1:1"],
            "no Ray cluster answers at 127.0.0.1:1: con",
            exits.FAILED,
        ),
        (["in.jsonl", "-o", "out.jsonl", "--ray", "--trace", "t"], "error: --trace is not for --ray: all", exits.USAGE),
        (["in.jsonl", "-o", "out.jsonl", "--temperature", "-1"], "temperature must be 0 or more", exits.USAGE),
    ],
)
def test_mistakes_are_one_line_and_cost_nothing(
    run: Any, home: Path, engine: Echo, arguments: list[str], said: str, code: int
) -> None:
    write(home / "in.jsonl", [chat("a", "one")])
    write(home / "twice.jsonl", [chat("a", "one"), chat("a", "two")])
    (home / "empty.jsonl").write_text("\n")
    (home / "notes.txt").write_text("my notes")
    row = {"id": "batch_req_1", "custom_id": "z", "response": None, "error": {"code": "x", "message": "y"}}
    write(home / "other.jsonl", [row])
    before = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    ran = run(*arguments)
    assert said in ran.err
    assert ran.code == code
    assert "Traceback" not in ran.err
    assert not engine.asked
    after = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file() and path.name != "out.jsonl"}
    assert after == before


def test_without_ray_its_install_line_is_said(run: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "in.jsonl", [chat("a", "one")])
    monkeypatch.setitem(sys.modules, "ray", None)
    ran = run("in.jsonl", "-o", "out.jsonl", "--ray")
    assert ran.code == exits.FAILED
    assert ran.err == "error: Ray is not installed, and --ray needs it\n  hint: pip install 'specgguf[ray]'\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_read_only_is_told_at_once(run: Any, home: Path, engine: Echo) -> None:
    write(home / "in.jsonl", [chat("a", "one")])
    (home / "closed").mkdir(mode=0o500)
    ran = run("in.jsonl", "-o", "closed/out.jsonl")
    assert ran.err == "error: closed/out.jsonl: permission denied\n"


def test_a_file_system_that_is_read_only_is_told_at_once(
    run: Any, home: Path, engine: Echo, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home / "in.jsonl", [chat("a", "one")])
    opened = os.open

    def read_only(path: Any, flags: int, *more: Any) -> int:
        if str(path).endswith("out.jsonl"):
            raise OSError(30, "Read-only file system", str(path))
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", read_only)
    assert run("in.jsonl", "-o", "out.jsonl").err == "error: out.jsonl: read-only file system\n"
    assert not engine.asked


def test_the_bar_shows_speed_and_time_left() -> None:
    shown = command.line(Progress(10, n_done=6, n_before=2, n_failed=1, n_tokens=800), 40.0)
    assert shown == "██████████████░░░░░░░░░░ 6 of 10  1 failed  20.0 tokens/s  40 s left"
    shown = command.line(Progress(10, n_done=5, where="1 of 2 nodes"), 20.0)
    assert shown == "████████████░░░░░░░░░░░░ 5 of 10  1 of 2 nodes  20 s left"
    assert command.line(Progress(10), 0.0) == "░░░░░░░░░░░░░░░░░░░░░░░░ 0 of 10"


# --- in a process of its own ----------------------------------------------------------------------------------


class Child:
    """`specgguf batch` over the echoing engine, in its own process."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.out = folder / "out.jsonl"
        self.process = subprocess.Popen(
            [*DRIVER, str(folder / "in.jsonl"), "-o", str(self.out), *arguments],
            env={**os.environ, **private_home(folder), "GATE": str(folder / "gate")},
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def until_rows(self, n: int) -> None:
        """Wait until `n` rows are whole."""
        end = time.monotonic() + WAIT_S
        while not self.out.exists() or self.out.read_bytes().count(b"\n") < n:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < end, f"never had {n} rows"
            time.sleep(0.002)

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Its exit code and what it said, after a signal."""
        if number is not None:
            self.process.send_signal(number)
        said = self.process.communicate(timeout=WAIT_S)[1]
        return self.process.returncode, said


def test_killed_three_times_every_request_has_one_row(tmp_path: Path) -> None:
    """kill -9 while three requests run and others are done; then a run to the end."""
    n = 60
    questions = [f"{i} GATE" if i % 20 in (17, 18, 19) else str(i) for i in range(n)]
    write(tmp_path / "in.jsonl", [chat(f"id {i}", question) for i, question in enumerate(questions)])
    for _ in range(3):  # those at the gate never pass: each run begins with the same ones, and none of them gets a row
        child = Child(tmp_path, "--parallel", "4")
        child.until_rows(min(17, n))
        assert child.end(signal.SIGKILL)[0] == -signal.SIGKILL
        done = rows(child.out)
        assert not [row for row in done if "GATE" in text_of(row)]
    (tmp_path / "gate").touch()
    code, said = Child(tmp_path, "--parallel", "4").end()
    assert code == exits.OK, said
    found = rows(tmp_path / "out.jsonl")
    assert sorted(row["custom_id"] for row in found) == sorted(f"id {i}" for i in range(n))
    assert {row["custom_id"]: text_of(row) for row in found} == {
        f"id {i}": f"answer to {question}" for i, question in enumerate(questions)
    }


def test_ctrl_c_ends_it_with_what_is_needed_to_go_on(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [chat("a", "x"), chat("b", "HANG"), chat("c", "x")])
    child = Child(tmp_path)
    child.until_rows(1)
    code, said = child.end(signal.SIGINT)
    assert code == exits.INTERRUPTED
    assert said.endswith(f"stopped: 1 of 3 requests have their rows in {child.out}; the same command goes on\n")
    assert "Traceback" not in said
    assert [row["custom_id"] for row in rows(child.out)] == ["a"]


def test_nothing_but_lines_goes_into_a_pipe(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [chat(str(i), "x") for i in range(3)])
    code, said = Child(tmp_path).end()
    assert code == exits.OK
    assert "\r" not in said
    assert "\x1b" not in said
    assert "█" not in said


def test_two_at_once_do_not_write_one_file(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [chat("a", "x"), chat("b", "HANG")])
    first = Child(tmp_path)
    first.until_rows(1)
    code, said = Child(tmp_path).end()
    assert code == exits.FAILED
    assert said == (f"error: another program is writing {first.out}\n  hint: wait for it, or -o names another file\n")
    assert first.end(signal.SIGINT)[0] == exits.INTERRUPTED


def test_rows_are_json_that_any_reader_takes(tmp_path: Path) -> None:
    write(tmp_path / "in.jsonl", [chat("ä\u2028", "wörter \u2029 und mehr")])
    assert Child(tmp_path).end()[0] == exits.OK
    (line,) = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert text_of(json.loads(line)) == "answer to wörter \u2029 und mehr"
