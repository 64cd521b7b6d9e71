"""What of a JSON schema reaches the grammar, and what a warning names instead."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from specgguf.errors import ConfigError
from specgguf.text.grammar import json_grammar
from specgguf.text.json_schema import CONCERNS, EVERY, helped

Schema = dict[str, Any]
DEFS: Schema = {"D": {"type": "string", "maxLength": 9}, "E": {"enum": ["x", "y"]}}
# one for each branch of the converter, and the types that it writes there
PARTS: list[tuple[Schema, str]] = [
    ({"$ref": "#/$defs/D"}, "string"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string null"),
    ({"oneOf": [{"type": "array"}, {"type": "boolean"}]}, "array boolean"),
    ({"const": "constant text"}, "string"),
    ({"enum": ["a text of a list", 100]}, "string integer"),
    ({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}, "object"),
    ({"properties": {"a": {"type": "string"}}}, "object"),
    ({"type": "object", "additionalProperties": {"type": "string"}}, "object"),
    ({"type": "object", "allOf": [{"properties": {n: {"type": "string"}}} for n in "ab"]}, "object"),
    ({"type": "array", "items": {"type": "string"}}, "array"),
    ({"type": "array", "items": [{"type": "string"}]}, "array"),
    ({"type": "array", "prefixItems": [{"type": "string"}]}, "array"),
    ({"type": "string", "pattern": "^[a-z]*$"}, "string"),
    ({"type": "string", "format": "uuid"}, "string"),
    ({"type": "string", "format": "date"}, "string"),
    ({"type": "string", "minLength": 1}, "string"),
    ({"type": "object"}, "object"),
    ({"type": "string"}, "string"),
    ({"type": "integer"}, "integer"),
    ({"type": "number"}, "number integer"),
    ({"type": "boolean"}, "boolean"),
    ({"type": "array"}, "array"),
    ({"type": ["string", "null"]}, "string null"),
    ({"type": ["array", "null"], "items": {"type": "string"}}, "array null"),
]
# for each key a value that every part above may break
SAMPLES: Schema = {
    **dict.fromkeys("minimum exclusiveMinimum multipleOf minLength minItems minProperties minContains".split(), 200),
    **dict.fromkeys("maximum exclusiveMaximum maxLength maxItems maxProperties maxContains".split(), 0),
    **{key: {"type": "integer"} for key in ("contains", "propertyNames", "not", "if")},
    **{key: {"a": {"minProperties": 7}} for key in ("patternProperties", "dependentSchemas", "dependencies")},
    "pattern": "^xyz$",
    "format": "email",
    "contentEncoding": "base64",
    "contentMediaType": "image/png",
    "items": {"type": "boolean"},
    "prefixItems": [{"type": "boolean"}],
    "uniqueItems": True,
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "additionalProperties": False,
    "properties": {"b": {"type": "boolean"}},
    "required": ["z"],
    "dependentRequired": {"a": ["z"]},
    "$ref": "#/$defs/E",
    "const": "z",
    "enum": ["z", 1, None, True, {}, []],
    "anyOf": [{"enum": ["z"]}],
    "oneOf": [{"enum": ["z"]}],
    "type": "null",
    "allOf": [{"properties": {"c": {"type": "boolean"}}}, {"properties": {"d": {"type": "boolean"}}}],
}
# nothing else is written there: no name, no item, no other value
KEPT_ANYHOW = {
    *(("unevaluatedProperties", key) for key in ("properties", "additionalProperties", "allOf")),
    *(("unevaluatedItems", key) for key in ("items", "prefixItems")),
    *(("format", key) for key in ("enum", "const")),
    ("items", "prefixItems"),
    ("additionalProperties", "properties"),
}


def grammar_and_lost(part: Schema) -> tuple[str, set[str]]:
    """The grammar of `part` as somebody's property, and the keys that a warning names."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gbnf = json_grammar({"type": "object", "properties": {"x": part}, "$defs": DEFS})
    assert len(caught) <= 1
    return gbnf, {key for w in caught for key in str(w.message).rpartition(": ")[2].split(", ")}


@pytest.mark.parametrize("key", sorted(SAMPLES))
def test_a_key_shapes_the_grammar_or_is_named(key: str) -> None:
    assert CONCERNS.keys() == SAMPLES.keys()
    refused: list[Schema] = []
    for part, types in PARTS:
        if key in part:
            continue
        plain, lost = grammar_and_lost(part)
        assert not lost, part
        try:
            with_key, lost = grammar_and_lost({**part, key: SAMPLES[key]})
        except ConfigError:  # the two leave nothing
            refused.append(part)
            continue
        is_moot = not CONCERNS[key] & set(types.split()) or any((key, other) in KEPT_ANYHOW for other in part)
        if is_moot:
            assert key not in lost, part
        else:
            assert (with_key == plain) == (key in lost), part
    assert len(refused) < len(PARTS) - 5


@pytest.mark.parametrize(
    ("schema", "same"),
    [
        ({"type": ["string", "null"], "enum": ["a", None, 3]}, {"enum": ["a", None]}),
        ({"type": "string", "const": "a", "minLength": 1}, {"const": "a"}),
        ({"enum": [1, 2, 30, True], "maximum": 10, "exclusiveMinimum": 1}, {"enum": [2, True]}),
        ({"enum": ["a", "abc"], "maxLength": 2, "format": "x"}, {"enum": ["a"]}),
        (
            {"type": ["string", "null"], "maxLength": 5, "title": "T"},
            {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        ),
        (
            {"type": ["object", "null"], "properties": {"a": {"type": "null"}}, "required": ["a"]},
            {"anyOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"type": "null"}]},
        ),
        ({"allOf": [{"$ref": "#/$defs/E"}], "default": "x"}, {"anyOf": [{"$ref": "#/$defs/E"}]}),
        ({"type": "array", "items": {}, "maxItems": 2}, {"type": "array", "items": True, "maxItems": 2}),
    ],
    ids=str,
)
def test_what_can_be_said_otherwise_is(schema: Schema, same: Schema) -> None:
    assert grammar_and_lost(schema) == grammar_and_lost(same)
    assert not grammar_and_lost(schema)[1]


def variant(name: str, **more: Any) -> Schema:
    return {"type": "object", "properties": {"kind": {"const": name}}, "required": ["kind"], **more}


@pytest.mark.parametrize(
    ("schema", "lost"),
    [
        ({"type": "string", "pattern": "^a$", "minLength": 3, "format": "date"}, {"minLength", "format"}),
        ({"type": "array", "items": [{"type": "null"}], "minItems": 1, "maxItems": 1}, set()),
        ({"type": "array", "items": [{"type": "null"}], "minItems": 2, "maxItems": 3}, {"minItems"}),
        ({"type": "array", "items": {"type": "null"}, "prefixItems": [{"type": "string"}]}, {"prefixItems"}),
        ({"type": "object", "required": ["a"]}, {"required"}),
        ({"oneOf": [variant("a"), variant("b"), {"enum": ["x"]}, {"const": "y"}], "discriminator": {}}, set()),
        ({"oneOf": [variant("a"), variant("a", properties={"kind": {"type": "string"}})]}, {"oneOf"}),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, {"oneOf"}),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, set()),
        ({"oneOf": [{"type": "string"}], "anyOf": [{"type": "string"}]}, {"anyOf"}),
        ({"type": "object", "anyOf": [variant("a"), {"type": "null"}]}, {"type"}),
        ({"allOf": [variant("a", minProperties=2), {"$ref": "#/$defs/D", "title": "T"}]}, {"minProperties", "type"}),
        (
            {"allOf": [{"anyOf": [variant("a"), {"properties": {"b": {"type": "null"}}}]}, variant("c")]},
            {"anyOf", "allOf", "required"},
        ),
        ({"allOf": [{"$ref": "#/$defs/D", "minProperties": 2}, {"properties": {}}]}, {"minProperties", "type"}),
        ({"properties": {"a": {"type": "null"}}, "allOf": [{"required": ["a"]}]}, {"allOf"}),
        ({"type": "object", "additionalProperties": {"type": "integer", "minimum": 1}}, {"minimum"}),
        ({"type": "array", "prefixItems": [{"type": "integer", "minimum": 1}]}, {"minimum"}),
        ({"enum": [5], "exclusiveMinimum": True}, {"exclusiveMinimum"}),
        ({"type": ["string", "object"], "not": {"const": "a"}, "minProperties": 2}, {"not", "minProperties"}),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_lost_is_named(schema: Schema, lost: set[str]) -> None:
    assert grammar_and_lost(schema)[1] == lost


@pytest.mark.filterwarnings("error")
def test_names_and_values_are_no_keys() -> None:
    json_grammar({"type": "object", "properties": {key: {"type": "integer"} for key in CONCERNS if key != "$ref"}})
    json_grammar({"$ref": "#/$defs/not", "$defs": {"not": {"enum": [{"minimum": 1}], "default": {"not": 1}}}})
    json_grammar({"type": "string", "format": "date-time", "title": "a", "description": "b"})
    json_grammar({"type": "object", "properties": {"a": {"type": "integer"}}, "$defs": {"unused": {"not": {}}}})


def test_beside_a_reference_at_the_top() -> None:
    with pytest.warns(UserWarning, match=": anyOf, minimum$"):
        gbnf = json_grammar({"$ref": "#/$defs/D", "anyOf": [{"type": "null"}], "minimum": 3, "$defs": DEFS | {
            "D": {"type": "integer"}}})  # fmt: skip
    assert "null" not in gbnf


@pytest.mark.parametrize("key", ["properties", "allOf", "not", "if", "items"])
def test_many_types_inside_each_other_stay_small(key: str) -> None:
    """What is said for each type is not said for each type of each type."""
    schema: Schema = {"type": "string"}
    for _ in range(5):
        value = {"properties": {"a": schema}, "allOf": [schema, {}]}.get(key, schema)
        schema = {"type": sorted(EVERY), key: value}
    assert len(json.dumps(helped(schema))) < 5 * len(json.dumps(schema))


@pytest.mark.parametrize("schema", [{"type": "string", "enum": [1]}, {"type": []}, {"const": 5, "maximum": 4}], ids=str)
def test_what_allows_nothing_is_refused(schema: Schema) -> None:
    with pytest.raises(ConfigError, match=r"nothing could be written|none of the listed values"):
        json_grammar(schema)
