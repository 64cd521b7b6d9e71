"""A scripted stand-in for SpeculativeLlama: answers are written down, not computed.

It counts tokens as whitespace-separated words, renders a conversation as one id per word, remembers what its
"cache" holds to report cached tokens, and honours cancel(). `HANG` in a script waits until it is cancelled,
so that a test can press Ctrl-C at an exact place; `GATE` waits until the file named by the variable GATE exists.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from specgguf.cli.open_pair import Loaded

from specgguf.decode.records import Round
from specgguf.decode.stats import Stats
from specgguf.errors import Cancelled

Piece = tuple[str, bool]  # text, from_draft
HANG: Piece = ("\0hang", False)
GATE: Piece = ("\0gate", False)
FAIL: Piece = ("\0fail", False)


def pieces(text: str, drafted: str = "") -> list[Piece]:
    """`text` cut into words with their spaces; every word that stands in `drafted` came from the draft."""
    words = text.split(" ")
    marked = set(drafted.split())
    return [(w if i == 0 else " " + w, w in marked) for i, w in enumerate(words)]


class FakeEngine:
    """See the module. `script` gives the pieces of each answer in turn, the last one again and again."""

    def __init__(
        self,
        script: Sequence[Sequence[Piece] | Exception] = (pieces("Hello there."),),
        *,
        n_ctx: int = 1000,
        hang_in_prefill: int = -1,
        prompt_end: str = "assistant:",
        warnings: Sequence[str] = (),
        system_allowed: bool = True,
    ) -> None:
        self.script = list(script)
        self.asked: list[list[dict[str, Any]]] = []  # the messages of every generation
        self.keywords: list[dict[str, Any]] = []
        self.warnings = list(warnings)
        self.draft: str | int = "auto"
        self.draft_max = 5
        self.model_path, self.draft_model_path = "/models/target.gguf", "/models/draft.gguf"
        self.stats, self.last_stats = Stats(), Stats()
        self.closed = False
        self._n_ctx = n_ctx
        self._hang_in_prefill = hang_in_prefill
        self._prompt_end = prompt_end
        self._system_allowed = system_allowed
        self._cancelled = False
        self._cache: list[int] = []
        self._words: list[str] = []

    def n_ctx(self) -> int:
        return self._n_ctx

    def _ids(self, words: Sequence[str]) -> list[int]:
        ids = []
        for word in words:
            if word not in self._words:
                self._words.append(word)
            ids.append(self._words.index(word))
        return ids

    def render(
        self, messages: Sequence[dict[str, Any]], *, tools: Any = None, enable_thinking: bool | None = None
    ) -> list[int]:
        words = [w for m in messages for w in (f"{m['role']}:", *str(m["content"]).split())]
        return self._ids([*words, self._prompt_end])

    def detokenize(self, tokens: list[int], *, special: bool = False) -> bytes:
        return " ".join(self._words[t] for t in tokens).encode()

    def create_chat_completion(
        self, messages: Sequence[dict[str, Any]], *, stream: bool = False, **keywords: Any
    ) -> Generator[dict[str, Any], None, None]:
        assert stream
        self.asked.append([dict(m) for m in messages])
        self.keywords.append(keywords)
        return self._generate(len(self.asked) - 1, messages)

    def _generate(self, n: int, messages: Sequence[dict[str, Any]]) -> Generator[dict[str, Any], None, None]:
        self._cancelled = False
        prompt = self.render(messages)
        n_cached = 0
        while n_cached < min(len(prompt) - 1, len(self._cache)) and prompt[n_cached] == self._cache[n_cached]:
            n_cached += 1
        self.last_stats = Stats()
        for stats in (self.last_stats, self.stats):
            stats.begin(len(prompt), n_cached)
            stats.n_prefilled += len(prompt) - n_cached
        if n == self._hang_in_prefill:
            self._hang()
        answer = self.script[min(n, len(self.script) - 1)]
        if isinstance(answer, Exception):
            raise answer
        yield from self._stream(answer, prompt)

    def _stream(self, answer: Sequence[Piece], prompt: list[int]) -> Generator[dict[str, Any], None, None]:
        head = {"id": "chatcmpl-1", "created": 1700000000, "model": "fake", "object": "chat.completion.chunk"}
        yield {**head, "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]}
        said = ""
        for text, from_draft in answer:
            if (text, from_draft) == HANG:
                self._hang()
            if (text, from_draft) == GATE:
                while not Path(os.environ["GATE"]).exists():
                    time.sleep(0.005)
                continue
            if (text, from_draft) == FAIL:
                raise RuntimeError("the engine broke")
            if self._cancelled:
                raise Cancelled("cancelled")
            said += text
            self._count(from_draft)
            self._cache = [*prompt, *self._ids(said.split())]
            yield {**head, "from_draft": from_draft, "choices": [_choice({"content": text}, None)]}
        n = len([p for p in answer if p != HANG])
        yield {
            **head,
            "from_draft": False,
            "choices": [_choice({}, "stop")],
            "usage": {
                "prompt_tokens": len(prompt),
                "completion_tokens": n,
                "total_tokens": len(prompt) + n,
            },
            "timings": self.last_stats.timings(),
        }

    def _count(self, from_draft: bool) -> None:
        """One round per piece: a drafted one was accepted, an undrafted one rejected a draft of one token."""
        resting = self.draft == "off"
        round = Round(
            (0,),
            n_from_draft=int(from_draft),
            draft_n=0 if resting else 1,
            draft_n_accepted=int(from_draft),
            verify_s=0.01,
        )
        for stats in (self.last_stats, self.stats):
            stats.add(round)
            stats.off_reason = "nobody wants it" if resting else ""

    def _hang(self) -> None:
        while not self._cancelled:
            time.sleep(0.005)
        raise Cancelled("cancelled")

    def cancel(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        self.closed = True


def _choice(delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def loaded(engine: FakeEngine) -> Loaded:
    """The fake as `open_engine` would hand it out."""
    return Loaded(engine, "target.gguf", "draft.gguf", model_ref="demo", draft_ref="demo", load_s=0.1)
