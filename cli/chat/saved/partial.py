"""The answer that is being written, on disk about every second: a program that is killed loses no more than that.

A small file beside the conversation's, which the next whole write of the conversation removes.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

EVERY_S = 0.5


class PartialWriter:
    """A context that keeps the newest of `message()` in the file `path`; with no path it does nothing.

    A thread of its own writes, so that a model which is slow between two words does not hold them back.
    """

    def __init__(self, path: Path | None, question: str, message: Callable[[], dict[str, Any]]) -> None:
        self._path = path
        self._question = question
        self._message = message
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> PartialWriter:
        if self._path is not None:
            self._thread = threading.Thread(target=self._work, args=(self._path,), name="partial", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self, path: Path) -> None:
        written: dict[str, Any] = {}
        while not self._over.wait(EVERY_S):
            message = self._message()
            if message["content"] + message.get("reasoning_content", "") and message != written:
                with contextlib.suppress(OSError):  # what cannot be written now is written with the whole
                    _write(path, json.dumps({"question": self._question, "message": message}))
                    written = message


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(temporary, path)


def read(path: Path, question: str) -> dict[str, Any] | None:
    """The message that was begun for `question`, or None where nothing (or nothing readable) is kept."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        message = content["message"]
        if content["question"] != question or not isinstance(message["content"], str):
            return None
        json.dumps(message, ensure_ascii=False).encode()
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return {**message, "role": "assistant"}
