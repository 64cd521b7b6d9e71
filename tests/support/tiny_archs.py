"""Writers of tiny GGUF files of further architectures, as `tiny` has them: those that drafts are slimmed of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import tiny


def write_dense(path: Path, vocab: tiny.Vocab, arch: str, *, tied: bool = False, seed: int = 1) -> Path:
    """llama, qwen2 (biases) or qwen3 (norms of queries and keys); `tied` has no output matrix of its own."""
    shape, draw = tiny.SMALL, tiny.drawer(seed, 0.0, 2)
    w = tiny._header(path, arch, shape, vocab, None)
    w.add_rope_dimension_count(shape.n_embd_head)
    w.add_key_length(shape.n_embd_head)
    w.add_value_length(shape.n_embd_head)
    embd, output = tiny._embeddings(draw, shape, vocab, 2.0)
    w.add_tensor("token_embd.weight", embd)
    w.add_tensor("output_norm.weight", np.ones(shape.n_embd, np.float32))
    if not tied:
        w.add_tensor("output.weight", output)
    for i in range(shape.n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(shape.n_embd, np.float32))
        tiny._attention(w, draw, shape, i, norms=arch == "qwen3")
        if arch == "qwen2":
            for name, n in (("q", shape.n_embd), ("k", 32), ("v", 32)):
                w.add_tensor(f"blk.{i}.attn_{name}.bias", draw(f"bias{name}{i}", n, std=0.1))
        tiny._ffn(w, draw, shape, i)
    tiny._finish(w)
    return path
