"""Templates render through llama-cpp-python, refuse in words, and conversations are made to fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny import CHAT_TEMPLATE

from specgguf.errors import ConfigError, ContextFull, Unsupported
from specgguf.text.template import ChatTemplate, NamedTemplate, fit

# The parts of Qwen3's template that matter here: earlier reasoning is dropped, enable_thinking, tools.
QWEN3_LIKE = """
{%- if tools %}<|im_start|>system
<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools><|im_end|>
{% endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if message.role == "user" and ns.searching %}
        {%- set ns.searching = false %}
        {%- set ns.last_query = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- set reasoning = message.reasoning_content or '' %}
    {%- if message.role == "assistant" and '</think>' in content %}
        {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if reasoning and loop.index0 > ns.last_query %}{{- '<think>' + reasoning + '</think>' }}{%- endif %}
    {{- content }}
    {%- for call in message.tool_calls %}
        {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

GEMMA_LIKE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate\nuser/assistant') }}{% endif %}"
    "{{ message['role'] }}:{{ message['content'] }}\n{% endfor %}"
)


def template(text: str, **more: str) -> ChatTemplate:
    return ChatTemplate({"tokenizer.chat_template": text, **more}, bos="<s>", eos="</s>")


def said(*texts: str) -> list[dict[str, Any]]:
    """user, assistant, user, …"""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


def test_renders_the_files_own_template() -> None:
    chat = template(CHAT_TEMPLATE)
    assert chat.render(said("hi")) == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat.render(said("hi"), add_generation_prompt=False) == "<|im_start|>user\nhi<|im_end|>\n"
    assert chat.stop == ("</s>",)


def test_bos_is_seen_where_the_template_prints_it() -> None:
    printing, silent = template(GEMMA_LIKE), template(CHAT_TEMPLATE)
    assert printing.has_bos(printing.render(said("hi")))
    assert not silent.has_bos(silent.render(said("hi")))
    without = ChatTemplate({"tokenizer.chat_template": GEMMA_LIKE}, bos="", eos="")
    assert not without.has_bos(without.render(said("hi")))
    assert without.stop == ()


def test_refusals_are_one_readable_line() -> None:
    chat = template(GEMMA_LIKE)
    with pytest.raises(ConfigError, match="refuses the conversation: System role not supported") as caught:
        chat.render([{"role": "system", "content": "s"}, *said("hi")])
    assert "system message" in caught.value.hint
    with pytest.raises(ConfigError, match="must alternate user/assistant") as caught:
        chat.render([*said("a"), *said("b")])
    assert "alternate" in caught.value.hint
    for odd in ("{{ messages[0].content + none }}", "{% for i in range(10**9) %}{% endfor %}", "{{ 1 // 0 }}"):
        with pytest.raises(ConfigError, match="refuses"):
            template(odd).render(said("hi"))
    with pytest.raises(ConfigError, match="role must be one of"):
        chat.render([{"role": "bot", "content": "x"}])


def test_files_without_a_usable_template() -> None:
    with pytest.raises(Unsupported, match="no chat template") as caught:
        ChatTemplate({}, bos="", eos="")
    for rollback in ("instruct model", "in Python, chat_format=", "/v1/completions of specgguf serve"):
        assert rollback in caught.value.hint
    with pytest.raises(Unsupported, match="broken") as caught:
        template("{% if %}")
    assert "chat_format" in caught.value.hint


def test_thinking_switch_reaches_the_template() -> None:
    chat = template(QWEN3_LIKE)
    asked = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chat.render(said("hi")) == asked
    assert chat.render(said("hi"), enable_thinking=True) == asked
    assert chat.render(said("hi"), enable_thinking=False) == asked + "<think>\n\n</think>\n\n"


def test_reasoning_is_not_sent_back() -> None:
    chat = template(QWEN3_LIKE)
    history = said("hi", "<think>\nSECRET\n</think>\n\nhello", "and?")
    assert "SECRET" not in chat.render(history)
    assert "hello" in chat.render(history)
    history[1] = {"role": "assistant", "content": "hello", "reasoning_content": "SECRET"}
    assert "SECRET" not in chat.render(history)
    assert "SECRET" in chat.render(history[:2], add_generation_prompt=False), (
        "the template was not asked, or the test sees nothing"
    )


def test_tools_and_calls_reach_the_template() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}
    history = [
        *said("hi"),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "42"},
    ]
    text = template(QWEN3_LIKE).render(history, tools=tools)
    assert '<tools>{"type": "function", "function": {"name": "f", "parameters": {}}}</tools>' in text
    assert '{"name": "f", "arguments": {"x": "é"}}' in text
    assert template(QWEN3_LIKE).knows_tools
    assert not template(CHAT_TEMPLATE).knows_tools
    own = template("plain", **{"tokenizer.chat_template.tool_use": "with tools"})
    assert (own.render(said("hi")), own.render(said("hi"), tools=tools)) == ("plain", "with tools")


def test_named_formats_of_llama_cpp_python() -> None:
    chat = NamedTemplate("chatml")
    assert chat.render(said("hi")).endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert chat.stop == ("<|im_end|>",)
    assert "<start_of_turn>user\nhi" in NamedTemplate("gemma").render(said("hi"))
    with pytest.raises(ConfigError) as caught:
        NamedTemplate("mistral-instrct")
    assert caught.value.hint == "did you mean 'mistral-instruct'?"
    with pytest.raises(Unsupported):
        chat.render(said("hi"), enable_thinking=True)
    with pytest.raises(Unsupported):
        NamedTemplate("functionary-v2")


def words(messages: list[dict[str, Any]]) -> int:
    return sum(len(m["content"].split()) + 1 for m in messages)


SYSTEM = {"role": "system", "content": "be brief"}


def test_what_fits_is_left_alone() -> None:
    history = [SYSTEM, *said("a", "b", "c")]
    assert fit(history, words, words(history), overflow="stop") == (history, 0)


def test_a_third_is_freed_at_once() -> None:
    history = [SYSTEM, *said(*(["x " * 9] * 20), "now")]
    kept, n_dropped = fit(history, words, 150, overflow="drop")
    assert kept[0] == SYSTEM
    assert kept[1]["role"] == "user"
    assert kept[1:] == history[1 + 2 * n_dropped :]
    assert words(kept) <= 100
    assert words([SYSTEM, *history[1 + 2 * (n_dropped - 1) :]]) > 100, "one turn less would have been enough"


def test_when_a_third_cannot_be_freed_what_fits_is_enough() -> None:
    history = [SYSTEM, *said("x " * 9, "x " * 9, "x " * 40)]
    kept, n_dropped = fit(history, words, 50, overflow="drop")
    assert (kept, n_dropped) == ([SYSTEM, history[-1]], 1)


def test_what_cannot_fit_says_so() -> None:
    history = [SYSTEM, *said("a", "b", "x " * 50)]
    with pytest.raises(ContextFull, match="the last message alone takes 54 tokens and 30 fit"):
        fit(history, words, 30, overflow="drop")
    with pytest.raises(ContextFull, match="the last message alone"):
        fit(said("x " * 50), words, 30, overflow="drop")
    with pytest.raises(ContextFull, match="the conversation takes") as caught:
        fit([SYSTEM, *said("a " * 20, "b " * 20, "c")], words, 30, overflow="stop")
    assert "--overflow drop" in caught.value.hint
    with pytest.raises(ConfigError):
        fit(history, words, 30, overflow="never")


@pytest.mark.parametrize("head", [[], [SYSTEM]], ids=["bare", "system"])
def test_one_turn_that_cannot_fit_is_not_told_to_drop_turns(head: list[dict[str, Any]]) -> None:
    for overflow in ("stop", "drop"):
        with pytest.raises(ContextFull, match="the last message alone takes") as caught:
            fit([*head, *said("x " * 50)], words, 30, overflow=overflow)
        assert caught.value.hint == "shorten it, or use a larger --n-ctx"


def test_what_is_too_long_to_be_counted_goes() -> None:
    """A count that refuses says "too many"; where nothing is left to drop, its own words stand."""

    def refusing(messages: list[dict[str, Any]]) -> int:
        if words(messages) > 100:
            raise ContextFull("not counted")
        return words(messages)

    history = [SYSTEM, *said("a", "x " * 500, "b", "c", "now")]
    assert fit(history, refusing, 30, overflow="drop") == ([SYSTEM, *history[3:]], 1)
    with pytest.raises(ContextFull, match="more tokens than could be counted and 30 fit"):
        fit(history, refusing, 30, overflow="stop")
    with pytest.raises(ContextFull, match="not counted"):
        fit([SYSTEM, *said("a", "b", "x " * 500)], refusing, 30, overflow="drop")


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=15), st.booleans(), st.integers(20, 200))
def test_fit_keeps_an_end_of_the_conversation(sizes: list[int], system: bool, budget: int) -> None:
    turns = said(*["x " * n for n in sizes])
    turns = turns if len(turns) % 2 else turns[:-1]
    head = [SYSTEM] if system else []
    try:
        kept, n_dropped = fit(head + turns, words, budget, overflow="drop")
    except ContextFull:
        assert words(head + turns[-1:]) > budget
        return
    assert words(kept) <= budget
    assert kept == head + turns[2 * n_dropped :]
    assert (n_dropped == 0) == (words(head + turns) <= budget)


# As in gpt-oss: how much to think is a line of the system prompt.
EFFORT = (
    "{% if reasoning_effort is not defined %}{% set reasoning_effort = 'medium' %}{% endif %}"
    "Reasoning: {{ reasoning_effort }}\n{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
)


def test_an_effort_reaches_a_template_that_knows_it() -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert template(EFFORT).render(messages) == "Reasoning: medium\nhi\n"
    assert template(EFFORT).render(messages, reasoning_effort="high") == "Reasoning: high\nhi\n"
    plain = template(QWEN3_LIKE)
    assert plain.render(messages, reasoning_effort="high") == plain.render(messages)


def test_a_named_format_leaves_an_effort_out_and_refuses_a_switch() -> None:
    chatml, messages = NamedTemplate("chatml"), [{"role": "user", "content": "hi"}]
    effort: dict[str, Any] = {"enable_thinking": True, "reasoning_effort": "low"}
    assert chatml.render(messages, **effort) == chatml.render(messages)
    with pytest.raises(Unsupported, match="enable_thinking"):
        chatml.render(messages, enable_thinking=True)
