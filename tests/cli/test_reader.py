"""What is typed or pasted is what is sent: at any time, in any terminal, whatever it begins with."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pexpect
import pytest
from support.screen import CTRL_C, CTRL_D, UP, Screen, Start, record, saved, start, waits_for

__all__ = ["start"]  # a fixture

LINES = "def f(x):\n\tif x:\n\t\treturn 'a  b'\n\n# /exit"
PLAIN = [{"TERM": "dumb"}, {"TERM": ""}]


def pasted(text: str) -> str:
    """What a terminal with bracketed paste sends."""
    return "\x1b[200~" + text.replace("\n", "\r") + "\x1b[201~"


def leave(screen: Screen) -> None:
    screen.type(CTRL_D)
    assert screen.end() == 0


def questions(tmp_path: Path) -> list[str]:
    return [message["content"] for message in saved(tmp_path) if message["role"] == "user"]


def test_a_paste_while_loading_is_one_message(start: Start, tmp_path: Path) -> None:
    screen = start("load-gate", "chat", GATE=str(tmp_path / "gate"))
    screen.see("loading target.gguf …")
    screen.type(pasted(LINES) + "\r")
    (tmp_path / "gate").touch()
    screen.see("Answer number 1.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == [LINES]


def test_a_paste_while_an_answer_runs_is_one_message(start: Start, tmp_path: Path) -> None:
    screen = start("gate", "chat", GATE=str(tmp_path / "gate"))
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.type(pasted(LINES) + "\r")
    (tmp_path / "gate").touch()
    screen.see("Second answer.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == ["a story", LINES]


def test_what_was_typed_while_an_answer_ran_can_still_be_edited(start: Start, tmp_path: Path) -> None:
    screen = start("gate", "chat", GATE=str(tmp_path / "gate"))
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.type("and than")
    (tmp_path / "gate").touch()
    screen.see("and than")
    screen.type("\x7f\x7fen?\r")
    screen.see("Second answer.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == ["a story", "and then?"]


@pytest.mark.parametrize("variables", PLAIN, ids=["dumb", "no TERM"])
def test_lines_that_arrive_together_are_one_message_in_a_plain_terminal(
    start: Start, tmp_path: Path, variables: dict[str, str]
) -> None:
    text = "\n".join([LINES, *(f"line {n}" for n in range(7))])
    screen = start("many", "chat", **variables)
    screen.see("> ")
    screen.type(text.replace("\n", "\r") + "\r")
    screen.see("Answer number 1.")
    screen.see("> ")
    screen.ask("typed")
    screen.see("Answer number 2.")
    screen.see("> ")
    leave(screen)
    assert questions(tmp_path) == [text, "typed"]


@pytest.mark.parametrize("variables", PLAIN, ids=["dumb", "no TERM"])
def test_a_paste_without_a_last_line_end_waits_for_enter(
    start: Start, tmp_path: Path, variables: dict[str, str]
) -> None:
    screen = start("many", "chat", **variables)
    screen.see("> ")
    screen.type("one\rtwo")
    screen.see("two")
    screen.type("!\r")
    screen.see("Answer number 1.")
    screen.see("> ")
    leave(screen)
    assert questions(tmp_path) == ["one\ntwo!"]


def test_lines_pasted_while_loading_are_one_message_in_a_plain_terminal(start: Start, tmp_path: Path) -> None:
    screen = start("load-gate", "chat", TERM="dumb", GATE=str(tmp_path / "gate"))
    waits_for(screen, lambda: not screen.child.getecho())  # before that the line is not ours
    screen.type("one\rtwo\rthree\r")
    (tmp_path / "gate").touch()
    screen.see("Answer number 1.")
    screen.see("> ")
    leave(screen)
    assert questions(tmp_path) == ["one\ntwo\nthree"]


@pytest.mark.parametrize("variables", [*PLAIN, {}], ids=["dumb", "no TERM", "xterm"])
def test_a_line_longer_than_a_line_discipline_takes(start: Start, tmp_path: Path, variables: dict[str, str]) -> None:
    text = "0123456789" * 900
    screen = start("many", "chat", columns=200, **variables)
    ready = (lambda: screen.see("> ")) if variables else screen.prompt
    ready()
    screen.ask(text)
    screen.see("Answer number 1.")
    ready()
    leave(screen)
    assert questions(tmp_path) == [text]


def test_a_long_line_pasted_while_an_answer_runs(start: Start, tmp_path: Path) -> None:
    text = "0123456789" * 900
    screen = start("gate", "chat", GATE=str(tmp_path / "gate"))
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.type(pasted(text) + "\r")
    (tmp_path / "gate").touch()
    screen.see("[9,000 characters]")
    screen.see("Second answer.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == ["a story", text]


@pytest.mark.parametrize(
    "text",
    [
        '"""A module."""\n\nx = 1',
        '"""A module.\n\nx = 1',
        "// a comment\nint x;",
        "/* a comment */\nint x;",
        "/help",
        "exit",
        "/etc/passwd",
        "  indented\n\tand a tab\n",
    ],
)
def test_a_paste_is_sent_as_it_is_whatever_it_begins_with(start: Start, tmp_path: Path, text: str) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.type(pasted(text) + "\r")
    screen.see("Answer number 1.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == [text]


def test_a_large_paste_is_folded_between_what_is_typed(start: Start, tmp_path: Path) -> None:
    text = "\n".join(f"line {n}" for n in range(100))
    screen = start("many", "chat")
    screen.prompt()
    screen.type("first ")
    screen.type(pasted(text))
    screen.see("[100 lines]")
    screen.type(pasted(text))
    screen.see("[100 lines, 2]")
    screen.type("\x7f")  # erases the second one, as a whole
    screen.type(" last\r")
    screen.see("Answer number 1.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == [f"first {text} last"]


@pytest.mark.parametrize("keys", ["\x1b\r", "\x1b[13;2u", "\x1b[27;2;13~", "\x1b[13;3u", "\x1b[27;3;13~"])
def test_shift_enter_and_alt_enter_add_a_line(start: Start, tmp_path: Path, keys: str) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.type(f"one{keys}two\r")
    screen.see("Answer number 1.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == ["one\ntwo"]


def test_what_ctrl_c_discards_is_in_the_history(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.type("half a thought")
    screen.see("half a thought")
    screen.type(CTRL_C)
    screen.see("\x1b[K")
    screen.type(UP)
    screen.see("half a thought")
    screen.type("!\r")
    screen.see("Answer number 1.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == ["half a thought!"]


def test_what_was_typed_ahead_and_not_sent_is_in_the_history(start: Start, tmp_path: Path) -> None:
    screen = start("deaf", "chat")
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.type("never sent")
    screen.type(CTRL_C)
    screen.see("(cancel was asked)")
    screen.type(CTRL_C)
    assert screen.end() == 130
    assert "+never sent\n" in (tmp_path / "data" / "specgguf" / "history").read_text()


@pytest.mark.parametrize("word", ["exit", "quit", "bye"])
def test_a_word_that_leaves(start: Start, tmp_path: Path, word: str) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.ask(word)
    assert screen.end() == 0


def test_bytes_that_are_no_text_are_told(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat")
    screen.prompt()
    os.write(screen.child.child_fd, b"caf\xe9!\r")
    screen.see("the message held bytes that are not UTF-8")
    screen.see("Answer number 1.")
    screen.prompt()
    leave(screen)
    assert questions(tmp_path) == ["caf\ufffd!"]


def test_editing_in_a_plain_terminal(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat", TERM="dumb")
    screen.see("> ")
    screen.type("one twx\x7fo three\x17four")
    screen.see("four")
    screen.type("\r")
    screen.see("Answer number 1.")
    screen.see("> ")
    screen.type("gone\x15")
    screen.see("gone")
    screen.type("kept")
    screen.see("kept")
    screen.type(CTRL_C)
    screen.see("^C")
    screen.see("> ")
    screen.ask("second")
    screen.see("Answer number 2.")
    screen.see("> ")
    leave(screen)
    assert questions(tmp_path) == ["one two four", "second"]


def test_terminate_while_loading_leaves_the_terminal_as_it_was(start: Start) -> None:
    screen = start("loading", "chat")
    screen.see("loading target.gguf …")
    assert not screen.child.getecho()
    screen.child.kill(signal.SIGTERM)
    screen.child.expect(pexpect.EOF)
    assert screen.child.getecho()
    assert screen.end() == 128 + signal.SIGTERM


def test_what_was_typed_while_loading_is_in_the_history_after_ctrl_c(start: Start, tmp_path: Path) -> None:
    screen = start("loading", "chat")
    screen.see("loading target.gguf …")
    screen.type("a question\r\x1b[200~two\nlines\x1b[201~ and more")
    screen.see("loading target.gguf …")
    screen.type(CTRL_C)
    assert screen.end() == 130
    again = start("plain", "chat")
    again.prompt()
    again.type(UP)
    again.see("lines and more")
    again.type(UP * 2)
    again.see("a question")
    again.type(CTRL_C)


def test_ctrl_z_and_back_while_an_answer_runs_keeps_the_keyboard_silent(start: Start, tmp_path: Path) -> None:
    screen = start("gate", "chat", GATE=str(tmp_path / "gate"))
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.child.setecho(True)  # as a shell does that gets the terminal
    screen.child.kill(signal.SIGSTOP)
    screen.child.kill(signal.SIGCONT)
    waits_for(screen, lambda: not screen.child.getecho())
    screen.type("typed\r")
    (tmp_path / "gate").touch()
    screen.see("Second answer.")
    screen.prompt()
    leave(screen)
    assert record(tmp_path)["pending"] == ""
    assert questions(tmp_path) == ["a story", "typed"]


def test_a_window_that_is_closed_in_mid_answer_keeps_what_was_shown(start: Start, tmp_path: Path) -> None:
    screen = start("slow", "chat")
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.child.close(force=False)  # the terminal is gone: SIGHUP, and nothing can be written to it
    again = start("many", "chat", "--continue")
    again.see("Once upon a time")
    again.prompt()
    leave(again)
    assert questions(tmp_path) == ["a story"]
