"""Whatever is done, and whatever fails: no answer is lost, and nothing is said to be saved that is not."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from specgguf.cli import exits, open_pair, pairing
from specgguf.cli.chat.saved import branch, partial, sessions
from specgguf.cli.chat.saved.sessions import Session
from specgguf.cli.main import cli
from support.cli_support import Run, converse, home, run
from support.fake_engine import FakeEngine, loaded, pieces

from specgguf.errors import BackendError, Cancelled, ContextFull, ModelNotFound

__all__ = ["converse", "home", "run"]  # fixtures


def numbered(n: int = 9) -> FakeEngine:
    return FakeEngine([pieces(f"Answer {i}.") for i in range(1, n + 1)])


def said(name: str) -> list[str]:
    return [m["content"] for m in sessions.load(name).messages]


def turn(question: str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def kept_answers(name: str) -> set[str]:
    """Every answer that the conversation's file holds, on its thread or off it."""
    session = sessions.load(name)
    return {m["content"] for m in [*session.messages, *(m for b in session.branches for m in b["messages"])]}


def no_space(_handle: int) -> None:
    """os.fsync on a full disk."""
    raise OSError(28, "No space left on device")


def test_save_on_a_full_disk_keeps_the_old_file_and_says_so(converse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    converse("one", "/save mine")
    monkeypatch.setattr("os.fsync", no_space)
    ran = converse("/save yours", flags=["-C"])
    assert "error: not saved as 'yours': no space left on device" in ran.err
    assert "it stays as it was in 'mine'" in ran.err
    assert "\nsaved as 'yours'" not in ran.err
    assert sessions.names() == ["mine"]
    assert said("mine") == ["one", "Hello there."]


def test_after_a_failed_write_nothing_is_said_to_be_saved(converse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", no_space)
    ran = converse("one", "/save")
    assert "\nsaved as" not in ran.err
    assert "--continue comes back" not in ran.err
    assert ran.err.count("warning: this conversation is not saved: no space left on device") == 1
    assert ran.err.endswith("warning: what was said last is not saved: no space left on device\n")


def test_a_disk_that_has_space_again_gets_everything(converse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    save, full = sessions.save, [True]

    def once(session: Session) -> None:
        if full:
            full.pop()
            raise OSError(28, "No space left on device")
        save(session)

    monkeypatch.setattr(sessions, "save", once)
    ran = converse("one", "two", fake=numbered())
    (name,) = sessions.names()
    assert said(name) == ["one", "Answer 1.", "two", "Answer 2."]
    assert f"this conversation is saved again, as '{name}'" in ran.err
    assert f"saved as '{name}'; specgguf chat --continue comes back" in ran.err


@pytest.mark.parametrize("line", ["/clear", "/load other"])
def test_what_is_on_no_disk_is_left_behind_only_when_said_twice(
    home: Path, converse: Run, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    sessions.save(Session("other", messages=turn("x", "y")))
    monkeypatch.setattr("os.fsync", no_space)
    fake = numbered()
    ran = converse("one", line, "two", line, line, "three", fake=fake)
    assert ran.err.count(f"{line} again leaves it unsaved") == 1
    assert [m["content"] for m in fake.asked[1]] == ["one", "Answer 1.", "two"]
    assert "one" not in [m["content"] for m in fake.asked[2]]


def test_single_questions_never_replace_a_conversation(converse: Run, run: Run) -> None:
    run("chat", "single")
    converse("two", "three", "four", flags=["--continue"], fake=numbered())
    run("chat", "another")
    assert said("one-shot") == ["another", "Hello there."]
    (name,) = set(sessions.names()) - {"one-shot"}
    assert said(name)[::2] == ["single", "two", "three", "four"]


def test_a_conversation_under_the_name_of_single_questions_is_moved_first(run: Run, home: Path) -> None:
    sessions.save(Session("one-shot", messages=turn("a", "b") + turn("c", "d")))
    run("chat", "another")
    assert sorted(said(name)[0] for name in sessions.names()) == ["a", "another"]


def test_the_name_of_single_questions_is_reserved(converse: Run) -> None:
    ran = converse("one", "/save one-shot")
    assert "'one-shot' is where single questions are kept" in ran.err
    assert "one-shot" not in sessions.names()


def test_continue_takes_neither_an_empty_conversation_nor_a_single_question(converse: Run, run: Run) -> None:
    converse("one", "/save real")
    converse("gone", "/undo")
    run("chat", "single")
    fake = FakeEngine()
    converse("two", flags=["-C"], fake=fake)
    assert fake.asked[0][0]["content"] == "one"
    assert "gone" not in run("sessions", "list").out
    assert "gone" in run("sessions", "list", "--all").out


def test_retry_keeps_every_answer_and_turns_among_them(converse: Run) -> None:
    fake = numbered()
    ran = converse("one", "/retry", "/retry", "/prev", "/prev", "/prev", "/next", "two", fake=fake)
    assert "answer 2 of 2 (/prev" in ran.err
    assert "answer 3 of 3 (/prev" in ran.err
    assert "this is the first of 3 answers" in ran.err
    assert ran.out.splitlines() == [f"Answer {n}." for n in (1, 2, 3, 2, 1, 2, 4)]
    assert [m["content"] for m in fake.asked[-1]] == ["one", "Answer 2.", "two"]
    (name,) = sessions.names()
    assert said(name) == ["one", "Answer 2.", "two", "Answer 4."]
    assert {f"Answer {n}." for n in range(1, 5)} <= kept_answers(name)


def test_the_same_answer_again_is_told_and_kept_once(converse: Run) -> None:
    ran = converse("one", "/retry", "/retry", "/prev", fake=FakeEngine([pieces("Yes."), pieces("Yes."), pieces("No.")]))
    assert ran.err.count("the same answer as before, kept once") == 1
    assert "answer 2 of 2 (/prev" in ran.err


def test_answers_are_still_there_at_the_next_start(converse: Run) -> None:
    converse("one", "/retry", fake=numbered())
    ran = converse("/prev", flags=["-C"])
    assert (ran.out, "answer 1 of 2" in ran.err) == ("Answer 1.\n", True)


def test_prev_without_another_answer(converse: Run) -> None:
    ran = converse("/prev", "one", "/next")
    assert "nothing was asked yet" in ran.err
    assert "there is no other answer (/retry makes one)" in ran.err


@pytest.mark.parametrize("error", [Cancelled("stopped"), BackendError("no slot"), ContextFull("too long")])
def test_retry_that_gets_no_word_leaves_the_answer_in_its_place(converse: Run, error: Exception) -> None:
    fake = FakeEngine([pieces("The answer."), error, pieces("More.")])
    ran = converse("one", "/retry", "two", fake=fake)
    assert [m["content"] for m in fake.asked[2]] == ["one", "The answer.", "two"]
    (name,) = sessions.names()
    assert said(name) == ["one", "The answer.", "two", "More."]
    assert sessions.load(name).unanswered == []
    if isinstance(error, Cancelled):
        assert "the answer before stays" in ran.err


def test_a_crash_before_the_first_word_of_another_answer_leaves_the_old_one(home: Path) -> None:
    session = Session("one", pending="What?")
    branch.keep(session.branches, [], turn("What?", "That."))
    sessions.save(session)
    assert (said("one"), sessions.load("one").pending) == (["What?", "That."], "")


def test_undo_and_redo(converse: Run) -> None:
    fake = numbered()
    ran = converse("one", "two", "/undo", "/undo", "/redo", "/redo", "/redo", "three", fake=fake)
    assert [m["content"] for m in fake.asked[-1]] == ["one", "Answer 1.", "two", "Answer 2.", "three"]
    assert "nothing was taken back here" in ran.err
    assert ran.out.splitlines() == ["Answer 1.", "Answer 2.", "Answer 1.", "Answer 2.", "Answer 3."]


def test_redo_at_the_next_start_and_never_elsewhere(converse: Run) -> None:
    converse("one", "two", "/undo", fake=numbered())
    fake = FakeEngine()
    converse("/redo", "three", "/redo", flags=["-C"], fake=fake)
    assert [m["content"] for m in fake.asked[0]] == ["one", "Answer 1.", "two", "Answer 2.", "three"]
    (name,) = sessions.names()
    assert said(name)[-1] == "Hello there."


def test_what_was_taken_back_is_kept_when_something_else_is_asked(converse: Run) -> None:
    converse("one", "/undo", "other", fake=numbered())
    (name,) = sessions.names()
    assert kept_answers(name) >= {"Answer 1.", "Answer 2."}


def test_the_system_prompt_is_no_part_of_where_an_answer_belongs(converse: Run) -> None:
    ran = converse("one", "/undo", "/system Be brief.", "/redo")
    assert "back again: one" in ran.err


def test_an_answer_that_was_cut_off_is_there_at_the_next_start(home: Path, run: Run) -> None:
    sessions.save(Session("one", pending="What?"))
    answer = {"role": "assistant", "content": "Once upon"}
    partial._write(sessions.partial_path("one"), json.dumps({"question": "What?", "message": answer}))
    assert (said("one"), sessions.load("one").pending) == (["What?", "Once upon"], "")
    fake = FakeEngine()
    run("chat", "-C", "Go on.", fake=fake)
    assert [m["content"] for m in fake.asked[0]] == ["What?", "Once upon", "Go on."]
    assert not sessions.partial_path("one").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"question": "Other?", "message": {"content": "x"}}'])
def test_a_partial_answer_that_cannot_be_read_leaves_the_question(home: Path, text: str) -> None:
    sessions.save(Session("one", pending="What?"))
    sessions.partial_path("one").write_text(text)
    assert (said("one"), sessions.load("one").pending) == ([], "What?")


def test_load_takes_settings_and_models_as_resume_does(converse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions.save(
        Session(
            "other",
            messages=turn("x", "y"),
            settings={"temperature": 0.25, "top_k": 7},
            model="other.gguf",
            draft_model="small.gguf",
        )
    )
    first, second = numbered(), FakeEngine([pieces("From the second.")])
    tried: list[tuple[str, str]] = []

    def pick(settings, status, *, yes=False):  # type: ignore[no-untyped-def]
        tried.append((settings["model"], settings["draft_model"]))
        return pairing.ChosenPair(Path(settings["model"]), None, settings["model"], settings["draft_model"])

    monkeypatch.setattr(open_pair, "pick", pick)
    monkeypatch.setattr(open_pair, "load", lambda pair, *_, **__: loaded(second))
    converse("/set temperature 1.5", "one", "/load other", "two", "/clear", "three", fake=first, flags=["--top-k", "3"])
    assert tried == [("other.gguf", "small.gguf")]
    assert first.keywords[0]["temperature"] == 1.5
    assert [m["content"] for m in second.asked[0]] == ["x", "y", "two"]
    assert (second.keywords[0]["temperature"], second.keywords[0]["top_k"]) == (0.25, 3)  # a flag stands above
    assert sessions.load("other").settings == {"temperature": 0.25, "top_k": 3}
    (mine,) = [name for name in sessions.names() if said(name)[0] == "one"]
    assert sessions.load(mine).settings["temperature"] == 1.5


def test_load_of_a_conversation_whose_model_is_gone(converse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def pick(settings, status, *, yes=False):  # type: ignore[no-untyped-def]
        raise ModelNotFound("no such file: gone.gguf")

    monkeypatch.setattr(open_pair, "pick", pick)
    sessions.save(Session("other", messages=turn("x", "y"), model="gone.gguf"))
    fake = FakeEngine()
    ran = converse("/load other", "two", fake=fake)
    assert "its models are not used: no such file: gone.gguf; target.gguf goes on" in ran.err
    assert [m["content"] for m in fake.asked[0]] == ["x", "y", "two"]


def test_resume_of_a_conversation_whose_model_is_gone(home: Path) -> None:
    sessions.save(Session("other", messages=turn("x", "y"), model="/nowhere/gone.gguf"))

    result = CliRunner().invoke(cli, ["chat", "--resume", "other", "two"], prog_name="specgguf")
    assert result.exit_code == exits.FAILED
    assert "error: 'other' was held with /nowhere/gone.gguf, which is not to be had: " in result.stderr
    assert "specgguf chat --resume 'other' -m REF goes on with another model" in result.stderr
    assert said("other") == ["x", "y"]


def test_load_of_the_conversation_that_is_open_here(converse: Run) -> None:
    ran = converse("one", "/save mine", "/load mine", "two")
    assert "'mine' is the conversation that is open here" in ran.err
    assert "another terminal" not in ran.err


def test_a_damaged_latest_conversation_is_set_aside(converse: Run, home: Path) -> None:
    sessions.save(Session("good", messages=turn("x", "y")))
    (sessions.folder() / "bad.json").write_text('{"messages": [')
    fake = FakeEngine()
    ran = converse("two", flags=["-C"], fake=fake)
    assert fake.asked[0][0]["content"] == "x"
    assert "bad.damaged-1" in ran.err
    assert (sessions.folder() / "bad.damaged-1").read_text() == '{"messages": ['
    assert sessions.names() == ["good"]


def test_files_do_not_go_into_another_conversation(converse: Run, home: Path) -> None:
    (home / "a.txt").write_text("alpha")
    sessions.save(Session("other", messages=turn("x", "y")))
    fake = numbered()
    ran = converse(
        f"/file {home}/a.txt", "/clear", "one", f"/file {home}/a.txt", "/load other", "two", "/file", fake=fake
    )
    assert "alpha" not in str(fake.asked)
    assert ran.err.count("no longer attached: a.txt") == 2
    assert "no file is attached" in ran.err


def test_files_are_listed_and_taken_off(converse: Run, home: Path) -> None:
    for name in ("a b.txt", "c.txt", "d.txt"):
        (home / name).write_text(name[0] * 3)
    fake = numbered()
    escaped = f"{home}/a\\ b.txt {home}/c.txt"  # as a terminal writes what is dragged into it
    lines = [f"/file {escaped}", f"/file '{home}/d.txt'", "/file", "/file rm", "/file rm 2", "/file rm 9"]
    ran = converse(*lines, "Go.", fake=fake)
    assert f"1  {home}/a b.txt  about 3 tokens" in ran.err
    assert "taken off: c.txt" in ran.err
    assert ran.err.count("/file rm takes a number from 1 to") == 2
    assert fake.asked[0][0]["content"] == "Go.\n\na b.txt:\n```\naaa\n```\n\nd.txt:\n```\nddd\n```"


def test_patterns_and_spaces_in_paths(converse: Run, home: Path) -> None:
    for name in ("x 1.md", "x 2.md"):
        (home / name).write_text(name)
    fake = numbered()
    ran = converse(f"/file {home}/x 1.md", "/file ~/x*2.md", "/file ~/nothing*", "Go.", fake=fake)
    assert "nothing*: no such file" in ran.err
    assert fake.asked[0][0]["content"].count("```") == 4


def test_a_file_that_cannot_fit_is_refused_at_once_and_the_others_stay(converse: Run, home: Path) -> None:
    (home / "a.txt").write_text("alpha")
    (home / "large.txt").write_text("word " * 2000)
    fake = numbered()
    ran = converse(f"/file {home}/a.txt", f"/file {home}/large.txt", "Go.", fake=fake)
    assert "large.txt takes about 2,002 tokens" in ran.err
    assert "alpha" in fake.asked[0][0]["content"]


def test_a_refused_message_keeps_its_files(converse: Run, home: Path) -> None:
    (home / "a.txt").write_text("alpha")
    fake = numbered()
    converse(f"/file {home}/a.txt", "too long " * 1000, "Go.", "More.", fake=fake)
    assert "alpha" in fake.asked[0][0]["content"]
    assert "alpha" not in fake.asked[1][-1]["content"]


def test_a_retried_question_takes_no_new_files(converse: Run, home: Path) -> None:
    (home / "a.txt").write_text("alpha")
    fake = numbered()
    converse("one", f"/file {home}/a.txt", "/retry", "two", fake=fake)
    assert [messages[-1]["content"].count("alpha") for messages in fake.asked] == [0, 0, 1]


def test_fences_are_longer_than_any_inside_the_file(converse: Run, home: Path) -> None:
    (home / "a.md").write_text("x\n````\ny\n````\n")
    fake = numbered()
    converse(f"/file {home}/a.md", "Go.", fake=fake)
    assert fake.asked[0][0]["content"].endswith("a.md:\n`````\nx\n````\ny\n````\n`````")


def test_a_system_prompt_from_a_file(converse: Run, home: Path) -> None:
    (home / "s.txt").write_text("Be brief.\n")
    fake = numbered()
    ran = converse(f"/system @{home}/s.txt", f"/system @{home}/none.txt", "one", fake=fake)
    assert fake.asked[0][0] == {"role": "system", "content": "Be brief."}
    assert f"/system @{home}/none.txt: no such file" in ran.err


def test_a_model_that_is_stopped_while_it_loads_leaves_the_old_one(
    converse: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, again, late = numbered(), numbered(), FakeEngine()
    started, go = threading.Event(), threading.Event()
    pair = pairing.ChosenPair(Path("old.gguf"), None, "old.gguf", "")

    def _load(wanted: pairing.ChosenPair, _settings: object) -> FakeEngine:
        if wanted is pair:
            return again
        started.set()
        go.wait(10)
        return late

    monkeypatch.setattr(open_pair, "pick", lambda *_, **__: pairing.ChosenPair(Path("new.gguf"), None, "new.gguf", ""))
    monkeypatch.setattr(open_pair, "_load", _load)
    monkeypatch.setattr("support.cli_support.loaded", lambda fake: open_pair.Loaded(fake, "old.gguf", pair=pair))
    ticks = iter([0, KeyboardInterrupt()])

    def wait(_self: object, text: str, tail: str = "") -> None:
        if text.startswith("loading new.gguf"):
            started.wait(10)
            if isinstance(tick := next(ticks, 0), KeyboardInterrupt):
                raise tick

    monkeypatch.setattr("specgguf.cli.terminal.status.StatusOutput.wait", wait)
    ran = converse("one", "/model new.gguf", "two", fake=first)
    go.set()
    assert ran.code == 0
    assert "loading new.gguf: stopped" in ran.err
    assert [m["content"] for m in again.asked[0]] == ["one", "Answer 1.", "two"]


def test_more_goes_on_with_the_answer_and_keeps_the_shorter_one(converse: Run) -> None:
    fake = FakeEngine([pieces("Once upon"), pieces(" a time."), pieces("Yes.")])
    ran = converse("/more", "a story", "/more", "and?", "/undo", "/prev", fake=fake)
    assert "there is no answer to go on with" in ran.err
    assert fake.asked[1][-1] == {"role": "assistant", "content": "Once upon"}
    assert [m["content"] for m in fake.asked[2]] == ["a story", "Once upon a time.", "and?"]
    (name,) = sessions.names()
    assert said(name) == ["a story", "Once upon"]
    assert "Once upon a time." in kept_answers(name)


def test_more_that_gets_no_word_leaves_the_answer(converse: Run) -> None:
    fake = FakeEngine([pieces("Once upon"), BackendError("no slot")])
    converse("a story", "/more", fake=fake)
    (name,) = sessions.names()
    assert said(name) == ["a story", "Once upon"]
