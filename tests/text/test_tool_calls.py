"""Tool calls come out of streamed text whole, however it is split; what is no call stays text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgguf.errors import ConfigError
from specgguf.text.tool_calls import ToolCall, ToolCallParser, choose, parse_call

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
PARSED = ToolCall("f", '{"x": "é"}')


def parse(text: str, points: list[int]) -> list[str | ToolCall]:
    """Parts of `text` fed in pieces, neighbouring texts joined."""
    parser = ToolCallParser()
    edges = [0, *sorted(points), len(text)]
    parts = [part for i, j in pairwise(edges) for part in parser.feed(text[i:j])] + parser.flush()
    joined: list[str | ToolCall] = []
    for part in parts:
        if joined and isinstance(part, str) and isinstance(last := joined[-1], str):
            joined[-1] = last + part
        else:
            joined.append(part)
    return joined


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (CALL, [PARSED]),
        (f"Let me see.\n\n{CALL}\n{CALL}\n", ["Let me see.", PARSED, PARSED]),
        (f"{CALL} done", [PARSED, "done"]),
        ("plain <tool text", ["plain <tool text"]),
        (" x \n", [" x \n"]),
        ("a <tool_call>not json</tool_call> b", ["a <tool_call>not json</tool_call> b"]),
        ('a <tool_call>{"x": 1}</tool_call>', ['a <tool_call>{"x": 1}</tool_call>']),
        (CALL.removesuffix("</tool_call>"), [PARSED]),
        ('<tool_call>\n{"name": "f", "argu', ['<tool_call>\n{"name": "f", "argu']),
        (f"{CALL}\n<tool_call>?</tool_call>", [PARSED, "<tool_call>?</tool_call>"]),
        ("", []),
    ],
)
def test_calls_and_text(text: str, parts: list[str | ToolCall]) -> None:
    assert parse(text, []) == parts
    assert parse(text, list(range(len(text)))) == parts, "one character at a time"


texts = st.lists(st.sampled_from([CALL, "<tool_call>", "</tool_call>", " ", "\n", "a", "<", "{}"]), max_size=8)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(texts.map("".join), st.data())
def test_the_split_does_not_matter(text: str, data: st.DataObject) -> None:
    points = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert parse(text, points) == parse(text, [])


def test_parse_call() -> None:
    assert parse_call('{"name": "f", "arguments": "{}"}') == ToolCall("f", "{}")
    assert parse_call('{"name": "f", "parameters": {"a": 1}}') == ToolCall("f", '{"a": 1}')
    assert parse_call('{"name": "f"}') == ToolCall("f", "{}")
    for wrong in ("", "[]", '{"name": 3}', '"f"', "{'name': 'f'}"):
        assert parse_call(wrong) is None


def tool(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "title": name}}}


def test_choices() -> None:
    tools = [tool("f"), tool("g")]
    assert choose(None, None).tools == ()
    assert choose(tools, None).tools == tuple(tools)
    assert choose(tools, "auto") == choose(tools, None)
    assert choose(tools, "none").tools == ()
    forced = choose(tools, {"type": "function", "function": {"name": "g"}})
    assert (forced.forced, forced.schemas()) == ("g", [("g", {"type": "object", "title": "g"}, True)])
    required = choose(tools, "required")
    assert (required.is_required, [name for name, _, _ in required.schemas()]) == (True, ["f", "g"])


def test_a_strict_tool_is_strict_unless_it_says_no() -> None:
    for strict in (None, True, False):
        function = {"name": "f", "strict": strict}
        assert choose([{"type": "function", "function": function}], "required").schemas() == [
            ("f", {"type": "object"}, strict is not False)
        ]


def test_a_text_that_begins_inside_a_call() -> None:
    """Whole, in pieces, or no call at all: nothing is added and nothing lost."""
    call = '{"name": "f", "arguments": {"a": 1}}'
    for text, wanted in ((call, [ToolCall("f", '{"a": 1}')]), ('{"name": "f", "arg', ['{"name": "f", "arg'])):
        parser = ToolCallParser(opened=True)
        parts = [part for char in text for part in parser.feed(char)]
        assert parts + parser.flush() == wanted


@pytest.mark.parametrize(
    ("tools", "choice", "error"),
    [
        (None, "required", ConfigError),
        ([tool("f")], "any", ConfigError),
        ([tool("f")], {"type": "function", "function": {"name": "h"}}, ConfigError),
        ([tool("f")], {"function": "f"}, ConfigError),
        ("f", None, ConfigError),
        (["f"], None, ConfigError),
        ([{"type": "function", "function": {}}], None, ConfigError),
        ([{"type": "retrieval", "function": {"name": "f"}}], None, ConfigError),
    ],
)
def test_wrong_choices_are_refused(tools: Any, choice: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        choose(tools, choice)
