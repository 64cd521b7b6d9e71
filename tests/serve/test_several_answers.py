"""Several answers to one request: written beside each other where the engine has threads, fair towards others, ended
together."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from conftest import Pair
from support.serve_support import WAIT_S, Json, Running, Scripted, events, serving, until

from specgguf import SpeculativeLlama
from specgguf.errors import Cancelled, ConfigError
from specgguf.serve.job import Job
from specgguf.serve.queue import Closing, Worker

CHAT: Json = {"messages": [{"role": "user", "content": "a word list"}], "max_tokens": 8, "temperature": 0}
COMPLETE: Json = {"max_tokens": 8, "temperature": 0}
PROMPTS = ["a word list", "another", "3"]


class Noted:
    """An engine without a model, whose works note when they begin, and how many are in it at once."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.n_most = 0
        self.cancelled: list[str] = []
        self._n = 0
        self._lock = threading.Lock()
        self._told: dict[int, Callable[[Any], None]] = {}

    @contextlib.contextmanager
    def each_generation(self, told: Callable[[Any], None]) -> Iterator[None]:
        self._told[threading.get_ident()] = told
        yield

    def work(self, name: str, inside: Callable[[], Any] = lambda: None, *, hangs: bool = False) -> Callable[[], Json]:
        """Runs `inside`, and, if it hangs, waits until it is cancelled."""

        def run() -> Json:
            with self._lock:
                self.order.append(name)
                self._n += 1
                self.n_most = max(self.n_most, self._n)
            try:
                handle = Handle(lambda: self.cancelled.append(name))
                self._told[threading.get_ident()](handle)
                inside()
                if hangs:
                    assert handle.event.wait(WAIT_S)
                    raise Cancelled("stopped")
                return {"said": name}
            finally:
                with self._lock:
                    self._n -= 1

        return run


class Handle:
    """One generation."""

    n_prompt = n_completion = 1

    def __init__(self, on_cancel: Callable[[], None]) -> None:
        self.event = threading.Event()
        self._on_cancel = on_cancel

    def cancel(self) -> None:
        self._on_cancel()
        self.event.set()

    stop = cancel


def together(n_parallel: int, test: Callable[[Noted, Worker], Any]) -> Noted:
    """Run `test` over a worker with so many threads."""
    engine = Noted()

    async def run() -> None:
        worker = Worker(engine, n_max=10, n_parallel=n_parallel)
        await test(engine, worker)
        worker.close()
        assert await asyncio.to_thread(worker.join, 10.0)

    asyncio.run(asyncio.wait_for(run(), WAIT_S))
    return engine


async def whole(job: Job) -> list[tuple[int, Json]]:
    items = []
    while (item := await job.next()) is not None:
        items.append(item)
    return items


# --- the queue ----------------------------------------------------------------------------------------------


def test_answers_of_one_job_are_written_at_once() -> None:
    async def test(engine: Noted, worker: Worker) -> None:
        both = threading.Barrier(2, timeout=WAIT_S)  # neither ends before the other has begun
        job = Job([engine.work(name, both.wait) for name in "ab"], "client")
        worker.submit(job)
        assert sorted(await whole(job), key=str) == [(0, {"said": "a"}), (1, {"said": "b"})]

    assert together(2, test).n_most == 2


def test_one_thread_writes_them_in_turn_and_others_have_theirs_between() -> None:
    async def test(engine: Noted, worker: Worker) -> None:
        may_begin = threading.Event()
        first = Job([engine.work("first", lambda: may_begin.wait(WAIT_S))], "x")
        worker.submit(first)
        await first.began.wait()
        many, one = Job([engine.work(f"a{i}") for i in range(3)], "a"), Job([engine.work("b")], "b")
        worker.submit(many)
        worker.submit(one)
        assert worker.n_waiting == 2, "a job counts once, however many answers it wants"
        may_begin.set()
        assert [item["said"] for _, item in await whole(many)] == ["a0", "a1", "a2"]
        assert await whole(one) == [(0, {"said": "b"})]
        until(lambda: not worker.running, "all have ended")

    engine = together(1, test)
    assert engine.order == ["first", "a0", "b", "a1", "a2"]
    assert engine.n_most == 1


@pytest.mark.parametrize("n_parallel", [1, 2, 3])
def test_a_cancelled_job_ends_all_its_answers(n_parallel: int) -> None:
    async def test(engine: Noted, worker: Worker) -> None:
        job = Job([engine.work(f"a{i}", hangs=True) for i in range(4)], "a")
        worker.submit(job)
        until(lambda: len(engine.order) == n_parallel, "as many as there are threads have begun")
        worker.cancel(job, ValueError("why"))
        with pytest.raises(ValueError, match="why"):
            await whole(job)
        assert not worker.running
        assert not worker.n_waiting
        other = Job([engine.work("b")], "b")  # the threads are free
        worker.submit(other)
        assert await whole(other) == [(0, {"said": "b"})]

    engine = together(n_parallel, test)
    names = [f"a{i}" for i in range(n_parallel)]
    assert engine.order == [*names, "b"], "what had not begun never did"
    assert sorted(engine.cancelled) == names


def test_the_first_error_ends_the_other_answers_and_is_the_one_that_is_told() -> None:
    async def test(engine: Noted, worker: Worker) -> None:
        both = threading.Barrier(2, timeout=WAIT_S)

        def broken() -> None:
            both.wait()
            raise KeyError("broken")

        works = [engine.work("a", both.wait, hangs=True), engine.work("b", broken), engine.work("c")]
        job = Job(works, "client")
        worker.submit(job)
        with pytest.raises(KeyError, match="broken"):
            await whole(job)
        assert not worker.running

    engine = together(2, test)
    assert sorted(engine.order) == ["a", "b"]
    assert engine.cancelled == ["a"]


def test_a_job_between_two_of_its_answers_can_be_cancelled() -> None:
    async def test(engine: Noted, worker: Worker) -> None:
        may_end = threading.Event()
        job = Job([engine.work("a0"), engine.work("a1")], "a")
        other = Job([engine.work("b", lambda: may_end.wait(WAIT_S))], "b")
        held = threading.Event()
        first = Job([engine.work("first", lambda: held.wait(WAIT_S))], "x")
        worker.submit(first)
        await first.began.wait()
        worker.submit(job)
        worker.submit(other)
        held.set()
        await other.began.wait()  # a0 has ended, a1 waits
        worker.cancel(job)
        with pytest.raises(Cancelled):
            await whole(job)
        assert worker.running == (other,)
        may_end.set()
        await whole(other)

    assert together(1, test).order == ["first", "a0", "b"]


def test_stopping_lets_a_job_that_has_begun_write_all_its_answers() -> None:
    async def test(engine: Noted, worker: Worker) -> None:
        may_go_on = threading.Event()
        job = Job([engine.work("a0", lambda: may_go_on.wait(WAIT_S)), engine.work("a1")], "a")
        late = Job([engine.work("b")], "b")
        worker.submit(job)
        await job.began.wait()
        worker.submit(late)
        worker.close()
        with pytest.raises(Closing):
            await whole(late)
        may_go_on.set()
        assert len(await whole(job)) == 2

    assert together(1, test).order == ["a0", "a1"]


# --- what is kept -------------------------------------------------------------------------------------------


class Megabytes:
    """What a request holds while it is answered."""

    n_alive = 0

    def __init__(self) -> None:
        Megabytes.n_alive += 1

    def __del__(self) -> None:
        Megabytes.n_alive -= 1


class Refusing(Scripted):
    """Every call is refused while it holds megabytes."""

    def create_chat_completion(self, *, stream: bool, **keywords: Any) -> Any:
        held = Megabytes()
        if stream:
            return self._later(held)
        raise ConfigError("refused")

    def _later(self, held: Megabytes) -> Iterator[Json]:
        yield {"choices": []}
        raise ConfigError("refused")


@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_request_is_freed_without_the_garbage_collector(stream: bool, without_gc: None) -> None:
    """Neither its error's frames nor the thread that refused it hold it: megabytes waited for the collector before."""
    with serving(Refusing()) as server:
        for _ in range(3):
            server.post("/v1/chat/completions", {**CHAT, "stream": stream})
        until(lambda: Megabytes.n_alive == 0, "what a refused request held is freed")


@pytest.fixture
def without_gc() -> Iterator[None]:
    import gc

    gc.collect()
    gc.disable()
    yield
    gc.enable()


# --- over HTTP ----------------------------------------------------------------------------------------------


class Watched:
    """An engine that counts who is in it at once; two at a time wait for each other, if asked to."""

    def __init__(self, llm: SpeculativeLlama) -> None:
        self._llm = llm
        self.barrier: threading.Barrier | None = None
        self.generations: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llm, name)

    @contextlib.contextmanager
    def each_generation(self, told: Callable[[Any], None]) -> Iterator[None]:
        def noted(generation: Any) -> None:
            self.generations.append(generation)
            told(generation)

        if self.barrier is not None:
            self.barrier.wait()
        with self._llm.each_generation(noted):
            yield


@pytest.fixture(scope="module", params=[1, 2])
def engine(request: pytest.FixtureRequest, tiny_chat: Pair) -> Iterator[Watched]:
    """Caches of float32 and no flash attention: a text does not depend on what else is in the pass."""
    exact: Json = {"flash_attn": False, "type_k": "f32", "type_v": "f32", "n_threads": 1, "n_threads_batch": 1}
    pair = str(tiny_chat.target), str(tiny_chat.draft)
    with SpeculativeLlama(*pair, n_ctx=512, draft=3, n_parallel=request.param, **exact) as llm:
        yield Watched(llm)


@pytest.fixture(scope="module")
def server(engine: Watched) -> Iterator[Running]:
    with serving(engine) as running:
        yield running


@pytest.fixture
def at_once(engine: Watched) -> Iterator[None]:
    """Two answers of a request are in the engine at once, or the test fails; where it runs one at a time, nothing."""
    engine.barrier = threading.Barrier(2, timeout=WAIT_S) if engine.n_parallel > 1 else None
    yield
    engine.barrier = None


def said(server: Running, path: str, body: Json) -> list[str]:
    choices = server.post(path, body).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(len(choices)))
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in choices]


@pytest.fixture(scope="module")
def alone(server: Running, engine: Watched) -> Json:
    """The texts of single requests."""
    seeds = {**CHAT, "temperature": 1.0}
    return {
        "prompts": [said(server, "/v1/completions", {**COMPLETE, "prompt": prompt})[0] for prompt in PROMPTS[:2]],
        "seeds": [said(server, "/v1/chat/completions", {**seeds, "seed": 7 + i})[0] for i in range(4)],
    }


def test_prompts_of_one_request_have_the_texts_that_each_has_alone(alone: Json, server: Running, at_once: None) -> None:
    texts = said(server, "/v1/completions", {**COMPLETE, "prompt": PROMPTS[:2], "n": 2})
    assert texts == [text for text in alone["prompts"] for _ in range(2)]


def test_n_answers_have_the_texts_that_each_has_alone(alone: Json, server: Running, at_once: None) -> None:
    texts = said(server, "/v1/chat/completions", {**CHAT, "temperature": 1.0, "seed": 7, "n": 4})
    assert texts == alone["seeds"]
    assert len(set(texts)) > 1


def test_n_answers_as_a_stream(alone: Json, server: Running, at_once: None) -> None:
    body = {**CHAT, "temperature": 1.0, "seed": 7, "n": 4, "stream": True, "stream_options": {"include_usage": True}}
    *chunks, last = events(server.post("/v1/chat/completions", body).text)
    texts, ends = [""] * 4, [0] * 4
    for chunk in chunks:
        (choice,) = chunk["choices"]
        assert not ends[choice["index"]], "nothing follows a choice's last chunk"
        texts[choice["index"]] += choice["delta"].get("content") or ""
        ends[choice["index"]] += choice["finish_reason"] is not None
    assert texts == alone["seeds"]
    assert ends == [1] * 4
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 32


def test_a_client_that_leaves_ends_all_its_answers(server: Running, engine: Watched, at_once: None) -> None:
    engine.generations.clear()
    n_gone = server.metric("specgguf_clients_gone_total")
    body = {**CHAT, "max_tokens": None, "ignore_eos": True, "n": 2, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    until(lambda: not server.service.worker.running, "its answers have ended")
    assert server.metric("specgguf_clients_gone_total") == n_gone + 1
    assert len(engine.generations) == engine.n_parallel, "what had not begun never did"
    assert all(generation.cancelled for generation in engine.generations)


def test_one_prompt_that_cannot_be_answered_is_the_answer(server: Running) -> None:
    answer: httpx.Response = server.post("/v1/completions", {**COMPLETE, "prompt": ["a", "a b " * 1000]})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert said(server, "/v1/completions", {**COMPLETE, "prompt": PROMPTS})
