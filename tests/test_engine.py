"""Who owns the engine: callers that wait, take over, stop and finish a generation, and states that come and go.

Greedy over an F32 pair and strict, so that whatever the caches hold shows in the text.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from conftest import Pair
from support import tiny
from support.serve_support import WAIT_S, until

from specgguf import BackendError, Busy, Cancelled, ConfigError, ContextFull, SamplingParams, SpeculativeLlama
from specgguf.native import backend
from specgguf.native.weights import Weights

N_CTX = 2048
Json = dict[str, Any]
GREEDY: Json = {"temperature": 0.0, "ignore_eos": True}
PROMPT = "a word list in python"
ONE: Json = {"n_threads": 1, "n_threads_batch": 1}  # threads that wait for each other crawl on a busy machine


@pytest.fixture(scope="module")
def make(tiny_chat: Pair) -> Iterator[Callable[..., SpeculativeLlama]]:
    """make(**keywords) -> an engine over the tiny pair, closed at the end."""
    made: list[SpeculativeLlama] = []

    def make(**keywords: Any) -> SpeculativeLlama:
        keywords = {"n_ctx": N_CTX, "draft": 3, "strict": True, **ONE, **keywords}
        made.append(SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), **keywords))
        return made[-1]

    yield make
    for llm in made:
        llm.close()


@pytest.fixture(scope="module")
def reference(make: Callable[..., SpeculativeLlama]) -> SpeculativeLlama:
    """Plain decoding, for what the text should be."""
    return make(draft="off")


@pytest.fixture
def llm(make: Callable[..., SpeculativeLlama]) -> SpeculativeLlama:
    return make()


def text(llm: SpeculativeLlama, prompt: str = PROMPT, **keywords: Any) -> str:
    reply = llm.create_completion(prompt, **{**GREEDY, "max_tokens": 30, **keywords})
    assert isinstance(reply, dict)
    return str(reply["choices"][0]["text"])


def is_sound(llm: SpeculativeLlama, reference: SpeculativeLlama, prompt: str = PROMPT) -> int:
    """Both caches hold what they say: what follows equals plain decoding from scratch, and as many drafted tokens
    are accepted as by an engine that holds nothing."""
    reference.reset()
    assert text(llm, prompt) == text(reference, prompt)
    n_cached, n_accepted = llm.last_stats.n_cached, llm.last_stats.draft_n_accepted
    llm.reset()
    text(llm, prompt)
    assert llm.last_stats.draft_n_accepted == n_accepted
    return n_cached


def test_a_draft_model_that_fails_is_given_up_for_the_answer(
    llm: SpeculativeLlama, reference: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain decoding would go on, and so does this; the next answer is drafted again."""

    def failing(*_arguments: Any) -> Any:
        raise BackendError("no numbers")

    assert llm._engine.draft_model is not None
    with monkeypatch.context() as patch:
        patch.setattr(llm._engine.draft_model, "extend", failing)
        assert text(llm) == text(reference)
        assert llm.last_stats.draft_n == 0
        assert llm.last_stats.off_reason == "the draft model failed: no numbers"
    assert text(llm) == text(reference)
    assert llm.last_stats.draft_n > 0


class Background:
    """A call in a thread of its own; `result` waits for it, and raises what it raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._outcome: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome.append(self._call())
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the call never came back"
        if self._error is not None:
            raise self._error
        return self._outcome[0]


# --- two callers ------------------------------------------------------------------------------------------------


def test_a_second_caller_waits(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    """Eight threads at once: each gets what it would have got alone."""
    prompts = [f"{PROMPT} {i}" for i in range(8)]
    calls = [Background(lambda prompt=prompt: text(llm, prompt)) for prompt in prompts]  # type: ignore[misc]
    said = [call.result() for call in calls]
    reference.reset()
    assert said == [text(reference, prompt) for prompt in prompts]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("timeout", [0, 0.01])
def test_a_caller_that_does_not_wait_is_told(
    llm: SpeculativeLlama, reference: SpeculativeLlama, timeout: float, stream: bool
) -> None:
    before = llm.stats.n_rounds
    long = Background(lambda: text(llm, max_tokens=None))
    until(lambda: llm.stats.n_rounds > before, "the first one runs")
    with pytest.raises(Busy, match="another thread"):
        list(llm.create_completion(PROMPT, timeout=timeout, stream=stream))
    with pytest.raises(Busy):
        llm.create_chat_completion([{"role": "user", "content": "n"}], timeout=timeout)
    llm.stop()
    assert len(long.result()) > 0
    is_sound(llm, reference)


def test_another_draft_length_waits_too(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    """A new controller measures costs with the models: not beside a running generation."""
    before = llm.stats.n_rounds
    long = Background(lambda: text(llm, max_tokens=600))
    until(lambda: llm.stats.n_rounds > before, "the first one runs")
    other = Background(lambda: text(llm, f"{PROMPT} 2", draft="auto", draft_max=7))
    reference.reset()
    assert long.result() == text(reference, max_tokens=600)
    assert other.result() == text(reference, f"{PROMPT} 2")
    is_sound(llm, reference)


def test_a_newer_generation_takes_over(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    older: Any = llm.create_completion(PROMPT, stream=True, max_tokens=200, **GREEDY)
    begun = [next(older) for _ in range(5)]
    assert all(begun)
    newer = text(llm, "other words")
    reference.reset()
    assert newer == text(reference, "other words")
    with pytest.raises(Busy, match="took this engine over"):
        list(older)
    is_sound(llm, reference)


def test_a_suspended_stream_is_taken_over_by_its_twin(llm: SpeculativeLlama) -> None:
    """Two streams in turn: the one that began last goes on, the other ends at once."""
    rounds = [
        llm.generate(llm.tokenize(PROMPT.encode()), SamplingParams(**GREEDY, max_tokens=50)).rounds() for _ in range(2)
    ]
    next(rounds[0])
    next(rounds[1])
    with pytest.raises(Busy):
        next(rounds[0])
    assert sum(len(r.tokens) for r in rounds[1]) > 40
    assert list(rounds[0]) == []


def test_a_stream_that_is_closed_early_leaves_its_caches(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    for n in (1, 3, 8):
        stream: Any = llm.create_completion(PROMPT, stream=True, max_tokens=200, **GREEDY)
        assert len(list(itertools.islice(stream, n))) == n
        stream.close()
        is_sound(llm, reference)


# --- stopping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_cancel_in_decode(llm: SpeculativeLlama, reference: SpeculativeLlama, stream: bool) -> None:
    """From another thread; what was said stands, and the next call builds on it."""
    before = llm.stats.n_rounds
    said: list[str] = []

    def consume() -> None:
        result = llm.create_completion(PROMPT, stream=stream, max_tokens=None, **GREEDY)
        for chunk in result:
            assert isinstance(chunk, dict)
            said.append(chunk["choices"][0]["text"])

    running = Background(consume)
    until(lambda: llm.stats.n_rounds > before + 2, "it runs")
    llm.cancel()
    with pytest.raises(Cancelled):
        running.result()
    assert llm.last_stats.n_generated < N_CTX - 100
    if stream:
        reference.reset()
        assert text(reference, max_tokens=None).startswith("".join(said))
        assert said
    is_sound(llm, reference)


@pytest.mark.parametrize("stream", [False, True])
def test_close_while_another_thread_generates(make: Callable[..., SpeculativeLlama], stream: bool) -> None:
    """The contexts are freed between two rounds, never under one."""
    llm = make()
    running = Background(lambda: list(llm.create_completion(PROMPT, stream=stream, max_tokens=None, **GREEDY)))
    until(lambda: llm.stats.n_rounds > 2, "it runs")
    llm.close()
    with pytest.raises(ConfigError, match="closed"):
        running.result()


CLOSED: dict[str, Callable[[SpeculativeLlama], object]] = {
    "generate": lambda llm: next(llm.generate([1, 2, 3], SamplingParams(max_tokens=4))),
    "create_completion": lambda llm: llm.create_completion([1, 2, 3], max_tokens=4),
    "tokenize": lambda llm: llm.tokenize(b"a"),
    "detokenize": lambda llm: llm.detokenize([5, 6]),
    "reset": lambda llm: llm.reset(),
    "save_state": lambda llm: llm.save_state(),
    "load_state": lambda llm: llm.load_state({}),
}


@pytest.fixture(scope="module")
def closed(make: Callable[..., SpeculativeLlama]) -> SpeculativeLlama:
    """Closed in the middle of a generation, whose iterator is still held when it is resumed."""
    llm = make()
    rounds = llm.generate(llm.tokenize(PROMPT.encode()), SamplingParams(temperature=0.0, max_tokens=40)).rounds()
    next(rounds)
    llm.close()
    with pytest.raises(ConfigError, match="closed"):
        next(rounds)
    return llm


@pytest.mark.parametrize("call", CLOSED)
def test_after_close_every_call_is_refused_by_name(closed: SpeculativeLlama, call: str) -> None:
    """Where the freed context would be touched, the process would end."""
    with pytest.raises(ConfigError, match="closed"):
        CLOSED[call](closed)
    closed.cancel()
    closed.close()


@pytest.mark.parametrize("chunk", [1, 2, 4, 5, 6, 8])
def test_cancel_in_prefill(
    make: Callable[..., SpeculativeLlama],
    reference: SpeculativeLlama,
    monkeypatch: pytest.MonkeyPatch,
    chunk: int,
) -> None:
    """From another thread, while llama.cpp reads the `chunk`-th part of the prompt (the draft model reads first, in
    three parts, and drafts in two more calls)."""
    llm, n_draft = make(n_batch=128), 5
    real, n_calls = backend.decode, itertools.count(1)

    def decode(*arguments: Any) -> int:
        if next(n_calls) == chunk:
            Background(llm.cancel).result()
        return real(*arguments)

    long = PROMPT + " word" * 250
    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", decode)
        with pytest.raises(Cancelled):
            text(llm, long)
    assert llm.last_stats.n_generated == 0
    assert next(n_calls) == max(chunk, n_draft if chunk > 3 else chunk) + 1, "no part was read after it"
    n_read = 0 if chunk <= n_draft else 128 * (chunk - 1 - n_draft)
    assert is_sound(llm, reference, long) == n_read, "what had been read was kept"


def test_cancel_without_a_generation_does_nothing(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    llm.cancel()
    llm.stop()
    is_sound(llm, reference)


def test_cancel_before_the_first_round_is_heard(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    """By the generation that was asked for, and by no later one."""
    rounds = llm.generate(llm.tokenize(PROMPT.encode()), SamplingParams(max_tokens=8)).rounds()
    llm.cancel()
    with pytest.raises(Cancelled):
        next(rounds)
    is_sound(llm, reference)


def test_finish_keeps_the_text(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    before = llm.stats.n_rounds
    running = Background(lambda: llm.create_completion(PROMPT, max_tokens=None, **GREEDY))
    until(lambda: llm.stats.n_rounds > before + 2, "it runs")
    llm.stop()
    reply = running.result()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert 0 < reply["usage"]["completion_tokens"] < N_CTX - 100
    reference.reset()
    assert text(reference, max_tokens=None).startswith(reply["choices"][0]["text"])
    is_sound(llm, reference)


def test_finish_in_a_stream(llm: SpeculativeLlama) -> None:
    stream: Any = llm.create_completion(PROMPT, stream=True, max_tokens=None, **GREEDY)
    chunks = [next(stream)]
    llm.stop()
    chunks += list(stream)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert len(chunks) <= 2 + 3, "the round it was in, and the last chunk"


def test_finish_keeps_what_might_have_become_a_stop_string(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    """Every end of what follows could begin one of these, so the stream is always some characters behind."""
    reference.reset()
    whole = text(reference, max_tokens=None)
    stops = [character + "\x01" for character in set(whole)]
    stream: Any = llm.create_completion(PROMPT, stream=True, max_tokens=None, stop=stops, **GREEDY)
    said = [next(stream)["choices"][0]["text"]]
    llm.stop()
    said += [chunk["choices"][0]["text"] for chunk in stream]
    n_tokens = llm.last_stats.n_generated
    reference.reset()
    assert "".join(said) == text(reference, max_tokens=n_tokens)


# --- states -----------------------------------------------------------------------------------------------------


def test_states_come_and_go(make: Callable[..., SpeculativeLlama], reference: SpeculativeLlama) -> None:
    """Saved after one text, loaded after another: here and in another engine over the same files."""
    first, second = make(), make()
    text(first)
    state = first.save_state()
    wanted = text(reference, PROMPT, max_tokens=60)
    text(first, "something else " * 10)
    for llm in (first, second):
        llm.load_state(state)
        assert text(llm, PROMPT, max_tokens=60) == wanted
        assert llm.last_stats.n_cached >= len(llm.tokenize(PROMPT.encode())) - 1
        assert llm.last_stats.draft_n_accepted > 0


def test_a_state_of_other_models_is_refused(
    make: Callable[..., SpeculativeLlama], tiny_pair: Pair, tiny_chat: Pair, reference: SpeculativeLlama
) -> None:
    llm = make()
    text(llm)
    held = llm.save_state()
    with (
        SpeculativeLlama(str(tiny_pair.target), str(tiny_pair.draft), n_ctx=64, **ONE) as other,
        SpeculativeLlama(str(tiny_chat.target), n_ctx=N_CTX, **ONE) as alone,
        SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), n_ctx=N_CTX, rope_freq_base=5e3, **ONE) as bent,
    ):
        wrong = [other.save_state(), alone.save_state(), bent.save_state(), {}]
        for state in (*wrong, {"target": held["draft"], "draft": held["target"]}):
            with pytest.raises(ConfigError, match="other models"):
                llm.load_state(state)
    is_sound(llm, reference)


@pytest.mark.parametrize("state", [None, 3, "state", [], b"", {"target": None}, {1: 2}], ids=repr)
def test_what_is_no_state_is_refused(make: Callable[..., SpeculativeLlama], state: Any) -> None:
    with pytest.raises(ConfigError, match=r"what save_state returned, not a |or damaged") as caught:
        make().load_state(state)
    assert caught.value.hint


def test_what_is_no_state_is_not_written_out(make: Callable[..., SpeculativeLlama]) -> None:
    """Of hundreds of megabytes a message would be made only to be cut."""

    class Huge:
        def __repr__(self) -> str:
            raise AssertionError("it was")

    with pytest.raises(ConfigError, match=r"not a Huge$"):
        make().load_state(Huge())  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_a_state_in_another_buffer(
    make: Callable[..., SpeculativeLlama], reference: SpeculativeLlama, kind: Callable[[bytes], Any]
) -> None:
    llm = make()
    text(llm)
    state = {name: {**part, "data": kind(part["data"])} for name, part in llm.save_state().items()}
    llm.reset()
    llm.load_state(state)
    assert is_sound(llm, reference)


@pytest.mark.parametrize(
    "part", [{"tokens": 3}, {"tokens": ["a"]}, {"tokens": None}, {"data": None}, {"data": "x"}], ids=str
)
def test_a_state_with_a_wrong_part_changes_nothing(
    llm: SpeculativeLlama, part: dict[str, Any], reference: SpeculativeLlama
) -> None:
    text(llm)
    state = llm.save_state()
    with pytest.raises(ConfigError, match="or damaged"):
        llm.load_state({**state, "target": state["target"] | part})
    with pytest.raises(ConfigError, match="or damaged"):
        llm.load_state({**state, "target": None})
    is_sound(llm, reference)


def test_a_broken_state_leaves_empty_caches(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    from specgguf import BackendError

    text(llm)
    state = llm.save_state()
    state["target"] = {**state["target"], "data": state["target"]["data"][:50]}
    with pytest.raises(BackendError):
        llm.load_state(state)
    is_sound(llm, reference)


# --- lengths and memory -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small(make: Callable[..., SpeculativeLlama]) -> tuple[SpeculativeLlama, SpeculativeLlama]:
    """A drafting and a plain engine of 300 tokens that read 64 at a time."""
    drafting, plain = (make(n_ctx=300, n_batch=64, draft=draft) for draft in (3, "off"))
    assert drafting.n_ctx() == 300
    return drafting, plain


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 129, 298, 299])
def test_prompts_of_every_length_are_answered(small: tuple[SpeculativeLlama, SpeculativeLlama], n: int) -> None:
    """Around n_batch and up to n_ctx - 1; whatever the caches held before."""
    ids = [1, *small[0].tokenize((PROMPT * 25).encode(), add_bos=False)][:n]
    max_tokens = min(40, 300 - n)
    replies: list[Any] = [llm.create_completion(ids, **GREEDY, max_tokens=None if n > 290 else 40) for llm in small]
    assert replies[0]["choices"] == replies[1]["choices"]
    assert [reply["usage"]["completion_tokens"] for reply in replies] == [max_tokens] * 2
    assert replies[0]["choices"][0]["finish_reason"] == "length"


def test_a_prompt_that_fills_the_context_is_explained(small: tuple[SpeculativeLlama, SpeculativeLlama]) -> None:
    for n in (300, 301, 5000):
        with pytest.raises(ContextFull, match=f"the prompt has {n} tokens and the context holds 300"):
            small[0].create_completion([5] * n)
    with pytest.raises(ConfigError, match="empty"):
        small[0].create_completion([])


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads memory from /proc")
def test_memory_is_flat(make: Callable[..., SpeculativeLlama]) -> None:
    """Twenty turns of two hundred rounds."""
    llm = make(strict=False, draft=2)
    ids = llm.tokenize(PROMPT.encode())
    sizes = []
    for turn in range(20):
        params = SamplingParams(temperature=1.0, seed=turn, ignore_eos=True, max_tokens=1500)
        n_rounds = sum(1 for _ in itertools.islice(llm.generate(ids, params).rounds(), 200))
        assert n_rounds == 200
        with open("/proc/self/statm") as file:
            sizes.append(int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20)
    assert sizes[-1] - sizes[4] < 2.0, [round(size, 1) for size in sizes]


# --- forks ----------------------------------------------------------------------------------------------------------


def in_a_fork(child: Callable[[], Any]) -> str:
    """What `child` returns, or the error it raises, in a fork of this process."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the process has threads: that is what is tested
        pid = os.fork()
    if pid == 0:
        try:
            os.write(write, str(child()).encode())
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        said = answer.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return said


def test_a_fork_cannot_use_what_its_parent_loaded(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    """With more than one thread a decode would wait for ever for threads that a fork does not have."""
    begun = llm.generate(llm.tokenize(PROMPT.encode()), SamplingParams(temperature=0.0)).rounds()
    next(begun)
    attempts: list[Callable[[], Any]] = [
        lambda: text(llm),
        lambda: next(begun),
        lambda: list(llm.create_completion(PROMPT, stream=True)),
        llm.reset,
        llm.save_state,
    ]
    for attempt in attempts:
        assert in_a_fork(attempt).startswith("Unsupported: a loaded model cannot be used after fork")
    assert is_sound(llm, reference)


@pytest.mark.parametrize("how", ["stream", "generate"])
def test_an_engine_in_a_cycle_with_an_open_stream_is_freed(tiny_chat: Pair, how: str) -> None:
    """The finalizer's own references are roots: whatever it frees must not lead back to the engine."""

    def left_behind() -> tuple[weakref.ref[SpeculativeLlama], Weights]:
        llm = SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), n_ctx=N_CTX, draft=3, **ONE)
        streamed = llm.create_completion(PROMPT, stream=True, max_tokens=100, logprobs=1)
        stream = streamed if how == "stream" else iter(llm.generate(llm.tokenize(PROMPT.encode())))
        next(stream)
        llm.__dict__["open"] = (stream, llm)
        return weakref.ref(llm), llm._pair.weights

    engine, weights = left_behind()
    gc.collect()
    assert engine() is None
    with pytest.raises(ConfigError, match="was closed"):
        _ = weights.llama


def test_a_fork_frees_nothing_and_waits_for_nobody(
    make: Callable[..., SpeculativeLlama], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing what lies on a GPU would end the child, and whoever holds the lock may not live there."""
    llm = make()
    freed: list[str] = []
    for name in ("llama_free", "llama_model_free", "llama_batch_free"):
        monkeypatch.setattr(llama_cpp.llama_cpp, name, lambda _, name=name: freed.append(name))
        monkeypatch.setattr(llama_cpp, name, lambda _, name=name: freed.append(name))

    def child() -> str:
        closing = threading.Thread(target=llm.close, daemon=True)
        closing.start()
        closing.join(WAIT_S)
        gc.collect()
        return f"{closing.is_alive()} {freed}"

    with ThreadPoolExecutor(1) as other, llm._engine.lock():
        assert other.submit(in_a_fork, child).result() == "False []"
    monkeypatch.undo()
    assert text(llm)


def test_a_fork_drops_a_suspended_stream_without_the_lock(llm: SpeculativeLlama, reference: SpeculativeLlama) -> None:
    begun = llm.generate(llm.tokenize(PROMPT.encode()), SamplingParams(temperature=0.0)).rounds()
    next(begun)

    def child() -> str:
        dropping = threading.Thread(target=begun.close, daemon=True)  # type: ignore[attr-defined]
        dropping.start()
        dropping.join(WAIT_S)
        return str(dropping.is_alive())

    with ThreadPoolExecutor(1) as other, llm._engine.lock():
        assert other.submit(in_a_fork, child).result() == "False"
    assert is_sound(llm, reference)


@pytest.mark.parametrize(("n_target", "n_draft"), [(40, 36), (36, 40)])
def test_vocabularies_of_different_lengths(tiny_folder: Path, n_target: int, n_draft: int) -> None:
    """The draft's settings and its distribution are cut to the ids that both have."""
    files = [
        tiny.write_llama(tiny_folder / f"length-{n}-{n_target}.gguf", tiny.numbered(n)) for n in (n_target, n_draft)
    ]
    bias = {n_target - 1: 3.0, n_target - 2: -float("inf")}
    with SpeculativeLlama(*map(str, files), n_ctx=256, draft=3, **ONE) as llm:
        params = SamplingParams(temperature=1.5, top_k=0, seed=3, logit_bias=bias, max_tokens=100, ignore_eos=True)
        tokens = [token for round in llm.generate([1, 5, 6], params).rounds() for token in round.tokens]
        assert len(tokens) == 100
        assert n_target - 1 in tokens
        assert n_target - 2 not in tokens
        assert llm.last_stats.draft_n > 0


# --- what comes at the wrong moment -----------------------------------------------------------------------------


@pytest.mark.parametrize("at", [1, 2, 5])
def test_close_inside_a_round_waits_for_its_end(
    make: Callable[..., SpeculativeLlama], monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """From a signal handler, or a trace's callback: the contexts are freed when nothing stands on them any more."""
    llm = make()
    decode, calls = backend.decode, itertools.count(1)

    def closing(*arguments: Any) -> int:
        if next(calls) == at:
            llm.close()
        return decode(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", closing)
        with pytest.raises((Cancelled, ConfigError)):
            text(llm)
    with pytest.raises(ConfigError, match="closed"):
        text(llm)
    assert llm._engine.target.context.handle is None


def test_a_cancel_that_was_meant_for_the_one_before_is_not_heard(
    llm: SpeculativeLlama, reference: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was on its way when that one ended: the models are told, and no generation was."""
    decode, calls = backend.decode, itertools.count(1)

    def late(*arguments: Any) -> int:
        if next(calls) == 1:
            llm._engine.target.context.cancel()
        return decode(*arguments)

    long = PROMPT + " word" * 250
    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", late)
        said = text(llm, long)
    reference.reset()
    assert said == text(reference, long)
    is_sound(llm, reference)


def test_each_generation_is_told_and_only_to_its_own_thread(llm: SpeculativeLlama) -> None:
    told: list[str] = []
    with llm.each_generation(lambda _: told.append("outer")):
        with llm.each_generation(lambda _: told.append("inner")):
            text(llm)
        text(llm)
        Background(lambda: text(llm)).result()
    text(llm)
    assert told == ["inner", "outer"]


def test_a_state_that_is_refused_halfway_leaves_both_caches_empty(
    llm: SpeculativeLlama, reference: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    text(llm)
    state = llm.save_state()
    with monkeypatch.context() as patch:
        patch.setattr(llm._engine.draft_model, "load", lambda saved: (_ for _ in ()).throw(BackendError("refused")))
        with pytest.raises(BackendError, match="refused"):
            llm.load_state(state)
    assert not llm._engine.target.tokens
    is_sound(llm, reference)
