"""Every form that a caller may give a grammar in, and what is said of those that are none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import llama_cpp
import pytest
from conftest import Pair

from specgguf.errors import BackendError, ConfigError
from specgguf.grammar import gbnf, json_schema
from specgguf.grammar.cursor import compile_grammar
from specgguf.grammar.sources import SOURCE_MAX, Grammar, json_grammar, read_grammar, response_grammar, tools_grammar
from specgguf.native.weights import Weights

Json = dict[str, Any]
DIGITS: Json = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.fixture(scope="module")
def weights(tiny_chat: Pair) -> Iterator[Weights]:
    loaded = Weights(str(tiny_chat.target))
    yield loaded
    loaded.close()


def fits(weights: Weights, grammar: Any, text: str) -> bool:
    """Whether `text` may be written, and be all."""
    ids = [5 + byte for byte in text.encode()]  # one byte token per byte (see tiny.chat)
    cursor = compile_grammar(grammar, weights)
    try:
        mask = cursor.mask(ids)
    except BackendError:
        return False
    end = next(iter(weights.eog))
    return bool(mask[end >> 3] >> (end & 7) & 1)


@pytest.mark.parametrize(
    ("grammar", "right", "wrong"),
    [
        ('root ::= "a" [0-9]+', "a15", "a"),
        (llama_cpp.LlamaGrammar.from_string('root ::= "b"', verbose=False), "b", "a"),
        ({"type": "gbnf", "gbnf": 'root ::= "a"'}, "a", "b"),
        ({"type": "gbnf", "value": 'root ::= "a"'}, "a", "b"),
        ({"type": "lark", "lark": 'start: "a" | "b"'}, "b", "c"),
        ({"type": "regex", "regex": "[a-c]+/x"}, "abc/x", "abd/x"),
        ({"type": "json_schema", "json_schema": DIGITS}, '{"a": 5}', '{"a": "5"}'),
        ({"type": "json_schema", "json_schema": json.dumps(DIGITS)}, '{"a": 5}', '{"a": "5"}'),
        ({"type": "choice", "choice": ["a", "ab", 'é"\\']}, "ab", "b"),
        ({"type": "choice", "choice": ["a", "ab", 'é"\\']}, "a", "abb"),
        ({"type": "choice", "choice": ["a", "ab", 'é"\\']}, 'é"\\', "é"),
        ({"json": DIGITS, "regex": None}, '{"a": 5}', "{}"),
        ({"regex": "a|ab"}, "ab", "b"),
        ({"choice": ["yes", "no"]}, "no", "maybe"),
        ({"grammar": 'root ::= "a"'}, "a", "b"),
        ({"grammar": '# its start\nstart : "a"'}, "a", "b"),
        ({"json_object": True}, '{"b": [1, {}]}', "[1]"),
        ({"json": DIGITS, "disable_any_whitespace": False}, '{"a":5}', "{}"),
        ({"json": DIGITS, "disable_any_whitespace": True}, '{"a": 5}', '{"a":5}'),
        ({"json_object": True, "disable_any_whitespace": True}, '{"b": [1, {}]}', '{\n "b": 1}'),
        ({"type": "json_schema", "value": DIGITS, "disable_any_whitespace": True}, '{"a": 5}', '{ "a": 5}'),
    ],
    ids=lambda value: None if isinstance(value, str) else type(value).__name__,
)
def test_forms(weights: Weights, grammar: Any, right: str, wrong: str) -> None:
    assert fits(weights, grammar, right)
    assert not fits(weights, grammar, wrong)
    read = read_grammar(grammar)
    assert read_grammar(read) is read


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (3, "must be a GBNF text"),
        ("", "must be a GBNF text"),
        ("  \n", "must be a GBNF text"),
        ({"type": "yaml"}, "'yaml'"),
        ({"type": ["regex"]}, "not known"),
        ({"type": "regex"}, "without its text"),
        ({"type": "regex", "regex": "a", "flags": "i"}, "without flags"),
        ({"type": "regex", "regex": 5}, "regex must be a text"),
        ({"type": "lark", "lark": " "}, "lark must be a text"),
        ({"type": "choice", "choice": "ab"}, "choice must be a list"),
        ({"type": "choice", "choice": []}, "choice must be a list"),
        ({"type": "choice", "choice": ["a", ""]}, "none of them empty"),
        ({"type": "json_schema", "json_schema": {}, "strict": "no"}, "strict must be true or false"),
        ({}, "names one of"),
        ({"json": {}, "regex": "a"}, "names one of"),
        ({"jsn": {}}, "'jsn' is not supported"),
        ({"json_object": False}, "json_object must be true"),
        ({"json_object": False, "disable_any_whitespace": True}, "json_object must be true"),
        ({"json": {}, "disable_any_whitespace": "yes"}, "must be true or false"),
        ({"regex": "a", "disable_any_whitespace": True}, "goes with json"),
        ({"type": "regex", "regex": "a", "disable_any_whitespace": True}, "without disable_any_whitespace"),
        ({"json": "nope"}, "JSON schema: "),
        ({"json": "[]"}, "no JSON object"),
        ({"json": False}, "nothing could be written"),
        ({"json": {1: object()}}, "JSON schema: "),
    ],
    ids=str,
)
def test_what_is_none_is_refused_in_one_line(wrong: Any, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_grammar(wrong)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "grammar",
    [{"regex": "a(?=b)"}, {"regex": "("}, {"type": "lark", "lark": "start: x"}, {"type": "lark", "lark": "begin: x"}],
    ids=str,
)
def test_what_cannot_be_compiled_is_refused_in_one_line(weights: Weights, grammar: Json) -> None:
    with pytest.raises(ConfigError, match=r"^(regex|Lark grammar): ") as caught:
        compile_grammar(grammar, weights)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "grammar",
    [
        'root ::= "a"' + ' | "b"' * 700_000,
        {"type": "lark", "lark": "start: " + "a" * SOURCE_MAX},
        {"regex": "a" * (SOURCE_MAX + 1)},
        {"json": {"enum": ["a" * SOURCE_MAX]}},
        {"json": "[" * (SOURCE_MAX + 1)},
        {"choice": ["a" * SOURCE_MAX, "b"]},
        {"grammar": "\n" * SOURCE_MAX + "x"},
        {"grammar": "start: " + "a" * SOURCE_MAX},
    ],
    ids="gbnf lark regex schema schema-text choice blank lark-or-gbnf".split(),
)
def test_what_is_too_long_is_refused_before_it_is_read(grammar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading is pure Python, and on the server other requests wait for it."""

    def never(*_: object, **__: object) -> Any:
        raise AssertionError("it was read")

    monkeypatch.setattr(gbnf, "to_lark", never)
    monkeypatch.setattr(json_schema, "normalised", never)
    monkeypatch.setattr(json, "loads", never)
    with pytest.raises(ConfigError, match="longer than 262,144 characters"):
        read_grammar(grammar)


def test_many_tools_are_too_long_together() -> None:
    schema = {"enum": ["a" * (SOURCE_MAX // 2)]}
    assert tools_grammar([("f", schema, True)]).kind == "tools"
    with pytest.raises(ConfigError, match="tools: it is longer than"):
        tools_grammar([(f"f{i}", schema, True) for i in range(3)])


def test_blank_lines_before_a_grammar_are_read_once() -> None:
    """A pattern that began again at each of them would take hours."""
    text = "\n" * 200_000 + "start: X\nX: /a/"
    assert read_grammar({"grammar": text}).kind == "Lark grammar"
    assert read_grammar({"grammar": "\n" * 200_000 + 'root ::= "a"'}).kind == "grammar"


def test_response_formats() -> None:
    assert response_grammar(None) is None
    assert response_grammar({"type": "text"}) is None
    assert response_grammar({"type": "json_object"}) == json_grammar()
    assert response_grammar({"type": "json_object", "schema": DIGITS}) == json_grammar(DIGITS)
    for strict in (None, True, False):
        wanted = json_grammar(DIGITS, strict=strict is not False)
        named = {"name": "n", "strict": strict, "schema": DIGITS}
        assert response_grammar({"type": "json_schema", "json_schema": named}) == wanted
        assert response_grammar({"type": "json_schema", **named}) == wanted


@pytest.mark.parametrize(
    "wrong",
    [
        "json",
        {"type": "xml"},
        {},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"schema": 3}},
        {"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}},
    ],
    ids=str,
)
def test_wrong_response_formats_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError):
        response_grammar(wrong)


def test_tools(weights: Weights) -> None:
    """Each call by its own schema, its references by its own definitions."""
    numbers = {"properties": {"x": {"$ref": "#/$defs/X"}}, "required": ["x"], "$defs": {"X": {"type": "integer"}}}
    texts = {"properties": {"x": {"$ref": "#/$defs/X"}}, "required": ["x"], "$defs": {"X": {"type": "string"}}}
    grammar = tools_grammar([("f", numbers, True), ("fé", texts, True), ("g", {"type": "object"}, True)])
    for right in ('{"name": "f", "arguments": {"x": 5}}', '{"name": "fé", "arguments": {"x": "5"}}'):
        assert fits(weights, grammar, right)
    for wrong in ('{"name": "f", "arguments": {"x": "5"}}', '{"name": "h", "arguments": {}}', "text"):
        assert not fits(weights, grammar, wrong)


def test_a_tool_that_cannot_be_kept_to_is_refused_or_named(weights: Weights) -> None:
    unique = {"properties": {"x": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(ConfigError, match=r"^tools: it cannot be kept to the letter: uniqueItems$") as caught:
        compile_grammar(tools_grammar([("f", unique, True)]), weights)
    assert '"strict": false' in caught.value.hint
    with pytest.warns(UserWarning, match="not enforced.*uniqueItems"):
        compile_grammar(tools_grammar([("f", unique, False)]), weights)


def test_a_schema_sets_no_options_of_its_own(weights: Weights) -> None:
    """llguidance reads some from the schema itself."""
    schema = {"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}
    with pytest.raises(ConfigError, match="uniqueItems"):
        compile_grammar(json_grammar(schema), weights)


def test_messages_name_what_was_given() -> None:
    assert str(Grammar("JSON schema", "").refusal('Unimplemented keys: ["a", "b"]')).endswith("to the letter: a, b")
    assert str(Grammar("regex", "").refusal("one\ntwo\n\nthree")) == "regex: one two"


def test_a_schema_that_is_no_schema_is_not_blamed_on_strictness(weights: Weights) -> None:
    with pytest.raises(ConfigError, match="objct") as caught:
        compile_grammar(response_grammar({"type": "json_object", "schema": {"type": "objct"}}), weights)
    assert caught.value.hint == ""
