"""Writers of tiny GGUF files of further architectures, as `tiny` has them: those that drafts are slimmed of."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from . import tiny

TIED = ("gemma", "gemma2")  # never with an output matrix of their own


def write_dense(path: Path, vocab: tiny.Vocab, arch: str, *, tied: bool = False, seed: int = 1) -> Path:
    """llama, smollm3, qwen2 (biases), qwen3 (norms of queries and keys), gemma and gemma2 (whose graph scales the
    embedding), or phi3 (one matrix for queries, keys and values). `tied` has no output matrix of its own."""
    shape, draw = tiny.SMALL, tiny.drawer(seed, 0.0, 2)
    w = tiny._header(path, arch, shape, vocab, None)
    w.add_rope_dimension_count(shape.n_embd_head)
    w.add_key_length(shape.n_embd_head)
    w.add_value_length(shape.n_embd_head)
    embd, output = tiny._embeddings(draw, shape, vocab, 2.0)
    w.add_tensor("token_embd.weight", embd)
    w.add_tensor("output_norm.weight", np.ones(shape.n_embd, np.float32))
    if not tied and arch not in TIED:
        w.add_tensor("output.weight", output)
    for i in range(shape.n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(shape.n_embd, np.float32))
        if arch == "phi3":
            _fused(w, draw, shape, i)
            continue
        tiny._attention(w, draw, shape, i, norms=arch == "qwen3")
        if arch == "qwen2":
            for name, n in (("q", shape.n_embd), ("k", 32), ("v", 32)):
                w.add_tensor(f"blk.{i}.attn_{name}.bias", draw(f"bias{name}{i}", n, std=0.1))
        if arch == "gemma2":
            for name in ("post_attention_norm", "post_ffw_norm"):
                w.add_tensor(f"blk.{i}.{name}.weight", np.ones(shape.n_embd, np.float32))
        tiny._ffn(w, draw, shape, i)
    tiny._finish(w)
    return path


def _fused(w: tiny.TensorWriter, draw: tiny.Draw, shape: tiny.Shape, i: int) -> None:
    """A layer of phi3: queries, keys and values in one matrix, gate and values of the feed-forward block in another."""
    n, ff, kv = shape.n_embd, shape.n_ff, shape.n_head_kv * shape.n_embd_head
    w.add_tensor(f"blk.{i}.attn_qkv.weight", draw(f"qkv{i}", n + 2 * kv, n, std=1.5 / np.sqrt(n)))
    w.add_tensor(f"blk.{i}.attn_output.weight", tiny._no_channel_0(draw(f"o{i}", n, n, std=1.5 / np.sqrt(n))))
    w.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(n, np.float32))
    w.add_tensor(f"blk.{i}.ffn_up.weight", draw(f"up{i}", 2 * ff, n, std=1.5 / np.sqrt(n)))
    w.add_tensor(f"blk.{i}.ffn_down.weight", tiny._no_channel_0(draw(f"down{i}", n, ff, std=1.0 / np.sqrt(ff))))
