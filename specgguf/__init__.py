"""specgguf: exact, adaptive speculative decoding for local GGUF models.

The public names are loaded when they are first used, so that importing the package costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .api import SpeculativeLlama
    from .batched import BatchProgress, BatchResult
    from .config import DraftConfig, SamplingParams
    from .decode.generation import Generation
    from .decode.records import Chunk, Round
    from .decode.stats import Stats
    from .errors import (
        BackendError,
        Busy,
        Cancelled,
        ConfigError,
        ContextFull,
        DownloadError,
        ModelNotFound,
        SpecggufError,
        Unsupported,
        VocabMismatch,
    )

_HOMES = {
    "SpeculativeLlama": "api",
    "BatchProgress": "batched",
    "BatchResult": "batched",
    "DraftConfig": "config",
    "SamplingParams": "config",
    "BackendError": "errors",
    "Busy": "errors",
    "Cancelled": "errors",
    "ConfigError": "errors",
    "ContextFull": "errors",
    "DownloadError": "errors",
    "ModelNotFound": "errors",
    "SpecggufError": "errors",
    "Unsupported": "errors",
    "VocabMismatch": "errors",
    "Chunk": "decode.records",
    "Generation": "decode.generation",
    "Round": "decode.records",
    "Stats": "decode.stats",
}

__all__ = [
    "BackendError",
    "BatchProgress",
    "BatchResult",
    "Busy",
    "Cancelled",
    "Chunk",
    "ConfigError",
    "ContextFull",
    "DownloadError",
    "DraftConfig",
    "Generation",
    "ModelNotFound",
    "Round",
    "SamplingParams",
    "SpecggufError",
    "SpeculativeLlama",
    "Stats",
    "Unsupported",
    "VocabMismatch",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f".{_HOMES[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
