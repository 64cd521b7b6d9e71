"""`specgguf export`: the same files and settings in another engine's words, and nothing that is silently lost."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from support.cli_support import Run, home, run
from support.workers import free_port

from bench.lib import servers
from specgguf.bench.results import save
from specgguf.bench.runs import Sample

__all__ = ["home", "run"]  # fixtures
BINARY = servers.binary()  # before a test has a home of its own
yaml: Any = pytest.importorskip("yaml")


def words_of(text: str) -> list[str]:
    """The command line without its comments."""
    return shlex.split("\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " "))


def flags_of(words: list[str]) -> dict[str, str]:
    return dict(zip(words[1::2], words[2::2], strict=True)) if words[1].startswith("--") else {}


@pytest.fixture
def pair(tiny_chat: Pair) -> list[str]:
    return ["-m", str(tiny_chat.target), "-d", str(tiny_chat.draft)]


def sample(draft: int | str, seconds: float, **more: Any) -> Sample:
    return Sample(
        engine="specgguf", kind="code", index=0, repeat=0, draft=draft, temperature=0.0, seed=1, n_prompt=10,
        n_generated=101, n_timed=100, first_s=0.1, total_s=0.1 + seconds, prompt_s=0.1, finish_reason="length", **more,
    )  # fmt: skip


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A saved benchmark in which two drafted tokens are best."""
    drafted = [sample(1, 8.0), sample(2, 5.0), sample(3, 6.0), sample("auto", 5.5)]
    path = tmp_path / "bench.json"
    save(path, {"format": 1}, [sample("off", 10.0), *drafted])
    assert asdict(drafted[0])
    return path


def test_llama_server_gets_every_setting_that_was_given(run: Run, pair: list[str], tiny_chat: Pair) -> None:
    given = "-c 512 -ngl -1 -t 3 --flash-attn --type-k q8_0 --temp 0.5 --top-k 9 --seed 0 --draft 4 --draft-ngl 7"
    ran = run("export", "llama-server", *pair, *given.split(), "--port", "99", "--rpc", "a,b:5")
    assert ran.code == 0, ran.err
    words = words_of(ran.out)
    assert words[0] == "llama-server"
    assert flags_of(words) == {
        "--model": str(tiny_chat.target), "--host": "127.0.0.1", "--port": "99", "--ctx-size": "512",
        "--threads": "3", "--n-gpu-layers": "999", "--flash-attn": "on", "--cache-type-k": "q8_0",
        "--rpc": "a:50052,b:5", "--temp": "0.5", "--top-k": "9", "--seed": "0", "--spec-type": "draft-simple",
        "--spec-draft-model": str(tiny_chat.draft), "--spec-draft-n-max": "4",
        "--spec-draft-sampling": "probabilistic", "--spec-draft-ngl": "7",
    }  # fmt: skip


def test_what_has_no_counterpart_is_said(run: Run, pair: list[str]) -> None:
    ran = run("export", "llama-server", *pair, "--draft-n-ctx", "64", "--thinking", "off", "--tensor-split", "1,2")
    remarks = [line for line in ran.out.splitlines() if line.startswith("#")]
    for name in ("draft_n_ctx", "thinking", "tensor_split"):
        assert any(line.startswith(f"# - {name}: ") for line in remarks), name
    assert any("always 3 drafted tokens" in line for line in remarks)
    assert any("nothing was measured: specgguf bench --save" in line for line in remarks)


def test_what_was_measured_is_the_draft_length_and_a_comment(run: Run, pair: list[str], measured: Path) -> None:
    ran = run("export", "llama-server", *pair, "--measured", str(measured))
    assert flags_of(words_of(ran.out))["--spec-draft-n-max"] == "2"
    assert "nothing was measured" not in ran.out
    asked = run("export", "llama-server", *pair, "--measured", str(measured), "--draft", "5")
    assert flags_of(words_of(asked.out))["--spec-draft-n-max"] == "5"


@pytest.mark.parametrize("off", [["--draft", "off"], ["-d", "none"]])
def test_without_drafting_no_draft_is_loaded(run: Run, pair: list[str], off: list[str]) -> None:
    for engine in ("llama-server", "vllm", "compose"):
        ran = run("export", engine, *pair[:2], *([] if off[0] == "-d" else pair[2:]), *off)
        assert "--spec" not in ran.out, engine


def test_n_grams_have_their_own_words(run: Run, pair: list[str]) -> None:
    ran = run("export", "llama-server", *pair[:2], "-d", "ngram")
    assert flags_of(words_of(ran.out))["--spec-type"] == "ngram-simple"
    config = flags_of(words_of(run("export", "vllm", *pair[:2], "-d", "ngram").out)[2:])["--speculative-config"]
    assert json.loads(config)["method"] == "ngram"


def test_a_compose_file_mounts_the_files_and_runs_the_same_command(
    run: Run, pair: list[str], tiny_chat: Pair, tmp_path: Path
) -> None:
    linked = tmp_path / "as-the-hub-names-it.gguf"  # whose cache has links to blobs
    linked.symlink_to(tiny_chat.target)
    ran = run("export", "compose", "-m", str(linked), *pair[2:], "-c", "512", "--port", "99")
    service = yaml.safe_load(ran.out)["services"]["llama-server"]
    assert service["ports"] == ["127.0.0.1:99:8080"]
    assert service["volumes"] == [
        f"{tiny_chat.target.resolve()}:/models/{linked.name}:ro",
        f"{tiny_chat.draft.resolve()}:/draft/{tiny_chat.draft.name}:ro",
    ]
    flags = flags_of(["", *service["command"]])
    assert (flags["--model"], flags["--spec-draft-model"]) == (
        f"/models/{linked.name}", f"/draft/{tiny_chat.draft.name}",
    )  # fmt: skip
    assert (flags["--host"], flags["--port"], flags["--ctx-size"]) == ("0.0.0.0", "8080", "512")


def test_vllm_gets_its_own_names(run: Run, pair: list[str], tiny_chat: Pair) -> None:
    words = words_of(run("export", "vllm", *pair, "--draft", "4", "--repeat-penalty", "1.1").out)
    assert words[:3] == ["vllm", "serve", str(tiny_chat.target)]
    flags = flags_of(["", *words[3:]])
    assert json.loads(flags["--speculative-config"]) == {
        "method": "draft_model", "model": str(tiny_chat.draft), "num_speculative_tokens": 4,
    }  # fmt: skip
    assert json.loads(flags["--override-generation-config"]) == {"repetition_penalty": 1.1}
    refused = run("export", "vllm", *pair, "--rpc", "a")
    assert refused.err.startswith("error: vLLM has no RPC workers")


# --- lines that llama-server is started with --------------------------------------------------------------------


@contextmanager
def llama_server(words: list[str], log: Path) -> Iterator[None]:
    """The exported line, running."""
    with log.open("w") as said:
        process = subprocess.Popen([str(BINARY), *words[1:]], stdout=said, stderr=subprocess.STDOUT)
    try:
        wait_for(process, words, log)
        yield
    finally:
        process.terminate()
        process.wait()


def wait_for(process: subprocess.Popen[bytes], words: list[str], log: Path) -> None:
    """Until it answers, or has ended with what it says about its arguments."""
    url = f"http://127.0.0.1:{flags_of(words)['--port']}/health"
    while True:
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.02)


@pytest.mark.llama_server
@pytest.mark.parametrize(
    "given",
    [
        "-c 512 -t 1 --flash-attn --type-k f16 --type-v f16 --temp 0.5 --top-k 9 --top-p 0.9 --min-p 0.1 --seed 0"
        " --repeat-penalty 1.1 --max-tokens 20 --draft 4 --draft-n-threads 1 --draft-ngl 0 -ngl 0",
        "-c 512 -t 1 --draft off",
        "-c 512 -t 1 --draft-type-k f16 --draft-type-v f16 --no-flash-attn",
        "-c 512 -t 1 -d ngram --temp 0",
    ],
)
def test_an_exported_line_starts_a_server_that_answers(run: Run, pair: list[str], given: str, tmp_path: Path) -> None:
    port = free_port()
    own = pair[:2] if "-d" in given.split() else pair
    ran = run("export", "llama-server", *own, *given.split(), "--port", str(port))
    assert ran.code == 0, ran.err
    words = words_of(ran.out)
    body = {"messages": [{"role": "user", "content": "once upon a time"}], "max_tokens": 8, "ignore_eos": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    log = tmp_path / "server.log"
    with llama_server(words, log), urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["usage"]["completion_tokens"] > 0
    if "--spec-draft-model" in words:
        assert "draft acceptance" in log.read_text(errors="replace"), log.read_text(errors="replace")[-2000:]
