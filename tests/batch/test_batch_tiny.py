"""The command itself over a tiny pair: real forward passes, and kill -9 while several generations share them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from conftest import Pair
from specgguf.cli import exits
from support.batch_support import WAIT_S, chat, rows, text_of, write
from support.cli_support import private_home
from support.serve_support import on_one_core

N_REQUESTS = 60


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Questions of different lengths, with options of their own, and two that cannot be answered."""
    requests = [
        chat(f"id {i}", f"a word {i} " * (1 + i % 4), max_tokens=4 + i % 9, temperature=i % 3 / 2, seed=i, n=1 + i % 2)
        for i in range(N_REQUESTS - 2)
    ]
    long = chat("long", "x" * 5000)
    return write(tmp_path / "in.jsonl", [*requests[:20], long, *requests[20:], chat("stream", "x", stream=True)])


def start(pair: Pair, source: Path, out: Path) -> subprocess.Popen[str]:
    command = on_one_core(
        "specgguf.cli.main", "batch", str(source), "-o", str(out), "-m", str(pair.target), "-d", str(pair.draft),
        "-c", "256", "--n-threads", "1", "--parallel", "3",
    )  # fmt: skip
    return subprocess.Popen(
        command, env={**os.environ, **private_home(source.parent)}, stderr=subprocess.PIPE, text=True
    )


def test_a_batch_that_is_killed_three_times_answers_everything_once(
    tiny_chat: Pair, source: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    for wanted in (5, 20, 40):
        process = start(tiny_chat, source, out)
        end = time.monotonic() + WAIT_S
        while not out.exists() or out.read_bytes().count(b"\n") < wanted:
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < end, f"never had {wanted} rows"
        process.send_signal(signal.SIGKILL)
        process.communicate()
    process = start(tiny_chat, source, out)
    said = process.communicate(timeout=WAIT_S)[1]
    assert process.returncode == exits.FAILED, said  # two rows are errors
    assert f"out.jsonl has {N_REQUESTS} rows, 2 of them errors: 'long', 'stream'" in said
    found = {row["custom_id"]: row for row in rows(out)}
    assert len(found) == len(rows(out)) == N_REQUESTS
    for line in source.read_text().splitlines():
        request = json.loads(line)
        row = found[request["custom_id"]]
        if request["custom_id"] in ("long", "stream"):
            assert row["response"]["status_code"] == 400
            continue
        body = row["response"]["body"]
        assert len(body["choices"]) == request["body"]["n"]
        assert body["model"] == "llama-chat-target"
        assert isinstance(text_of(row), str)
        assert 0 < body["usage"]["completion_tokens"] <= request["body"]["max_tokens"] * request["body"]["n"]
