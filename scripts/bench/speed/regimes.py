"""Is specgguf at the best fixed draft length where drafting pays, and at plain speed where it does not?

Three pairs from the same two files: F16 (memory-bound), Q8_0 (a step in the cost), Q4_K_M (compute-bound). In
each, plain decoding (the faster of llama_cpp.Llama and our own engine), fixed lengths and auto, interleaved.

  scripts/bench/run regimes                          everything; stop and go on as you like
  scripts/bench/run regimes --only f16/code/t0       one cell
  scripts/bench/run regimes --quick                  does the script work? a minute or two
  scripts/bench/run regimes --table                  what the saved results say
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from bench.lib.cells import arguments, load_all, plan_of, run, say
from bench.lib.pairs import REGIMES, PlainLlama, files, our_runners
from bench.lib.tables import regime_table
from specgguf import SpeculativeLlama


def main() -> int:
    """Measure what is missing, then print the table."""
    parser = arguments(str(__doc__), "regimes")
    parser.add_argument("--fixed", metavar="N,N", help="other fixed lengths [3,5,7 for f16, 3,7 for q8, 3 for q4]")
    args = parser.parse_args()
    given = tuple(int(n) for n in args.fixed.split(",")) if args.fixed else None
    plan = plan_of(args, "regimes")
    for regime in REGIMES if not args.table else ():
        cells = plan.cells(regime.name)
        if not cells:
            continue
        say(f"\n{regime.name}: {regime.about}")
        pair = files(args, regime)
        threads: dict[str, Any] = {"n_threads": plan.n_threads, "n_threads_batch": plan.n_threads}
        fixed = given or (regime.fixed if not plan.quick else (3,))
        target, draft = str(pair["model"]), str(pair["draft_model"])
        with (
            SpeculativeLlama(target, draft, n_ctx=plan.n_ctx, draft_max=regime.draft_max, **threads) as llm,
            closing(PlainLlama(pair["model"], plan)) as plain,
        ):
            run(
                plan,
                cells,
                {"llama_cpp.Llama off": plain.runner(llm), **our_runners(llm, fixed)},
                pair,
                draft_max=regime.draft_max,
            )
    say()
    for line in regime_table(load_all(plan.folder)):
        say(line)
    return 0
