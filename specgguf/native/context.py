"""A native context over loaded weights: its sequences, and passes over any set of them.

`Context.decode` is one native pass where everything fits into one, and as few as possible where it does not; however
it ends, every sequence holds a prefix of what it would have held. `Model` is a context with one sequence. It decodes
and hands out rows of logits; it knows nothing of drafting, sampling, text or requests.

With `pad_to=2` rows of every batch size are bit-identical on CPU with F32, F16, Q8_0, Q4_0 and Q4_1 weights.
"""

from __future__ import annotations

from collections import abc
from time import perf_counter
from typing import Any, NoReturn

from specgguf.errors import BackendError, Cancelled, ConfigError, ContextFull

from . import backend, rollback
from .pool import Pool
from .sequence import NO_ROWS, Part, Sequence
from .weights import Weights

_STOPPED = "stopped while reading the prompt"


class Context:
    """A llama_context whose sequences share one cache.

    Attributes:
        sequences: all of them; at first idle and empty.
        pool: who may have how many cells.
        n_ctx: the most tokens that a sequence can hold. What all hold together is the pool's to know.
        settings: the context's parameters as asked for.
        decode_s: seconds spent inside llama.cpp so far.
        on_pass: called with the parts of each native pass, padded, once `tokens` has what they read.

    Args:
        weights: the loaded file.
        n_ctx, n_batch, n_ubatch: as in `llama_cpp.Llama`; n_ctx 0 takes the model's own length.
        n_seq_max: how many sequences it has.
        n_cells: how many tokens they can hold together; None takes n_ctx.
        n_outputs_max: the most rows of logits in a forward pass; each takes a vocabulary of floats.
        n_rs_seq: ask for native rollback of so many tokens, where the architecture has it. Not for a draft model:
            it decodes single tokens, which that rollback cannot reach back over.
        pad_to: 2 decodes a single token beside a dummy, dropped at once.
        flash_attn: None lets llama.cpp decide.
        type_k, type_v: ggml types of the cache; None is F16.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        n_ctx: int = 4096,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        n_cells: int | None = None,
        n_outputs_max: int = 8,
        n_rs_seq: int = 0,
        pad_to: int = 1,
        flash_attn: bool | None = None,
        type_k: int | None = None,
        type_v: int | None = None,
    ) -> None:
        self.weights = weights
        n_ctx = n_ctx or weights.n_ctx_train
        if n_ctx < 2:  # a token to read and one to write; llama.cpp ends the process at two in a context of one
            raise ConfigError(f"n_ctx must be 0 or at least 2, not {n_ctx}")
        self.settings = {
            "n_ctx": n_cells or n_ctx,
            "n_batch": (n_batch := max(min(n_batch, n_ctx), n_outputs_max, 2)),
            "n_ubatch": max(min(n_ubatch, n_batch), n_outputs_max, 2),
            "n_outputs_max": max(n_outputs_max, 2),
            "n_rs_seq": n_rs_seq,
            "flash_attn_type": -1 if flash_attn is None else int(flash_attn),
            "type_k": type_k,
            "type_v": type_v,
        }
        if n_seq_max > 1:  # one pool of cells for all: a ragged batch is one graph, and a prefix can be shared
            self.settings.update(n_seq_max=n_seq_max, kv_unified=True)
        self.abort = backend.AbortFlag()
        self._batch = weights.batch(n_batch)
        self.handle: backend.Context | None = None
        self.sequences: list[Sequence] = []
        try:
            self.handle = weights.new_context(self.settings, self._emptied)
            weights.apply_lora(self.handle)
            self.abort.attach(self.handle)
            make = rollback.select(weights.memory, self.handle, self._batch)
        except BaseException:
            self.close()
            raise
        self.cancelled = self._reading = False
        self.n_vocab = weights.n_columns
        self.n_batch, self.n_outputs_max = n_batch, n_outputs_max
        self._n_ubatch = (limits := backend.limits(self.handle)).n_ubatch
        self._equal = make(0).name != "plain"
        self.pad_to = 1 if self._equal else pad_to
        n_usable = min(n_cells or n_ctx, limits.n_ctx - (self.pad_to - 1))
        self.n_ctx = min(n_ctx, n_usable)
        self.sequences = [Sequence(self, id, make(id)) for id in range(n_seq_max)]
        self.pool = Pool(self.sequences, n_usable)
        self.decode_s = 0.0
        self.on_pass: abc.Callable[[list[Part]], None] | None = None

    def decode(self, parts: abc.Sequence[Part]) -> list[backend.Logits]:
        """Decode each part's tokens after those that its sequence holds: a sequence stands in one part at most.

        Returns:
            For each part the logits of its last `n_outputs` tokens, (n_outputs, n_vocab) float32: views that the next
            call overwrites.

        Raises:
            ContextFull: a part is longer than what is promised to its sequence; nothing was decoded.
            Cancelled: `cancel` was called; what was decoded before it is kept.
            BackendError: llama.cpp failed. `tokens` of each sequence says what it still holds.
        """
        n_longest = 0
        for sequence, tokens, n_outputs, n_padding in parts:
            if sequence.in_doubt:
                sequence.resync()
            n, n_max = len(tokens), sequence.n_reserved
            assert n_max, "an idle sequence decodes nothing"
            if len(sequence.tokens) + n > n_max:
                raise ContextFull(
                    f"{len(sequence.tokens) + n} tokens do not fit into a context of {n_max}",
                    hint="a larger --n-ctx, or a shorter prompt",
                )
            assert 0 <= n_outputs <= min(n, self.n_outputs_max)
            assert n_padding == 0 or (sequence.rolls_back_freely and n + n_padding <= self.n_outputs_max)
            n_longest = max(n_longest, n)
        self._reading = n_longest > self.n_outputs_max
        try:
            if self._reading and self.cancelled:  # in this order: a cancel that comes now sees `_reading`
                raise Cancelled(_STOPPED)
            if len(parts) == 1 and 0 < n_longest <= self.n_batch:
                return self._pass(list(parts))
            return self._decode(parts)
        finally:
            self._reading = False

    def _decode(self, parts: abc.Sequence[Part]) -> list[backend.Logits]:
        passes = self._passes(parts)
        found = [NO_ROWS] * len(parts)
        for at, one in enumerate(passes):
            if at and self.cancelled:
                raise Cancelled(_STOPPED)
            for part in (part for _, part in one if at < len(passes) - 1):
                part.sequence.rollback.others_follow(len(part.sequence.tokens))
            rows = self._pass([part for _, part in one])
            for (index, part), its in zip(one, rows, strict=True):
                if part.n_outputs:
                    found[index] = its if at == len(passes) - 1 else its.copy()
        return found

    def _passes(self, parts: abc.Sequence[Part]) -> list[list[tuple[int, Part]]]:
        """The parts by pass, each with its index: long ones in chunks, of which the last has the rows, then what is
        left of all together. Memories with a recurrent state take sequences together that have as many tokens, and not
        more than are computed at once: llama.cpp would cut the others' tokens apart."""
        passes: list[list[tuple[int, Part]]] = []
        ends: list[tuple[int, Part]] = []
        for index, part in enumerate(parts):
            n = len(part.tokens)
            n_last = max((n - 1) % self.n_batch + 1, part.n_outputs) if n else 0
            for start in range(0, n - n_last, self.n_batch):
                chunk = part.tokens[start : min(start + self.n_batch, n - n_last)]
                passes.append([(index, Part(part.sequence, chunk))])
            if n:
                ends.append((index, part._replace(tokens=part.tokens[n - n_last :])))
        if self._equal:
            ends.sort(key=lambda end: (len(end[1].tokens), end[1].sequence.id))
        n_tokens = n_rows = n_first = 0
        for index, part in ends:
            n_tokens, n_rows = n_tokens + part.n_tokens, n_rows + part.n_rows
            fits = n_tokens <= self.n_batch and n_rows <= self.n_outputs_max
            if self._equal:
                fits = fits and part.n_tokens == n_first and n_tokens <= self._n_ubatch
            if not fits or not n_first:
                n_tokens, n_rows, n_first = part.n_tokens, part.n_rows, part.n_tokens
                passes.append([])
            passes[-1].append((index, part))
        return passes

    def _pass(self, parts: list[Part]) -> list[backend.Logits]:
        """One native decode; the rows that each part asked for."""
        n_tokens, n_outputs = self._fill(parts)
        if len(self.sequences) > 1:
            self.pool.evict(n_tokens)
            decoding = {part.sequence.id for part in parts}
            for sequence in self.sequences:
                if sequence.id not in decoding:
                    sequence.rollback.others_decoded()
        whole = n_tokens <= self._n_ubatch
        for sequence, tokens, _, n_padding in parts:
            sequence.rollback.before(len(sequence.tokens), len(tokens) + n_padding, whole=whole)
            sequence.in_doubt = True
        started = perf_counter()
        code = backend.decode(self.handle, self._batch)
        if code != backend.DECODE_OK:
            self.decode_s += perf_counter() - started
            self._fail(code, parts, n_tokens)
        n_rows = sum(n_outputs)
        rows = backend.rows(self.handle, n_rows, self.n_vocab) if n_rows else NO_ROWS
        self.decode_s += perf_counter() - started
        for part in parts:
            part.sequence.tokens.extend(part.tokens)
        for part in parts:
            part.sequence.decoded(part.n_padding)
        if self.on_pass is not None:
            self.on_pass(parts)
        found, end = [], 0
        for (_, _, n_out, n_padding), n in zip(parts, n_outputs, strict=True):
            end += n
            found.append(rows[end - n_padding - n_out : end - n_padding] if n_out else NO_ROWS)
        return found

    def _fill(self, parts: list[Part]) -> tuple[int, list[int]]:
        """Write the batch, dummies included; its tokens, and rows of logits by part. Dummies get rows too: the output's
        kernel may be the one that wants a full tile."""
        if self.pad_to > 1 and len(parts) == 1 and parts[0].n_tokens == 1:
            parts[0] = parts[0]._replace(n_padding=1)
        batch, n_outputs, n_tokens = [], [], 0
        for sequence, tokens, n_out, n_padding in parts:
            if n_padding:
                tokens, n_out = [*tokens, *[tokens[-1]] * n_padding], n_out + n_padding if n_out else 0
            batch.append(backend.BatchPart(sequence.id, len(sequence.tokens), tokens, n_out))
            n_outputs.append(n_out)
            n_tokens += len(tokens)
        if self.pad_to > 1 and sum(n_outputs) == 1:
            i = next(i for i, part in enumerate(batch) if len(part.tokens) > part.n_outputs)
            n_outputs[i] += 1
            batch[i] = batch[i]._replace(n_outputs=n_outputs[i])
        self._batch.fill(batch)
        return n_tokens, n_outputs

    def _fail(self, code: int, parts: list[Part], n_tokens: int) -> NoReturn:
        """Find out what each sequence of a failed pass holds, and raise what the code means."""
        for part in parts:
            part.sequence.resync()
        if code == backend.DECODE_ABORTED:
            raise Cancelled(_STOPPED)
        if code == backend.DECODE_NO_SLOT:
            raise BackendError(f"llama.cpp found no room for {n_tokens} tokens in the cache")
        raise BackendError(f"llama.cpp failed to decode (code {code}): {backend.last_log_error()}")

    def _emptied(self) -> None:
        """What all sequences held is gone: the context was lost with its process."""
        for sequence in self.sequences:
            sequence.emptied()

    def cancel(self) -> None:
        """Stop a running `decode` that reads a prompt, from any thread or a signal handler; until `resume`.
        A decode of a few tokens is left to end."""
        self.cancelled = True
        if self._reading:
            self.abort.set()

    def resume(self) -> None:
        """Take `cancel` back."""
        self.cancelled = False
        self.abort.clear()

    def close(self) -> None:
        """Free the context; the weights stay loaded."""
        if self.handle is not None:
            backend.free_context(self.handle)
            self.handle = None


class Model(Sequence):
    """A context of one sequence, and that sequence: all cells are promised to it. Keywords are `Context`'s."""

    context: Context

    def __init__(self, weights: Weights, **settings: Any) -> None:
        context = Context(weights, **settings)
        super().__init__(context, 0, context.sequences[0].rollback)
        context.sequences[0] = self
        self.n_reserved = context.n_ctx
        self.settings, self.abort = context.settings, context.abort
        self.n_batch, self.n_outputs_max, self.pad_to = context.n_batch, context.n_outputs_max, context.pad_to

    @property
    def decode_s(self) -> float:
        """Seconds spent inside llama.cpp so far."""
        return self.context.decode_s

    def cancel(self) -> None:
        """Stop a running `extend` that reads a prompt, as `Context.cancel`."""
        self.context.cancel()

    def resume(self) -> None:
        """Take `cancel` back."""
        self.context.resume()

    def close(self) -> None:
        """Free the context; the weights stay loaded."""
        self.context.close()
