"""Several requests at once: tokens a second in all, plain and drafted, together and in turn.

Of B prompts each is answered with so many tokens, by one engine with B places. Compared are plain decoding of all
together, plain decoding one after the other, three drafted tokens for each, and the schedule's own choice ("auto"), one
after the other within each repeat, so that a machine that changes its speed changes it for all. Also how long single
requests took, as the 95th percentile.

  scripts/bench/run several --model FILE --draft-model FILE --name f16     one table; docs/results/several-f16.json
  scripts/bench/run several … --sizes 16 --repeats 5                       those again, the others are kept
  scripts/bench/run several … --sizes 1 4 --tokens 16 --repeats 1          does the script work?
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lib.cells import RESULTS, ROOT, commit, say
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import results
from specgguf.bench.runs import load_prompts
from specgguf.loading import physical_cores

WAYS = ("plain together", "plain in turn", "fixed 3", "auto")
DRAFTS: dict[str, int | str] = {"plain together": "off", "plain in turn": "off", "fixed 3": 3, "auto": "auto"}


def once(llm: SpeculativeLlama, prompts: Sequence[list[int]], way: str, n_tokens: int, seed: int) -> dict[str, float]:
    """Tokens per second of all prompts, the 95th percentile of their seconds, and drafted and accepted tokens for each
    that was generated."""
    llm.reset()
    params = SamplingParams(temperature=0.0, max_tokens=n_tokens, ignore_eos=True, seed=seed)
    started = time.perf_counter()
    tokens, drafted, accepted, seconds = 0, 0, 0, []
    batches = [[prompt] for prompt in prompts] if way == "plain in turn" else [list(prompts)]
    for batch in batches:
        for result in llm.generate_batch(batch, params, draft=DRAFTS[way]):
            if result.error is not None:
                raise result.error
            tokens += len(result.tokens)
            drafted, accepted = drafted + result.stats.draft_n, accepted + result.stats.draft_n_accepted
            seconds.append(time.perf_counter() - started)
    spent = time.perf_counter() - started
    return {
        "tokens_per_s": round(tokens / spent, 3),
        "p95_s": round(sorted(seconds)[max(round(0.95 * len(seconds)) - 1, 0)], 3),
        "drafted": round(drafted / tokens, 3),
        "accepted": round(accepted / tokens, 3),
    }


def table(args: argparse.Namespace, saved: dict[str, Any]) -> dict[str, Any]:
    """Everything for one pair; with the cells that were saved for other sizes, where all else is the same."""
    head = {
        "name": args.name,
        "machine": results.machine(),
        "model": Path(args.model).name,
        "draft_model": Path(args.draft_model).name,
        "n_tokens": args.tokens,
        "n_threads": physical_cores(),
    }
    cells: list[dict[str, Any]] = []
    if all(saved.get(key) == value for key, value in head.items()):
        cells = [cell for cell in saved["cells"] if cell["size"] not in args.sizes]
    for size in args.sizes:
        with SpeculativeLlama(args.model, args.draft_model, n_ctx=args.n_ctx, n_parallel=size, draft_max=5) as llm:
            asked = [llm.render([{"role": "user", "content": text}]) for text in texts(size)]
            prompts = [list(prompt) for prompt in asked]
            for way in WAYS:
                once(llm, prompts, way, 8, 0)
            found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for repeat in range(args.repeats):
                order = WAYS[repeat % len(WAYS) :] + WAYS[: repeat % len(WAYS)]
                for way in order:
                    found[way].append(once(llm, prompts, way, args.tokens, repeat))
            cell = {"size": size, "commit": commit(), "ways": found, **summary(found)}
            cells.append(cell)
            say(json.dumps({"size": size, **cell["median"], "auto_of_best_plain": cell["auto_of_best_plain"]}))
    return {**head, "cells": sorted(cells, key=lambda cell: int(cell["size"]))}


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians, and auto over the better plain way: the median of the repeats' own ratios."""
    median = {way: round(statistics.median(one["tokens_per_s"] for one in runs), 2) for way, runs in found.items()}
    ratios = [
        auto["tokens_per_s"] / max(together["tokens_per_s"], turn["tokens_per_s"])
        for auto, together, turn in zip(found["auto"], found["plain together"], found["plain in turn"], strict=True)
    ]
    return {"median": median, "auto_of_best_plain": round(statistics.median(ratios), 3)}


def texts(n: int) -> list[str]:
    """Questions of several kinds, in turn."""
    asked = [prompt.prompt for prompt in load_prompts()]
    return [asked[i % len(asked)] for i in range(n)]


def main() -> None:
    """Measure one pair, or draw what is saved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--draft-model")
    parser.add_argument("--name", default="pair")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--n-ctx", type=int, default=512)
    args = parser.parse_args()
    if not (args.model and args.draft_model):
        parser.error("give --model and --draft-model")
    path = RESULTS / f"several-{args.name}.json"
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    found = table(args, saved)
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    say(f"wrote {path.relative_to(ROOT)}")
