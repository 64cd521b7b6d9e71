"""specgguf beside llama_cpp.Llama and llama-server, drafting and not.

The same files, prompt ids, sampling and token counts through all of them; interleaved, every sample saved.

  scripts/bench/run peers                            builds llama-server once (minutes), then measures the F16 pair
  scripts/bench/run peers --server PATH              a llama-server of your own (with --spec-draft-sampling)
  scripts/bench/run peers --build                    only builds it
  scripts/bench/run peers --only code/t0             one cell;  --regime q8: another pair
  scripts/bench/run peers --quick                    does the script work?
  scripts/bench/run peers --table                    what the saved results say

llama-server's speed is its own `timings`, without HTTP; its reading of the draft's prompt counts as prompt there,
ours as generating.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from bench.lib.cells import arguments, load_all, plan_of, run, say
from bench.lib.pairs import REGIMES, PlainLlama, files, our_runners
from bench.lib.servers import PACKAGE, SETTINGS, Server, built, version
from bench.lib.tables import peer_table
from specgguf import SpeculativeLlama


def main() -> int:
    """Build or find the server, measure what is missing, print the table."""
    parser = arguments(str(__doc__), "peers")
    parser.add_argument("--server", type=Path, metavar="PATH", help="a llama-server binary [built once]")
    parser.add_argument("--build", action="store_true", help="only build the server")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="compilers at once")
    parser.add_argument("--regime", choices=[r.name for r in REGIMES], default="f16", help="[f16]")
    args = parser.parse_args()
    plan = plan_of(args, "peers")
    cells = plan.cells(args.regime)
    if not args.table:
        server = args.server or built(args.jobs)
        what = version(server) if args.server else f"{PACKAGE}, {version(server)}"
        say(f"{server}: {what}")
        if args.build:
            return 0
        regime = next(r for r in REGIMES if r.name == args.regime)
        pair = files(args, regime)
        threads: dict[str, Any] = {"n_threads": plan.n_threads, "n_threads_batch": plan.n_threads}
        target, draft = str(pair["model"]), str(pair["draft_model"])
        with ExitStack() as stack:
            llm = stack.enter_context(
                SpeculativeLlama(target, draft, n_ctx=plan.n_ctx, draft_max=regime.draft_max, **threads)
            )
            ours = our_runners(llm, ())
            plain = stack.enter_context(closing(PlainLlama(pair["model"], plan)))
            runners = {"llama_cpp.Llama off": plain.runner(llm)}
            for name in SETTINGS:
                say(f"starting llama-server {name} …")
                started = Server(server, name, pair, n_ctx=plan.n_ctx, n_threads=plan.n_threads)
                runners[f"llama-server {name}"] = stack.enter_context(closing(started)).runner(llm)
            for temperature in plan.temperatures:  # at 0 there is nothing to sample
                apt = {
                    name: runner
                    for name, runner in runners.items()
                    if temperature or not name.endswith("probabilistic")
                }
                run(
                    plan,
                    [cell for cell in cells if cell.temperature == temperature],
                    {**apt, **ours},
                    {**pair, "llama-server": server},
                    llama_server=what,
                    draft_max=regime.draft_max,
                )
    say()
    for line in peer_table(load_all(plan.folder)):
        say(line)
    return 0
