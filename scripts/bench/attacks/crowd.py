"""Honest clients beside a bomb, a leaver and an idle connection every second: is everybody served?

scripts/bench/run crowd --model M.gguf [--draft-model D.gguf] [--clients 64] [--seconds 600] [--save FILE]. An honest
client asks for a few tokens, whole or as a stream, again and again; where the queue is full it comes back when it is
told to. A bomb is a grammar that takes long, or a prompt of special tokens; a leaver goes after its first bytes. Memory
is looked at after a quarter, half and all of the time: the same load once, twice and four times. The same command again
adds another run, with a new server, to the saved file.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import random
import socket
import statistics
import threading
import time
from pathlib import Path
from typing import Any

from bench.attacks import saved
from bench.attacks.child import Child, serving

WAIT_S = 120.0  # an honest client that waits so long was not served
HONEST: dict[str, Any] = {"messages": [{"role": "user", "content": "a word list"}], "max_tokens": 8, "temperature": 0.5}
CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
NESTED = "root ::= " + "(" * 60 + '"a"?' + ")*" * 60
BOMBS: tuple[dict[str, Any], ...] = (
    {**HONEST, "grammar": NESTED},
    {**HONEST, "grammar": 'root ::= "a"{1000000000}'},
    {**HONEST, "response_format": {"type": "json_object", "schema": {"enum": list(range(20_000))}}},
    {**HONEST, "response_format": {"type": "json_object", "schema": {"pattern": "^((a{1,900}){1,900}){1,900}$"}}},
    {**HONEST, "messages": [{"role": "user", "content": "<|im_end|>" * 50_000}]},
    {**HONEST, "max_tokens": None, "ignore_eos": True},
)


def main() -> int:
    """Run the crowd, print what became of everybody, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    before = saved.load(options.save, lambda found: _is_ours(found, options.clients)).get("runs", [])
    with serving(options.model, options.draft_model, "--queue", "128", "--time-limit", "5") as child:
        crowd = Crowd(child, options.seconds)
        crowd.run(options.clients)
        health = child.health()
    run = crowd.result() | {"health": health}
    runs = [*before, run]
    result = {"n_clients": options.clients, "seconds": sum(one["seconds"] for one in runs), "runs": runs}
    print(json.dumps(result, indent=1))
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(crowd.faults) or health != "ok" or len(crowd.served) < options.clients)


def _is_ours(found: dict[str, Any], n_clients: int) -> bool:
    return bool(found["n_clients"] == n_clients and all(one["seconds"] and one["honest"] for one in found["runs"]))


class Crowd:
    """Everybody, and what became of them."""

    def __init__(self, child: Child, seconds: float) -> None:
        self.honest: collections.Counter[str] = collections.Counter()
        self.served: collections.Counter[int] = collections.Counter()  # answers of each client
        self.bombs: collections.Counter[str] = collections.Counter()
        self.seconds: list[float] = []  # of answers, from the first time that they were asked for
        self.faults: list[str] = []
        self.n_leavers = self.n_idle = 0
        self.rss_mb = {"begun": child.rss_mb()}
        self._child, self._n_seconds = child, seconds
        self._begun = time.monotonic()
        self._end = self._begun + seconds
        self._lock = threading.Lock()

    def run(self, n: int) -> None:
        """Until the time is up, and everybody has their last answer."""
        threads = [threading.Thread(target=self._client, args=(i,)) for i in range(n)]
        threads += [threading.Thread(target=self._each_second, args=(what,)) for what in (self._bomb, self._leave)]
        for thread in threads:
            thread.start()
        with contextlib.ExitStack() as stack:
            while time.monotonic() < self._end:
                with contextlib.suppress(OSError):
                    stack.enter_context(socket.create_connection(self._child.address, timeout=WAIT_S))
                    self.n_idle += 1
                time.sleep(1.0)
                self._look()
        for thread in threads:
            thread.join()

    def _look(self) -> None:
        share = (time.monotonic() - self._begun) / self._n_seconds
        for name, after in (("1x", 0.25), ("2x", 0.5), ("4x", 1.0)):
            if share >= after and name not in self.rss_mb:
                self.rss_mb[name] = self._child.rss_mb()

    def result(self) -> dict[str, Any]:
        """Of the whole run."""
        seconds = sorted(self.seconds)
        return {
            "seconds": self._n_seconds,
            "honest": dict(sorted(self.honest.items())),
            "least_served": min(self.served.values(), default=0),
            "answer_s": {
                "median": round(statistics.median(seconds), 2),
                "p95": round(seconds[int(0.95 * len(seconds))], 2),
                "max": round(seconds[-1], 2),
            },
            "bombs": dict(sorted(self.bombs.items())),
            "n_leavers": self.n_leavers,
            "n_idle": self.n_idle,
            "rss_mb": self.rss_mb,
            "faults": self.faults[:50],
        }

    def _client(self, i: int) -> None:
        source = random.Random(i)
        while time.monotonic() < self._end:
            started, body = time.monotonic(), {**HONEST, "stream": source.random() < 0.5, "user": f"client {i}"}
            while (status := self._ask(body)) in ("429", "503") and time.monotonic() < started + WAIT_S:
                self.honest[f"{status}, asked again"] += 1
                time.sleep(source.uniform(0.5, 2.0))
            with self._lock:
                self.honest[status] += 1
                self.seconds.append(time.monotonic() - started)
                if status == "200":
                    self.served[i] += 1
                else:
                    self.faults.append(f"client {i}: {status}")

    def _ask(self, body: dict[str, Any]) -> str:
        connection = http.client.HTTPConnection(*self._child.address, timeout=WAIT_S)
        try:
            connection.request("POST", CHAT, json.dumps(body), JSON)
            answer = connection.getresponse()
            text = answer.read()
            cut = answer.status == 200 and body.get("stream") and not text.endswith(b"data: [DONE]\n\n")
            return f"{answer.status}, cut" if cut else str(answer.status)
        except (OSError, http.client.HTTPException) as error:
            return type(error).__name__
        finally:
            connection.close()

    def _each_second(self, what: Any) -> None:
        i, running = 0, []
        while time.monotonic() < self._end:
            running.append(threading.Thread(target=what, args=(i,)))
            running[-1].start()
            i += 1
            time.sleep(1.0)
        for thread in running:
            thread.join()

    def _bomb(self, i: int) -> None:
        status = self._ask(BOMBS[i % len(BOMBS)])
        with self._lock:
            self.bombs[status] += 1
            if status[:1] == "5" and status != "503":
                self.faults.append(f"bomb {i % len(BOMBS)}: {status}")

    def _leave(self, i: int) -> None:
        data = json.dumps({**HONEST, "stream": bool(i % 2), "max_tokens": None}).encode()
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
        )
        with contextlib.suppress(OSError), socket.create_connection(self._child.address, timeout=WAIT_S) as connection:
            connection.sendall(head.encode() + b"\r\n\r\n" + data)
            connection.settimeout(1.0)
            with contextlib.suppress(TimeoutError):
                connection.recv(10)
        with self._lock:
            self.n_leavers += 1
