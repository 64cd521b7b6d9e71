"""Bodies become keywords: what is passed on, what is filled in, what has no effect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from specgguf.serve.protocols.bodies import BadRequest, Call, chat_call, completion_call, read
from specgguf.serve.protocols.fields import CHAT, COMPLETION, IGNORED

MESSAGES = [{"role": "user", "content": "hi"}]
MODELS = ("a", "b")


def chat(defaults: dict[str, Any] | None = None, **fields: Any) -> Call:
    return chat_call({"messages": MESSAGES, **fields}, models=MODELS, defaults=defaults or {})


def completion(**fields: Any) -> Call:
    return completion_call({"prompt": "x", **fields}, models=MODELS, defaults={})


def test_what_a_body_says_wins_over_the_defaults() -> None:
    call = chat({"temperature": 0.5, "top_k": 7}, temperature=0, seed=None)
    assert call.keywords == {"messages": MESSAGES, "temperature": 0.0, "top_k": 7, "stream": False}
    assert not call.stream


def test_fields_become_our_keywords() -> None:
    assert chat(max_completion_tokens=5, max_tokens=9).keywords["max_tokens"] == 5
    assert chat(chat_template_kwargs={"enable_thinking": False}).keywords["enable_thinking"] is False
    assert chat(stop="x").keywords["stop"] == ["x"]
    assert completion(logit_bias={"5": -100}).keywords["logit_bias"] == {5: -100.0}
    assert completion(prompt=["one"]).keywords["prompt"] == "one"
    assert completion(prompt=["one", "two"]).prompts == ("one", "two")
    assert completion(prompt=[[1, 2]]).keywords["prompt"] == [1, 2]
    assert completion(prompt=[1, 2]).keywords["prompt"] == [1, 2]
    assert completion(max_tokens=3.0).keywords["max_tokens"] == 3
    assert completion(model="b").keywords["model"] == "b"


def test_what_has_no_effect_is_not_passed_on() -> None:
    call = chat(user="me", n=1, store=False, metadata={}, parallel_tool_calls=True, service_tier="auto")
    assert set(call.keywords) == {"messages", "stream"}
    assert not set(IGNORED) & (set(CHAT) | set(COMPLETION))


def test_stream_options() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options={}).include_usage
    assert not chat(stream=True).include_usage


def test_every_field_refuses_what_it_is_not() -> None:
    """No field takes an object that it does not know, or a list of such."""
    for call, table in ((chat, CHAT), (completion, COMPLETION)):
        for name in table:
            values: tuple[Any, ...] = ({"x": {"y": [1]}}, [{"x": 1}, 2])
            for value in values:
                if name in ("metadata", "logit_bias", "response_format"):
                    continue  # objects: the first is read later, the last by the engine
                with pytest.raises(BadRequest) as caught:
                    call(**{name: value})
                assert caught.value.param == name, (name, value)


def test_an_unknown_model_is_a_404() -> None:
    with pytest.raises(BadRequest, match='no model "c" here; this server has a, b') as caught:
        chat(model="c")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


@pytest.mark.parametrize("depth", [1, 60])
def test_depth_within_the_limit_is_read(depth: int) -> None:
    text = '{"a": ' * depth + "1" + "}" * depth
    assert read(text.encode()) == json.loads(text)


def test_characters_of_all_planes_are_read() -> None:
    assert read('{"a": "é \\ud83d\\ude42 \\u0000"}'.encode()) == {"a": "é 🙂 \0"}


def test_words_of_other_servers() -> None:
    """Honoured where they mean something here, and taken where they say that something is off."""
    assert completion(n_predict=5).keywords["max_tokens"] == 5
    assert completion(n_predict=-1).keywords["max_tokens"] is None
    assert chat(max_tokens=-1).keywords["max_tokens"] is None
    assert "max_tokens" not in chat(max_tokens=0).keywords
    assert completion(max_tokens=0).keywords["max_tokens"] == 0
    assert chat(repetition_penalty=1.1).keywords["repeat_penalty"] == 1.1
    assert chat(reasoning_effort="none").keywords["enable_thinking"] is False
    assert chat(reasoning_effort="low").keywords["enable_thinking"] is True
    assert "enable_thinking" not in chat(reasoning_effort="minimal").keywords
    assert chat(reasoning_effort="high", enable_thinking=False).keywords["enable_thinking"] is False
    for asked in ({"reasoning_effort": "high"}, {"chat_template_kwargs": {"reasoning_effort": "high"}}):
        assert chat(**asked).keywords["reasoning_effort"] == "high"
        assert chat({"enable_thinking": False}, **asked).keywords["enable_thinking"] is True, "a body wins"
    assert chat(n=3).n == 3
    assert chat(logprobs=False, top_logprobs=0).keywords["logprobs"] is False
    assert completion(logit_bias=[[5, -100], [6, False]]).keywords["logit_bias"] == {5: -100.0, 6: -100.0}
    off: dict[str, Any] = {
        "mirostat": 0,
        "tfs_z": 1,
        "xtc_probability": 0.0,
        "dry_multiplier": 0,
        "cache_prompt": True,
        "typ_p": 1,
    }
    assert set(chat(**off, verbosity="low", unknown=None).keywords) == {"messages", "stream"}


@pytest.mark.parametrize(
    "fields",
    [
        {"mirostat": 2},
        {"xtc_probability": 0.5},
        {"dry_multiplier": 0.8},
        {"reasoning_effort": "most"},
        {"chat_template_kwargs": {"reasoning_effort": 5}},
        {"chat_template_kwargs": {"reasoning_effort": []}},
        {"temperature": -1},
        {"temperature": 101},
        {"top_p": 5.0},
        {"min_p": -0.1},
        {"typical_p": 2},
        {"top_k": 2**31},
        {"repeat_penalty": 0},
        {"repetition_penalty": 1000},
        {"frequency_penalty": 101},
        {"presence_penalty": -101},
        {"seed": 2**64},
        {"n": 0},
        {"grammar": 'root ::= "a"', "response_format": {"type": "json_object"}},
    ],
)
def test_what_cannot_be_honoured_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        chat(**fields)
    assert caught.value.param == next(iter(fields))


def test_a_lenient_server_says_what_it_left_out() -> None:
    body = {"messages": MESSAGES, "mirostat": 2, "temprature": 1, "chat_template_kwargs": {"x": 1}}
    call = chat_call(body, models=MODELS, defaults={}, lenient=True)
    assert call.ignored == ("mirostat", '"temprature"', "chat_template_kwargs.x")
    with pytest.raises(BadRequest):
        chat_call({**body, "temperature": "hot"}, models=MODELS, defaults={}, lenient=True)
    assert (
        chat_call({"messages": MESSAGES, "model": "gpt-4"}, models=("a", "*"), defaults={}).keywords["model"] == "gpt-4"
    )
