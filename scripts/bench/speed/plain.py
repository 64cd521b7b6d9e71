"""Plain decoding side by side: `llama_cpp.Llama` and `SpeculativeLlama` without a draft, on one file.

Interleaved, the order changing with each pair; every sample and the median ratio are saved.
scripts/bench/run plain MODEL.gguf [--save FILE] [--pairs N] [--tokens N]
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import llama_cpp

import specgguf
from specgguf.loading import physical_cores

PROMPTS = ("def fibonacci(n):\n", "Explain why the sky is blue.\n", '{"cities": [')


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    threads: dict[str, Any] = {"n_threads": physical_cores(), "n_threads_batch": physical_cores()}
    theirs = llama_cpp.Llama(str(options.model), n_ctx=1024, verbose=False, **threads)
    ours = specgguf.SpeculativeLlama(str(options.model), n_ctx=1024, draft="off", **threads)
    pairs = []
    for i in range(options.pairs + 1):
        order = [("llama_cpp", theirs), ("specgguf", ours)]
        pair = {name: speed(llm, i, options.tokens) for name, llm in (order if i % 2 else order[::-1])}
        if i:  # the first reads the file
            pairs.append(pair)
            print("llama_cpp {llama_cpp:6.2f} tok/s   specgguf {specgguf:6.2f} tok/s".format(**pair))
    ratio = statistics.median(p["specgguf"] / p["llama_cpp"] for p in pairs)
    print(f"median ratio {ratio:.3f}")
    if options.save is not None:
        about = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "machine": {"platform": platform.platform(), "n_cores": os.cpu_count()},
            "versions": {"specgguf": specgguf.__version__, "llama_cpp": llama_cpp.__version__},
            "file": {"name": options.model.name, "sha256": hashlib.sha256(options.model.read_bytes()).hexdigest()},
            "settings": {"temperature": 0.8, "tokens": options.tokens, **threads},
        }
        options.save.write_text(json.dumps(about | {"pairs": pairs, "median_ratio": ratio}, indent=1) + "\n")
    ours.close()
    theirs.close()
    return 0


def speed(llm: Any, i: int, tokens: int) -> float:
    """Tokens per second of one completion, its short prompt included."""
    started = time.perf_counter()
    reply = llm.create_completion(PROMPTS[i % len(PROMPTS)], max_tokens=tokens, temperature=0.8, seed=i)
    return float(reply["usage"]["completion_tokens"] / (time.perf_counter() - started))
