"""The benchmark scripts end to end on tiny files: resumable cells, tables and the page; no speed is asserted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Pair

Script = Callable[..., str]

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "scripts" / "bench" / "run"

FAKE_SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {{"status": "ok"}})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        n = request["n_predict"]
        drafted = n if "--spec-draft-model" in sys.argv else 0
        times = {{"prompt_n": len(request["prompt"]), "prompt_ms": 10.0, "predicted_n": n, "predicted_ms": 5.0 * n,
                 "draft_n": drafted, "draft_n_accepted": drafted // 2}}
        self.answer(200, {{"timings": times, "stop_type": "limit"}})

    def answer(self, code, body):
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words):
        pass

if "--version" in sys.argv:
    print("version: fake")
else:
    HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def script(tmp_path: Path, tiny_chat: Pair) -> Script:
    """script(name, *arguments) -> its stdout; its cache and its results stay in `tmp_path`."""

    def run(name: str, *arguments: str, code: int = 0) -> str:
        pair = [] if name in ("page", "heads") else ["--target", str(tiny_chat.target), "--draft", str(tiny_chat.draft)]
        done = subprocess.run(
            [sys.executable, str(RUN), name, *pair, *arguments],
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path)},
            timeout=300,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_a_regime_is_resumed_where_it_was_left(script: Script, tmp_path: Path) -> None:
    out = tmp_path / "regimes"
    arguments = ("--out", str(out), "--tokens", "6", "--repeats", "2", "--n-threads", "1", "--only", "q4/code/t0")
    said = script("regimes", *arguments)
    assert "1 cells, 8 samples" in said
    assert "q4-code-t0 2/2: llama_cpp.Llama off " in said
    assert "q4      0  code" in said
    assert [p.name for p in out.iterdir()] == ["q4-code-t0.json"]

    assert "nothing to measure" in script("regimes", *arguments)

    path = out / "q4-code-t0.json"
    whole = json.loads(path.read_text())
    assert {(s["engine"], s["draft"]) for s in whole["samples"]} == {
        ("llama_cpp.Llama", "off"), ("specgguf", "off"), ("specgguf", 3), ("specgguf", "auto"),
    }  # fmt: skip
    last = len(whole["samples"]) - 1
    path.write_text(json.dumps({**whole, "samples": whole["samples"][:last]}))  # stopped in the second repeat
    said = script("regimes", *arguments)
    assert "1 cells, 4 samples" in said
    kept = json.loads(path.read_text())["samples"]
    assert kept[:4] == whole["samples"][:4]
    assert len(kept) == 8

    refused = script("regimes", *arguments[:2], "--tokens", "7", *arguments[4:], code=1)
    assert "was measured with other settings; --again replaces it" in refused


def test_peers_and_the_page(script: Script, tmp_path: Path) -> None:
    server = tmp_path / "llama-server"
    server.write_text(FAKE_SERVER.format(python=sys.executable))
    server.chmod(0o755)
    results = tmp_path / "results"
    common = ("--tokens", "6", "--repeats", "2", "--n-threads", "1")
    said = script(
        "peers", *common, "--out", str(results / "peers"), "--server", str(server), "--regime", "q4",
        "--only", "story/t0.8",
    )  # fmt: skip
    assert "version: fake" in said
    assert "starting llama-server 5 probabilistic" in said
    assert "geometric mean" in said
    (path,) = (results / "peers").iterdir()
    saved = json.loads(path.read_text())
    assert len(saved["samples"]) == 2 * 9  # Llama, six servers, ours off and auto
    assert saved["files"]["llama-server"]["name"] == "llama-server"
    plain, drafting = (
        next(s for s in saved["samples"] if (s["engine"], s["draft"]) == ("llama-server", name))
        for name in ("off", "3")
    )
    assert (plain["draft_n"], drafting["draft_n"]) == (0, 6)
    assert plain["prompt_s"] == 0.01
    assert plain["total_s"] == 0.04
    assert plain["n_timed"] == 5

    script("regimes", *common, "--out", str(results / "regimes"), "--only", "q4/story")
    page = tmp_path / "docs"
    page.mkdir()
    script("page", "--results", str(results), "--out", str(page))
    text = (page / "performance.md").read_text(encoding="utf-8")
    assert "| q4 | 0.8 | story |" in text
    assert "At temperature 0.8 the geometric mean" in text
    assert "story" in (page / "headline.svg").read_text(encoding="utf-8")
    for name in ("regimes", "peers"):
        assert f"](performance-{name}.svg)" in text
        picture = (page / f"performance-{name}.svg").read_text(encoding="utf-8")
        assert "prefers-color-scheme: dark" in picture
        assert "story" in picture
    assert "nothing to change" in script("page", "--results", str(results), "--out", str(page), "--check")


def test_host_runs(script: Script) -> None:
    said = script("host", "--quick", "--n-threads", "1", "--regime", "q4")
    for words in (
        "ms per drafted token",
        "per round on top",
        "logits to distributions",
        "real pair, auto: ",
        "first token after",
    ):
        assert words in said
    assert "there is no" not in said  # every stage that is named exists


def test_heads_runs(script: Script) -> None:
    said = script("heads", "--quick", "--n-threads", "1")
    for shape in ("Qwen3.5-0.8B, as it is, q4_0, ", "GLM-4.5-Air, an eighth as wide, q4_0, "):
        assert shape in said
    assert said.count(" + ") == 8, "drafting and verifying, at four lengths of two shapes"


def test_the_page_is_what_the_results_say(script: Script) -> None:
    assert "nothing to change" in script("page", "--check")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True)


def test_one_entry_lists_every_measurement() -> None:
    listed = {line.split()[0] for line in run().stdout.splitlines()[2:]}
    wanted = "regimes peers host plain predictions rollback accepted-length width-noise record-rounds page captures gpu"
    assert set(wanted.split()) <= listed
    sources = [p for p in RUN.parent.rglob("*.py") if "\ndef main(" in p.read_text(encoding="utf-8")]
    assert len(sources) == len(listed), "two modules of one name"


def test_every_measurement_says_what_it_is_for() -> None:
    for line in run().stdout.splitlines()[2:]:
        name, _, purpose = line.strip().partition(" ")
        assert purpose.strip(), name
        assert len(line) <= 120, name


def test_a_name_that_is_not_there() -> None:
    done = run("regime")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: there is no regime\n  did you mean regimes?\n"


def test_no_folder_of_scripts_is_crowded_and_no_page_too_long() -> None:
    for folder in {path.parent for path in RUN.parent.rglob("*.py")}:
        assert len([p for p in folder.glob("*.py") if p.stem != "__init__"]) <= 10, folder
    for path in RUN.parent.rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 300, path
