"""What the head of a GGUF file says that no model can be, and llama.cpp would end the process over.

Of the many ways in which a head can be wrong these are the ones that are known; tests/test_weights.py tries each on
the llama.cpp that is installed. Knows nothing of what a sound head means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .header import Header

MAX_LAYERS, MAX_EXPERTS = 512, 1024  # llama.cpp's own
# An architecture reads one of them; in a file that holds the other too, no negative one is sound either.
EPSILONS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")


def impossible(header: Header, overrides: Mapping[str, Any] | None = None) -> str:
    """The key of a head, and its value, over which llama.cpp would end the process; "" where there is none.

    Args:
        overrides: full keys and values that it is told to take instead.
    """
    values = header.metadata | dict(overrides or {})

    def number(key: str) -> int | float | None:
        value = values.get(f"{header.architecture}.{key}")
        return value if isinstance(value, int | float) else None  # llama.cpp has words for anything else

    n_layer, n_expert, n_used = (number(k) for k in ("block_count", "expert_count", "expert_used_count"))
    if n_layer is not None and not 1 <= n_layer <= MAX_LAYERS:
        return f"{header.architecture}.block_count is {n_layer}"
    if (n_expert or 0) > MAX_EXPERTS:
        return f"{header.architecture}.expert_count is {n_expert}"
    if (n_used or 0) > (n_expert or 0) or (n_expert and not n_used):
        return f"{header.architecture}.expert_used_count is {n_used or 0}, of {n_expert or 0} experts"
    for key in EPSILONS:
        if (epsilon := number(key)) is not None and not epsilon >= 0:
            return f"{header.architecture}.{key} is {epsilon}"
    return ""
