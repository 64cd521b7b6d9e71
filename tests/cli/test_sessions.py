"""Conversations on disk: private, whole, locked, readable later."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from specgguf.cli import exits
from specgguf.cli.chat.saved import sessions
from specgguf.cli.chat.saved.sessions import Session
from support.cli_support import Ran, Run, converse, home, run
from support.fake_engine import FakeEngine, pieces

from specgguf.errors import BackendError, Busy, Cancelled, ConfigError, ModelNotFound, SpecggufError

__all__ = ["converse", "home", "run"]  # fixtures


def stored(name: str = "one") -> Session:
    session = Session(
        name,
        messages=[
            {"role": "user", "content": "What is 1 + 1?"},
            {"role": "assistant", "content": "2.", "reasoning_content": "easy\nreally"},
        ],
        model="demo",
        settings={"temperature": 0.5},
    )
    sessions.save(session)
    return session


def test_round_trip_is_private_and_whole(home: Path) -> None:
    session = stored()
    path = sessions.folder() / "one.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert sessions.load("one") == session
    assert [p.name for p in path.parent.iterdir()] == ["one.json"]


def test_a_failing_write_leaves_the_old_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = stored()
    session.messages.append({"role": "user", "content": "more"})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        sessions.save(session)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("HOME", str(home))
    assert len(sessions.load("one").messages) == 2
    assert [p.name for p in sessions.folder().iterdir()] == ["one.json"]


def test_keys_of_a_later_version_are_ignored_and_missing_ones_filled(home: Path) -> None:
    stored()
    path = sessions.folder() / "one.json"
    content = json.loads(path.read_text())
    del content["turns"], content["pending"]
    path.write_text(json.dumps(content | {"version": 9, "mood": "good"}))
    session = sessions.load("one")
    assert (session.version, session.turns, len(session.messages)) == (9, [], 2)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        '{"messages": [{}]}',
        '{"messages": [{"role": "user", "content": 3}]}',
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"settings": 5}',
        '{"pending": null}',
        '{"unanswered": [3]}',
    ],
)
def test_a_damaged_file_is_named(home: Path, content: str) -> None:
    sessions.folder().mkdir(parents=True)
    (sessions.folder() / "bad.json").write_text(content)
    with pytest.raises(SpecggufError, match=r"bad\.json is damaged"):
        sessions.load("bad")


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 200, "a\nb"])
def test_names_that_are_no_file_names(home: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        sessions.load(name)


def test_unknown_name_has_a_hint(home: Path) -> None:
    stored("recipes")
    with pytest.raises(ModelNotFound) as caught:
        sessions.load("recipe")
    assert "recipes" in caught.value.hint


def test_fresh_names_do_not_collide(home: Path) -> None:
    first = sessions.fresh_name("What's a mutex, really? And why so many words?")
    assert first.endswith("-what-s-a-mutex-really-and")
    stored(first)
    assert sessions.fresh_name("What's a mutex, really? And …") == f"{first}-2"
    assert sessions.fresh_name("¿?")  # no words at all


def test_lock(home: Path) -> None:
    with sessions.lock("one"), pytest.raises(Busy, match="open in another terminal"):
        sessions.lock("one")
    sessions.lock("one").release()


def test_crash_is_told_once_and_not_while_open(home: Path) -> None:
    session = stored()
    session.pending = "unanswered"
    sessions.save(session)
    with sessions.lock("one"):
        assert list(sessions.crashed()) == []  # somebody is still writing it
    (sessions.folder() / ".one.lock").touch()  # what a killed program leaves behind
    assert [s.name for s in sessions.crashed()] == ["one"]
    assert list(sessions.crashed()) == []


def test_list_show_export_rm(run: Run, home: Path) -> None:
    stored("one")
    stored("two")
    listed = run("sessions", "list").out.splitlines()
    assert {line.split()[0] for line in listed} == {"one", "two"}
    assert "1 turn " in listed[0]
    assert "What is 1 + 1?" in listed[0]
    rows = [json.loads(line) for line in run("sessions", "list", "--json").out.splitlines()]
    assert {row["turns"] for row in rows} == {1}
    assert run("sessions", "show", "one").out == run("sessions", "export", "one").out
    text = run("sessions", "show", "one").out
    assert text.startswith("# one\n")
    assert "## You\n\nWhat is 1 + 1?\n\n## Model\n\n> easy\n> really\n\n2.\n" in text
    assert json.loads(run("sessions", "show", "one", "--json").out)["model"] == "demo"
    run("sessions", "export", "one", str(home / "one.md"))
    assert (home / "one.md").read_text() == text
    assert run("sessions", "rm", "one", "two").code == 0
    assert run("sessions", "list").out == ""
    gone = run("sessions", "rm", "one")
    assert (gone.code, "there is no conversation" in gone.err) == (exits.FAILED, True)


def test_resume_takes_models_settings_and_messages(run: Run) -> None:
    stored()
    fake = FakeEngine([pieces("Three.")])
    ran = run("chat", "--resume", "one", "And 1 + 2?", fake=fake)
    assert ran.code == 0
    assert [m["role"] for m in fake.asked[0]] == ["user", "assistant", "user"]
    assert fake.keywords[0]["temperature"] == 0.5
    session = sessions.load("one")
    assert session.messages[-1]["content"] == "Three."
    assert len(session.turns) == 1
    assert session.turns[0]["timings"]["predicted_n"] == 1
    assert session.pending == ""
    run("chat", "--resume", "one", "--temp", "0.9", "x", fake=fake)
    assert fake.keywords[1]["temperature"] == 0.9


def unanswered(question: str = "And 2 + 2?") -> Session:
    """What a program that died in mid-answer leaves."""
    session = stored()
    session.pending = question
    sessions.save(session)
    return session


def test_a_question_without_an_answer_is_set_aside_by_the_next(run: Run) -> None:
    unanswered("And\n2 + 2?")
    ran = run("chat", "-C", "And 1 + 2?")
    assert (ran.code, ran.out) == (0, "Hello there.\n")
    said = "the question before this one got no answer and is set aside (specgguf sessions show 'one'): And 2 + 2?\n"
    assert ran.err.endswith(said)
    session = sessions.load("one")
    assert (session.pending, session.unanswered) == ("", ["And\n2 + 2?"])
    assert "And\n2 + 2?" not in [m["content"] for m in session.messages]
    assert run("sessions", "show", "one").out.endswith("## You, without an answer\n\nAnd\n2 + 2?\n")
    assert "set aside" not in run("chat", "-C", "More?").err


def test_a_question_that_is_asked_again_is_not_set_aside(run: Run) -> None:
    unanswered()
    ran = run("chat", "-C", "And 2 + 2?")
    assert "set aside" not in ran.err
    assert (sessions.load("one").pending, sessions.load("one").unanswered) == ("", [])


def test_a_question_that_is_answered_at_last_is_set_aside_no_longer(run: Run) -> None:
    unanswered("Two?")
    run("chat", "-C", "Three?")
    assert sessions.load("one").unanswered == ["Two?"]
    run("chat", "-C", "Two?", fake=FakeEngine([BackendError("no slot")]))
    assert (sessions.load("one").pending, sessions.load("one").unanswered) == ("Two?", [])
    assert run("sessions", "show", "one").out.count("Two?") == 1
    run("chat", "-C", "Two?")
    assert (sessions.load("one").pending, sessions.load("one").unanswered) == ("", [])


@pytest.mark.parametrize(
    "lines",
    [["/system Be brief."], ["/save two"], ["long " * 2000], ["long " * 2000, "/undo"]],
    ids=["system", "save", "long", "undone"],
)
def test_a_question_without_an_answer_outlives_what_answers_nothing(converse: Run, lines: list[str]) -> None:
    unanswered()
    converse(*lines, flags=["-C"])
    assert sessions.load(sessions.names()[0]).pending == "And 2 + 2?"


def test_a_conversation_sets_aside_too(converse: Run) -> None:
    unanswered()
    converse("And 1 + 2?", "/undo", flags=["-C"])
    assert sessions.load("one").unanswered == ["And 2 + 2?"]
    unanswered()
    fake = FakeEngine()
    converse("/retry", flags=["-C"], fake=fake)
    assert fake.asked[0][-1]["content"] == "And 2 + 2?"
    assert (sessions.load("one").pending, sessions.load("one").unanswered) == ("", [])


@pytest.mark.parametrize(
    ("error", "line", "unanswered"),
    [
        (Cancelled("stopped"), "Three?", []),
        (Cancelled("stopped"), "/edit", []),
        (BackendError("no slot"), "Three?", ["Two?"]),
        (BackendError("no slot"), "/edit", []),
    ],
    ids=["stopped", "stopped, edited", "failed", "failed, edited"],
)
def test_what_the_user_took_back_himself_is_not_set_aside(
    converse: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, line: str, unanswered: list[str]
) -> None:
    monkeypatch.setattr("click.edit", lambda *_, **__: "Three?")
    stored()
    fake = FakeEngine([error, pieces("3.")])
    converse("Two?", line, flags=["-C"], fake=fake)
    assert [messages[-1]["content"] for messages in fake.asked] == ["Two?", "Three?"]
    assert (sessions.load("one").pending, sessions.load("one").unanswered) == ("", unanswered)


def test_a_stopped_question_can_be_asked_again_at_the_next_start(converse: Run) -> None:
    stored()
    converse("Two?", flags=["-C"], fake=FakeEngine([Cancelled("stopped")]))
    fake = FakeEngine()
    converse("/retry", flags=["-C"], fake=fake)
    assert fake.asked[0][-1]["content"] == "Two?"


def taken_back(ran: Ran) -> list[str]:
    """The questions that the program says it took back."""
    lines = [line for line in ran.err.splitlines() if line.startswith("took back: ")]
    return [line.removeprefix("took back: ").partition(" (/")[0] for line in lines]


def test_undo_takes_back_what_got_no_answer_too(converse: Run) -> None:
    session = unanswered("Two?")
    session.unanswered = ["Zero?"]
    sessions.save(session)
    ran = converse(*["/undo"] * 4, flags=["-C"])
    assert taken_back(ran) == ["Two?", "What is 1 + 1?", "Zero?"]
    assert "there is nothing to take back" in ran.err
    left = sessions.load("one")
    assert (left.messages, left.pending, left.unanswered) == ([], "", [])


def test_a_stopped_question_is_taken_back_already(converse: Run) -> None:
    stored()
    ran = converse("Two?", "/undo", "/undo", flags=["-C"], fake=FakeEngine([Cancelled("stopped")]))
    assert taken_back(ran) == ["What is 1 + 1?"]
    assert sessions.load("one").pending == ""


def test_clear_leaves_a_question_without_an_answer_behind(converse: Run) -> None:
    unanswered()
    converse("/clear", "Three?", flags=["-C"])
    (fresh,) = set(sessions.names()) - {"one"}
    assert (sessions.load(fresh).pending, sessions.load(fresh).unanswered) == ("", [])
    assert sessions.load("one").pending == "And 2 + 2?"


@pytest.mark.parametrize("arguments", [["--no-save", "x"], ["long " * 2000]], ids=["unsaved", "too long"])
def test_nothing_is_said_to_be_set_aside_that_is_not(run: Run, arguments: list[str]) -> None:
    unanswered()
    assert "set aside" not in run("chat", "-C", *arguments).err
    assert (sessions.load("one").pending, sessions.load("one").unanswered) == ("And 2 + 2?", [])


def test_a_question_is_set_aside_by_one_that_fails(run: Run) -> None:
    unanswered()
    ran = run("chat", "-C", "Three?", fake=FakeEngine([BackendError("no slot")]))
    assert ran.err.index("set aside") < ran.err.index("error: no slot")
    assert (sessions.load("one").pending, sessions.load("one").unanswered) == ("Three?", ["And 2 + 2?"])


def test_a_full_disk_is_told_once_and_the_talk_goes_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_session: Session) -> None:
        raise OSError(28, "No space left on device")

    unanswered()
    monkeypatch.setattr(sessions, "save", full)
    for flags in ([], ["-C"]):
        ran = run("chat", *flags, "x")
        assert ran.out == "Hello there.\n"
        assert ran.err.count("is not saved: no space left") == 1
        assert "set aside" not in ran.err
