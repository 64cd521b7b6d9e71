"""Every error a caller may want to catch, in one tree.

    SpecggufError
    ├── ConfigError      an option, a parameter or a file of settings is wrong
    ├── ModelNotFound    a model reference leads to no file
    ├── DownloadError    the network, the hub or a hash said no
    ├── VocabMismatch    this draft cannot serve this target
    ├── Unsupported      asked for by name, and refused by name
    ├── ContextFull      the prompt does not fit into the context
    ├── Busy             another caller owns the engine
    ├── Cancelled        stopped on request
    └── BackendError     llama.cpp failed
        └── WorkerLost   another machine's worker does not answer, or not any more

A message is one line that names what is wrong; `hint` is what to type or change next.
"""

from __future__ import annotations


class SpecggufError(Exception):
    """Base of all errors raised by specgguf.

    `str(error)` is one line. `error.hint`, when not empty, says what to do next.
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class ConfigError(SpecggufError, ValueError):
    """An option, a parameter or a settings file is wrong."""


class ModelNotFound(SpecggufError, FileNotFoundError):
    """A model reference leads to no file."""


class DownloadError(SpecggufError):
    """A download failed: network, hub, or a wrong hash."""


class VocabMismatch(SpecggufError):
    """The draft's vocabulary differs from the target's."""


class Unsupported(SpecggufError):
    """Something that specgguf does not do, refused by name."""


class ContextFull(SpecggufError):
    """The tokens do not fit into the context."""


class Busy(SpecggufError):
    """Another caller is using the engine."""


class Cancelled(SpecggufError):
    """Stopped on request; what was committed so far is kept."""


class BackendError(SpecggufError):
    """llama.cpp could not load, allocate or decode."""


class WorkerLost(BackendError):
    """A worker does not answer, or not any more: what its part of a model held is gone; the next request connects."""
