"""GGUF files with prediction heads and random weights, in the shapes of two models that ship them.

Qwen3.5-0.8B is small enough to be written as it is: a hybrid whose every fourth layer attends. GLM-4.5-Air, a mixture
of experts, is scaled down: its width, its experts' width and its vocabulary are an eighth; the layers, the experts and
how many a token uses are its own, so that a head costs about the same share of a token. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from specgguf.presets import Shape

from bench.gpu.random_gguf import Tensor, header, write_tensors

LOGITS_STD = 4.0


@dataclass(frozen=True)
class Written:
    """A shape to be written.

    Attributes:
        of: whose it is, and what was changed. kinds: of its weights.
        write: (path, kind) -> bytes. shape, tiny: its own, and one for trying the script.
    """

    of: str
    kinds: tuple[str, ...]
    write: Callable[[Path, str, Shape], int]
    shape: Shape
    tiny: Shape


def matrix(name: str, rows: int, columns: int, std: float = 1.0, n: int = 1) -> Tensor:
    return Tensor(name + ".weight", rows, columns, std / columns**0.5, n_matrices=n)


def norm(name: str, size: int) -> Tensor:
    return Tensor(name + ".weight", size, None, 0.1, 1.0)


def _attention(at: str, s: Shape, gates: int) -> Iterator[Tensor]:
    """Of one layer; `gates` 2: beside each head's query stands a gate of its output."""
    q, kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    yield matrix(at + "attn_q", gates * q, s.n_embd)
    yield matrix(at + "attn_k", kv, s.n_embd)
    yield matrix(at + "attn_v", kv, s.n_embd)
    yield matrix(at + "attn_output", s.n_embd, q)
    yield norm(at + "attn_q_norm", s.head_dim)
    yield norm(at + "attn_k_norm", s.head_dim)


def _dense(at: str, s: Shape) -> Iterator[Tensor]:
    yield matrix(at + "ffn_gate", s.n_ff, s.n_embd)
    yield matrix(at + "ffn_up", s.n_ff, s.n_embd)
    yield matrix(at + "ffn_down", s.n_embd, s.n_ff)


def _head(at: str, n_embd: int) -> Iterator[Tensor]:
    """What a head's layer has beyond one of the model's."""
    yield matrix(at + "nextn.eh_proj", n_embd, 2 * n_embd)
    for name in ("enorm", "hnorm", "shared_head_norm"):
        yield norm(f"{at}nextn.{name}", n_embd)


# --- Qwen3.5-0.8B -----------------------------------------------------------------------------------------------

QWEN = Shape(25, 1024, 3584, 8, 2, 256, 248320, 1, True)  # 24 layers and the head's
QWEN_TINY = replace(QWEN, n_layer=5, n_vocab=2048)
N_STATE, N_KEY_HEADS, N_VALUE_HEADS, KERNEL, EVERY = 128, 16, 16, 4, 4


def write_qwen35(path: Path, kind: str, shape: Shape) -> int:
    """Its bytes."""
    w = header(path, shape, "qwen35")
    w.add_uint32("qwen35.nextn_predict_layers", 1)
    w.add_uint32("qwen35.full_attention_interval", EVERY)
    w.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
    w.add_ssm_conv_kernel(KERNEL)
    w.add_ssm_inner_size(N_STATE * N_VALUE_HEADS)
    w.add_ssm_state_size(N_STATE)
    w.add_ssm_time_step_rank(N_VALUE_HEADS)
    w.add_ssm_group_count(N_KEY_HEADS)
    return write_tensors(w, list(_qwen35(shape)), kind)


def _qwen35(s: Shape) -> Iterator[Tensor]:
    yield matrix("token_embd", s.n_vocab, s.n_embd, LOGITS_STD)
    yield norm("output_norm", s.n_embd)
    for i in range(s.n_layer):
        at = f"blk.{i}."
        yield norm(at + "attn_norm", s.n_embd)
        yield norm(at + "post_attention_norm", s.n_embd)
        attends = i == s.n_layer - 1 or not (i + 1) % EVERY
        yield from _attention(at, s, gates=2) if attends else _delta_net(at, s)
        yield from _dense(at, s)
    yield from _head(f"blk.{s.n_layer - 1}.", s.n_embd)


def _delta_net(at: str, s: Shape) -> Iterator[Tensor]:
    values = N_STATE * N_VALUE_HEADS
    n_conv = 2 * N_STATE * N_KEY_HEADS + values
    yield matrix(at + "attn_qkv", n_conv, s.n_embd)
    yield matrix(at + "attn_gate", values, s.n_embd)
    yield Tensor(at + "ssm_conv1d.weight", n_conv, KERNEL, 0.5, is_f32=True)
    yield Tensor(at + "ssm_dt.bias", N_VALUE_HEADS, None, 0.1, -1.0)
    yield Tensor(at + "ssm_a", N_VALUE_HEADS, None, 0.1, -0.5)
    yield matrix(at + "ssm_beta", N_VALUE_HEADS, s.n_embd)
    yield matrix(at + "ssm_alpha", N_VALUE_HEADS, s.n_embd)
    yield norm(at + "ssm_norm", N_STATE)
    yield matrix(at + "ssm_out", s.n_embd, values)


# --- GLM-4.5-Air, an eighth as wide -----------------------------------------------------------------------------

GLM = Shape(47, 512, 1376, 12, 1, 128, 18944, 1, False)  # 46 layers and the head's
GLM_TINY = replace(GLM, n_layer=3, n_vocab=2048)
N_EXPERT, N_USED, N_FF_EXPERT = 128, 8, 192


def write_glm4moe(path: Path, kind: str, shape: Shape) -> int:
    """Its bytes."""
    w = header(path, shape, "glm4moe")
    w.add_uint32("glm4moe.nextn_predict_layers", 1)
    w.add_uint32("glm4moe.leading_dense_block_count", 1)
    w.add_expert_count(N_EXPERT)
    w.add_expert_used_count(N_USED)
    w.add_expert_shared_count(1)
    w.add_expert_feed_forward_length(N_FF_EXPERT)
    w.add_expert_weights_scale(1.0)
    w.add_expert_weights_norm(True)
    return write_tensors(w, list(_glm4moe(shape)), kind)


def _glm4moe(s: Shape) -> Iterator[Tensor]:
    yield matrix("token_embd", s.n_vocab, s.n_embd, LOGITS_STD)
    yield norm("output_norm", s.n_embd)
    yield matrix("output", s.n_vocab, s.n_embd, LOGITS_STD)
    for i in range(s.n_layer):
        at = f"blk.{i}."
        yield norm(at + "attn_norm", s.n_embd)
        yield norm(at + "post_attention_norm", s.n_embd)
        yield from _attention(at, s, gates=1)
        yield from _experts(at, s) if i else _dense(at, s)
    yield from _head(f"blk.{s.n_layer - 1}.", s.n_embd)


def _experts(at: str, s: Shape) -> Iterator[Tensor]:
    yield Tensor(at + "ffn_gate_inp.weight", N_EXPERT, s.n_embd, 1.0 / s.n_embd**0.5, is_f32=True)
    yield Tensor(at + "exp_probs_b.bias", N_EXPERT, None, 0.01)
    yield matrix(at + "ffn_gate_exps", N_FF_EXPERT, s.n_embd, n=N_EXPERT)
    yield matrix(at + "ffn_up_exps", N_FF_EXPERT, s.n_embd, n=N_EXPERT)
    yield matrix(at + "ffn_down_exps", s.n_embd, N_FF_EXPERT, n=N_EXPERT)
    yield matrix(at + "ffn_gate_shexp", N_FF_EXPERT, s.n_embd)
    yield matrix(at + "ffn_up_shexp", N_FF_EXPERT, s.n_embd)
    yield matrix(at + "ffn_down_shexp", s.n_embd, N_FF_EXPERT)


SHAPES = {
    "qwen3.5-0.8b": Written("Qwen3.5-0.8B, as it is", ("f16", "q8_0", "q4_0"), write_qwen35, QWEN, QWEN_TINY),
    "glm-4.5-air": Written("GLM-4.5-Air, an eighth as wide", ("q8_0", "q4_0"), write_glm4moe, GLM, GLM_TINY),
}
