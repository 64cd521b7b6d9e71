"""Copies of real models in formats whose batch widths agree bit for bit, made once into the user's cache.

Q4_0 with a Q8_0 output matrix: with single tokens padded to two, rows of every width are the same on CPU. The
usual output format (Q6_K) is not among the formats for which that holds.
"""

from __future__ import annotations

import os
from pathlib import Path

Q8_0 = 8  # ggml's number
MOSTLY_Q4_0 = 2  # llama.cpp's number of a file type


def q4_0(source: Path) -> Path:
    """The Q4_0 copy of `source`."""
    import llama_cpp
    import platformdirs

    from specgguf.native import backend

    target = Path(platformdirs.user_cache_dir("specgguf")) / "tests" / f"{source.stem}.as-q4_0.gguf"
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    backend.start()  # keeps llama.cpp's lines off stderr
    partial = target.with_suffix(f".{os.getpid()}.part")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.output_tensor_type, params.allow_requantize = MOSTLY_Q4_0, Q8_0, True
    try:
        code = llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), params)
        if code:
            raise RuntimeError(f"llama.cpp could not requantise {source} (code {code})")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target
