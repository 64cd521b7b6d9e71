"""Requests that would take minutes are refused or served at once, by a server that has limits of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import httpx
import pytest
from conftest import Pair
from support.bombs import limited
from support.cli_support import private_home
from support.serve_support import WAIT_S, Json

ASK: Json = {"messages": [{"role": "user", "content": "a word list"}], "max_tokens": 16, "temperature": 0}
COMPLETE: Json = {"prompt": "a word list", "max_tokens": 16, "temperature": 0}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HEAVY: dict[str, tuple[str, Json]] = {
    "a prompt of megabytes": (COMPLETIONS, {"prompt": "word " * 700_000}),
    "80,000 messages": (CHAT, {"messages": ASK["messages"] * 80_000}),
    "a text of a billion characters": (CHAT, schema := {"type": "string", "maxLength": 10**9}),
    "a list of a billion": (CHAT, {"type": "array", "items": schema, "maxItems": 10**9}),
    "100,000 choices": (CHAT, {"enum": list(range(100_000))}),
    "a pattern of patterns": (CHAT, {"type": "string", "pattern": "^((a{1,900}){1,900}){1,900}$"}),
    "2,000 properties": (CHAT, {"type": "object", "properties": {f"p{i}": schema for i in range(2000)}}),
    "a grammar of a megabyte": (COMPLETIONS, {"grammar": f'root ::= "{"a" * 10**6}"'}),
    "a grammar of 500,000 alternatives": (COMPLETIONS, {"grammar": 'root ::= "a"' + ' | "b"' * 500_000}),
    "a billion repetitions": (COMPLETIONS, {"grammar": 'root ::= "a"{1000000000}'}),
    "a schema on the web": (CHAT, {"$ref": "https://example.com/schema"}),
}


@pytest.fixture(scope="module")
def mortal(tiny_chat: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that its system ends once it has taken its processor time, or its memory."""
    flags = ["--port", "0", "--quiet", "-t", "1", "-c", "512", "--draft", "3"]
    pair = ["-m", str(tiny_chat.target), "-d", str(tiny_chat.draft)]
    process = subprocess.Popen(
        limited([sys.executable, "-P", "-m", "specgguf.cli.main", "serve", *pair, *flags]),
        env={**os.environ, **private_home(tmp_path_factory.mktemp("home"))},
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("serving "), line + process.stderr.read()
        yield line.split()[3].removesuffix("/v1")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("name", HEAVY)
def test_what_would_take_minutes_is_refused_or_served_at_once(mortal: str, name: str) -> None:
    """Nothing that a client sends may hold the engine without producing tokens. A server that computes for ever is
    ended, and gives no answer."""
    path, change = HEAVY[name]
    if "prompt" not in change and "messages" not in change and "grammar" not in change:
        change = {"response_format": {"type": "json_object", "schema": change}}
    body = {**(ASK if path == CHAT else COMPLETE), **change}
    response = httpx.post(mortal + path, json=body, timeout=WAIT_S, trust_env=False)
    if response.status_code != 200:
        assert response.status_code == 400
        assert response.json()["error"]["type"] == "invalid_request_error"
