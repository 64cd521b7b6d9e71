"""A grammar's state along generated tokens, committed and drafted.

llama.cpp's grammar sampler does the matching; this module keeps one state per position, so that a rejected
draft is undone without parsing anything again. It never lets llama.cpp accept a forbidden token, nor any
token after the grammar's end: either would end the process. It knows nothing of laws, drafts or rounds.
"""

from __future__ import annotations

import inspect
import json
import re
import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specgguf.config import one_line
from specgguf.errors import BackendError, ConfigError
from specgguf.native import grammar_sampler as native
from specgguf.native.sequence import common_prefix
from specgguf.native.vocab import vocab_size

from . import json_schema as schemas

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ROOT = "root"
MAX_RULES = 10_000
MAX_NESTING = 256
MAX_LENGTH = 2**18  # characters: beyond it, each token costs llama.cpp seconds
MAX_WRITTEN_OUT = 2**21  # characters: llama.cpp copies what it repeats, 60 bytes for each
N_KEPT = 20  # states kept behind the newest one: more than the longest draft


class GrammarState:
    """What a grammar allows at one position. Owns a native object; `close` is safe to call twice."""

    def __init__(self, vocab: Any, sampler: Any) -> None:
        """Use `parse`. `vocab` and `sampler` are llama.cpp's pointers; the sampler becomes this object's."""
        self._vocab = vocab
        self._sampler = sampler
        self._n_vocab = vocab_size(vocab)
        self.ended = False
        self.close = weakref.finalize(self, native.free, sampler)

    @classmethod
    def parse(cls, vocab: Any, gbnf: str) -> GrammarState:
        """The state before the first token.

        Raises:
            ConfigError: `gbnf` is no grammar that llama.cpp can use; the message says why.
        """
        problem = _too_large(gbnf)
        sampler, problem = (None, problem) if problem else native.init_grammar(vocab, gbnf, ROOT)
        if sampler is None:
            raise ConfigError(f"grammar: {problem or _diagnose(gbnf)}")
        return cls(vocab, sampler)

    def allowed(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
        """Which of `ids` may come next, shape (len(ids),). Once the grammar is complete: only the end of
        generation; after that, nothing."""
        import numpy as np

        if self.ended:
            return np.zeros(len(ids), dtype=np.bool_)
        known = (ids >= 0) & (ids < self._n_vocab)  # llama.cpp would abort on any other
        if known.all():
            return native.apply_grammar(self._sampler, ids)
        mask = np.zeros(len(ids), dtype=np.bool_)
        mask[known] = native.apply_grammar(self._sampler, ids[known])
        return mask

    def advance(self, token: int) -> None:
        """Accept `token`.

        Raises:
            BackendError: it is not allowed here; the state is unchanged.
        """
        import numpy as np

        if not self.allowed(np.array([token], dtype=np.int32))[0]:
            where = "after its end" if self.ended else "here"
            raise BackendError(f"the grammar does not allow token {token} {where}")
        if native.is_eog(self._vocab, token):
            self.ended = True
        else:
            native.accept(self._sampler, token)

    def clone(self) -> GrammarState:
        """An independent copy."""
        copy = GrammarState(self._vocab, native.clone_sampler(self._sampler))
        copy.ended = self.ended
        return copy


class GrammarCursor:
    """Finds a grammar's state after any token sequence, fast where it extends or rewinds the last one."""

    def __init__(self, start: GrammarState) -> None:
        """`start`: the state before the first token; the cursor closes it."""
        self._tokens: list[int] = []
        self._states = {0: start}  # by number of tokens: 0 always, and the last N_KEPT

    def at(self, generated: Sequence[int]) -> GrammarState:
        """The state after `generated`; the cursor's own: do not advance it.

        Raises:
            BackendError: the grammar forbids one of the tokens.
        """
        n_common = common_prefix(self._tokens, generated)
        for n in [n for n in self._states if n > n_common]:
            self._states.pop(n).close()
        n = max(self._states)
        del self._tokens[n:]
        while n < len(generated):
            state = self._states[n].clone()
            try:
                state.advance(generated[n])
            except BackendError:
                state.close()
                raise
            self._tokens.append(generated[n])
            n += 1
            self._states[n] = state
            if (old := n - N_KEPT) > 0 and old in self._states:
                self._states.pop(old).close()
        return self._states[n]

    def close(self) -> None:
        """Free every state."""
        while self._states:
            self._states.popitem()[1].close()


def grammar_text(grammar: Any) -> str:
    """The GBNF text of a string or a `llama_cpp.LlamaGrammar`.

    Raises:
        ConfigError: neither, or an empty text.
    """
    text = grammar if isinstance(grammar, str) else getattr(grammar, "_grammar", None)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"grammar must be a GBNF text or a LlamaGrammar, not {grammar!r:.60}")
    return text


def json_grammar(schema: Any = None) -> str:
    """The GBNF text of a JSON schema (a mapping or JSON text); None: of any JSON object.

    Keys that it does not keep to are accepted, since programs send them everywhere, and named in a UserWarning.

    Raises:
        ConfigError: the schema cannot be turned into a grammar.
    """
    from llama_cpp import llama_grammar

    if schema is None:
        return str(llama_grammar.JSON_GBNF)
    try:
        tree = json.loads(schema if isinstance(schema, str) else json.dumps(schema))
        if not isinstance(tree, dict):
            raise ValueError("it is no JSON object")
        tree = schemas.helped(tree)
        gbnf = _flattened(str(llama_grammar.json_schema_to_gbnf(json.dumps(tree))))
        lost = ", ".join(sorted(schemas.unenforced(tree)))
    except RecursionError:
        raise ConfigError("JSON schema: it refers to itself without end, or is nested too deeply") from None
    except Exception as e:  # the converter raises whatever its code runs into
        reason = f"no such definition: {e}" if isinstance(e, KeyError) else str(e) or type(e).__name__
        raise ConfigError(f"JSON schema: {one_line(reason)}") from e
    if lost:
        _warn(f"JSON schema: not enforced, so check the answers for it: {lost}")
    return gbnf


def _warn(text: str) -> None:
    """A UserWarning at the line outside this package that asked. Python shows a text once for each."""
    frame, level = inspect.currentframe(), 1
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == __package__:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


QUOTED = r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]'  # a literal or a class
COMMENT = re.compile(rf"({QUOTED})|#[^\r\n]*")
TOKENS = re.compile(rf"({QUOTED})|\{{\s*([0-9]+)\s*(?:,\s*([0-9]*)\s*)?\}}|(\S)")
NESTED = re.compile(rf'{QUOTED}|\(((?:{QUOTED}|[^()"\[\]])+?)((?: \(\1)+)((?:\)\?)+)')


def _flattened(gbnf: str) -> str:
    """The converter's `(x (x (x)?)?)?` as `(x){0,3}`: a maximum is no reason to nest."""

    def flat(found: re.Match[str]) -> str:
        body, more, ends = found[1], found[2], found[3]
        if body is None:
            return found[0]
        n, n_ends = 1 + len(more) // len(f" ({body}"), len(ends) // len(")?")
        return f"({body}){{0,{n}}}" + ")?" * (n_ends - n) if n_ends >= n else found[0]

    return NESTED.sub(flat, gbnf)


def _too_large(gbnf: str) -> str:
    """Why llama.cpp's parser must not see `gbnf`, or "": it overflows its stack when nested 100,000 deep, and
    takes all memory for repetitions without measure."""
    if gbnf.count("::=") > MAX_RULES:
        return f"it has more than {MAX_RULES:,} rules"
    if len(gbnf) > MAX_LENGTH:
        return f"it is longer than {MAX_LENGTH:,} characters"
    depth = deepest = n_written = 0
    last = ""
    for item, least, most, other in TOKENS.findall(COMMENT.sub(r"\1", gbnf)):
        if least:
            bounds = [int(n[:9]) for n in (least, most) if n]
            if bounds[0] > bounds[-1]:  # llama.cpp would count from the one to the other for ever
                return f"it repeats at least {bounds[0]} and at most {bounds[-1]} times"
            n_written += len(last) * bounds[-1]
        elif other in ("(", ")"):
            depth += 1 if other == "(" else -1
            deepest = max(deepest, depth)
        last = item or other or last
    if n_written > MAX_WRITTEN_OUT:
        return f"its repetitions amount to more than {MAX_WRITTEN_OUT:,} characters"
    return f"it nests more than {MAX_NESTING} deep" if deepest > MAX_NESTING else ""


def _diagnose(gbnf: str) -> str:
    """Why llama.cpp refused a grammar that it could parse: it says so only in its log."""
    if not gbnf.strip():
        return "it is empty"
    if not re.search(rf"^\s*{ROOT}\s*::=", gbnf, re.MULTILINE):
        return f"it has no rule '{ROOT}'"
    return "one of its rules begins with itself (left recursion)"
