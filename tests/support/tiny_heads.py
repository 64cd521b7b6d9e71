"""Writers of tiny random GGUF files that carry prediction heads (MTP, NextN), as those of `tiny` without them.

`write_hy_v3` is attention alone and may have several heads; `write_qwen35` is a hybrid (a gated delta net and
attention) with one. A head is a block of its own after the trunk's: what it is fed (a token's embedding and the hidden
state of the token before it) is joined by `eh_proj`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np

from .tiny import SMALL, Draw, Shape, Vocab, _attention, _embeddings, _ffn, _finish, _header, _no_channel_0, drawer

Weights = Mapping[str, np.ndarray]


class _Writer:
    """Tensors by name; some are given instead of drawn."""

    def __init__(self, w: gguf.GGUFWriter, given: Weights) -> None:
        self._w = w
        self._given = dict(given)

    def __getattr__(self, name: str) -> object:
        return getattr(self._w, name)

    def add_tensor(self, name: str, weights: np.ndarray) -> None:
        self._w.add_tensor(name, np.ascontiguousarray(self._given.pop(name, weights), np.float32))

    def finish(self) -> None:
        assert not self._given, f"no such tensors: {sorted(self._given)}"
        _finish(self._w)


def _head(w: _Writer, draw: Draw, shape: Shape, i: int) -> None:
    """What block i has beyond a block of the trunk. The hidden state counts as much as the token."""
    n = shape.n_embd
    joined = draw(f"eh{i}", n, 2 * n, std=0.7 / np.sqrt(n))
    w.add_tensor(f"blk.{i}.nextn.eh_proj.weight", joined)
    for which in ("enorm", "hnorm", "shared_head_norm"):
        w.add_tensor(f"blk.{i}.nextn.{which}.weight", np.ones(n, np.float32))


def write_hy_v3(
    path: Path,
    vocab: Vocab,
    *,
    n_heads: int = 1,
    seed: int = 1,
    shape: Shape = SMALL,
    scale: float = 2.0,
    given: Weights | None = None,
) -> Path:
    """Attention alone, `shape.n_layer` blocks of the trunk and `n_heads` heads."""
    draw, n = drawer(seed, 0.0, 2), shape.n_embd
    n_blocks = shape.n_layer + n_heads
    raw = _header(path, "hy_v3", replace(shape, n_layer=n_blocks), vocab, None)
    raw.add_uint32("hy_v3.nextn_predict_layers", n_heads)
    raw.add_uint32("hy_v3.expert_feed_forward_length", shape.n_ff)
    raw.add_rope_dimension_count(shape.n_embd_head)
    w = _Writer(raw, given or {})
    embd, output = _embeddings(draw, shape, vocab, scale)
    w.add_tensor("token_embd.weight", embd)
    w.add_tensor("output_norm.weight", np.ones(n, np.float32))
    w.add_tensor("output.weight", output)
    for i in range(n_blocks):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n, np.float32))
        _attention(w, draw, shape, i, norms=True)
        _ffn(w, draw, shape, i)
        if i >= shape.n_layer:
            _head(w, draw, shape, i)
    w.finish()
    return path


def write_qwen35(
    path: Path,
    vocab: Vocab,
    *,
    seed: int = 1,
    shape: Shape = SMALL,
    scale: float = 2.0,
    given: Weights | None = None,
    n_state: int = 16,
    n_v_heads: int = 2,
) -> Path:
    """A hybrid of two blocks, of which the first keeps a recurrent state, and one head, which attends."""
    assert shape.n_layer == 2
    draw, n, kernel = drawer(seed, 0.0, 2), shape.n_embd, 4
    n_values, n_conv = n_state * n_v_heads, 2 * n_state + n_state * n_v_heads
    raw = _header(path, "qwen35", replace(shape, n_layer=3), vocab, None)
    raw.add_uint32("qwen35.nextn_predict_layers", 1)
    raw.add_uint32("qwen35.full_attention_interval", 2)
    raw.add_rope_dimension_count(shape.n_embd_head)
    raw.add_array("qwen35.rope.dimension_sections", [3, 3, 2, 0])
    raw.add_key_length(shape.n_embd_head)
    raw.add_value_length(shape.n_embd_head)
    raw.add_ssm_conv_kernel(kernel)
    raw.add_ssm_inner_size(n_values)
    raw.add_ssm_state_size(n_state)
    raw.add_ssm_time_step_rank(n_v_heads)
    raw.add_ssm_group_count(1)
    w = _Writer(raw, given or {})
    embd, output = _embeddings(draw, shape, vocab, scale)
    w.add_tensor("token_embd.weight", embd)
    w.add_tensor("output_norm.weight", np.ones(n, np.float32))
    w.add_tensor("output.weight", output)
    for i in range(3):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n, np.float32))
        if i:
            _attention(w, draw, shape, i, norms=True, gated=True)
        else:
            std = 1.5 / np.sqrt(n)
            w.add_tensor("blk.0.attn_qkv.weight", draw("qkv", n_conv, n, std=std))
            w.add_tensor("blk.0.attn_gate.weight", draw("z", n_values, n, std=std))
            w.add_tensor("blk.0.ssm_conv1d.weight", draw("conv", n_conv, kernel, std=0.7))
            w.add_tensor("blk.0.ssm_dt.bias", np.full(n_v_heads, -1.0, np.float32))
            w.add_tensor("blk.0.ssm_a", -np.linspace(0.2, 1.0, n_v_heads, dtype=np.float32))
            w.add_tensor("blk.0.ssm_beta.weight", draw("beta", n_v_heads, n, std=std))
            w.add_tensor("blk.0.ssm_alpha.weight", draw("alpha", n_v_heads, n, std=std))
            w.add_tensor("blk.0.ssm_norm.weight", np.ones(n_state, np.float32))
            w.add_tensor("blk.0.ssm_out.weight", _no_channel_0(draw("ssm_out", n, n_values, std=std)))
        _ffn(w, draw, shape, i, norm="post_attention_norm")
        if i == 2:
            _head(w, draw, shape, i)
    w.finish()
    return path


def agreeing_by_attention(vocab: Vocab) -> Weights:
    """For `write_hy_v3` with one block of the trunk: the head is that block again, and is fed the token alone. It says
    what the target says as long as it has read the same tokens."""
    n, ff, kv = SMALL.n_embd, SMALL.n_ff, SMALL.n_head_kv * SMALL.n_embd_head
    draw = drawer(1, 0.0, 2)
    embd, _ = _embeddings(draw, SMALL, vocab, 2.0)
    embd /= np.sqrt((embd**2).mean(axis=1, keepdims=True))  # what a norm leaves as it is
    shapes = {"attn_q": (n, n), "attn_k": (kv, n), "attn_v": (kv, n), "attn_output": (n, n)}
    shapes |= {"ffn_gate": (ff, n), "ffn_up": (ff, n), "ffn_down": (n, ff)}
    given = {"token_embd.weight": embd, "blk.1.nextn.eh_proj.weight": np.hstack([np.eye(n), np.zeros((n, n))])}
    for name, (rows, columns) in shapes.items():
        weights = draw(f"agree-{name}", rows, columns, std=1.5 / np.sqrt(columns))
        given |= {f"blk.{i}.{name}.weight": weights for i in range(2)}
    return given


def agreeing_by_states(vocab: Vocab, n_heads: int = 1) -> Weights:
    """For `write_hy_v3` with one block of the trunk: after id i the target says id i + 1 (the last one is followed by
    the third), and a head, fed the hidden state alone, knows from the token before which one comes after the next."""
    n, size = SMALL.n_embd, len(vocab)
    assert size <= n
    follows = [i + 1 if i + 1 < size else 3 for i in range(size)]
    embd, step = np.eye(size, n) * np.sqrt(n), np.zeros((n, n))
    step[follows, range(size)] = 1.0
    output = np.zeros((size, n))
    output[follows, range(size)] = 4.0
    given = {"token_embd.weight": embd, "output.weight": output}
    for i in range(1 + n_heads):
        given |= {
            f"blk.{i}.attn_output.weight": np.zeros((n, n)),
            f"blk.{i}.ffn_down.weight": np.zeros((n, SMALL.n_ff)),
        }
        if i:
            given[f"blk.{i}.nextn.eh_proj.weight"] = np.hstack([np.zeros((n, n)), step])
    return given
