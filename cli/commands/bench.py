"""`specgguf bench`: does drafting pay, on this machine, with this pair, for this kind of text?

Runs what `specgguf.bench` schedules, shows how far it is on stderr, and hands the samples to `bench_view`.
Ctrl-C ends the measuring; what was measured is shown and saved.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from specgguf.cli import exits, open_pair
from specgguf.cli.click_options import GroupedCommand, SectionOption, option, options
from specgguf.cli.interrupts import Interrupts
from specgguf.cli.open_pair import Loaded
from specgguf.cli.options import BY_NAME
from specgguf.cli.settings import Settings, gather
from specgguf.cli.terminal import console
from specgguf.cli.terminal.progress import bar, human_seconds
from specgguf.cli.terminal.status import StatusOutput
from specgguf.cli.terminal.views import bench_view

from specgguf.config import SamplingParams, did_you_mean
from specgguf.errors import Cancelled, ConfigError

if TYPE_CHECKING:
    from specgguf.bench.runs import Prompt, Sample, Trial

REPEATS, REPEATS_MOST = 3, 6  # more than the first where these do not tell
QUICK_TOKENS, QUICK_REPEATS = 48, 1
QUICK_DRAFTS: tuple[int | str, ...] = ("off", 2, "auto")


@dataclass(frozen=True)
class Work:
    """What is to be measured.

    Attributes:
        repeats_most: the kinds that `trials` do not tell enough about are repeated until so many repeats were run.
        again: the trials of one more repeat, of some kinds; it counts from 0.
        keywords: of `bench.measure`.
    """

    trials: list[Trial]
    params: SamplingParams
    keywords: dict[str, Any]
    repeats_most: int
    again: Callable[[Collection[str], int], list[Trial]]


@click.command(cls=GroupedCommand)
@options("Models")
@click.option("--yes", "-y", is_flag=True, cls=SectionOption, section="Models", help="Download without asking.")
@click.option(
    "--prompts",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    cls=SectionOption,
    section="Measuring",
    help="Your own text: .jsonl (kind, prompt) or .txt.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="KIND",
    cls=SectionOption,
    section="Measuring",
    help="Only this kind of prompt: code, json, edit, explain, story. May be repeated.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=None,
    metavar="N",
    cls=SectionOption,
    section="Measuring",
    help="Runs of every setting [3, and up to 6 where they do not agree].",
)
@click.option(
    "--quick",
    is_flag=True,
    cls=SectionOption,
    section="Measuring",
    help="A first impression: one short run of off, 2 and auto.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    cls=SectionOption,
    section="Measuring",
    help="Keep every sample, with machine, versions and hashes, as JSON.",
)
@option(BY_NAME["draft_max"])
@options("Sampling", "Hardware")
@option(BY_NAME["color"])
def bench(
    yes: bool,
    prompts: Path | None,
    kinds: tuple[str, ...],
    repeats: int | None,
    quick: bool,
    save: Path | None,
    **flags: Any,
) -> int:
    """Measure plain decoding, every fixed draft length, and auto; say whether to draft.

    \b
      specgguf bench                       the preset's pair, five kinds of text
      specgguf bench --quick --kind code   a first impression in a minute or so
      specgguf bench -m FILE -d FILE --prompts mine.jsonl --save result.json
    """
    settings = gather(flags)
    settings.put("draft", "auto", "bench")
    params = SamplingParams(**settings.sampling())
    status = StatusOutput(console.style_for(sys.stderr, settings["color"]))
    chosen = choose_prompts(prompts, kinds)
    loaded = open_pair.open_engine(settings, status, yes=yes)
    with contextlib.closing(loaded.engine):
        if not loaded.draft_model:
            raise ConfigError("there is nothing to compare: no draft", hint="-d REF names a draft; -d ngram needs none")
        settings.put("draft_max", longest_draft(loaded, settings["draft_max"]), "bench")
        work = plan(chosen, params, settings, repeats=repeats, quick=quick)
        head = describe(loaded, settings, work, status) if save else {}
        samples: list[Sample] = []
        whole = False
        try:
            whole = measure_all(loaded, work, status, samples)
        finally:
            status.clear()
            if save and samples:
                write(save, head, samples, whole=whole)
    if not samples:
        return exits.INTERRUPTED
    bench_view.show(samples, color=settings["color"])
    if save:
        status.say(f"saved: {save}")
    return exits.OK if whole else exits.INTERRUPTED


def longest_draft(loaded: Loaded, draft_max: int) -> int:
    """The most tokens that can be drafted: of several prediction heads, each drafts one."""
    from specgguf.presets import HEADS

    from specgguf.models.nextn import prediction_heads

    if loaded.draft_model != HEADS or loaded.pair is None:
        return draft_max
    limit = prediction_heads.draft_limit(prediction_heads.count_in(loaded.pair.model))
    return min(draft_max, limit or draft_max)


def choose_prompts(path: Path | None, kinds: Sequence[str]) -> list[Prompt]:
    """The prompts of the wanted kinds. Raises ConfigError for a kind that none has."""
    from specgguf.bench.runs import load_prompts

    found = load_prompts(path)
    known = list(dict.fromkeys(p.kind for p in found))
    for kind in kinds:
        if kind not in known:
            raise ConfigError(
                f"no prompt is of the kind '{kind}'", hint=did_you_mean(kind, known) or f"kinds: {', '.join(known)}"
            )
    return [p for p in found if not kinds or p.kind in kinds]


def plan(
    prompts: Sequence[Prompt], params: SamplingParams, settings: Settings, *, repeats: int | None, quick: bool
) -> Work:
    """All settings up to draft_max, or the quick selection."""
    from specgguf.bench import runs as library

    draft_max: int = settings["draft_max"]
    drafts: Sequence[int | str] = QUICK_DRAFTS if quick else ["off", *range(1, draft_max + 1), "auto"]
    most = repeats or (QUICK_REPEATS if quick else REPEATS_MOST)
    repeats = repeats or (QUICK_REPEATS if quick else REPEATS)
    tokens = QUICK_TOKENS if quick else library.TOKENS_DEFAULT
    seed = 1 if params.seed is None else params.seed
    params = replace(params, max_tokens=params.max_tokens or tokens)
    keywords = {"draft_max": draft_max, "enable_thinking": open_pair.thinking(settings)}

    def again(kinds: Collection[str], repeat: int) -> list[Trial]:
        return library.schedule([p for p in prompts if p.kind in kinds], drafts, 1, seed=seed, first=repeat)

    return Work(library.schedule(prompts, drafts, repeats, seed=seed), params, keywords, most, again)


def measure_all(loaded: Loaded, work: Work, status: StatusOutput, samples: list[Sample]) -> bool:
    """Run all trials, and those again whose kind is not clear yet, showing how far it is; whether it came to the end.
    What they give goes into `samples`."""
    from specgguf.bench import runs as library

    runner: Any = loaded.engine
    with Interrupts(runner.cancel) as interrupts:
        try:
            status.wait("warming up …")
            for trial in (work.trials[0], replace(work.trials[0], draft="auto")):
                sample = library.warm_up(runner, trial, work.params, **work.keywords)
                if interrupts.seen:
                    return False
                if trial.draft == "off":
                    _announce(sample, work, status)
            trials = work.trials
            while trials:
                started = time.monotonic()
                for n, trial in enumerate(trials):
                    if interrupts.seen:
                        return False
                    status.wait(progress(n, trials, time.monotonic() - started))
                    samples.append(library.measure(runner, trial, work.params, **work.keywords))
                    if interrupts.seen:
                        return False
                trials = _more(work, samples, status)
        except Cancelled:
            return False
    return True


def _more(work: Work, samples: Sequence[Sample], status: StatusOutput) -> list[Trial]:
    """One more repeat of the kinds about which the samples do not agree; none where that was done often enough."""
    from specgguf.bench import recommend

    n_repeats = 1 + max(sample.repeat for sample in samples)
    kinds = [report.kind for report in recommend.report(samples) if not report.recommendation.sure]
    if not kinds or n_repeats >= work.repeats_most:
        return []
    status.say(f"not clear yet: {', '.join(kinds)}; once more (repeat {n_repeats + 1} of at most {work.repeats_most})")
    return work.again(kinds, n_repeats)


def _announce(plain: Sample, work: Work, status: StatusOutput) -> None:
    """What is going to happen, and about how long it takes at plain decoding's speed."""
    tokens = work.params.max_tokens or 0
    each = plain.prompt_s + tokens * plain.predicted_s / max(plain.n_timed, 1)
    kinds = ", ".join(dict.fromkeys(t.kind for t in work.trials))
    drafts = ", ".join(dict.fromkeys(str(t.draft) for t in work.trials))
    repeats = 1 + max(t.repeat for t in work.trials)
    status.say(f"prompts: {kinds}; draft: {drafts}; {repeats} × {tokens} tokens")
    status.say(
        f"{len(work.trials)} runs, about {human_seconds(each * len(work.trials))}; Ctrl-C keeps what is measured"
    )


def progress(n: int, trials: Sequence[Trial], seconds: float) -> str:
    """The line while trial `n` runs."""
    share, trial = n / len(trials), trials[n]
    left = f"  {human_seconds(seconds / n * (len(trials) - n))} left" if n else ""
    return f"{bar(share)} {share:4.0%}{left}  {trial.kind}, draft {trial.draft}, repeat {trial.repeat + 1}"


def describe(loaded: Loaded, settings: Settings, work: Work, status: StatusOutput) -> dict[str, Any]:
    """The head of the saved result: its hashes are read before anything is timed."""
    from specgguf.bench import results

    files: dict[str, Path] = {}
    pair = loaded.pair
    if pair is not None:
        files["model"] = pair.model
        if isinstance(pair.draft_model, Path):
            files["draft_model"] = pair.draft_model
    status.wait("reading the files' hashes …")
    shown = {name: settings[name] for name in BY_NAME if BY_NAME[name].section in ("Hardware", "Drafting")}
    sampling = {**{s: settings[s] for s in settings.sampling()}, "max_tokens": work.params.max_tokens}
    return results.describe(files, draft_model=loaded.draft_model, settings={**shown, **sampling})


def write(path: Path, head: dict[str, Any], samples: Sequence[Sample], *, whole: bool) -> None:
    """Save what was measured, with what it says."""
    from specgguf.bench import recommend, results
    from specgguf.bench.break_even import break_even

    said = {
        "summary": [asdict(report) for report in recommend.report(samples)],
        "break_even": [asdict(one) for one in break_even(samples)],
    }
    results.save(path, {**head, "complete": whole, "memory": results.memory(), **said}, samples)
