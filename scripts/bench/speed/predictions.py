"""Predicted against measured speed-up on this machine, for three pairs of the same two files.

  scripts/bench/run predictions                     all three; writes docs/results/predictions.json
  scripts/bench/run predictions --only q8           one of them; nothing is saved

In every repeat the pair's costs are measured where it stands, then plain decoding and each fixed length, back to
back. Predicted from those costs and from the tokens per pass that were really committed; the medians of both are
compared. Exit status 1 where one is further off than a fifth. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from bench.lib.cells import RESULTS, commit, say
from bench.lib.pairs import REGIMES, Regime, files
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import results
from specgguf.control.calibration import measure
from specgguf.fit import predict
from specgguf.loading import physical_cores

PROMPT = "Write a Python class for a binary search tree with insert, find and delete methods, with docstrings."
N_TOKENS, REPEATS, DRAFT_MAX, TOLERANCE = 64, 5, 7, 0.2
WIDTHS = (1, 2, 4, 6, 8, 16)


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, metavar="FILE", help="a Q4_K_M target [the demo preset's]")
    parser.add_argument("--draft", type=Path, metavar="FILE", help="a draft of its vocabulary [the demo preset's]")
    parser.add_argument("--only", choices=[r.name for r in REGIMES])
    parser.add_argument("--lengths", default="3,7", metavar="N,N", help="fixed draft lengths [%(default)s]")
    args = parser.parse_args()
    lengths = [int(n) for n in args.lengths.split(",")]
    found = [one(args, r, lengths) for r in REGIMES if args.only in (None, r.name)]
    worst = max(abs(row["predicted"] / row["measured"] - 1) for regime in found for row in regime["rows"])
    if args.only is None:
        path = RESULTS / "predictions.json"
        path.write_text(json.dumps({"commit": commit(), "regimes": found}, indent=1) + "\n")
        say(f"saved {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    say(f"the furthest is {worst:.0%} off")
    return 0 if worst <= TOLERANCE else 1


def one(args: argparse.Namespace, regime: Regime, lengths: list[int]) -> dict[str, Any]:
    """A pair: what was predicted and measured at each draft length, with every sample."""
    pair = files(args, regime)
    threads: dict[str, Any] = {"n_threads": physical_cores(), "n_threads_batch": physical_cores()}
    with SpeculativeLlama(
        str(pair["model"]), str(pair["draft_model"]), n_ctx=1024, draft="off", draft_max=DRAFT_MAX, **threads
    ) as llm:
        prompt = llm.render([{"role": "user", "content": PROMPT}])
        params = SamplingParams(temperature=0.0, max_tokens=N_TOKENS, ignore_eos=True)

        def speed(length: int | str) -> float:
            for _ in llm.generate(prompt, params, draft=length, draft_max=DRAFT_MAX).rounds():
                pass
            return llm.last_stats.n_generated / llm.last_stats.predicted_s

        speed("off")
        samples: list[dict[str, Any]] = []
        for repeat in range(REPEATS):
            assert llm._engine.draft_model is not None
            draft_s = measure(llm._engine.draft_model, 1, 1, time.perf_counter)
            costs = {n: measure(llm._engine.target, n, n, time.perf_counter) for n in WIDTHS}
            pair_costs = predict.from_measured(costs, draft_s)
            plain = speed("off")
            for length in lengths:
                gain = speed(length) / plain
                round_s = length * pair_costs.draft_s + pair_costs.verify_s(length + 1)
                predicted = llm.last_stats.tokens_per_pass * pair_costs.plain_s / round_s
                samples.append({"repeat": repeat, "length": length, "measured": gain, "predicted": predicted})
                samples[-1] |= {"plain_tokens_per_s": plain, "verify_s": costs, "draft_s": pair_costs.draft_s}
    rows = []
    for length in lengths:
        mine = [s for s in samples if s["length"] == length]
        row = {name: statistics.median(s[name] for s in mine) for name in ("measured", "predicted")}
        off = row["predicted"] / row["measured"] - 1
        say(
            f"{regime.name} K={length}: measured {row['measured']:.2f}x, predicted {row['predicted']:.2f}x ({off:+.0%})"
        )
        rows.append({"length": length, **row})
    head = results.describe(pair, settings={"temperature": 0.0, "tokens": N_TOKENS, **threads})
    return {"regime": regime.name, **head, "rows": rows, "samples": samples}
