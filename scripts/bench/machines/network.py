"""A target over a worker behind a slow network: plain decoding, three drafted tokens and auto, by round trip.

The worker runs in a network namespace of its own, behind a veth pair that netem delays, so root is needed, and a
llama-cpp-python with RPC (scripts/rpc_build). Half of the layers lie there. Every repeat and the bytes that travelled
are saved; the order of the settings changes with each repeat.
scripts/bench/run network TARGET.gguf DRAFT.gguf [--save FILE] [--plot FILE.svg] [--tokens N] [--repeats N]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.pages.charts import Bar, Panel, chart
from specgguf import SpeculativeLlama
from specgguf.bench.results import machine, versions
from specgguf.loading import physical_cores

NAMESPACE, HERE, THERE = "specgguf-worker", "10.231.7.1", "10.231.7.2"
PORT = 50052
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
    with network(), worker():
        llm = SpeculativeLlama(
            str(options.target), str(options.draft), n_ctx=1024, draft="off", draft_max=DRAFT_MAX,
            rpc_servers=f"{THERE}:{PORT}", tensor_split=[1, 1], **threads,
        )  # fmt: skip
        with contextlib.closing(llm):
            print(*llm.warnings, sep="\n", flush=True)
            cells = [cell for ms in ROUND_TRIPS_MS for cell in measure(llm, ms, options.tokens, options.repeats)]
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


def measure(llm: SpeculativeLlama, ms: int, tokens: int, repeats: int) -> Iterator[dict[str, Any]]:
    """All settings at one round trip; auto may adapt for an answer first."""
    delay(ms)
    for draft in SETTINGS:  # graphs, caches and, for auto, the costs of this network
        generate(llm, draft, tokens if draft == "auto" else 8)
    for repeat in range(repeats):
        for draft in SETTINGS if repeat % 2 else SETTINGS[::-1]:
            cell = {"round_trip_ms": ms, "repeat": repeat, **generate(llm, draft, tokens)}
            print(json.dumps(cell), flush=True)
            yield cell


def generate(llm: SpeculativeLlama, draft: int | str, tokens: int) -> dict[str, Any]:
    """One answer: tokens per second after the first one, drafted tokens per round, and KB per token over the wire."""
    before, first = travelled(), 0.0
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
        "kb_per_token": round((travelled() - before) / 1e3 / stats.n_generated, 1),
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


@contextlib.contextmanager
def network() -> Iterator[None]:
    """A namespace joined to this one by a veth pair."""
    ip("netns", "add", NAMESPACE)
    try:
        ip("link", "add", "sg0", "type", "veth", "peer", "name", "sg1", "netns", NAMESPACE)
        ip("addr", "add", f"{HERE}/30", "dev", "sg0")
        ip("link", "set", "sg0", "up")
        inside("ip", "addr", "add", f"{THERE}/30", "dev", "sg1")
        inside("ip", "link", "set", "sg1", "up")
        inside("ip", "link", "set", "lo", "up")
        yield
    finally:
        ip("netns", "del", NAMESPACE)


@contextlib.contextmanager
def worker() -> Iterator[None]:
    """`specgguf worker` in that namespace."""
    command = [sys.executable, "-P", "-m", "specgguf.cli.main", "worker", "--host", THERE, "--port", str(PORT)]
    process = subprocess.Popen(
        ["ip", "netns", "exec", NAMESPACE, *command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("worker on "):
            break
    else:
        sys.exit("the worker did not start")
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        process.stderr.close()


def delay(round_trip_ms: float) -> None:
    """Half of it each way."""
    for command in (["tc"], ["ip", "netns", "exec", NAMESPACE, "tc"]):
        device = "sg0" if len(command) == 1 else "sg1"
        limits = ["delay", f"{round_trip_ms / 2}ms", "limit", "100000", "rate", "1gbit"]
        subprocess.run([*command, "qdisc", "replace", "dev", device, "root", "netem", *limits], check=True)


def travelled() -> int:
    """Bytes so far, both ways."""
    folder = Path("/sys/class/net/sg0/statistics")
    return sum(int((folder / f"{way}_bytes").read_text()) for way in ("rx", "tx"))


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def inside(*words: str) -> None:
    ip("netns", "exec", NAMESPACE, *words)
