"""Log-probabilities of tokens in OpenAI's two shapes, the completions' and the chat's, as llama-cpp-python has them.

This module knows nothing of models: the numbers come with the chunks, texts from a callable.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specgguf.decode.records import Chunk, TokenLogprob

Json = dict[str, Any]


class LogprobWriter:
    """Log-probabilities in the completions' shape, token by token."""

    def __init__(
        self,
        piece_bytes: Callable[[int], bytes],
        offset: int = 0,
        prompt: Sequence[tuple[int, TokenLogprob | None]] = (),
    ) -> None:
        """Args:
        piece_bytes: the bytes of a token as text.
        offset: characters before the first token: the prompt's length.
        prompt: tokens of an echoed prompt with what they are worth, to be written before all others.
        """
        self._piece_bytes = piece_bytes
        self._offset = 0 if prompt else offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._prompt = [self._entry(token, score) for token, score in prompt]

    def add(self, chunk: Chunk) -> Json | None:
        """The entry of one token; None if it has none (end of generation, or not asked for)."""
        if chunk.logprob is None or chunk.ends_text:
            return None
        return self._entry(chunk.token, chunk.logprob)

    def _entry(self, token: int, score: TokenLogprob | None) -> Json:
        text, offset = self._text(token), self._offset
        self._offset += len(self._decoder.decode(self._piece_bytes(token)))
        top: dict[str, float] = {}
        for one, logprob in score.top if score else ():
            top.setdefault(self._text(one), logprob)
        if score is not None:
            top[text] = score.logprob
        return {
            "tokens": [text],
            "text_offset": [offset],
            "token_logprobs": [score.logprob if score else None],
            "top_logprobs": [top if score else None],
        }

    def prompt(self) -> Json | None:
        """The entries of the echoed prompt in one."""
        return _joined(self._prompt)

    def all(self, chunks: Iterable[Chunk]) -> Json | None:
        """The entries of several tokens in one, after the prompt's."""
        return _joined([*self._prompt, *(entry for chunk in chunks if (entry := self.add(chunk)) is not None)])

    def _text(self, token: int) -> str:
        return self._piece_bytes(token).decode("utf-8", "ignore")


def _joined(entries: list[Json]) -> Json | None:
    return {key: [e[key][0] for e in entries] for key in entries[0]} if entries else None


class ChatLogprobWriter:
    """Log-probabilities in the chat's shape. The bytes of a token tell apart what is no whole character."""

    def __init__(self, piece_bytes: Callable[[int], bytes]) -> None:
        self._piece_bytes = piece_bytes

    def add(self, chunk: Chunk) -> Json | None:
        """The entry of one token, as `LogprobWriter.add`."""
        return self.all([chunk])

    def all(self, chunks: Iterable[Chunk]) -> Json | None:
        """The entries of several tokens in one."""
        content = [
            {
                **self._token(chunk.token, chunk.logprob.logprob),
                "top_logprobs": [self._token(token, logprob) for token, logprob in chunk.logprob.top],
            }
            for chunk in chunks
            if chunk.logprob is not None and not chunk.ends_text
        ]
        return {"content": content, "refusal": None} if content else None

    def _token(self, token: int, logprob: float) -> Json:
        data = self._piece_bytes(token)
        return {"token": data.decode("utf-8", "ignore"), "bytes": list(data), "logprob": logprob}
