"""One question, one answer: what goes to stdout, what to stderr, and how it ends."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from specgguf.cli import exits
from support.cli_support import DRIVER, Run, home, private_home, run
from support.fake_engine import FakeEngine, pieces

from specgguf.errors import Cancelled

__all__ = ["home", "run"]  # fixtures


def asked(fake: FakeEngine) -> str:
    """The only question that was asked."""
    assert len(fake.asked) == 1
    return str(fake.asked[0][-1]["content"])


def test_stdout_carries_the_answer_and_stderr_one_line(run: Run) -> None:
    fake = FakeEngine([pieces("The quick brown fox.", drafted="quick brown")])
    ran = run("chat", "What jumps?", fake=fake)
    assert (ran.code, ran.out) == (0, "The quick brown fox.\n")
    assert ran.err.count("\n") == 1
    for part in (
        "4 tokens in ",
        "tok/s",
        "draft 2/4 accepted (50 %)",
        "tokens per forward pass",
        "new + 0 cached",
        "context ",
    ):
        assert part in ran.err
    assert "\x1b" not in ran.out + ran.err
    assert fake.closed


def test_drafting_that_is_off_says_why(run: Run) -> None:
    ran = run("chat", "--draft", "off", "Hi")
    assert "drafting is off: nobody wants it" in ran.err


def test_answer_into_a_pipe_is_exact(run: Run) -> None:
    wild = "[/INST] \x1b[31mred\x07 \x9b1m \x00 \t[bold]x[/bold]\r\nend\n"
    assert run("chat", "x", fake=FakeEngine([[(wild, True)]])).raw == wild.encode()


@pytest.mark.parametrize(
    ("arguments", "stdin", "question"),
    [
        (["one", "two"], "", "one two"),
        (["summarise"], "line 1\nline 2\n", "summarise\n\nline 1\nline 2"),
        (["-"], "from stdin\n", "from stdin"),
        ([], "from stdin", "from stdin"),
        (["x"], b"bad \xff byte", "x\n\nbad \ufffd byte"),
        (["x"], b"\xef\xbb\xbfwith a mark", "x\n\nwith a mark"),
    ],
)
def test_questions(run: Run, arguments: list[str], stdin: str | bytes, question: str) -> None:
    fake = FakeEngine()
    assert run("chat", *arguments, fake=fake, stdin=stdin).code == 0
    assert asked(fake) == question


@pytest.mark.parametrize("arguments", [[], ["-"], [""], ["  "]])
def test_nothing_to_ask(run: Run, arguments: list[str]) -> None:
    ran = run("chat", *arguments)
    assert ran.code == exits.USAGE
    assert "nothing to ask" in ran.err


@pytest.mark.parametrize("flags", [["--continue"], ["--resume", "x"]], ids=" ".join)
def test_going_on_wants_a_terminal_or_a_question(run: Run, flags: list[str]) -> None:
    ran = run("chat", *flags)
    assert ran.code == 2
    assert f"{flags[0]} goes on in a terminal, or with a question behind it: stdin is neither" in ran.err


def test_json_is_one_completion(run: Run) -> None:
    ran = run("chat", "--json", "Hi", fake=FakeEngine([pieces("<think>hm</think>Yes.")]))
    record = json.loads(ran.out)
    assert ran.out.count("\n") == 1
    assert record["object"] == "chat.completion"
    message = record["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes.", "reasoning_content": "hm"}
    assert record["choices"][0]["finish_reason"] == "stop"
    assert {"predicted_per_second", "draft_n", "draft_n_accepted"} <= set(record["timings"])
    assert record["usage"]["completion_tokens"] == 1


def test_quiet_and_no_stats(run: Run) -> None:
    assert run("chat", "-q", "Hi").err == ""
    assert run("chat", "--no-stats", "Hi").err == ""


def test_highlight(run: Run) -> None:
    fake = FakeEngine([pieces("The quick fox", drafted="quick")])
    green = run("chat", "--highlight", "--color", "always", "x", fake=fake)
    assert green.out == "The\x1b[32m quick\x1b[0m fox\n"
    assert "written by the draft model" in green.err
    plain = run("chat", "--highlight", "x", fake=fake)
    assert plain.out == "The quick fox\n"  # no terminal: no escapes, and the legend says so
    assert "needs a terminal" in plain.err


def test_markdown_is_for_terminals_and_yields_to_highlighting(run: Run) -> None:
    fake = FakeEngine([pieces("# Title\n\nsome *words* here", drafted="here")])
    assert "\x1b[1mTitle" in run("chat", "--markdown", "--color", "always", "x", fake=fake).out
    assert run("chat", "--markdown", "x", fake=fake).out == "# Title\n\nsome *words* here\n"
    both = run("chat", "--markdown", "--highlight", "--color", "always", "x", fake=fake)
    assert "some *words*\x1b[32m here" in both.out
    assert "exclude each other" in both.err


def test_reasoning_goes_to_stderr(run: Run) -> None:
    fake = FakeEngine([[("<thi", False), ("nk>Let me", True), (" see</", True), ("think>\n\nYes.", False)]])
    shown = run("chat", "x", fake=fake)
    assert shown.out == "Yes.\n"
    assert "Let me see\n" in shown.err
    hidden = run("chat", "--think", "hide", "x", fake=fake)
    assert hidden.out == "Yes.\n"
    assert "Let me" not in hidden.err


def test_a_template_that_opens_the_reasoning(run: Run) -> None:
    fake = FakeEngine([pieces("inner voice</think> Yes.")], prompt_end="<think>")
    ran = run("chat", "x", fake=fake)
    assert ran.out == "Yes.\n"
    assert "inner voice" in ran.err


def test_tool_calls_are_shown_as_they_are(run: Run) -> None:
    call = '<tool_call>{"name": "f"}</tool_call>'
    assert run("chat", "x", fake=FakeEngine([[(call, False)]])).out == call + "\n"


def test_system_prompt_from_text_and_file(run: Run, home: Path) -> None:
    path = home / "system.txt"
    path.write_text("Be brief.\n")
    for given in ("Be brief.", f"@{path}"):
        fake = FakeEngine()
        run("chat", "-s", given, "x", fake=fake)
        assert fake.asked[0][0] == {"role": "system", "content": "Be brief."}


def test_sampling_flags_reach_the_engine(run: Run) -> None:
    fake = FakeEngine()
    flags = ["--temp", "0", "--top-k", "7", "--top-p", "0.5", "--min-p", "0.1", "--repeat-penalty", "1.2"]
    run("chat", *flags, "--max-tokens", "9", "--seed", "0", "--thinking", "off", "x", fake=fake)
    assert fake.keywords[0] == {
        "temperature": 0.0,
        "top_k": 7,
        "top_p": 0.5,
        "min_p": 0.1,
        "repeat_penalty": 1.2,
        "max_tokens": 9,
        "seed": 0,
        "enable_thinking": False,
    }


def test_a_resumed_conversation_keeps_its_system_prompt(run: Run, home: Path) -> None:
    run("chat", "-s", "Be brief.", "one")
    fake = FakeEngine()
    run("chat", "--continue", "two", fake=fake, SPECGGUF_SYSTEM="")
    assert fake.asked[0][0]["content"] == "Be brief."
    run("chat", "--continue", "-s", "Be long.", "three", fake=fake)
    assert fake.asked[1][0]["content"] == "Be long."


def test_an_empty_answer_is_told(run: Run) -> None:
    ran = run("chat", "x", fake=FakeEngine([[]]))
    assert (ran.code, ran.out) == (0, "")
    assert "the answer is empty" in ran.err


def test_interrupted(run: Run) -> None:
    assert run("chat", "x", fake=FakeEngine([Cancelled("stopped")])).code == exits.INTERRUPTED


def test_one_shot_can_be_continued(run: Run) -> None:
    run("chat", "My name is Ann.")
    fake = FakeEngine()
    ran = run("chat", "--continue", "What is my name?", fake=fake)
    assert [m["content"] for m in fake.asked[0]] == ["My name is Ann.", "Hello there.", "What is my name?"]
    assert ran.out == "Hello there.\n"
    run("chat", "Something else.")
    fresh = FakeEngine()
    ran = run("chat", "--continue", "And?", fake=fresh)
    assert fresh.asked[0][0]["content"] == "My name is Ann."  # a conversation by now: no single question replaces it
    assert "the question asked since: specgguf chat --resume one-shot" in ran.err
    run("chat", "--resume", "one-shot", "And?", fake=fresh)
    assert fresh.asked[1][0]["content"] == "Something else."


def test_no_save(run: Run, home: Path) -> None:
    run("chat", "--no-save", "secret")
    assert not list(home.rglob("*.json"))
    ran = run("chat", "--continue", "x")
    assert ran.code == exits.USAGE
    assert "no conversation to go on with" in ran.err


def test_a_closed_pipe_ends_quietly(tmp_path: Path) -> None:
    shell = f"{' '.join(DRIVER)} wild chat x 2>{tmp_path}/err | head -c 20"
    done = subprocess.run(
        ["bash", "-c", shell], capture_output=True, env=private_home(tmp_path) | {"PATH": "/usr/bin:/bin"}, timeout=60
    )
    assert len(done.stdout) == 20
    assert "Error" not in (tmp_path / "err").read_text()
    assert "Traceback" not in (tmp_path / "err").read_text()
