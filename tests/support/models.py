"""The real models that tests use, fetched once into the user's cache.

Every function returns paths and raises when a file cannot be had: a test that needs a model never passes
without it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import fetch_models


@cache
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: small, dense, a vocabulary unlike Qwen's."""
    return fetch_models.fetch(fetch_models.SOURCES["smollm2"])


@cache
def gemma() -> Path:
    """Gemma 3 270M, Q4_K_M: a sliding window of 512."""
    return fetch_models.fetch(fetch_models.SOURCES["gemma"])


@cache
def demo_pair() -> tuple[Path, Path]:
    """The demo preset's target (1.5B) and draft (0.5B), both Qwen2.5-Coder-Instruct Q4_K_M."""
    return fetch_models.demo_pair()
