"""A target over a worker behind a slow network: plain, three drafted tokens, and auto, by round trip.

Needs a llama-cpp-python with RPC (scripts/rpc_build). Half of the layers lie on a worker of this machine, behind
`relay`. The bench's code prompts, greedy; every sample and the bytes that travelled are saved, interleaved, and the
order of the settings changes with each repeat. The pair is loaded anew for each round trip, over that network.
scripts/bench/run network TARGET.gguf DRAFT.gguf [--save FILE] [--ms 20] [--tokens N] [--repeats N]
scripts/bench/run network TARGET.gguf DRAFT.gguf --shapes [--save FILE]: what passes of changing size cost
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.lib.cells import say
from bench.machines.relay import Relay
from specgguf.bench import runs
from specgguf.bench.results import machine, versions
from specgguf.config import SamplingParams
from specgguf.models import header

ROUND_TRIPS_MS = (0, 1, 5, 20, 100)
SETTINGS: tuple[int | str, ...] = ("off", 3, "auto")
DRAFT_MAX = 16
MBIT_PER_S = 1000
FORMATS = {0: "F32", 1: "F16", 2: "Q4_0", 7: "Q8_0", 15: "Q4_K_M"}  # by general.file_type
PASSES = 12  # of each kind, when sizes change


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--save", type=Path, help="what it holds of other round trips stays")
    parser.add_argument("--ms", type=float, action="append", help="a round trip; several times: several")
    parser.add_argument("--mbit", type=float, default=MBIT_PER_S, help="each way  [1000]")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--shapes", action="store_true", help="only passes of changing size, at 0 ms")
    parser.add_argument("--cache", type=Path, help="of the worker")
    options = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # three processes on the same cores: none may spin
    if options.shapes:
        with worker(options.cache) as port:
            found = shapes(options, port)
        say(json.dumps(found))
        if options.save is not None:
            write(options, {**known(options), "shapes": found})
        return 0
    for ms in options.ms or ROUND_TRIPS_MS:
        with worker(options.cache) as port:
            samples = list(at_round_trip(options, port, ms))
        if options.save is not None:
            save(options, samples, ms)
    return 0


def at_round_trip(options: argparse.Namespace, port: int, ms: float) -> Iterator[dict[str, Any]]:
    """The samples of one round trip. The weights travel without delay; what passes cost is measured with it."""
    from specgguf import SpeculativeLlama

    relay = Relay(port)
    n_threads = threads()
    llm = SpeculativeLlama(
        str(options.target), str(options.draft), n_ctx=1024, draft="off", draft_max=DRAFT_MAX,
        rpc_servers=f"127.0.0.1:{relay.port}", tensor_split=[1, 1], n_threads=n_threads, n_threads_batch=n_threads,
    )  # fmt: skip
    with contextlib.closing(relay), contextlib.closing(llm):
        relay.delay_s, relay.bytes_per_s = ms / 2e3, options.mbit * 1e6 / 8
        prompts = [prompt for prompt in runs.load_prompts() if prompt.kind == "code"]
        params = SamplingParams(temperature=0.0, max_tokens=options.tokens)
        trials = runs.schedule(prompts, SETTINGS, options.repeats)
        for trial in trials[: len(SETTINGS)]:
            runs.warm_up(llm, trial, params)
        for trial in trials:
            before = relay.n_bytes
            sample = runs.measure(llm, trial, params)
            kb = (relay.n_bytes - before) / 1e3 / (sample.n_prompt + sample.n_generated)
            found = {"round_trip_ms": ms, "kb_per_token": round(kb, 1), **asdict(sample)}
            drafted = sample.draft_n / max(sample.n_rounds, 1)
            say(f"{ms:g} ms, {trial.draft}: {sample.tokens_per_second:.2f} tokens/s, {drafted:.2f} drafted a round")
            yield found


def threads() -> int:
    """All physical cores: worker, target and draft compute one after the other."""
    from specgguf.loading import physical_cores

    return physical_cores()


def shapes(options: argparse.Namespace, port: int) -> dict[str, Any]:
    """Passes over five and six tokens in turn beside passes of one size: a graph of another shape is sent again."""
    from specgguf.native.context import Model
    from specgguf.native.weights import Weights

    relay = Relay(port)
    n_threads = {"n_threads": threads(), "n_threads_batch": threads()}
    keywords = {"rpc_servers": [f"127.0.0.1:{relay.port}"], "tensor_split": [1, 1], **n_threads}
    weights = Weights(str(options.target), keywords)
    model = Model(weights, n_ctx=512)
    relay.bytes_per_s = options.mbit * 1e6 / 8
    model.extend([0] * 64, 1)
    found: dict[str, Any] = {}
    for name, sizes in (("5", (5, 5)), ("6", (6, 6)), ("5, 6", (5, 6))):
        seconds, sent = [], []
        for size in sizes * PASSES:
            model.mark(size)
            before, started = relay.n_bytes, time.perf_counter()
            model.extend([0] * size, size)
            seconds.append(time.perf_counter() - started)
            sent.append(relay.n_bytes - before)
            model.roll_back(64)
        found[name] = {
            "ms": round(1e3 * statistics.median(seconds[2:]), 2),
            "kb": round(statistics.median(sent[2:]) / 1e3, 1),
        }
    for part in (model, weights, relay):
        part.close()
    return found


def known(options: argparse.Namespace) -> dict[str, Any]:
    """What was saved before."""
    found: dict[str, Any] = json.loads(options.save.read_text()) if options.save.exists() else {"samples": []}
    return found


def save(options: argparse.Namespace, samples: list[dict[str, Any]], ms: float) -> None:
    """Beside what the file holds of other round trips."""
    before = known(options)
    kept = [sample for sample in before["samples"] if sample["round_trip_ms"] != ms]
    write(options, {**before, "samples": sorted([*kept, *samples], key=lambda s: (s["round_trip_ms"], s["repeat"]))})


def named(path: Path) -> str:
    """What a file calls itself, and its format."""
    about = header.read(path).metadata
    format = FORMATS.get(int(about.get("general.file_type") or 0), "mixed")
    return f"{about.get('general.name', path.name)} ({format})"


def write(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """With what it was found on, a sample a line."""
    head = {
        "machine": machine(),
        "versions": versions(),
        "files": {"target": named(options.target), "draft": named(options.draft)},
        "settings": {"tokens": options.tokens, "draft_max": DRAFT_MAX, "mbit": options.mbit, "n_threads": threads()},
        **{name: value for name, value in found.items() if name == "shapes"},
    }
    lines = ",\n".join(json.dumps(sample) for sample in found["samples"])
    options.save.write_text(json.dumps(head, indent=1).rstrip("}").rstrip() + f',\n "samples": [\n{lines}\n]}}\n')


@contextlib.contextmanager
def worker(cache: Path | None = None) -> Iterator[int]:
    """`specgguf worker`; its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-P", "-m", "specgguf.cli.main", "worker", "--port", str(port)]
    command += ["--cache", str(cache)] if cache else []
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
