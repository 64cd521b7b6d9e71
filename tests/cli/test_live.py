"""What stands under an answer while it is made: reading, drafting, and what is typed meanwhile."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from specgguf.cli.chat.input.ahead import Ahead
from specgguf.cli.terminal.console import Style
from specgguf.cli.terminal.live import LiveLines, Reading, drafting_line, typed_lines
from specgguf.cli.terminal.render import AnswerWriter, Span
from specgguf.cli.terminal.stats_view import plain_speed
from specgguf.cli.terminal.status import StatusOutput
from support.screen import CTRL_C, CTRL_D, Start, saved, start, waits_for

from specgguf.decode.records import Round
from specgguf.decode.stats import Stats

__all__ = ["start"]
LIVE = Style(tty=True, live=True)


def stats(*rounds: Round, off_reason: str = "") -> Stats:
    """Statistics of an answer whose prompt was read in a round of its own."""
    made = Stats(off_reason=off_reason)
    made.begin(10, 0)
    for round in (Round((0,), n_prefilled=10, prefill_s=1.0, verify_s=0.0), *rounds):
        made.add(round)
    return made


def plain(n: int = 1, verify_s: float = 0.1) -> list[Round]:
    return [Round((0,), verify_s=verify_s) for _ in range(n)]


def drafted(n: int = 1) -> list[Round]:
    return [Round((0, 0, 0), n_from_draft=2, draft_n=4, draft_n_accepted=2, verify_s=0.1, draft_s=0.1)] * n


def test_drafting_as_a_line() -> None:
    line = drafting_line(stats(*drafted(4)), 0.0)
    assert line == "█████░░░░░ 50 % accepted | 2.6 tokens per forward pass | 16.2 tok/s"
    assert drafting_line(stats(*drafted(4)), 9.95).endswith("16.2 tok/s (plain 9.9)")
    assert drafting_line(stats(*plain(9), off_reason="x"), 10.0) == "10 tokens | 11.1 tok/s | drafting is off"
    assert drafting_line(Stats(), 0.0) == ""
    assert drafting_line(stats(*drafted(4)), 9.95, 60).endswith("forward pass")
    assert all(len(drafting_line(stats(*drafted(4)), 9.95, n)) <= n for n in range(25, 90))


def test_plain_speed_is_that_of_plain_passes_and_of_enough_of_them() -> None:
    assert plain_speed(stats(*plain(3))) == 0.0
    assert plain_speed(stats(*plain(5, 0.1), *drafted(20))) == pytest.approx(10.0)
    assert plain_speed(stats(*drafted(20))) == 0.0


def test_reading_follows_what_is_read_and_reckons_in_between() -> None:
    now = [0.0]
    reading = Reading(clock=lambda: now[0])
    assert reading.line(100, 0) == ""
    assert reading.line(2000, 0) == "reading 2,000 tokens …"
    now[0] = 1.0
    assert reading.line(100, 0) == "reading 100 tokens … 1 s", "a short one on a slow machine"
    now[0] = 3.0
    assert reading.line(2000, 0) == "reading 2,000 tokens … 3 s"
    now[0] = 5.0
    assert reading.line(2000, 500) == f"reading 2,000 tokens {'█' * 6}{'░' * 18} 25%, 100 tok/s, about 15 s left"
    now[0] = 7.0
    assert "35%" in reading.line(2000, 500)
    now[0] = 100.0
    assert "49%" in reading.line(2000, 500), "never past the next chunk"
    expected = Reading(100.0, clock=lambda: now[0])
    now[0] = 101.0
    assert expected.line(2000, 0).endswith(" 5%, 100 tok/s, about 19 s left"), "a bar before the first chunk is read"
    assert "99%" in Reading(100.0, clock=lambda: now[0]).line(2000, 2000)


@pytest.mark.parametrize(
    ("keys", "queued", "text", "cursor"),
    [
        ("abc", [], "abc", 3),
        ("abx\x7fc", [], "abc", 3),
        ("one\rtwo", ["one"], "two", 3),
        ("one two\x17three", [], "one three", 9),
        ("gone\x15here", [], "here", 4),
        ("ac\x1b[Db", [], "abc", 2),
        ("bc\x01a\x05d", [], "abcd", 4),
        ("a\x1b\rb", [], "a\nb", 3),
        ("a\x1b[13;2ub", [], "a\nb", 3),
        ("\x1b[200~x\r\ny\r\x1b[201~!", [], "x\ny\n!", 5),
        ("\x1b[200~" + "z\n" * 40 + "\x1b[201~!", [], "[40 lines]!", 11),
        ("\x1b[200~" + "z\n" * 40 + "\x1b[201~!\x7f\x7f", [], "", 0),
        ('"""a\rb', [], '"""a\nb', 6),
        ("\x1b[A\ta", [], "a", 1),
        ("  \r", [], "", 0),
        ("é中", [], "é中", 2),
    ],
    ids=repr,
)
def test_what_keys_amount_to(keys: str, queued: list[str], text: str, cursor: int) -> None:
    ahead = Ahead.of([keys[:3].encode(), keys[3:].encode()])
    assert (ahead.queued, ahead.text, ahead.cursor) == (queued, text, cursor)


def test_a_text_without_marks_of_a_paste_is_followed_in_one_go() -> None:
    text = "word " * 200_000
    ahead = Ahead.of([text.encode(), b"\x7f\r", text.encode()])
    assert [len(message) for message in ahead.messages] == [len(text) - 1, len(text)]


def test_typed_lines_fit_and_keep_the_end() -> None:
    style = Style()
    assert typed_lines([], "", 0, 40, style) == []
    assert typed_lines([], "word " * 30, 150, 40, style)[0].startswith("> …")
    for width in (30, 40, 80):
        lines = typed_lines(["a question " * 9, "b"], "word " * 30, 20, width, style)
        assert len(lines) == 2
        assert len(lines[1]) <= width
    assert "and 1 more" in typed_lines(["a", "b"], "", 0, 60, style)[0]


class Screenful:
    """A terminal of 20 columns, as far as the sequences go that are used here."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0
        self.saved = (0, 0)
        self.wraps = True

    def write(self, text: str) -> int:
        import re

        for part in re.findall("\x1b\\[[?0-9]*[A-Za-z]|\x1b.|[\\s\\S]", text):
            self.take(part)
        return len(text)

    def take(self, part: str) -> None:
        if part == "\n":
            self.row, self.column = self.row + 1, 0
        elif part == "\r":
            self.column = 0
        elif part == "\x1bD":
            self.row += 1
        elif part == "\x1b7":
            self.saved = (self.row, self.column)
        elif part == "\x1b8":
            self.row, self.column = self.saved
        elif part.startswith("\x1b[?7"):
            self.wraps = part.endswith("h")
        elif part == "\x1b[B":
            self.row += 1
        elif part.startswith("\x1b[") and part.endswith("A"):
            self.row -= int(part[2:-1])
        elif part == "\x1b[K":
            del self.line()[self.column :]
        elif part == "\x1b[J":
            del self.line()[self.column :]
            del self.rows[self.row + 1 :]
        else:
            line = self.line()
            line[self.column :] = [*" " * (self.column - len(line)), part]
            self.column += 1
        self.line()

    def line(self) -> list[str]:
        while len(self.rows) <= self.row:
            self.rows.append([])
        return self.rows[self.row]

    def flush(self) -> None:
        pass

    def fileno(self) -> int:
        raise OSError

    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.rows).rstrip("\n")


def test_lines_stand_below_the_text_and_leave_it_alone() -> None:
    screen = Screenful()
    status = StatusOutput(LIVE, stream=screen)  # type: ignore[arg-type]
    lines = ["first", "second"]
    with LiveLines(status, lambda: lines) as live:
        sink = live.over(AnswerWriter(status, style=LIVE, out=screen, wrap=100))  # type: ignore[arg-type]
        sink.span(Span("One", False))
        with status.lock:
            assert screen.text() == "One\nfirst\nsecond"
            assert screen.wraps
        sink.span(Span(" two\nthree", True))
        with status.lock:
            assert screen.text() == "One two\nthree\nfirst\nsecond"
        lines.pop()
        live.draw()
        with status.lock:
            assert screen.text() == "One two\nthree\nfirst"
        status.say("said")  # goes on where the text stands: nobody does that in mid-answer
        sink.end()
    assert screen.text() == "One two\nthreesaid"


def test_no_lines_where_the_cursor_is_at_the_edge() -> None:
    screen = Screenful()
    status = StatusOutput(LIVE, stream=screen)  # type: ignore[arg-type]
    with LiveLines(status, lambda: ["below"]) as live:
        sink = live.over(AnswerWriter(status, style=LIVE, out=screen, wrap=0))  # type: ignore[arg-type]
        sink.span(Span("x" * 79, False))
        with status.lock:
            assert "below" in screen.text()
        sink.span(Span("x", False))
        with status.lock:
            assert "below" not in screen.text()
        sink.span(Span("\n", False))
        with status.lock:
            assert "below" in screen.text()


@pytest.mark.parametrize("style", [Style(), Style(tty=True)])
def test_without_a_live_terminal_there_are_none(style: Style) -> None:
    out = io.StringIO()
    status = StatusOutput(style, stream=out)
    with LiveLines(status, lambda: ["below"]) as live:
        live.over(AnswerWriter(status, style=style, out=out)).span(Span("text", False))
        live.draw()
    assert out.getvalue() == "text"


def test_drafting_is_shown_under_an_answer_and_gone_after_it(start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    screen = start("gate", "chat", GATE=str(gate), LIVE_AFTER_S="0")
    screen.prompt()
    screen.ask("Tell me a story.")
    screen.see("50 % accepted")
    screen.see("tokens per forward pass")
    gate.touch()
    screen.see("fox")
    screen.see("9 tokens in")
    screen.prompt()
    screen.type(CTRL_D)
    assert screen.end() == 0


@pytest.mark.parametrize("flags", [["--plain"], ["--no-stats"]], ids=" ".join)
def test_no_line_where_none_is_wanted(start: Start, tmp_path: Path, flags: list[str]) -> None:
    gate = tmp_path / "gate"
    screen = start("gate", "chat", *flags, GATE=str(gate), LIVE_AFTER_S="0")
    screen.see("leave")
    screen.ask("Tell me a story.")
    before = screen.see("Once upon a")
    gate.touch()
    before += screen.see("fox")
    assert "per forward pass" not in before
    screen.type(CTRL_C)


def test_what_is_typed_while_it_answers_is_shown_editable_and_sent(start: Start, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    screen = start("gate", "chat", GATE=str(gate))
    screen.prompt()
    screen.ask("Tell me a story.")
    screen.see("Once upon a time")
    screen.type("And anothex")
    screen.see("> And anothex")
    screen.type("\x7fr?")
    screen.see("> And another?")
    screen.type("\r")
    screen.see("(sent when the answer ends)")
    screen.type("third")
    screen.see("> third")
    gate.touch()
    screen.see("Second answer.")
    waits_for(screen, lambda: len(saved(tmp_path)) == 4)
    assert [m["content"] for m in saved(tmp_path) if m["role"] == "user"] == ["Tell me a story.", "And another?"]
    screen.see("third")
    screen.type(CTRL_C)


def test_stopping_an_answer_does_not_drop_what_was_typed(start: Start, tmp_path: Path) -> None:
    screen = start("slow", "chat")
    screen.prompt()
    screen.ask("Tell me a story.")
    screen.see("Once upon a time")
    screen.ask("And another?")
    screen.see("(sent when the answer ends)")
    screen.type(CTRL_C)
    screen.see("Second answer.")
    waits_for(screen, lambda: len(saved(tmp_path)) == 4)
    assert json.dumps(saved(tmp_path)).count("And another?") == 1
