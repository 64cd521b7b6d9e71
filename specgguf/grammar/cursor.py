"""A grammar along generated tokens, committed and drafted: which ids may come next after any of their prefixes.

llguidance matches; one matcher follows the tokens that it is asked about, and rolls back where they differ from the
last ones. Compiling and every step are bounded, and what is over a limit is a ConfigError. Nothing here knows
distributions, drafts or rounds.
"""

from __future__ import annotations

import inspect
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from specgguf.config import one_line
from specgguf.decode.sequence import common_prefix
from specgguf.errors import BackendError, Busy, ConfigError

from .sources import Grammar, check_length, read_grammar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Bits = npt.NDArray[np.uint8]

T = TypeVar("T")

COMPILE_S = 2.0
COMPILERS_MAX = 2  # at once; nothing can end one that is past its deadline, so it counts until it ends by itself
STACK = 2**28  # bytes: llguidance recurses once for each rule of a chain, about 8 kB each; only what is used is taken
FOLLOW_S, FOLLOW_TOKEN_S = 5.0, 0.02  # of processor time along an answer: so much, and so much for each of its tokens
N_KEPT = 32  # masks kept behind the newest one: more than the longest draft


class GrammarCursor:
    """Finds what a grammar allows after any token sequence, fast where it extends or shortens the last one.

    Attributes:
        spent_s: processor time that this has taken so far.
    """

    def __init__(self, matcher: Any, ends: Sequence[int]) -> None:
        """Use `compile_grammar`. `matcher` is llguidance's, at its start; `ends` are the end-of-generation ids."""
        self._start = matcher
        self._ends = frozenset(ends)
        self._matcher = matcher.deep_copy()
        self._tokens: list[int] = []
        self._ended = False  # an end of generation follows them
        self._masks: dict[int, Bits] = {}  # by number of tokens: of the last ones
        self.spent_s = 0.0

    def mask(self, generated: Sequence[int]) -> Bits:
        """The ids that may come after `generated`: bit `id % 8` of byte `id // 8`.

        Once the grammar is complete these are the ends of generation only; after one of them there are none.

        Raises:
            BackendError: the grammar forbids one of the tokens. ConfigError: it is too complex here, or takes too long.
        """
        import numpy as np

        with self._timed(len(generated)):
            self._follow(generated)
            n = len(self._tokens)
            if n not in self._masks:
                self._masks[n] = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
                self._masks.pop(n - N_KEPT, None)
                self._check()
            mask: Bits = self._masks[n]
            return np.zeros_like(mask) if self._ended else mask

    def forced(self, generated: Sequence[int]) -> list[int]:
        """The tokens that spell what must come after `generated`, whatever is chosen; [] where there is a choice.

        Another tokenization of the same characters may be allowed too. Raises as `mask`.
        """
        with self._timed(len(generated)):
            self._follow(generated)
            tokens: list[int] = [] if self._ended else self._matcher.compute_ff_tokens()
            self._check()
            return tokens

    @contextmanager
    def _timed(self, n_tokens: int) -> Iterator[None]:
        """Every step is bounded by llguidance; this bounds their sum, so that an answer of slow steps ends too."""
        started = thread_time()
        yield
        self.spent_s += thread_time() - started
        if self.spent_s > FOLLOW_S + FOLLOW_TOKEN_S * n_tokens:
            raise ConfigError(
                f"the grammar takes too long to follow: {self.spent_s:.1f} s for {n_tokens} tokens",
                hint="use a simpler one",
            )

    def _follow(self, generated: Sequence[int]) -> None:
        """Bring the matcher behind `generated`."""
        n = common_prefix(self._tokens, generated)
        if n < len(self._tokens):
            self._matcher.rollback(len(self._tokens) - n)
            del self._tokens[n:]
            self._masks = {i: bits for i, bits in self._masks.items() if i <= n}
        following = list(generated[n:])
        # The end is not the matcher's to take: a finished one takes any number of them, and rolls none of them back.
        self._ended = bool(following) and following[-1] in self._ends
        inside = following[:-1] if self._ended else following
        n_taken = self._matcher.try_consume_tokens(inside) if inside else 0
        self._tokens += inside[:n_taken]
        self._check()
        if n_taken < len(inside) or (self._ended and not self._matcher.is_accepting()):
            raise BackendError(f"the grammar does not allow token {following[n_taken]} here")

    def _check(self) -> None:
        """A matcher that has met a limit is of no more use: the next question begins with another."""
        if self._matcher.is_error():
            why = one_line(self._matcher.get_error().split("<state>")[0])
            self._matcher = self._start.deep_copy()
            self._tokens, self._masks, self._ended = [], {}, False
            raise ConfigError(f"the grammar cannot be followed here: {why}", hint="use a simpler one")


class Vocabulary(Protocol):
    """What compiling needs of a loaded model."""

    @property
    def grammar_tokenizer(self) -> Any:
        """Its tokens as llguidance reads them; it points into the loaded file."""

    def in_use(self) -> AbstractContextManager[object]:
        """Keeps the file loaded for the block; ConfigError once it was closed."""


@dataclass(frozen=True)
class CompiledGrammar(Grammar):
    """A grammar that need not be compiled again for the vocabulary that it was compiled for."""

    matcher: Any = None
    tokenizer: Any = None


def compile_grammar(grammar: Any, vocabulary: Vocabulary) -> GrammarCursor:
    """A grammar over a vocabulary, before the first token; see `compiled`."""
    made = compiled(grammar, vocabulary)
    return GrammarCursor(made.matcher, made.tokenizer.eos_tokens)


def compiled(grammar: Any, vocabulary: Vocabulary) -> CompiledGrammar:
    """A grammar compiled for a vocabulary; one that is already stays as it is. What a lenient JSON schema does not keep
    to is named in a UserWarning.

    Args:
        grammar: see `read_grammar`.
        vocabulary: `Weights`.

    Raises:
        ConfigError: no grammar, one that cannot be kept to, or one that is too large; the message says why.
        Busy: too many are being compiled.
    """
    import llguidance

    grammar = read_grammar(grammar)
    tokenizer = vocabulary.grammar_tokenizer
    if isinstance(grammar, CompiledGrammar) and grammar.tokenizer is tokenizer:
        return grammar
    check_length(grammar.kind, len(grammar.source))  # what was given may have grown as it was read
    limits = llguidance.LLParserLimits(verbose_errors=False)

    def make() -> Any:
        with vocabulary.in_use():  # for as long as this goes on, even if nobody waits for it any more
            return llguidance.LLMatcher(tokenizer, grammar.source, log_level=0, limits=limits)

    matcher = within(COMPILE_S, make)
    if matcher is None:
        raise ConfigError(f"{grammar.kind}: compiling it takes more than {COMPILE_S:g} s", hint="use a simpler one")
    if matcher.is_error():
        raise grammar.refusal(matcher.get_error())
    if lost := [*grammar.lost, *(one_line(text) for text in matcher.get_grammar_warnings())]:
        _warn(f"{grammar.kind}: not enforced, so check the answers for it: {', '.join(lost)}")
    return CompiledGrammar(grammar.kind, grammar.source, grammar.lost, grammar.strict, matcher, tokenizer)


_one_at_a_time = threading.Lock()  # `threading.stack_size` is the whole process's
_compilers = threading.BoundedSemaphore(COMPILERS_MAX)


def within(seconds: float, work: Callable[[], T]) -> T | None:
    """What `work` returns or raises; None after so many seconds: it then goes on by itself until its own limits end it.

    Raises:
        Busy: COMPILERS_MAX others are still at work then.
    """
    until = monotonic() + seconds
    if not _compilers.acquire(timeout=seconds):
        raise Busy(f"{COMPILERS_MAX} other grammars are still being compiled", hint="ask again in a moment")
    result: Future[T] = Future()

    def run() -> None:
        try:
            made = work()
        except BaseException as error:
            _compilers.release()
            result.set_exception(error)
        else:
            _compilers.release()
            result.set_result(made)

    try:
        thread = _started(run)
    except BaseException:
        _compilers.release()
        raise
    thread.join(max(0.0, until - monotonic()))
    return result.result() if result.done() else None


def _started(run: Callable[[], None]) -> threading.Thread:
    """`run` in a thread with a large stack, which does not keep the process alive."""
    thread = threading.Thread(target=run, name="grammar", daemon=True)
    with _one_at_a_time:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return thread


def _warn(text: str) -> None:
    """A UserWarning at the line outside this package that asked. Python shows a text once for each."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("specgguf."):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)
