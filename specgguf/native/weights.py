"""A loaded GGUF file, which several contexts may share.

Refuses before llama.cpp sees it what llama.cpp would end the process over, and says in one line what it refused
itself. Knows nothing of contexts but that others make them, and nothing of text but that the file has a vocabulary.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from specgguf.errors import BackendError, Cancelled, ConfigError
from specgguf.models import header, header_check

from . import backend, compat, vocab
from .rpc.remote import Remote, placement_for

# Told of a file while it is loaded: its path and how much of it is there, 0 to 1. False stops it.
Progress = Callable[[str, float], bool]
_watched = threading.local()


class Weights:
    """A GGUF file loaded by `llama_cpp.Llama`, which also tokenizes and carries the metadata.

    With `rpc_servers` among the keywords its layers lie on workers too: then it is loaded in a process of its own, and
    here only for its vocabulary (see `rpc`). `n_vocab` and `eog` are of the ids that it reads; a row of logits has
    `n_columns`, and `columns` names the id of each where that is not its place.

    Args:
        path: the file.
        keywords: keywords of `llama_cpp.Llama`, but for n_ctx, n_batch, n_ubatch and verbose: its own context
            is minimal, ours are made by `Model`. And `rpc_servers`: HOST:PORT, one or a list.
        native_params: fields of llama_model_params that `Llama` has no keyword for.

    Raises:
        ModelNotFound: no such file.
        BackendError: not a GGUF, truncated, or refused by llama.cpp; WorkerLost: a worker does not answer.
        Cancelled: `watched` stopped it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keywords: Mapping[str, Any] | None = None,
        *,
        native_params: Mapping[str, Any] | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.keywords = dict(keywords or {})
        header.check_gguf(self.path)
        self._characters = _check_header(self.path, self.keywords)
        backend.start()

        self._llama: Any = None
        self._users = _Users()
        self._pieces: dict[bool, dict[int, bytes]] = {False: {}, True: {}}
        self._pid = os.getpid()
        self._remote: Remote | None = None
        own = {k: v for k, v in self.keywords.items() if k != "rpc_servers"}
        spread = bool(self.keywords.get("rpc_servers"))
        placement = placement_for(self.path, self.keywords) if spread else None
        watcher = _Watcher(self.path)
        try:
            self._llama = compat.Untemplated(
                self.path,
                n_ctx=32,
                n_batch=8,
                n_ubatch=8,
                verbose=False,
                native_params={**(native_params or {}), **({} if spread else watcher.native_params)},
                **({"vocab_only": True} if spread else own),
            )
        except (ValueError, RuntimeError) as error:
            if watcher.stopped:
                raise Cancelled(f"the loading of {self.path} was stopped") from None
            why = backend.last_log_error() or str(error)
            raise BackendError(f"llama.cpp could not load {self.path}: {why}") from error
        compat.check_loaded(self._llama)
        adapter = compat.lora_adapter(self._llama)
        if adapter is not None and not adapter:  # llama_cpp does not look, and decoding would end the process
            self.close()
            why = backend.last_log_error() or "not a LoRA of this model"
            raise BackendError(f"llama.cpp could not load the LoRA {self.keywords['lora_path']}: {why}")
        self.n_vocab = self.n_columns = vocab.vocab_size(self.vocab)
        self.columns: Sequence[int] | None = None
        self.eog = vocab.eog_tokens(self.vocab)
        self.fim = vocab.fim_tokens(self.vocab)
        self.bos, self.eos, self.nl = (int(getattr(self.llama, f"token_{name}")()) for name in ("bos", "eos", "nl"))
        self.metadata: dict[str, str] = self.llama.all_metadata
        if placement is not None:
            try:
                self._remote = Remote(self.path, own, placement, self.n_vocab)
            except BaseException:
                self.close()
                raise

    @property
    def placement(self) -> str:
        """Which layers lie where, in words; "" where all are here."""
        return str(self._remote.placement) if self._remote is not None else ""

    @property
    def n_ctx_train(self) -> int:
        """The context length that the model was made for; 4096 where the file does not say."""
        stated = self.metadata | dict(self.keywords.get("kv_overrides") or {})
        return int(stated.get(f"{self.architecture}.context_length", 4096))

    @property
    def llama(self) -> Any:
        """The `llama_cpp.Llama`. After `close` it raises ConfigError, and so does `vocab`. Where another thread may
        close the file it is safe inside `in_use` alone."""
        if self._llama is None:
            raise ConfigError(f"{self.path} was closed", hint="load it again")
        return self._llama

    @property
    def vocab(self) -> Any:
        """The native vocabulary, which dies with the file."""
        return vocab.of_model(self.llama)

    @cached_property
    def grammar_tokenizer(self) -> Any:
        """The vocabulary as llguidance reads it, made when first asked for; it dies with the file, too."""
        with self.in_use():
            return vocab.grammar_tokenizer(self.vocab)

    @property
    def memory(self) -> backend.Memory:
        """What decides how a context's memory can be rolled back."""
        return self._remote.memory if self._remote is not None else backend.memory(self.llama)

    def new_context(self, settings: Mapping[str, Any], emptied: Callable[[], None]) -> backend.Context:
        """A context over the file.

        Args:
            settings: fields of llama_context_params; None leaves one alone.
            emptied: called when a context of another process lost what it held.
        """
        chosen = {name: value for name, value in settings.items() if value is not None}
        if self._remote is not None:
            return self._remote.new_context(chosen, emptied)
        params = backend.copy_params(self.llama.context_params)
        for name, value in chosen.items():
            backend.set_field(params, name, value)
        return backend.new_context(self.llama, params)

    def apply_lora(self, context: backend.Context) -> None:
        """Apply the LoRA adapter that the file was loaded with, if any, to a context over it."""
        adapter = compat.lora_adapter(self.llama)
        if adapter is not None:
            backend.apply_lora(context, adapter, self.llama.lora_scale)

    @property
    def architecture(self) -> str:
        """As the file names it."""
        return self.metadata.get("general.architecture", "")

    @contextlib.contextmanager
    def in_use(self) -> Iterator[Weights]:
        """Keep the file loaded for the block. Any number of threads may; `close` waits for them.

        Raises:
            ConfigError: it was closed.
        """
        self._users.enter(self)
        try:
            yield self
        finally:
            self._users.leave()

    def batch(self, n_tokens: int) -> backend.Batch:
        return backend.Batch(n_tokens)

    def tokenize(self, text: bytes, *, add_bos: bool = True, special: bool = False) -> list[int]:
        """Token ids of `text`; `special` reads special tokens' texts as those tokens."""
        vocab.check_characters(text, self._characters)
        with self.in_use():
            return list(self.llama.tokenize(text, add_bos, special))

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token stands for; special tokens give b"" unless asked for. Asked for every generated token,
        most of which came before: kept, since asking natively takes thirty times as long."""
        known = self._pieces[special].get(token)
        if known is not None and self._llama is not None:
            return known
        with self.in_use():
            known = self._pieces[special][token] = vocab.piece(self.vocab, token, special=special)
        return known

    def check_length(self, n_bytes: int, n_ctx: int) -> None:
        """Raise ContextFull for a text that no tokens could make fit, see `vocab.check_length`."""
        with self.in_use():
            vocab.check_length(self.vocab, n_bytes, n_ctx)

    def close(self) -> None:
        """Free the file, once nobody uses it; contexts over it must be closed. Safe to call twice, and from any thread.
        In a fork of the process that loaded it, only forget it: there the users are threads that stayed behind."""
        self.__dict__.pop("grammar_tokenizer", None)
        if os.getpid() != self._pid:
            llama, self._llama = self._llama, None
            if llama is not None:
                compat.disown(llama)
            return
        with self._users.gone():
            llama, self._llama = self._llama, None
            if self._remote is not None:
                self._remote.close()
        if llama is not None:
            llama.close()


@contextlib.contextmanager
def watched(progress: Progress) -> Iterator[None]:
    """Inside it, `progress` is told of every file that this thread loads."""
    before = getattr(_watched, "progress", None)
    _watched.progress = progress
    try:
        yield
    finally:
        _watched.progress = before


class _Watcher:
    """Passes on how far the loading of one file is, to who watches."""

    def __init__(self, path: str) -> None:
        self.stopped = False
        self._path = path
        self._progress: Progress | None = getattr(_watched, "progress", None)

    @property
    def native_params(self) -> dict[str, Any]:
        """Fields of llama_model_params that let llama.cpp tell; none where nobody watches."""
        return {"progress_callback": compat.progress_callback(self._is_at)} if self._progress is not None else {}

    def _is_at(self, share: float) -> bool:
        self.stopped = self._progress is not None and not self._progress(self._path, share)
        return not self.stopped


class _Users:
    """The threads inside `in_use`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._depths: dict[int, int] = {}
        self._is_closing = False

    def enter(self, weights: Weights) -> None:
        """Raise ConfigError once the file is being closed, but for a thread that is inside already."""
        me = threading.get_ident()
        with self._changed:
            if me not in self._depths and self._is_closing:
                raise ConfigError(f"{weights.path} was closed", hint="load it again")
            self._depths[me] = self._depths.get(me, 0) + 1

    def leave(self) -> None:
        me = threading.get_ident()
        with self._changed:
            self._depths[me] -= 1
            if not self._depths[me]:
                del self._depths[me]
                self._changed.notify_all()

    @contextlib.contextmanager
    def gone(self) -> Iterator[None]:
        """Let nobody in any more, and wait for the others; a signal handler may close what its own thread was using."""
        with self._changed:
            self._is_closing = True
            self._changed.wait_for(lambda: not self._depths.keys() - {threading.get_ident()})
            yield


def _check_header(path: str, keywords: Mapping[str, Any]) -> frozenset[str] | None:
    """Refuse a head over which llama.cpp would end the process, as far as known; the characters that its vocabulary is
    limited to, see `header_check.only_characters`. One that cannot be read is llama.cpp's to refuse."""
    try:
        head = header.read(path, keep=(header_check.TOKENS,))
    except header.GgufError:
        return None
    found = head.metadata.get(header_check.TOKENS)
    tokens: list[str] | None = found if isinstance(found, list) and all(isinstance(t, str) for t in found) else None
    why = header_check.impossible(head, keywords.get("kv_overrides"))
    if not why and tokens is not None:
        why = header_check.missing_byte(head, tokens) or header_check.repeated_text(tokens)
    if why:
        raise BackendError(f"{path} is damaged: {why}", hint="download or convert it again")
    mapped = keywords.get("use_mmap", True) and keywords.get("lora_path") is None  # as in `Llama`
    if mapped and (why := header_check.unmappable(head)):
        raise BackendError(
            f"{path} cannot be mapped into memory: {why}", hint="convert it again, or load it with use_mmap=False"
        )
    return header_check.only_characters(head, tokens) if tokens is not None else None
