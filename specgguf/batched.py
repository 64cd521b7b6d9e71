"""Many prompts at once: as many as there are places run, and each makes way for the next one when it ends.

One thread drives them all; what they share are forward passes. It knows token ids and texts, no messages and no files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from .decode.generation import Generation
from .decode.records import TokenLogprob
from .decode.stats import Stats
from .errors import SpecggufError


@dataclass(frozen=True)
class BatchResult:
    """What came of one prompt.

    Attributes:
        index: its place among the prompts, from 0.
        prompt: its token ids; empty where it could not be read.
        text, reasoning: the answer, and the model's reasoning before it.
        tokens: the ids of both, an end-of-generation token not counted.
        finish_reason: "eos", "stop" or "length"; None where it failed.
        logprobs: one per token where they were asked for.
        stats: of its rounds.
        error: what it failed with; what came before stands in the other fields.
    """

    index: int
    prompt: list[int]
    text: str = ""
    reasoning: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    error: SpecggufError | None = None


@dataclass(frozen=True)
class BatchProgress:
    """How far a batch is: prompts that are done, that run, and in all (None while that is not known), and tokens
    generated so far."""

    n_done: int
    n_running: int
    n_prompts: int | None
    n_tokens: int


@dataclass
class Wanted:
    """One prompt: its ids, and how many tokens its generation may come to hold; or why there is none."""

    prompt: list[int]
    n_tokens: int = 0
    begin: Callable[[], Generation] | None = None
    error: SpecggufError | None = None


class Places(Protocol):
    """What takes generations up: `engine.Engine`."""

    n_parallel: int

    def fits_now(self, n_tokens: int) -> bool:
        """Whether one that may grow to so many tokens could begin at once."""


class _Running:
    """One prompt under way, read as far as it has come."""

    def __init__(self, index: int, wanted: Wanted, generation: Generation) -> None:
        self.index = index
        self.generation = generation
        self.result = BatchResult(index, wanted.prompt, stats=generation.stats)
        self._texts: list[str] = []
        self._reasonings: list[str] = []

    def read(self) -> BatchResult | None:
        """Read one chunk; the result once nothing follows."""
        try:
            chunk = next(self.generation, None)
        except SpecggufError as error:
            return self._made(None, error)
        if chunk is None:
            return self._made(self.generation.finish_reason or "length", None)
        self._texts.append(chunk.text)
        self._reasonings.append(chunk.reasoning)
        if chunk.token >= 0 and not chunk.ends_text:
            self.result.tokens.append(chunk.token)
            if chunk.logprob is not None:
                self.result.logprobs.append(chunk.logprob)
        return None

    def _made(self, reason: str | None, error: SpecggufError | None) -> BatchResult:
        one = self.result
        texts = "".join(self._texts), "".join(self._reasonings)
        return BatchResult(self.index, one.prompt, *texts, one.tokens, reason, one.logprobs, one.stats, error)


def run(
    places: Places,
    wanted: Iterable[Wanted],
    *,
    n_prompts: int | None = None,
    in_order: bool = False,
    progress: Callable[[BatchProgress], None] | None = None,
) -> Generator[BatchResult, None, None]:
    """The results, as they end or in the order of the prompts. Where the reader stops early, so do those that run."""
    waiting: Iterator[tuple[int, Wanted]] = enumerate(wanted)
    following = next(waiting, None)
    running: deque[_Running] = deque()
    held: dict[int, BatchResult] = {}
    n_done = n_tokens = n_given = 0
    try:
        while running or following is not None:
            ended: list[BatchResult] = []
            while following is not None and (not running or places.fits_now(following[1].n_tokens)):
                ended += _begin(running, *following)
                following = next(waiting, None)
            for _ in range(len(running)):
                n_tokens -= len(running[0].result.tokens)
                after = running[0]
                ended += _read(running, 0)
                n_tokens += len(after.result.tokens)
            n_done += len(ended)
            if progress is not None:
                progress(BatchProgress(n_done, len(running), n_prompts, n_tokens))
            for result in ended:
                held[result.index] = result
            while held and (n_given in held or not in_order):
                yield held.pop(n_given if in_order else next(iter(held)))
                n_given += 1
    finally:
        for one_running in running:
            one_running.generation.close()


def _begin(running: deque[_Running], index: int, wanted: Wanted) -> list[BatchResult]:
    """Begin one, which takes its place with its first chunk; its result where there is nothing to begin."""
    error = wanted.error
    if wanted.begin is not None:
        try:
            running.append(_Running(index, wanted, wanted.begin()))
            return _read(running, -1)
        except SpecggufError as refused:
            error = refused
    return [BatchResult(index, wanted.prompt, error=error)]


def _read(running: deque[_Running], at: int) -> list[BatchResult]:
    """Read one chunk of one of them, which then goes to the end of the line; its result where it has ended."""
    one = running[at]
    del running[at]
    result = one.read()
    if result is None:
        running.append(one)
        return []
    one.generation.close()
    return [result]
