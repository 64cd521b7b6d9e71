"""A model elsewhere that is lost in the middle of an answer: one line, nothing said is lost, and the next one works.

The model lives in a child process, as one with workers does, and that process is killed, as ggml kills it. No worker
takes part, so this runs on any build; `tests/native/rpc/test_workers.py` does the same to real workers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from support.batch_support import chat, rows, write
from support.remotes import NOBODY, kill_child, live_elsewhere
from support.serve_support import serving

from specgguf import SpeculativeLlama
from specgguf.batch.answering import ThisMachine
from specgguf.batch.output import OutputFile
from specgguf.batch.requests import read_requests
from specgguf.batch.runner import Batch
from specgguf.errors import BackendError
from specgguf.native import backend
from specgguf.serve.config import ServeConfig

PROMPT = "Once upon a time"


@pytest.fixture
def llm(tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch) -> Iterator[SpeculativeLlama]:
    live_elsewhere(monkeypatch)
    llm = SpeculativeLlama(
        str(tiny_chat.target),
        str(tiny_chat.draft),
        n_ctx=256,
        n_threads=1,
        n_threads_batch=1,
        draft=2,
        rpc_servers=NOBODY["rpc_servers"],
    )
    yield llm
    llm.close()


@pytest.fixture
def dies_after(llm: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """dies_after(n): the child is killed before the target's n-th pass from now."""
    decode = backend.decode

    def die_after(n: int) -> None:
        count = itertools.count(1)

        def counting(ctx: Any, batch: Any) -> int:
            if ctx is llm._engine.target.context.handle and next(count) == n:
                kill_child(llm._pair.weights)
            return decode(ctx, batch)

        monkeypatch.setattr(backend, "decode", counting)

    return die_after


def test_an_answer_that_dies_keeps_what_it_said(llm: SpeculativeLlama, dies_after: Callable[[int], None]) -> None:
    options: dict[str, Any] = {"max_tokens": 40, "temperature": 0.0}
    whole = llm.create_completion(PROMPT, **options)["choices"][0]["text"]
    dies_after(4)
    said = []
    with pytest.raises(BackendError, match="the process that held") as caught:  # noqa: PT012
        for chunk in llm.create_completion(PROMPT, stream=True, **options):
            said.append(chunk["choices"][0]["text"])
    assert "\n" not in str(caught.value)
    assert "".join(said)
    assert whole.startswith("".join(said))
    assert llm.create_completion(PROMPT, **options)["choices"][0]["text"] == whole


def test_a_stream_over_http_ends_with_an_error_event(llm: SpeculativeLlama, dies_after: Callable[[int], None]) -> None:
    body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0.0}
    with serving(llm) as server:
        whole = server.post("/v1/completions", body).json()["choices"][0]["text"]
        dies_after(4)
        lines = server.post("/v1/completions", {**body, "stream": True}).text.splitlines()
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        said = "".join(chunk["choices"][0]["text"] for chunk in chunks if "choices" in chunk)
        assert said
        assert whole.startswith(said)
        assert "the process that held" in chunks[-1]["error"]["message"]
        assert server.post("/v1/completions", body).json()["choices"][0]["text"] == whole


def test_a_batch_has_a_row_for_what_failed_and_goes_on(
    llm: SpeculativeLlama, dies_after: Callable[[int], None], tmp_path: Path
) -> None:
    asked = [chat(str(n), f"{PROMPT} {n}", max_tokens=8) for n in range(5)]
    source = write(tmp_path / "in.jsonl", list(asked))
    requests = read_requests(source.read_bytes().splitlines(), "in.jsonl")
    dies_after(6)
    with OutputFile(tmp_path / "out.jsonl", requests, "in.jsonl") as output:
        progress = Batch(ThisMachine(llm, ServeConfig(names=("tiny",))), requests, output).run()
    found = rows(tmp_path / "out.jsonl")
    failed = [row for row in found if "the process that held" in json.dumps(row)]
    assert len({row["custom_id"] for row in found}) == len(found) == 5
    assert (progress.n_done, progress.n_failed, len(failed)) == (5, 1, 1)
