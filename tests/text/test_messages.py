"""Messages are checked by name before any template sees them."""

from __future__ import annotations

from typing import Any

import pytest

from specgguf.errors import ConfigError, Unsupported
from specgguf.text.messages import normalized


def test_content_becomes_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    given: list[dict[str, Any]] = [
        {"role": "developer", "content": "s"},
        {"role": "user", "content": parts, "name": "Ann"},
        {"role": "assistant", "content": "x", "tool_calls": None, "reasoning_content": "r"},
    ]
    assert normalized(given) == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\nb", "name": "Ann"},
        {"role": "assistant", "content": "x", "reasoning_content": "r"},
    ]
    assert given[1]["content"] is parts, "the caller's messages are not touched"


@pytest.mark.parametrize(("arguments", "wanted"), [('{"x": 1}', {"x": 1}), ("", {}), (None, {}), ({"x": 1}, {"x": 1})])
def test_tool_call_arguments_become_objects(arguments: Any, wanted: Any) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    (message,) = normalized([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert message["content"] == ""
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": wanted}
    assert message["tool_calls"][0]["id"] == "call_1"


def nested(n: int) -> Any:
    value: Any = 0
    for _ in range(n):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("messages", "names"),
    [
        ([], "messages"),
        ("hello", "messages"),
        (None, "messages"),
        ({"role": "user"}, "messages"),
        ([3], "messages[0]"),
        ([{"role": "usr", "content": "x"}], "messages[0]: role"),
        ([{"content": "x"}], "messages[0]: role"),
        ([{"role": ["user"], "content": "x"}], "messages[0]: role"),
        ([{"role": "user", "content": 7}], "messages[0]: content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
        ([{"role": "assistant", "content": "", "tool_calls": ["f"]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "content": "", "tool_calls": 5}], "messages[0].tool_calls"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 100_000}}]}],
            "messages[0].tool_calls[0]: arguments are nested too deeply",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 65 + "]" * 65}}]}],
            "messages[0] is nested more than 64 deep",
        ),
        ([{"role": "user", "content": "x", "more": nested(300)}], "messages[0] is nested more than 64 deep"),
    ],
)
def test_wrong_messages_are_refused_by_name(messages: Any, names: str) -> None:
    with pytest.raises(ConfigError) as caught:
        normalized(messages)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hint_for_a_misspelt_role() -> None:
    with pytest.raises(ConfigError) as caught:
        normalized([{"role": "assistent", "content": "x"}])
    assert caught.value.hint == "did you mean 'assistant'?"


def test_what_is_not_text_is_unsupported() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(Unsupported, match=r"messages\[0\].content\[1\].*image_url"):
        normalized([{"role": "user", "content": [{"type": "text", "text": "what is"}, image]}])


def test_histories_of_other_clients_are_served() -> None:
    """Contents that are null or absent, tools' answers in parts, calls of the older kind and calls that were cut."""
    given: list[dict[str, Any]] = [
        {"role": "user", "content": None},
        {"role": "assistant"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"x": 1}'}},
        {"role": "function", "name": "f", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": '{"x": '}}]},
        {"role": "tool", "tool_call_id": "a", "content": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "function_call": None},
    ]
    plain = normalized(given)
    assert [message["role"] for message in plain] == [
        "user", "assistant", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert [message["content"] for message in plain] == ["", "", "", "1\n2", "", "", "no"]
    assert plain[2]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert plain[4]["tool_calls"][0]["function"]["arguments"] == {"unparsed": '{"x": '}
    assert not any("function_call" in message for message in plain)
