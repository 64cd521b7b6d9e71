"""A batch over an engine that echoes: every request has its row, together or in turn, stopped or not."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from support.batch_support import WAIT_S, Echo, Json, chat, rows, text_of, write

from specgguf.batch.answering import ThisMachine
from specgguf.batch.output import OutputFile
from specgguf.batch.requests import Request, read_requests
from specgguf.batch.runner import Batch, Progress
from specgguf.errors import SpecggufError
from specgguf.serve.config import ServeConfig

CONFIG = ServeConfig(names=("tiny",), defaults={"temperature": 0.5})


class Case:
    """An input, its output, and an engine."""

    def __init__(self, folder: Path, requests: list[Json | str]) -> None:
        source = write(folder / "in.jsonl", requests)
        self.requests: list[Request] = read_requests(source.read_bytes().splitlines(), "in.jsonl")
        self.path = folder / "out.jsonl"
        self.engine = Echo()

    def open(self) -> OutputFile:
        return OutputFile(self.path, self.requests, "in.jsonl")

    def batch(self, output: OutputFile, **keywords: Any) -> Batch:
        return Batch(ThisMachine(self.engine, CONFIG, **keywords), self.requests, output)

    def run(self, told: Any = lambda progress: None, **keywords: Any) -> Progress:
        with self.open() as output:
            return self.batch(output, **keywords).run(told)

    def rows(self) -> dict[str, Json]:
        return {row["custom_id"]: row for row in rows(self.path)}


def test_every_request_has_its_own_answer(tmp_path: Path) -> None:
    completion = {"custom_id": "c", "method": "POST", "url": "/v1/completions", "body": {"prompt": "three"}}
    case = Case(tmp_path, [chat("a", "one"), chat("b", "two"), completion])
    ended = case.run()
    assert {name: text_of(row) for name, row in case.rows().items()} == {
        "a": "answer to one", "b": "answer to two", "c": "answer to three",
    }  # fmt: skip
    assert ended == Progress(3, n_done=3, n_tokens=9)


def test_a_response_is_answered_in_its_own_shape(tmp_path: Path) -> None:
    case = Case(tmp_path, [{"custom_id": "r", "method": "POST", "url": "/v1/responses", "body": {"input": "hello"}}])
    case.run()
    body = case.rows()["r"]["response"]["body"]
    assert (body["object"], body["status"]) == ("response", "completed")
    assert body["output"][0]["content"][0]["text"] == "answer to hello"


def test_bodies_are_read_as_a_server_reads_them(tmp_path: Path) -> None:
    case = Case(tmp_path, [chat("a", "x", model="gpt-4o-mini", max_completion_tokens=7), chat("b", "x", temperature=0)])
    case.run()
    assert case.engine.asked[0] | {"messages": 0} == {"messages": 0, "temperature": 0.5, "max_tokens": 7}
    assert case.engine.asked[1]["temperature"] == 0.0
    assert case.rows()["a"]["response"]["body"]["model"] == "tiny"


def test_what_cannot_be_answered_is_a_row_that_says_why(tmp_path: Path) -> None:
    case = Case(
        tmp_path,
        [
            chat("stream", "x", stream=True), chat("field", "x", temprature=1), chat("long", "FULL"),
            chat("bug", "BUG"), chat("range", "x", temperature=-3), chat("model", "x", model=3), "{", chat("good", "x"),
        ],
    )  # fmt: skip
    ended = case.run()
    found = case.rows()
    errors = {k: row["response"]["body"]["error"] for k, row in found.items() if row["response"] and k != "good"}
    assert "stream is not for a file" in errors["stream"]["message"]
    assert errors["stream"]["param"] == "stream"
    assert "did you mean 'temperature'?" in errors["field"]["message"]
    assert errors["long"]["code"] == "context_length_exceeded"
    assert errors["bug"]["message"] == "unexpected ZeroDivisionError: division by zero"
    assert errors["range"]["param"] == "temperature"
    assert errors["model"]["param"] == "model"
    assert found[None]["error"]["message"].startswith("line 7: the line is not JSON")  # type: ignore[index]
    assert [found[k]["response"]["status_code"] for k in ("stream", "bug", "good")] == [400, 500, 200]
    assert (ended.n_done, ended.n_failed) == (8, 7)


def test_as_many_run_together_as_are_allowed(tmp_path: Path) -> None:
    case = Case(tmp_path, [chat(str(i), "3 TOGETHER") for i in range(6)])
    case.run(n_parallel=3)
    assert case.engine.n_together == 3
    assert len(case.rows()) == 6


def test_one_at_a_time_runs_in_order(tmp_path: Path) -> None:
    case = Case(tmp_path, [chat(str(i), str(i)) for i in range(20)])
    case.run()
    assert case.engine.n_together == 1
    assert [row["custom_id"] for row in rows(case.path)] == [str(i) for i in range(20)]


def test_a_row_is_there_as_soon_as_its_request_ends(tmp_path: Path) -> None:
    """The first is done while the second still runs, and can be read."""
    case = Case(tmp_path, [chat("a", "x"), chat("b", "HANG")])
    seen: list[list[str]] = []

    def told(progress: Progress) -> None:
        if progress.n_done == 1 and progress.n_running == 1 and not seen:
            seen.append([row["custom_id"] for row in rows(case.path)])
            batch.stop()

    with case.open() as output:
        batch = case.batch(output)
        ended = batch.run(told)
    assert seen == [["a"]]
    assert (ended.n_done, ended.n_failed) == (1, 0)


def test_what_was_stopped_has_no_row_and_is_answered_next_time(tmp_path: Path) -> None:
    case = Case(tmp_path, [chat("a", "x"), chat("b", "HANG"), chat("c", "HANG"), chat("d", "x")])
    with case.open() as output:
        batch = case.batch(output, n_parallel=2)

        def stop_when_two_hang() -> None:
            with case.engine._changed:
                assert case.engine._changed.wait_for(lambda: case.engine.n_running >= 2, WAIT_S)
            batch.stop()

        stopper = threading.Thread(target=stop_when_two_hang)
        stopper.start()
        ended = batch.run()
        stopper.join()
    assert ended.n_done < 4
    assert set(case.rows()) <= {"a", "d"}
    case.engine = Echo()
    case.engine._obey = lambda words, handle: None  # type: ignore[method-assign]
    ended = case.run()
    assert ended.n_done == 4
    assert sorted(row["custom_id"] for row in rows(case.path)) == ["a", "b", "c", "d"]


def test_an_engine_that_always_fails_ends_the_batch(tmp_path: Path) -> None:
    case = Case(tmp_path, [chat(str(i), "BROKEN") for i in range(50)])
    with pytest.raises(SpecggufError, match=r"3 requests in a row failed: llama.cpp failed") as failed:
        case.run()
    assert "--retry-failed" in failed.value.hint
    assert len(rows(case.path)) == 3


def test_one_failure_among_others_does_not(tmp_path: Path) -> None:
    case = Case(tmp_path, [chat(str(i), "BROKEN" if i % 3 else "x") for i in range(9)])
    assert case.run().n_failed == 6


def test_a_disk_that_is_full_ends_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(tmp_path, [chat(str(i), "x") for i in range(9)])
    append, alone = OutputFile.append, threading.Lock()

    def full(self: OutputFile, row: Json) -> None:
        with alone:
            if len(self.done) >= 4:
                raise SpecggufError("no space left on device")
            append(self, row)

    monkeypatch.setattr(OutputFile, "append", full)
    with pytest.raises(SpecggufError, match="no space left"):
        case.run(n_parallel=3)
    assert len(rows(case.path)) == 4


def test_custom_ids_may_be_any_text(tmp_path: Path) -> None:
    odd = ['"', "\n", "é\u2028", "x" * 5000, "null"]
    case = Case(tmp_path, [json.dumps(chat(name, "x")) for name in odd])
    case.run()
    assert set(case.rows()) == set(odd)
