"""Lines become requests: what is one, what is wrong with the others, and what makes a file useless."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.batch_support import chat

from specgguf.batch.requests import BadLine, Request, read_requests
from specgguf.errors import ConfigError


def requests_of(*lines: Any) -> list[Request]:
    data = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    return read_requests(data, "in.jsonl")


def test_a_line_is_a_request() -> None:
    (request,) = requests_of(chat("a", "hello", model="gpt-4o"))
    assert (request.line, request.custom_id, request.model) == (1, "a", "gpt-4o")
    assert request.call() == (
        "/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "model": "gpt-4o"},
    )  # fmt: skip


def test_blank_lines_line_ends_and_a_byte_order_mark_are_nothing() -> None:
    plain = json.dumps(chat("a", "x")).encode()
    found = requests_of(b"\xef\xbb\xbf" + plain + b"\r\n", b"\n", b"  \r\n", chat("b", "x"))
    assert [(r.line, r.custom_id) for r in found] == [(1, "a"), (4, "b")]
    assert found[0].id == requests_of(plain)[0].id


def test_the_id_is_that_of_the_line_whatever_stands_around_it() -> None:
    first, second = requests_of(chat("a", "x"), chat("b", "x"))
    (again,) = requests_of(chat("b", "x"))
    (other,) = requests_of(chat("b", "y"))
    assert second.id == again.id
    assert len({first.id, second.id, other.id}) == 3
    assert second.id.startswith("batch_req_")


def test_equal_bad_lines_have_ids_of_their_own() -> None:
    found = requests_of(b"{\n", b"{\n", b"{\n")
    assert len({r.id for r in found}) == 3


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "line 1: the line is not JSON"),
        (b"[]", "line 1: the line must be a JSON object"),
        (b"\xff", "line 1: the line is not UTF-8"),
        (b'{"custom_id": "\\ud800"}', "lone surrogate"),
        (b"[" * 100_000, "line 1: the line is nested too deeply"),
        ({**chat("a", "x"), "custom_id": None}, "line 1: custom_id is missing"),
        ({**chat("a", "x"), "custom_id": 7}, "line 1: custom_id must be a text"),
        ({**chat("a", "x"), "custom_id": ""}, "line 1: custom_id must be a text"),
        ({**chat("a", "x"), "method": "GET"}, "line 1: method must be POST, not 'GET'"),
        ({**chat("a", "x"), "url": "/v1/embeddings"}, "line 1: url must be one of /v1/chat/completions, "),
        ({**chat("a", "x"), "url": None}, "line 1: url must be one of"),
        ({**chat("a", "x"), "url": ["/v1/completions"]}, "line 1: url must be one of"),
        ({**chat("a", "x"), "body": None}, "line 1: body is missing"),
        ({**chat("a", "x"), "body": []}, "line 1: body must be an object"),
        ({**chat("a", "x"), "boddy": {}}, "line 1: unknown field 'boddy': did you mean 'body'?"),
    ],
)  # fmt: skip
def test_what_is_no_request_says_why(line: Any, said: str) -> None:
    (request,) = requests_of(line)
    with pytest.raises(BadLine) as refused:
        request.call()
    assert said in str(refused.value)


def test_the_method_may_be_left_out() -> None:
    line = chat("a", "x")
    del line["method"]
    assert requests_of(line)[0].call()[0] == "/v1/chat/completions"


def test_a_custom_id_that_stands_twice_is_named_with_its_lines() -> None:
    with pytest.raises(ConfigError, match=r"'a' on lines 1, 3; 'b' on lines 2, 4$") as refused:
        requests_of(chat("a", "1"), chat("b", "2"), chat("a", "3"), chat("b", "4"))
    assert "give each request its own" in refused.value.hint


def test_many_that_stand_twice_are_counted() -> None:
    with pytest.raises(ConfigError, match=r", and 7 more$"):
        requests_of(*(chat(f"id {i % 10}", str(i)) for i in range(20)))


def test_a_file_without_requests_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"in\.jsonl holds no request"):
        requests_of(b"\n", b" \n")
