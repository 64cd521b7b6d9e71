"""A slimmed draft: its step by size, and answers beside the full draft's.

  scripts/bench/run slim --target T.gguf --draft D.gguf     five kinds of prompts, temperatures 0 and 0.8
  scripts/bench/run slim --steps-only --draft D.gguf        the steps alone, kept under --name
  scripts/bench/run slim --temperature 0.8 …                this one alone, beside what is saved
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.lib.cells import RESULTS, ROOT, commit, say
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import results
from specgguf.bench.runs import load_prompts
from specgguf.fit import hardware, predict
from specgguf.fit.slimming import cutting
from specgguf.loading import physical_cores
from specgguf.models import hparams
from specgguf.native.context import Model
from specgguf.native.mapped.slimmed import open_draft
from specgguf.native.weights import Weights

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- scripts/bench/run slim: begin -->", "<!-- scripts/bench/run slim: end -->"
SIZES = ("8k", "16k", "32k", "64k")
FULL, PLAIN = "full", "plain"
N_STEPS, N_CTX = 40, 1024

Json = dict[str, Any]


def cuts(draft: Path, folder: Path, sizes: Sequence[str]) -> tuple[dict[str, Path], dict[str, Json]]:
    """The slimmed drafts of these sizes beside the full one, and what is known of each."""
    files, about = {FULL: draft}, {FULL: {"n_ids": None, "share": 1.0, "bytes": draft.stat().st_size}}
    for size in sizes:
        number, _, head = size.partition(":")
        out = folder / f"{number}-{head}.gguf"
        cut = cutting.cut(draft, out, cutting.parse_size(number), head=head or None)
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


def answers(target: Path, files: Mapping[str, Path], options: argparse.Namespace) -> Iterator[list[Json]]:
    """For each repeat a sample of each prompt, temperature and draft: tokens per second by the adaptive controller, and
    acceptance."""
    prompts = {prompt.kind: prompt for prompt in reversed(load_prompts(None))}
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
            found: list[Json] = []
            for temperature in options.temperature:
                for kind, prompt in prompts.items():
                    for name in [*([PLAIN] if options.plain else []), *engines]:
                        llm, mode = engines.get(name, engines[FULL]), "off" if name == PLAIN else options.mode
                        params = SamplingParams(temperature=temperature, max_tokens=options.tokens, seed=repeat)
                        tokens = llm.render([{"role": "user", "content": prompt.prompt}])
                        list(llm.generate(tokens, params, draft=mode))
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
            yield found


def tables() -> str:
    """What the saved results say, as Markdown."""
    blocks = []
    for path in sorted(RESULTS.glob("slim-*.json")):
        data = json.loads(path.read_text(encoding="utf-8"))
        machine = data["machine"]
        where = f"{machine['devices'][0]['name']}, {data['n_threads']} threads, {data['date'][:10]}"
        blocks.append(f"{data['name']}, a step of it ({where}):\n\n{step_table(data)}")
        if data["answers"]:
            kinds = len(cells_of(data["answers"])) * len({sample["draft"] for sample in data["answers"]})
            tokens = f"answers of {data['tokens']} tokens, {len(data['answers']) / kinds:.2g} of each"
            blocks.append(f"{data['name']} for {data['target']}, drafting on auto ({tokens}):\n\n{answer_table(data)}")
    return "\n\n".join(blocks)


def step_table(data: Json) -> str:
    full_s, rows = data["steps"][FULL], []
    for name, about in data["drafts"].items():
        step = data["steps"][name]
        row = [shown(data, name), f"{about['bytes'] / 1e6:.0f} MB", f"{about['share']:.0%}"]
        rows.append([*row, f"{1000 * step:.1f} ms", f"{full_s / step:.2f}x"])
    return table(["tokens kept", "file", "of a text", "step", "faster"], rows)


def answer_table(data: Json) -> str:
    """Each kind and temperature: tokens per second of plain decoding where it was measured, else with the full draft,
    and how many times that with each other."""
    samples = data["answers"]
    names = [name for name in (PLAIN, *data["drafts"]) if any(s["draft"] == name for s in samples)]
    base, cells, rows = names[0], cells_of(samples), []
    for (kind, temperature), by_draft in cells.items():
        first = statistics.median(by_draft[base])
        ratios = [f"{statistics.median(by_draft[name]) / first:.2f}x" for name in names[1:]]
        rows.append([f"{kind}, {temperature:g}", f"{first:.2f} tokens/s", *ratios])
    rows.append(["geometric mean", "", *(f"{speed_up(samples, name, base) or 0:.2f}x" for name in names[1:])])
    rows.append(["accepted", *("" if name == PLAIN else f"{accepted(samples, name) or 0:.0%}" for name in names)])
    if base == PLAIN:
        rows.append(["`fit --predict`", "", *(f"{data['predicted'][name]:.2f}x" for name in names[1:])])
    return table(["answer, temperature", *(shown(data, name) for name in names)], rows)


def shown(data: Json, name: str) -> str:
    """A draft as the tables call it."""
    n = None if name == PLAIN else data["drafts"][name]["n_ids"]
    return name if n is None else f"{n:,} {name.partition(':')[2]}".strip()


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---:"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def accepted(samples: Sequence[Json], name: str) -> float | None:
    """The accepted part of all drafted tokens."""
    own = [s for s in samples if s["draft"] == name]
    return sum(s["draft_n_accepted"] for s in own) / max(1, sum(s["draft_n"] for s in own)) if own else None


def cells_of(samples: Sequence[Json]) -> dict[tuple[str, float], dict[str, list[float]]]:
    """Tokens per second by kind and temperature, and by draft."""
    cells: dict[tuple[str, float], dict[str, list[float]]] = {}
    for s in samples:
        cell = cells.setdefault((s["kind"], s["temperature"]), {})
        cell.setdefault(s["draft"], []).append(s["tokens_per_second"])
    return cells


def speed_up(samples: Sequence[Json], name: str, base: str = FULL) -> float | None:
    """Tokens per second over those of another: the geometric mean over kinds and temperatures."""
    both = [cell for cell in cells_of(samples).values() if name in cell and base in cell]
    ratios = [statistics.median(cell[name]) / statistics.median(cell[base]) for cell in both]
    return statistics.geometric_mean(ratios) if ratios else None


def predicted(target: Path, draft: Path, samples: Sequence[Json], name: str) -> float:
    """The speed-up over plain decoding that `specgguf fit --predict` gives for the acceptance that was measured."""
    shapes = hparams.of_file(target), hparams.of_file(draft)
    costs = predict.from_bytes(*shapes, hardware.this_machine().devices[0])
    return predict.best(costs, accepted(samples, name) or 0.0)[1]


def saved(path: Path, head: Json, temperatures: Sequence[float]) -> list[Json]:
    """The samples that stay beside new ones: those of the same files and settings, at other temperatures."""
    before: Json = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if any(before.get(key) != head[key] for key in ("files", "tokens", "n_threads", "mode")):
        return []
    return [sample for sample in before["answers"] if sample["temperature"] not in temperatures]


def write_page() -> None:
    """Put the tables between the markers of the page."""
    text = PAGE.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    PAGE.write_text(f"{head}{BEGIN}\n\n{tables()}\n\n{END}{rest.split(END)[1]}", encoding="utf-8")


def measure(options: argparse.Namespace) -> None:
    """Measure and save, after every repeat."""
    path = RESULTS / f"slim-{options.name or options.draft.stem}.json"
    roles = {"draft": options.draft} | ({} if options.steps_only else {"target": options.target})
    target = "" if options.steps_only else options.target.stem
    settings = {name: getattr(options, name) for name in ("n_threads", "mode", "tokens")}
    head = results.describe(roles, commit=commit(), **settings)
    with tempfile.TemporaryDirectory() as folder:
        files, about = cuts(options.draft, Path(folder), options.sizes)
        data = {**head, "name": options.draft.stem, "target": target, "drafts": about}
        data |= {"steps": steps(files, options.n_threads), "answers": []}
        if not options.steps_only:
            chosen = {name: file for name, file in files.items() if name in (FULL, *options.answer_sizes)}
            kept = saved(path, head, options.temperature)
            for samples in answers(options.target, chosen, options):
                kept += samples
                if options.plain:
                    data["predicted"] = {name: predicted(options.target, chosen[name], kept, name) for name in chosen}
                path.write_text(json.dumps(data | {"answers": kept}, indent=1) + "\n", encoding="utf-8")
            return
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, metavar="FILE")
    parser.add_argument("--draft", type=Path, metavar="FILE")
    parser.add_argument("--name", default="", help="of the results [the draft's file]")
    parser.add_argument(
        "--sizes", nargs="+", default=SIZES, metavar="N", help="[8k 16k 32k 64k]; 32k:q4_0 with another head"
    )
    parser.add_argument("--answer-sizes", nargs="+", default=("32k", "64k"), metavar="N", help="[32k 64k]")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of an answer [%(default)s]")
    parser.add_argument("--temperature", type=float, nargs="+", default=(0.0, 0.8), metavar="T", help="[0 0.8]")
    parser.add_argument("--mode", default="auto", metavar="K", help="draft length [auto]")
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="[%(default)s]")
    parser.add_argument("--n-threads", type=int, default=physical_cores(), metavar="N", help="[%(default)s]")
    parser.add_argument("--plain", action="store_true", help="plain decoding beside them")
    parser.add_argument("--steps-only", action="store_true", help="no answers")
    parser.add_argument("--page", action="store_true", help="only write docs/models.md's tables")
    options = parser.parse_args()
    if not options.page:
        if not options.draft or not (options.target or options.steps_only):
            parser.error("--draft FILE, and --target FILE or --steps-only")
        measure(options)
    write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
