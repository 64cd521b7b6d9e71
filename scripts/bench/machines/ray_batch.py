"""A batch over two nodes of a Ray cluster beside one process: seconds and tokens, on one machine.

Both nodes are this machine, each with half of its cores, so the best that can come out is what one process has with all
of them: what is measured is what Ray costs. Whole runs of the command, in turn, loading included and not.
scripts/bench/run ray-batch TARGET.gguf DRAFT.gguf [--save FILE] [--requests N] [--repeats N]
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.lib.cells import say
from specgguf.bench import runs
from specgguf.bench.results import machine, versions

MEMORY = 80 * 2**20  # of each node's object store


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cores = os.cpu_count() or 2
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": MEMORY}
    made = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={**node, "include_dashboard": False}
    )
    made.add_node(**node)
    ways = {
        "one process": ["--parallel", "8", "--n-threads", str(cores)],
        "two nodes": ["--parallel", "4", "--n-threads", str(max(cores // 2, 1)), "--ray", made.address],
    }
    found = []
    try:
        for repeat in range(options.repeats):
            for name in ways if repeat % 2 == 0 else reversed(ways):
                found.append({"run": name, "repeat": repeat, **once(options, ways[name])})
                say(json.dumps(found[-1]))
    finally:
        made.shutdown()
    if options.save is not None:
        head = {
            "machine": machine(),
            "versions": {**versions(), "ray": importlib.import_module("ray").__version__},
            "files": {"target": options.target.name, "draft": options.draft.name},
            "settings": {"requests": options.requests, "tokens": options.tokens, "commands": ways},
        }
        options.save.write_text(json.dumps({**head, "runs": found}, indent=1) + "\n")
    return 0


def once(options: argparse.Namespace, flags: list[str]) -> dict[str, Any]:
    """One run of the command: seconds of all of it, and what it says of its answering."""
    prompts = runs.load_prompts()
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        lines = []
        for i in range(options.requests):
            messages = [{"role": "user", "content": prompts[i % len(prompts)].prompt}]
            body = {"messages": messages, "max_tokens": options.tokens, "temperature": 0.0}
            lines.append({"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body})
        source.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [sys.executable, "-P", "-m", "specgguf.cli.main", "batch", str(source), "-o", str(out), "-c", "1024"]
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "-m", str(options.target), "-d", str(options.draft), *flags],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - started
        n_rows = len(out.read_text().splitlines())
    said = re.search(r"([\d,]+) tokens in .*: ([\d.]+) tokens/s", done.stderr)
    assert said is not None, done.stderr
    return {
        "seconds": round(seconds, 2),
        "n_rows": n_rows,
        "n_tokens": int(said[1].replace(",", "")),
        "tokens_per_second": float(said[2]),
    }
