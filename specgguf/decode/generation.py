"""A generation: one answer under way, from the first token to whatever ends it.

It owns the end of its text, its statistics, and the wish to end it. Its rounds come from a driver, which owns the
models; what the tokens mean as text is the text stream's.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from specgguf.errors import ConfigError, ContextFull

from .records import Chunk, Round
from .run import StopCheck
from .stats import Stats


class TextStream(StopCheck, Protocol):
    """Turns committed tokens into text."""

    @property
    def n_tokens(self) -> int:
        """Kept so far, the end-of-generation token not counted."""

    @property
    def stopping_word(self) -> str:
        """The stop string that ended the text, "" where none did."""

    def chunks(self, round: Round) -> list[Chunk]:
        """The chunks of the tokens that the last `check` kept."""

    def flush(self) -> list[Chunk]:
        """What is still held back, where the generation ends without a reason of its own."""


class Driver(Protocol):
    """Owns the models and runs the rounds of a generation."""

    def advance(self, generation: Generation) -> Round | None:
        """Its next round; None where it was stopped."""

    def interrupt(self, generation: Generation) -> None:
        """It was cancelled: do not let it read on."""

    def release(self, generation: Generation) -> None:
        """It has ended, however: its caches are kept valid."""


class Generation:
    """One answer; iterating gives its chunks, once.

    Attributes:
        n_prompt: tokens of the prompt.
        stats: sums over its rounds so far.
        cancelled, stopped: what was asked of it from outside, before or while it runs.
        finish_reason: "eos", "stop" or "length" once it has ended by itself or was stopped, else None.

    Raises:
        Cancelled, Busy, BackendError, ConfigError: while iterating; what came before stands.
    """

    def __init__(self, driver: Driver, text: TextStream, n_prompt: int) -> None:
        self.n_prompt = n_prompt
        self.stats = Stats()
        self.cancelled = self.stopped = False
        self.finish_reason: str | None = None
        self._driver = driver
        self._text = text
        self._rounds = self._run()
        self._chunks = self._read()

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def rounds(self) -> Iterator[Round]:
        """The rounds instead of the chunks: for who measures."""
        return self._rounds

    @property
    def n_completion(self) -> int:
        """Generated tokens, the end-of-generation token not counted."""
        return self._text.n_tokens

    @property
    def stopping_word(self) -> str:
        """The stop string that ended it, "" where none did."""
        return self._text.stopping_word

    def cancel(self) -> None:
        """End it without a result, from any thread or a signal handler: it raises Cancelled within a round, or soon
        while it reads the prompt, or as soon as it begins. Every cache stays valid."""
        self.cancelled = True
        self._driver.interrupt(self)

    def stop(self) -> None:
        """End it after its round, from any thread: the text so far stands, with rounds that were made ahead of the
        reader beside others; finish_reason "length"."""
        self.stopped = True

    def close(self) -> None:
        """Nobody reads on."""
        self._chunks.close()
        self._rounds.close()

    def _run(self) -> Generator[Round, None, None]:
        try:
            while (round := self._driver.advance(self)) is not None:
                self.finish_reason = round.finish_reason
                yield round
                if round.finish_reason is not None:
                    return
            self.finish_reason = "length"
        finally:
            self._driver.release(self)

    def _read(self) -> Generator[Chunk, None, None]:
        try:
            for round in self._rounds:
                chunks = self._text.chunks(round)
                if round.finish_reason is not None:
                    chunks = [*chunks, *self._text.flush()] or [Chunk("", -1)]
                    chunks[-1] = replace(chunks[-1], finish_reason=round.finish_reason)
                yield from chunks
                if round.finish_reason is not None:
                    return
            rest = self._text.flush() or [Chunk("", -1)]
            yield from rest[:-1]
            yield replace(rest[-1], finish_reason="length")
        finally:
            self._rounds.close()


def check_prompt(prompt: Sequence[int], n_ctx: int) -> None:
    """Raise ConfigError for an empty prompt, ContextFull for one that leaves no room for a token."""
    if not prompt:
        raise ConfigError("the prompt is empty", hint="give at least one token")
    if len(prompt) >= n_ctx:
        raise ContextFull(
            f"the prompt has {len(prompt)} tokens and the context holds {n_ctx}",
            hint="a larger n_ctx (--n-ctx), or a shorter prompt",
        )
