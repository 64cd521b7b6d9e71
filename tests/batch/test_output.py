"""The file of rows: whole lines only, whatever happened before, and never another input's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.batch_support import Json, chat, rows

from specgguf.batch.output import OutputFile, line_of
from specgguf.batch.requests import BadLine, Request, read_requests
from specgguf.batch.rows import answered, failed
from specgguf.errors import Busy, ConfigError, ContextFull, SpecggufError


@pytest.fixture
def requests() -> list[Request]:
    return read_requests([json.dumps(chat(f"id {i}", f"Frage № {i}")).encode() for i in range(3)], "in.jsonl")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.jsonl"


def opened(path: Path, requests: list[Request], *, retry_failed: bool = False) -> OutputFile:
    return OutputFile(path, requests, "in.jsonl", retry_failed=retry_failed)


def answer(request: Request) -> Json:
    return answered(request, {"choices": [{"text": f"über {request.custom_id}"}]})


def ids(found: list[Json]) -> list[str]:
    return [row["id"] for row in found]


def test_rows_have_openais_shape(path: Path, requests: list[Request]) -> None:
    with opened(path, requests) as output:
        output.append(answer(requests[0]))
        output.append(failed(requests[1], ContextFull("too long", hint="shorter")))
        output.append(failed(requests[2], BadLine("line 3: bad")))
    good, refused, bad = rows(path)
    assert good["response"].pop("request_id").startswith("req_")
    assert good == {
        "id": requests[0].id, "custom_id": "id 0", "error": None,
        "response": {"status_code": 200, "body": {"choices": [{"text": "über id 0"}]}},
    }  # fmt: skip
    assert refused["response"]["status_code"] == 400
    assert refused["response"]["body"]["error"] == {
        "message": "too long (shorter)", "type": "invalid_request_error", "param": None,
        "code": "context_length_exceeded",
    }  # fmt: skip
    assert bad["response"] is None
    assert bad["error"] == {"code": "invalid_line", "message": "line 3: bad"}


def test_what_is_there_is_done(path: Path, requests: list[Request]) -> None:
    with opened(path, requests) as output:
        output.append(answer(requests[1]))
        output.append(failed(requests[2], ContextFull("too long")))
    with opened(path, requests) as output:
        assert output.done == {requests[1].id, requests[2].id}
        assert output.failed == {requests[2].id}
        assert not output.repaired


def test_a_file_cut_at_any_byte_is_whole_again(path: Path, requests: list[Request]) -> None:
    """Whoever is killed while he writes leaves a beginning of the file; every one of them is tried."""
    lines = [line_of(answer(request)) for request in requests]
    data = b"".join(lines)
    for cut in range(len(data) + 1):
        path.write_bytes(data[:cut])
        with opened(path, requests) as output:
            for request in requests:
                if request.id not in output.done:
                    output.append(answer(request))
        assert sorted(ids(rows(path))) == sorted(r.id for r in requests), cut
        kept = data[:cut].count(b"\n")
        assert path.read_bytes().startswith(b"".join(lines[:kept]))


def test_zeros_that_a_power_cut_leaves_are_no_row(path: Path, requests: list[Request]) -> None:
    whole = line_of(answer(requests[0]))
    for tail in (b"\0" * 50, line_of(answer(requests[1]))[:40] + b"\0" * 50):
        path.write_bytes(whole + tail)
        with opened(path, requests) as output:
            assert output.done == {requests[0].id}
            assert output.repaired
        assert path.read_bytes() == whole


@pytest.mark.parametrize(
    "content",
    [
        b"my notes\n", b"my notes", b"{}\n", b'{"id": 3}\n', b'{"id": "batch_req_1"}\n', b"\n", b"\xff\n", b"[1]\n",
        b'{"id": "batch_req_1", "custom_id": "a", "response": 3, "error": null}\n',
        b'{"custom_id": "request-1", "method": "POST"',
    ],
)  # fmt: skip
def test_a_file_that_is_no_output_stays_as_it_is(path: Path, requests: list[Request], content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"out\.jsonl, line 1, is no row of a batch"):
        opened(path, requests)
    assert path.read_bytes() == content


def test_a_strange_line_behind_rows_is_found_before_anything_is_mended(path: Path, requests: list[Request]) -> None:
    content = line_of(answer(requests[0])) + b"notes\n" + line_of(answer(requests[1]))[:30]
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="line 2, is no row"):
        opened(path, requests)
    assert path.read_bytes() == content


def test_rows_of_another_input_are_refused(path: Path, requests: list[Request]) -> None:
    others = read_requests([json.dumps(chat("id 0", "something else")).encode()], "other.jsonl")
    with opened(path, others) as output:
        output.append(answer(others[0]))
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="belongs to another input: the request of its line 1, custom_id 'id 0'"):
        opened(path, requests)
    assert path.read_bytes() == before


def test_an_input_that_has_grown_goes_on(path: Path, requests: list[Request]) -> None:
    with opened(path, requests[:1]) as output:
        output.append(answer(requests[0]))
    with opened(path, requests) as output:
        assert output.done == {requests[0].id}


def test_failed_rows_are_taken_out_when_they_are_asked_again(path: Path, requests: list[Request]) -> None:
    with opened(path, requests) as output:
        output.append(failed(requests[0], ContextFull("too long")))
        output.append(answer(requests[1]))
    with opened(path, requests, retry_failed=True) as output:
        assert output.done == {requests[1].id}
        assert not output.failed
        with pytest.raises(Busy):
            opened(path, requests)
        output.append(answer(requests[0]))
    assert ids(rows(path)) == [requests[1].id, requests[0].id]
    assert os.listdir(path.parent) == [path.name]


def test_two_programs_do_not_write_one_file(path: Path, requests: list[Request]) -> None:
    with opened(path, requests), pytest.raises(Busy, match="another program is writing"):
        opened(path, requests)
    opened(path, requests).close()


def test_what_is_no_file_is_refused(tmp_path: Path, requests: list[Request]) -> None:
    with pytest.raises(IsADirectoryError):
        opened(tmp_path, requests)
    with pytest.raises(ConfigError, match="is no regular file"):
        opened(Path("/dev/null"), requests)
    with pytest.raises(FileNotFoundError):
        opened(tmp_path / "no" / "out.jsonl", requests)


def test_line_ends_that_json_allows_are_escaped(path: Path, requests: list[Request]) -> None:
    with opened(path, requests) as output:
        output.append(answered(requests[0], {"text": "a\u2028b\u2029c\x85d\ne"}))
    assert len(path.read_text(encoding="utf-8").splitlines()) == 1
    assert rows(path)[0]["response"]["body"] == {"text": "a\u2028b\u2029c\x85d\ne"}


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from specgguf.batch.output import OutputFile
from specgguf.batch.requests import read_requests
from specgguf.batch.rows import answered
from specgguf.errors import SpecggufError

requests = read_requests(Path(sys.argv[1]).read_bytes().splitlines(), "in.jsonl")
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
with OutputFile(sys.argv[2], requests, "in.jsonl") as output:
    try:
        for request in requests:
            output.append(answered(request, {"text": "x" * 200}))
    except SpecggufError as error:
        print(error, error.hint, sep="|")
"""


def test_a_full_disk_leaves_whole_rows(path: Path, tmp_path: Path, requests: list[Request]) -> None:
    """The kernel writes the beginning of a row and refuses the rest of it."""
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(request.data for request in requests))
    done = subprocess.run(
        [sys.executable, "-P", "-c", FULL_DISK, str(source), str(path), "500"], capture_output=True, text=True
    )
    assert done.stdout == f"{path}: file too large; 1 rows are whole|make room for it, then the same command goes on\n"
    assert ids(rows(path)) == [requests[0].id]


def test_after_it_is_closed_nothing_is_written_anywhere(path: Path, requests: list[Request]) -> None:
    output = opened(path, requests)
    output.close()
    with pytest.raises(SpecggufError):
        output.append(answer(requests[0]))
    assert path.read_bytes() == b""
