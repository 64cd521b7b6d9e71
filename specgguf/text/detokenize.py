"""Token ids become text: incremental UTF-8, stop strings, reasoning tags.

A `Detokenizer` belongs to one generation. It decides where the text ends and hands out one `Chunk` per
committed token: the chunks add up to the whole text, in whole characters, with nothing of a stop string. It
knows nothing of models: bytes come from a callable, and who drafted a token is told to it.

Bytes that are no UTF-8 are left out, as in llama-cpp-python: the text is `bytes.decode(errors="ignore")`.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from specgguf.decode.records import Chunk, TokenLogprob


class Detokenizer:
    """Incremental detokenizer and stop check of one generation.

    Call `check` with each round's tokens, and `chunks` once for each; what `check` does not keep was never seen.
    """

    def __init__(
        self,
        piece_bytes: Callable[[int], bytes],
        *,
        eog: Collection[int],
        stop: Sequence[str] = (),
        max_tokens: int,
    ) -> None:
        """Args:
        piece_bytes: the bytes of a token as text; b"" for special tokens.
        eog: the end-of-generation tokens.
        stop: texts that end the generation; empty ones are ignored.
        max_tokens: at most so many tokens, end-of-generation not counted; at least 1.
        """
        self._piece_bytes = piece_bytes
        self._eog = frozenset(eog)
        self._max_tokens = max_tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._stops = StopBuffer(stop)
        self._fresh: list[Chunk] = []
        self._checked: deque[list[Chunk]] = deque()  # of rounds that were made ahead of their reader
        self.finish_reason: str | None = None
        self.n_tokens = 0  # kept so far, end-of-generation not counted

    @property
    def stopping_word(self) -> str:
        """The stop string that ended the text, "" where none did."""
        return self._stops.hit or ""

    def check(self, tokens: Sequence[int]) -> tuple[int, str | None]:
        """How many of `tokens` belong to the output, and why it ends there: "eos", "stop", "length" or None.

        Asked of each token in this order: end of generation, stop string, max_tokens. The end-of-generation
        token and the token that completes a stop string are kept.
        """
        self._fresh = []
        self._checked.append(self._fresh)
        for n, token in enumerate(tokens):
            if self.finish_reason is not None:
                return n, self.finish_reason
            self._add(token)
        return len(self._fresh), self.finish_reason

    def _add(self, token: int) -> None:
        if token in self._eog:
            self.finish_reason = "eos"
            self._fresh.append(Chunk(self._stops.flush(), token))
            return
        self.n_tokens += 1
        text = self._stops.feed(self._decoder.decode(self._piece_bytes(token)))
        if self._stops.hit:
            self.finish_reason = "stop"
        elif self.n_tokens >= self._max_tokens:
            self.finish_reason = "length"
            text += self._stops.flush()
        self._fresh.append(Chunk(text, token))

    def chunks(self, n_from_draft: int = 0, logprobs: Sequence[TokenLogprob] = ()) -> list[Chunk]:
        """The chunks of the tokens kept by the first `check` that was not asked about yet, one per token, once.

        Args:
            n_from_draft: how many of those tokens, from the left, the draft wrote.
            logprobs: one per kept token, or none at all.
        """
        fresh = self._checked.popleft() if self._checked else []
        return [
            Chunk(chunk.text, chunk.token, i < n_from_draft, logprob=logprobs[i] if logprobs else None)
            for i, chunk in enumerate(fresh)
        ]

    def flush(self) -> str:
        """The text still held back, for a generation that is given up without a finish reason."""
        return self._stops.flush()


class StopBuffer:
    """Passes text on, except what may yet become a stop string.

    Of several stop strings the one that is complete first ends the text, and of two complete at the same
    character the longer one, so the result does not depend on how the text was split.
    """

    def __init__(self, stop: Iterable[str]) -> None:
        self._stop = tuple(s for s in stop if s)
        self._longest = max(map(len, self._stop), default=0)
        self._held = ""
        self.hit: str | None = None  # the stop string that ended the text

    def feed(self, text: str) -> str:
        """Add `text`; returns what is now certain. After a hit nothing more comes out."""
        if not self._stop:
            return text
        if self.hit is not None:
            return ""
        text = self._held + text
        found = [(at + len(s), at, s) for s in self._stop if (at := text.find(s)) >= 0]
        if found:
            _, at, self.hit = min(found)
            self._held = ""
            return text[:at]
        n_held = self._undecided(text)
        self._held = text[len(text) - n_held :]
        return text[: len(text) - n_held]

    def _undecided(self, text: str) -> int:
        """The length of the longest end of `text` that begins a stop string."""
        for n in range(min(self._longest - 1, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._stop):
                return n
        return 0

    def flush(self) -> str:
        """No more text follows: what was held is text after all."""
        held, self._held = self._held, ""
        return held


# Opening and closing tags of reasoning, as models and their templates write them.
REASONING_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)


def open_reasoning(prompt: str) -> str:
    """The reasoning tag that `prompt` ends with, or "": some templates open the reasoning themselves."""
    tail = prompt.rstrip()
    return next((start for start, _ in REASONING_TAGS if tail.endswith(start)), "")


class ReasoningSplitter:
    """Separates reasoning from the answer in streamed text.

    `feed` and `flush` return (kind, text) pairs, kind "reasoning" or "answer", without tags and without the
    blank space that follows one. Reasoning is recognised only where the text begins: a tag inside an answer
    is the answer's.
    """

    def __init__(self, opened: str = "") -> None:
        """`opened`: the tag by which the prompt already opened the reasoning (see `open_reasoning`)."""
        self._close = dict(REASONING_TAGS)[opened] if opened else ""
        self._state = "reasoning" if opened else "start"
        self._held = ""
        self._skip_space = bool(opened)  # a tag has just ended

    @property
    def n_held(self) -> int:
        """How many of the characters fed so far are neither returned nor dropped yet: the latest ones."""
        return len(self._held)

    @property
    def settled(self) -> bool:
        """Whether whatever follows is answer, to be returned as it comes."""
        return self._state == "answer" and not self._held and not self._skip_space

    def feed(self, text: str) -> list[tuple[str, str]]:
        """Add streamed text; returns what is now certain."""
        self._held += text
        out: list[tuple[str, str]] = []
        while self._step(out):
            pass
        return out

    def _step(self, out: list[tuple[str, str]]) -> bool:
        """One move of the automaton; False when more text is needed."""
        if self._skip_space:
            self._held = self._held.lstrip()
            self._skip_space = not self._held
        if self._state == "start":
            return self._open()
        if self._state == "reasoning":
            at = self._held.find(self._close)
            if at >= 0:
                self._emit(out, "reasoning", at)
                self._held = self._held[len(self._close) :]
                self._state, self._skip_space = "answer", True
                return True
            self._emit(out, "reasoning", len(self._held) - overlap(self._held, self._close))
            return False
        self._emit(out, "answer", len(self._held))
        return False

    def _open(self) -> bool:
        """Decide whether the text begins with reasoning, as soon as that is certain."""
        begun = self._held.lstrip()
        for start, close in REASONING_TAGS:
            if begun.startswith(start):
                self._held, self._close = begun[len(start) :], close
                self._state, self._skip_space = "reasoning", True
                return True
        if any(start.startswith(begun) for start, _ in REASONING_TAGS):
            return False
        self._state = "answer"
        return True

    def _emit(self, out: list[tuple[str, str]], kind: str, n: int) -> None:
        if n:
            out.append((kind, self._held[:n]))
        self._held = self._held[n:]

    def flush(self) -> list[tuple[str, str]]:
        """No more text follows: what was held belongs to where it stands."""
        out: list[tuple[str, str]] = []
        self._emit(out, "reasoning" if self._state == "reasoning" else "answer", len(self._held))
        return out


def overlap(text: str, tag: str) -> int:
    """The length of the longest end of `text` that begins `tag` without completing it."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
