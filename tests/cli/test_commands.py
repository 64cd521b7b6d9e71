"""The slash commands, typed into a conversation over a scripted engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from specgguf.cli import open_pair, pairing
from specgguf.cli.chat import slash
from specgguf.cli.chat.saved import sessions
from support.cli_support import Run, converse, home, run
from support.fake_engine import FakeEngine, Untemplated, loaded, pieces

from specgguf.errors import BackendError, ContextFull, ModelNotFound
from specgguf.text.template import RenderedPrompt

__all__ = ["converse", "home", "run"]  # fixtures


def numbered(n: int = 9) -> FakeEngine:
    return FakeEngine([pieces(f"Answer {i}.", drafted="Answer") for i in range(1, n + 1)])


def asked(fake: FakeEngine) -> list[list[str]]:
    return [[m["content"] for m in messages] for messages in fake.asked]


def test_table_is_sound() -> None:
    names = [command.name for command in slash.COMMANDS]
    assert len(set(names)) == len(names)
    assert set(slash.ALIASES.values()) <= set(names)
    assert not set(slash.ALIASES) & set(names)
    wanted = "help exit clear undo retry system set draft highlight stats save load file think context model edit"
    assert set(wanted.split()) <= set(names)


def test_help_lists_every_command(converse: Run) -> None:
    ran = converse("/help", "/?")
    for command in slash.COMMANDS:
        assert ran.err.count(f"  /{command.name}") == 2
    assert ran.out == ""


def test_unknown_command_names_the_nearest(converse: Run) -> None:
    fake = numbered()
    ran = converse("/hepl", "/xyzzy", fake=fake)
    assert "there is no command /hepl" in ran.err
    assert "did you mean /help?" in ran.err
    assert "a space before the slash sends it as text" in ran.err
    assert fake.asked == []


@pytest.mark.parametrize(
    "text",
    [
        "//etc/passwd is what?",
        "// a comment",
        "/* a comment */",
        "/etc/passwd is what?",
        "/tmp is full",
        " /help",
        "/",
        "/a\nb",
        "/home/x/y.py",
    ],
)
def test_what_begins_with_a_slash_and_is_no_command_is_sent_as_written(converse: Run, text: str) -> None:
    fake = numbered()
    converse(text, "", "   ", fake=fake)
    assert asked(fake) == [[text]]


def test_what_was_quoted_is_no_command(converse: Run) -> None:
    fake = numbered()
    converse('"""/help"""', '"""exit"""', fake=fake)
    assert [messages[-1] for messages in asked(fake)] == ["/help", "exit"]


def test_undo_and_retry(converse: Run) -> None:
    fake = numbered()
    ran = converse("one", "two", "/undo", "three", "/retry", "/undo", "/undo", "/undo", "/retry", fake=fake)
    assert asked(fake) == [
        ["one"],
        ["one", "Answer 1.", "two"],
        ["one", "Answer 1.", "three"],
        ["one", "Answer 1.", "three"],
    ]
    assert "took back: two" in ran.err
    assert "there is nothing to take back" in ran.err
    assert "there is nothing to answer again" in ran.err


def test_retry_after_a_refused_question(converse: Run) -> None:
    fake = FakeEngine([BackendError("no slot"), pieces("Now.")])
    ran = converse("one", "/retry", fake=fake)
    assert asked(fake) == [["one"], ["one"]]
    assert "error: no slot" in ran.err
    assert ran.out == "Now.\n"


def test_clear_starts_anew_and_keeps_the_old(converse: Run) -> None:
    fake = numbered()
    converse("one", "/clear", "two", fake=fake, flags=["-s", "Be brief."])
    assert asked(fake) == [["Be brief.", "one"], ["Be brief.", "two"]]
    assert len(sessions.names()) == 2


def test_save_load_and_resume(converse: Run, run: Run) -> None:
    fake = numbered()
    converse("one", "/save my talk", "two", fake=fake)
    assert sessions.names() == ["my talk"]
    ran = converse("/load my talk", "three", fake=fake)
    assert "'my talk', 2 turns: one" in ran.err
    assert len(sessions.load("my talk").messages) == 6
    again = converse("/save my talk", "/load nothing", "/load", "x", "/save my talk", fake=fake)
    assert "there is nothing to save yet" in again.err
    assert "there is no conversation 'nothing'" in again.err
    assert " 1  my talk  one" in again.err
    assert "a conversation 'my talk' already" in again.err


def test_system(converse: Run) -> None:
    fake = numbered()
    ran = converse("/system", "/system Be brief.", "one", "/system none", "two", fake=fake)
    assert asked(fake) == [["Be brief.", "one"], ["one", "Answer 1.", "two"]]
    assert "system prompt: none" in ran.err


def test_set(converse: Run) -> None:
    fake = numbered()
    ran = converse(
        "/set temperature 0", "/set max-tokens 5", "/set temp 9x", "/set min_p 7", "/set topk 1", "/set colour 1",
        "one", "/set temperature default", "/set", "two", fake=fake,
    )  # fmt: skip
    assert (fake.keywords[0]["temperature"], fake.keywords[0]["max_tokens"]) == (0.0, 5)
    assert fake.keywords[1]["temperature"] == 0.8
    assert "temperature must be a number, not '9x'" in ran.err
    assert "min_p must be a number from 0 to 1" in ran.err
    assert "did you mean top_k?" in ran.err
    assert "/set knows no 'colour'" in ran.err
    assert fake.keywords[1]["min_p"] == 0.05
    assert "seed = none" in ran.err


def test_draft(converse: Run) -> None:
    fake = numbered()
    ran = converse("/draft", "/draft 4", "/draft off", "one", "/draft auto", "/draft lots", fake=fake)
    assert "drafting is automatic" in ran.err
    assert "drafting 4 tokens a round, always" in ran.err
    assert "drafting is off: every token is the target's own" in ran.err
    assert "unexpected" not in ran.err
    assert "drafting is off: nobody wants it" in ran.err
    assert "draft must be auto, off, or a number" in ran.err
    assert fake.draft == "auto"


def test_highlight_shows_the_last_answer_again(converse: Run) -> None:
    ran = converse("one", "/highlight", "/highlight", "/highlight maybe", fake=numbered(), flags=["--color", "always"])
    assert ran.out == "Answer 1.\n\x1b[32mAnswer\x1b[0m 1.\n"
    assert "highlighting is off" in ran.err
    assert "highlight must be off, on, green, underline, bold" in ran.err


def test_stats(converse: Run) -> None:
    ran = converse("/stats", "one", "/stats", "/stats off", "two", fake=numbered())
    assert "nothing was generated yet" in ran.err
    for part in (
        "draft 1/2 accepted (50 %)",
        "position ",
        "accepted ",
        "drafted  ██",
        "time     prompt",
        "since the start",
    ):
        assert part in ran.err
    assert ran.err.count("new + 0 cached") == 2  # the line after "one", and the page; none after "two"


def test_think(converse: Run) -> None:
    fake = FakeEngine([pieces("<think>deep</think>Yes.")])
    ran = converse("/think on", "/think hide", "one", "/think loud", fake=fake)
    assert fake.keywords[0]["enable_thinking"] is True
    assert "deep" not in ran.err
    assert "thinking: on; displayed: hide" in ran.err
    assert "/think takes on, off, dim, show or hide" in ran.err


def test_reasoning_is_not_sent_back_as_text(converse: Run) -> None:
    fake = FakeEngine([pieces("<think>deep</think>Yes.")])
    converse("one", "two", fake=fake)
    assert fake.asked[1][1] == {"role": "assistant", "content": "Yes.", "reasoning_content": "deep"}


def test_file(converse: Run, home: Path) -> None:
    (home / "notes.txt").write_text("alpha\nbeta\n")
    (home / "binary").write_bytes(b"\xff\xfe\x00")
    with open(home / "large", "wb") as large:
        large.truncate(2**27)
    fake = numbered()
    ran = converse(
        f"/file {home}/notes.txt",
        "Explain.",
        "More.",
        "/file",
        f"/file {home}/nothing",
        f"/file {home}/binary",
        f"/file {home}",
        f"/file {home}/large",
        "/file /dev/zero",
        fake=fake,
    )
    assert asked(fake)[0] == ["Explain.\n\nnotes.txt:\n```\nalpha\nbeta\n```"]
    assert asked(fake)[1][-1] == "More."
    assert "goes with your next message" in ran.err
    for said in (
        "no such file",
        "is not UTF-8 text",
        "is a directory",
        "larger than",
        "is not a file",
    ):
        assert said in ran.err


def test_a_file_goes_along_once_even_when_its_question_is_asked_again(converse: Run, home: Path) -> None:
    (home / "notes.txt").write_text("alpha")
    fake = FakeEngine([BackendError("no slot"), pieces("Now.")])
    converse(f"/file {home}/notes.txt", "Explain.", "/retry", fake=fake)
    assert asked(fake)[0] == asked(fake)[1]
    assert asked(fake)[1][0].count("alpha") == 1


def test_context(converse: Run) -> None:
    ran = converse("one", "/context", fake=numbered(), flags=["-s", "Be brief."])
    assert "of 1,000 tokens" in ran.err
    assert "system prompt  " in ran.err
    assert "1 turn sent with the next message" in ran.err


class Refusing(FakeEngine):
    """Does not read what no context could hold, as the real one."""

    def render(
        self, messages: Sequence[dict[str, Any]], *, tools: Any = None, enable_thinking: bool | None = None
    ) -> RenderedPrompt:
        ids = super().render(messages, tools=tools, enable_thinking=enable_thinking)
        if len(ids) > 2 * self.n_ctx():
            raise ContextFull("too long to be read", hint="shorten it")
        return ids


def test_context_of_what_is_too_long_to_be_counted(converse: Run) -> None:
    messages = [{"role": role, "content": "x " * 3000} for role in ("user", "assistant")]
    sessions.save(sessions.Session("long", messages=messages))
    ran = converse("/context", "/system " + "y " * 3000, "/context", fake=Refusing(), flags=["-C"])
    assert "error" not in ran.err
    assert "more than the 1,000 tokens that fit\n1 turn sent with the next message, as far as they fit\n" in ran.err
    assert "more than the 1,000 tokens that fit\nsystem prompt  more than fits\n" in ran.err


def test_model(converse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = numbered(), FakeEngine([pieces("From the second.")])
    tried: list[tuple[str, str | None]] = []

    def pick(settings, status, *, yes=False):  # type: ignore[no-untyped-def]
        tried.append((settings["model"], settings["draft_model"]))
        if settings["model"] == "nowhere":
            raise ModelNotFound("no such model: nowhere")
        return pairing.ChosenPair(Path(settings["model"]), None, settings["model"], "")

    monkeypatch.setattr(open_pair, "pick", pick)
    monkeypatch.setattr(open_pair, "load", lambda pair, *_, **__: loaded(second))
    ran = converse("one", "/model", "/model nowhere", "two", "/model other.gguf draft.gguf", "three", fake=first)
    assert tried == [("nowhere", None), ("other.gguf", "draft.gguf")]
    assert "no such model: nowhere" in ran.err
    assert asked(first)[1][-1] == "two"  # still there after the failure
    assert first.closed
    assert second.closed
    assert [m["content"] for m in second.asked[0]][-1] == "three"
    assert len(second.asked[0]) == 5
    assert second.keywords[0]["temperature"] == 0.8


def test_model_without_a_chat_template_leaves_the_old_one(converse: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first, untemplated, again = numbered(), Untemplated(), numbered()
    old, new = (pairing.ChosenPair(Path(name), None, name, "") for name in ("old.gguf", "new.gguf"))
    monkeypatch.setattr(open_pair, "pick", lambda *_, **__: new)
    monkeypatch.setattr(open_pair, "_load", lambda pair, _settings: again if pair is old else untemplated)
    monkeypatch.setattr("support.cli_support.loaded", lambda fake: open_pair.Loaded(fake, "old.gguf", pair=old))
    ran = converse("one", "/model new.gguf", "/model", "two", fake=first)
    assert ran.code == 0
    assert "new.gguf: this model file has no chat template, so it cannot hold a conversation" in ran.err
    assert "target  old.gguf" in ran.err
    assert [m["content"] for m in again.asked[0]] == ["one", "Answer 1.", "two"]
    assert untemplated.asked == []
    assert (first.closed, untemplated.closed, again.closed) == (True, True, True)


def test_leaving(converse: Run) -> None:
    for line in ("/exit", "/quit", "/bye", "exit", "quit", " Bye "):
        assert converse(line, "never asked").code == 0
    assert converse(KeyboardInterrupt(), KeyboardInterrupt()).code == 130
    ran = converse("one")
    assert ran.code == 0
    assert "specgguf chat --continue comes back" in ran.err


def test_debug_shows_tracebacks_and_goes_on(converse: Run) -> None:
    ran = converse("one", "two", fake=FakeEngine([RuntimeError("odd"), pieces("Fine.")]), flags=["--debug"])
    assert "Traceback" in ran.err
    assert (ran.code, ran.out) == (0, "Fine.\n")


def test_errors_do_not_end_the_conversation(converse: Run) -> None:
    ran = converse("one", "two", fake=FakeEngine([RuntimeError("odd"), pieces("Fine.")]))
    assert "unexpected RuntimeError: odd" in ran.err
    assert (ran.code, ran.out) == (0, "Fine.\n")


@pytest.mark.parametrize(
    ("typed", "candidates"),
    [
        ("/hi", ["highlight "]),
        ("/s", ["stats", "save ", "system ", "set "]),
        ("/draft ", ["auto", "off", "4"]),
        ("/think s", ["show"]),
        ("/set temp", ["temperature "]),
        ("/quit ", []),
        ("hello /hi", []),
        ("//hi", []),
        ("/load my", ["my talk"]),
        ("/model de", ["demo"]),
    ],
)
def test_completion(home: Path, typed: str, candidates: list[str]) -> None:
    sessions.save(sessions.Session("my talk"))
    chat = None  # the choices offered here need none
    found = [text for text, _, _ in slash.complete(chat, typed)]  # type: ignore[arg-type]
    assert found == candidates


def test_completion_of_paths(home: Path) -> None:
    (home / "docs").mkdir()
    (home / "docs" / "a.txt").touch()
    (home / ".hidden").touch()
    found = [text for text, _, _ in slash.complete(None, f"/file {home}/d")]  # type: ignore[arg-type]
    assert found == [f"{home}/docs/"]
    found = [text for text, _, _ in slash.complete(None, f"/file {home}/docs/")]  # type: ignore[arg-type]
    assert found == [f"{home}/docs/a.txt"]
