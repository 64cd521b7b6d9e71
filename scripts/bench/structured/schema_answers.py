"""A model's answers to 60 schemas: does every one that ends parse and validate, drafted and plain?

scripts/bench/run schema-answers --model T.gguf [--draft-model D.gguf] [--n 60] [--save FILE]. Temperature
0.8, short answers; an answer cut at its limit counts apart. What FILE holds already is not asked again, so a long run
may be stopped at any time and gone on with. `jsonschema` is needed.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema

from specgguf import ConfigError, SpeculativeLlama

NOUNS = "city recipe invoice planet book user robot song match train".split()
SCALARS: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "minLength": 2, "maxLength": 24},
    "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3}$"},
    "year": {"type": "integer", "minimum": 1900, "maximum": 2100},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "kind": {"enum": ["small", "large", None, 3]},
    "is_open": {"type": "boolean"},
    "since": {"type": "string", "format": "date"},
    "mail": {"type": ["string", "null"], "format": "email"},
    "path": {"enum": ["C:\\temp", "a\nb", 'say "yes"', "한국"]},
}
FORMS = ("flat", "list", "nested", "union", "tree", "open")
LIMIT = 160  # tokens
N_DRAFT = 3


def main() -> int:
    """Ask, validate, print, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--n", type=int, default=60)
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    files = {
        "model": Path(options.model).name,
        "draft_model": Path(options.draft_model).name if options.draft_model else "ngram",
    }
    answers = read(options.save, files)
    known = {(one["schema"], one["draft"]) for one in answers}
    with SpeculativeLlama(options.model, options.draft_model or "ngram", n_ctx=1024) as llm:
        for i, (noun, schema) in enumerate(itertools.islice(schemas(), options.n)):
            for draft in (N_DRAFT, "off"):
                if (i, draft) in known:
                    continue
                what, text = answer(llm, noun, schema, seed=i, draft=draft)
                answers.append({"schema": i, "draft": draft, "what": what, "text": text})
                if options.save is not None:
                    options.save.write_text(written(files | summary(answers) | {"answers": answers}))
    print(json.dumps(files | summary(answers), indent=1, ensure_ascii=False))
    return int(any(one["what"] == "wrong" for one in answers))


def read(path: Path | None, files: dict[str, str]) -> list[dict[str, Any]]:
    """The answers that `path` holds; none where it is not there, or of other files."""
    if path is None or not path.exists():
        return []
    saved = json.loads(path.read_text())
    answers: list[dict[str, Any]] = saved["answers"] if files.items() <= saved.items() else []
    return answers


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """How many schemas, and what became of the answers."""
    counts = collections.Counter(f"{one['what']}, {'plain' if one['draft'] == 'off' else 'drafted'}" for one in answers)
    return {"n": len({one["schema"] for one in answers}), **dict(sorted(counts.items()))}


def written(result: dict[str, Any]) -> str:
    """As JSON, an answer a line."""
    lines = ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in result["answers"])
    head = json.dumps({k: v for k, v in result.items() if k != "answers"}, indent=1)
    return head.removesuffix("\n}") + f',\n "answers": [\n{lines}\n ]\n}}\n'


def schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is asked for, and its schema: each noun in each form."""
    for i, (form, noun) in enumerate(itertools.product(FORMS, NOUNS)):
        names = [*itertools.islice(itertools.cycle(SCALARS), i, i + 3)]
        yield (
            noun,
            in_form(form, {"type": "object", "properties": {n: SCALARS[n] for n in names}, "required": names}),
        )


def in_form(form: str, record: dict[str, Any]) -> dict[str, Any]:
    """A schema around a record."""
    closed = {**record, "additionalProperties": False}
    match form:
        case "list":
            return {"type": "array", "items": closed, "minItems": 1, "maxItems": 2}
        case "nested":
            return {"type": "object", "properties": {"inner": {"$ref": "#/$defs/a.b"}}, "required": ["inner"],
                    "additionalProperties": False, "$defs": {"a.b": closed}}  # fmt: skip
        case "union":
            return {"oneOf": [closed, {"type": "string", "maxLength": 20}, {"type": "null"}]}
        case "tree":
            tree = {
                **closed,
                "properties": {**record["properties"], "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            }
            return {**tree, "required": [*record["required"], "next"]}
        case "open":
            return {**record, "additionalProperties": {"type": "integer"}, "maxProperties": 5}
        case _:
            return closed


def answer(llm: SpeculativeLlama, noun: str, schema: dict[str, Any], *, seed: int, draft: int | str) -> tuple[str, str]:
    """One answer: "right", "cut", "refused" or "wrong", and its text."""
    try:
        reply: Any = llm.create_chat_completion(
            [{"role": "user", "content": f"Describe a {noun} of your choice as JSON, in few words."}],
            response_format={"type": "json_schema", "json_schema": {"name": noun, "schema": schema}},
            temperature=0.8, seed=seed, max_tokens=LIMIT, draft=draft,
        )  # fmt: skip
    except ConfigError as error:
        return "refused", str(error)
    text = reply["choices"][0]["message"]["content"]
    if reply["choices"][0]["finish_reason"] != "stop":
        return "cut", text
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError):
        return "wrong", text
    return "right", text
