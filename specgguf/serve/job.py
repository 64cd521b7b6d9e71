"""One request on its way through the queue and the engine: what is left of it, what is told to its reader, and its end.

It is made and read on the event loop and worked on by threads, and can be stopped at any moment of its life. It knows
no queue, no HTTP and no JSON: an answer is a callable that returns dicts.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from specgguf.errors import Cancelled

Json = dict[str, Any]
Work = Callable[[], Json | Generator[Json, None, None]]
Item = tuple[int, Json]  # of which answer


class Stoppable(Protocol):
    """What a job needs of a `Generation`."""

    n_prompt: int

    @property
    def n_completion(self) -> int: ...
    def cancel(self) -> None: ...
    def stop(self) -> None: ...


class Job:
    """One request on its way through the queue and the engine; belongs to the event loop that made it.

    Args:
        works: what makes each of its answers. client: whose turn it takes.

    Attributes:
        began, ended: set on the way, `ended` always; `began` too, even if it never ran.
        ran: whether the engine took it up. n_running: its answers that are in the engine. over: all of it was done.
        counted: whether its reader has counted its tokens.
    """

    def __init__(self, works: Sequence[Work], client: str) -> None:
        self.left = deque(enumerate(works))  # answers that have not begun
        self.client = client
        self.ran, self.n_running, self.over = False, 0, False
        self.began, self.ended = asyncio.Event(), asyncio.Event()
        self.cancelled = self.finishing = self.counted = False
        self.told_at = 0.0  # when it began or gave its latest dict, on time.monotonic's clock
        self.stopped_at: float | None = None  # when it was first asked to stop
        self._generations: dict[int, Stoppable] = {}  # by answer: the one that is made for it now
        self._n_prompt = self._n_generated = 0  # of the generations that have ended
        self._reason: Exception | None = None
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item | None] = asyncio.Queue()
        self._error: BaseException | None = None

    async def next(self) -> Item | None:
        """The next dict and the number of its answer, None after the last. Raises whatever ended the job."""
        item = await self._items.get()
        if item is None:
            self._items.put_nowait(None)
            if self._error is not None:
                raise self._error
        return item

    def stop(self, reason: Exception | None, *, finish: bool) -> None:
        """Stop the generations that are made for it, or as soon as there are some; `reason` is raised by `next` instead
        of Cancelled."""
        self._reason = self._reason or reason
        self.stopped_at = self.stopped_at or time.monotonic()
        self.finishing, self.cancelled = True, self.cancelled or not finish
        for generation in tuple(self._generations.values()):
            self._pass_on(generation)

    def n_tokens(self) -> tuple[int, int]:
        """Tokens read and written for it so far, whether or not anybody got them."""
        running = tuple(self._generations.values())
        return (
            self._n_prompt + sum(generation.n_prompt for generation in running),
            self._n_generated + sum(generation.n_completion for generation in running),
        )

    def _pass_on(self, generation: Stoppable) -> None:
        if self.finishing:
            (generation.cancel if self.cancelled else generation.stop)()

    # --- called by the worker -----------------------------------------------------------------------------

    def hold(self, i: int, generation: Stoppable) -> None:
        """A generation was asked for. In this order: a `stop` that comes now finds it, an earlier one is heard."""
        self._retire(i)
        self._generations[i] = generation
        self._pass_on(generation)

    def _retire(self, i: int) -> None:
        if (generation := self._generations.pop(i, None)) is not None:
            self._n_prompt += generation.n_prompt
            self._n_generated += generation.n_completion

    def tell(self, i: int, item: Json) -> None:
        self.told_at = time.monotonic()
        self._on_loop(lambda: self._items.put_nowait((i, item)))

    def begin(self) -> tuple[int, Work]:
        """Its next answer, which is in the engine now."""
        self.n_running += 1
        self.told_at = time.monotonic()
        if not self.ran:
            self.ran = True
            self._on_loop(self.began.set)
        return self.left.popleft()

    def leave(self, i: int, error: BaseException | None) -> None:
        """An answer is not in the engine any more; the first error is what ends the job."""
        self.n_running -= 1
        self._retire(i)
        if error is not None:
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        self._error = self._error or (isinstance(error, Cancelled) and self._reason) or error

    def end(self) -> None:
        if not self.over:
            self.over = True
            self._on_loop(self._end)

    def _end(self) -> None:
        self._items.put_nowait(None)
        self.began.set()
        self.ended.set()

    def _on_loop(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(call)
