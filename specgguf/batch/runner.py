"""Requests in, rows out: what a source of rows brings goes into the output, row by row, until none is missing.

Where the answers are made is the source's business: `answering.ThisMachine`, or the nodes of `over_ray`. It knows no
file format and no terminal, and draws no conclusions from what it counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from specgguf.errors import SpecggufError
from specgguf.serve.protocols.reply import Json

from . import rows
from .output import OutputFile
from .requests import Request

FAULTS_MAX = 3  # requests in a row that failed by no fault of theirs: the next ones would fail, too


@dataclass(frozen=True)
class Progress:
    """How far a batch is.

    Attributes:
        n_requests: of the input. n_done: those that have a row; n_before of them had it before this run.
        n_failed: rows that are no answer. n_running: requests that are being answered.
        n_tokens: generated in this run.
        where: which machines answer, in words; "" for this one.
    """

    n_requests: int
    n_done: int = 0
    n_before: int = 0
    n_failed: int = 0
    n_running: int = 0
    n_tokens: int = 0
    where: str = ""


class Source(Protocol):
    """What answers requests.

    Attributes:
        n_running: requests that are being answered now. n_tokens: generated so far.
        where: which machines answer, in words; "" for this one.
    """

    @property
    def n_running(self) -> int: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def where(self) -> str: ...

    def rows(self, requests: Sequence[Request]) -> Generator[Json | None, None, None]:
        """One row for each request, as they end; None now and then meanwhile. Closing it ends what runs.

        Raises:
            SpecggufError: nothing is left that could answer.
        """

    def stop(self) -> None:
        """Let `rows` end soon, from any thread: what runs is cancelled and has no row."""


class Batch:
    """The requests of an input that have no row yet, to be answered.

    Args:
        source: what answers.
        requests: all of the input. output: where rows go, and what is done already.
    """

    def __init__(self, source: Source, requests: Sequence[Request], output: OutputFile) -> None:
        self._source, self._output = source, output
        self._waiting = [request for request in requests if request.id not in output.done]
        self._progress = Progress(len(requests), n_before=len(output.done))
        self._n_faults = 0

    @property
    def progress(self) -> Progress:
        """How far it is now."""
        return replace(
            self._progress,
            n_done=len(self._output.done),
            n_failed=len(self._output.failed),
            n_running=self._source.n_running,
            n_tokens=self._source.n_tokens,
            where=self._source.where,
        )

    def run(self, told: Callable[[Progress], None] = lambda progress: None) -> Progress:
        """Answer them all, or until `stop`; `told` hears now and then how far it is.

        Raises:
            SpecggufError: the disk takes no more rows, or whatever is asked fails.
        """
        told(self.progress)
        with contextlib.closing(self._source.rows(self._waiting)) as answers:
            for row in answers:
                if row is not None:
                    assert row["id"] not in self._output.done
                    self._output.append(row)
                    self._count_faults(row)
                told(self.progress)
        return self.progress

    def stop(self) -> None:
        """Begin no more requests and cancel those that run, from any thread: they have no row, and the next run answers
        them."""
        self._source.stop()

    def _count_faults(self, row: Json) -> None:
        self._n_faults = self._n_faults + 1 if rows.status_of(row) >= rows.FAULT else 0
        if self._n_faults >= FAULTS_MAX:
            raise SpecggufError(
                f"{self._n_faults} requests in a row failed: {rows.message_of(row)}",
                hint="--retry-failed asks them again; specgguf doctor checks the pair",
            )
