"""Real JSON schemas with valid and invalid instances: which are served, and is any served wrongly?

scripts/bench/run schemas FILE.jsonl.gz --model MODEL.gguf [--save FILE]. A line of the file is {"name", "schema",
"tests": [{"data", "valid"}]}. Each instance is written as JSON and tokenized by the model: a valid one must be allowed
token by token, with an end after it (its properties in the schema's order, if not in their own); an invalid one must be
refused at some token. A schema may be refused by name.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from specgguf.errors import BackendError, ConfigError
from specgguf.grammar.cursor import GrammarCursor, compile_grammar
from specgguf.grammar.sources import json_grammar
from specgguf.native.weights import Weights

WANTED = 0.92  # of the schemas served


def main() -> int:
    """Check all, print what went wrong, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    weights = Weights(options.model)
    counts: collections.Counter[str] = collections.Counter()
    refused: dict[str, str] = {}
    faults: list[dict[str, Any]] = []
    compile_ms: list[float] = []
    mask_ms: list[float] = []
    for case in read(options.file):
        counts["schemas"] += 1
        started = time.perf_counter()
        try:
            cursor = compile_grammar(json_grammar(case["schema"]), weights)
        except ConfigError as error:
            refused[case["name"]] = str(error)
            continue
        compile_ms.append((time.perf_counter() - started) * 1e3)
        for test in case["tests"]:
            kind = "valid" if test["valid"] else "invalid"
            n, text = walk(weights, cursor, test["data"], mask_ms)
            counts[kind] += 1
            if test["valid"] and n is not None:
                n, text = walk(weights, cursor, ordered(test["data"], case["schema"]), mask_ms)
                counts["reordered"] += 1
            if (n is None) != test["valid"]:
                faults.append({"name": case["name"], "instance": kind, "token": n, "text": text[:200]})
    served = counts["schemas"] - len(refused)
    result = {
        **counts,
        "served": served,
        "share_served": round(served / counts["schemas"], 4),
        "faults": faults,
        "compile_ms": spread(compile_ms[1:]),
        "mask_ms": spread(mask_ms),
        "refused": refused,
        "model": Path(options.model).name,
    }
    print(json.dumps({key: value for key, value in result.items() if key != "refused"}, indent=1, ensure_ascii=False))
    print(*(f"refused: {name}: {why}" for name, why in refused.items()), sep="\n")
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return int(bool(faults) or served < WANTED * counts["schemas"])


def read(path: Path) -> Iterator[dict[str, Any]]:
    """The cases of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def ordered(data: Any, schema: Any) -> Any:
    """The same value, its properties in the order of the schema, where that is written plainly."""
    schema = schema if isinstance(schema, dict) else {}
    if isinstance(data, list):
        return [ordered(one, schema.get("items")) for one in data]
    if not isinstance(data, dict):
        return data
    known = schema.get("properties", {})
    names = [*(name for name in known if name in data), *(name for name in data if name not in known)]
    return {name: ordered(data[name], known.get(name)) for name in names}


def walk(weights: Weights, cursor: GrammarCursor, data: Any, mask_ms: list[float]) -> tuple[int | None, str]:
    """At which token an instance is refused (None: never, and it may end), and its text."""
    text = json.dumps(data, ensure_ascii=False)
    ids = weights.llama.tokenize(text.encode(), add_bos=False, special=False)
    ends = sorted(weights.eog)
    for n in range(len(ids) + 1):
        started = time.perf_counter()
        try:
            mask = cursor.mask(ids[:n])
        except BackendError:
            return n, text
        mask_ms.append((time.perf_counter() - started) * 1e3)
        wanted = ids[n : n + 1] or ends
        if not any(mask[token >> 3] >> (token & 7) & 1 for token in wanted):
            return n, text
    return None, text


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum."""
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 3),
        "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 3),
        "max": round(ordered[-1], 3),
    }
