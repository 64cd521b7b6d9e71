"""Small things that people stumble over in the chat."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pytest
from specgguf.cli import exits, open_pair, pairing
from specgguf.cli.chat.actions import keep
from specgguf.cli.chat.input import attachments
from specgguf.cli.chat.saved import sessions
from specgguf.cli.click_options import _Kind
from specgguf.cli.options import BY_NAME
from specgguf.cli.terminal.console import clean
from specgguf.cli.terminal.markdown import StableMarkdown
from specgguf.cli.terminal.status import StatusOutput
from support.cli_support import Run, converse, home, run
from support.fake_engine import FakeEngine, Untemplated

from specgguf.errors import ConfigError, ModelNotFound
from specgguf.fit import draft_candidates
from specgguf.models import inventory

__all__ = ["converse", "home", "run"]  # fixtures

CODE = "See:\n```python\nx = 1\n```\nand\n~~~\ny\n~~~\n"


def test_files_go_along_with_a_single_question(run: Run, home: Path) -> None:
    (home / "a.txt").write_text("alpha")
    (home / "b.txt").write_text("beta")
    fake = FakeEngine()
    assert run("chat", "-f", str(home / "a.txt"), "--file", str(home / "b.txt"), "Compare.", fake=fake).code == 0
    assert fake.asked[0][0]["content"] == "Compare.\n\na.txt:\n```\nalpha\n```\n\nb.txt:\n```\nbeta\n```"


def test_a_file_that_is_not_there_asks_nothing(run: Run, home: Path) -> None:
    fake = FakeEngine()
    ran = run("chat", "-f", str(home / "none.txt"), "Compare.", fake=fake)
    assert (ran.code, fake.asked) == (exits.USAGE, [])
    assert "none.txt: no such file" in ran.err


def test_a_message_names_files_by_at(converse: Run, home: Path) -> None:
    (home / "a b.txt").write_text("alpha")
    (home / "c.txt").write_text("gamma")
    fake = FakeEngine()
    question = f"Is @{home}/a\\ b.txt like @{home}/c.txt? Ask me@{home}/c.txt or @nobody."
    converse(question, fake=fake)
    assert fake.asked[0][0]["content"].startswith(question + "\n\na b.txt:\n```\nalpha")
    assert fake.asked[0][0]["content"].count("gamma") == 1


@pytest.mark.parametrize("text", ["me@example.org", "@property", "@", "@/", "a @ b"])
def test_what_is_no_file_is_text(home: Path, text: str) -> None:
    assert attachments.mentioned(text) == []


def test_copy_by_the_terminals_clipboard(converse: Run) -> None:
    ran = converse("/copy", "one", "/copy", "/copy 7", "/copy code")
    assert "there is no answer yet" in ran.err
    assert "not copied: this terminal has none" in ran.err  # a pipe
    assert "/copy takes code, all, or a number from 1 to 1, not '7'" in ran.err
    assert "the last answer has no code block" in ran.err


class Live:
    """A chat whose terminal is live, as far as /copy looks at it."""

    def __init__(self, answers: list[str]) -> None:
        self.conversation = self.status = self.style = self
        self.live, self.said = True, ""
        self.messages = [
            m for a in answers for m in ({"role": "user", "content": "?"}, {"role": "assistant", "content": a})
        ]

    def raw(self, text: str) -> None:
        self.said += text

    def tell(self, text: str = "") -> None:
        self.said += text + "\n"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("", CODE),
        ("code", "x = 1\n\ny\n"),
        ("1", "first"),
        ("all", f"user:\n?\n\nassistant:\nfirst\n\nuser:\n?\n\nassistant:\n{CODE}"),
    ],
)
def test_what_is_copied(words: str, text: str) -> None:
    chat = Live(["first", CODE])
    keep.copy(chat, words)  # type: ignore[arg-type]
    data = chat.said.partition("\x1b]52;c;")[2].partition("\x07")[0]
    assert base64.b64decode(data).decode() == text


def test_too_much_for_a_clipboard_is_refused() -> None:
    with pytest.raises(ConfigError, match="not copied") as caught:
        keep.copy(Live(["x" * 100_000]), "")  # type: ignore[arg-type]
    assert "/write FILE" in caught.value.hint


def test_write_replaces_a_file_only_when_said_twice(converse: Run, home: Path) -> None:
    (home / "there.txt").write_text("old")
    ran = converse("one", f"/write {home}/new.txt", f"/write {home}/there.txt", "/write")
    assert (home / "new.txt").read_text() == "Hello there.\n"
    assert (home / "there.txt").read_text() == "old"
    assert "there.txt exists" in ran.err
    assert f"{home} is a folder" in converse(f"/write {home}", flags=["-C"]).err
    converse(*[f"/write {home}/there.txt"] * 2, flags=["-C"])
    assert (home / "there.txt").read_text() == "Hello there.\n"


def test_load_by_number(converse: Run) -> None:
    sessions.save(
        sessions.Session("older", messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    )
    fake = FakeEngine()
    ran = converse("/load", "/load 1", "two", fake=fake)
    assert " 1  older  x" in ran.err
    assert fake.asked[0][0]["content"] == "x"


def test_a_number_after_a_list_picks_and_elsewhere_it_is_a_message(converse: Run) -> None:
    sessions.save(
        sessions.Session("older", messages=[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])
    )
    fake = FakeEngine()
    ran = converse("/load", "1", "1", "/load", "7", fake=fake)
    assert "'older', 1 turn: x" in ran.err
    assert [messages[-1]["content"] for messages in fake.asked] == ["1", "7"]
    assert fake.asked[0][0]["content"] == "x"


def test_a_misspelt_model_gets_the_nearest(converse: Run, run: Run) -> None:
    for said in (converse("/model demoo").err, run("models", "pair", "demoo").err):
        assert "did you mean 'demo'?" in said


def test_model_paths_with_blanks(converse: Run, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a b.gguf").touch()
    tried: list[tuple[str, str | None]] = []

    def pick(settings, status, *, yes=False):  # type: ignore[no-untyped-def]
        tried.append((settings["model"], settings["draft_model"]))
        raise ModelNotFound("no such model")

    monkeypatch.setattr(open_pair, "pick", pick)
    path = f"{home}/a b.gguf"
    ran = converse(f"/model {path}", f"/model '{path}' d.gguf", f"/model {home}/a\\ b.gguf", "/model a b c")
    assert tried == [(path, None), (path, "d.gguf"), (path, None)]
    assert "a path with blanks in it goes between quotes" in ran.err


def test_help_of_one_command(converse: Run) -> None:
    ran = converse("/help undo", "/help /quit", "/help hlep")
    assert "  /undo" in ran.err
    assert "/exit" in ran.err
    assert "/clear" not in ran.err
    assert "there is no command /hlep" in ran.err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/set n_ctx 8192", "at the start: specgguf chat --continue --n-ctx"),
        ("/set highlight on", "/highlight changes it"),
        ("/set stop x", "one of temperature, top_k"),
        ("/set temp -1", "temperature must be 0 or more, not -1"),
    ],
)
def test_set_of_what_it_does_not_change(converse: Run, line: str, said: str) -> None:
    fake = FakeEngine()
    ran = converse(line, "one", fake=fake)
    assert said in ran.err
    assert fake.keywords[0]["temperature"] == 0.8


def test_the_parts_of_the_context_add_up(converse: Run) -> None:
    ran = converse("/context", "one two", "/context", flags=["-s", "Be brief and kind."])
    rows = [line for line in ran.err.splitlines() if "tokens" in line]
    whole = [int(row.rpartition("  ")[2].split()[0]) for row in rows if " of 1,000" in row]
    system = [int(row.split()[2]) for row in rows if row.startswith("system prompt")]
    turns = [int(row.rpartition(", ")[2].split()[0]) for row in rows if "next message, " in row]
    assert system[0] == whole[0]
    assert system[1] + turns[0] == whole[1]


def test_a_model_without_a_chat_template_is_refused_at_load(run: Run) -> None:
    ran = run("chat", "x", fake=Untemplated())
    assert ran.code == exits.FAILED
    assert "target.gguf: this model file has no chat template, so it cannot hold a conversation" in ran.err
    assert "take an instruct model: -m REF" in ran.err


def test_presets_complete_auto(home: Path) -> None:
    found = _Kind(BY_NAME["preset"]).shell_complete(None, None, "au")  # type: ignore[arg-type]
    assert [item.value for item in found] == ["auto"]


def test_text_that_turns_its_direction_is_shown_as_it_is() -> None:
    assert clean("a\u202ecba\u2066x\u2069") == "acbax"


def test_markdown_keeps_addresses_and_tags() -> None:
    markdown = StableMarkdown(80, color=False)
    text = (
        markdown.feed("Use <b>bold</b>, `<i>`, [docs](https://x.example/a) and <https://y.example>.\n")
        + markdown.flush()
    )
    for part in ("<b>bold</b>", "<i>", "https://x.example/a", "https://y.example"):
        assert part in text


def test_a_closed_stdout_is_named() -> None:
    assert exits.describe(OSError(9, "Bad file descriptor"))[0] == "stdout: bad file descriptor"


def test_answers_held_to_a_schema_or_a_grammar(run: Run, home: Path) -> None:
    (home / "s.json").write_text('{"type": "object"}')
    (home / "g.gbnf").write_text('root ::= "yes" | "no"\n')
    (home / "bad.json").write_text("{")
    fake = FakeEngine()
    run("chat", "--schema", f"{home}/s.json", "x", fake=fake)
    assert fake.keywords[0]["response_format"] == {"type": "json_object", "schema": {"type": "object"}}
    run("chat", "--grammar", f"{home}/g.gbnf", "x", fake=fake)
    assert fake.keywords[1]["grammar"] == 'root ::= "yes" | "no"'
    (home / "loose.json").write_text('{"schema": {"type": "object"}, "strict": false}')
    run("chat", "--schema", str(home / "loose.json"), "x", fake=fake)
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": False}}
    assert fake.keywords.pop()["response_format"] == wanted
    fake.asked.pop()
    for flags, said in (
        (["--schema", f"{home}/bad.json"], "bad.json is not JSON"),
        (["--schema", f"{home}/none.json"], f"--schema {home}/none.json: no such file"),
        (["--schema", "a", "--grammar", "b"], "exclude each other"),
    ):
        ran = run("chat", *flags, "x", fake=fake)
        assert (ran.code, len(fake.asked)) == (exits.USAGE, 2)
        assert said in ran.err


def test_presets_that_fit_begin_with_those_for_this_machine(run: Run) -> None:
    from specgguf.fit.hardware import this_machine

    rows = [json.loads(line) for line in run("presets", "list", "--fits", "--json").out.splitlines()]
    mine = [row["device"] in (this_machine().kind, "any") for row in rows]
    assert mine == sorted(mine, reverse=True)


@pytest.mark.parametrize(("said", "expected"), [("\n", "big"), ("n\n", "")])
def test_what_is_here_is_proposed_before_a_download(
    home: Path, monkeypatch: pytest.MonkeyPatch, said: str, expected: str
) -> None:
    found = [inventory.Found(name, home / name, size, "LM Studio") for name, size in (("small", 10), ("big", 20))]
    monkeypatch.setattr(inventory, "models", lambda: found)
    monkeypatch.setattr(draft_candidates, "best", lambda path: found[0] if path.name == "big" else None)
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    err = io.StringIO()
    assert pairing._offer_what_is_here(StatusOutput(stream=err)) == expected
    assert "big (20 bytes) is here already, and small can draft for it" in err.getvalue()
    assert ("makes it the default" in err.getvalue()) == bool(expected)
