"""The output: a file of rows to which whole lines are added, so that whoever is killed can go on where he was.

A row bears the id of its request, and that is all that is needed to know what is done: no second file, no clock. This
module knows JSON and the file, and nothing of bodies or engines.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from specgguf.errors import Busy, ConfigError, SpecggufError

from .requests import ID, Request
from .rows import Json, status_of

START = f'{{"id": "{ID}'.encode()  # how every row begins
FLUSH_S = 1.0  # rows of the last so many seconds may be lost with the machine; with the process, none
LINE_ENDS = {ord(c): f"\\u{ord(c):04x}" for c in "\x85\u2028\u2029"}  # no JSON ones, but some readers split at them


class OutputFile:
    """The rows of one input, open for more; nobody else can write them meanwhile.

    Args:
        requests: of the input. name: the input, in errors.
        retry_failed: take out the rows of requests that failed; only they are asked again.

    Attributes:
        done: ids of the requests that have a row. failed: of those that failed, among them.
        repaired: a row that was cut short was taken out.

    Raises:
        ConfigError: it is no output of this input. Busy: another program writes it. OSError: it cannot be written.
    """

    def __init__(
        self, path: str | os.PathLike[str], requests: list[Request], name: str, *, retry_failed: bool = False
    ) -> None:
        self.path = Path(path)
        self.done: set[str] = set()
        self.failed: set[str] = set()
        self.repaired = False
        self._lock = threading.Lock()
        self._flushed_at = time.monotonic()
        self._fd = _open(self.path)
        try:
            _lock(self._fd, self.path)
            self._size = self._read({request.id: request for request in requests}, name)
            if retry_failed and self.failed:
                self._drop_failed()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, row: Json) -> None:
        """Add one row, whole or not at all.

        Raises:
            SpecggufError: the disk takes no more; the rows so far are whole.
        """
        data = line_of(row)
        with self._lock:
            try:
                _write(self._fd, data)
                if time.monotonic() - self._flushed_at > FLUSH_S:
                    os.fsync(self._fd)
                    self._flushed_at = time.monotonic()
            except OSError as error:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._fd, self._size)
                raise SpecggufError(
                    f"{self.path}: {(error.strerror or str(error)).lower()}; {len(self.done)} rows are whole",
                    hint="make room for it, then the same command goes on",
                ) from error
            self._size += len(data)
            self.done.add(row["id"])
            if status_of(row) != 200:
                self.failed.add(row["id"])

    def close(self) -> None:
        """Everything is on the disk, as far as it can be."""
        with self._lock:
            fd, self._fd = self._fd, -1  # whoever still appends must not reach another file by this number
            with contextlib.suppress(OSError):
                os.fsync(fd)
            os.close(fd)

    def _read(self, requests: Mapping[str, Request], name: str) -> int:
        """Take note of the rows that are there, mend the last one; the file's length."""
        end, tail, n = 0, b"", 0
        for n, line in enumerate(_lines(self._fd), 1):
            row = _parse(line)
            if row is None:
                if not line.endswith(b"\n") and (START.startswith(line[: len(START)]) or not line.strip(b"\0")):
                    tail = line
                    break
                raise ConfigError(
                    f"{self.path}, line {n}, is no row of a batch",
                    hint="-o names a file of its own; this one is as it was",
                )
            if row["id"] not in requests:
                raise ConfigError(
                    f"{self.path} belongs to another input: the request of its line {n}, custom_id "
                    f"{row['custom_id']!r:.60}, is not in {name}",
                    hint="-o names a new file, or give the input that it belongs to",
                )
            self.done.add(row["id"])
            if status_of(row) != 200:
                self.failed.add(row["id"])
            end += len(line)
            if not line.endswith(b"\n"):
                _write(self._fd, b"\n")
                end += 1
        if tail:
            os.ftruncate(self._fd, end)
            self.repaired = True
        return end

    def _drop_failed(self) -> None:
        """Put a file without the failed rows in the place of this one: at any moment one of the two is there, whole."""
        part = self.path.with_name(self.path.name + ".part")
        fd = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            _lock(fd, part)
            self._size = 0
            for line in _lines(self._fd):
                row = _parse(line)
                if row is not None and row["id"] not in self.failed:
                    _write(fd, line)
                    self._size += len(line)
            os.fsync(fd)
            os.replace(part, self.path)
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd = fd
        self.done -= self.failed
        self.failed.clear()


def line_of(row: Json) -> bytes:
    """A row as a line of the file."""
    return json.dumps(row, ensure_ascii=False).translate(LINE_ENDS).encode() + b"\n"


def _parse(line: bytes) -> Json | None:
    """The row that `line` is; None where it is none."""
    try:
        row = json.loads(line)
        status_of(row)
        is_row = row["id"].startswith(ID) and {"custom_id", "error"} <= set(row)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return row if is_row else None


def _open(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigError(f"{path} is no regular file", hint="rows are added to it and read again: -o FILE")
    return fd


def _lock(fd: int, path: Path) -> None:
    """The kernel lets go of it when the program dies."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise Busy(f"another program is writing {path}", hint="wait for it, or -o names another file") from error


def _lines(fd: int) -> Iterator[bytes]:
    """The file's lines from its beginning, each with its end; the last may have none."""
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        yield from file


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
