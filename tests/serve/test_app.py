"""The server over a tiny pair: OpenAI's own client, curl's kind of client, and everything that clients do wrong."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from conftest import Pair
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import models
from support.serve_support import WAIT_S, Json, Running, Scripted, events, serving, until

from specgguf import SpeculativeLlama
from specgguf.grammar import cursor
from specgguf.grammar.sources import read_grammar
from specgguf.serve import http, queue
from specgguf.serve.doors import RequestRecord
from specgguf.serve.protocols import fields
from specgguf.serve.server import listen

ASK: Json = {"messages": [{"role": "user", "content": "a word list"}], "max_tokens": 16, "temperature": 0}
COMPLETE: Json = {"prompt": "a word list", "max_tokens": 16, "temperature": 0}
ONE: Json = {"n_threads": 1, "n_threads_batch": 1}  # threads that wait for each other crawl on a busy machine
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def llm(tiny_chat: Pair) -> Iterator[SpeculativeLlama]:
    with SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), n_ctx=512, draft=3, **ONE) as llm:
        yield llm


@pytest.fixture(scope="module")
def server(llm: SpeculativeLlama) -> Iterator[Running]:
    with serving(llm, names=("tiny", "alias"), defaults={"temperature": 0.5}) as running:
        yield running


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai_client(server) as client:
        yield client


def openai_client(server: Running, key: str = "any") -> openai.OpenAI:
    own = httpx.Client(trust_env=False, timeout=WAIT_S)
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, http_client=own)


# --- OpenAI's client --------------------------------------------------------------------------------------


def test_chat(client: openai.OpenAI, llm: SpeculativeLlama, server: Running) -> None:
    reply = client.chat.completions.create(model="tiny", **ASK)
    wanted: Any = llm.create_chat_completion(ASK["messages"], max_tokens=16, temperature=0.0)
    assert reply.choices[0].message.content == wanted["choices"][0]["message"]["content"]
    assert reply.choices[0].finish_reason == wanted["choices"][0]["finish_reason"]
    assert reply.model == "tiny"
    assert reply.usage is not None
    assert reply.usage.model_dump(exclude_none=True) == wanted["usage"]
    assert reply.model_extra is not None
    assert set(reply.model_extra["timings"]) == set(wanted["timings"])


def test_chat_stream(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="tiny", **ASK)
    stream = client.chat.completions.create(model="tiny", stream=True, stream_options={"include_usage": True}, **ASK)
    *chunks, last = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(c.usage is None for c in chunks)
    assert last.choices == []
    assert last.usage == whole.usage
    assert any(c.model_extra and c.model_extra["from_draft"] for c in chunks)
    assert all(c.usage is None for c in client.chat.completions.create(model="tiny", stream=True, **ASK))


def test_completions(client: openai.OpenAI, llm: SpeculativeLlama) -> None:
    wanted: Any = llm.create_completion("a word list", max_tokens=16, temperature=0.0)
    reply = client.completions.create(model="alias", **COMPLETE)
    assert reply.choices[0].text == wanted["choices"][0]["text"]
    assert reply.model == "alias"
    stream = client.completions.create(model="tiny", stream=True, **COMPLETE)
    assert "".join(c.choices[0].text for c in stream) == reply.choices[0].text
    by_ids = client.completions.create(
        model="tiny", prompt=llm.tokenize(b"a word list"), max_tokens=16, temperature=0, echo=True
    )
    assert by_ids.choices[0].text == "a word list" + reply.choices[0].text
    with_logprobs = client.completions.create(model="tiny", logprobs=2, **COMPLETE)
    assert with_logprobs.choices[0].logprobs is not None
    assert len(with_logprobs.choices[0].logprobs.token_logprobs or []) == 16


@pytest.mark.parametrize("change", [{}, {"top_logprobs": 0}, {"top_logprobs": None}])
@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_without_alternatives(server: Running, change: Json, stream: bool) -> None:
    text = server.post(CHAT, {**ASK, "logprobs": True, "stream": stream, **change}).text
    chunks = events(text) if stream else [json.loads(text)]
    found = [c["logprobs"] for chunk in chunks for c in chunk["choices"]]
    entries = [entry for logprobs in found if logprobs for entry in logprobs["content"]]
    assert len(entries) == 16
    assert [entry["top_logprobs"] for entry in entries] == [[]] * 16


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "alias"]
    assert client.models.retrieve("alias").id == "alias"
    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.models.retrieve("gpt")


def test_tools_and_json(client: openai.OpenAI) -> None:
    parameters = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    called = client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "n"}],
        tools=[tool],
        tool_choice={"type": "function", "function": {"name": "f"}},
        temperature=0,
    )
    call: Any = (called.choices[0].message.tool_calls or [])[0]
    assert call.function.name == "f"
    assert isinstance(json.loads(call.function.arguments)["ok"], bool)
    schema: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": parameters}}
    said = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "n"}], response_format=schema, temperature=0
    )
    assert isinstance(json.loads(said.choices[0].message.content or "")["ok"], bool)


@pytest.mark.parametrize(("stream", "choice"), [(False, "required"), (True, "required"), (False, "any")])
def test_one_of_the_tools_must_be_called(client: openai.OpenAI, stream: bool, choice: str) -> None:
    ok = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": ok, "strict": True}}
        for name in ("first", "other")
    ]
    keywords: Json = {"model": "tiny", "messages": [{"role": "user", "content": "n"}], "temperature": 0, "tools": tools}
    reply: Any = client.chat.completions.create(**keywords, tool_choice=choice, stream=stream)
    if stream:
        chunks = [chunk.choices[0] for chunk in reply]
        calls = [call for choice in chunks for call in choice.delta.tool_calls or []]
        assert chunks[-1].finish_reason == "tool_calls"
    else:
        calls = reply.choices[0].message.tool_calls
        assert reply.choices[0].message.content is None
        assert reply.choices[0].finish_reason == "tool_calls"
    (call,) = calls
    assert call.function.name in ("first", "other")
    assert isinstance(json.loads(call.function.arguments)["ok"], bool)


def test_schemas_are_strict_unless_they_say_no(client: openai.OpenAI) -> None:
    schema = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2, "uniqueItems": True}
    keywords: Json = {"model": "tiny", "messages": [{"role": "user", "content": "n"}], "temperature": 0}
    for strict in (None, True):
        form: Any = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": strict}}
        with pytest.raises(openai.BadRequestError, match="kept to the letter: uniqueItems"):
            client.chat.completions.create(**keywords, response_format=form)
    form["json_schema"]["strict"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        said: Any = client.chat.completions.create(**keywords, response_format=form)
    assert len(json.loads(said.choices[0].message.content)) <= 2


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"choice": ["yes", "no"]}, "yes|no"),
        ({"regex": "[a-c]{2}x"}, "[a-c]{2}x"),
        ({"grammar": 'root ::= "a" | "b"'}, "a|b"),
        ({"json": {"const": 5}}, "5"),
    ],
    ids=str,
)
def test_structured_outputs_by_vllms_names(client: openai.OpenAI, form: Json, pattern: str) -> None:
    said: Any = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "n"}], extra_body={"structured_outputs": form}
    )
    assert re.fullmatch(pattern, said.choices[0].message.content)
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt="n", extra_body={"structured_outputs": {"jsn": 5}})
    assert caught.value.param == "structured_outputs"


def test_errors_are_openais(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=[])
    assert caught.value.param == "messages"
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-4", **ASK)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.completions.create(model="tiny", prompt="a" * 5000)
    assert long.value.code == "context_length_exceeded"


# --- bodies ---------------------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Json, str | None]] = {
    "temperature a text": ({"temperature": "hot"}, "temperature"),
    "temperature below 0": ({"temperature": -1}, "temperature"),
    "temperature a bool": ({"temperature": True}, "temperature"),
    "max_tokens below -1": ({"max_tokens": -2}, "max_tokens"),
    "max_tokens a fraction": ({"max_tokens": 1.5}, "max_tokens"),
    "top_p 2": ({"top_p": 2}, "top_p"),
    "top_k a list": ({"top_k": [1]}, "top_k"),
    "stream a text": ({"stream": "yes"}, "stream"),
    "stream_options without stream": ({"stream_options": {"include_usage": True}}, "stream_options"),
    "stop a number": ({"stop": 5}, "stop"),
    "stop of numbers": ({"stop": [1, 2]}, "stop"),
    "10,000 stops": ({"stop": [str(i) for i in range(10_000)]}, "stop"),
    "a stop of a megabyte": ({"stop": "x" * 10**6}, "stop"),
    "n 0": ({"n": 0}, "n"),
    "n 10,000": ({"n": 10_000}, "n"),
    "logit_bias a list": ({"logit_bias": [1]}, "logit_bias"),
    "logit_bias of words": ({"logit_bias": {"word": 1}}, "logit_bias"),
    "logit_bias too large": ({"logit_bias": {"1": 1e9}}, "logit_bias"),
    "logit_bias of an unknown id": ({"logit_bias": {"999999": 1}}, None),
    "seed a text": ({"seed": "7"}, "seed"),
    "draft a word": ({"draft": "much"}, "draft"),
    "draft too long": ({"draft": 99}, "draft"),
    "grammar broken": ({"grammar": "root ::= ("}, "grammar"),
    "grammar with NUL": ({"grammar": "root ::= \0"}, "grammar"),
    "nothing is allowed": ({"grammar": 'root ::= ""', "ignore_eos": True}, None),
    "unknown": ({"temprature": 1}, "temprature"),
    "user a number": ({"user": 5}, "user"),
    "model a number": ({"model": 5}, "model"),
}
WRONG_CHAT: dict[str, tuple[Json, str | None]] = {
    "messages a text": ({"messages": "hi"}, "messages"),
    "messages empty": ({"messages": []}, "messages"),
    "messages of texts": ({"messages": ["hi"]}, "messages"),
    "an unknown role": ({"messages": [{"role": "god", "content": "hi"}]}, "messages"),
    "content a number": ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    "an image": ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
    "tools an object": ({"tools": {}}, "tools"),
    "tools without a function": ({"tools": [{"type": "function"}]}, "tools"),
    "tool_choice a number": ({"tool_choice": 5}, "tool_choice"),
    "tool_choice with a text": ({"tool_choice": {"function": "f"}}, "tool_choice"),
    "tool_choice unknown": ({"tools": [{"function": {"name": "f"}}], "tool_choice": "some"}, "tool_choice"),
    "response_format a text": ({"response_format": "json"}, "response_format"),
    "response_format unknown": ({"response_format": {"type": "xml"}}, "response_format"),
    "a schema that is none": ({"response_format": {"type": "json_object", "schema": 5}}, "response_format"),
    "logprobs a number": ({"logprobs": 5}, "logprobs"),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs"),
    "another switch": ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs"),
    "functions": ({"functions": []}, "functions"),
}
WRONG_COMPLETION: dict[str, tuple[Json, str | None]] = {
    "prompt a number": ({"prompt": 5}, "prompt"),
    "prompt empty": ({"prompt": []}, None),
    "1,000 prompts": ({"prompt": ["a"] * 1000}, "prompt"),
    "a prompt among numbers": ({"prompt": ["a", 5]}, "prompt"),
    "best of more": ({"best_of": 3}, "best_of"),
    "prompt of an unknown id": ({"prompt": [999999]}, None),
    "prompt of fractions": ({"prompt": [1.5]}, "prompt"),
    "logprobs a text": ({"logprobs": "1"}, "logprobs"),
    "suffix without the tokens": ({"suffix": "x"}, None),
}
ALL_WRONG = [
    *((CHAT, ASK, name, *case) for name, case in {**WRONG, **WRONG_CHAT}.items()),
    *((COMPLETIONS, COMPLETE, name, *case) for name, case in {**WRONG, **WRONG_COMPLETION}.items()),
]


def is_error(response: httpx.Response, status: int) -> Json:
    assert response.status_code == status, response.text
    body: Json = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return dict(body["error"])


@pytest.mark.parametrize(
    ("path", "base", "name", "change", "param"), ALL_WRONG, ids=[f"{c[0]} {c[2]}" for c in ALL_WRONG]
)
def test_what_is_wrong_is_named(
    server: Running, path: str, base: Json, name: str, change: Json, param: str | None
) -> None:
    error = is_error(server.post(path, {**base, **change}), 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert server.post(path, base).status_code == 200


RAW: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "no object": b"[1]",
    "no UTF-8": b'{"prompt": "\xff"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "NaN": b'{"prompt": "a", "temperature": NaN}',
    "a number of 5000 digits": b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    "nested": b'{"prompt": ' + b"[" * 100 + b"]" * 100 + b"}",
    "nested without end": b'{"prompt": ' + b"[" * 100_000,
    "a lone surrogate": b'{"prompt": "\\ud800"}',
    "a lone surrogate in a key": b'{"prompt": "a", "logit_bias": {"\\udfff": 1}}',
}


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_what_is_no_request_is_refused(server: Running, name: str, path: str) -> None:
    with server.client() as client:
        is_error(client.post(path, content=RAW[name], headers={"content-type": "application/json"}), 400)
        assert client.post(COMPLETIONS, json=COMPLETE).status_code == 200


@pytest.mark.parametrize("depth", [70, 600, 950])
@pytest.mark.parametrize("said", ["hi", "<|im_end|>"])
def test_arguments_that_nest_deep_are_refused(server: Running, depth: int, said: str) -> None:
    """They are JSON in a text: what is said of the body's own depth does not hold for them."""
    for arguments in ("[" * depth + "]" * depth, '{"x":' * depth + "0" + "}" * depth):
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}, {"role": "user", "content": said}]
        assert is_error(server.post(CHAT, {**ASK, "messages": messages}), 400)["param"] == "messages"


def test_what_is_strange_but_right_is_answered(server: Running) -> None:
    changes: tuple[Json, ...] = (
        {"prompt": "a\0b"},
        {"stop": ["\0", ""]},
        {"stop": None, "seed": None, "max_tokens": 3.0},
        {"prompt": ["one"]},
        {"logit_bias": {"5": -100}},
        {"seed": -(2**63), "temperature": 1e-300},
        {"temperature": 5e-324},
        {"user": "me", "n": 1, "best_of": 1},
        {"prompt": ["a", "b"], "n": 2, "best_of": 2},
        {"max_tokens": 0},
        {"logprobs": True, "n_predict": 2},
        {"draft": "off"},
        {"draft": 2, "draft_max": 4},
    )
    for change in changes:
        response = server.post(COMPLETIONS, {**COMPLETE, **change})
        assert response.status_code == 200, (change, response.text)
    changes = (
        {"messages": [{"role": "user", "content": "a\0b"}]},
        {"messages": [{"role": "developer", "content": [{"type": "text", "text": "x"}]}, *ASK["messages"]]},
        {"max_completion_tokens": 2, "max_tokens": None},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"logprobs": True, "top_logprobs": 3},
        {"tools": [{"type": "function", "function": {"name": "f\0"}}], "tool_choice": "none"},
        {"response_format": {"type": "text"}, "store": False, "metadata": {}, "parallel_tool_calls": True},
    )
    for change in changes:
        response = server.post(CHAT, {**ASK, **change})
        assert response.status_code == 200, (change, response.text)


def test_a_body_that_takes_long_to_read_keeps_nobody_waiting(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, answered = threading.Event(), threading.Event()

    def slow(value: Any) -> Any:
        reading.set()
        assert answered.wait(WAIT_S)
        return read_grammar(value)

    monkeypatch.setattr(fields, "read_grammar", slow)
    responses = []
    asking = threading.Thread(
        target=lambda: responses.append(server.post(COMPLETIONS, {**COMPLETE, "grammar": 'root ::= "a"'}))
    )
    asking.start()
    assert reading.wait(WAIT_S)
    assert server.post(COMPLETIONS, COMPLETE).status_code == 200
    answered.set()
    asking.join(WAIT_S)
    assert [response.status_code for response in responses] == [200]


@pytest.mark.parametrize(
    "change",
    [
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
    ],
)
def test_a_form_is_read_and_compiled_before_it_waits_for_the_engine(
    server: Running, llm: SpeculativeLlama, monkeypatch: pytest.MonkeyPatch, change: Json
) -> None:
    threads: list[str] = []

    def watched(grammar: Any) -> Any:
        threads.append(threading.current_thread().name)
        return compile_grammar(grammar)

    compile_grammar = llm.compile_grammar
    monkeypatch.setattr(llm, "compile_grammar", watched)
    assert server.post(CHAT, {**ASK, **change}).status_code == 200
    assert len(threads) == 1
    assert threads != ["engine"]


def test_who_finds_all_compilers_at_work_may_ask_again(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cursor, "COMPILE_S", 0.01)
    for _ in range(cursor.COMPILERS_MAX):
        assert cursor._compilers.acquire(timeout=WAIT_S)
    try:
        refused = server.post(CHAT, {**ASK, "response_format": {"type": "json_object"}})
    finally:
        cursor._compilers.release(cursor.COMPILERS_MAX)
    assert is_error(refused, 503)["code"] == "busy"
    assert int(refused.headers["retry-after"]) > 0


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
values = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=3), v, max_size=3))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_body_makes_the_server_fail(server: Running, data: st.DataObject) -> None:
    """Any value in any field: answered or refused, and never a 500."""
    from specgguf.serve.protocols import fields

    path, base, table = data.draw(
        st.sampled_from([(CHAT, ASK, fields.CHAT), (COMPLETIONS, COMPLETE, fields.COMPLETION)])
    )
    names = data.draw(st.lists(st.sampled_from(sorted({**table, **fields.IGNORED})), min_size=1, max_size=2))
    body = {**base, **{name: data.draw(values) for name in names}}
    for name in ("max_tokens", "max_completion_tokens", "n_predict"):
        body[name] = body[name] if isinstance(body.get(name), bool | str | float) else 3
    response = server.post_raw(path, json.dumps(body).encode())
    assert response.status_code in (200, 400, 404), (body, response.text)
    if response.status_code != 200:
        is_error(response, response.status_code)


# --- limits and rights ----------------------------------------------------------------------------------------


def test_a_body_that_is_too_long(llm: SpeculativeLlama) -> None:
    body = json.dumps({**COMPLETE, "prompt": "x" * 2000}).encode()
    kind = {"content-type": "application/json"}
    with serving(llm, body_max_bytes=1000) as server, server.client() as client:
        is_error(client.post(COMPLETIONS, content=body, headers=kind), 413)
        is_error(client.post(COMPLETIONS, content=iter([body[:900], body[900:]]), headers=kind), 413)
        with socket.create_connection((server.host, server.port), timeout=WAIT_S) as announced:
            announced.sendall(head(COMPLETIONS, 10**15))
            assert announced.recv(100).startswith(b"HTTP/1.1 413 ")
        assert client.post(COMPLETIONS, json=COMPLETE).status_code == 200


def test_a_body_that_does_not_come(llm: SpeculativeLlama) -> None:
    with serving(llm, body_timeout_s=0.05) as server:
        with socket.create_connection((server.host, server.port), timeout=WAIT_S) as half:
            half.sendall(head(COMPLETIONS, 50) + b"{")
            assert half.recv(100).startswith(b"HTTP/1.1 408 ")
        assert server.post(COMPLETIONS, COMPLETE).status_code == 200


def head(path: str, length: int) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    ).encode()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_only_json_is_taken(server: Running, kind: str) -> None:
    """A page on the web can send the other kinds without asking."""
    with server.client() as client:
        headers = {"content-type": kind} if kind else {}
        is_error(client.post(COMPLETIONS, content=json.dumps(COMPLETE).encode(), headers=headers), 415)
        headers = {"content-type": "Application/JSON; charset=utf-8"}
        assert client.post(COMPLETIONS, content=json.dumps(COMPLETE).encode(), headers=headers).status_code == 200


def test_routes(server: Running) -> None:
    with server.client() as client:
        assert client.get("/health").json() == {"status": "ok", "requests_waiting": 0}
        is_error(client.get("/v1/nothing"), 404)
        wrong = client.get(CHAT)
        is_error(wrong, 405)
        assert wrong.headers["allow"] == "POST"
        is_error(client.post("/v1/models"), 405)
        assert "server" not in wrong.headers


def test_api_key(llm: SpeculativeLlama) -> None:
    with serving(llm, api_keys=("first", "sécond")) as server, server.client() as client:
        for given in ("", "Bearer", "Bearer wrong", "Basic first", "Bearer firs"):
            refused = client.get("/v1/models", headers={"authorization": given} if given else {})
            assert is_error(refused, 401)["code"] == "invalid_api_key"
            assert refused.headers["www-authenticate"] == "Bearer"
        assert client.get("/v1/models", headers={b"authorization": "Bearer sécond".encode()}).status_code == 200
        assert client.get("/health").status_code == 200
        assert client.get("/metrics").status_code == 401
        with openai_client(server, "first") as right, openai_client(server, "wrong") as wrong:
            assert right.completions.create(model="tiny", **COMPLETE).choices
            with pytest.raises(openai.AuthenticationError):
                wrong.models.list()


def test_another_hosts_name_is_refused(server: Running) -> None:
    with server.client() as client:
        is_error(client.get("/v1/models", headers={"host": "evil.example"}), 403)
        for name in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8080", "localhost."):
            assert client.get("/v1/models", headers={"host": name}).status_code == 200, name


def test_any_host_where_that_is_wanted(llm: SpeculativeLlama) -> None:
    with serving(llm, hosts=None) as server, server.client() as client:
        assert client.get("/v1/models", headers={"host": "my.example"}).status_code == 200


def test_cors_is_off_unless_asked_for(server: Running, llm: SpeculativeLlama) -> None:
    asks = {"origin": "http://page.example", "access-control-request-method": "POST"}
    with server.client() as client:
        assert "access-control-allow-origin" not in client.options(CHAT, headers=asks).headers
        assert "access-control-allow-origin" not in client.get("/v1/models", headers=asks).headers
    with serving(llm, cors=("http://page.example",), api_keys=("k",)) as open_server, open_server.client() as client:
        allowed = client.options(CHAT, headers={**asks, "access-control-request-headers": "authorization"})
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == "http://page.example"
        other = client.options(CHAT, headers={**asks, "origin": "http://other.example"})
        assert "access-control-allow-origin" not in other.headers


# --- the line, and clients that leave -------------------------------------------------------------------------


def test_the_queue_ends_in_429() -> None:
    engine = Scripted()
    with serving(engine, queue_max=2) as server:
        threads = [threading.Thread(target=server.post, args=(CHAT, ASK)) for _ in range(3)]
        threads[0].start()
        assert engine.begun.acquire(timeout=WAIT_S)
        for thread in threads[1:]:
            thread.start()
        until(lambda: server.service.worker.n_waiting == 2, "two requests wait")
        full = server.post(CHAT, ASK)
        assert is_error(full, 429)["code"] == "queue_full"
        assert int(full.headers["retry-after"]) > 0
        engine.open()
        for thread in threads:
            thread.join(WAIT_S)
        assert server.post(CHAT, ASK).status_code == 200
    assert engine.said == ["whole"] * 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("where", ["waiting", "prefill", "decode"])
def test_a_client_that_leaves_cancels_its_generation(where: str, stream: bool) -> None:
    engine = Scripted(n_tokens=1000, in_prefill=where == "prefill")
    body = json.dumps({**ASK, "stream": stream}).encode()
    with serving(engine) as server:
        other = socket.create_connection((server.host, server.port), timeout=WAIT_S)
        if where == "waiting":
            other.sendall(head(CHAT, len(body)) + body)
            assert engine.begun.acquire(timeout=WAIT_S)
        with socket.create_connection((server.host, server.port), timeout=WAIT_S) as client:
            client.sendall(head(CHAT, len(body)) + body)
            if where == "waiting":
                until(lambda: server.service.worker.n_waiting == 1, "it waits")
            else:
                assert engine.begun.acquire(timeout=WAIT_S)
            if where == "decode":
                engine.step(5)
                if stream:
                    assert b"t5" in read_until(client, b"t5")
        if where == "waiting":
            until(lambda: server.service.worker.n_waiting == 0, "it has left the line")
            assert engine.said == []
            assert bool(server.service.worker.running)
        else:
            until(lambda: not server.service.worker.running, "the engine is free")
            assert engine.said == ["cancelled"], "with no further token let out"
            assert server.metric("specgguf_clients_gone_total") == 1
        other.close()
        until(lambda: not server.service.worker.running, "nothing runs")


def read_until(client: socket.socket, what: bytes) -> bytes:
    data = b""
    while what not in data:
        part = client.recv(4096)
        assert part, data
        data += part
    return data


def test_a_request_that_waits_too_long(llm: SpeculativeLlama) -> None:
    engine = Scripted()
    with serving(engine, queue_timeout_s=0.05) as server:
        first = threading.Thread(target=server.post, args=(CHAT, ASK))
        first.start()
        assert engine.begun.acquire(timeout=WAIT_S)
        late = server.post(CHAT, ASK)
        assert is_error(late, 503)["code"] == "timeout"
        assert "retry-after" in late.headers
        engine.open()
        first.join(WAIT_S)
        assert server.metric("specgguf_time_limit_total") == 1
    assert engine.said == ["whole"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_generation_that_takes_too_long_ends_with_what_it_has(tiny_chat: Pair, stream: bool) -> None:
    with (
        SpeculativeLlama(str(tiny_chat.target), n_ctx=8192, **ONE) as llm,
        serving(llm, generation_timeout_s=0.2) as server,
    ):
        response = server.post(COMPLETIONS, {"prompt": "a", "max_tokens": 8000, "ignore_eos": True, "stream": stream})
        assert response.status_code == 200
        last = events(response.text)[-1] if stream else response.json()
        assert last["choices"][0]["finish_reason"] == "length"
        assert 0 < last["timings"]["predicted_n"] < 8000
        assert server.post(COMPLETIONS, COMPLETE).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch, stream: bool) -> None:
    monkeypatch.setattr(queue, "FINISH_S", 0.1)
    engine = Scripted(in_prefill=True)
    with serving(engine, generation_timeout_s=0.05) as server:
        response = server.post(CHAT, {**ASK, "stream": stream})
        assert is_error(response, 503)["code"] == "timeout"
        assert response.headers["x-should-retry"] == "false"


def test_a_stream_shows_that_it_is_alive_and_ends_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "FINISH_S", 0.1)
    engine = Scripted(in_prefill=True)
    with serving(engine, keepalive_s=0.02, generation_timeout_s=0.2) as server:
        response = server.post(CHAT, {**ASK, "stream": True})
    assert response.status_code == 200
    assert response.text.startswith(": still working\n\n")
    error = json.loads(response.text.rsplit("data: ", 1)[1])
    assert error["error"]["code"] == "timeout"


def test_a_client_that_does_not_read_is_dropped() -> None:
    async def test() -> None:
        dropped: list[bool] = []

        async def endless() -> Any:
            while True:
                yield b"data: x\n\n"

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await asyncio.Event().wait()

        stream = http.EventStream(endless(), write_timeout_s=0.02, dropped=lambda: dropped.append(True))
        await asyncio.wait_for(stream({"type": "http"}, None, send), WAIT_S)  # type: ignore[arg-type]
        assert dropped == [True]

    asyncio.run(test())


def test_a_slow_reader_keeps_nobody_waiting(llm: SpeculativeLlama) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True}).encode()
    with serving(llm) as server, socket.socket() as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(WAIT_S)
        slow.connect((server.host, server.port))
        slow.sendall(head(COMPLETIONS, len(body)) + body)
        assert slow.recv(16).startswith(b"HTTP/1.1 200")
        assert server.post(COMPLETIONS, COMPLETE).status_code == 200
        read_until(slow, b"[DONE]")


def test_a_fault_of_ours_is_a_500_that_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Scripted):
        def create_chat_completion(self, **keywords: Any) -> Any:
            raise RuntimeError("secret")

    with serving(Broken()) as server:
        for stream in (False, True):
            response = server.post(CHAT, {**ASK, "stream": stream})
            assert is_error(response, 500)["code"] == "internal"
            assert "secret" not in response.text
            assert "secret" in caplog.text


# --- figures ----------------------------------------------------------------------------------------------------


def test_metrics(tiny_chat: Pair) -> None:
    with (
        SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), n_ctx=256, draft=3, **ONE) as llm,
        serving(llm) as server,
    ):
        for _ in range(3):
            server.post(COMPLETIONS, {**COMPLETE, "max_tokens": 20})
        server.post(COMPLETIONS, {**COMPLETE, "max_tokens": 20, "stream": True})
        server.post(CHAT, {})
        with server.client() as client:
            response = client.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        metrics = parse_metrics(response.text)
        stats = llm.stats
    assert metrics["specgguf_requests_total", f'endpoint="{COMPLETIONS}",status="200"'] == 4
    assert metrics["specgguf_requests_total", f'endpoint="{CHAT}",status="400"'] == 1
    assert metrics["specgguf_generated_tokens_total", ""] == stats.n_generated == 80
    assert metrics["specgguf_prompt_tokens_total", ""] == stats.n_prompt
    assert metrics["specgguf_rounds_total", ""] == stats.n_rounds
    for i, (drafted, accepted) in enumerate(zip(stats.drafted_by_position, stats.accepted_by_position, strict=True), 1):
        assert metrics["specgguf_drafted_tokens_total", f'position="{i}"'] == drafted
        assert metrics["specgguf_accepted_tokens_total", f'position="{i}"'] == accepted
    lengths = [metrics["specgguf_draft_length_bucket", f'le="{k}"'] for k in range(len(stats.drafted_by_position) + 1)]
    assert lengths == [sum(k <= most for k in stats.draft_lengths) for most in range(len(lengths))]
    assert metrics["specgguf_draft_length_sum", ""] == stats.draft_n
    assert metrics["specgguf_first_token_seconds_count", ""] == 1
    assert metrics["specgguf_request_seconds_count", ""] == 4
    assert metrics["specgguf_requests_waiting", ""] == metrics["specgguf_requests_running", ""] == 0


def parse_metrics(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and labels; every family is declared before its samples, and no sample comes twice."""
    samples: dict[tuple[str, str], float] = {}
    declared: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            declared[name] = kind
        elif not line.startswith("#"):
            key, _, value = line.rpartition(" ")
            name, _, labels = key.partition("{")
            family = name if name in declared else name.rsplit("_", 1)[0]
            assert declared[family] in ("counter", "gauge") or name != family
            assert (name, labels.rstrip("}")) not in samples, line
            samples[name, labels.rstrip("}")] = float(value)
    assert text.endswith("\n")
    return samples


def test_log_lines() -> None:
    records: list[RequestRecord] = []
    engine = Scripted()
    engine.open()
    with serving(engine, records.append) as server:
        server.post(CHAT, ASK)
        server.post(CHAT, {})
        with server.client() as client:
            client.get("/health")
    assert [(r.method, r.path, r.status) for r in records] == [("POST", CHAT, 200), ("POST", CHAT, 400)]
    assert records[0].text().startswith(f"POST {CHAT} 200 ")
    assert records[1].fields()["error"] == "messages is missing"
    assert records[0].id != records[1].id


# --- load -------------------------------------------------------------------------------------------------------


def resident_mib() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads memory from /proc")
def test_fifty_at_once_half_of_them_leaving(tiny_chat: Pair) -> None:
    """Nothing lost, nothing stuck, memory flat."""

    async def one(client: httpx.AsyncClient, i: int) -> str:
        path, base = ((CHAT, ASK), (COMPLETIONS, COMPLETE))[i // 2 % 2]
        body = {**base, "max_tokens": 16, "stream": i % 3 == 0, "seed": i, "temperature": 1}
        if i % 2 == 0:
            response = await client.post(path, json=body)
            assert response.status_code == 200, response.text
            last = events(response.text)[-1] if body["stream"] else response.json()
            assert last["choices"][0]["finish_reason"] in ("stop", "length")
            return "answered"
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        data = json.dumps({**body, "ignore_eos": True, "max_tokens": 400}).encode()
        writer.write(head(path, len(data)) + data)
        await writer.drain()
        if body["stream"]:
            await reader.read(500)
        writer.close()
        return "left"

    async def wave(url: str) -> list[str]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=WAIT_S, limits=limits) as client:
            return await asyncio.gather(*(one(client, i) for i in range(50)))

    with (
        SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), n_ctx=512, draft=3, **ONE) as llm,
        serving(llm) as server,
    ):
        sizes = []
        for _ in range(4):
            assert sorted(asyncio.run(wave(server.url))) == ["answered"] * 25 + ["left"] * 25
            until(lambda: not server.service.worker.running, "the engine is free")
            sizes.append(resident_mib())
        assert server.service.worker.n_waiting == 0
        assert server.post(COMPLETIONS, COMPLETE).status_code == 200
        assert sizes[-1] - sizes[1] < 6, sizes


@pytest.mark.real
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_a_real_prefill(stream: bool) -> None:
    """The engine is free long before the prompt is read, and answers the next request."""
    body = json.dumps({"prompt": "the quick brown fox " * 800, "max_tokens": 50, "stream": stream}).encode()
    with SpeculativeLlama(str(models.smollm2()), n_ctx=4096) as llm, serving(llm) as server:
        with socket.create_connection((server.host, server.port), timeout=WAIT_S) as client:
            client.sendall(head(COMPLETIONS, len(body)) + body)
            until(lambda: bool(server.service.worker.running), "it runs")
        until(lambda: not server.service.worker.running, "the engine is free")
        assert llm.stats.n_rounds == 0
        assert server.post(COMPLETIONS, {**COMPLETE, "prompt": "Hello"}).json()["timings"]["cache_n"] < 3200


def test_a_port_that_is_taken() -> None:
    taken = listen("127.0.0.1", 0)
    with taken, pytest.raises(OSError, match="in use"):
        listen(*taken.getsockname())
