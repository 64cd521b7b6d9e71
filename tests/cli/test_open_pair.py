"""From flags to a loaded engine, with real (tiny) files: what is chosen, what is said, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import Pair
from specgguf.cli import exits, open_pair, pairing, parallel
from specgguf.cli.main import cli
from specgguf.cli.settings import Settings, gather
from support import tiny
from support.cli_support import Ran, home

from specgguf import presets
from specgguf.fit import search
from specgguf.fit.hardware import described

__all__ = ["home"]  # fixtures

pytestmark = pytest.mark.usefixtures("home")
ONE = ["--n-threads", "1", "--draft-n-threads", "1", "--max-tokens", "8", "--seed", "1"]


def chat(*arguments: object) -> Ran:
    result = CliRunner().invoke(cli, ["chat", *map(str, arguments), *ONE], prog_name="specgguf")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return Ran(result.exit_code, result.stdout, result.stderr, result.stdout_bytes)


def test_a_pair_by_its_files(tiny_chat: Pair) -> None:
    ran = chat("-m", tiny_chat.target, "-d", tiny_chat.draft, "--draft", "3", "--json", "Hi")
    assert ran.code == 0
    assert json.loads(ran.out)["timings"]["draft_n"] > 0
    assert "accepted (" in ran.err
    assert ran.err.count("\n") == 1


def test_a_target_alone_says_that_nothing_drafts(tiny_chat: Pair) -> None:
    ran = chat("-m", tiny_chat.target, "Hi")
    assert ran.code == 0
    assert "no matching draft model is here" in ran.err
    assert "drafting is off: no draft model" in ran.err
    for flags in (["-d", "none"], ["--draft", "off"]):
        assert "matching" not in chat("-m", tiny_chat.target, *flags, "Hi").err


def test_lookup(tiny_chat: Pair) -> None:
    ran = chat("-m", tiny_chat.target, "-d", "ngram", "--draft", "2", "abcabcabcabcabcabc")
    assert ran.code == 0
    assert "no draft model" not in ran.err


def test_the_largest_context(tiny_chat: Pair) -> None:
    ran = chat("-m", tiny_chat.target, "-d", tiny_chat.draft, "-c", "0", "Hi")
    assert ran.code == 0
    assert "context " in ran.err


def test_gpu_layers_on_a_cpu_build_are_a_loud_warning(tiny_chat: Pair) -> None:
    from specgguf.native import backend

    if backend.supports_gpu_offload():
        pytest.skip("this build can offload")
    ran = chat("-m", tiny_chat.target, "-d", "none", "-ngl", "99", "Hi")
    assert ran.code == 0
    assert ran.err.startswith("warning: n_gpu_layers=99 was asked for")
    assert "-DGGML_CUDA=on" in ran.err


def test_refusals_are_one_line_and_a_hint(tiny_chat: Pair, tiny_pair: Pair, tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("no model at all, only text that goes on for a while")
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_chat.target.read_bytes()[:-1000])
    cases: list[tuple[list[object], str]] = [
        (["-m", tmp_path / "none.gguf"], "no such file"),
        (["-m", text], "text.gguf"),
        (["-m", cut], "truncated"),
        (["-m", "nonsense"], "no such model: nonsense"),
        (["-p", "nonsense"], "no preset 'nonsense'"),
        (["-m", tiny_chat.target, "-d", tiny_pair.target, "--draft-vocab", "same"], "cannot draft for"),
        (["-m", tiny_chat.target, "-d", "none", "-c", "300", "-s", "x" * 400], "tokens and"),
        (["-m", "org/repo:Q4_K_M", "--offline"], "is not on this machine"),
        (["-p", "demo"], "nobody is here to ask"),
    ]
    for flags, said in cases:
        ran = chat(*flags, "Hi")
        assert ran.code in (exits.FAILED, exits.USAGE), flags
        assert ran.out == ""
        lines = ran.err.splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        assert len(errors) == 1, ran.err
        assert said in errors[0]
        assert all(line.startswith("  hint: ") for line in lines[lines.index(errors[0]) + 1 :])


def test_a_model_without_a_template_is_refused(tmp_path: Path) -> None:
    path = tiny.WRITERS["llama"](tmp_path / "plain.gguf", tiny.letters(8))
    ran = chat("-m", path, "-d", "none", "Hi")
    assert ran.code == exits.FAILED
    assert "no chat template" in ran.err


def test_threads_hold_for_prompts_too(home: Path) -> None:
    pair = pairing.ChosenPair(Path("target.gguf"), None, "target.gguf", "")
    chosen = open_pair.keywords(gather({"n_threads": 1, "draft_n_threads": 2}, {}), pair)
    assert (chosen["n_threads"], chosen["n_threads_batch"]) == (1, 1)
    assert (chosen["draft_n_threads"], chosen["draft_n_threads_batch"]) == (2, 2)
    assert "n_threads_batch" not in open_pair.keywords(gather({}, {}), pair)


@pytest.mark.parametrize("cache_tokens", [None, 9000])
def test_the_longest_context_is_that_of_each_of_several(
    cache_tokens: int | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """-c 0 with four at once: the caches of all four fit, which four of the longest for one alone would not."""
    plan = search.plan_of(presets.load("gpu-12gb"), described(device="RTX 3060"), offline=True)
    monkeypatch.setattr(parallel, "plan_of", lambda *_: plan)
    together = {"n_parallel": 4} | ({"cache_tokens": cache_tokens} if cache_tokens else {})
    settings = gather({"n_ctx": 0}, {})
    alone, each = (
        open_pair.keywords(settings, pairing.ChosenPair(Path("t.gguf"), None, "", "", keywords=more))["n_ctx"]
        for more in ({}, together)
    )
    assert not parallel.Together(4).of_all(plan.with_n_ctx(alone)).fits
    if cache_tokens:
        assert each == cache_tokens - 16
    else:
        assert parallel.Together(4).of_all(plan.with_n_ctx(each)).fits
        assert not parallel.Together(4).of_all(plan.with_n_ctx(each + 256)).fits


def test_an_answer_within_a_grammar(tiny_chat: Pair, tmp_path: Path) -> None:
    (tmp_path / "g.gbnf").write_text('root ::= "yes" | "no"')
    (tmp_path / "s.json").write_text('{"const": 7}')
    for temperature in ("0", "1"):
        pair = ["-m", tiny_chat.target, "-d", tiny_chat.draft, "--temp", temperature]
        assert chat(*pair, "--grammar", tmp_path / "g.gbnf", "Hi").out in ("yes\n", "no\n")
        assert chat(*pair, "--schema", tmp_path / "s.json", "Hi").out == "7\n"


def test_loading_is_shown_in_per_cent_of_all_files(tmp_path: Path) -> None:
    target, draft = tmp_path / "t.gguf", tmp_path / "d.gguf"
    target.write_bytes(b"x" * 300)
    draft.write_bytes(b"x" * 100)
    loading = open_pair._Loading(pairing.ChosenPair(target, draft, "", ""), Settings({}))
    assert loading._percent() == "", "nobody told anything yet"
    assert loading._is_at(str(target), 0.5)
    assert loading._percent() == "38%, "
    loading._is_at(str(target), 1.0)
    loading._is_at(str(draft), 1.0)
    assert loading._percent() == "100%, "
    loading._stopped.set()
    assert not loading._is_at(str(draft), 1.0)
