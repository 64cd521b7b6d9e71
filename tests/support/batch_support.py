"""What the tests of batches share: files of requests, and an engine whose answer depends on what it is asked.

Run as a program (`python batch_support.py batch IN -o OUT …`) it is `specgguf` over that engine.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar, cast

from specgguf.cli import main, open_pair
from specgguf.cli.open_pair import Loaded
from specgguf.cli.settings import Settings
from specgguf.cli.terminal.status import StatusOutput

from specgguf.decode.stats import Stats
from specgguf.errors import BackendError, Cancelled, ContextFull

Json = dict[str, Any]
WAIT_S = 60.0


class Handle:
    """A generation, as far as it can be cancelled."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()

    stop = cancel


class Echo:
    """Answers "answer to X" to X. A word of X in capitals is an order: HANG until it is cancelled, GATE until the file
    named by the variable GATE exists, TOGETHER until so many run as the word before it says, DIE with the whole
    process, or an error to raise.
    """

    ERRORS: ClassVar[dict[str, Callable[[], Exception]]] = {
        "FULL": lambda: ContextFull("the prompt has 9 tokens and the context holds 8"),
        "BROKEN": lambda: BackendError("llama.cpp failed"),
        "BUG": lambda: ZeroDivisionError("division by zero"),
    }

    def __init__(self) -> None:
        self.stats = Stats()
        self.n_parallel = 1
        self.asked: list[Json] = []
        self.n_parallel = 1
        self.n_running = self.n_together = 0
        self.closed = False
        self._changed = threading.Condition()
        self._told = threading.local()

    @contextlib.contextmanager
    def each_generation(self, told: Callable[[Any], None]) -> Iterator[None]:
        self._told.call = told
        yield

    def compile_grammar(self, grammar: Any) -> Any:
        return grammar

    def create_chat_completion(self, *, messages: Any, model: str, stream: bool = False, **keywords: Any) -> Json:
        text = self._answer(messages[-1]["content"], {"messages": messages, **keywords})
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return {"id": "chatcmpl-1", "object": "chat.completion", "model": model, "choices": [choice], "usage": USAGE}

    def create_completion(self, *, prompt: Any, model: str, stream: bool = False, **keywords: Any) -> Json:
        text = self._answer(str(prompt), {"prompt": prompt, **keywords})
        choice = {"index": 0, "text": text, "finish_reason": "stop"}
        return {"id": "cmpl-1", "object": "text_completion", "model": model, "choices": [choice], "usage": USAGE}

    def _answer(self, question: str, call: Json) -> str:
        handle = Handle()
        self._told.call(handle)
        with self._changed:
            self.asked.append(call)
            self.n_running += 1
            self.n_together = max(self.n_together, self.n_running)
            self._changed.notify_all()
        try:
            self._obey(question.split(), handle)
            if handle.cancelled.is_set():
                raise Cancelled("stopped")
        finally:
            with self._changed:
                self.n_running -= 1
        self.stats.n_generated += 3
        return f"answer to {question}"

    def _obey(self, words: list[str], handle: Handle) -> None:
        for i, word in enumerate(words):
            if word == "HANG":
                assert handle.cancelled.wait(WAIT_S), "nobody cancelled it"
            if word == "GATE":
                end = time.monotonic() + WAIT_S
                while not Path(os.environ["GATE"]).exists() and not handle.cancelled.is_set():
                    assert time.monotonic() < end, "nobody opened the gate"
                    time.sleep(0.002)
            if word == "TOGETHER":
                self._wait_for_others(int(words[i - 1]))
            if word == "DIE":
                os._exit(3)
            if word in self.ERRORS:
                raise self.ERRORS[word]()

    def _wait_for_others(self, n: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.n_together >= n, WAIT_S)

    def cancel(self) -> None:
        """Nothing runs outside a batch."""

    def close(self) -> None:
        self.closed = True


USAGE = {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}


def chat(custom_id: str, content: str, **body: Any) -> Json:
    """A request of the chat."""
    body = {"messages": [{"role": "user", "content": content}], **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write(path: Path, requests: list[Json | str]) -> Path:
    """A file of requests; a text is a line as it stands."""
    lines = [one if isinstance(one, str) else json.dumps(one, ensure_ascii=False) for one in requests]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def rows(path: Path) -> list[Json]:
    """The rows of an output, all of which must be whole."""
    data = path.read_bytes()
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.decode().split("\n")[:-1]]


def text_of(row: Json) -> str:
    """What was answered."""
    choice = row["response"]["body"]["choices"][0]
    return str(choice["message"]["content"] if "message" in choice else choice["text"])


def loaded(engine: Echo) -> Loaded:
    """The engine as `open_engine` hands it out."""
    return Loaded(cast(Any, engine), "target.gguf", "draft.gguf", model_ref="demo", draft_ref="demo", load_s=0.1)


def run() -> None:
    def open_engine(
        settings: Settings, status: StatusOutput, *, yes: bool = False, brief: bool = False, n_parallel_max: int = 1
    ) -> Loaded:
        engine = Echo()
        engine.n_parallel = settings["n_parallel"] or 1
        return loaded(engine)

    open_pair.open_engine = open_engine
    main.main()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests behind itself ignores it
    run()
