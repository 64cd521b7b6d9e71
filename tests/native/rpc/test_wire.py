"""What a worker says about itself, asked of scripted ones: right answers, and everything else that may listen there."""

from __future__ import annotations

import struct

import pytest
from support.fake_workers import Script, fake_worker, listening

from specgguf.errors import BackendError, ConfigError, WorkerLost
from specgguf.native.rpc import wire
from specgguf.native.rpc.wire import Endpoint, WorkerDevice


def test_a_worker_tells_its_devices_and_a_round_trip() -> None:
    with listening(fake_worker((5, 7), (11, 13))) as endpoint:
        report = wire.ask(endpoint)
    assert report.devices == (WorkerDevice(5, 7), WorkerDevice(11, 13))
    assert (report.endpoint, report.version, report.free_bytes) == (endpoint, "7.1.2", 16)
    assert 0 < report.round_trip_s < 60


def test_another_version_of_the_protocol_is_named() -> None:
    with (
        listening(fake_worker((1, 1), major=6)) as endpoint,
        pytest.raises(BackendError, match=rf"{endpoint} speaks version 6\.1\.2 .* and this build 7") as caught,
    ):
        wire.ask(endpoint)
    assert "same llama-cpp-python" in caught.value.hint
    assert not isinstance(caught.value, WorkerLost)


@pytest.mark.parametrize(
    "script",
    [
        lambda c: c.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(64)),
        lambda c: c.sendall(struct.pack("<Q", 28) + bytes(5)),
        lambda c: None,
    ],
    ids=["http", "cut short", "closes"],
)
def test_what_is_no_worker_is_said_to_be_none(script: Script) -> None:
    with listening(script) as endpoint, pytest.raises(BackendError, match=f"{endpoint} is no worker") as caught:
        wire.ask(endpoint)
    assert not isinstance(caught.value, WorkerLost)


def test_a_port_where_nothing_listens_is_said_with_the_line_that_starts_a_worker() -> None:
    with listening(None) as endpoint:
        pass
    with pytest.raises(WorkerLost, match=f"worker {endpoint} does not answer: nothing listens") as caught:
        wire.ask(endpoint)
    assert f"specgguf worker --host ADDRESS --port {endpoint.port}" in caught.value.hint


def test_a_worker_that_is_busy_or_frozen_is_given_up() -> None:
    with (
        listening(None) as endpoint,  # the kernel accepts for it
        pytest.raises(WorkerLost, match=f"worker {endpoint} does not answer: it accepts connections") as caught,
    ):
        wire.ask(endpoint, timeout_s=0.05)
    assert "one at a time" in caught.value.hint


def test_a_name_that_resolves_to_nothing_is_said() -> None:
    with pytest.raises(WorkerLost, match=r"worker no\.such\.host\.invalid:50052 does not answer"):
        wire.ask(Endpoint("no.such.host.invalid", 50052))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("10.0.0.2", [("10.0.0.2", 50052)]),
        ("10.0.0.2:1, box:65535", [("10.0.0.2", 1), ("box", 65535)]),
        (["a:5", "b"], [("a", 5), ("b", 50052)]),
    ],
)
def test_endpoints_are_read(text: str | list[str], found: list[tuple[str, int]]) -> None:
    assert list(wire.endpoints(text)) == found


@pytest.mark.parametrize("text", ["", ":5", "a:", "a:0", "a:65536", "a:b", "http://a:5", "a b", "a,,b", [5], ["a", ""]])
def test_what_is_no_endpoint_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"rpc_servers: .* is no HOST:PORT"):
        wire.endpoints(text)


def test_a_worker_stands_once_and_there_are_not_too_many() -> None:
    with pytest.raises(ConfigError, match="a:50052 stands there twice"):
        wire.endpoints("a,a:50052")
    with pytest.raises(ConfigError, match="at most 16 workers, not 17"):
        wire.endpoints([f"a:{n}" for n in range(1, 18)])
