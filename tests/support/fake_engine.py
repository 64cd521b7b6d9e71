"""A scripted stand-in for SpeculativeLlama: answers are written down, not computed.

It counts tokens as whitespace-separated words, renders a conversation as one id per word, remembers what its
"cache" holds to report cached tokens, and honours cancel(). `HANG` in a script waits until it is cancelled,
so that a test can press Ctrl-C at an exact place; `GATE` waits until the file named by the variable GATE exists.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from specgguf.cli.open_pair import Loaded

from specgguf.decode.records import Chunk, Round
from specgguf.decode.stats import Stats
from specgguf.errors import Cancelled, Unsupported
from specgguf.text.completion import ChatCompletion, ResponseMetadata
from specgguf.text.detokenize import ReasoningSplitter, open_reasoning
from specgguf.text.stream import ChunkStream
from specgguf.text.template import RenderedPrompt

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
        self.n_parallel = 1
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

    n_batch = 512
    prompt_speed = 0.0

    def n_ctx(self) -> int:
        return self._n_ctx

    @property
    def n_tokens(self) -> int:
        return len(self._cache)

    def _ids(self, words: Sequence[str]) -> list[int]:
        ids = []
        for word in words:
            if word not in self._words:
                self._words.append(word)
            ids.append(self._words.index(word))
        return ids

    def render(
        self, messages: Sequence[dict[str, Any]], *, tools: Any = None, enable_thinking: bool | None = None
    ) -> RenderedPrompt:
        words = [w for m in messages for w in (f"{m['role']}:", *str(m["content"]).split())]
        prompt = FakePrompt(self._ids([*words, self._prompt_end]), open_reasoning(self._prompt_end))
        prompt.messages, prompt.enable_thinking = [dict(m) for m in messages], enable_thinking
        return prompt

    def detokenize(self, tokens: list[int], *, special: bool = False) -> bytes:
        return " ".join(self._words[t] for t in tokens).encode()

    def chat(self, prompt: Any, **keywords: Any) -> ChatCompletion:
        self.asked.append(prompt.messages)
        self.keywords.append({**keywords, "enable_thinking": prompt.enable_thinking})
        generation = FakeGeneration(self, len(self.asked) - 1, prompt)
        return ChatCompletion(ResponseMetadata("cmpl-1", 1700000000, "fake"), generation)

    def answer(self, n: int, prompt: RenderedPrompt, generation: FakeGeneration) -> Generator[Chunk, None, None]:
        """The chunks of the `n`th answer, its reasoning told apart as the engine does."""
        self._cancelled = False
        n_cached = 0
        while n_cached < min(len(prompt) - 1, len(self._cache)) and prompt[n_cached] == self._cache[n_cached]:
            n_cached += 1
        self.last_stats = generation.stats
        for stats in (self.last_stats, self.stats):
            stats.begin(len(prompt), n_cached)
            stats.n_prefilled += len(prompt) - n_cached
        if n == self._hang_in_prefill:
            self._hang(generation)
        answer = self.script[min(n, len(self.script) - 1)]
        if isinstance(answer, Exception):
            raise answer
        told = Told()
        stream = ChunkStream(cast(Any, told), ReasoningSplitter(prompt.reasoning_tag))
        said = ""
        for text, from_draft in answer:
            if (text, from_draft) == HANG:
                self._hang(generation)
            if (text, from_draft) == GATE:
                while not Path(os.environ["GATE"]).exists():
                    time.sleep(0.005)
                continue
            if (text, from_draft) == FAIL:
                raise RuntimeError("the engine broke")
            if self._cancelled or generation.cancelled:
                raise Cancelled("cancelled")
            said += text
            generation.n_completion += 1
            self._count(from_draft)
            self._cache = [*prompt, *self._ids(said.split())]
            told.fresh = [Chunk(text, 1, from_draft)]
            yield from stream.chunks(Round((0,)))
        generation.finish_reason = "eos"
        yield from stream.flush()
        yield Chunk("", 0, finish_reason="eos")

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

    def _hang(self, generation: FakeGeneration) -> None:
        while not self._cancelled and not generation.cancelled:
            time.sleep(0.005)
        raise Cancelled("cancelled")

    def cancel(self) -> None:
        self._cancelled = True

    def close(self) -> None:
        self.closed = True


class Untemplated(FakeEngine):
    """A model file without a chat template."""

    def render(self, *arguments: Any, **keywords: Any) -> RenderedPrompt:
        raise Unsupported("this model file has no chat template", hint="in Python, chat_format=")


class FakePrompt(RenderedPrompt):
    """A rendered conversation that still knows its messages."""

    messages: list[dict[str, Any]]
    enable_thinking: bool | None


class Told:
    """A detokenizer whose text is written down."""

    fresh: list[Chunk]

    def chunks(self, n_from_draft: int, logprobs: object) -> list[Chunk]:
        return self.fresh

    def flush(self) -> str:
        return ""


class FakeGeneration:
    """One scripted answer, as `decode.generation.Generation` is one."""

    def __init__(self, engine: FakeEngine, n: int, prompt: RenderedPrompt) -> None:
        self.n_prompt, self.n_completion = len(prompt), 0
        self.stats = Stats()
        self.finish_reason: str | None = None
        self.stopping_word = ""
        self.cancelled = False
        self._engine = engine
        self._chunks = engine.answer(n, prompt, self)

    def __iter__(self) -> Iterator[Chunk]:
        return self._chunks

    def cancel(self) -> None:
        self._engine.cancel()
        self.cancelled = self._engine._cancelled  # one that is deaf hears nothing

    stop = cancel

    def close(self) -> None:
        self._chunks.close()


def loaded(engine: FakeEngine) -> Loaded:
    """The fake as `open_engine` would hand it out."""
    return Loaded(cast(Any, engine), "target.gguf", "draft.gguf", model_ref="demo", draft_ref="demo", load_s=0.1)
