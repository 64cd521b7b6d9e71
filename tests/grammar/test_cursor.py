"""A compiled grammar along generated tokens: what it allows, after any jumps, and never for long."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import Pair
from support import bombs
from support.bombs import limited

from specgguf.errors import BackendError, Busy, ConfigError
from specgguf.grammar import cursor as module
from specgguf.grammar.cursor import GrammarCursor, compile_grammar, compiled, within
from specgguf.grammar.sources import json_grammar
from specgguf.native.weights import Weights

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
def weights(tiny_chat: Pair) -> Iterator[Weights]:
    loaded = Weights(str(tiny_chat.target))
    yield loaded
    loaded.close()


@pytest.fixture(autouse=True)
def no_compiler_left() -> Iterator[None]:
    """A compiler that a test gave up on counts until it ends; the next test begins with none."""
    yield
    for _ in range(module.COMPILERS_MAX):
        assert module._compilers.acquire(timeout=60.0)
    module._compilers.release(module.COMPILERS_MAX)


def ids_of(text: str) -> list[int]:
    """One byte token per byte (see tiny.chat)."""
    return [5 + byte for byte in text.encode()]


def allowed(cursor: GrammarCursor, ids: list[int]) -> list[int]:
    return np.flatnonzero(np.unpackbits(cursor.mask(ids), bitorder="little")).tolist()


def test_allows_what_the_grammar_says(weights: Weights) -> None:
    cursor = compile_grammar('root ::= "ab" [0-9]? "c"', weights)
    assert allowed(cursor, ids_of("ab")) == ids_of("0123456789c")


def test_after_the_end_only_eog_then_nothing(weights: Weights) -> None:
    cursor = compile_grammar('root ::= "a"', weights)
    ends = sorted(weights.eog)
    assert allowed(cursor, ids_of("a")) == ends
    assert allowed(cursor, [*ids_of("a"), ends[0]]) == []
    with pytest.raises(BackendError, match="does not allow token"):
        cursor.mask([*ids_of("a"), ends[0], ends[0]])


def test_a_forbidden_token_raises_and_changes_nothing(weights: Weights) -> None:
    cursor = compile_grammar('root ::= "abc"', weights)
    for token in (ids_of("x")[0], 2):
        with pytest.raises(BackendError, match=f"does not allow token {token} here"):
            cursor.mask([*ids_of("a"), token])
    assert allowed(cursor, ids_of("a")) == ids_of("b")
    with pytest.raises(BackendError):
        cursor.mask(ids_of("abx"))
    assert allowed(cursor, ids_of("ab")) == ids_of("c")


def test_equals_a_fresh_cursor_after_any_jumps(weights: Weights) -> None:
    """Random walks through JSON: drafts of up to 6, rejected anywhere, longer rollbacks, other beginnings."""
    source = random.Random(5)
    grammar = json_grammar(SCHEMA)
    cursor = compile_grammar(grammar, weights)
    ids: list[int] = []
    for step in range(400):
        legal = allowed(cursor, ids)
        assert legal
        token = source.choice(legal)
        if token not in weights.eog:
            ids = [*ids, token]
        if step % 7 == 6:
            ids = ids[: max(0, len(ids) - source.choice((1, 2, 6, 30, 1000)))]
        if step % 20 == 0:
            assert allowed(compile_grammar(grammar, weights), ids) == allowed(cursor, ids)


def test_forgets_the_tokens_it_rolled_back(weights: Weights) -> None:
    cursor = compile_grammar('root ::= "abcde" "1" | "abe" "2"', weights)
    for text, following in (("abcd", "e"), ("abe", "2"), ("abcde", "1")):
        assert allowed(cursor, ids_of(text)) == ids_of(following)


def test_a_rolled_back_draft_is_not_matched_again(weights: Weights) -> None:
    """Masks of the last positions are kept; memory does not grow with the text."""
    cursor = compile_grammar('root ::= "a"*', weights)
    ids = ids_of("a" * 100)
    for n in range(101):
        cursor.mask(ids[:n])
    assert len(cursor._masks) == module.N_KEPT
    kept = cursor.mask(ids[:95])
    assert cursor.mask(ids[:95]) is kept


def test_characters_split_over_tokens(weights: Weights) -> None:
    first, second = ids_of("é")
    cursor = compile_grammar("root ::= [éb]", weights)
    assert set(allowed(cursor, [])) >= {first, *ids_of("b")}
    assert allowed(cursor, [first]) == [second]


def test_what_is_forced(weights: Weights) -> None:
    cursor = compile_grammar('root ::= "ab" ("cd" | "ce") "f"', weights)
    assert cursor.forced([]) == ids_of("abc")
    assert cursor.forced(ids_of("abc")) == []
    assert cursor.forced(ids_of("abcd")) == ids_of("f")
    assert allowed(cursor, ids_of("ab")) == ids_of("c"), "asking changes nothing"


def test_schemas(weights: Weights) -> None:
    def after(schema: Any, text: str) -> list[int]:
        return allowed(compile_grammar(json_grammar(schema), weights), ids_of(text))

    assert after(None, '{"a": [1, {"b": null}], "c": "é"}') == sorted(weights.eog)
    assert after(json.dumps(SCHEMA), '{"name": "x", "sizes": [1, 2], "kind": "x"}') == sorted(weights.eog)
    with pytest.raises(BackendError):
        after(SCHEMA, '{"size')


def test_the_warning_names_the_line_that_asked(weights: Weights) -> None:
    """Outside the package, however deep inside it the schema was met."""
    with pytest.warns(UserWarning, match="not enforced.*uniqueItems") as caught:
        compile_grammar(json_grammar({"type": "array", "uniqueItems": True}, strict=False), weights)
    assert [w.filename for w in caught] == [__file__]


# --- limits ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def exploded(tiny_chat: Pair) -> subprocess.CompletedProcess[str]:
    """All bombs, in one process with limits of its own: nothing that goes wrong there stops this one."""
    return ended(limited([sys.executable, "-P", bombs.__file__, str(tiny_chat.target)]))


def ended(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", bombs.BOMBS)
def test_no_grammar_takes_long_or_ends_the_process(exploded: subprocess.CompletedProcess[str], name: str) -> None:
    """Refused in a line, or compiled and followed for a few tokens."""
    became = [line for line in exploded.stdout.splitlines() if line.startswith(f"{name}: ")]
    assert len(became) == 1, (exploded.returncode, exploded.stdout[-500:], exploded.stderr[-500:])


def test_what_would_take_for_ever_is_ended() -> None:
    """The limits hold: of time, and, where the system knows such a limit, of memory."""
    assert ended(limited([sys.executable, "-c", "while True: pass"], cpu_s=1)).returncode in (
        -signal.SIGXCPU,
        -signal.SIGKILL,
    )
    if sys.platform == "linux":
        greedy = ended(limited([sys.executable, "-c", "bytearray(2**32)"], memory=2**30))
        assert "MemoryError" in greedy.stderr


def test_a_grammar_over_its_limits_is_refused(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="longer than"):
        compile_grammar('root ::= "' + "a" * 2**18 + '"', weights)
    monkeypatch.setattr(module, "COMPILE_S", 0.0)
    with pytest.raises(ConfigError, match="compiling it takes more than 0 s"):
        compile_grammar(json_grammar({"properties": {f"p{i}": {} for i in range(2000)}}), weights)


def test_who_waits_for_a_compiler_waits_no_longer_than_the_deadline() -> None:
    stuck = threading.Event()
    assert within(0.01, stuck.wait) is None
    stuck.set()
    assert within(60.0, lambda: 5) == 5


def test_what_a_compiler_raises_is_raised_where_it_was_asked_for() -> None:
    def failing() -> None:
        raise ZeroDivisionError("deep inside")

    for _ in range(module.COMPILERS_MAX + 1):  # and it counts no more
        with pytest.raises(ZeroDivisionError, match="deep inside"):
            within(60.0, failing)


def test_no_more_compilers_than_two_even_if_nobody_waits_for_them() -> None:
    stuck = threading.Event()
    ended = [threading.Event() for _ in range(module.COMPILERS_MAX)]

    def stuck_until(end: threading.Event) -> None:
        stuck.wait()
        end.set()

    try:
        for end in ended:
            assert within(0.01, functools.partial(stuck_until, end)) is None
        with pytest.raises(Busy, match="2 other grammars are still being compiled"):
            within(0.01, lambda: 5)
    finally:
        stuck.set()
    assert all(end.wait(60.0) for end in ended)
    assert within(60.0, lambda: 5) == 5


class Held:
    """A vocabulary that a matcher is made from only once the test lets it."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.grammar_tokenizer = weights.grammar_tokenizer
        self.inside, self.go_on = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Weights]:
        with self.weights.in_use():
            self.inside.set()
            self.go_on.wait()
            yield self.weights


def test_the_file_stays_while_an_abandoned_compiler_reads_it(tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(Weights(str(tiny_chat.target)))
    closing = threading.Thread(target=held.weights.close)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(module, "COMPILE_S", 0.01)
            with pytest.raises(ConfigError, match="takes more than"):
                compile_grammar('root ::= "a"', held)
        assert held.inside.wait(60.0)
        closing.start()
        closing.join(0.2)
        assert closing.is_alive(), "the file was freed under it"
    finally:
        held.go_on.set()
    closing.join(60.0)
    assert not closing.is_alive()
    with pytest.raises(ConfigError, match="was closed"):
        compile_grammar('root ::= "a"', held)


def test_a_cursor_over_a_limit_says_so_and_goes_on(weights: Weights) -> None:
    """A step that takes more than llguidance grants kills its matcher; the next question is answered by another."""
    import llguidance

    limits = llguidance.LLParserLimits(step_max_items=1)
    tokenizer = weights.grammar_tokenizer
    source = json.dumps({"grammars": [{"lark_grammar": 'start: ("a" | start "b" | "c" start)*'}]})
    cursor = GrammarCursor(llguidance.LLMatcher(tokenizer, source, log_level=0, limits=limits), tokenizer.eos_tokens)
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"the grammar cannot be followed here: .*Too many"):
            cursor.mask(ids_of("c"))


def test_an_answer_of_slow_steps_is_given_up(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step is within its limits; what they take together is not."""
    seconds = iter(range(10**6))
    monkeypatch.setattr(module, "thread_time", lambda: next(seconds) / 2)  # half a second a step
    cursor = compile_grammar('root ::= "a"*', weights)
    for n in range(10):
        cursor.mask(ids_of("a" * n))
    with pytest.raises(ConfigError, match=r"too long to follow: 5.5 s for 10 tokens"):
        cursor.mask(ids_of("a" * 10))
    quick = compile_grammar('root ::= "a"*', weights)
    monkeypatch.setattr(module, "thread_time", lambda: next(seconds) / 100)
    for n in range(300):
        quick.forced(ids_of("a" * n))


def test_a_compiled_grammar_is_compiled_once(
    weights: Weights, tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = compiled(json_grammar(SCHEMA), weights)
    compile_grammar("root ::= [a-z]", weights)
    with monkeypatch.context() as patch:
        patch.setattr(module, "within", lambda seconds, work: pytest.fail("compiled again"))
        first, second = compile_grammar(made, weights), compile_grammar(made, weights)
        assert compiled(made, weights) is made
    assert allowed(first, ids_of('{"name')) == ids_of('"')
    assert allowed(second, []) == ids_of("{")
    other = Weights(str(tiny_chat.target))  # another vocabulary, though the same in fact
    try:
        assert allowed(compile_grammar(made, other), []) == ids_of("{")
    finally:
        other.close()
    with pytest.raises(ConfigError, match="was closed"):
        compile_grammar(made, other)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "foo"}, "foo"),
        ({"$ref": "#/definitions/x"}, "definitions/x"),
        ({"$ref": "https://x.y/z"}, "https://x.y/z"),
        ({"type": "string", "minLength": 3, "maxLength": 1}, "minLength"),
        ({"anyOf": [{"enum": []}]}, "nsatisfiable"),
        ({"type": "array", "uniqueItems": True}, "kept to the letter: uniqueItems"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "kept to the letter: oneOf"),
        ({"properties": {"a": {"type": "string", "pattern": "^(?=a)b$"}}}, "look-ahead"),
    ],
)
def test_bad_schemas_are_refused_in_one_line(weights: Weights, schema: Any, why: str) -> None:
    with pytest.raises(ConfigError, match="JSON schema: ") as caught:
        compile_grammar(json_grammar(schema), weights)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
