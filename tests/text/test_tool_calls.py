"""Tool calls come out of streamed text whole, however it is split; what is no call stays text."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgguf.errors import ConfigError
from specgguf.text.tools.calls import ToolCall, ToolCallParser, choose, parse_call

CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "é"}}\n</tool_call>'
PARSED = ToolCall("f", '{"x": "é"}')


def parse(text: str, points: list[int], names: tuple[str, ...] = ()) -> list[str | ToolCall]:
    """Parts of `text` fed in pieces, neighbouring texts joined."""
    parser = ToolCallParser(names)
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


def test_any_is_another_word_for_required() -> None:
    tools = [tool("f"), tool("g")]
    assert choose(tools, "any") == choose(tools, "required")
    assert choose(tools, "any").is_required


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
        (None, "any", ConfigError),
        ([tool("f")], "some", ConfigError),
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


F = ToolCall("f", '{"x": 1}')
FORMATS = {
    "Qwen, Hermes": '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>',
    "Qwen3-Coder": "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>",
    "Qwen2.5-Coder, in tags": '<tools>\n{"name": "f", "arguments": {"x": 1}}\n</tools>',
    "Qwen2.5-Coder, bare": '{"name": "f", "arguments": {"x": 1}}',
    "Qwen2.5-Coder, fenced": '```json\n{\n  "name": "f",\n  "arguments": {"x": 1}\n}\n```',
    "Llama 3": '{"name": "f", "parameters": {"x": 1}}',
    "Llama 3.1": '<|python_tag|>{"name": "f", "parameters": {"x": 1}}',
    "Llama 3.2": "[f(x=1)]",
    "Llama with a type": '{"type": "function", "name": "f", "parameters": {"x": 1}}',
    "OpenAI's own": '[{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\\"x\\": 1}"}}]',
    "Mistral": '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]',
    "Mistral, without its control token": ' [{"name": "f", "arguments": {"x": 1}}]',
    "Mistral since 2025": '[TOOL_CALLS]f[ARGS]{"x": 1}',
    "DeepSeek V3": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
    '{"x": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "DeepSeek V3.1": '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>",
    "Gemma": "```tool_code\nprint(f(x=1))\n```",
    "FunctionGemma": "<start_function_call>call:f{x:1}<end_function_call>",
}


@pytest.mark.parametrize("text", FORMATS.values(), ids=FORMATS)
def test_the_formats_of_common_templates(text: str) -> None:
    assert parse(text, [], ("f", "g")) == [F]
    assert parse(text, list(range(len(text))), ("f", "g")) == [F], "one character at a time"


def test_several_calls() -> None:
    one, two = '{"name": "f", "arguments": {"x": 1}}', '{"name": "g", "arguments": {}}'
    both = [F, ToolCall("g", "{}")]
    for text in (f"{one}\n{two}", f"[{one}, {two}]", f"```json\n{one}\n```\n```json\n{two}\n```", f"{one}; {two}"):
        assert parse(text, [], ("f", "g")) == both, text
    assert parse(f"[TOOL_CALLS] [{one}, {two}]", []) == both
    assert parse('[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}', []) == both
    text = 'call:f{x:1,s:<escape>a "b": {c}<escape>}'
    (call,) = parse(f"<start_function_call>{text}<end_function_call>", [])
    assert call == ToolCall("f", '{"x": 1, "s": "a \\"b\\": {c}"}')


ORDINARY = [
    '{"name": "Bob", "age": 7}',
    '{"name": "f", "age": 7}',
    '{"name": "h", "arguments": {"x": 1}}',
    '{"name": "f"}',
    '{"city": "Paris"}',
    "[1, 2, 3]",
    "[f is a function]",
    'A call looks so:\n```json\n{"name": "f", "arguments": {"x": 1}}\n```',
    '{"name": "f", "arguments": {"x": 1}} is how a call looks.',
    '```json\n{"name": "f", "arguments": {"x": 1}}\n```\nThis calls f.',
    "```python\nprint(g(1))\n```",
    "```python\nprint('f')\n```",
    '{"name": "f", "arguments": {"x": 1',
    "f(x=1) is a call",
    "```",
    "{",
    "{" * 5000,
    "[" * 5000,
    " ",
]


@pytest.mark.parametrize("text", ORDINARY, ids=lambda text: text[:30])
def test_an_ordinary_answer_is_no_call(text: str) -> None:
    assert parse(text, [], ("f", "g")) == [text]
    assert parse(text, list(range(len(text)))[:200], ("f", "g")) == [text]


def test_without_tools_nothing_bare_is_a_call() -> None:
    assert parse(FORMATS["Qwen2.5-Coder, bare"], []) == [FORMATS["Qwen2.5-Coder, bare"]]


def test_an_ordinary_answer_is_not_held_back() -> None:
    parser = ToolCallParser(["get_weather"])
    assert parser.feed('{"ci') == ['{"ci']
    parser = ToolCallParser(["get_weather"])
    assert parser.feed('{"name": "Bo') == ['{"name": "Bo']
    parser = ToolCallParser(["get_weather"])
    assert parser.feed("```python\nimport os") == ["```python\nimport os"]


bare = st.lists(
    st.sampled_from(
        ['{"name"', ': "f"', ', "arguments"', ": {", "}", "[", "]", "```", "json\n", "\n", "f(", "x=1)", "a"]
    ),
    max_size=10,
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(bare.map("".join), st.data())
def test_the_split_of_bare_calls_does_not_matter(text: str, data: st.DataObject) -> None:
    points = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert parse(text, points, ("f",)) == parse(text, [], ("f",))
