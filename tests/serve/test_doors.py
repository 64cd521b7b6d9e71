"""Who gets in: keys and their files, quotas, the names of this server, and what is noted of a request."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from support.serve_support import WAIT_S, Json, Scripted, serving, until

from specgguf.errors import ConfigError
from specgguf.serve.config import ApiKey, ServeConfig, named_keys, read_keys
from specgguf.serve.doors import Quotas, RequestRecord, host_name
from specgguf.serve.http import OverQuota, error_body, error_response
from specgguf.serve.protocols import fields

CHAT = "/v1/chat/completions"
ASK = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.mark.parametrize("key", ["", " ", "\t", "a\nb", " a", "a ", "a\0"])
def test_a_key_that_anybody_or_nobody_could_show_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="API key"):
        ServeConfig(api_keys=(key,))


def test_a_key_with_a_blank_is_one_key() -> None:
    assert [key.key for key in ServeConfig(api_keys=("two words",)).keys] == ["two words"]


def test_keys_have_names() -> None:
    keys = named_keys(("a", ApiKey("b", "bob", tokens_per_minute=5), "c"))
    assert [(key.name, key.tokens_per_minute) for key in keys] == [("key-1", None), ("bob", 5), ("key-3", None)]
    assert "secret" not in repr(ApiKey("secret", "x"))
    with pytest.raises(ConfigError, match="two API keys have the same key"):
        named_keys(("a", "a"))


def test_a_file_of_keys(tmp_path: Path) -> None:
    plain, table = tmp_path / "keys", tmp_path / "keys.toml"
    plain.write_text("# the team\nfirst key\n\n  second\n")
    assert [key.key for key in read_keys(plain)] == ["first key", "second"]
    table.write_text('[ann]\nkey = "k"\nrequests_per_minute = 2\n[bob]\nkey = "l"\n')
    assert read_keys(table) == (ApiKey("k", "ann", 2), ApiKey("l", "bob"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no key"),
        ("[ann]\n", r"\[ann\] needs a key"),
        ('[ann]\nkey = ""\n', "API key of ann is empty"),
        ('[ann]\nkey = "k"\nrequest_per_minute = 1\n', "unknown key 'request_per_minute'"),
        ('[ann]\nkey = "k"\ntokens_per_minute = 0\n', "tokens_per_minute"),
        ("[ann", "is not TOML"),
    ],
)
def test_a_wrong_file_of_keys_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_keys(path)
    with pytest.raises(ConfigError, match="no such file"):
        read_keys(tmp_path / "none")


def test_quotas_count_a_sliding_minute() -> None:
    now = 0.0
    quotas = Quotas([ApiKey("k", "ann", 2, 100), ApiKey("l", "bob")], lambda: now)
    quotas.enter("ann")
    now = 30.0
    quotas.enter("ann")
    with pytest.raises(OverQuota, match="2 requests per minute") as caught:
        quotas.enter("ann")
    assert caught.value.retry_s == 30.0
    assert error_response(caught.value).headers["retry-after"] == "30"
    for _ in range(5):
        quotas.enter("bob")
        quotas.enter("")
    now = 61.0
    quotas.enter("ann")
    now = 200.0
    quotas.spend("ann", 100)
    with pytest.raises(OverQuota, match="100 tokens per minute"):
        quotas.enter("ann")
    now = 260.0
    quotas.enter("ann")


def test_a_key_over_its_quota_is_told_when_to_come_back() -> None:
    engine = Scripted()
    engine.open()
    keys = (ApiKey("k", "ann", tokens_per_minute=4), ApiKey("l", "bob"))
    records: list[RequestRecord] = []
    with serving(engine, records.append, api_keys=keys) as server:
        ann, bob = {"authorization": "Bearer k"}, {"authorization": "Bearer l"}
        assert server.post(CHAT, ASK, headers=ann).status_code == 200
        refused = server.post(CHAT, ASK, headers=ann)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "rate_limit_exceeded")
        assert 0 < int(refused.headers["retry-after"]) <= 60
        assert server.post(CHAT, ASK, headers=bob).status_code == 200
        assert server.post(CHAT, ASK, headers={"x-api-key": "l"}).status_code == 200
        with server.client() as client:
            text = client.get("/metrics", headers=bob).text
    assert 'specgguf_client_tokens_total{model="tiny",key="ann",kind="generated"} 3' in text
    assert [record.key for record in records] == ["ann", "ann", "bob", "bob"]
    assert (records[0].n_prompt, records[0].n_generated) == (1, 3)


ANN = {"authorization": "Bearer k"}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (CHAT, {**ASK, "temperature": "hot"}, 400),
        ("/tokenize", {"content": 5}, 400),
        ("/detokenize", {"tokens": "x"}, 400),
        ("/apply-template", {"messages": 5}, 400),
    ],
)
def test_every_body_counts_and_none_is_read_beyond_the_quota(
    monkeypatch: pytest.MonkeyPatch, path: str, body: Json, status: int
) -> None:
    """Grammars are compiled where bodies are read: whoever is over a quota must not hold the compilers."""
    asked: list[str] = []

    class Engine(Scripted):
        def render(self, messages: object, **_: object) -> list[int]:
            raise ConfigError("no messages")

    monkeypatch.setattr(fields, "read_grammar", lambda value: asked.append(value))
    with serving(Engine(), api_keys=(ApiKey("k", "ann", requests_per_minute=1),)) as server:
        assert server.post(path, body, headers=ANN).status_code == status
        for again in (path, "/tokenize", CHAT):
            assert server.post(again, {**ASK, "grammar": 'root ::= "a"'}, headers=ANN).status_code == 429
    assert asked == []


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_count_though_the_client_leaves_before_it_is_told_of_them(stream: bool) -> None:
    engine = Scripted(n_tokens=1000)
    keys = (ApiKey("k", "ann", tokens_per_minute=4), ApiKey("l", "bob"))
    records: list[RequestRecord] = []
    body = json.dumps({**ASK, "stream": stream}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer k\r\ncontent-type: application/json\r\n"
    with serving(engine, records.append, api_keys=keys) as server:
        with socket.create_connection((server.host, server.port), timeout=WAIT_S) as client:
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            assert engine.begun.acquire(timeout=WAIT_S)
            engine.step(5)
            data = b""
            while stream and b"t5" not in data:
                part = client.recv(4096)
                assert part
                data += part
            until(lambda: engine.n_told == 5, "five tokens are made")
        until(lambda: records and not server.service.worker.running, "it is over")
        assert server.post(CHAT, ASK, headers=ANN).status_code == 429
        with server.client() as client_:
            text = client_.get("/metrics", headers={"x-api-key": "l"}).text
    assert engine.said == ["cancelled"]
    assert (records[0].n_prompt, records[0].n_generated) == (1, 5)
    assert 'specgguf_client_tokens_total{model="tiny",key="ann",kind="generated"} 5' in text


def test_a_log_line_is_one_line_whatever_was_asked_for() -> None:
    records: list[RequestRecord] = []
    with serving(Scripted(), records.append) as server, server.client() as client:
        for path in ("/%0APOST%20/v1/chat/completions%20200", "/%1b[2J%9b", "/a%20b", "/%e2%80%a8%ff", "/ü"):
            assert client.get(path).status_code == 404
        server.post(CHAT, {**ASK, "tools": [], "tool_choice": {"function": {"name": "a\x1b[2J\u2028b"}}})
    assert len(records) == 6
    for record in records:
        line = record.text()
        assert line.isprintable()
        assert line.split(" ")[2] in ("404", "400"), line
        assert line.splitlines() == [line]
    assert records[0].path == "/%0APOST%20/v1/chat/completions%20200"
    assert r"\x1b[2J" in records[5].text()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("localhost:80", "localhost"),
        ("LOCALHOST.", "localhost"),
        ("[::1]:8080", "::1"),
        ("localhost:80@evil.example", ""),
        ("localhost/evil", ""),
        ("[::1]evil.example", ""),
        ("localhost:evil", ""),
        ("localhost evil", ""),
        ("", ""),
    ],
)
def test_a_host_is_read_whole(given: str, name: str) -> None:
    assert host_name(given) == name


def test_an_allowed_host_is_enforced_and_probes_need_none() -> None:
    with serving(Scripted(), hosts=("My.Host", "[::1]")) as server, server.client() as client:
        assert client.get("/v1/models", headers={"host": "my.host:8080"}).status_code == 200
        assert client.get("/v1/models", headers={"host": "[::1]:8080"}).status_code == 200
        for host in ("evil.example", "my.host@evil.example", "localhost"):
            assert client.get("/v1/models", headers={"host": host}).status_code == 403
        assert client.get("/health", headers={"host": "10.0.0.7:8080"}).status_code == 200


def test_a_request_has_an_id() -> None:
    with serving(Scripted()) as server, server.client() as client:
        assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
        ids = {client.get("/health", headers={"x-request-id": "<b>"}).headers["x-request-id"] for _ in range(2)}
        assert len(ids) == 2
        assert all(id.startswith("req-") for id in ids)


def test_errors_are_a_line_however_much_was_sent() -> None:
    with serving(Scripted()) as server:
        for body in ({"x" * 3_000_000: 1}, {"model": "y" * 3_000_000}, {"messages": [{"role": "z\n" * 100_000}]}):
            error = server.post(CHAT, {**ASK, **body}).json()["error"]
            assert len(json.dumps(error)) < 1000
            assert "\n" not in error["message"]
    assert len(error_body(ConfigError("x" * 10**6))["error"]["message"]) < 500


def test_a_path_that_a_proxy_has_shortened() -> None:
    with serving(Scripted(), root_path="/llm") as server, server.client() as client:
        assert client.get("/health").status_code == 200
        assert client.get("/v1/models").status_code == 200
    with pytest.raises(ConfigError, match="root_path"):
        ServeConfig(root_path="llm/")
