"""Every example runs as it is printed, over a tiny pair, and says what it promises."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import openai
import pytest
from conftest import Pair
from support.cli_support import private_home
from support.serve_support import WAIT_S, on_one_core

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of their own: what they measure of the tiny pair stays out of the user's cache."""
    for name, value in private_home(tmp_path).items():
        monkeypatch.setenv(name, value)


def command(name: str, *arguments: str) -> list[str]:
    python, *rest = on_one_core(str(EXAMPLES / f"{name}.py"), *arguments)
    return [python, "-W", "error", *rest]


def run(name: str, pair: Pair, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(name, str(pair.target), str(pair.draft), *arguments),
        input=stdin, capture_output=True, text=True, timeout=2 * WAIT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_completion(tiny_chat: Pair) -> None:
    out = run("completion", tiny_chat).stdout
    assert re.search(r"\d+ tokens at [\d.]+ tokens/s; \d+ of \d+ drafted tokens were accepted", out)


def test_chat(tiny_chat: Pair) -> None:
    out = run("chat", tiny_chat).stdout
    counts = [tuple(map(int, pair)) for pair in re.findall(r"\((\d+) of (\d+) prompt tokens", out)]
    assert len(counts) == 3
    assert counts[0][0] == 0
    assert all(0 < cached < prompt for cached, prompt in counts[1:])


def test_highlight(tiny_chat: Pair) -> None:
    out = run("highlight", tiny_chat).stdout
    by_draft = int(re.search(r"(\d+) of \d+ tokens by the draft", out)[1])  # type: ignore[index]
    assert out.count("\x1b[32m") == by_draft


def test_json_schema(tiny_chat: Pair) -> None:
    assert set(json.loads(run("json_schema", tiny_chat).stdout)) == {"language", "year", "typed"}


def test_acceptance(tiny_chat: Pair, tmp_path: Path) -> None:
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for text in texts:
        text.write_text("the number of words in a list " * 5)
    lines = run("acceptance", tiny_chat, *map(str, texts)).stdout.splitlines()
    assert len(lines) == 4
    for line in lines:
        assert re.search(r"\.txt  T=[01]  ( *\d+%| +-){4}.* [1-5]\.\d\d tokens per forward pass$", line), line


def test_acceptance_explains_itself() -> None:
    done = subprocess.run(command("acceptance"), capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 1
    assert "acceptance.py TARGET.gguf DRAFT.gguf FILE..." in done.stderr


def test_batch(tiny_chat: Pair) -> None:
    done = run("batch", tiny_chat, stdin="a word\n\nthe list\n" + "x" * 9000)
    records = [json.loads(line) for line in done.stdout.splitlines()]
    assert [record["prompt"][:8] for record in records] == ["a word", "the list", "xxxxxxxx"]
    assert records[0]["completion_tokens"] > 0
    assert "context holds" in records[2]["error"]
    assert "3 of 3, " in done.stderr


def test_serving(tiny_chat: Pair) -> None:
    process = subprocess.Popen(
        command("serving", str(tiny_chat.target), str(tiny_chat.draft)),
        env={**os.environ, "PORT": "0", "NO_PROXY": "127.0.0.1"}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        with openai.OpenAI(base_url=url, api_key="any", max_retries=0, timeout=WAIT_S) as client:
            reply = client.chat.completions.create(
                model="mine", messages=[{"role": "user", "content": "Hello"}], max_tokens=5
            )
        assert reply.choices[0].finish_reason in ("stop", "length")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0
        assert said.startswith("POST /v1/chat/completions 200 ")
    finally:
        process.kill()
        process.communicate()


def test_vllm_offline(tiny_chat: Pair) -> None:
    out = run("vllm_offline", tiny_chat).stdout
    assert len(re.findall(r"^  [01]: ['\"].*['\"] \((?:stop|length), \d+ tokens\)$", out, re.MULTILINE)) == 6
    assert re.search(r"^accepted \d+ of \d+ drafted tokens$", out, re.MULTILINE)


def test_every_example_is_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {path.stem for path in EXAMPLES.glob("*.py")} <= tested


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_says_how_it_is_run(path: Path) -> None:
    assert f"python examples/{path.name}" in path.read_text(encoding="utf-8").split('"""')[1]
