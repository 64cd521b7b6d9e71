"""How much of a target's text would each of several drafts have had accepted?

  scripts/bench/run acceptance -m T.gguf -d FULL.gguf --slim 8k 16k 32k 64k -d OTHER.gguf
  scripts/bench/run acceptance --page           only write the table into docs/models.md

The target writes an answer by itself; each draft then reads it and is asked for its distribution at every token. The
chance that token verification accepts is Σ min(p, q): no luck of coins, no clock. Slimmed drafts are cut from the first
of the drafts. Results go to docs/results/acceptance.json or acceptance-NAME.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lib.cells import RESULTS, ROOT, commit, say
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import results
from specgguf.bench.runs import load_prompts
from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.records import always
from specgguf.decode.sampling import Distribution, Logits, Rng, Transform, draw
from specgguf.decode.sequence import run_alone
from specgguf.decode.vocab_map import MappedTransform
from specgguf.fit import predict
from specgguf.fit.slimming import cutting
from specgguf.loading import physical_cores
from specgguf.native.context import Model
from specgguf.native.mapped.pair import vocab_map
from specgguf.native.mapped.slimmed import open_draft
from specgguf.native.sequence import Sequence as Cached
from specgguf.native.weights import Weights

PAGE = ROOT / "docs" / "models.md"
BEGIN, END = "<!-- scripts/bench/run acceptance: begin -->", "<!-- scripts/bench/run acceptance: end -->"
BEGIN_EVEN, END_EVEN = "<!-- scripts/bench/run acceptance: break-even -->", "<!-- break-even: end -->"
AT_ONCE = 12  # tokens that a draft is asked about in one forward pass
N_CTX = 1024
# Texts of other scripts, and words that are rare in any table of counts.
MORE = {
    "Chinese": "用中文写一段关于大海的短文。",
    "Arabic": "اكتب فقرة قصيرة عن البحر.",
    "emoji": "Describe a birthday party in a few lines, with many emoji.",
    "rare names": "Write a Python class QuokkaZygoteXylophone with methods wombatulate and defenestrate_ocelot.",
}

Json = dict[str, Any]


class Asked:
    """A draft that can be asked about a target's text."""

    def __init__(self, target: Weights, path: Path, threads: Json) -> None:
        self.weights = open_draft(str(path), threads)
        self.map, self.n_target = vocab_map(target, self.weights), target.n_vocab
        self.model = Model(self.weights, n_ctx=N_CTX, n_outputs_max=17)
        self.drafter = ModelDrafter(self.model, eog=target.eog, vocab_map=self.map)

    def overlaps(self, text: Sequence[int], probs: Sequence[Distribution], params: SamplingParams) -> list[float]:
        """Σ min(p, q) of the last len(probs) tokens of `text`."""
        n_vocab = min(self.weights.n_vocab, self.n_target)
        transform = Transform(params, n_vocab=n_vocab) if self.map is None else MappedTransform(params, self.map)
        first, found = len(text) - len(probs), list[float]()

        def distribution(logits: Logits, prefix: Sequence[int]) -> Distribution:
            return transform.distribution(logits, prefix[first:])

        for start in range(first, len(text), AT_ONCE):
            end = min(start + AT_ONCE, len(text))
            run_alone(self.drafter.propose(text[: start - 1], 1, distribution, Rng(0), always))  # reads all before
            asked = self.drafter.score(text[:end], probs[start - first : end - first], distribution)
            scores = run_alone(asked)
            found += [0.0] * (end - start - len(scores)) + [overlap for _, overlap in scores]
        return found


def answer(
    target: Cached, prompt: Sequence[int], params: SamplingParams, n: int
) -> tuple[list[int], list[Distribution]]:
    """The target's own answer, with the distribution of each token."""
    transform, rng = Transform(params, n_vocab=target.n_vocab, eog=target.eog), Rng(1)
    text, probs = list(prompt), list[Distribution]()
    target.clear()
    rows = target.extend(text, 1)
    while len(probs) < n:
        probs.append(transform.distribution(rows[0], text[len(prompt) :]))
        text.append(draw(probs[-1], rng))
        if text[-1] in target.eog:
            break
        rows = target.extend(text[-1:], 1)
    return text, probs


def measure(options: argparse.Namespace) -> None:
    """Mean overlaps by draft, kind and temperature; kept after every kind."""
    threads = {"n_threads": options.n_threads, "n_threads_batch": options.n_threads}
    kinds = {prompt.kind: prompt.prompt for prompt in reversed(load_prompts(None))} | MORE
    kinds = {kind: prompt for kind, prompt in kinds.items() if not options.only or kind in options.only}
    with tempfile.TemporaryDirectory() as folder:
        llm = SpeculativeLlama(str(options.model), n_ctx=N_CTX, draft="off", **threads)
        target, weights = llm._engine.target, llm._engine.target.weights
        paths = {path.stem: path for path in options.draft}
        for size in options.slim:
            number, _, head = size.partition(":")
            out = Path(folder) / f"{number}-{head}.gguf"
            cut = cutting.cut(options.draft[0], out, cutting.parse_size(number), head=head or None)
            paths[f"{options.draft[0].stem}, {cut.n_ids:,} tokens{head and f' in {head}'}"] = cut.path
        drafts = {name: Asked(weights, path, threads) for name, path in paths.items()}
        found: Json = {name: {} for name in drafts}
        shares = {name: draft.map.share if draft.map is not None else 1.0 for name, draft in drafts.items()}
        roles = {"target": options.model} | {f"draft {i}": path for i, path in enumerate(options.draft)}
        head = results.describe(roles, commit=commit(), tokens=options.tokens, target=options.model.stem)
        for kind, prompt in kinds.items():
            for temperature in (0.0, 0.8):
                params = SamplingParams(temperature=temperature)
                ids = llm.render([{"role": "user", "content": prompt}])
                text, probs = answer(target, ids, params, options.tokens)
                for name, draft in drafts.items():
                    found[name][f"{kind} {temperature:g}"] = statistics.mean(draft.overlaps(text, probs, params))
                say(kind, temperature, *(f"{found[name][f'{kind} {temperature:g}']:.3f}" for name in drafts))
            found = added(file_of(options.name), head, shares, found)


def file_of(name: str) -> Path:
    """Where the results of this name lie; "" for the main ones."""
    return RESULTS / f"acceptance{name and '-'}{name}.json"


def added(file: Path, head: Json, shares: Json, found: Json) -> Json:
    """Write what was found to what is saved of the same files and lengths, and give both."""
    before: Json = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if all(before.get(key) == head[key] for key in ("files", "tokens")) and before["shares"] == shares:
        found = {name: before["acceptance"][name] | cells for name, cells in found.items()}
        head = {**head, "commit": ", ".join(dict.fromkeys([*before["commit"].split(", "), head["commit"]]))}
    data = {**head, "shares": shares, "acceptance": found}
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return found


def write_between(begin: str, end: str, text: str) -> None:
    head, rest = PAGE.read_text(encoding="utf-8").split(begin)
    PAGE.write_text(f"{head}{begin}\n\n{text}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


def table(data: Json) -> str:
    """The saved result as Markdown."""
    kinds = [key.rpartition(" ")[0] for key in next(iter(data["acceptance"].values())) if key.endswith(" 0")]
    head = ["draft", *kinds, "English, of the first's"]
    rows = [head, ["---", *["---:"] * (len(kinds) + 1)]]
    means = {name: english(cells) for name, cells in data["acceptance"].items()}
    first = next(iter(means.values()))
    for name, cells in data["acceptance"].items():
        row = [" / ".join(f"{100 * cells[f'{kind} {t}']:.0f}" for t in ("0", "0.8")) for kind in kinds]
        rows.append([name, *row, f"{means[name] / first:.1%}"])
    lines = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    text = f"one answer of {data['tokens']} tokens each"
    return (
        f"Accepted of 100 tokens of {data['target']}, at temperature 0 / 0.8 ({text}; {data['date'][:10]}):\n\n{lines}"
    )


# How much each further token of a target's pass adds, as `specgguf.fit.predict` assumes it by device and weights.
SLOPES = {"a graphics card": 0.03, "a CPU, F16 weights": 0.12, "a CPU, Q8_0 weights": 0.35, "a CPU, Q4 weights": 0.8}
WANTED = (1.0, 1.2, 1.5, 2.0)
RATIO_MAX = 1000.0


def english(cells: Json) -> float:
    """The mean over the kinds of the benchmark's own prompts."""
    return float(statistics.mean(rate for cell, rate in cells.items() if cell.rpartition(" ")[0] not in MORE))


def break_even(data: Json) -> str:
    """How many steps of a draft a pass of the target must take for a gain, as Markdown: of the first draft and of those
    of another vocabulary."""
    head = ["draft", "accepted", "target on", *("pays from" if gain == 1.0 else f"{gain:g}x from" for gain in WANTED)]
    rows = [head, ["---", "---:", "---", *["---:"] * len(WANTED)]]
    first = next(iter(data["acceptance"]))
    for name in (name for name, share in data["shares"].items() if share < 1.0 or name == first):
        cells = data["acceptance"][name]
        rate = english(cells)
        for device, slope in SLOPES.items():
            ratios = [least_ratio(rate, slope, gain) for gain in WANTED]
            shown = ["never" if ratio is None else f"{ratio:.1f} steps" for ratio in ratios]
            rows.append([name, f"{rate:.0%}", device, *shown])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def least_ratio(acceptance: float, slope: float, gain: float) -> float | None:
    """The least ratio of a target's pass to a draft step at which drafting is `gain` times as fast as plain decoding;
    None where none is enough."""

    def reached(ratio: float) -> bool:
        costs = predict.PairCosts(1.0 / ratio, lambda n: 1.0 + slope * (n - 1))
        return max(predict.speed_up(costs, acceptance, n) for n in predict.LENGTHS) > gain

    low, high = 0.1, RATIO_MAX
    if not reached(high):
        return None
    while high / low > 1.001:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, metavar="FILE")
    parser.add_argument("-d", "--draft", type=Path, action="append", default=[], metavar="FILE")
    parser.add_argument(
        "--slim", nargs="*", default=[], metavar="N", help="sizes to cut the first draft to, such as 32k or 32k:q4_0"
    )
    parser.add_argument("--name", default="", help="of a result of its own")
    parser.add_argument("--only", nargs="*", default=[], metavar="KIND", help="these alone, beside what is saved")
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="of each answer [%(default)s]")
    parser.add_argument("--n-threads", type=int, default=physical_cores(), metavar="N", help="[%(default)s]")
    parser.add_argument("--page", action="store_true", help="only write docs/models.md's table")
    options = parser.parse_args()
    if not options.page:
        if options.model is None or not options.draft:
            parser.error("-m FILE and -d FILE")
        measure(options)
    files = [file_of(""), *sorted(RESULTS.glob("acceptance-*.json"))]
    saved = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    write_between(BEGIN, END, "\n\n".join(map(table, saved)))
    write_between(BEGIN_EVEN, END_EVEN, break_even(saved[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
