"""`specgguf batch` beside a loop over `create_completion`, in tokens/s; and is all answered once if it is killed?

The same requests on the same files, greedy, of a fixed length: one after the other, then N together. Saved with the
machine, versions and hashes.

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
from contextlib import closing
from pathlib import Path
from typing import Any

from bench.lib.cells import RESULTS, commit, say
from bench.lib.pairs import REGIMES, files
from specgguf import SpeculativeLlama
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
    parser.add_argument("--requests", type=int, metavar="N", help="[16; 500 with --kills]")
    parser.add_argument("--tokens", type=int, metavar="N", help="of each answer [32; 8 with --kills]")
    parser.add_argument(
        "--kills", type=int, default=0, metavar="N", help="kill the command so often, on the draft alone"
    )
    parser.add_argument("--save", type=Path, default=RESULTS / "batch.json", metavar="FILE", help="[%(default)s]")
    args = parser.parse_args()
    if args.kills:
        return kill(args)
    rows = []
    lines = requests(args.requests or len(TOPICS), args.tokens or 32)
    pairs = {regime: files(args, regime) for regime in REGIMES if regime.name in (args.only or ("f16", "q4"))}
    for regime, pair in pairs.items():
        for n in (1, *(args.parallel or (4, 8))):
            rows.append({"regime": regime.name, "n_parallel": n, **measure(pair, lines, n, regime.draft_max)})
            say(
                "{regime:4} {n_parallel:2} at a time: {tokens_per_second:6.1f} tokens/s ({drafted} drafted)".format(
                    **rows[-1]
                )
            )
    pair = {f"{regime.name} {role}": path for regime, files_of in pairs.items() for role, path in files_of.items()}
    head = results.describe(pair, commit=commit(), settings={"requests": len(lines), "tokens": args.tokens or 32})
    args.save.write_text(json.dumps({**head, "runs": rows}, indent=1) + "\n", encoding="utf-8")
    return 0


def requests(n: int, n_tokens: int) -> list[bytes]:
    """Lines of a batch file: short questions, greedy answers of a fixed length."""
    wordings = itertools.cycle(task.format(topic) for task in TASKS for topic in TOPICS)
    return [
        json.dumps({
            "custom_id": f"request {i}", "method": "POST", "url": "/v1/chat/completions",
            "body": {
                "messages": [{"role": "user", "content": f"{next(wordings)} ({i})"}],
                "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True,
            },
        }).encode()
        for i in range(n)
    ]  # fmt: skip


def measure(pair: dict[str, Path], lines: list[bytes], n: int, draft_max: int) -> dict[str, Any]:
    """All requests through one engine: in a loop (n = 1) or as a batch."""
    keywords: dict[str, Any] = {} if n == 1 else {"n_parallel": n}
    found = read_requests(lines, "requests")
    model, draft = str(pair["model"]), str(pair["draft_model"])
    with closing(SpeculativeLlama(model, draft, n_ctx=512, draft_max=draft_max, **keywords)) as llm:
        llm.create_chat_completion([{"role": "user", "content": "Hello"}], max_tokens=16)
        before, started = (llm.stats.n_generated, llm.stats.draft_n), time.perf_counter()
        if n == 1:
            for request in found:
                llm.create_chat_completion(**request.call()[1])
        else:
            as_batch(llm, found, n)
        seconds = time.perf_counter() - started
        n_tokens, drafted = llm.stats.n_generated - before[0], llm.stats.draft_n - before[1]
    speed = n_tokens / seconds
    return {"seconds": seconds, "tokens": n_tokens, "tokens_per_second": speed, "drafted": drafted}


def as_batch(llm: SpeculativeLlama, found: list[Request], n: int) -> None:
    """What the command does."""
    with tempfile.TemporaryDirectory() as folder, OutputFile(Path(folder) / "out.jsonl", found, "requests") as output:
        ended = Batch(llm, ServeConfig(), found, output, n_parallel=n).run()
        assert (ended.n_done, ended.n_failed) == (len(found), 0), ended


def kill(args: argparse.Namespace) -> int:
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
