"""A grammar along generated tokens: the states are llama.cpp's, and nothing forbidden ever reaches it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest
from conftest import Pair

from specgguf.errors import BackendError, ConfigError
from specgguf.native import grammar_sampler as gbnf
from specgguf.text import grammar
from specgguf.text.grammar import GrammarCursor, GrammarState, grammar_text, json_grammar

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "kind": {"enum": ["é", "한국", "x"]},
    },
    "required": ["name", "sizes", "kind"],
}


@pytest.fixture(scope="module")
def llama(tiny_chat: Pair) -> Iterator[Any]:
    loaded = llama_cpp.Llama(str(tiny_chat.target), vocab_only=True, verbose=False)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def vocab(llama: Any) -> Any:
    return llama._model.vocab


@pytest.fixture(scope="module")
def everything(llama: Any) -> np.ndarray:
    return np.arange(llama.n_vocab(), dtype=np.int32)


def ids_of(text: str) -> list[int]:
    """One byte token per byte (see tiny.chat)."""
    return [5 + byte for byte in text.encode()]


def after(vocab: Any, gbnf: str, text: str) -> GrammarState:
    return GrammarCursor(GrammarState.parse(vocab, gbnf)).at(ids_of(text)).clone()


def test_allows_what_the_grammar_says(vocab: Any, everything: np.ndarray, llama: Any) -> None:
    state = after(vocab, 'root ::= "ab" [0-9]? "c"', "ab")
    allowed = everything[state.allowed(everything)]
    assert allowed.tolist() == ids_of("0123456789c")
    assert state.allowed(np.array([-1, len(everything), ids_of("c")[0]], dtype=np.int32)).tolist() == [
        0,
        0,
        1,
    ]


def test_after_the_end_only_eog_then_nothing(vocab: Any, everything: np.ndarray, llama: Any) -> None:
    state = after(vocab, 'root ::= "a"', "a")
    allowed = everything[state.allowed(everything)].tolist()
    assert llama.token_eos() in allowed
    assert all(llama_cpp.llama_vocab_is_eog(vocab, t) for t in allowed)
    state.advance(llama.token_eos())
    assert state.ended
    assert not state.allowed(everything).any()
    with pytest.raises(BackendError, match="after its end"):
        state.advance(llama.token_eos())


def test_a_forbidden_token_raises_and_changes_nothing(vocab: Any, everything: np.ndarray) -> None:
    state = after(vocab, 'root ::= "abc"', "a")
    before = state.allowed(everything)
    for token in (ids_of("x")[0], 2, -5, 10**6):
        with pytest.raises(BackendError, match="does not allow token"):
            state.advance(token)
    assert (state.allowed(everything) == before).all()


def test_clones_are_independent(vocab: Any, everything: np.ndarray, llama: Any) -> None:
    state = after(vocab, 'root ::= "a" | "b"', "")
    copy = state.clone()
    copy.advance(ids_of("a")[0])
    copy.advance(llama.token_eos())
    assert everything[state.allowed(everything)].tolist() == ids_of("ab")
    assert copy.clone().ended
    copy.close()
    copy.close()


def test_cursor_equals_a_fresh_state_after_any_jumps(vocab: Any, everything: np.ndarray) -> None:
    """Random walks through JSON: drafts of up to 6, rejected anywhere, longer rewinds, other beginnings."""
    source = random.Random(5)
    gbnf = json_grammar(SCHEMA)
    cursor = GrammarCursor(GrammarState.parse(vocab, gbnf))
    ids: list[int] = []
    for step in range(400):
        legal = everything[cursor.at(ids).allowed(everything)]
        assert len(legal)
        token = int(source.choice(legal))
        if not llama_cpp.llama_vocab_is_eog(vocab, token):
            ids = [*ids, token]
        if step % 7 == 6:
            ids = ids[: max(0, len(ids) - source.choice((1, 2, 6, 30, 1000)))]
        if step % 20 == 0:
            fresh = GrammarCursor(GrammarState.parse(vocab, gbnf))
            assert (fresh.at(ids).allowed(everything) == cursor.at(ids).allowed(everything)).all()
            fresh.close()
    cursor.close()


def test_cursor_keeps_a_window_of_states(vocab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewinding a rejected draft accepts nothing again; memory does not grow with the text."""
    cursor = GrammarCursor(GrammarState.parse(vocab, 'root ::= "a"*'))
    ids = ids_of("a" * 100)
    cursor.at(ids)
    assert len(cursor._states) == grammar.N_KEPT + 1
    calls: list[int] = []
    monkeypatch.setattr(gbnf, "accept", lambda _sampler, token: calls.append(token))
    for n in (95, 100 - grammar.N_KEPT + 1):
        cursor.at(ids[:n])
    assert calls == []
    cursor.at(ids[:50])
    assert len(calls) == 50, "negative control: what lies behind the window is accepted again"


def test_cursor_forgets_the_tokens_it_rewound(vocab: Any, everything: np.ndarray) -> None:
    cursor = GrammarCursor(GrammarState.parse(vocab, 'root ::= "abcde" "1" | "abe" "2"'))
    for text, following in (("abcd", "e"), ("abe", "2"), ("abcde", "1")):
        assert everything[cursor.at(ids_of(text)).allowed(everything)].tolist() == ids_of(following)


def test_cursor_survives_a_forbidden_token(vocab: Any, everything: np.ndarray) -> None:
    cursor = GrammarCursor(GrammarState.parse(vocab, 'root ::= "abc"'))
    with pytest.raises(BackendError):
        cursor.at(ids_of("abx"))
    assert everything[cursor.at(ids_of("ab")).allowed(everything)].tolist() == ids_of("c")


def test_characters_split_over_tokens(vocab: Any, everything: np.ndarray) -> None:
    first, second = ids_of("é")
    state = after(vocab, "root ::= [é]", "")
    assert state.allowed(np.array([first, second, ids_of("e")[0]], dtype=np.int32)).tolist() == [1, 0, 0]
    state.advance(first)
    assert everything[state.allowed(everything)].tolist() == [second]


@pytest.mark.parametrize(
    ("gbnf", "why"),
    [
        ("", "empty"),
        (" \n", "empty"),
        ('x ::= "a"', "no rule 'root'"),
        ("root ::= foo", "'foo'"),
        ('root ::= root "a" | "b"', "left recursion"),
        ('root ::= "a', "unexpected end"),
        ('root := "a"', "expecting ::= at"),
        ('root ::= "a\0"', "NUL"),
        ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "nests"),
        ("\n".join(f"r{i} ::= r{i + 1}" for i in range(100_000)), "rules"),
        ('root ::= "a"{3,1}', "at least 3 and at most 1"),
        ("root ::= [a]{3 , # {1,3}\r 1 }", "at least 3 and at most 1"),
        ('root ::= "' + "a" * 2000 + '"{2000}', "repetitions"),
        ("root ::= " + '"a"{2000} ' * 10_000, "repetitions"),
    ],
)
def test_bad_grammars_are_refused_in_one_line(
    vocab: Any, gbnf: str, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="grammar: ") as caught:
        GrammarState.parse(vocab, gbnf)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250
    assert "error parsing" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "schema",
    [
        '{"type": "foo"}',
        "[]",
        "nope",
        {"$ref": "#/definitions/x"},
        {"$ref": "https://x.y/z"},
        {1: object()},
        {"type": "string", "minLength": 3, "maxLength": 1},
        {"type": "string", "pattern": "^a{1000000000}$"},
        {"anyOf": [{"enum": []}]},
    ],
)
def test_bad_schemas_are_refused_in_one_line(schema: Any) -> None:
    with pytest.raises(ConfigError, match="JSON schema: ") as caught:
        json_grammar(schema)
    assert "\n" not in str(caught.value)


def test_schemas(vocab: Any) -> None:
    assert after(vocab, json_grammar(), '{"a": [1, {"b": null}], "c": "é"}')
    assert after(vocab, json_grammar(json.dumps(SCHEMA)), '{"name": "x", "sizes": [1, 2], "kind": "x"}')
    with pytest.raises(BackendError):
        after(vocab, json_grammar(SCHEMA), '{"size')
    recursive = {
        "$defs": {"N": {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}}},
        "$ref": "#/$defs/N",
    }
    assert after(vocab, json_grammar(recursive), '{"n": {"n": {}}}')


def test_the_warning_names_the_line_that_asked() -> None:
    """Outside the package, however deep inside it the schema was met."""
    with pytest.warns(UserWarning, match="minimum") as caught:
        json_grammar({"type": "integer", "minimum": 1})
    assert [w.filename for w in caught] == [__file__]


def test_what_looks_like_a_repetition_may_be_text(vocab: Any) -> None:
    assert after(vocab, 'root ::= "{3,1}" [{3,1}] # {3,1}', "{3,1},")
    assert after(vocab, json_grammar({"enum": ["(a (a (a)?)?)?"]}), '"(a (a (a)?)?)?"')
    assert after(vocab, json_grammar({"const": {"enum": [], "minItems": 10**6}}), '{"enum": [], "minItems": 1000000}')


@pytest.mark.parametrize(
    ("schema", "unit", "gap"),
    [
        ({"type": "string"}, "a", ""),
        ({"type": "string", "pattern": "^[(a)]{5,300}$"}, "a", ""),
        ({"type": "array", "items": {"type": "string", "maxLength": 3}}, '"aaa"', ","),
        ({"type": "array", "items": {"type": "integer"}}, "1", ","),
    ],
)
def test_a_maximum_is_no_nesting(vocab: Any, everything: np.ndarray, schema: Any, unit: str, gap: str) -> None:
    """The converter writes (x (x (x)?)?)?; 300 of them are a small grammar all the same."""
    open_, close = ("[", "]") if gap else ('"', '"')
    kind = "Items" if gap else "Length"
    for least in (0, 5):
        bounds = {} if "pattern" in schema else {f"min{kind}": least, f"max{kind}": 300}
        gbnf = json_grammar({**schema, **bounds})
        assert after(vocab, gbnf, open_ + gap.join([unit] * 300) + close)
        for n in (301, 4) if least else (301,):
            with pytest.raises(BackendError):
                after(vocab, gbnf, open_ + gap.join([unit] * n) + close)


def test_grammar_text() -> None:
    assert grammar_text('root ::= "a"') == 'root ::= "a"'
    assert grammar_text(llama_cpp.LlamaGrammar.from_string('root ::= "b"')) == 'root ::= "b"'
    for wrong in (None, "", 3, {"type": "object"}):
        with pytest.raises(ConfigError):
            grammar_text(wrong)
