"""GBNF keeps its language: what llama.cpp's own grammar sampler accepts, and nothing else."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator

import llama_cpp
import numpy as np
import pytest
from conftest import Pair

from specgguf.errors import ConfigError
from specgguf.grammar.cursor import compile_grammar
from specgguf.grammar.gbnf import to_lark
from specgguf.grammar.sources import read_grammar
from specgguf.native.weights import Weights

GRAMMARS = {
    "greedy digits": 'root ::= [0-9]+ "5"',
    "one begins with another": 'root ::= ("a" | "ab") "bc"',
    "optional tail": 'root ::= "a"* "ab"? "b"',
    "rules": 'root ::= word (" " word)* end\nword ::= [a-c]+\nend ::= "." | "!"',
    "recursive": 'root ::= "(" root? ")" | [a-c]+ "b"',
    "recursive and greedy": 'root ::= num ("+" root)?\nnum ::= [0-9]+ "5" | "(" root ")"',
    "classes": 'root ::= [^a-c\\n"] [\\x41-\\u0043] [\\]\\[-] "\\t\\"\\\\" .',
    "counts": 'root ::= ("a" | "bb"){2,3} [c]{ 2 } "d"{1,}',
    "empty": 'root ::= ("a" |) "b"? ""',
    "comments": '# before\nroot ::= # begins\n  "a" # one\n\n# between\n\nb ::= "b"  # unused\n',
    "over lines": 'root ::= (\n  "a"\n  | # or\n  "b"\n) |\n "c"',
    "characters of several bytes": "root ::= [é-ê한] [^é] .",
    "JSON": llama_cpp.llama_grammar.JSON_GBNF,
    "a list": llama_cpp.llama_grammar.LIST_GBNF,
}


# Of tiny.chat: <unk>, <s>, <|im_start|>, NUL, and the bytes of longer characters, which llama.cpp judges too early (it
# refuses the first byte of all that share it with one that [^…] excludes, and allows those that begin none).
NO_CHARACTERS = {0, 1, 3, 5, *range(5 + 128, 5 + 256)}


@pytest.fixture(scope="module")
def weights(tiny_chat: Pair) -> Iterator[Weights]:
    loaded = Weights(str(tiny_chat.target))
    yield loaded
    loaded.close()


class Reference:
    """llama.cpp's grammar sampler over all ids."""

    def __init__(self, weights: Weights, gbnf: str) -> None:
        self.sampler = llama_cpp.llama_sampler_init_grammar(weights.vocab, gbnf.encode(), b"root")
        assert self.sampler
        self.n = weights.n_vocab

    def allowed(self) -> list[int]:
        data = (llama_cpp.llama_token_data * self.n)(*((i, 0.0, 0.0) for i in range(self.n)))
        array = llama_cpp.llama_token_data_array(data=data, size=self.n, selected=-1, sorted=False)
        llama_cpp.llama_sampler_apply(self.sampler, ctypes.byref(array))
        return [item.id for item in data if item.logit == 0.0]

    def close(self) -> None:
        llama_cpp.llama_sampler_free(self.sampler)


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_same_tokens_as_llama_cpp(weights: Weights, name: str) -> None:
    """At every position of random walks. llguidance may leave out other spellings of characters that must come, and
    llama.cpp lets special tokens stand for the characters that they look like; neither may end a text early."""
    cursor = compile_grammar(GRAMMARS[name], weights)
    source = random.Random(3)
    for _ in range(12):
        reference = Reference(weights, GRAMMARS[name])
        ids: list[int] = []
        while len(ids) < 12:
            wanted = [token for token in reference.allowed() if token not in NO_CHARACTERS]
            bits = np.unpackbits(cursor.mask(ids), bitorder="little")
            got = [token for token in np.flatnonzero(bits).tolist() if token not in NO_CHARACTERS]
            forced = cursor.forced(ids)
            assert got == (forced[:1] or wanted), ids
            token = source.choice(got or wanted)
            if token in weights.eog:
                break
            llama_cpp.llama_sampler_accept(reference.sampler, token)
            ids.append(token)
        reference.close()


@pytest.mark.parametrize(
    ("gbnf", "why"),
    [
        (" # nothing\n", "empty"),
        ('x ::= "a"', "no rule 'root'"),
        ("root ::= foo", "'foo'"),
        ('root ::= "a', "unexpected end"),
        ('root := "a"', "expecting ::= at"),
        ('root ::= "a\0"', "NUL"),
        ('root ::= "a" )', "new line"),
        ('root ::= ("a"', "expecting )"),
        ('root ::= "\\q"', "unknown escape"),
        ('root ::= "\\xg1"', "hexadecimal"),
        ('root ::= "\\ud800"', "surrogate"),
        ('root ::= "a"{x}', "count"),
        ('root ::= "a"{12345678901}', "too large"),
        ('root ::= "a"{+1,+9}', "count"),
        ('root ::= "a"{-1}', "count"),
        ("root ::= <think>", "Lark"),
        ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, "nests"),
        ("\n".join(f"r{i} ::= r{i + 1}" for i in range(11_000)), "rules"),
        ('root ::= "a"{3,1}', "at least 3 and at most 1"),
        ("root ::= [a]{3 , 1 }", "at least 3 and at most 1"),
    ],
    ids=lambda value: value[:30],
)
def test_bad_grammars_are_refused_in_one_line(gbnf: str, why: str) -> None:
    with pytest.raises(ConfigError, match="grammar: ") as caught:
        read_grammar(gbnf)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 250


def test_without_recursion_it_is_one_terminal() -> None:
    assert to_lark('root ::= a "b"\na ::= "c"') == 'start: T0\nT0: T1 "b"\nT1: "c"'
    assert to_lark('root ::= "ab" root?') == 'start: r0\nr0: "a" "b" (r0){0,1}'


def test_what_looks_like_a_repetition_may_be_text() -> None:
    assert to_lark('root ::= "{3,1}" # {3,1}') == 'start: T0\nT0: "{3,1}"'
