"""A slimmed draft: its step by size, and answers beside the full draft's.

  scripts/bench/run slim --target T.gguf --draft D.gguf     five kinds of prompts, temperatures 0 and 0.8
  scripts/bench/run slim --steps-only --draft D.gguf        the steps alone, kept under --name
  scripts/bench/run slim --page                             only write the tables into docs/models.md

Each size is cut into a temporary folder and gone afterwards. Results go to docs/results/slim-NAME.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.lib.cells import RESULTS, ROOT, commit, say
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import results
from specgguf.bench.runs import load_prompts
from specgguf.fit.slimming import cutting
from specgguf.loading import physical_cores
from specgguf.native.context import Model
from specgguf.native.mapped.slimmed import open_draft
from specgguf.native.weights import Weights

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- scripts/bench/run slim: begin -->", "<!-- scripts/bench/run slim: end -->"
SIZES = ("8k", "16k", "32k", "64k")
FULL = "full"
N_STEPS, N_CTX = 40, 1024

Json = dict[str, Any]


def cuts(draft: Path, folder: Path, sizes: Sequence[str]) -> tuple[dict[str, Path], dict[str, Json]]:
    """The slimmed drafts of these sizes beside the full one, and what is known of each."""
    files, about = {FULL: draft}, {FULL: {"n_ids": None, "share": 1.0, "bytes": draft.stat().st_size}}
    for size in sizes:
        cut = cutting.cut(draft, folder / f"{size}.gguf", cutting.parse_size(size))
        files[size] = cut.path
        about[size] = {"n_ids": cut.n_ids, "share": cut.share, "bytes": cut.path.stat().st_size}
    return files, about


def steps(files: Mapping[str, Path], n_threads: int) -> dict[str, float]:
    """Seconds of a draft step: the fastest of many, since other programs only make one slower; drafts take turns."""
    threads = {"n_threads": n_threads, "n_threads_batch": n_threads}
    loaded: dict[str, tuple[Weights, Model]] = {}
    for name, path in files.items():
        weights = open_draft(str(path), threads)
        loaded[name] = weights, Model(weights, n_ctx=N_CTX)
    seconds: dict[str, list[float]] = {name: [] for name in files}
    for step in range(N_STEPS + 4):
        for name, (_, model) in loaded.items():
            started = time.perf_counter()
            model.extend([5 + step], 1)
            seconds[name].append(time.perf_counter() - started)
    for weights, model in loaded.values():
        model.close()
        weights.close()
    return {name: min(times[4:]) for name, times in seconds.items()}


def answers(target: Path, files: Mapping[str, Path], options: argparse.Namespace) -> list[Json]:
    """A sample for each prompt, temperature and draft: tokens per second by the adaptive controller, and acceptance."""
    prompts = {prompt.kind: prompt for prompt in reversed(load_prompts(None))}
    found: list[Json] = []
    with ExitStack() as stack:
        engines = {
            name: stack.enter_context(
                SpeculativeLlama(str(target), str(path), n_ctx=N_CTX, n_threads=options.n_threads, draft=options.mode)
            )
            for name, path in files.items()
        }
        for llm in engines.values():
            list(llm.generate(llm.render([{"role": "user", "content": "Hello."}]), SamplingParams(max_tokens=4)))
        for repeat in range(options.repeats):
            for temperature in (0.0, 0.8):
                for kind, prompt in prompts.items():
                    for name, llm in engines.items():
                        params = SamplingParams(temperature=temperature, max_tokens=options.tokens, seed=repeat)
                        tokens = llm.render([{"role": "user", "content": prompt.prompt}])
                        list(llm.generate(tokens, params))
                        stats = llm.last_stats
                        seconds = stats.draft_s + stats.verify_s + stats.host_s
                        found.append(
                            {
                                "draft": name,
                                "kind": kind,
                                "temperature": temperature,
                                "tokens_per_second": stats.n_generated / seconds,
                                "draft_n": stats.draft_n,
                                "draft_n_accepted": stats.draft_n_accepted,
                            }
                        )
                        say(kind, temperature, name, f"{found[-1]['tokens_per_second']:.2f} tokens/s")
    return found


def tables() -> str:
    """What the saved results say, as Markdown."""
    blocks = []
    for path in sorted(RESULTS.glob("slim-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        full_s, samples = data["steps"][FULL], data["answers"]
        rows = []
        for name, about in data["drafts"].items():
            step = data["steps"][name]
            row = [name if about["n_ids"] is None else f"{about['n_ids']:,}", f"{about['bytes'] / 1e6:.0f} MB"]
            row += [f"{about['share']:.0%}", f"{1000 * step:.1f} ms", f"{full_s / step:.2f}x"]
            rate, gain = accepted(samples, name), speed_up(samples, name)
            if rate is not None and gain is not None:
                row += [f"{rate:.0%}", f"{gain:.2f}x"]
            rows.append(row)
        head = "| tokens kept | file | of a text | step | faster |" + (" accepted | answers |" if samples else "")
        head += "\n|" + " ---: |" * len(rows[0])
        machine = data["machine"]
        where = f"{machine['devices'][0]['name']}, {data['n_threads']} threads, {data['date'][:10]}"
        what = f"for {data['target']}, auto" if data["target"] else "steps alone"
        lines = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        blocks.append(f"{data['name']} ({what}; {where}):\n\n{head}\n{lines}")
    return "\n\n".join(blocks)


def accepted(samples: Sequence[Json], name: str) -> float | None:
    """The accepted part of all drafted tokens."""
    own = [s for s in samples if s["draft"] == name]
    return sum(s["draft_n_accepted"] for s in own) / max(1, sum(s["draft_n"] for s in own)) if own else None


def speed_up(samples: Sequence[Json], name: str) -> float | None:
    """Tokens per second over those of the full draft: the geometric mean over kinds and temperatures."""
    pairs: dict[tuple[str, float], dict[str, list[float]]] = {}
    for s in samples:
        cell = pairs.setdefault((s["kind"], s["temperature"]), {})
        cell.setdefault(s["draft"], []).append(s["tokens_per_second"])
    both = [cell for cell in pairs.values() if name in cell and FULL in cell]
    ratios = [statistics.median(cell[name]) / statistics.median(cell[FULL]) for cell in both]
    return statistics.geometric_mean(ratios) if ratios else None


def write_page() -> None:
    """Put the tables between the markers of the page."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{tables()}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, metavar="FILE")
    parser.add_argument("--draft", type=Path, metavar="FILE")
    parser.add_argument("--name", default="", help="of the results [the draft's file]")
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="N", help="[8k 16k 32k 64k]")
    parser.add_argument("--answer-sizes", nargs="+", default=("32k", "64k"), metavar="N", help="[32k 64k]")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of an answer [%(default)s]")
    parser.add_argument("--mode", default="auto", metavar="K", help="draft length [auto]")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="[%(default)s]")
    parser.add_argument("--n-threads", type=int, default=physical_cores(), metavar="N", help="[%(default)s]")
    parser.add_argument("--steps-only", action="store_true", help="no answers")
    parser.add_argument("--page", action="store_true", help="only write docs/models.md's tables")
    options = parser.parse_args()
    if not options.page:
        if not options.draft or not (options.target or options.steps_only):
            parser.error("--draft FILE, and --target FILE or --steps-only")
        with tempfile.TemporaryDirectory() as folder:
            files, about = cuts(options.draft, Path(folder), options.sizes)
            measured = steps(files, options.n_threads)
            chosen = {name: path for name, path in files.items() if name in (FULL, *options.answer_sizes)}
            found = [] if options.steps_only else answers(options.target, chosen, options)
        name = options.name or options.draft.stem
        roles = {"draft": options.draft} | ({} if options.steps_only else {"target": options.target})
        target = "" if options.steps_only else options.target.stem
        head = results.describe(roles, commit=commit(), n_threads=options.n_threads, mode=options.mode)
        data = {**head, "name": name, "target": target, "drafts": about, "steps": measured, "answers": found}
        (RESULTS / f"slim-{name}.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
