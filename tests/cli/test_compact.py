"""A summary in the place of what was said first, and the last question raced; over a scripted engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specgguf.cli.chat.window import ASK_SUMMARY, Window
from specgguf.cli.terminal import stats_view
from support.cli_support import Run, converse, home, run
from support.fake_engine import FakeEngine, pieces
from support.screen import CTRL_C, CTRL_D, Start, start

from specgguf.decode.records import Round
from specgguf.decode.stats import Stats
from specgguf.errors import Cancelled

__all__ = ["converse", "home", "run", "start"]
LONG = "word " * 30


def numbered(n: int = 20) -> FakeEngine:
    return FakeEngine([pieces(f"Answer {i}.") for i in range(1, n)])


def contents(messages: list[dict[str, str]]) -> list[str]:
    return [m["content"] for m in messages]


def test_window_hides_sums_up_and_widens() -> None:
    messages = [{"role": role, "content": str(i)} for i, role in enumerate(["system", *["user", "assistant"] * 3])]
    assert contents(Window().of(messages)) == list("0123456")
    assert contents(Window(2).of(messages)) == list("03456")
    assert contents(Window(4, "short").of(messages)) == ["0", ASK_SUMMARY, "short", "5", "6"]
    assert Window(2, "short").without(2) == Window(2), "the summary goes first"
    assert Window(2, "short").without(4) == Window(4)
    assert Window(2).without(2) == Window(4)


def test_compact_sends_a_summary_and_keeps_every_message(converse: Run, home: Path) -> None:
    fake = numbered()
    ran = converse("one", "two", "three", "/compact", "four", "/context", "/compact undo", "five", fake=fake)
    asked = [contents(messages) for messages in fake.asked]
    assert asked[3] == ["one", "Answer 1.", "two", "Answer 2.", ASK_SUMMARY]
    assert asked[4] == [ASK_SUMMARY, "Answer 4.", "three", "Answer 3.", "four"]
    assert asked[5][:4] == ["one", "Answer 1.", "two", "Answer 2."]
    assert "summed up (/compact undo takes it back): Answer 4." in ran.err
    assert "summary of 4 messages" in ran.err
    (path,) = (home / "data" / "specgguf" / "sessions").glob("*.json")
    assert len(json.loads(path.read_text())["messages"]) == 10


def test_a_summary_is_still_there_at_the_next_start(converse: Run) -> None:
    converse("one", "two", "/compact", fake=numbered())
    fake = numbered()
    converse("three", flags=["--continue"], fake=fake)
    assert contents(fake.asked[0]) == [ASK_SUMMARY, "Answer 3.", "two", "Answer 2.", "three"]


def test_a_second_summary_stands_for_the_first(converse: Run) -> None:
    fake = numbered()
    converse("one", "two", "/compact", "three", "/compact", "four", fake=fake)
    assert contents(fake.asked[4]) == [ASK_SUMMARY, "Answer 3.", "two", "Answer 2.", ASK_SUMMARY]
    assert contents(fake.asked[5]) == [ASK_SUMMARY, "Answer 5.", "three", "Answer 4.", "four"]


def test_nothing_to_sum_up_and_nothing_to_take_back(converse: Run) -> None:
    ran = converse("/compact", "one", "/compact", "/compact undo", "/compact now", fake=numbered())
    assert ran.err.count("there is nothing to sum up before the last turn") == 2
    assert "nothing was summed up here" in ran.err
    assert "/compact takes nothing, or undo, not 'now'" in ran.err


def test_a_summary_that_was_stopped_changes_nothing(converse: Run) -> None:
    fake = FakeEngine([pieces("Answer 1."), pieces("Answer 2."), Cancelled("stopped"), pieces("Answer 3.")])
    ran = converse("one", "two", "/compact", "three", fake=fake)
    assert "the summary was stopped; nothing was changed" in ran.err
    assert contents(fake.asked[3]) == ["one", "Answer 1.", "two", "Answer 2.", "three"]


def test_overflow_compact_sums_up_where_turns_would_be_dropped(converse: Run) -> None:
    fake = FakeEngine([pieces(f"Answer {i}.") for i in range(1, 20)], n_ctx=128)
    ran = converse(LONG, LONG, "third " + LONG, "fourth", flags=["--overflow", "compact"], fake=fake)
    summaries = [messages for messages in fake.asked if messages[-1]["content"] == ASK_SUMMARY]
    assert summaries
    assert "summed up (/compact undo takes it back)" in ran.err
    assert "dropped" not in ran.err
    last = contents(fake.asked[-1])
    assert (last[0], last[-1]) == (ASK_SUMMARY, "fourth")


def test_clear_and_undo_leave_no_summary_behind(converse: Run) -> None:
    fake = numbered()
    converse("one", "two", "/compact", "/undo", "three", "/clear", "four", fake=fake)
    assert contents(fake.asked[-2]) == ["one", "Answer 1.", "three"]
    assert contents(fake.asked[-1]) == ["four"]


@pytest.mark.parametrize(("key", "said"), [("y", "summed up"), ("n", "dropped")])
def test_overflow_compact_asks(start: Start, key: str, said: str) -> None:
    screen = start("short", "chat", "--overflow", "compact")
    for n in (1, 2):
        screen.prompt()
        screen.ask("word " * 30)
        screen.see(f"Answer number {n}.")
    screen.prompt()
    screen.ask("third " + "word " * 30)
    screen.see("let the model sum the oldest 2 turns up? [Y/n]")
    screen.type(key + "\r")
    screen.see(said)
    screen.see("tokens in")
    screen.prompt()
    screen.type(CTRL_D)
    assert screen.end() == 0


def test_ctrl_c_at_the_question_takes_the_message_back(start: Start) -> None:
    screen = start("short", "chat", "--overflow", "compact")
    for n in (1, 2):
        screen.prompt()
        screen.ask("word " * 30)
        screen.see(f"Answer number {n}.")
    screen.prompt()
    screen.ask("third " + "word " * 30)
    screen.see("[Y/n]")
    screen.type(CTRL_C)
    screen.see("Ctrl-C again leaves")
    screen.prompt()
    screen.ask("/retry")
    screen.see("[Y/n]")
    screen.type("n\r")
    screen.see("Answer number 3.")
    screen.prompt()
    screen.type(CTRL_D)
    assert screen.end() == 0


# --- /race ------------------------------------------------------------------------------------------------------


def ran_with(*rounds: Round, off_reason: str = "") -> Stats:
    stats = Stats(off_reason=off_reason)
    for round in rounds:
        stats.add(round)
    return stats


PLAIN_RUN = ran_with(*[Round((0,), verify_s=0.1)] * 20)
FAST = [Round((0, 0), n_from_draft=1, draft_n=2, draft_n_accepted=1, verify_s=0.1, draft_s=0.02)] * 10


def test_race_says_what_two_runs_show_and_no_more() -> None:
    said = stats_view.race(PLAIN_RUN, ran_with(*FAST), same_text=True)
    assert said.startswith("drafting ran at 1.67x plain speed: 16.7 tok/s drafted, 10.0 plain, draft 10/20 accepted")
    assert said.endswith("the texts are the same; one run each, specgguf bench repeats them")
    even = ran_with(*[Round((0, 0), n_from_draft=1, draft_n=2, draft_n_accepted=1, verify_s=0.2)] * 10)
    assert stats_view.race(PLAIN_RUN, even, same_text=False).startswith("drafting made no difference: ")


def test_race_claims_no_gain_that_its_own_tokens_exclude() -> None:
    slow = ran_with(*[Round((0,), verify_s=0.5)] * 20)
    assert stats_view.race(slow, ran_with(*FAST), same_text=True).startswith("not known: ")


def test_race_without_a_single_draft_token_says_so() -> None:
    off = ran_with(*[Round((0,), verify_s=0.1)] * 20, off_reason="expected 0.9x plain speed at 40 % acceptance")
    said = stats_view.race(PLAIN_RUN, off, same_text=True)
    assert said.startswith("nothing was drafted, so both ran plainly; 10.0 tok/s drafted, 10.0 plain; drafting is off")


def test_race_asks_twice_with_one_seed_and_keeps_neither(converse: Run) -> None:
    fake = numbered()
    ran = converse("/race", "one", "/race", "two", fake=fake)
    assert "there is no answer to race for yet" in ran.err
    plain, drafted = fake.keywords[1:3]
    assert (plain["draft"], drafted["draft"]) == ("off", "auto")
    assert plain["seed"] == drafted["seed"] is not None
    assert [contents(messages) for messages in fake.asked[1:3]] == [["one"]] * 2
    assert contents(fake.asked[3]) == ["one", "Answer 1.", "two"]
    assert "one run each" in ran.err


def test_race_that_is_stopped(converse: Run) -> None:
    fake = FakeEngine([pieces("Answer 1."), Cancelled("stopped"), pieces("Answer 2.")])
    ran = converse("one", "/race", "two", fake=fake)
    assert "stopped before both had run" in ran.err
    assert contents(fake.asked[-1]) == ["one", "Answer 1.", "two"]
