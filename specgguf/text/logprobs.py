"""Log-probabilities of tokens in OpenAI's two shapes, the completions' and the chat's, as llama-cpp-python has them.

This module knows nothing of models: the numbers come with the chunks, texts from a callable.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable
from typing import Any

from specgguf.decode.records import Chunk

Json = dict[str, Any]


class LogprobWriter:
    """Log-probabilities in the completions' shape, token by token."""

    def __init__(self, piece_bytes: Callable[[int], bytes], offset: int = 0) -> None:
        """Args:
        piece_bytes: the bytes of a token as text.
        offset: characters before the first token: the prompt's length.
        """
        self._piece_bytes = piece_bytes
        self._offset = offset
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def add(self, chunk: Chunk) -> Json | None:
        """The entry of one token; None if it has none (end of generation, or not asked for)."""
        if chunk.logprob is None or chunk.ends_text:
            return None
        text = self._text(chunk.token)
        top = {self._text(token): logprob for token, logprob in chunk.logprob.top}
        top[text] = chunk.logprob.logprob
        offset = self._offset
        self._offset += len(self._decoder.decode(self._piece_bytes(chunk.token)))
        return {
            "tokens": [text],
            "text_offset": [offset],
            "token_logprobs": [chunk.logprob.logprob],
            "top_logprobs": [top],
        }

    def all(self, chunks: Iterable[Chunk]) -> Json | None:
        """The entries of several tokens in one."""
        entries = [entry for chunk in chunks if (entry := self.add(chunk)) is not None]
        return {key: [e[key][0] for e in entries] for key in entries[0]} if entries else None

    def _text(self, token: int) -> str:
        return self._piece_bytes(token).decode("utf-8", "ignore")


def chat_logprobs(entry: Json | None) -> Json | None:
    """The chat's shape of a completions' log-probabilities."""
    if entry is None:
        return None
    columns = zip(entry["tokens"], entry["token_logprobs"], entry["top_logprobs"], strict=True)
    content = [
        {
            "token": token,
            "bytes": None,
            "logprob": logprob,
            "top_logprobs": [{"token": t, "logprob": value, "bytes": None} for t, value in top.items()],
        }
        for token, logprob, top in columns
    ]
    return {"content": content, "refusal": None}
