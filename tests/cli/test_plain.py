"""Words instead of signs: --plain, how drafted words are marked, and calling somebody who looked away."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cli_support import Run, converse, home, run
from support.fake_engine import FakeEngine, pieces
from support.screen import CTRL_D, Start, saved, start, waits_for

__all__ = ["converse", "home", "run", "start"]
DRAFTED = [pieces("The quick brown fox.", drafted="quick")]


def test_plain_speaks_in_words_and_moves_no_cursor(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat", "--plain", "--highlight")
    before = screen.see("You: ")
    screen.ask("hello")
    before += screen.see("Answer: Answer number 1.")
    before += screen.see("tokens in")
    before += screen.see("\r\n\r\nYou: ")  # a blank line between turns
    assert "\x1b" not in before
    screen.type(CTRL_D)
    assert screen.end() == 0


def test_plain_breaks_no_word_though_it_moves_no_cursor(start: Start) -> None:
    screen = start("prose", "chat", "--plain", columns=40)
    screen.see("You: ")
    screen.ask("hello")
    screen.see("\r\n")
    shown = screen.see("The end.")
    assert "\x1b" not in shown
    lines = shown.split("\r\n")
    assert len(lines) > 8
    assert all(len(line) < 40 for line in lines)
    assert {word for line in lines for word in line.split()} <= {"Answer:", "word", "words", "wordier"}


def test_plain_takes_a_paste_of_many_lines_as_one_message(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat", "--plain")
    screen.see("You: ")
    screen.type("one\n\ttwo\nthree\n")
    screen.see("Answer number 1.")
    waits_for(screen, lambda: len(saved(tmp_path)) == 2)
    assert saved(tmp_path)[0]["content"] == "one\n\ttwo\nthree"


def test_plain_in_a_pipe_is_the_answer_alone(run: Run) -> None:
    ran = run("chat", "--plain", "x", fake=FakeEngine(DRAFTED))
    assert ran.out == "The quick brown fox.\n"
    assert "Answer:" not in ran.err


def test_plain_tells_reasoning_from_the_answer(run: Run) -> None:
    ran = run("chat", "--plain", "x", fake=FakeEngine([pieces("<think>deep</think>Yes.")]))
    assert "Reasoning: deep" in ran.err
    assert ran.out == "Yes.\n"


@pytest.mark.parametrize(
    ("flag", "marked"),
    [
        ("--highlight", "\x1b[32m quick\x1b[0m"),
        ("--highlight=green", "\x1b[32m quick\x1b[0m"),
        ("--highlight=underline", "\x1b[4m quick\x1b[0m"),
        ("--highlight=bold", "\x1b[1m quick\x1b[0m"),
        ("--highlight=off", " quick"),
    ],
)
def test_how_drafted_words_are_marked(run: Run, flag: str, marked: str) -> None:
    """A word behind the bare flag is the question's, not the flag's."""
    ran = run("chat", "--color", "always", flag, "x", fake=FakeEngine(DRAFTED))
    assert ran.out == f"The{marked} brown fox.\n"


def test_a_wrong_style_is_refused_by_name(run: Run) -> None:
    ran = run("chat", "--highlight=red", "x")
    assert ran.code == 2
    assert "highlight must be off, on, green, underline, bold, not 'red'" in ran.err


def test_highlight_by_command(converse: Run) -> None:
    ran = converse("x", "/highlight bold", fake=FakeEngine(DRAFTED), flags=["--color", "always"])
    assert "\x1b[1m quick\x1b[0m" in ran.out


def test_a_long_answer_rings_and_names_the_window_until_somebody_is_there(start: Start) -> None:
    screen = start("many", "chat", "--bell", "0.000001")
    screen.prompt()
    screen.ask("hello")
    screen.see("Answer number 1.")
    screen.see("\x07\x1b[22;0t\x1b]0;specgguf: answered\x07")
    screen.prompt()
    screen.ask("again")
    screen.see("\x1b[23;0t")
    screen.see("Answer number 2.")
    screen.prompt()
    screen.type(CTRL_D)
    screen.see("\x1b[23;0t")
    assert screen.end() == 0


@pytest.mark.parametrize("flags", [["--bell", "0"], ["--plain", "--bell", "0.000001"], []], ids=" ".join)
def test_no_bell_where_none_is_wanted(start: Start, flags: list[str]) -> None:
    screen = start("many", "chat", *flags)
    screen.see("leave")
    screen.ask("hello")
    before = screen.see("number 1.") + screen.see("tokens in")
    screen.type(CTRL_D)
    assert "\x07" not in before + screen.see("saved as")


def test_prose_is_wrapped_at_100_columns_of_a_wide_terminal(start: Start) -> None:
    screen = start("prose", "chat", columns=160)
    screen.prompt()
    screen.ask("hello")
    before = screen.see("The end.")
    lines = before[before.index("word") :].replace("\x1b[K", "").split("\r\n")
    assert len(lines) > 2
    assert all(80 < len(line) <= 100 for line in lines[:-1]), lines
