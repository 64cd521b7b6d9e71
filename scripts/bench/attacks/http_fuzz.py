"""Random bodies and damaged HTTP against a server: does any end it, hang, grow it, or get a 500?

scripts/bench/run http-fuzz --model M.gguf [--draft-model D.gguf] [--bodies 100000] [--raw 10000] [--seconds S]
[--save FILE]. A small model is best. A body is a right one with some fields changed, or no JSON at all; raw cases are
request bytes cut, repeated and damaged. With --seconds it ends then, and says how many it has sent; the same command
goes on from there, with a new server, until the saved file holds them all.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import random
import socket
import threading
import time
from pathlib import Path
from typing import Any

from bench.attacks import saved
from bench.attacks.child import Child, serving
from specgguf.serve.protocols import fields

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/completion",
    "/infill",
    "/tokenize",
    "/detokenize",
)
NAMES = sorted({*fields.CHAT, *fields.COMPLETION, *fields.IGNORED, "input", "content", "tokens", "input_prefix", "x"})
ANSWER_S = 60.0  # a request that takes so long hangs
RAW_S = 5.0  # to wait for more of a raw answer
N_CLIENTS = 4
WARM_UP = 2000  # bodies before memory is looked at
GROWTH_MB = 64.0  # that memory may differ by: allocators keep arenas
RIGHT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "a word"}],
    "prompt": "a word",
    "input": "a word",
    "content": "a word",
    "tokens": [5, 6],
    "input_prefix": "a",
}
OF_PATH = dict(zip(PATHS, ("messages", "prompt", "input", "prompt", "input_prefix", "content", "tokens"), strict=True))


def main() -> int:
    """Fuzz, print what was found, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--bodies", type=int, default=100_000)
    parser.add_argument("--raw", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    before = saved.load(options.save, lambda found: _is_ours(found, options.seed))
    started = time.monotonic()
    with serving(options.model, options.draft_model, "--queue", "64", "--time-limit", "20") as child:
        fuzz = Fuzz(child, options.seed, started + options.seconds, before)
        fuzz.bodies(min(fuzz.n_bodies + WARM_UP, options.bodies))
        begun_mb = child.rss_mb()
        fuzz.bodies(options.bodies)
        fuzz.raws(options.raw)
        ended_mb = child.rss_mb()
        if (health := child.health()) != "ok":
            fuzz.faults.append({"after everything": health})
    if begun_mb is not None and ended_mb is not None and ended_mb - begun_mb > GROWTH_MB:
        fuzz.faults.append({"rss_mb": [begun_mb, ended_mb]})
    result = {
        "n_bodies": fuzz.n_bodies,
        "n_raw": fuzz.n_raw,
        "seed": options.seed,
        "statuses": dict(sorted(fuzz.statuses.items())),
        "rss_mb": [*before.get("rss_mb", []), [begun_mb, ended_mb]],
        "seconds": before.get("seconds", 0) + round(time.monotonic() - started),
        "faults": fuzz.faults[:50],
    }
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return int(bool(fuzz.faults))


def _is_ours(found: dict[str, Any], seed: int) -> bool:
    numbers = (found["n_bodies"], found["n_raw"], found["seconds"], *found["statuses"].values())
    pairs = all(isinstance(pair, list) and len(pair) == 2 for pair in found["rss_mb"])  # one of each server
    return bool(found["seed"] == seed and all(n >= 0 for n in numbers) and pairs)


class Fuzz:
    """What was sent so far, in earlier runs too, and what came of it."""

    def __init__(self, child: Child, seed: int, until: float, before: dict[str, Any]) -> None:
        self.n_bodies, self.n_raw = int(before.get("n_bodies", 0)), int(before.get("n_raw", 0))
        self.statuses = collections.Counter[str](before.get("statuses", {}))
        self.faults: list[dict[str, Any]] = list(before.get("faults", []))
        self._child, self._seed, self._until = child, seed, until
        self._lock = threading.Lock()

    def bodies(self, n: int) -> None:
        """Send bodies until there were `n`, from some clients at once."""
        threads = [threading.Thread(target=self._client, args=(n,)) for _ in range(N_CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _client(self, n: int) -> None:
        connection = http.client.HTTPConnection(*self._child.address, timeout=ANSWER_S)
        while (i := self._next(n)) is not None:
            source = random.Random(f"{self._seed}/{i}")
            path = source.choice(PATHS)
            body = random_body(source, path)
            try:
                connection.request("POST", path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                self._note("none", {"path": path, "body": body.decode(errors="replace")[:500], "error": repr(error)})
                continue
            is_fault = answer.status >= 500 and answer.status != 503
            fault = {"path": path, "body": body.decode(errors="replace")[:500], "answer": text.decode()[:300]}
            self._note(str(answer.status), fault if is_fault else None)
        connection.close()

    def _next(self, n: int) -> int | None:
        with self._lock:
            if self.n_bodies >= n or len(self.faults) >= 20 or time.monotonic() > self._until:
                return None
            self.n_bodies += 1
            return self.n_bodies

    def _note(self, status: str, fault: dict[str, Any] | None) -> None:
        with self._lock:
            self.statuses[status] += 1
            if fault is not None:
                self.faults.append({"status": status, **fault})

    def raws(self, n: int) -> None:
        """Send damaged requests, one connection each; now and then the server must be well."""
        for i in range(self.n_raw, n):
            if time.monotonic() > self._until or len(self.faults) >= 20:
                return
            data = random_raw(random.Random(f"{self._seed}/raw/{i}"))
            answer = self._sent(data)
            status = answer.split(b" ", 2)[1].decode() if answer.startswith(b"HTTP/1.1 ") else "no answer"
            self.n_raw += 1
            is_fault = b" 500 " in answer or (answer and status == "no answer")
            self._note(f"raw {status}", {"raw": repr(data)[:500], "answer": repr(answer)[:300]} if is_fault else None)
            if i % 500 == 499 and (health := self._child.health()) != "ok":
                self.faults.append({"raw": repr(data)[:500], "then": health})

    def _sent(self, data: bytes) -> bytes:
        answer = b""
        with contextlib.suppress(OSError), socket.create_connection(self._child.address, timeout=RAW_S) as connection:
            with contextlib.suppress(OSError):
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
            while len(answer) < 10_000 and (more := connection.recv(4096)):
                answer += more
        return answer


# --- bodies ---------------------------------------------------------------------------------------------------


def random_body(source: random.Random, path: str) -> bytes:
    """Mostly a right body with a few fields changed."""
    kind = source.random()
    if kind < 0.03:
        return source.randbytes(source.randint(0, 200))
    body: dict[str, Any] = {OF_PATH[path]: RIGHT[OF_PATH[path]]}
    if path not in ("/tokenize", "/detokenize"):
        body |= {"max_output_tokens" if path == "/v1/responses" else "max_tokens": source.randint(1, 4)}
        body |= {"stream": True} if source.random() < 0.2 else {}
    for _ in range(source.randint(0, 4)):
        body[source.choice(NAMES)] = source.choice((likely, value))(source, 3)
    text = json.dumps(body, ensure_ascii=source.random() < 0.5)
    if kind < 0.1:
        at = source.randrange(len(text) + 1)
        text = text[:at] + source.choice(("", "\0", "}", "[" * 500, '"', "\ud800", "NaN", "é")) + text[at + 1 :]
    return text.encode(errors="surrogatepass")


def likely(source: random.Random, _depth: int) -> Any:
    """What some field wants."""
    schema = {"type": "object", "properties": {"a": {"enum": [1, "b"]}}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return source.choice(
        (
            0, 1, 3, -1, 0.5, 1.0, 2.0, True, False, None, "auto", "off", "none", "required", "low", "tiny", [], {},
            ["a", "b"], [[5, 6], [7]], [5, 6], {"5": 1}, [[5, -1]], 'root ::= "a" | "b"', [tool],
            {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": schema}}, {"json": schema},
            {"type": "regex", "regex": "[ab]{2}"}, {"type": "function", "function": {"name": "f"}},
            {"include_usage": True}, {"enable_thinking": False}, [{"role": "assistant", "content": "a"}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "tool", "content": None}],
        )
    )  # fmt: skip


def value(source: random.Random, depth: int) -> Any:
    """Any JSON value at all."""
    kind = source.randrange(8 if depth else 6)
    if kind == 6:
        return [value(source, depth - 1) for _ in range(source.randint(0, 4))]
    if kind == 7:
        return {source.choice(NAMES): value(source, depth - 1) for _ in range(source.randint(0, 4))}
    simple = (None, source.random() < 0.5, source.randint(-(2**70), 2**70), source.uniform(-1e3, 1e3))
    texts = ("", "a", "é\0", "<|im_end|>", "\ud800", "x" * 2000, source.choice(NAMES))
    return simple[kind] if kind < 4 else source.choice(texts)


# --- damaged HTTP ---------------------------------------------------------------------------------------------

BODY = b'{"prompt": "a", "max_tokens": 1}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
WHOLE = (
    HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY,
    HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/models HTTP/1.0\r\n\r\n",
    HEAD + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY,
)
PIECES = (
    b"\r\n", b"\n", b"\0", b":", b" ", b"\t", b"content-length: 5\r\n", b"content-length: -1\r\n",
    b"content-length: 99999999999999999999\r\n", b"transfer-encoding: chunked\r\n", b"host: evil.example\r\n",
    b"ffffffffffffffff\r\n", b"x: " + b"y" * 70_000 + b"\r\n", b"a" * 70_000, b"HTTP/9.9", b"\xff\xfe", b"%00%ff/../",
    b"upgrade: websocket\r\nconnection: upgrade\r\n", b"connection: close\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)  # fmt: skip


def random_raw(source: random.Random) -> bytes:
    """One or two requests with pieces cut out, put in or repeated."""
    data = b"".join(source.choice(WHOLE) for _ in range(source.randint(1, 2)))
    for _ in range(source.randint(0, 3)):
        at = source.randrange(len(data) + 1)
        change = source.randrange(4)
        if change == 0:
            data = data[:at]
        elif change == 1:
            data = data[:at] + source.choice(PIECES) + data[at:]
        elif change == 2:
            data = data[:at] + source.randbytes(source.randint(1, 4)) + data[at + 4 :]
        else:
            data = data[:at] + data[at + source.randint(1, 20) :]
    return data
