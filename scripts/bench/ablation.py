"""What each part of the controller is worth: it is taken away, one at a time, and simulated.

  scripts/bench/run ablation                  everything (a quarter of an hour)
  scripts/bench/run ablation --thin 3 --seeds 2 padding decay     a third of the cells, two of the parts
  scripts/bench/run ablation --page           only write the table of docs/results/ablation.json into docs/controller.md

The cells are those of tests/support/worlds.py. A part is taken away by replacing a constant or a method here; the
product has no switch for it. Saved is, for each world, the worst cell, the mean of the five worst, and the mean of
all, as the controller's speed over that of the best fixed draft length (on the busy machine also of plain decoding).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from specgguf.control import acceptance, constants, controller, costs
from specgguf.control.in_flight import InFlight
from specgguf.decode.records import PROBE_MAX
from specgguf.decode.sampling import Distribution

ROOT = Path(__file__).resolve().parents[2]
RESULTS, PAGE = ROOT / "docs" / "results" / "ablation.json", ROOT / "docs" / "controller.md"
BEGIN, END = "<!-- scripts/bench/run ablation: begin -->", "<!-- scripts/bench/run ablation: end -->"
WORST = 5  # cells whose mean stands beside the single worst

Json = dict[str, Any]
Adaptive = controller.Adaptive
Replacement = tuple[object, str, object]


def _keep_all(self: InFlight, i: int, distribution: Distribution | None) -> bool:
    if distribution is not None:
        self.confidences.append(distribution.confidence)
    return True


def _keep_best_length(self: InFlight, i: int, distribution: Distribution | None) -> bool:
    if distribution is not None:
        self.confidences.append(distribution.confidence)
    n = max(range(1, self.n_max + 1), key=lambda k: _speed(self, k))
    return i < n


def _speed(flight: InFlight, k: int) -> float:
    expected = 1.0 + sum(flight.acceptance.survival(k))
    return expected / (flight.costs.host_s + k * flight.costs.draft_s + flight.costs.verify_s(k + 1))


def _always_ngrams(self: controller.Adaptive, candidate: Any, k_max: int) -> tuple[int, float]:
    return (0, 0.0) if candidate is None else (min(len(candidate.tokens), k_max), float("inf"))


def _one_match(self: acceptance.Acceptance, match: int, n: int) -> list[float]:
    rate = sum(self.by_match[size].mean for size in (2, 3, 4)) / 3
    return [rate**k for k in range(1, n + 1)]


def _doubling_gap(self: controller.Adaptive) -> float:
    if self._n_plain == 0:
        self.__dict__["gap"] = 2 * self.__dict__.get("gap", PROBE_MAX)
    return float(self.__dict__.get("gap", 2 * PROBE_MAX))


PARTS: dict[str, list[Replacement]] = {
    "stopping inside a round (drafts draft_max)": [(InFlight, "keep_drafting", _keep_all)],
    "stopping inside a round (drafts argmax K)": [(InFlight, "keep_drafting", _keep_best_length)],
    "the draft's confidence": [(acceptance.Acceptance, "given", lambda self, confidence: self.rate.mean)],
    "the discount of old counts": [(acceptance, "DECAY", 0.995)],
    "going back to the prior at a new turn": [(acceptance, "NEW_TEXT", 0.0)],
    "n-grams": [(Adaptive, "_ngram_length", lambda self, candidate, k_max: (0, 0.0))],
    "their competing with the draft model": [(Adaptive, "_ngram_length", _always_ngrams)],
    "their acceptance by length of match": [(acceptance.Acceptance, "ngram_survival", _one_match)],
    "learning from candidates not taken": [(acceptance.Acceptance, "observe_candidate", lambda *_: None)],
    "the machine's factor": [(costs, "MACHINE_DRIFT", 0.0)],
    "a variance of what was measured at load": [(costs, "LOAD_NOISE", constants.COST_NOISE)],
    "a floor of a cost's variance": [(costs, "COST_NOISE", 1e-9)],
    "clipping of samples": [(costs, "CLIP", 9.0)],
    "padding": [(costs.Costs, "padding", lambda self, n: 0), (costs.Costs, "verify_s", costs.Costs.unpadded_s)],
    "counting the draft's prefill": [(Adaptive, "_prefill_s", lambda self, n_draft_max: 0.0)],
    "probes": [(controller, "PROBE_BUDGET", 1e-9)],
    "the budget of probes (every 32 tokens)": [(controller, "PROBE_BUDGET", 1e9)],
    "the budget of probes (gap doubles)": [(Adaptive, "_probe_gap", _doubling_gap)],
}


@contextmanager
def without(replacements: Sequence[Replacement]) -> Iterator[None]:
    """The controller without a part."""
    patches = [patch.object(*replacement) for replacement in replacements]
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


def measure(cells: Sequence[Any], best: Mapping[str, float], seeds: int) -> dict[str, list[float]]:
    """By world: worst cell, mean of the five worst, mean."""
    worlds: dict[str, list[float]] = {}
    for cell in cells:
        worlds.setdefault(cell.world, []).append(cell.adaptive(Adaptive, seeds) / best[cell.name])
    found = {}
    for world, ratios in worlds.items():
        worst = sorted(ratios)[:WORST]
        found[world] = [round(x, 4) for x in (worst[0], sum(worst) / len(worst), sum(ratios) / len(ratios))]
    return found


def table(saved: Json) -> str:
    """The saved figures as a Markdown table."""
    worlds = list(saved["controller"])
    head = ["", *(f"{world}: worst, five worst, mean" for world in worlds)]
    rows = [["**the controller**", *_figures(saved["controller"])]]
    rows += [[f"without {name}", *_figures(row)] for name, row in saved["without"].items()]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _figures(row: Mapping[str, Sequence[float]]) -> list[str]:
    return [" · ".join(f"{x:.3f}" for x in figures) for figures in row.values()]


def write_page(saved: Json) -> None:
    """Put the table between its markers in docs/controller.md."""
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table(saved)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> int:
    """Measure, save, and renew the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="words of the parts' names [all]")
    parser.add_argument("--thin", type=int, default=1, metavar="N", help="every Nth cell [1]")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each cell [3]")
    parser.add_argument("--page", action="store_true", help="measure nothing")
    args = parser.parse_args()
    saved: Json = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not args.page:
        saved |= {"seeds": args.seeds, "every_nth_cell": args.thin, "controller": {}, "without": {}}
        for name, figures in _measure_all(args.parts, args.thin, args.seeds):
            if name:
                saved["without"][name] = figures
            else:
                saved["controller"] = figures
            print(f"{name or 'the controller':45}", *(f"{w} {x}" for w, x in figures.items()), flush=True)
        if not args.parts:
            RESULTS.write_text(json.dumps(saved, indent=1) + "\n")
    if not args.parts:
        write_page(saved)
    return 0


def _measure_all(words: Sequence[str], thin: int, seeds: int) -> Iterator[tuple[str, dict[str, list[float]]]]:
    sys.path.insert(0, str(ROOT / "tests"))
    from support import worlds

    worlds_made: list[Callable[[], list[Any]]] = [worlds.paper, worlds.recordings, worlds.busy]
    cells = [cell for made in worlds_made for cell in made()[::thin]]
    best = {cell.name: cell.best(seeds) for cell in cells}
    yield "", measure(cells, best, seeds)
    for name, replacements in PARTS.items():
        if not words or any(word in name for word in words):
            with without(replacements):
                yield name, measure(cells, best, seeds)


if __name__ == "__main__":
    sys.exit(main())
