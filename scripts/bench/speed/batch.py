"""`specgguf batch` beside a loop over `create_completion`; and is all answered once if it is killed?

Requests of one kind through one engine, greedy, of a fixed length: one after the other, and N together, in turn. Saved
with the machine, versions and hashes.

  scripts/bench/run batch                          the demo pair as F16 and as it is; a few minutes
  scripts/bench/run batch --only q4 --parallel 4   one of them
  scripts/bench/run batch --kills 3                500 requests through the command, killed three times with -9
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.lib.cells import RESULTS, commit, say
from bench.lib.pairs import REGIMES, Regime, files
from specgguf import SpeculativeLlama
from specgguf.batch.answering import ThisMachine
from specgguf.batch.output import OutputFile
from specgguf.batch.requests import Request, read_requests
from specgguf.batch.runner import Batch
from specgguf.bench import results
from specgguf.serve.config import ServeConfig

TOPICS = (
    "binary search", "a hash table", "quicksort", "a mutex", "a linked list", "a heap",
    "dynamic programming", "a cache", "recursion", "a queue", "a trie", "a bloom filter", "a B-tree",
    "garbage collection", "a closure", "an iterator",
)  # fmt: skip
TASKS = ("Explain {} in two sentences.", "Write a Python function that shows {}.", "Name three uses of {}.")


def main() -> int:
    """Measure, print, save; or kill and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, metavar="FILE", help="a Q4_K_M target [the demo preset's]")
    parser.add_argument("--draft", type=Path, metavar="FILE", help="its draft [the demo preset's]")
    parser.add_argument("--only", choices=[regime.name for regime in REGIMES], action="append", help="[f16 and q4]")
    parser.add_argument("--parallel", type=int, action="append", metavar="N", help="again for more [4 and 8]")
    parser.add_argument("--requests", type=int, metavar="N", help="of each measurement [8; 500 with --kills]")
    parser.add_argument("--tokens", type=int, metavar="N", help="of each answer [24; 8 with --kills]")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="[%(default)s]")
    parser.add_argument(
        "--kills", type=int, default=0, metavar="N", help="kill the command so often, on the draft alone"
    )
    parser.add_argument("--save", type=Path, default=RESULTS / "batch.json", metavar="FILE", help="[%(default)s]")
    args = parser.parse_args()
    if args.kills:
        return kill(args)
    rows: list[dict[str, Any]] = []
    pairs = {regime: files(args, regime) for regime in REGIMES if regime.name in (args.only or ("f16", "q4"))}
    paths = {f"{regime.name} {role}": path for regime, pair in pairs.items() for role, path in pair.items()}
    settings = {"requests": args.requests or 8, "tokens": args.tokens or 24}
    head = results.describe(paths, commit=commit(), settings=settings)
    for regime, pair in pairs.items():
        for row in measure(regime, pair, args.parallel or [4, 8], args):
            rows.append(row)
            args.save.write_text(json.dumps({**head, "runs": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def requests(n: int, n_tokens: int, start: int = 0) -> list[bytes]:
    """Lines of a batch file: short questions, none twice, and greedy answers of a fixed length."""
    wordings = itertools.cycle(task.format(topic) for topic in TOPICS for task in TASKS)
    return [
        json.dumps({
            "custom_id": f"request {i}", "method": "POST", "url": "/v1/chat/completions",
            "body": {
                "messages": [{"role": "user", "content": f"{i}. {wording}"}],
                "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True,
            },
        }).encode()
        for i, wording in zip(range(start, start + n), wordings, strict=False)
    ]  # fmt: skip


def measure(regime: Regime, pair: dict[str, Path], parallel: list[int], args: Namespace) -> Iterator[dict[str, Any]]:
    """Loop and batches in turn, over other requests each time, so that a machine that slows meanwhile slows all."""
    model, draft, started = str(pair["model"]), str(pair["draft_model"]), itertools.count()
    n_requests = args.requests or 8
    with closing(
        SpeculativeLlama(model, draft, n_ctx=512, draft_max=regime.draft_max, n_parallel=max(parallel))
    ) as llm:
        one(llm, read_requests(requests(2, 16, 10**6), "requests"), max(parallel))
        for repeat in range(args.repeats):
            row = {"regime": regime.name, "repeat": repeat}
            for n in (1, *parallel):
                lines = requests(n_requests, args.tokens or 24, next(started) * n_requests)
                row[f"{n} at a time"] = one(llm, read_requests(lines, "requests"), n)
            say(
                regime.name,
                *(f"{name}: {speed:.1f}" for name, speed in row.items() if name.endswith("time")),
                "tokens/s",
            )
            yield row


def one(llm: SpeculativeLlama, found: list[Request], n: int) -> float:
    """Tokens per second of all requests, prompts included: in a loop (n = 1), or as a batch."""
    before, started = llm.stats.n_generated, time.perf_counter()
    if n == 1:
        for request in found:
            llm.create_chat_completion(**request.call()[1])
    else:
        as_batch(llm, found, n)
    return (llm.stats.n_generated - before) / (time.perf_counter() - started)


def as_batch(llm: SpeculativeLlama, found: list[Request], n: int) -> None:
    """What the command does."""
    with tempfile.TemporaryDirectory() as folder, OutputFile(Path(folder) / "out.jsonl", found, "requests") as output:
        ended = Batch(ThisMachine(llm, ServeConfig(), n_parallel=n), found, output).run()
        assert (ended.n_done, ended.n_failed) == (len(found), 0), ended


def kill(args: Namespace) -> int:
    """Run the command again and again, killed as soon as so many rows are there, and count what it left."""
    n = args.requests or 500
    model = args.draft or files(args, REGIMES[-1])["draft_model"]
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        source.write_bytes(b"\n".join(requests(n, args.tokens or 8)) + b"\n")
        command = [
            sys.executable,
            "-P",
            "-m",
            "specgguf.cli.main",
            "batch",
            str(source),
            "-o",
            str(out),
            "-m",
            str(model),
        ]
        command += ["-d", "none", "-c", "512", "--parallel", str((args.parallel or [4])[0])]
        for i in range(1, args.kills + 1):
            process = subprocess.Popen(command)
            while process.poll() is None and lines_of(out) < n * i // (args.kills + 1):
                time.sleep(0.001)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            whole, _, torn = out.read_bytes().rpartition(b"\n")
            say(f"killed: {len(whole.splitlines())} rows, {len(torn)} bytes of a row cut short")
        code = subprocess.run(command).returncode
        rows = [json.loads(line) for line in out.read_bytes().splitlines()]
    names = [row["custom_id"] for row in rows]
    answered = sum(row["response"]["status_code"] == 200 for row in rows)
    say(f"exit code {code}; {len(rows)} rows, {len(set(names))} different, {answered} answers, of {n} requests")
    return 0 if len(rows) == len(set(names)) == answered == n and code == 0 else 1


def lines_of(path: Path) -> int:
    """How many lines a file has; 0 where there is none."""
    return path.read_bytes().count(b"\n") if path.exists() else 0
