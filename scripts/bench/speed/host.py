"""Python's share: host time per drafted token and per round, stage by stage, and on a real pair.

A synthetic model with a vocabulary of 151,936 ids decodes in about a millisecond: the stand-in for a fast GPU.
What a round takes outside llama.cpp's decode, over fixed draft lengths, is a line: its slope is the cost of a
drafted token, its height at 0 that of a round. Stages are timed by wrapping the functions that do the work.

  scripts/bench/run host                 everything; the result goes to docs/results/host.json
  scripts/bench/run host --no-real       only the synthetic model: a minute
  scripts/bench/run host --quick         does the script work?
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from specgguf.cli.terminal.tables import lines

from bench.lib.cells import RESULTS, ROOT, cache_folder, commit, say
from bench.lib.pairs import REGIMES, files
from bench.lib.stages import watched
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import results, runs
from specgguf.bench.runs import Sample, Trial, load_prompts
from specgguf.decode import sampling
from specgguf.loading import physical_cores

SETTINGS = {"default sampling": 0.8, "greedy": 0.0}
LENGTHS = range(1, 9)
TOKEN_WANTED_MS, ROUND_WANTED_MS, SHARE_WANTED, FIRST_WANTED = 0.4, 0.5, 0.015, 1.3
LONG_TOKENS = 1000
NOISE = 0.1  # of the synthetic draft's weights


def synthetic() -> dict[str, Path]:
    """A target and a draft of one narrow layer and 151,936 ids, written on first use."""
    sys.path.insert(0, str(ROOT / "tests"))
    tiny = importlib.import_module("support.tiny")
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    pair = {"model": folder / "wide-target.gguf", "draft_model": folder / "wide-draft.gguf"}
    for path, noise in zip(pair.values(), (0.0, NOISE), strict=True):
        if not path.exists():
            part = path.with_suffix(".part")
            tiny.write_llama(part, tiny.numbered(151936), shape=tiny.NARROW, noise=noise)
            part.replace(path)
    return pair


def rounds_of(llm: SpeculativeLlama, params: SamplingParams, draft: int | str) -> list[tuple[int, float]]:
    """(drafted tokens, seconds outside llama.cpp) of every round after the first."""
    llm.reset()
    prompt, found = list(range(10, 42)), []
    native, started = llm.decode_s, time.perf_counter()
    for n, round in enumerate(llm.generate(prompt, params, draft=draft, draft_max=max(LENGTHS)).rounds()):
        now, native_now = time.perf_counter(), llm.decode_s
        if n:
            found.append((round.draft_n, (now - started) - (native_now - native)))
        native, started = llm.decode_s, time.perf_counter()
    return found


def line_through(points: list[tuple[int, float]]) -> tuple[float, float, dict[int, float]]:
    """(height at 0, slope, median by length) of the least-squares line through the medians."""
    lengths = sorted({k for k, _ in points})
    medians = {k: statistics.median(s for n, s in points if n == k) for k in lengths}
    slope, height = np.polyfit(lengths, [medians[k] for k in lengths], 1)
    return float(height), float(slope), medians


def measure_wide(llm: SpeculativeLlama, n_tokens: int) -> dict[str, Any]:
    """Host time by draft length and by stage, at both settings."""
    found: dict[str, Any] = {}
    for name, temperature in SETTINGS.items():
        params = SamplingParams(temperature=temperature, max_tokens=n_tokens, seed=1, ignore_eos=True)
        rounds_of(llm, params, 4)
        points = [point for k in LENGTHS for point in rounds_of(llm, params, k) if point[0] == k]
        height, slope, medians = line_through(points)
        stages = {}
        for draft in (4, "auto"):
            with watched() as watch:
                rounds = rounds_of(llm, params, draft)
            per_round = {s: [1e3 * watch.seconds[s] / len(rounds), watch.calls[s] / len(rounds)] for s in watch.seconds}
            outside = statistics.fmean(s for _, s in rounds)
            stages[str(draft)] = {
                "n_rounds": len(rounds),
                "mean_draft_n": statistics.fmean(k for k, _ in rounds),
                "host_ms": 1e3 * outside,
                "stages_ms_and_calls": dict(sorted(per_round.items(), key=lambda item: -item[1][0])),
            }
        found[name] = {
            "ms_per_drafted_token": 1e3 * slope,
            "ms_per_round": 1e3 * height,
            "host_ms_by_length": {k: 1e3 * s for k, s in medians.items()},
            "stages": stages,
        }
    return found


def measure_rows(llm: SpeculativeLlama, n: int) -> dict[str, float]:
    """Milliseconds to make one distribution of 151,936 logits, and what the obvious ways would take (the "before")."""
    rng = np.random.default_rng(1)
    row = rng.standard_normal(llm.n_vocab()).astype(np.float32) * 3

    def argpartition() -> Any:
        ids = np.argpartition(row, len(row) - 40)[len(row) - 40 :]
        return ids[np.argsort(-row[ids])]

    def softmax() -> Any:
        scores = np.exp(row.astype(np.float64) - row.max())
        return scores / scores.sum()

    functions: dict[str, Callable[[], Any]] = {
        "distribution, default sampling": lambda: default.distribution(row, []),
        "distribution, greedy": lambda: greedy.distribution(row, []),
        "instead: argpartition of all": argpartition,
        "instead: float64 softmax of all": softmax,
        "instead: sort of all": lambda: np.argsort(-row),
    }
    default = sampling.Transform(SamplingParams(), n_vocab=len(row))
    greedy = sampling.Transform(SamplingParams(temperature=0.0), n_vocab=len(row))
    return {name: _median_ms(function, n) for name, function in functions.items()}


def _median_ms(function: Callable[[], Any], n: int) -> float:
    seconds = []
    for _ in range(n):
        started = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds)


def measure_real(args: argparse.Namespace, n_tokens: int) -> tuple[dict[str, Path], list[Sample]]:
    """Samples of a real pair at default sampling: plain, always 5, auto; on code and on a story; and the first
    token after a long prompt."""
    pair = files(args, next(r for r in REGIMES if r.name == args.regime))
    threads: dict[str, Any] = {"n_threads": args.n_threads, "n_threads_batch": args.n_threads}
    params, samples = SamplingParams(max_tokens=n_tokens), []
    with SpeculativeLlama(str(pair["model"]), str(pair["draft_model"]), n_ctx=2048, **threads) as llm:
        for kind in ("code", "story"):
            text = next(p.prompt for p in load_prompts() if p.kind == kind)
            for repeat in range(1 if args.quick else 3):
                drafts: tuple[int | str, ...] = ("off", 5, "auto")
                for draft in drafts:
                    samples.append(runs.measure(llm, Trial(kind, 0, text, repeat, draft, 1 + repeat), params))
                    sample = samples[-1]
                    say(f"{kind}, draft {draft}: {sample.tokens_per_second:.1f} tok/s, host {_share(sample):.2%}")
        text, params = _long_prompt(llm), replace(params, max_tokens=min(n_tokens, 16))
        for repeat in range(1 if args.quick else 2):
            for draft in ("off", "auto"):
                samples.append(runs.measure(llm, Trial("long", 0, text, repeat, draft, 1 + repeat), params))
                say(f"{samples[-1].n_prompt} tokens, draft {draft}: first token after {samples[-1].first_s:.2f} s")
    return pair, samples


def _long_prompt(llm: SpeculativeLlama) -> str:
    """The built-in prompts one after another, until a thousand tokens are there."""
    texts, whole = [p.prompt for p in load_prompts()], ""
    while len(llm.tokenize(whole.encode())) < LONG_TOKENS:
        whole += texts[len(whole) % len(texts)] + "\n\n"
    return whole


def first_tokens(samples: list[Sample]) -> tuple[int, float, float]:
    """(tokens of the long prompt, median seconds to the first token: plain, auto)."""
    long = [s for s in samples if s.kind == "long"]
    plain, auto = (statistics.median(s.first_s for s in long if s.draft == d) for d in ("off", "auto"))
    return long[0].n_prompt, plain, auto


def _share(sample: Sample) -> float:
    return 1.0 - (sample.decode_s or 0.0) / sample.total_s


def show(wide: dict[str, Any], rows: dict[str, float], samples: list[Sample]) -> None:
    """The result as tables."""
    for name, found in wide.items():
        token, round = found["ms_per_drafted_token"], found["ms_per_round"]
        met = "ok" if token <= TOKEN_WANTED_MS and round <= ROUND_WANTED_MS else "MISSED"
        say(f"\n{name}: {token:.3f} ms per drafted token (wanted ≤ {TOKEN_WANTED_MS}),")
        say(f"  {round:.3f} ms per round on top (wanted ≤ {ROUND_WANTED_MS}): {met}")
        for draft, part in found["stages"].items():
            say(f"  draft {draft}: {part['host_ms']:.2f} ms a round outside llama.cpp, timers included")
            table = [(f"    {s}", f"{ms:.3f}", f"{n:.1f}") for s, (ms, n) in part["stages_ms_and_calls"].items()]
            for line in lines(table, ("    stage", "ms/round", "calls"), right=(1, 2)):
                say(line)
    say()
    for line in lines([(name, f"{ms:.3f}") for name, ms in rows.items()], ("one row of 151,936", "ms"), right=(1,)):
        say(line)
    auto = [s for s in samples if s.draft == "auto" and s.kind != "long"]
    if auto:
        share = 1.0 - sum(s.decode_s or 0.0 for s in auto) / sum(s.total_s for s in auto)
        met = "ok" if share <= SHARE_WANTED else "MISSED"
        say(f"\nreal pair, auto: {share:.2%} of the run outside llama.cpp (wanted ≤ {SHARE_WANTED:.1%}: {met})")
        n, plain, drafting = first_tokens(samples)
        met = "ok" if drafting <= FIRST_WANTED * plain else "MISSED"
        say(f"first token after a prompt of {n}: plain {plain:.2f} s, auto {drafting:.2f} s")
        say(f"  {drafting / plain:.2f}× (wanted ≤ {FIRST_WANTED}): {met}")


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, metavar="FILE", help="a Q4_K_M target [the demo preset's]")
    parser.add_argument("--draft", type=Path, metavar="FILE", help="a draft of its vocabulary [the demo preset's]")
    parser.add_argument("--regime", choices=[r.name for r in REGIMES], default="f16", help="the real pair [f16]")
    parser.add_argument("--n-threads", type=int, default=physical_cores(), metavar="N", help="[%(default)s]")
    parser.add_argument("--no-real", action="store_true", help="without the real pair")
    parser.add_argument(
        "--quick", action="store_true", help="a trial of the script itself: the result goes to the cache"
    )
    parser.add_argument(
        "--out", type=Path, default=RESULTS / "host.json", metavar="FILE", help="[docs/results/host.json]"
    )
    args = parser.parse_args()
    n_tokens = 24 if args.quick else 800
    pair = synthetic()
    say(f"synthetic model: about {20 if args.quick else 90} s")
    threads: dict[str, Any] = {"n_threads": 1, "n_threads_batch": 1}
    with SpeculativeLlama(
        str(pair["model"]), str(pair["draft_model"]), n_ctx=1024, draft_max=max(LENGTHS), **threads
    ) as llm:
        wide = measure_wide(llm, n_tokens)
        rows = measure_rows(llm, 5 if args.quick else 200)
    used, samples = dict(pair), list[Sample]()
    if not args.no_real:
        say("real pair: 8 samples" if args.quick else "real pair: 22 samples, four of them with a long prompt")
        real, samples = measure_real(args, 8 if args.quick else 128)
        used = {**used, **{f"real_{role}": path for role, path in real.items()}}
    show(wide, rows, samples)
    path = cache_folder() / "quick" / "host.json" if args.quick else args.out
    head = results.describe(used, commit=commit(), wide=wide, rows_ms=rows)
    results.save(path, head, samples)
    say(f"saved: {path}")
    return 0
