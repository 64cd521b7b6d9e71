"""The one stream of a generation's text: a chunk per token, its reasoning told apart from its answer.

Who wrote a token stays with it: a chunk waits until it is certain what its characters are, then it is handed on whole,
in the order of the tokens. This module knows nothing of models or rounds beyond what a round committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specgguf.decode.records import Chunk, Round

from .detokenize import Detokenizer, ReasoningSplitter


@dataclass
class _Waiting:
    """A chunk whose text is not settled yet: so many of its characters are, as reasoning or as the answer."""

    chunk: Chunk
    n_left: int
    text: str = ""
    reasoning: str = ""

    def done(self) -> Chunk:
        return replace(self.chunk, text=self.text, reasoning=self.reasoning)


class ChunkStream:
    """The text of one generation.

    Args:
        detokenizer: of this generation.
        splitter: tells reasoning apart; None leaves the text as the model wrote it, tags and all.
    """

    def __init__(self, detokenizer: Detokenizer, splitter: ReasoningSplitter | None = None) -> None:
        self._detokenizer = detokenizer
        self._splitter = splitter
        self._waiting: deque[_Waiting] = deque()  # the first of them holds text back
        self._owners: list[_Waiting] = []  # of the characters that the splitter holds, the latest last

    @property
    def n_tokens(self) -> int:
        """Kept so far, the end-of-generation token not counted."""
        return self._detokenizer.n_tokens

    @property
    def stopping_word(self) -> str:
        """The stop string that ended the text, "" where none did."""
        return self._detokenizer.stopping_word

    def check(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        """See `Detokenizer.check`."""
        return self._detokenizer.check(tokens)

    def chunks(self, round: Round) -> list[Chunk]:
        """The chunks that are settled with this round's tokens."""
        chunks = self._detokenizer.chunks(round.n_from_draft, round.logprobs)
        if self._splitter is None or (self._splitter.settled and not self._waiting):
            return chunks
        return [settled for chunk in chunks for settled in self._split(chunk)]

    def flush(self) -> list[Chunk]:
        """What is still held back: nothing more follows."""
        held = self._detokenizer.flush()
        chunks = [Chunk(held, -1)] if held else []
        if self._splitter is None:
            return chunks
        settled = [one for chunk in chunks for one in self._split(chunk)]
        self._give(self._splitter.flush())
        return [*settled, *self._settled()]

    def _split(self, chunk: Chunk) -> list[Chunk]:
        assert self._splitter is not None
        waiting = _Waiting(chunk, len(chunk.text))
        self._waiting.append(waiting)
        for character in chunk.text:  # one at a time: what comes back ends where the held-back text begins
            self._owners.append(waiting)
            self._give(self._splitter.feed(character))
        return self._settled()

    def _give(self, parts: list[tuple[str, str]]) -> None:
        """Hand settled characters to the tokens that they came from; what is neither held nor given was a tag."""
        assert self._splitter is not None
        n_done = len(self._owners) - self._splitter.n_held
        done, self._owners = self._owners[:n_done], self._owners[n_done:]
        for owner in done:
            owner.n_left -= 1
        end = len(done)
        for kind, text in reversed(parts):
            for owner, character in zip(done[end - len(text) : end], text, strict=True):
                if kind == "reasoning":
                    owner.reasoning += character
                else:
                    owner.text += character
            end -= len(text)

    def _settled(self) -> list[Chunk]:
        chunks = []
        while self._waiting and not self._waiting[0].n_left:
            chunks.append(self._waiting.popleft().done())
        return chunks
