"""Prediction heads as a person meets them: what commands say of a file with them, and who is refused in one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from support.cli_support import Ran, Run, home, in_process, private_home
from support.tiny import chat
from support.tiny_heads import write_hy_v3

from specgguf.models import cache, inventory
from specgguf.native import compat

__all__ = ["home"]  # fixture


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(inventory, "home", lambda: home)
    monkeypatch.setattr(cache, "folder", lambda: home / "models")
    return in_process


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("heads")
    written = {n: write_hy_v3(folder / f"{n}-heads.gguf", chat(), n_heads=n) for n in (1, 2)}
    return {str(n): str(path) for n, path in written.items()}


@pytest.fixture
def no_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A llama-cpp-python that lacks one of the heads' calls."""
    monkeypatch.setitem(compat.HEAD_CALLS, "llama_get_ctx_other_", ("a", "b", None, []))


# --- doctor ---------------------------------------------------------------------------------------------------


def test_doctor_says_whether_heads_can_be_run_and_how_many_a_file_has(run: Run, files: dict[str, str]) -> None:
    alone = run("doctor", "--no-speed")
    assert [line for line in alone.out.splitlines() if line.startswith("prediction heads")] == [
        "prediction heads  can be run"
    ]
    assert "can be run; 2-heads.gguf has 2 (-d heads)" in run("doctor", "--no-speed", "-m", files["2"]).out
    about = run("doctor", "--no-speed", "--json", "-m", files["2"]).json
    assert about["prediction_heads"] == {"missing": "", "target": "2-heads.gguf", "n": 2}
    assert not any("head" in warning["text"] for warning in about["warnings"])


def test_doctor_measures_what_heads_cost(run: Run, files: dict[str, str]) -> None:
    pair = run("doctor", "-m", files["1"], "-t", "1", "--json").json["pair"]
    assert (pair["target"], pair["draft"]) == ("1-heads.gguf", "heads")
    assert pair["rollback"] == {"target": "plain", "draft": "plain"}
    assert pair["draft_s"] > 0


def test_doctor_says_what_another_draft_leaves_unused(run: Run, files: dict[str, str]) -> None:
    said = run("doctor", "--no-speed", "-m", files["1"], "-d", "ngram").out
    assert "1-heads.gguf has 1 prediction head, which would draft for it" in said
    assert f"specgguf bench -m {files['1']} -d heads" in said


def test_doctor_knows_a_file_without_heads(run: Run, tiny_chat: Pair) -> None:
    assert f"{tiny_chat.target.name} has none" in run("doctor", "--no-speed", "-m", str(tiny_chat.target)).out


def test_doctor_names_the_call_that_is_missing(run: Run, files: dict[str, str], no_calls: None) -> None:
    said = run("doctor", "--no-speed", "-m", files["1"]).out
    assert "has no prediction heads: llama_get_ctx_other_ is missing" in said
    assert compat.REQUIREMENT in said


# --- fit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", [(), ("-d", "heads")], ids=str)
def test_fit_counts_heads_in_lines_of_their_own(run: Run, files: dict[str, str], named: tuple[str, ...]) -> None:
    ran = run("fit", "-m", files["2"], *named)
    assert ran.code == 0
    rows = [line.split("  ")[0] for line in ran.out.splitlines()]
    wanted = ["heads weights", "heads KV cache", "heads compute", "heads hidden states"]
    assert [row for row in rows if row.startswith("heads ")][-4:] == wanted
    assert "2 prediction heads, as many contexts" in ran.out
    about = run("fit", "-m", files["2"], *named, "--json").json
    assert (about["prediction_heads"], about["drafts"]) == (2, "heads")
    assert all(about["draft"][name] > 0 for name in ("host_weights", "host_kv", "host_compute", "host_states"))


def test_fit_without_a_draft_counts_none(run: Run, files: dict[str, str]) -> None:
    about = run("fit", "-m", files["2"], "-d", "none", "--json").json
    assert (about["prediction_heads"], about["drafts"], about["draft"]) == (2, None, None)


def test_fit_counts_no_heads_that_cannot_be_run(run: Run, files: dict[str, str], no_calls: None) -> None:
    about = run("fit", "-m", files["2"], "--json").json
    assert (about["prediction_heads"], about["drafts"]) == (2, None)


def test_fit_predicts_for_heads_as_for_any_draft(run: Run, files: dict[str, str]) -> None:
    said = run("fit", "-m", files["2"], "--predict", "--device", "RTX 4090").out
    header = next(line for line in said.splitlines() if line.startswith("accepted"))
    assert header.split() == ["accepted", "K=1", "K=2", "best"], "each of two heads drafts one token"


def test_a_preset_may_name_the_heads(run: Run, home: Path, files: dict[str, str]) -> None:
    assert run("presets", "save", "own", "-m", files["2"], "-d", "heads", "-c", "256").code == 0
    assert run("presets", "show", "own").out.endswith("draft  heads\n")
    about = run("fit", "-p", "own", "--json").json
    assert (about["drafts"], about["draft"]["host_states"] > 0) == ("heads", True)
    answer = run("chat", "-p", "own", "--max-tokens", "4", "--json", "hello")
    assert answer.code == 0, answer.err


# --- models ---------------------------------------------------------------------------------------------------


def test_the_list_of_models_marks_those_with_heads(
    run: Run, home: Path, files: dict[str, str], tiny_chat: Pair
) -> None:
    (home / "models" / "x").mkdir(parents=True)
    shutil.copy(files["2"], home / "models" / "x" / "with.gguf")
    shutil.copy(tiny_chat.target, home / "models" / "x" / "without.gguf")
    ran = run("models", "list")
    marks = {line.split()[0]: line.split()[-1] for line in ran.out.splitlines()}
    assert marks == {"with.gguf": "heads", "without.gguf": "specgguf"}
    assert "-d heads" in ran.err
    found = [json.loads(line) for line in run("models", "list", "--json").out.splitlines()]
    assert {one["name"]: one["prediction_heads"] for one in found} == {"with.gguf": 2, "without.gguf": 0}


# --- bench ----------------------------------------------------------------------------------------------------


def test_bench_tells_the_break_even_acceptance_of_heads(run: Run, files: dict[str, str], tmp_path: Path) -> None:
    saved = tmp_path / "saved.json"
    command = ["-m", files["2"], "-c", "256", "-t", "1", "--kind", "code", "--repeats", "1", "--max-tokens", "24"]
    ran = run("bench", *command, "--prompts", str(_prompts(tmp_path)), "--save", str(saved), "--color", "never")
    assert ran.code == 0, ran.err
    for words in ("K=1", "K=2", "drafting and verifying", "breaks even when accepted"):
        assert words in ran.out
    assert "K=3" not in ran.out, "each of two heads drafts one token"
    found = json.loads(saved.read_text())["break_even"]
    assert [one["draft_n"] for one in found] == [1, 2]
    assert all(0 < one["draft_cost"] < one["round_cost"] for one in found)


def _prompts(folder: Path) -> Path:
    path = folder / "own.jsonl"
    path.write_text('{"kind": "code", "prompt": "the word list"}\n')
    return path


# --- who is refused -------------------------------------------------------------------------------------------


def program(home: Path, *arguments: str) -> Ran:
    """The real program, in a process of its own."""
    env = {**{k: v for k, v in os.environ.items() if not k.startswith("SPECGGUF_")}, **private_home(home)}
    command = [sys.executable, "-P", "-m", "specgguf.cli.main", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    return Ran(done.returncode, done.stdout, done.stderr, done.stdout.encode())


CHAT = ("chat", "-m", "{model}", "-d", "{draft}", "hello")
FIT = ("fit", "-m", "{model}", "-d", "{draft}")


@pytest.mark.parametrize(
    ("command", "model", "draft", "said", "hint"),
    [
        (CHAT, "plain", "heads", "{plain} has no prediction heads that can draft", "name a draft's file"),
        (FIT, "plain", "heads", "{plain} has no prediction heads that can draft", "name a draft's file"),
        (CHAT, "heads", "heads,{plain}", "prediction heads and a draft model cannot draft together", "-d FILE"),
        (FIT, "heads", "heads+{plain}", "prediction heads and a draft model cannot draft together", "-d FILE"),
        ((*CHAT, "--rpc", "127.0.0.1:1"), "heads", "heads", "a target on workers cannot draft by its own", "-d FILE"),
        ((*FIT, "--rpc", "127.0.0.1:1"), "heads", "heads", "a target on workers cannot draft by its own", "-d FILE"),
    ],
)  # fmt: skip
def test_what_heads_cannot_do_is_said_in_one_line_and_a_hint(
    home: Path, files: dict[str, str], tiny_chat: Pair, command: Any, model: str, draft: str, said: str, hint: str
) -> None:
    names = {"plain": str(tiny_chat.target), "heads": files["1"]}
    filled = [part.format(model=names[model], draft=draft.format(plain=names["plain"])) for part in command]
    ran = program(home, *filled)
    lines = ran.err.splitlines()
    assert ran.code == 1
    assert not ran.out
    assert len(lines) == 2, ran.err
    assert lines[0].startswith(f"error: {said.format(plain=names['plain'])}")
    assert lines[1].startswith("  hint: ")
    assert hint in lines[1]


def test_without_the_calls_a_named_head_is_refused_and_an_unnamed_one_left_alone(
    run: Run, files: dict[str, str], no_calls: None
) -> None:
    named = run("chat", "-m", files["1"], "-d", "heads", "--max-tokens", "4", "hello")
    assert named.code == 1
    assert "has no prediction heads: llama_get_ctx_other_ is missing" in named.err
    unnamed = run("chat", "-m", files["1"], "--max-tokens", "4", "-c", "256", "hello")
    assert unnamed.code == 0, unnamed.err
    assert "llama_get_ctx_other_ is missing; no matching draft model is here: decoding plainly" in unnamed.err
