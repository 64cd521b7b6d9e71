"""A target over real workers on this machine: the same text, the same distribution, and what a lost worker costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Pair
from support.contexts import KEYWORDS, TEXT
from support.workers import Worker, workers

from specgguf import SpeculativeLlama
from specgguf.errors import BackendError, ConfigError, WorkerLost
from specgguf.native.context import Model
from specgguf.native.rpc import wire
from specgguf.native.weights import Weights

pytestmark = pytest.mark.rpc
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def two() -> Iterator[list[Worker]]:
    with workers(2) as started:
        yield started


def opened(pair: Pair, servers: list[Worker] | None, **keywords: Any) -> SpeculativeLlama:
    spread = {} if servers is None else {"rpc_servers": list(map(str, servers)), "tensor_split": [0, 1, 1]}
    return SpeculativeLlama(
        str(pair.target), str(pair.draft), n_ctx=256, n_threads=1, n_threads_batch=1, strict=True,
        **{"draft": 3, **spread, **keywords},
    )  # fmt: skip


def text(llm: SpeculativeLlama, **options: Any) -> str:
    found = llm.create_completion(PROMPT, **{"max_tokens": 40, "temperature": 0.0, **options})
    return str(found["choices"][0]["text"])


def test_logits_over_two_workers_are_the_local_ones(tiny_pair: Pair, two: list[Worker]) -> None:
    """On F32 weights, after every kind of pass; both workers hold a layer, and the output stays here."""
    spread = {"rpc_servers": list(map(str, two)), "tensor_split": [0, 1, 1], "n_gpu_layers": -1}
    there, here = (Weights(str(tiny_pair.target), KEYWORDS | more) for more in (spread, {}))
    assert there.placement == f"2 layers: 0 here, 1 on {two[0]}, 1 on {two[1]}"
    a, b = (Model(weights, n_ctx=256, n_batch=32, flash_attn=False, pad_to=2) for weights in (there, here))
    for n, kept in ((20, 20), (1, 21), (5, 23), (4, 27), (40, 60)):
        rows = [model.extend(TEXT[len(model.tokens) : len(model.tokens) + n], 1).copy() for model in (a, b)]
        assert np.abs(rows[0] - rows[1]).max() < 1e-5
        for model in (a, b):
            model.roll_back(kept)
            assert len(model.tokens) == kept
    for part in (a, b, there, here):
        part.close()


@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7}])
def test_the_text_over_two_workers_is_the_local_text(
    tiny_chat: Pair, two: list[Worker], sampling: dict[str, Any]
) -> None:
    texts = []
    for servers, draft in ((None, "off"), (None, 3), (two, "off"), (two, 3)):
        llm = opened(tiny_chat, servers, draft=draft)
        texts.append(text(llm, **sampling))
        llm.close()
    if sampling["temperature"]:  # one draw a token, or several: plain and drafted differ, local and spread do not
        assert texts[:2] == texts[2:]
    else:
        assert len(set(texts)) == 1


def test_the_draft_may_be_the_one_that_is_elsewhere(tiny_chat: Pair, two: list[Worker]) -> None:
    local = opened(tiny_chat, None)
    there = opened(tiny_chat, None, draft_rpc_servers=str(two[0]), draft_tensor_split=[0, 1])
    assert any(warning.startswith("draft: 2 layers") for warning in there.warnings)
    assert text(there) == text(local)
    assert there.last_stats.draft_n_accepted == local.last_stats.draft_n_accepted > 0
    there.close()
    local.close()


def test_one_worker_cannot_serve_both(tiny_chat: Pair, two: list[Worker]) -> None:
    with pytest.raises(ConfigError, match=f"worker {two[0]} cannot serve target and draft"):
        opened(tiny_chat, two, draft_rpc_servers=str(two[0]))


def test_a_worker_that_is_killed_ends_the_answer_and_serves_the_next_one_again(tiny_chat: Pair) -> None:
    with workers(2) as started:
        llm = opened(tiny_chat, started)
        whole = text(llm)
        stream = llm.create_completion(PROMPT, max_tokens=40, temperature=0.0, stream=True)
        said = "".join(next(stream)["choices"][0]["text"] for _ in range(2))
        started[1].kill()
        with pytest.raises(WorkerLost, match=rf"worker {started[1]} was lost") as caught:
            said += "".join(chunk["choices"][0]["text"] for chunk in stream)
        assert "\n" not in str(caught.value)
        assert said
        assert whole.startswith(said)
        with pytest.raises(WorkerLost, match=f"worker {started[1]} does not answer: nothing listens"):
            text(llm)
        started[1].start()
        assert text(llm) == whole
        llm.close()


def test_a_worker_that_was_restarted_between_two_answers_is_no_error(tiny_chat: Pair) -> None:
    with workers(2) as started:
        llm = opened(tiny_chat, started)
        whole = text(llm)
        started[0].kill()
        started[0].start()
        assert text(llm) == whole
        llm.close()


def test_a_draft_whose_worker_dies_leaves_plain_decoding(tiny_chat: Pair) -> None:
    with workers(1) as started:
        llm = opened(tiny_chat, None, draft_rpc_servers=str(started[0]), draft_tensor_split=[0, 1])
        whole = text(llm)
        started[0].kill()
        assert text(llm) == whole
        assert "worker" in llm.last_stats.off_reason
        started[0].start()
        assert text(llm) == whole
        assert llm.last_stats.draft_n_accepted
        llm.close()


def test_a_worker_is_busy_with_one_program(tiny_chat: Pair, two: list[Worker]) -> None:
    llm = opened(tiny_chat, two)
    with pytest.raises(WorkerLost, match="accepts connections, and says nothing") as caught:
        wire.ask(two[0].endpoint, timeout_s=0.2)
    assert "serves one at a time" in caught.value.hint
    llm.close()
    wire.ask(two[0].endpoint)


def test_weights_that_a_worker_cached_travel_once(tmp_path: Path) -> None:
    """The folder is made, and handed to ggml, which keeps what is larger than 10 MiB: nothing here is."""
    worker = Worker("--cache", str(tmp_path / "new" / "cache"))
    assert (tmp_path / "new" / "cache").is_dir()
    worker.kill()


def test_a_port_in_use_is_one_line(two: list[Worker]) -> None:
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "specgguf.cli.main", "worker", "--port", str(two[0].endpoint.port)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[0] == f"error: cannot listen on {two[0]}: address already in use"


def test_an_open_address_is_warned_of_with_the_safe_lines() -> None:
    worker = Worker("--host", "0.0.0.0")
    worker.process.send_signal(signal.SIGINT)
    assert worker.process.wait() == 0
    worker.kill()
    assert worker.said[0].startswith("warning: whoever reaches 0.0.0.0:")
    assert "ssh -N -L" in worker.said[1]
    assert any("WireGuard" in line for line in worker.said)


def test_a_frozen_worker_is_named(tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    from specgguf.native.rpc import remote

    with workers(2) as started:
        llm = opened(tiny_chat, started)
        whole = text(llm)
        os.kill(started[0].process.pid, signal.SIGSTOP)
        monkeypatch.setattr(remote, "SILENT_S", 0.5)
        monkeypatch.setattr(remote, "ASK_S", 0.5)
        with pytest.raises(BackendError, match=f"worker {started[0]} was lost: it does not answer any more"):
            text(llm)
        monkeypatch.undo()
        os.kill(started[0].process.pid, signal.SIGCONT)
        assert text(llm) == whole
        llm.close()
