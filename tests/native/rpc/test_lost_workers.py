"""A worker that is killed in the middle of a chat, a batch and a stream over HTTP, and what a worker refuses.

One line each time, nothing said is lost, and the next request works once the worker is back. Real workers; what the
program does when the process ends that holds a model is tested without them in tests/test_lost_models.py.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from specgguf.cli import exits
from specgguf.cli.chat.saved import sessions
from support.batch_support import chat, rows, text_of, write
from support.cli_support import Run, converse, home, run
from support.fake_workers import fake_worker, listening
from support.serve_support import serving
from support.workers import Worker, workers

from specgguf import SpeculativeLlama
from specgguf.batch.answering import ThisMachine
from specgguf.batch.output import OutputFile
from specgguf.batch.requests import read_requests
from specgguf.batch.runner import Batch
from specgguf.errors import BackendError, WorkerLost
from specgguf.native import backend
from specgguf.serve.config import ServeConfig

__all__ = ["converse", "home", "run"]  # fixtures
pytestmark = pytest.mark.rpc
PROMPT = "Once upon a time"
LOST = "was lost: it does not answer any more"


@pytest.fixture
def worker() -> Iterator[Worker]:
    with workers(1) as (one,):
        yield one


@pytest.fixture
def llm(tiny_chat: Pair, worker: Worker) -> Iterator[SpeculativeLlama]:
    with opened(tiny_chat, str(worker)) as llm:
        yield llm


def opened(pair: Pair, servers: str) -> SpeculativeLlama:
    return SpeculativeLlama(
        str(pair.target), str(pair.draft), n_ctx=512, n_threads=1, n_threads_batch=1, strict=True, draft=2,
        rpc_servers=servers, tensor_split=[0, 1],
    )  # fmt: skip


@pytest.fixture
def killed_at(llm: SpeculativeLlama, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """killed_at(n): the worker is killed before the target's n-th pass from now, and is back once that was noticed."""
    decode = backend.decode

    def kill_at(n: int) -> None:
        count = itertools.count(1)

        def counting(ctx: Any, batch: Any) -> int:
            if ctx is llm._engine.target.context.handle and next(count) == n:
                worker.kill()
            try:
                return decode(ctx, batch)
            except WorkerLost:
                worker.start()
                raise

        monkeypatch.setattr(backend, "decode", counting)

    return kill_at


def test_a_chat_keeps_what_was_said_and_goes_on(
    llm: SpeculativeLlama, killed_at: Callable[[int], None], converse: Run
) -> None:
    killed_at(4)  # after a word or two
    ran = converse("first", "second", fake=llm, flags=["--temp", "0", "--max-tokens", "40", "--draft", "2"])
    assert ran.code == exits.OK
    assert ran.err.count(LOST) == 1
    assert "Traceback" not in ran.err
    (name,) = sessions.names()
    messages = sessions.load(name).messages
    assert [m["content"] for m in messages if m["role"] == "user"] == ["first", "second"]
    first, second = (m["content"] for m in messages if m["role"] == "assistant")
    assert first
    assert second
    assert first in ran.out
    assert second in ran.out


def test_a_stream_over_http_ends_with_an_error_event_and_the_next_request_works(
    llm: SpeculativeLlama, killed_at: Callable[[int], None]
) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0.0}
    with serving(llm) as server:
        whole = server.post("/v1/completions", body).json()["choices"][0]["text"]
        killed_at(4)
        lines = server.post("/v1/completions", {**body, "stream": True}).text.splitlines()
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        said = "".join(chunk["choices"][0]["text"] for chunk in chunks if "choices" in chunk)
        assert said
        assert whole.startswith(said)
        assert LOST in chunks[-1]["error"]["message"]
        assert server.post("/v1/completions", body).json()["choices"][0]["text"] == whole


def test_a_batch_has_a_row_for_what_failed_and_asks_it_again(
    llm: SpeculativeLlama, killed_at: Callable[[int], None], tmp_path: Path
) -> None:
    asked = [chat(str(n), f"{PROMPT} {n}", max_tokens=8, temperature=0.0) for n in range(5)]
    source = write(tmp_path / "in.jsonl", list(asked))
    requests = read_requests(source.read_bytes().splitlines(), "in.jsonl")

    def go(*, retry_failed: bool = False) -> int:
        with OutputFile(tmp_path / "out.jsonl", requests, "in.jsonl", retry_failed=retry_failed) as output:
            return Batch(ThisMachine(llm, ServeConfig(names=("tiny",))), requests, output).run().n_failed

    killed_at(6)
    assert go() == 1
    (failed,) = [row for row in rows(tmp_path / "out.jsonl") if row["response"]["status_code"] != 200]
    assert LOST in failed["response"]["body"]["error"]["message"]
    assert go(retry_failed=True) == 0
    found = {row["custom_id"]: row for row in rows(tmp_path / "out.jsonl")}
    assert len(found) == len(rows(tmp_path / "out.jsonl")) == 5
    for one in asked:
        whole: Any = llm.create_chat_completion(**one["body"])
        assert text_of(found[one["custom_id"]]) == whole["choices"][0]["message"]["content"]


def test_a_worker_with_too_little_memory_is_named(tiny_chat: Pair) -> None:
    with (
        listening(fake_worker((1000, 2000))) as endpoint,
        pytest.raises(
            BackendError, match=rf"worker {endpoint} has 0\.0 GiB free, and its 2 of 2 layers take"
        ) as caught,
    ):
        opened(tiny_chat, str(endpoint))
    assert "--tensor-split" in caught.value.hint


def test_a_worker_of_another_protocol_is_named(tiny_chat: Pair) -> None:
    with (
        listening(fake_worker((1 << 40, 1 << 40), major=6)) as endpoint,
        pytest.raises(BackendError, match=rf"worker {endpoint} speaks version 6\..* and this build 7") as caught,
    ):
        opened(tiny_chat, str(endpoint))
    assert "same llama-cpp-python" in caught.value.hint
