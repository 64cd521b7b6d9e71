"""Several requests at once: tokens a second in all, plain and drafted, together and in turn.

Of B prompts each is answered with so many tokens, by one engine with B places. Compared are plain decoding of all
together, plain decoding one after the other, three drafted tokens for each, and the schedule's own choice ("auto"), one
after the other within each repeat, so that a machine that changes its speed changes it for all. Also how long single
requests took, as the 95th percentile. With `--server`, llama-server answers the same prompts with as many slots, plain
and with three drafted tokens.

  scripts/bench/run several --model FILE --draft-model FILE --name f16     one table; docs/results/several-f16.json
  scripts/bench/run several … --server                                     beside llama-server (built once: minutes)
  scripts/bench/run several … --sizes 16 --repeats 5                       those again, the others are kept
  scripts/bench/run several … --sizes 1 4 --tokens 16 --repeats 1          does the script work?
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.lib.cells import RESULTS, ROOT, commit, say
from bench.lib.servers import Server, built
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import results
from specgguf.bench.runs import load_prompts
from specgguf.loading import physical_cores

WAYS = ("plain together", "plain in turn", "fixed 3", "auto")
DRAFT_KEYS = ("draft_n", "draft_n_accepted")
SERVERS = {"llama-server plain": "off", "llama-server 3": "3"}  # of `servers.SETTINGS`
DRAFTS: dict[str, int | str] = {"plain together": "off", "plain in turn": "off", "fixed 3": 3, "auto": "auto"}


def once(llm: SpeculativeLlama, prompts: Sequence[list[int]], way: str, n_tokens: int, seed: int) -> dict[str, float]:
    """By our own engine: tokens per second of all prompts, the 95th percentile of their seconds, and how many tokens
    were drafted and accepted for each that was generated."""
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


def _by_server(server: Server, prompts: Sequence[list[int]], n_tokens: int, _seed: int) -> dict[str, float]:
    """The same of llama-server, over HTTP."""
    request = {"n_predict": n_tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
    started = time.perf_counter()
    replies = server.ask_together([{"prompt": prompt, **request} for prompt in prompts])
    spent = time.perf_counter() - started
    tokens = sum(int(reply["tokens_predicted"]) for reply in replies)
    drafted, accepted = (sum(int(reply["timings"].get(key, 0)) for reply in replies) for key in DRAFT_KEYS)
    return {
        "tokens_per_s": round(tokens / spent, 3),
        "p95_s": round(spent, 3),
        "drafted": round(drafted / tokens, 3),
        "accepted": round(accepted / tokens, 3),
    }


def described(args: argparse.Namespace) -> dict[str, Any]:
    """What cells of one file have in common."""
    return {
        "name": args.name,
        "machine": results.machine(),
        "model": Path(args.model).name,
        "draft_model": Path(args.draft_model).name,
        "n_tokens": args.tokens,
        "n_threads": physical_cores(),
    }


def cell(args: argparse.Namespace, size: int) -> dict[str, Any]:
    """So many prompts at once, in every way."""
    with contextlib.ExitStack() as stack:
        loaded = SpeculativeLlama(args.model, args.draft_model, n_ctx=args.n_ctx, n_parallel=size, draft_max=5)
        llm = stack.enter_context(loaded)
        asked = [llm.render([{"role": "user", "content": text}]) for text in texts(size)]
        prompts = [list(prompt) for prompt in asked]
        run: dict[str, Callable[[int, int], dict[str, float]]] = {way: partial(once, llm, prompts, way) for way in WAYS}
        for way, name in SERVERS.items() if args.server else ():
            pair = {"model": Path(args.model), "draft_model": Path(args.draft_model)}
            limits = {"n_ctx": args.n_ctx, "n_threads": physical_cores(), "n_parallel": size}
            server = stack.enter_context(contextlib.closing(Server(args.server, name, pair, **limits)))
            run[way] = partial(_by_server, server, prompts)
        for once_more in run.values():
            once_more(8, 0)
        found: dict[str, list[dict[str, float]]] = {way: [] for way in run}
        ways = tuple(run)
        for repeat in range(args.repeats):
            for way in ways[repeat % len(ways) :] + ways[: repeat % len(ways)]:
                found[way].append(run[way](args.tokens, repeat))
        return {"size": size, "commit": commit(), "ways": found, **summary(found)}


def summary(found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Medians, and auto over the better plain way: the median of the repeats' own ratios."""
    median = {way: round(statistics.median(one["tokens_per_s"] for one in runs), 2) for way, runs in found.items()}
    ratios = [
        auto["tokens_per_s"] / max(together["tokens_per_s"], turn["tokens_per_s"])
        for auto, together, turn in zip(found["auto"], found["plain together"], found["plain in turn"], strict=True)
    ]
    made: dict[str, Any] = {"median": median, "auto_of_best_plain": round(statistics.median(ratios), 3)}
    if servers := [found[way] for way in SERVERS if way in found]:
        of_server = [
            auto["tokens_per_s"] / max(one["tokens_per_s"] for one in theirs)
            for auto, *theirs in zip(found["auto"], *servers, strict=True)
        ]
        made["auto_of_server"] = round(statistics.median(of_server), 3)
    return made


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
    parser.add_argument("--server", nargs="?", type=Path, const=Path(), metavar="PATH", help="a llama-server [built]")
    args = parser.parse_args()
    if args.server == Path():
        args.server = built(physical_cores())
    if not (args.model and args.draft_model):
        parser.error("give --model and --draft-model")
    path = RESULTS / f"several-{args.name}.json"
    saved = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    head = described(args)
    cells = {one["size"]: one for one in saved["cells"]} if head.items() <= saved.items() else {}
    for size in args.sizes:
        one = cells[size] = cell(args, size)
        say(json.dumps({"size": size, **one["median"], "auto_of_best_plain": one["auto_of_best_plain"]}))
        if "auto_of_server" in one:
            say(f"auto of llama-server's best: {one['auto_of_server']}")
        made = {**head, "cells": [cells[n] for n in sorted(cells)]}
        path.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    say(f"wrote {path.relative_to(ROOT)}")
