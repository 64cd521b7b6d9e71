"""Clients of every kind at random times over several sequences: has each the text that it has alone?

scripts/bench/run arrivals --model M.gguf [--draft-model D.gguf] [--clients 100] [--parallel 4] [--seconds 600]
[--save FILE]. Before the crowd comes, each request is asked alone. Then clients ask them at random times, whole or as
streams, with different lengths, stops and grammars, some several answers at once, and some leave. All is greedy, over
caches of 32 bits without flash attention and with one thread, so that a text does not depend on its neighbours. The
longest gap between two chunks of a stream is reported, and memory after a quarter, half and all of the time.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.attacks import saved
from bench.attacks.child import Child, serving

Json = dict[str, Any]
WAIT_S = 120.0  # a client that waits so long was not served
MEAN_S = 2.0  # between two requests of one client
LEAVING, STREAMING = 0.15, 0.7  # shares of requests
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEADERS = {"content-type": "application/json"}
CACHES = (f"--{side}type-{cache}=f32" for side in ("", "draft-") for cache in "kv")
EXACT = ("--no-flash-attn", "--no-draft-flash-attn", *CACHES)
QUESTIONS = ("a word list", "another one", "what is a mutex?", "1, 2, 3,", "def f(x):\n", "é and 漢字")
FORMS: tuple[Json, ...] = (
    {},
    {},
    {"stop": ["a", "\n"]},
    {"grammar": 'root ::= ("a" | "b" | " ")+'},
    {"response_format": {"type": "json_object", "schema": {"properties": {"a": {"type": "integer"}}}}},
)


def requests(source: random.Random, n: int = 40) -> list[tuple[str, Json]]:
    """The requests that there are: path and body."""
    made: list[tuple[str, Json]] = []
    for _ in range(n):
        body: Json = {"temperature": 0, "max_tokens": source.choice((1, 3, 8, 20, 60)), **source.choice(FORMS)}
        body |= {"n": 2} if source.random() < 0.1 else {}
        question = source.choice(QUESTIONS) * source.choice((1, 1, 4))
        if "response_format" in body or source.random() < 0.6:
            made.append((CHAT, {**body, "messages": [{"role": "user", "content": question}]}))
        else:
            made.append((COMPLETIONS, {**body, "prompt": question}))
    return made


def main() -> int:
    """Ask alone, let everybody come, print what became of them, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    before = saved.load(options.save, lambda found: _is_ours(found, options.clients, options.parallel)).get("runs", [])
    flags = ("--parallel", str(options.parallel), "--queue", "256", *EXACT)
    with serving(options.model, options.draft_model, *flags) as child:
        arrivals = Arrivals(child, requests(random.Random(0)), options.seconds)
        arrivals.ask_alone()
        arrivals.run(options.clients)
        health = child.health()
    run = arrivals.result() | {"health": health}
    runs = [*before, run]
    result: Json = {"n_clients": options.clients, "n_parallel": options.parallel}
    result |= {"seconds": sum(one["seconds"] for one in runs), "runs": runs}
    print(json.dumps(result, indent=1))
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(arrivals.faults) or health != "ok")


def _is_ours(found: Json, n_clients: int, n_parallel: int) -> bool:
    is_same = (found["n_clients"], found["n_parallel"]) == (n_clients, n_parallel)
    return is_same and all(one["seconds"] and one["requests"] for one in found["runs"])


class Arrivals:
    """The clients, what they got, and what was wrong with it."""

    def __init__(self, child: Child, asked: list[tuple[str, Json]], seconds: float) -> None:
        self.found: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self.rss_mb = {"begun": child.rss_mb()}
        self.gap_s = 0.0
        self.served: collections.Counter[int] = collections.Counter()
        self._child, self._asked, self._seconds = child, asked, seconds
        self._alone: list[list[str]] = []
        self._lock = threading.Lock()
        self._begun = self._end = 0.0

    def ask_alone(self) -> None:
        """The texts that nothing runs beside."""
        for path, body in self._asked:
            self._alone.append(list(self._texts(path, {**body, "stream": False}).values()))

    def run(self, n: int) -> None:
        """Until the time is up, and everybody has their last answer."""
        self._begun = time.monotonic()
        self._end = self._begun + self._seconds
        threads = [threading.Thread(target=self._client, args=(i,)) for i in range(n)]
        for thread in threads:
            thread.start()
        while time.monotonic() < self._end:
            time.sleep(1.0)
            share = (time.monotonic() - self._begun) / self._seconds
            for name, after in (("1x", 0.25), ("2x", 0.5), ("4x", 1.0)):
                if share >= after and name not in self.rss_mb:
                    self.rss_mb[name] = self._child.rss_mb()
        for thread in threads:
            thread.join()

    def result(self) -> Json:
        """Of the whole run."""
        return {
            "seconds": self._seconds,
            "requests": dict(sorted(self.found.items())),
            "least_served": min(self.served.values(), default=0),
            "longest_gap_s": round(self.gap_s, 2),
            "rss_mb": self.rss_mb,
            "faults": self.faults[:50],
        }

    def _client(self, i: int) -> None:
        source = random.Random(i)
        while True:
            time.sleep(source.expovariate(1 / MEAN_S))
            if time.monotonic() > self._end:
                return
            which = source.randrange(len(self._asked))
            path, body = self._asked[which]
            leaves, streams = source.random() < LEAVING, source.random() < STREAMING
            body = {**body, "stream": streams, "user": f"client {i}"}
            try:
                if leaves:
                    self._leave(path, body, source.randint(0, 4))
                    what = "left"
                else:
                    texts = list(self._texts(path, body).values())
                    what = "the text that it has alone" if texts == self._alone[which] else "another text"
            except (OSError, ValueError, http.client.HTTPException) as error:
                what = f"{type(error).__name__}: {error}"[:200]
            with self._lock:
                self.found[what] += 1
                self.served[i] += what.startswith("the text")
                if what not in ("left", "the text that it has alone"):
                    self.faults.append(f"client {i}, request {which}: {what}")

    @contextlib.contextmanager
    def _answer(self, path: str, body: Json) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(*self._child.address, timeout=WAIT_S)
        try:
            connection.request("POST", path, json.dumps(body), HEADERS)
            answer = connection.getresponse()
            if answer.status != 200:
                raise ValueError(f"{answer.status} {answer.read()[:150]!r}")
            yield answer
        finally:
            connection.close()

    def _leave(self, path: str, body: Json, n_lines: int) -> None:
        connection = http.client.HTTPConnection(*self._child.address, timeout=WAIT_S)
        connection.request("POST", path, json.dumps(body), HEADERS)
        if body["stream"]:
            answer = connection.getresponse()
            for _ in range(n_lines):
                answer.readline()
        connection.close()

    def _texts(self, path: str, body: Json) -> dict[int, str]:
        """By choice: the text, and why it ended."""
        with self._answer(path, body) as answer:
            if not body["stream"]:
                choices = json.loads(answer.read())["choices"]
                return {c["index"]: _text(c) + f" [{c['finish_reason']}]" for c in choices}
            texts: dict[int, str] = collections.defaultdict(str)
            last = None
            for line in answer:
                if line.startswith(b"data: [DONE]"):
                    return dict(sorted(texts.items()))
                if not line.startswith(b"data: "):
                    continue
                now = time.monotonic()
                with self._lock:
                    self.gap_s = max(self.gap_s, now - (last or now))
                last = now
                chunk = json.loads(line.removeprefix(b"data: "))
                if "error" in chunk:
                    raise ValueError(chunk["error"]["message"])
                for choice in chunk["choices"]:
                    texts[choice["index"]] += _text(choice)
                    if choice["finish_reason"]:
                        texts[choice["index"]] += f" [{choice['finish_reason']}]"
        raise ValueError("the stream was cut")


def _text(choice: Json) -> str:
    said = choice.get("message") or choice.get("delta")
    return str(choice["text"] if "text" in choice else (said or {}).get("content") or "")


if __name__ == "__main__":
    raise SystemExit(main())
