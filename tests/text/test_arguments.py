"""llama-cpp-python's call arguments become settings, or are refused by name."""

from __future__ import annotations

import dataclasses
import inspect
import math
from typing import Any

import llama_cpp
import pytest

from specgguf import ConfigError, SamplingParams, SpeculativeLlama, Unsupported
from specgguf.config import LIMITS, DraftConfig
from specgguf.grammar.sources import json_grammar, read_grammar, tools_grammar
from specgguf.text.arguments import (
    NEUTRAL,
    SAMPLING,
    ToolRequest,
    completion_params,
    draft_config,
    thinking_of,
    tool_request,
)

CONFIG = DraftConfig(draft="auto", draft_max=5)
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(SpeculativeLlama.create_completion).parameters.items()
    if parameter.default is not inspect.Parameter.empty
}


def params(**given: Any) -> SamplingParams:
    return completion_params(CONFIG, {**DEFAULTS, **given})[0]


def test_defaults_are_those_of_create_completion() -> None:
    got = params()
    wanted = SamplingParams(max_tokens=16)
    assert got == wanted
    assert completion_params(CONFIG, DEFAULTS)[1] == CONFIG


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.3),
        ("top_k", 7),
        ("top_p", 0.5),
        ("min_p", 0.2),
        ("typical_p", 0.7),
        ("frequency_penalty", 0.4),
        ("presence_penalty", -0.4),
        ("repeat_penalty", 1.2),
        ("max_tokens", None),
        ("seed", 0),
        ("min_tokens", 3),
        ("ignore_eos", True),
        ("logprobs", 4),
    ],
)
def test_each_argument_arrives_and_nothing_else_changes(name: str, value: Any) -> None:
    assert params(**{name: value}) == dataclasses.replace(params(), **{name: value})
    assert name in SAMPLING


def test_every_sampling_argument_is_an_argument_of_the_call() -> None:
    assert set(SAMPLING) <= set(DEFAULTS)
    assert set(NEUTRAL) - {"functions", "function_call"} <= set(DEFAULTS)
    theirs = inspect.signature(llama_cpp.Llama.create_completion).parameters
    for name, (neutral, _) in NEUTRAL.items():
        if name in theirs:
            assert theirs[name].default == neutral


@pytest.mark.parametrize("name", NEUTRAL)
def test_what_cannot_be_exact_is_refused_by_name(name: str) -> None:
    for neutral in (NEUTRAL[name][0], None):
        params(**{name: neutral})
    with pytest.raises(Unsupported, match=f"^{name} is not supported: "):
        params(**{name: 2})


@pytest.mark.parametrize(
    ("stop", "wanted"), [(None, ()), ("end", ("end",)), ([], ()), (["a", "b"], ("a", "b")), (["", "x"], ("x",))]
)
def test_stop(stop: Any, wanted: tuple[str, ...]) -> None:
    assert params(stop=stop).stop == wanted


@pytest.mark.parametrize("stop", [3, [3], ["a", None], {"a": 1}])
def test_stops_that_are_no_texts(stop: Any) -> None:
    with pytest.raises(ConfigError, match=r"^stop must be a text or a list of texts"):
        params(stop=stop)


def test_logit_bias_takes_openais_text_keys() -> None:
    assert params(logit_bias={"5": -100, 7: 1.5}).logit_bias == {5: -100.0, 7: 1.5}
    assert params(logit_bias=None).logit_bias == {}
    assert params(logit_bias={"5": -math.inf}).logit_bias == {5: -math.inf}


@pytest.mark.parametrize("bias", [[1, 2], "5", {"five": 1.0}, {5: "much"}, {5: None}, {5: math.nan}])
def test_biases_that_are_no_numbers(bias: Any) -> None:
    with pytest.raises(ConfigError, match=r"^logit_bias must "):
        params(logit_bias=bias)


def test_grammars_are_texts_or_llama_grammars() -> None:
    text = 'root ::= "a"'
    assert params(grammar=text).grammar == read_grammar(text)
    assert params(grammar=llama_cpp.LlamaGrammar.from_string(text, verbose=False)).grammar == read_grammar(text)
    assert params(grammar=None).grammar is None
    with pytest.raises(ConfigError, match="grammar"):
        params(grammar=3)


@pytest.mark.parametrize(
    ("given", "draft", "draft_max"),
    [
        ({}, "auto", 5),
        ({"draft": "off"}, "off", 5),
        ({"draft": 0}, "off", 5),
        ({"draft": 3}, 3, 5),
        ({"draft": "4"}, 4, 5),
        ({"draft": 9}, 9, 9),
        ({"draft_max": 2}, "auto", 2),
        ({"draft": 6, "draft_max": 2}, 6, 6),
        ({"draft": "Auto", "draft_max": 16}, "auto", 16),
    ],
)
def test_a_calls_own_drafting(given: Any, draft: Any, draft_max: int) -> None:
    config = draft_config(CONFIG, given.get("draft"), given.get("draft_max"))
    assert (config.draft, config.draft_max) == (draft, draft_max)
    assert completion_params(CONFIG, {**DEFAULTS, **given})[1] == config


@pytest.mark.parametrize(
    "given", [{"draft": "much"}, {"draft": 17}, {"draft": -1}, {"draft": 1.5}, {"draft_max": 0}, {"draft_max": 17}]
)
def test_drafting_that_is_none(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^draft"):
        completion_params(CONFIG, {**DEFAULTS, **given})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", math.nan),
        ("temperature", "hot"),
        ("temperature", 10**400),
        ("seed", -(10**400)),
        ("top_k", 1.5),
        ("temperature", 101),
        ("temperature", -101.0),
        ("top_k", 2**31),
        ("top_p", -0.1),
        ("top_p", 5.0),
        ("typical_p", 1.01),
        ("min_p", 1.5),
        ("repeat_penalty", 0),
        ("repeat_penalty", 101),
        ("frequency_penalty", -101),
        ("presence_penalty", 1e30),
        ("seed", 2**64),
        ("ignore_eos", "yes"),
        ("ignore_eos", 1),
        ("temperature", None),
        ("temperature", True),
        ("seed", "x"),
        ("max_tokens", 2.5),
        ("logprobs", -1),
        ("min_tokens", -1),
    ],
)
def test_values_out_of_range_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be "):
        params(**{name: value})


def test_the_ends_of_every_range_are_taken() -> None:
    for name, ends in LIMITS.items():
        for value in ends:
            given: Any = {name: value}
            assert getattr(SamplingParams(**given), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("logit_bias", {1: "x"}),
        ("logit_bias", {1: math.nan}),
        ("logit_bias", {1: math.inf}),
        ("logit_bias", {1: None}),
        ("logit_bias", {"1": 1.0}),
        ("logit_bias", {0.5: 1.0}),
        ("logit_bias", [1]),
        ("logit_bias", None),
        ("stop", 5),
        ("stop", (1, 2)),
        ("stop", None),
    ],
)
def test_what_is_no_bias_and_no_stop_is_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must "):
        SamplingParams(**{name: value})


def test_a_calls_bias_beyond_all_numbers_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^logit_bias must "):
        params(logit_bias={1: 10**400})


def test_an_effort_is_a_switch_too() -> None:
    assert [thinking_of(effort) for effort in (None, "minimal", "none", "low", "max")] == [
        None,
        None,
        False,
        True,
        True,
    ]
    with pytest.raises(ConfigError, match="reasoning_effort must be one of none, minimal"):
        thinking_of("most")


# --- tools and forms of an answer ---------------------------------------------------------------------------------

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def test_tools_that_may_be_called() -> None:
    assert tool_request(None, None) == tool_request([WEATHER], "none") == ToolRequest()
    assert ToolRequest().tools is None
    for choice in (None, "auto"):
        request = tool_request([WEATHER], choice)
        assert (request.tools, request.names, request.grammar) == ([WEATHER], ("weather",), None)


def test_a_form_is_read_when_it_is_asked_for() -> None:
    """A call with a grammar of its own has no use for it, and a schema takes up to a second."""
    request = tool_request(None, None, {"type": "json_object", "schema": 5})
    with pytest.raises(ConfigError, match="no JSON object"):
        _ = request.grammar


def test_a_tool_that_must_be_called() -> None:
    """Its arguments' schema is the grammar of the whole answer, whatever form was asked for beside it."""
    forced = {"type": "function", "function": {"name": "weather"}}
    for response_format in (None, {"type": "text"}, {"type": "json_object"}):
        request = tool_request([WEATHER], forced, response_format)
        assert (request.tools, request.forced) == ([WEATHER], "weather")
        assert request.grammar is not None
        assert request.grammar == json_grammar(WEATHER["function"]["parameters"])


def test_one_of_the_tools_must_be_called() -> None:
    request = tool_request([WEATHER], "required", None)
    assert (request.tools, request.forced, request.is_required) == ([WEATHER], "", True)
    assert request.grammar == tools_grammar([("weather", WEATHER["function"]["parameters"], True)])
    with pytest.raises(ConfigError, match="there are no tools"):
        tool_request([], "required", None)


def test_a_form_of_the_answer() -> None:
    assert tool_request(None, None, {"type": "text"}).grammar is None
    grammar = tool_request(None, None, {"type": "json_object"}).grammar
    assert grammar is not None
    assert grammar == json_grammar()
    both = tool_request([WEATHER], "auto", {"type": "json_object"})
    assert both.tools == [WEATHER]
    assert both.grammar == grammar


@pytest.mark.parametrize("arguments", [{"functions": [{}]}, {"function_call": "auto"}])
def test_the_old_form_of_tools_is_refused_by_name(arguments: Any) -> None:
    (name,) = arguments
    with pytest.raises(Unsupported, match=f"^{name} is not supported: use tool"):
        tool_request(None, None, None, **arguments)


@pytest.mark.parametrize("temperature", ["hot", float("nan"), True])
def test_a_wrong_draft_temperature_is_refused_by_its_own_name(temperature: Any) -> None:
    """When the settings are made, not when the first token is drawn."""
    with pytest.raises(ConfigError, match="draft_temperature"):
        DraftConfig(temperature=temperature)
