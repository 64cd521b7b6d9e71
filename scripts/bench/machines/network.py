"""A target over a worker behind a slow network: plain, three drafted tokens, and auto, by round trip.

Needs a llama-cpp-python with RPC (scripts/rpc_build). Half of the layers lie on a worker of this machine, behind a
relay that hands on every byte half a round trip later. It has no limit of bandwidth, and TCP's own start after a pause
is not in it. Every repeat and the bytes that travelled are saved; the order of the settings changes with each repeat.
scripts/bench/run network TARGET.gguf DRAFT.gguf [--save FILE] [--plot FILE.svg] [--tokens N] [--repeats N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import queue
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.pages.charts import Bar, Panel, chart
from specgguf import SpeculativeLlama
from specgguf.bench.results import machine, versions
from specgguf.loading import physical_cores

ROUND_TRIPS_MS = (0, 1, 5, 20, 100)
SETTINGS: tuple[int | str, ...] = ("off", 3, "auto")
DRAFT_MAX = 16
PROMPT = "# A binary search tree: insert, delete, contains, and iteration in order\nclass Node:\n    def __init__(self"


def main() -> int:
    """Measure, print, save, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    threads: dict[str, Any] = {"n_threads": physical_cores(), "n_threads_batch": physical_cores()}
    with worker() as port:
        relay, cells = Relay(port), []
        for ms in ROUND_TRIPS_MS:
            cells += at_round_trip(options, relay, ms, threads)
    if options.save is not None:
        head = {
            "machine": machine(),
            "versions": versions(),
            "files": {"target": options.target.name, "draft": options.draft.name},
            "settings": {"tokens": options.tokens, "temperature": 0.0, "draft_max": DRAFT_MAX, **threads},
        }
        lines = ",\n".join(json.dumps(cell) for cell in cells)
        options.save.write_text(json.dumps(head, indent=1).rstrip("}").rstrip() + f',\n "cells": [\n{lines}\n]}}\n')
    if options.plot is not None:
        options.plot.write_text(plot(cells))
    return 0


def at_round_trip(options: argparse.Namespace, relay: Relay, ms: int, threads: dict[str, Any]) -> list[dict[str, Any]]:
    """The pair loaded anew, so that what passes cost is measured over this network."""
    relay.delay_s = 0.0
    llm = SpeculativeLlama(
        str(options.target), str(options.draft), n_ctx=1024, draft="off", draft_max=DRAFT_MAX,
        rpc_servers=f"127.0.0.1:{relay.port}", tensor_split=[1, 1], **threads,
    )  # fmt: skip
    with contextlib.closing(llm):
        return list(measure(llm, relay, ms, options.tokens, options.repeats))


def measure(llm: SpeculativeLlama, relay: Relay, ms: int, tokens: int, repeats: int) -> Iterator[dict[str, Any]]:
    """All settings at one round trip; auto may adapt for an answer first."""
    relay.delay_s = ms / 2e3
    for draft in SETTINGS:  # graphs, caches and, for auto, the costs of this network
        generate(llm, relay, draft, tokens if draft == "auto" else 8)
    for repeat in range(repeats):
        for draft in SETTINGS if repeat % 2 else SETTINGS[::-1]:
            cell = {"round_trip_ms": ms, "repeat": repeat, **generate(llm, relay, draft, tokens)}
            print(json.dumps(cell), flush=True)
            yield cell


def generate(llm: SpeculativeLlama, relay: Relay, draft: int | str, tokens: int) -> dict[str, Any]:
    """One answer: tokens per second after the first one, drafted tokens per round, and KB per token over the wire."""
    before, first = relay.n_bytes, 0.0
    for _ in llm.create_completion(PROMPT, max_tokens=tokens, temperature=0.0, draft=draft, stream=True):
        first = first or time.perf_counter()
    seconds = time.perf_counter() - first
    stats = llm.last_stats
    return {
        "draft": draft,
        "tokens_per_second": round((stats.n_generated - 1) / seconds, 3),
        "n_generated": stats.n_generated,
        "drafted_per_round": round(stats.draft_n / max(stats.n_rounds, 1), 2),
        "acceptance": round(stats.draft_n_accepted / stats.draft_n, 3) if stats.draft_n else None,
        "kb_per_token": round((relay.n_bytes - before) / 1e3 / stats.n_generated, 1),
    }


def plot(cells: Sequence[dict[str, Any]]) -> str:
    """Medians, as bars by round trip."""
    groups = []
    for ms in ROUND_TRIPS_MS:
        bars = []
        speeds = {d: median(cells, ms, d, "tokens_per_second") for d in SETTINGS}
        for series, draft in enumerate(SETTINGS):
            drafted = median(cells, ms, draft, "drafted_per_round")
            note = f"{speeds[draft]:.1f}"
            if draft != "off":
                note += f"  {speeds[draft] / speeds['off']:.2f}x, K {drafted:.1f}"
            bars.append(Bar(speeds[draft], note, series))
        groups.append((f"{ms} ms", bars))
    names = ["plain", "3 drafted", "auto"]
    return chart("Half of the layers on a worker, by the network's round trip", names, [Panel("", groups)])


def median(cells: Sequence[dict[str, Any]], ms: int, draft: int | str, name: str) -> float:
    """Of a figure over the repeats."""
    return statistics.median(float(c[name]) for c in cells if c["round_trip_ms"] == ms and c["draft"] == draft)


class Relay:
    """A port that leads to the worker's and hands on whatever comes, both ways, half a round trip later."""

    def __init__(self, port: int) -> None:
        self.delay_s, self.n_bytes = 0.0, 0
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            far = socket.create_connection(("127.0.0.1", self._target))
            for source, sink in ((near, far), (far, near)):
                sink.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                underway: queue.Queue[tuple[float, bytes]] = queue.Queue()
                threading.Thread(target=self._receive, args=(source, underway), daemon=True).start()
                threading.Thread(target=self._send, args=(sink, underway), daemon=True).start()

    def _receive(self, source: socket.socket, underway: queue.Queue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 18):
                self.n_bytes += len(data)
                underway.put((time.perf_counter() + self.delay_s, data))
        underway.put((0.0, b""))

    def _send(self, sink: socket.socket, underway: queue.Queue[tuple[float, bytes]]) -> None:
        with contextlib.suppress(OSError):
            while (one := underway.get())[1]:
                time.sleep(max(one[0] - time.perf_counter(), 0.0))
                sink.sendall(one[1])
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def worker() -> Iterator[int]:
    """`specgguf worker`; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-P", "-m", "specgguf.cli.main", "worker", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    if not any(line.startswith("worker on ") for line in iter(process.stderr.readline, "")):
        sys.exit("the worker did not start")
    try:
        yield port
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()
