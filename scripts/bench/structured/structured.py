"""Speed of structured output: five schemas, plain and auto, with and without forced tokens.

scripts/bench/run structured --model T.gguf --draft-model D.gguf [--repeats 3] [--save FILE]. The ways are interleaved,
so that what slows the machine slows all of them, and compared schema by schema; with --threads 1 it is the thread's
own processor time that counts, and what other programs take is not seen. `free` is plain decoding without a
grammar: what a grammar costs is set against it. `compact` leaves one spelling of blank space, so
that more is forced. What FILE holds of the same models is kept, and the new samples are put beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from bench.structured.schema_answers import schemas
from specgguf import SpeculativeLlama, api
from specgguf.grammar.cursor import GrammarCursor, compile_grammar
from specgguf.grammar.sources import json_grammar

N_SCHEMAS, MAX_TOKENS, WARMUP_TOKENS = 5, 96, 8
NOTHING_FORCED = ", nothing forced"
WAYS = ("free", "plain", "auto", "auto" + NOTHING_FORCED, "compact", "compact" + NOTHING_FORCED)
PAIRS = {  # named: how many times as fast as
    "auto_against_plain": ("auto", "plain"),
    "forced_against_not": ("auto", "auto" + NOTHING_FORCED),
    "forced_against_not_compact": ("compact", "compact" + NOTHING_FORCED),
    "compact_against_plain": ("compact", "plain"),
}

Sample = dict[str, Any]  # "schema", and by way "ms" and "grammar_ms": milliseconds a token


def main() -> int:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--n", type=int, default=N_SCHEMAS, help="schemas")
    parser.add_argument("--tokens", type=int, default=MAX_TOKENS, help="of an answer, at most")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    files = {
        "model": Path(options.model).name,
        "draft_model": Path(options.draft_model).name,
        "n_threads": options.threads,
    }
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    threads = {} if options.threads is None else {"n_threads": options.threads, "n_threads_batch": options.threads}
    samples = read(options.save, files)
    every = list(schemas())
    cases = list(enumerate(every))[:: len(every) // N_SCHEMAS][: options.n]
    cases = [*cases[len(samples) % len(cases) :], *cases[: len(samples) % len(cases)]]  # where the last run ended
    with SpeculativeLlama(options.model, options.draft_model, n_ctx=1024, **threads) as llm:
        for way in WAYS:
            answer(llm, cases[0][1], way, WARMUP_TOKENS, clock)
        for _ in range(options.repeats):
            for i, case in cases:
                taken = {way: answer(llm, case, way, options.tokens, clock) for way in WAYS}
                samples.append(
                    {"schema": i} | {key: {w: t[key] for w, t in taken.items()} for key in ("ms", "grammar_ms")}
                )
                if options.save is not None:
                    lines = ",\n".join("  " + json.dumps(sample) for sample in samples)
                    head = json.dumps(files | summary(samples), indent=1).removesuffix("\n}")
                    options.save.write_text(f'{head},\n "samples": [\n{lines}\n ]\n}}\n')
    print(json.dumps(files | summary(samples), indent=1))
    return 0


def read(path: Path | None, files: dict[str, Any]) -> list[Sample]:
    """The samples that `path` holds; none where it is not there, or of other models."""
    if path is None or not path.exists():
        return []
    saved = json.loads(path.read_text())
    samples: list[Sample] = saved["samples"] if files.items() <= saved.items() else []
    return samples


def summary(samples: list[Sample]) -> dict[str, Any]:
    """Medians of the samples, and of their ratios."""

    def median(key: str, way: str) -> float:
        return float(statistics.median(sample[key][way] for sample in samples))

    ratios = {
        name: round(statistics.median(sample["ms"][slow] / sample["ms"][fast] for sample in samples), 3)
        for name, (fast, slow) in PAIRS.items()
    }
    grammar_ms = median("grammar_ms", "plain")
    return {
        "n_samples": len(samples),
        "ms_per_token": {way: round(median("ms", way), 2) for way in WAYS},
        **ratios,
        "grammar_ms_per_token": round(grammar_ms, 3),
        "grammar_overhead": round(grammar_ms / median("ms", "free"), 4),
    }


def answer(
    llm: SpeculativeLlama, case: tuple[str, dict[str, Any]], way: str, n_tokens: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Milliseconds a token of one greedy answer, behind its first one: in all, and of them those of the grammar."""
    noun, schema = case
    cursors: list[GrammarCursor] = []
    with noted(cursors), nothing_forced() if way.endswith(NOTHING_FORCED) else contextlib.nullcontext():
        reply = llm.chat(
            [{"role": "user", "content": f"Describe a {noun} of your choice as JSON, in few words."}],
            temperature=0.0,
            max_tokens=n_tokens,
            grammar=None if way == "free" else json_grammar(schema, any_whitespace=not way.startswith("compact")),
            draft="off" if way in ("free", "plain") else "auto",
        )
        chunks = iter(reply.generation)
        next(chunks)
        started, n_first = clock(), reply.generation.n_completion
        for _ in chunks:
            pass
        taken_s = clock() - started
    n = max(reply.generation.n_completion - n_first, 1)
    grammar_s = sum(cursor.spent_s for cursor in cursors)
    return {"ms": round(1e3 * taken_s / n, 3), "grammar_ms": round(1e3 * grammar_s / n, 4)}


@contextlib.contextmanager
def noted(cursors: list[GrammarCursor]) -> Iterator[None]:
    """Every grammar that is followed is put into `cursors`."""

    def compile_and_note(*arguments: Any) -> GrammarCursor:
        cursors.append(compile_grammar(*arguments))
        return cursors[-1]

    with mock.patch.object(api, "compile_grammar", compile_and_note):
        yield


@contextlib.contextmanager
def nothing_forced() -> Iterator[None]:
    """The same grammar, which says of no token that it must come."""
    with mock.patch.object(GrammarCursor, "forced", return_value=[]):
        yield
