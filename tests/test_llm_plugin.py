"""The plugin under the real `llm` program, over a tiny pair."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import Pair
from support.cli_support import private_home
from support.serve_support import on_one_core

HEAVY = {"llama_cpp", "numpy", "rich", "huggingface_hub", "prompt_toolkit", "jinja2"}
SHORT = ["-o", "max_tokens", "24", "-o", "temperature", "0"]


@dataclass
class Program:
    """The `llm` program in a home of its own, whose settings file names the tiny pair."""

    home: Path

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **private_home(self.home), "LLM_USER_PATH": str(self.home / "llm")}

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            on_one_core("llm", *arguments),
            env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done

    @property
    def config(self) -> Path:
        return self.home / "config" / "specgguf"


@pytest.fixture(scope="module")
def program(tiny_chat: Pair, tmp_path_factory: pytest.TempPathFactory) -> Program:
    program = Program(tmp_path_factory.mktemp("llm"))
    (program.config / "presets").mkdir(parents=True)
    settings = {
        "model": str(tiny_chat.target),
        "draft_model": str(tiny_chat.draft),
        "n_ctx": 512,
        "draft": 3,
        "n_threads": 1,
    }
    write_toml(program.config / "config.toml", settings)
    preset = {
        "summary": "tiny",
        "model": str(tiny_chat.target),
        "draft_model": str(tiny_chat.draft),
        "n_ctx": 256,
        "n_threads": 1,
    }
    write_toml(program.config / "presets" / "tiny.toml", preset)
    write_toml(program.config / "presets" / "lost.toml", {**preset, "model": "/nowhere/lost.gguf"})
    return program


def write_toml(path: Path, values: dict[str, object]) -> None:
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))


def test_models_come_from_presets_and_settings(program: Program) -> None:
    names = {line.removeprefix("Model: ").split()[0] for line in program("models", "list").stdout.splitlines()}
    assert {"specgguf", "specgguf-demo", "specgguf-tiny"} <= names


def test_listing_them_loads_nothing_heavy(program: Program) -> None:
    code = "import sys, llm; llm.get_models(); print(*sorted({m.split('.')[0] for m in sys.modules}))"

    def loaded(**variables: str) -> set[str]:
        environment = {**program.environment, **variables}
        done = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, check=True)
        return set(done.stdout.decode().split())

    ours = loaded() - loaded(LLM_LOAD_PLUGINS="")
    assert "specgguf" in ours
    assert not ours & HEAVY


def test_answers_stream_or_not_and_count(program: Program) -> None:
    """Same text both ways; what the draft did is in the usage."""
    streamed = program("-m", "specgguf", "a word list", *SHORT, "-u")
    whole = program("-m", "specgguf", "a word list", *SHORT, "--no-stream")
    assert streamed.stdout == whole.stdout
    assert len(streamed.stdout) > 5
    assert "24 output" in streamed.stderr
    usage = json.loads(streamed.stderr[streamed.stderr.index("{") :])
    assert usage["draft_n"] >= usage["draft_n_accepted"] > 0


def test_a_conversation_goes_on(program: Program) -> None:
    """The second prompt carries the first turn and the system prompt."""
    program("-m", "specgguf-tiny", "-s", "be brief", "a word list", *SHORT)
    program("-c", "and more", *SHORT)
    first, second = json.loads(program("logs", "-n", "2", "--json").stdout)
    assert first["conversation_id"] == second["conversation_id"]
    turn = len(first["response"]) + len("and more")
    assert second["input_tokens"] > first["input_tokens"] + turn / 8, "a token is at most eight characters here"


def test_options_and_schema(program: Program) -> None:
    off = program("-m", "specgguf", "a word list", *SHORT, "-o", "draft", "off", "-u")
    assert json.loads(off.stderr[off.stderr.index("{") :])["draft_n"] == 0
    assert off.stdout == program("-m", "specgguf", "a word list", *SHORT, "-o", "n_ctx", "300").stdout
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    said = json.loads(program("-m", "specgguf", "--schema", json.dumps(schema), "n", "-o", "max_tokens", "90").stdout)
    assert isinstance(said["ok"], bool)
    program("-m", "specgguf", "hi", "-o", "temprature", "1", code=1)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-m", "specgguf", "hi", "-o", "draft", "many"], "draft must be auto, off, or a number"),
        (["-m", "specgguf", "a" * 2000], "the context holds"),
        (["-m", "specgguf-lost", "hi"], "lost.gguf"),
        (["-m", "specgguf-demo", "hi"], "specgguf models pull demo"),
    ],
    ids=["option", "too long", "no such file", "not downloaded"],
)
def test_what_goes_wrong_is_one_line(program: Program, arguments: list[str], words: str) -> None:
    done = program(*arguments, code=1)
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr


def test_a_broken_settings_file_is_named(program: Program) -> None:
    own = Program(program.home / "broken")
    own.config.mkdir(parents=True)
    (own.config / "config.toml").write_text("model = ")
    assert "config.toml is not valid TOML" in own("-m", "specgguf", "hi", code=1).stderr
