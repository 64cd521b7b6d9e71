"""JSON schemas are kept to the letter, or refused by name; what is said otherwise means the same."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from conftest import Pair

from specgguf.errors import BackendError, ConfigError
from specgguf.grammar import json_schema as module
from specgguf.grammar.cursor import compile_grammar
from specgguf.grammar.json_schema import STEPS_MAX, _Walk, normalised
from specgguf.grammar.sources import json_grammar
from specgguf.native.weights import Weights

Schema = Any


@pytest.fixture(scope="module")
def weights(tiny_chat: Pair) -> Iterator[Weights]:
    loaded = Weights(str(tiny_chat.target))
    yield loaded
    loaded.close()


def writes(weights: Weights, schema: Schema, text: str) -> bool:
    """Whether the grammar of `schema` can write `text` and end there."""
    ids = [5 + byte for byte in text.encode()]  # one byte token per byte (see tiny.chat)
    cursor = compile_grammar(json_grammar(schema), weights)
    try:
        mask = cursor.mask(ids)
    except BackendError:
        return False
    end = next(iter(weights.eog))
    return bool(mask[end >> 3] >> (end & 7) & 1)


def variant(name: str, **more: Any) -> Schema:
    return {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"], **more}


STRING = {"type": "string"}
TREE = {
    "$defs": {
        "a_b.c[d]": {"type": "object", "properties": {"n": {"$ref": "#/$defs/a_b.c[d]"}}, "additionalProperties": False}
    },
    "$ref": "#/$defs/a_b.c[d]",
}
NAMES = {
    "$defs": {
        "string": {"type": "integer"},
        "value": {"enum": ["v"]},
        "x": {"items": {"type": "null"}},
        "y": {"items": {"type": "boolean"}},
    },
    "type": "array",
    "prefixItems": [
        {"$ref": "#/$defs/string"},
        {"$ref": "#/$defs/value"},
        {"$ref": "#/$defs/x/items"},
        {"$ref": "#/$defs/y/items"},
    ],
    "items": False,
    "minItems": 4,
}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (STRING, ['"a\\nb"', '"\\t\\"\\\\"', '"é한😀"'], ['"a\nb"', '"\t"', '"""', '"\x01"']),
        ({"enum": ["C:\\temp", "a\nb", '"', "😀"]}, ['"C:\\\\temp"', '"a\\nb"', '"\\""', '"😀"'], ['"C:\temp"', '""']),
        ({"const": "\\"}, ['"\\\\"'], ['"\\"', '""']),
        ({"properties": {'a"\\': {"const": 1}}, "required": ['a"\\'], "additionalProperties": False},
         ['{"a\\"\\\\": 1}'], ['{"a": 1}', "{}"]),
        (NAMES, ['[5, "v", null, true]'], ['["5", "v", null, true]', '[5, "v", true, null]', '[5, "v", null]']),
        ({"properties": {"a": STRING, "b": STRING}, "required": ["b"], "additionalProperties": {"type": "integer"}},
         ['{"b": "x"}', '{"a": "x", "b": "y"}', '{"a": "x", "b": "y", "c": 1}', '{"b": "y", "c": 1}'],
         ['{"a": "x" "b": "y"}', '{"a": "x"}', '{"b": "y", "b": "z"}', '{"b": "y" "c": 1}']),
        ({"type": "string", "pattern": "^.+$"}, ['"a"', '"\\""', '"\\\\"'], ['"""', '""', '"\\"']),
        ({"type": "string", "pattern": "^[^,]+$"}, ['"\\"a"'], ['"""', '","']),
        ({}, ["1", '"a"', "[1, {}]", '{"a": null}'], ["a", ""]),
        (True, ["1", "null"], ["nul"]),
        ({"description": "anything"}, ["1", '"a"', "[]"], ["a"]),
        (TREE, ["{}", '{"n": {"n": {}}}'], ['{"n": 1}', '{"m": {}}']),
        ({"properties": {"a": {"$ref": "#"}}, "additionalProperties": False}, ['{"a": {"a": {}}}'], ['{"b": {}}']),
        ({"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]}, ["[null]"], ["[1]"]),
        ({"$defs": {"a/b": {"const": 1}, "a~b": {"const": 2}}, "prefixItems": [{"$ref": "#/$defs/a~1b"},
          {"$ref": "#/$defs/a~0b"}], "type": "array", "minItems": 2, "items": False}, ["[1, 2]"], ["[2, 1]"]),
        ({"type": "string", "pattern": r"\d{2}-\w(?:x|y)"}, ['"12-ax"', '"..12-ay.."'], ['"1-ax"', '"12-a"']),
        ({"type": "string", "pattern": r"^\s$"}, ['" "'], ['"a"']),
        ({"type": "array", "items": {"const": 1}, "maxItems": 2000}, ["[1, 1]", "[]"], ["[2]"]),
        ({"type": "integer", "minimum": 3, "maximum": 12, "multipleOf": 3}, ["3", "12"], ["0", "4", "15", "3.5"]),
        ({"type": "string", "format": "email"}, ['"a@b.org"'], ['"a"']),
        ({"type": "string", "format": "color-name"}, ['"a"'], ["1"]),
        ({"type": "string", "enum": ["a", "bc", 1]}, ['"a"', '"bc"'], ["1"]),
        ({"type": ["string", "null"], "maxLength": 1}, ['"a"', "null"], ['"ab"', "1"]),
        ({"not": {"type": ["string", "object"]}}, ["1", "[]", "null"], ['"a"', "{}"]),
        ({"oneOf": [variant("a"), variant("b")]}, ['{"kind": "a"}', '{"kind": "b"}'], ['{"kind": "c"}', "{}"]),
    ],
    ids=lambda value: json.dumps(value)[:40] if not isinstance(value, list) else None,
)  # fmt: skip
def test_kept_to_the_letter(weights: Weights, schema: Schema, right: list[str], wrong: list[str]) -> None:
    for text in right:
        assert writes(weights, schema, text), text
    for text in wrong:
        assert not writes(weights, schema, text), text


UNMET = {"type": "object", "properties": {"a": {"type": "string", "minLength": 3, "maxLength": 1}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "contains": {"const": 1}}, "contains"),
        ({"properties": {"a": {"not": {"const": 1}}}}, "not"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ({"if": {"type": "null"}, "then": {"const": None}}, "if"),
        ({"type": "string", "format": "uri-template"}, "uri-template"),
        (UNMET, "required property 'a' is unsatisfiable"),
        ({"patternProperties": {"a": STRING, "ab": {"type": "null"}}}, "patternProperty"),
    ],
    ids=str,
)
def test_what_cannot_be_kept_to_is_refused_by_name(weights: Weights, schema: Schema, named: str) -> None:
    with pytest.raises(ConfigError, match=r"^JSON schema: ") as caught:
        compile_grammar(json_grammar(schema), weights)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ({"type": "string", "format": "uri-template"}, "uri-template"),
    ],
    ids=str,
)
def test_a_lenient_schema_names_what_it_loses(weights: Weights, schema: Schema, lost: str) -> None:
    with pytest.warns(UserWarning, match=f"not enforced, so check the answers for it: .*{lost}"):
        compile_grammar(json_grammar(schema, strict=False), weights)


# --- said otherwise -------------------------------------------------------------------------------------------------

VALUES: list[Any] = [
    *(None, True, False, 0, 1, 2.5, "", "a", "b", [], [1], ["a"], {}),
    *({"kind": "a"}, {"kind": "b"}, {"kind": "c", "x": 1}, {"x": 1}, {"x": 1, "y": 2}, {"y": "a"}, {"z": 3, "y": 1}),
]


@pytest.mark.parametrize(
    ("schema", "gone"),
    [
        ({"oneOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}, "oneOf"),
        ({"oneOf": [variant("a"), variant("b"), {"enum": ["a", 1]}, {"const": "b"}]}, "oneOf"),
        ({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": {"A": variant("a"), "B": STRING}}, "oneOf"),
        ({"type": "object", "oneOf": [{"type": "object", "properties": {"x": {}}, "additionalProperties": False},
          {"type": "object", "required": ["y"]}], "minProperties": 1}, "oneOf"),
        ({"oneOf": [{"required": [name]} for name in "xyz"]}, "oneOf"),
        ({"oneOf": [{"required": ["x"]}, {"required": ["x"]}], "type": ["object", "null"]}, "oneOf"),
        ({"oneOf": [{key: v for key, v in variant(name).items() if key != "type"} for name in "ab"]}, "oneOf"),
        ({"oneOf": [variant("a"), False, {"type": "array"}, {"$ref": "#/$defs/A"}], "$defs": {"A": STRING}}, "oneOf"),
        ({"not": {"type": "object"}}, "not"),
        ({"not": {"type": ["object", "array"]}, "minLength": 1}, "not"),
        ({"not": {"required": ["x"]}, "type": "object"}, "not"),
        ({"not": {"required": ["x", "y"]}, "type": "object"}, "not"),
        ({"type": "object", "not": {"anyOf": [{"required": ["x"]}, {"required": ["y"]}]}}, "not"),
        ({"type": "object", "not": {"allOf": [{"required": ["x"]}, {"type": "string"}]}}, "not"),
        ({"dependencies": {"x": ["y"], "z": []}}, "dependencies"),
        ({"dependentRequired": {"x": ["y"]}, "allOf": [{"type": "object"}]}, "dependentRequired"),
    ],
    ids=str,
)  # fmt: skip
def test_said_otherwise_it_means_the_same(schema: Schema, gone: str) -> None:
    same, lost = normalised(schema)
    assert gone not in same
    assert lost == []
    before, after = (jsonschema.validators.Draft7Validator(s) for s in (schema, same))
    if gone == "dependentRequired":
        before = jsonschema.validators.Draft202012Validator(schema)
    for value in VALUES:
        assert before.is_valid(value) == after.is_valid(value), value


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "number"}, {"type": "integer"}]},
        {"oneOf": [variant("a"), variant("a", minProperties=2)]},
        {"oneOf": [{"enum": [1]}, {"enum": [1.0]}]},
        {"oneOf": [variant("a"), {"type": "object", "properties": {"kind": {"const": "b"}}}]},
        {"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/A"}], "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"oneOf": [{"$ref": "https://x.y/z"}, STRING]},
        {"not": {"const": 1}},
        {"not": {"type": "integer"}},
        {"not": {"required": ["a"], "type": "object"}},
        {"dependencies": {"x": {"required": ["y"]}}},
        {"type": "string", "format": "iri"},
        {"properties": {"oneOf": STRING, "not": STRING, "format": STRING}},
        {"enum": [{"format": "x", "not": {"type": "null"}}]},
    ],
    ids=str,
)
def test_what_cannot_be_said_otherwise_stays(schema: Schema) -> None:
    assert normalised(schema) == (schema, [])


def listed(n: int, per: int) -> Schema:
    names = [f"p{i}" for i in range(per)]
    return {
        "$defs": {"long": {"enum": list(range(20_000))}},
        "oneOf": [
            {
                "type": "object",
                "required": [*names, "kind"],
                "properties": {**{name: {"$ref": "#/$defs/long"} for name in names}, "kind": {"const": i}},
            }
            for i in range(n)
        ],
    }


def chained(n: int, per: int) -> Schema:
    names = [f"p{i}" for i in range(per)]
    return {
        "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(39)} | {"d39": STRING},
        "oneOf": [
            {"type": "object", "required": names, "properties": {name: {"$ref": "#/$defs/d0"} for name in names}}
            for _ in range(n)
        ],
    }


@pytest.mark.parametrize(
    "schema",
    [
        listed(60, 10),
        {
            "$defs": {"a": {"const": "a" * 100_000}, "b": {"const": "b" * 100_000}},
            "oneOf": [{"$ref": f"#/$defs/{'ab'[i > 30]}"} for i in range(100)],
        },
        chained(100, 60),
    ],
    ids=["long lists", "long texts", "chains"],
)
def test_alternatives_that_refer_to_much_are_not_compared_for_ever(
    schema: Schema, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short schema means minutes of comparing, but for a bound on all of it."""
    walked = _Walk(schema, True)
    with contextlib.suppress(ValueError):
        walked.rewritten(schema)
    assert walked._n_steps <= STEPS_MAX + len(json.dumps(schema))
    monkeypatch.setattr(module, "STEPS_MAX", 50)
    with pytest.raises(ConfigError, match="alternatives of oneOf take too long to compare"):
        json_grammar(schema)


def test_lenient_alternatives_are_named() -> None:
    schema = {"oneOf": [{"type": "number"}, {"type": "integer"}]}
    assert normalised(schema, strict=False) == ({"allOf": [{"anyOf": schema["oneOf"]}]}, ["oneOf"])
