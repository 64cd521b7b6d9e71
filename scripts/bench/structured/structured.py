"""Speed of structured output: five schemas, plain and auto, with and without forced tokens.

scripts/bench/run structured --model T.gguf --draft-model D.gguf [--repeats 3] [--save FILE]. The ways are interleaved,
so that what slows the machine slows all of them; each is warmed up once. `free` is plain decoding without a grammar:
its milliseconds a token against `plain`'s are what a grammar costs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from bench.structured.schema_answers import schemas
from specgguf import SpeculativeLlama
from specgguf.grammar.cursor import GrammarCursor
from specgguf.grammar.sources import json_grammar

N_SCHEMAS, MAX_TOKENS = 5, 160
WAYS = ("free", "plain", "auto", "auto without forced tokens")


def main() -> int:
    """Measure, print a table, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model", required=True)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--n", type=int, default=N_SCHEMAS, help="schemas")
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    cases = list(schemas())[:: len(list(schemas())) // N_SCHEMAS][: options.n]
    ms: dict[str, list[float]] = {way: [] for way in WAYS}
    with SpeculativeLlama(options.model, options.draft_model, n_ctx=1024) as llm:
        for repeat in range(options.repeats + 1):
            for noun, schema in cases:
                for way in WAYS:
                    taken = ms_per_token(llm, noun, schema, way)
                    if repeat:
                        ms[way].append(taken)
    medians = {way: round(statistics.median(values), 2) for way, values in ms.items()}
    result: dict[str, Any] = {
        "model": Path(options.model).name,
        "draft_model": Path(options.draft_model).name,
        "ms_per_token": medians,
        "grammar_overhead": round(medians["plain"] / medians["free"] - 1.0, 4),
        "auto_against_plain": round(medians["plain"] / medians["auto"], 3),
        "forced_against_not": round(medians["auto without forced tokens"] / medians["auto"], 3),
        "samples": {way: [round(value, 2) for value in values] for way, values in ms.items()},
    }
    print(json.dumps({key: value for key, value in result.items() if key != "samples"}, indent=1))
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def ms_per_token(llm: SpeculativeLlama, noun: str, schema: dict[str, Any], way: str) -> float:
    """Milliseconds a token of one greedy answer, its prompt not counted."""
    with nothing_forced() if way.endswith("without forced tokens") else contextlib.nullcontext():
        reply: Any = llm.create_chat_completion(
            [{"role": "user", "content": f"Describe a {noun} of your choice as JSON, in few words."}],
            temperature=0.0,
            max_tokens=MAX_TOKENS,
            grammar=None if way == "free" else json_grammar(schema),
            draft="auto" if way.startswith("auto") else "off",
        )
    timings = reply["timings"]
    return float(timings["predicted_ms"]) / max(int(timings["predicted_n"]), 1)


@contextlib.contextmanager
def nothing_forced() -> Iterator[None]:
    """The same grammar, which says of no token that it must come."""
    with mock.patch.object(GrammarCursor, "forced", return_value=[]):
        yield
