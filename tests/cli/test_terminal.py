"""The program in a real terminal: streaming, Ctrl-C everywhere, editing, pasting, resizing.

Each test waits for what must appear on the screen, never for the clock.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pexpect
import pytest
from support.screen import CTRL_C, CTRL_D, ESC_ENTER, UP, Start, record, saved, start, waits_for

__all__ = ["start"]  # a fixture


def test_a_conversation(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat")
    screen.see("target.gguf | draft draft.gguf | context 1,000, loaded in")
    screen.see("/help")
    screen.see("/highlight shows")  # the first run only
    screen.prompt()
    screen.ask("hello")
    screen.see("Answer number 1.\r\n")
    screen.see("tok/s")
    screen.prompt()
    screen.ask("again")
    screen.see("Answer number 2.")
    screen.see("cached")
    screen.prompt()
    screen.type(CTRL_D)
    screen.see("specgguf chat --continue")
    assert screen.end() == 0
    assert [m["content"] for m in saved(tmp_path)] == ["hello", "Answer number 1.", "again", "Answer number 2."]
    second = start("many", "chat")
    second.see("loaded in")
    second.prompt()
    assert "/highlight shows" not in second.child.before
    second.ask("/exit")
    assert second.end() == 0


def test_loading_tells_the_seconds_and_ctrl_c_ends_it(start: Start) -> None:
    screen = start("loading", "chat")
    screen.see("loading target.gguf … 0.")
    screen.see("loading target.gguf … ")
    screen.type(CTRL_C)
    assert screen.end() == 130


def test_a_large_download_is_announced_and_asked_for(start: Start) -> None:
    screen = start("real", "chat", "-p", "demo")
    screen.see("1.6 GB to download")
    screen.see("[Y/n]")
    screen.type("n\r")
    screen.see("nothing was downloaded")
    assert screen.end() == 1


def test_it_streams(start: Start) -> None:
    screen = start("slow", "chat")
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")  # while the engine still works on the rest
    screen.type(CTRL_C)
    screen.prompt()


def test_ctrl_c_in_generation_keeps_the_partial_answer(start: Start, tmp_path: Path) -> None:
    screen = start("slow", "chat")
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.type(CTRL_C)
    screen.see("stopped")
    screen.prompt()
    screen.ask("go on")
    screen.see("Second answer.")
    screen.prompt()
    screen.type(CTRL_D)
    assert screen.end() == 0
    assert [m["content"] for m in saved(tmp_path)] == ["a story", "Once upon a time", "go on", "Second answer."]


def test_ctrl_c_in_prefill_takes_the_question_back(start: Start, tmp_path: Path) -> None:
    screen = start("prefill", "chat")
    screen.prompt()
    screen.ask("word " * 300)
    screen.see("reading 302 tokens")
    screen.type(CTRL_C)
    screen.see("stopped before the first word")
    screen.prompt()
    screen.ask("/retry")
    screen.see("Second answer.")
    screen.prompt()
    screen.type(CTRL_D)
    assert screen.end() == 0
    assert len(saved(tmp_path)) == 2


@pytest.mark.skipif(sys.platform != "linux", reason="the scene uses a mutex of glibc's")
def test_ctrl_c_reaches_an_engine_that_is_inside_a_native_call(start: Start) -> None:
    screen = start("native", "chat")
    screen.prompt()
    screen.ask("word " * 300)
    screen.see("reading 302 tokens")
    screen.type(CTRL_C)
    screen.see("stopped before the first word")
    screen.prompt()
    screen.ask("again")
    screen.see("Second answer.")


def test_second_ctrl_c_leaves_with_130(start: Start, tmp_path: Path) -> None:
    screen = start("deaf", "chat")
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.type(CTRL_C)
    screen.see("(cancel was asked)")
    screen.type(CTRL_C)
    assert screen.end() == 130
    assert saved(tmp_path)[-1]["content"] == "Once upon a time"


def test_one_shot_ctrl_c_is_130(start: Start) -> None:
    screen = start("slow", "chat", "a story")
    screen.see("Once upon a time")
    screen.type(CTRL_C)
    assert screen.end() == 130


def test_ctrl_c_at_the_prompt(start: Start) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.type("half a line")
    screen.see("half a line")
    screen.type(CTRL_C)  # clears it
    screen.ask("whole line")
    screen.see("Answer number 1.")
    screen.prompt()
    screen.type(CTRL_C)
    screen.see("Ctrl-C again leaves")
    screen.prompt()
    screen.type(CTRL_C)
    assert screen.end() == 130


def test_a_cleared_line_is_not_sent(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.type("half a line")
    screen.see("half a line")
    screen.type(CTRL_C)
    screen.ask("whole line")
    screen.see("Answer number 1.")
    screen.prompt()
    screen.type(CTRL_D)
    screen.end()
    assert saved(tmp_path)[0]["content"] == "whole line"


@pytest.mark.parametrize(
    "keys", [f"one{ESC_ENTER}two{ESC_ENTER}three\r", '"""one\rtwo\rthree"""\r', '"""\rone\rtwo\rthree\r"""\r']
)
def test_many_lines(start: Start, tmp_path: Path, keys: str) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.type(keys)
    screen.see("Answer number 1.")
    screen.prompt()
    screen.type(CTRL_D)
    screen.end()
    assert saved(tmp_path)[0]["content"] == "one\ntwo\nthree"


def test_a_paste_of_200_lines_is_one_message(start: Start, tmp_path: Path) -> None:
    text = "\n".join(f"line {n} /exit" for n in range(200))
    screen = start("many", "chat")
    screen.prompt()
    screen.type(f"\x1b[200~{text}\x1b[201~")
    screen.see("[200 lines]")
    screen.type("\r")
    screen.see("Answer number 1.")
    screen.prompt()
    screen.type(CTRL_D)
    screen.end()
    assert saved(tmp_path)[0]["content"] == text


def test_history_survives_and_is_private(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.ask("remember me")
    screen.see("Answer number 1.")
    screen.prompt()
    screen.type(CTRL_D)
    screen.end()
    assert (tmp_path / "data" / "specgguf" / "history").stat().st_mode & 0o777 == 0o600
    second = start("many", "chat", "--no-save")
    second.prompt()
    second.type(UP)
    second.see("remember me")
    second.type("\r")
    second.see("Answer number 1.")
    second.prompt()
    second.type(CTRL_D)
    assert second.end() == 0


def test_no_history(start: Start, tmp_path: Path) -> None:
    screen = start("many", "chat", "--no-history", "--no-save")
    screen.prompt()
    screen.ask("forget me")
    screen.see("Answer number 1.")
    screen.prompt()
    screen.type(CTRL_D)
    screen.end()
    assert "forget me" not in "".join(p.read_text() for p in tmp_path.rglob("*") if p.is_file())


def test_resize_while_typing_and_while_streaming(start: Start, tmp_path: Path) -> None:
    screen = start("slow", "chat")
    screen.prompt()
    screen.type("a rather long question")
    screen.see("question")
    screen.child.setwinsize(10, 30)
    screen.type(" indeed\r")
    screen.see("Once upon a time")
    screen.child.setwinsize(50, 200)
    screen.type(CTRL_C)
    screen.prompt()
    screen.type(CTRL_D)
    assert screen.end() == 0
    assert saved(tmp_path)[0]["content"] == "a rather long question indeed"


def test_completion_of_commands(start: Start) -> None:
    screen = start("many", "chat")
    screen.prompt()
    screen.type("/hi\t")
    screen.see("ghlight")
    screen.type("\r")
    screen.see("highlighting is on")


def test_highlight_shows_who_wrote_what(start: Start) -> None:
    screen = start("plain", "chat", "--highlight")
    screen.see("\x1b[32mwritten by the draft model")
    screen.prompt()
    screen.ask("x")
    screen.see("The\x1b[32m quick\x1b[0m\x1b[32m brown\x1b[0m fox")


def test_highlight_underlines_without_colour(start: Start) -> None:
    screen = start("plain", "chat", "--highlight", NO_COLOR="1")
    screen.prompt()
    screen.ask("x")
    screen.see("The\x1b[4m quick\x1b[0m")
    before = screen.see("jumps.")
    assert "\x1b[3" not in before


def test_a_dumb_terminal_gets_no_escapes(start: Start) -> None:
    screen = start("plain", "chat", "--highlight", TERM="dumb")
    screen.see("> ")
    screen.ask("hello")
    screen.see("The quick brown fox jumps.")
    screen.see("> ")
    screen.type(CTRL_C)
    screen.see("Ctrl-C again leaves")
    screen.see("> ")
    screen.type(CTRL_D)
    screen.see("--continue")
    assert "\x1b" not in screen.child.before
    assert screen.end() == 0


def test_wild_text_cannot_drive_the_terminal(start: Start) -> None:
    screen = start("wild", "chat", "x")
    shown = screen.see("tok/s")
    answer = shown[shown.index("[/INST]") :]
    assert "\x1b[31m" not in answer
    assert not set("\x07\x00\x9b") & set(answer)
    assert "[31mred" in answer
    assert "x" * 10_000 in answer.replace("\r\n", "")


def test_an_engine_that_breaks_does_not_end_the_conversation(start: Start) -> None:
    screen = start("broken", "chat")
    screen.prompt()
    screen.ask("x")
    screen.see("Half")
    screen.see("unexpected RuntimeError: the engine broke")
    screen.prompt()
    screen.ask("y")
    screen.see("Second answer.")


def test_what_was_typed_while_it_answered_is_sent_next(start: Start, tmp_path: Path) -> None:
    screen = start("gate", "chat", GATE=str(tmp_path / "gate"))
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    screen.type("typed ahead\r")
    screen.see("> typed ahead")
    screen.see("(sent when the answer ends)")
    (tmp_path / "gate").touch()
    screen.see("tok/s")
    screen.see("Second answer.")
    screen.prompt()
    screen.type(CTRL_D)
    assert screen.end() == 0
    assert saved(tmp_path)[2]["content"] == "typed ahead"


def test_terminate_leaves_the_terminal_as_it_was(start: Start) -> None:
    screen = start("slow", "chat")
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    assert not screen.child.getecho()
    screen.child.kill(signal.SIGTERM)
    screen.child.expect(pexpect.EOF)
    assert screen.child.getecho()
    assert screen.end() == 128 + signal.SIGTERM


def test_terminate_ends_the_line_of_a_single_answer(start: Start) -> None:
    screen = start("slow", "chat", "a story")
    screen.see("Once upon a time")
    screen.child.kill(signal.SIGTERM)
    assert screen.end() == 128 + signal.SIGTERM
    assert screen.child.before.endswith("\n")


def test_kill_before_the_first_word_keeps_the_question_and_is_told(start: Start, tmp_path: Path) -> None:
    screen = start("prefill", "chat")
    screen.prompt()
    screen.ask("word " * 300)
    screen.see("reading 302 tokens")
    screen.child.kill(signal.SIGKILL)
    screen.child.expect(pexpect.EOF)
    second = start("many", "chat")
    second.see("ended in mid-answer")
    second.see("specgguf chat --resume")
    second.prompt()
    second.type(CTRL_D)
    assert second.end() == 0
    third = start("many", "chat", "--continue")
    third.see("its last question has no answer")
    third.prompt()
    third.ask("/retry")
    third.see("Answer number 1.")
    third.prompt()
    third.type(CTRL_D)
    assert third.end() == 0
    assert [m["content"] for m in saved(tmp_path)] == ["word " * 300, "Answer number 1."]
    fourth = start("many", "chat")
    fourth.see("loaded in")
    fourth.prompt()
    assert "mid-answer" not in fourth.child.before


def test_kill_in_mid_answer_keeps_what_was_shown(start: Start, tmp_path: Path) -> None:
    screen = start("slow", "chat")
    screen.prompt()
    screen.ask("a story")
    screen.see("Once upon a time")
    folder = tmp_path / "data" / "specgguf" / "sessions"
    waits_for(screen, lambda: any("a time" in path.read_text() for path in folder.glob(".*.partial")))
    screen.child.kill(signal.SIGKILL)
    screen.child.expect(pexpect.EOF)
    second = start("many", "chat", "--continue")
    second.see("Once upon a time")
    second.prompt()
    second.ask("/retry")
    second.see("Answer number 1.")
    second.see("answer 2 of 2")
    second.prompt()
    second.ask("/prev")
    second.see("Once upon a time")
    second.prompt()
    second.type(CTRL_D)
    assert second.end() == 0
    assert [m["content"] for m in saved(tmp_path)] == ["a story", "Once upon a time"]


def test_retry_that_is_stopped_before_the_first_word_keeps_the_answer(start: Start, tmp_path: Path) -> None:
    screen = start("again", "chat")
    screen.prompt()
    screen.ask("word " * 300)
    screen.see("First answer.")
    screen.prompt()
    screen.ask("/retry")
    waits_for(screen, lambda: record(tmp_path)["pending"] != "")
    screen.type(CTRL_C)
    screen.see("the answer before stays")
    screen.prompt()
    screen.type(CTRL_D)
    assert screen.end() == 0
    assert [m["content"] for m in saved(tmp_path)] == ["word " * 300, "First answer."]


@pytest.mark.skipif(sys.platform != "linux", reason="the scene uses a mutex of glibc's")
def test_terminate_is_heard_while_a_prompt_is_read(start: Start) -> None:
    screen = start("native", "chat")
    screen.prompt()
    screen.ask("word " * 300)
    screen.see("reading 302 tokens")
    screen.child.kill(signal.SIGTERM)
    assert screen.end() == 128 + signal.SIGTERM


def test_open_twice_is_refused(start: Start) -> None:
    first = start("many", "chat")
    first.prompt()
    first.ask("x")
    first.see("Answer number 1.")
    first.prompt()
    second = start("many", "chat", "--continue")
    second.see("is open in another terminal")
    assert second.end() == 1


def test_editor(start: Start, tmp_path: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text("#!/bin/sh\nprintf 'written in an editor\\n' > \"$1\"\n")
    editor.chmod(0o755)
    screen = start("many", "chat", EDITOR=str(editor), VISUAL=str(editor))
    screen.prompt()
    screen.ask("/edit")
    screen.see("written in an editor")
    screen.see("Answer number 1.")
    screen.prompt()
    screen.type(CTRL_D)
    screen.end()
    assert saved(tmp_path)[0]["content"] == "written in an editor"
