#!/usr/bin/env python3
"""Predicted against measured speed-up on this machine: scripts/predictions.py TARGET [DRAFT] [K ...]

Measures the pair's costs, predicts the speed-up of fixed draft lengths from them and from the tokens per pass that
were really committed, and generates with and without drafting for comparison. Run it on a quiet machine.
"""

from __future__ import annotations

import statistics
import sys

from specgguf import SamplingParams, SpeculativeLlama, hub, predict
from specgguf.costs import calibrate

PROMPT = "Write a Python class for a binary search tree with insert, find and delete methods, with docstrings."
N_TOKENS, REPEATS, WIDTHS = 64, 3, (1, 2, 4, 8)


def main(target: str, draft: str, lengths: list[int]) -> None:
    """Print one line per draft length."""
    paths = [str(hub.resolve(ref)) for ref in (target, draft)]
    with SpeculativeLlama(*paths, n_ctx=1024, draft="off", draft_max=7) as llm:
        prompt = llm.render([{"role": "user", "content": PROMPT}])
        params = SamplingParams(temperature=0.0, max_tokens=N_TOKENS, ignore_eos=True)

        def seconds_per_token(length: int | str) -> float:
            for _ in llm.generate(prompt, params, draft=length, draft_max=7):
                pass
            return llm.last.decode_s / llm.last.n_generated

        seconds_per_token("off")
        costs = calibrate(llm._engine.target, llm._engine.draft_model, 7)
        assert costs.draft_s is not None
        pair = predict.from_measured({n: costs.verify(n) for n in WIDTHS}, costs.draft_s)
        for length in lengths:
            measured = statistics.median(seconds_per_token("off") / seconds_per_token(length) for _ in range(REPEATS))
            round_s = length * pair.draft_s + pair.verify_s(length + 1)
            predicted = llm.last.tokens_per_pass * pair.plain_s / round_s
            off = predicted / measured - 1
            print(f"K={length}: measured {measured:.2f}x, predicted {predicted:.2f}x ({off:+.0%})")


if __name__ == "__main__":
    words = sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        sys.exit(__doc__)
    files = [w for w in words if not w.isdigit()]
    main(files[0], files[1] if len(files) > 1 else files[0], [int(w) for w in words if w.isdigit()] or [2, 4])
