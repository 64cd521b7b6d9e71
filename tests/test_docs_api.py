"""docs/api.md says what the docstrings say, and a user's program type-checks under `mypy --strict`."""

from __future__ import annotations

import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
from support import api_reference

import specgguf
from specgguf import calls

PROGRAM = """
from collections.abc import Iterator

import specgguf
from specgguf import (
    Busy, Cancelled, Chunk, ConfigError, Generation, Round, SamplingParams, SpeculativeLlama, Stats
)
from specgguf.serve.server import ServeConfig, Service, listen, run


def answer(llm: SpeculativeLlama, question: str) -> str:
    reply = llm.create_chat_completion([{"role": "user", "content": question}], max_tokens=50, draft="auto")
    text: str = reply["choices"][0]["message"]["content"]
    return text


def stream(llm: SpeculativeLlama, prompt: str) -> Iterator[str]:
    for chunk in llm.create_completion(prompt, stream=True, stop=["\\n"], timeout=1.0):
        yield chunk["choices"][0]["text"]


def either(llm: SpeculativeLlama, stream: bool) -> dict[str, object] | Iterator[dict[str, object]]:
    print(llm("x")["choices"], [chunk["choices"] for chunk in llm("x", stream=True)])
    print(llm.create_completion([1, 2], max_tokens=3, stream=False)["choices"])
    messages = [{"role": "user", "content": "x"}]
    print([chunk["from_draft"] for chunk in llm.create_chat_completion(messages, stream=True)])
    print(llm.create_completion("x", None, 100, 0.7))
    return llm.create_chat_completion(messages, stream=stream)


def tokens(llm: SpeculativeLlama, ids: list[int]) -> list[int]:
    answer: Generation = llm.generate(ids, SamplingParams(temperature=0.0, stop=("x",)), draft=3)
    chunks: list[Chunk] = list(answer)
    rounds: Iterator[Round] = answer.rounds()
    out: list[int] = []
    for round in rounds:
        out += round.tokens
        print(round.draft_n, round.draft_n_accepted, round.finish_reason)
    return out


def main() -> None:
    with SpeculativeLlama("a.gguf", "b.gguf", n_ctx=512, n_threads=2, draft_n_gpu_layers=0) as llm:
        llm.draft = "off"
        llm.draft_max = 7
        try:
            print(answer(llm, "x"), list(stream(llm, "y")), tokens(llm, llm.tokenize(b"z")))
        except (Busy, Cancelled) as error:
            print(error.hint)
        except ConfigError as error:
            print(error)
        state = llm.save_state()
        llm.load_state(state)
        stats: Stats = llm.stats
        print(stats.acceptance, stats.timings()["draft_n"], llm.n_ctx() + llm.token_eos(), llm.metadata["x"])
        print(specgguf.__version__)
        run(Service(llm, ServeConfig(names=("a",))), listen("127.0.0.1", 0))
"""
WRONG = """
from specgguf import SpeculativeLlama

llm = SpeculativeLlama("a.gguf", n_ctx="512")
llm.create_completion("x", temprature=1)
llm.tokenize("text")
llm.create_chat_completion([], max_token=5)
llm("x", stream=True)["choices"]
next(llm("x"))
llm("x", temperature="0")
"""


def test_the_reference_is_that_of_the_docstrings() -> None:
    _, written = api_reference.current()
    assert written == api_reference.reference().strip(), "run: python -P tests/support/api_reference.py"


def test_every_public_name_has_its_place() -> None:
    _, written = api_reference.current()
    for name in specgguf.__all__:
        assert re.search(rf"^(### {name}$|- `{name}\()", written, re.MULTILINE), name
    for name in vars(specgguf.SpeculativeLlama):
        if not name.startswith("_") and name not in ("draft", "draft_max"):
            assert f"#### `.{name}" in written or f".{name}()`" in written, name


def test_a_docstring_that_changes_is_seen() -> None:
    before = api_reference.reference()
    method = specgguf.SpeculativeLlama.reset
    doc, method.__doc__ = method.__doc__, "Forget everything."
    try:
        assert api_reference.reference() != before
    finally:
        method.__doc__ = doc


def test_sections_become_lists() -> None:
    def documented(a: int, b: str = "x", *, c: float = 1.0) -> None:
        """Do it,
        at once.

        Args:
            a, b: two
                of them.
            c: the third.

        Raises:
            ValueError: never.
        """

    entry = "\n".join(api_reference._entry("documented", documented, "m"))
    assert 'documented(a: int, b: str = "x", *, c: float = 1.0) -> None' in entry
    assert "Do it,\nat once.\n" in entry
    assert "Args:\n\n- `a`, `b`: two of them.\n- `c`: the third.\n" in entry
    assert "Raises:\n\n- `ValueError`: never.\n" in entry


@pytest.mark.parametrize(
    ("call", "first", "options"),
    [
        (specgguf.SpeculativeLlama.create_completion, "prompt", calls.CompletionOptions),
        (specgguf.SpeculativeLlama.create_chat_completion, "messages", calls.ChatOptions),
    ],
)
def test_the_types_of_keywords_are_those_of_the_signature(call: Any, first: str, options: Any) -> None:
    signature = typing.get_type_hints(call)
    wanted = {name: hint for name, hint in signature.items() if name not in (first, "stream", "return")}
    assert typing.get_type_hints(options) == wanted


def check_types(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "program.py"
    file.write_text(program)
    cache = Path(__file__).resolve().parent.parent / ".mypy_cache"
    arguments = ["-m", "mypy", "--strict", "--config-file=", f"--cache-dir={cache / 'user'}", str(file)]
    return subprocess.run([sys.executable, "-P", *arguments], cwd=folder, capture_output=True, text=True)


def test_a_users_program_type_checks(tmp_path: Path) -> None:
    done = check_types(PROGRAM, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_users_mistakes_are_found(tmp_path: Path) -> None:
    done = check_types(WRONG, tmp_path)
    found = [int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line]
    assert sorted(set(found)) == [4, 5, 6, 7, 8, 9, 10], done.stdout
