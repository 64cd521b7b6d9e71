"""Random JSON schemas: does any take long, end the process, or lead to a text that does not validate?

scripts/bench/run schema-fuzz --model MODEL.gguf [--n N] [--save FILE]. Each is compiled and followed along a random
legal text. What is refused, by name, counts; what takes more than 2 seconds is a fault, and so is a text that ended
and does not validate (`jsonschema` is needed).
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np

from specgguf.errors import ConfigError
from specgguf.grammar.cursor import GrammarCursor, compile_grammar
from specgguf.grammar.sources import json_grammar
from specgguf.native.weights import Weights

SLOW_S = 2.0
TOKENS_MAX = 120
WORDS = "name id kind value é 한국 a/b a~b $ref type x-y items".split()
PATTERNS = ["^[a-z]+$", r"\d{2,4}", "a|bc", "^.*$", "(ab)*c?", "^[^,]{1,5}$", "(?=x)", "(", r"^\S+@\S+$"]
FORMATS = "date time date-time uuid email ipv4 ipv6 uri hostname color iri".split()


def main() -> int:
    """Try N schemas, print the counts and the faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    weights = Weights(options.model)
    assert weights.grammar_tokenizer is not None  # made before anything is timed
    counts: collections.Counter[str] = collections.Counter()
    faults: list[dict[str, Any]] = []
    slowest = 0.0
    for i in range(options.n):
        source = random.Random(f"{options.seed}/{i}")
        schema = random_schema(source, source.randint(1, 5))
        started = time.perf_counter()
        what, text = attempt(weights, schema, source)
        seconds = time.perf_counter() - started
        slowest = max(slowest, seconds)
        counts[what] += 1
        if seconds > SLOW_S or what == "wrong":
            faults.append({"schema": schema, "what": what, "seconds": round(seconds, 2), "text": text[:500]})
    result = {"n": options.n, "seed": options.seed, **counts, "slowest_s": round(slowest, 3), "faults": faults}
    print(json.dumps(result, indent=1, ensure_ascii=False))
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return int(bool(faults))


def attempt(weights: Weights, schema: Any, source: random.Random) -> tuple[str, str]:
    """What became of one schema, and the text that it led to: "refused", "unfinished", "right" or "wrong"."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cursor = compile_grammar(json_grammar(schema), weights)
        ids = random_text(weights, cursor, source)
    except ConfigError as error:
        return "refused", str(error)
    text = weights.llama.detokenize(ids).decode(errors="replace")
    if not ends_here(weights, cursor, ids):
        return "unfinished", text
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return "wrong", f"{text}: {error}"
    return "right", text


def random_text(weights: Weights, cursor: GrammarCursor, source: random.Random) -> list[int]:
    """Ids that the grammar allows one after the other, and an end as soon as it allows one."""
    ids: list[int] = []
    while len(ids) < TOKENS_MAX and not ends_here(weights, cursor, ids):
        legal = np.flatnonzero(np.unpackbits(cursor.mask(ids), bitorder="little"))
        if not len(legal):
            break
        ids.append(int(legal[source.randrange(len(legal))]))
    return ids


def ends_here(weights: Weights, cursor: GrammarCursor, ids: list[int]) -> bool:
    """Whether the text may end after `ids`."""
    mask = cursor.mask(ids)
    return any(mask[end >> 3] >> (end & 7) & 1 for end in weights.eog)


def random_schema(source: random.Random, depth: int) -> Any:
    """Any schema at all: mostly sane, sometimes senseless."""
    if source.random() < 0.05:
        return source.choice([True, {}, {"description": "anything"}])
    kinds: list[Callable[[random.Random, int], dict[str, Any]]] = [string, number, listed, plain]
    if depth > 0:
        kinds += [an_object, an_object, an_array, a_union, a_reference]
    part = source.choice(kinds)(source, depth)
    if source.random() < 0.1:
        part[source.choice(["title", "description", "default", "uniqueItems", "minimum", "not", "const"])] = value(
            source
        )
    return part


def value(source: random.Random) -> Any:
    """A JSON value."""
    return source.choice([None, True, 0, -3, 2.5, 10**20, "a", 'q"\\', "\n", "😀", [], [1], {}, {"a": "b"}])


def string(source: random.Random, _depth: int) -> dict[str, Any]:
    """A string, perhaps with limits, a pattern or a format."""
    part: dict[str, Any] = {"type": "string"}
    if source.random() < 0.3:
        part |= {"minLength": source.randint(0, 5), "maxLength": source.choice([0, 3, 50, 100_000])}
    if source.random() < 0.3:
        part["pattern"] = source.choice(PATTERNS)
    if source.random() < 0.2:
        part["format"] = source.choice(FORMATS)
    return part


def number(source: random.Random, _depth: int) -> dict[str, Any]:
    """A number, perhaps within limits."""
    part: dict[str, Any] = {"type": source.choice(["integer", "number", ["integer", "null"]])}
    for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"):
        if source.random() < 0.2:
            part[key] = source.choice([0, 1, 2, 7, 100, -5, 0.5, 1e9])
    return part


def listed(source: random.Random, _depth: int) -> dict[str, Any]:
    """Listed values."""
    return {"enum": [value(source) for _ in range(source.randint(1, 6))]}


def plain(source: random.Random, _depth: int) -> dict[str, Any]:
    """A type and no more."""
    return {"type": source.choice(["boolean", "null", "string", "object", "array", ["string", "null"]])}


def an_object(source: random.Random, depth: int) -> dict[str, Any]:
    """An object with properties."""
    names = source.sample(WORDS, source.randint(0, 6))
    part: dict[str, Any] = {"type": "object", "properties": {n: random_schema(source, depth - 1) for n in names}}
    part["required"] = [name for name in names if source.random() < 0.5]
    if source.random() < 0.6:
        part["additionalProperties"] = source.choice([False, False, True, {"type": "integer"}])
    if source.random() < 0.1:
        part["patternProperties"] = {source.choice(PATTERNS): random_schema(source, depth - 1)}
    if source.random() < 0.1:
        part["dependentRequired"] = {source.choice(WORDS): source.sample(WORDS, 2)}
    return part


def an_array(source: random.Random, depth: int) -> dict[str, Any]:
    """A list."""
    part: dict[str, Any] = {"type": "array", "items": random_schema(source, depth - 1)}
    if source.random() < 0.4:
        part |= {"minItems": source.randint(0, 3), "maxItems": source.choice([0, 2, 5, 2000])}
    if source.random() < 0.2:
        part["prefixItems"] = [random_schema(source, depth - 1) for _ in range(source.randint(1, 3))]
    return part


def a_union(source: random.Random, depth: int) -> dict[str, Any]:
    """Alternatives."""
    parts = [random_schema(source, depth - 1) for _ in range(source.randint(1, 4))]
    return {source.choice(["anyOf", "anyOf", "oneOf", "allOf"]): parts}


def a_reference(source: random.Random, depth: int) -> dict[str, Any]:
    """A definition that may refer to itself, and a reference to it."""
    name = source.choice(WORDS).replace("/", "")
    inside = an_object(source, depth - 1)
    if source.random() < 0.5:
        inside["properties"]["next"] = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    return {"$defs": {name: inside}, **inside}
