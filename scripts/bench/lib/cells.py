"""What the benchmark scripts share: cells that are measured one at a time and can be resumed.

A cell is one kind of prompt at one temperature; in it every runner of a prompt (a draft length, another
program) is measured back to back within each repeat. A cell's file is written after every repeat, so stopping
loses one repeat at most and the same command goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from specgguf.cli.terminal.progress import human_seconds

from specgguf import SamplingParams
from specgguf.bench import results
from specgguf.bench.runs import TOKENS_DEFAULT, WARM_UP_TOKENS, Prompt, Sample, Trial, load_prompts, schedule
from specgguf.loading import physical_cores

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "docs" / "results"
REPEATS = {0.0: 4, 0.8: 6}  # by temperature; above 0 each repeat has another seed
QUICK_TOKENS, QUICK_REPEATS = 12, 2

Runner = Callable[[Trial, SamplingParams], Sample]


def say(*words: object) -> None:
    """A line on stdout, at once."""
    print(*words, flush=True)


def cache_folder() -> Path:
    """Where copies of models, other programs and quick results live."""
    import platformdirs

    return Path(platformdirs.user_cache_dir("specgguf")) / "bench"


@dataclass(frozen=True)
class Cell:
    """What is measured together: a regime (a pair), a kind of prompt, a temperature."""

    regime: str
    kind: str
    temperature: float

    @property
    def name(self) -> str:
        return f"{self.regime}-{self.kind}-t{self.temperature:g}"

    def wanted(self, only: Sequence[str]) -> bool:
        """Whether one of the filters ("f16", "code", "f16/code") names it; no filter names all."""
        parts = {self.regime, self.kind, f"t{self.temperature:g}"}
        return not only or any(set(words.split("/")) <= parts for words in only)


@dataclass
class Plan:
    """Settings of a whole run, from the command line.

    Attributes:
        folder: where the cells' files lie.
        repeats: how many, by temperature; given: the command line's number, or None.
    """

    folder: Path
    prompts: list[Prompt]
    only: list[str]
    temperatures: list[float]
    tokens: int = TOKENS_DEFAULT
    n_ctx: int = 2048
    n_threads: int = field(default_factory=physical_cores)
    given_repeats: int | None = None
    again: bool = False
    quick: bool = False

    def repeats(self, temperature: float) -> int:
        """How many repeats a cell has."""
        return self.given_repeats or (QUICK_REPEATS if self.quick else REPEATS.get(temperature, 4))

    def cells(self, regime: str) -> list[Cell]:
        """The wanted cells of a regime."""
        kinds = dict.fromkeys(p.kind for p in self.prompts)
        cells = [Cell(regime, kind, t) for t in self.temperatures for kind in kinds]
        return [cell for cell in cells if cell.wanted(self.only)]

    def params(self, cell: Cell) -> SamplingParams:
        """llama-cpp-python's sampling defaults at the cell's temperature."""
        return SamplingParams(temperature=cell.temperature, max_tokens=self.tokens)

    def path(self, cell: Cell) -> Path:
        """Where a cell's samples are kept."""
        return self.folder / f"{cell.name}.json"

    @property
    def settings(self) -> dict[str, Any]:
        """What two runs must share for their repeats to belong together."""
        texts = "\n".join(f"{p.kind}\t{p.prompt}" for p in self.prompts)
        digest = hashlib.sha256(texts.encode()).hexdigest()[:16]
        return {"tokens": self.tokens, "n_ctx": self.n_ctx, "n_threads": self.n_threads, "prompts": digest}


def arguments(description: str, folder: str) -> argparse.ArgumentParser:
    """The options that all scripts share."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, metavar="FILE", help="a Q4_K_M target [the demo preset's]")
    parser.add_argument("--draft", type=Path, metavar="FILE", help="a draft of its vocabulary [the demo preset's]")
    parser.add_argument("--only", action="append", default=[], metavar="A/B", help="f16, code, f16/code, t0, …; again")
    parser.add_argument("--temperature", type=float, action="append", metavar="T", help="[0 and 0.8]")
    parser.add_argument("--repeats", type=int, metavar="N", help="a cell that has fewer goes on [4 at 0, 6 at 0.8]")
    parser.add_argument("--tokens", type=int, default=TOKENS_DEFAULT, metavar="N", help="[%(default)s]")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="other prompts: .jsonl with kind and prompt")
    parser.add_argument("--n-threads", type=int, default=physical_cores(), metavar="N", help="[%(default)s]")
    parser.add_argument("--out", type=Path, default=RESULTS / folder, metavar="DIR", help=f"[docs/results/{folder}]")
    parser.add_argument("--again", action="store_true", help="measure again what is there")
    parser.add_argument("--quick", action="store_true", help="a trial of the script itself: results go to the cache")
    parser.add_argument("--table", action="store_true", help="only print what the saved results say")
    return parser


def plan_of(args: argparse.Namespace, folder: str) -> Plan:
    """The command line as a plan."""
    return Plan(
        folder=cache_folder() / "quick" / folder if args.quick else args.out,
        prompts=load_prompts(args.prompts),
        only=args.only,
        temperatures=args.temperature or [0.0, 0.8],
        tokens=QUICK_TOKENS if args.quick else args.tokens,
        n_threads=args.n_threads,
        given_repeats=args.repeats,
        again=args.again,
        quick=args.quick,
    )


def commit() -> str:
    """The last commit that changed the library, and whether it was changed since; "" outside a repository."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(ROOT), *words, "--", "specgguf"], capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        return git("log", "-1", "--format=%h") + ("+" if git("status", "--porcelain") else "")
    except OSError:
        return ""


def held(plan: Plan, cell: Cell, head: Mapping[str, Any], runners: Iterable[str]) -> tuple[list[Sample], list[int]]:
    """The samples that a cell's file already has, and the repeats that are missing.

    A file of other models or settings is refused; repeats of another version of the library are never added to.
    """
    path, wanted = plan.path(cell), list(range(plan.repeats(cell.temperature)))
    if plan.again or not path.exists():
        return [], wanted
    before, samples = results.load(path)
    for key in ("files", "settings"):
        if before.get(key) != head[key] and plan.quick:
            return [], wanted
        if before.get(key) != head[key]:
            sys.exit(f"{path} was measured with other {key}; --again replaces it, --out DIR keeps both")
    names = {f"{s.engine} {s.draft}" for s in samples}
    whole = [r for r in wanted if {f"{s.engine} {s.draft}" for s in samples if s.repeat == r} == names]
    missing = [r for r in wanted if r not in whole]
    if names != set(runners) or (missing and before.get("commit") != head["commit"]):
        if not missing:
            return samples, []  # whole, if with others: left alone
        say(f"{cell.name}: begun at {before.get('commit')} or with other settings: starting over")
        return [], wanted
    return [s for s in samples if s.repeat in whole], missing


def warm(runners: Mapping[str, Runner], plan: Plan, cell: Cell) -> dict[str, float]:
    """Let every runner begin, which reads the weights and builds the graphs; seconds that a sample will take."""
    prompt = next(p for p in plan.prompts if p.kind == cell.kind)
    params = replace(plan.params(cell), max_tokens=min(WARM_UP_TOKENS, plan.tokens))
    seconds = {}
    for name, runner in runners.items():
        sample = runner(Trial(cell.kind, 0, prompt.prompt, 0, "off", 1), params)
        seconds[name] = sample.prompt_s + plan.tokens * sample.predicted_s / max(sample.n_timed, 1)
    return seconds


def measure(
    plan: Plan, cell: Cell, runners: Mapping[str, Runner], head: Mapping[str, Any], tell: Callable[[], str]
) -> Iterator[Sample]:
    """Measure what a cell lacks; its file is written after every repeat. `tell` ends each line."""
    samples, missing = held(plan, cell, head, runners)
    prompts = [p for p in plan.prompts if p.kind == cell.kind]
    trials = schedule(prompts, list(runners), plan.repeats(cell.temperature))
    params = plan.params(cell)
    for repeat in missing:
        fresh: dict[str, Sample] = {}
        for trial in trials:
            if trial.repeat == repeat:
                fresh[str(trial.draft)] = runners[str(trial.draft)](trial, params)
                yield fresh[str(trial.draft)]
        samples += [fresh[name] for name in runners]
        results.save(plan.path(cell), {**head, **_cell_head(cell)}, samples)
        speeds = ", ".join(f"{name} {fresh[name].tokens_per_second:.1f}" for name in runners)
        say(f"{cell.name} {repeat + 1}/{plan.repeats(cell.temperature)}: {speeds}{tell()}")


def _cell_head(cell: Cell) -> dict[str, Any]:
    return {"regime": cell.regime, "kind": cell.kind, "temperature": cell.temperature}


def run(
    plan: Plan, cells: Sequence[Cell], runners: Mapping[str, Runner], files: Mapping[str, Path], **more: Any
) -> None:
    """Measure a regime's cells: a line with an estimate, then a line per repeat. `more` is kept in the results."""
    if not cells:
        return
    head = results.describe(files, commit=commit(), settings=plan.settings, **more)
    todo = {cell: len(held(plan, cell, head, runners)[1]) for cell in cells}
    old = [c.name for c in cells if not todo[c] and results.load(plan.path(c))[0].get("commit") != head["commit"]]
    if old:
        say(f"kept from another commit (--again measures them again): {', '.join(old)}")
    cells = [cell for cell in cells if todo[cell]]
    if not cells:
        say("nothing to measure: all of it is there (--again measures it again)")
        return
    seconds = warm(runners, plan, cells[0])
    left = sum(todo.values()) * len(runners)
    each = sum(seconds.values()) / len(seconds)
    say(f"{len(cells)} cells, {left} samples, about {human_seconds(each * left)}; stopping loses one repeat at most")
    started, done = time.monotonic(), 0

    def tell() -> str:
        seconds_left = (time.monotonic() - started) / max(done, 1) * (left - done)
        return f" tok/s; about {human_seconds(seconds_left)} left" if seconds_left >= 1 else " tok/s"

    for cell in cells:
        for _ in measure(plan, cell, runners, head, tell):
            done += 1


def load_all(folder: Path) -> dict[Cell, tuple[dict[str, Any], list[Sample]]]:
    """All saved cells of a folder."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        head, samples = results.load(path)
        found[Cell(head["regime"], head["kind"], head["temperature"])] = (head, samples)
    return found
