"""What the tests of the server share: a server in a thread, a client by hand, and an engine that waits for the test."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from specgguf.decode.stats import Stats
from specgguf.errors import Cancelled
from specgguf.serve.server import ServeConfig, Service, listen, make_server

Json = dict[str, Any]
WAIT_S = 60.0  # nothing here takes long; a test that waits so long has failed


@dataclass
class Running:
    """A server in a thread of this process."""

    service: Service
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def client(self, **keywords: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=WAIT_S, trust_env=False, **keywords)

    def post(self, path: str, body: Json, **keywords: Any) -> httpx.Response:
        with self.client() as client:
            return client.post(path, json=body, **keywords)

    def post_raw(self, path: str, content: bytes) -> httpx.Response:
        with self.client() as client:
            return client.post(path, content=content, headers={"content-type": "application/json"})

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        with self.client() as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0].split(" ")[0] == name)


@contextlib.contextmanager
def serving(engine: Any, log: Any = lambda record: None, **config: Any) -> Iterator[Running]:
    """Serve `engine` on a free port of the loopback until the block ends."""
    listening = listen("127.0.0.1", 0)
    service = Service(engine, ServeConfig(**{"names": ("tiny",), "grace_s": 0.0, **config}), log=log)
    up = threading.Event()
    server = make_server(service, signals=False, started=up.set)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(server.serve(sockets=[listening]))
        except BaseException as error:
            failures.append(error)
            up.set()

    thread = threading.Thread(target=work, name="server")
    thread.start()
    try:
        assert up.wait(WAIT_S)
        assert not failures, failures
        yield Running(service, *listening.getsockname())
    finally:
        server.should_exit = True
        thread.join(WAIT_S)
        assert service.worker.join(WAIT_S), "the engine's thread still runs"
    assert not thread.is_alive(), "the server still runs"
    assert not failures, failures


# Runs a script or a module on one core: threads that wait for each other crawl on a busy machine.
_ON_ONE_CORE = """
import os, runpy, sys
if hasattr(os, "sched_setaffinity"):
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})
what = sys.argv[1]
sys.argv = sys.argv[1:]
(runpy.run_path if what.endswith(".py") else runpy.run_module)(what, run_name="__main__", **EXTRA)
"""


def on_one_core(what: str, *arguments: str) -> list[str]:
    """The command that runs a script ("x.py") or a module, and nothing of this repository's folder by accident."""
    extra = "{}" if what.endswith(".py") else "{'alter_sys': True}"
    return [sys.executable, "-P", "-c", _ON_ONE_CORE.replace("EXTRA", extra), what, *arguments]


def events(text: str) -> list[Json]:
    """The chunks of a stream's text, which must end with [DONE]."""
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]", data[-1:]
    return [json.loads(line) for line in data[:-1]]


class _Handle:
    """One call's generation: what is said to it once it has ended is said to nobody."""

    n_prompt = 1

    def __init__(self, engine: Scripted) -> None:
        self._engine = engine
        self.n_completion = 0

    def cancel(self) -> None:
        if self._engine._current is self:
            self._engine.cancel()

    def stop(self) -> None:
        if self._engine._current is self:
            self._engine.stop()


class Scripted:
    """An engine whose answers come when the test lets them: `step` lets one token out, `open` all of them.

    Each call is noted; `in_prefill` makes calls hang before their first token until they are cancelled.
    """

    def __init__(self, *, n_tokens: int = 3, in_prefill: bool = False, deaf: bool = False) -> None:
        self.stats = Stats()
        self.decode_s = 0.0
        self.n_parallel = 1
        self.calls: list[Json] = []
        self.said: list[str] = []  # what became of the calls: "cancelled", "finished", "closed" or "whole"
        self.n_cancels = self.n_told = 0
        self._n_tokens, self._in_prefill = n_tokens, in_prefill
        self._deaf = deaf  # hears no cancel
        self._changed = threading.Condition()
        self._told: Callable[[Any], None] = lambda generation: None
        self._allowed = 0
        self._wish = ""
        self._current: _Handle | None = None
        self.begun = threading.Semaphore(0)

    def n_ctx(self) -> int:
        return 512

    def step(self, n: int = 1) -> None:
        with self._changed:
            self._allowed += n
            self._changed.notify_all()

    def open(self) -> None:
        self.step(10**9)

    @contextlib.contextmanager
    def each_generation(self, told: Callable[[Any], None]) -> Iterator[None]:
        self._told = told
        yield

    def cancel(self) -> None:
        self.n_cancels += 1
        if not self._deaf:
            self._wishes("cancel")

    def stop(self) -> None:
        self._wishes("finish")

    def _wishes(self, wish: str) -> None:
        with self._changed:
            self._wish = wish
            self._changed.notify_all()

    def _token(self) -> str:
        """Wait for a step; what to do: "go", "cancel" or "finish"."""
        with self._changed:
            ok = self._changed.wait_for(lambda: self._allowed > 0 or self._wish == "cancel" or self._ends(), WAIT_S)
            assert ok, "the test never let this token out"
            if self._wish and (self._wish == "cancel" or self._ends()):
                return self._wish
            self._allowed -= 1
            return "go"

    def _ends(self) -> bool:
        return self._wish == "finish" and not self._in_prefill

    def _generate(self, keywords: Json) -> Iterator[Json]:
        self.calls.append(keywords)
        self._wish = ""
        handle = self._current = _Handle(self)
        self._told(handle)
        self.begun.release()
        n, reason = 0, "stop"
        try:
            while n < self._n_tokens:
                what = self._token() if not self._in_prefill else self._hang()
                if what == "cancel":
                    self.said.append("cancelled")
                    raise Cancelled("stopped")
                if what == "finish":
                    reason = "length"
                    break
                n += 1
                handle.n_completion = self.n_told = n
                yield {**HEAD, "choices": [{"index": 0, "delta": {"content": f"t{n} "}, "finish_reason": None}]}
        except GeneratorExit:
            self.said.append("closed")
            raise
        finally:
            self._current = None
        self.said.append("whole" if reason == "stop" else "finished")
        usage = {"prompt_tokens": 1, "completion_tokens": n, "total_tokens": n + 1}
        yield {**HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}

    def _hang(self) -> str:
        with self._changed:
            assert self._changed.wait_for(lambda: self._wish == "cancel", WAIT_S), "never cancelled"
        return "cancel"

    def create_chat_completion(self, *, stream: bool, **keywords: Any) -> Any:
        chunks = self._generate(keywords)
        if stream:
            return chunks
        *_, last = list(chunks)
        return {**HEAD, "choices": [{"finish_reason": last["choices"][0]["finish_reason"]}], "usage": last["usage"]}

    create_completion = create_chat_completion


HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}


def until(condition: Any, what: str) -> None:
    """Wait for what another thread is about to do."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.002)
