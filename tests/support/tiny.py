"""Writers of tiny random GGUF files that llama.cpp really loads and decodes in well under a millisecond.

Every test that needs a real model but no meaning takes one from here: dense (`write_llama`), hybrid
(`write_lfm2`), recurrent (`write_mamba`) and sliding-window (`write_gemma3`). Two files with the same `seed`
and different `noise` are a target and a draft that agree often but not always. Run as a script to get one:

    python tests/support/tiny.py chat /tmp/tiny.gguf

The writers know nothing of specgguf.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import gguf
import numpy as np

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# SentencePiece token types, as GGUF numbers them.
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


@dataclass(frozen=True)
class Vocab:
    """A SentencePiece vocabulary: texts, token types, and how likely each id is by itself.

    Attributes:
        bias: added to each id's logit (about; it scales with the hidden state), so that generated text is
            mostly printable and sometimes ends.
        eot: the end-of-turn id, or None.
        model, merges: the tokenizer: "llama" (SentencePiece), or "gpt2" (byte-level BPE) with its merges.
    """

    texts: Sequence[bytes]
    types: Sequence[int]
    bias: np.ndarray
    eot: int | None = None
    template: str | None = None
    model: str = "llama"
    merges: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.texts)


def letters(n_vocab: int) -> Vocab:
    """<unk> <s> </s> and then one-character tokens: a vocabulary small enough to enumerate."""
    texts = [b"<unk>", b"<s>", b"</s>"] + [chr(ord("a") + i).encode() for i in range(n_vocab - 3)]
    return Vocab(texts[:n_vocab], [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * (n_vocab - 3)], np.zeros(n_vocab))


def numbered(n_vocab: int) -> Vocab:
    """As wide as a real vocabulary, for measuring what width costs; ids are words like "t12345"."""
    texts = [b"<unk>", b"<s>", b"</s>"] + [f"t{i}".encode() for i in range(3, n_vocab)]
    return Vocab(texts, [UNKNOWN, CONTROL, CONTROL, *[NORMAL] * (n_vocab - 3)], np.zeros(n_vocab))


# Token texts beside the 256 bytes of `chat`: words, and characters of two to four bytes.
WORDS = [
    *(
        "▁",
        "▁▁",
        "▁▁▁▁",
        "▁the",
        "▁a",
        "▁of",
        "▁and",
        "▁is",
        "▁to",
        "▁in",
        "▁it",
        "▁word",
        "▁list",
        "▁python",
    ),
    *("▁number", "▁value", "▁return", "▁token", "er", "ing", "ed", "th", "on", "an"),
    *("é", "ü", "ß", "한", "국", "어", "日", "本", "👍", "🙂", "—", "…"),
]


def chat() -> Vocab:
    """Tokenizes and detokenizes any bytes; has bos, eos, ChatML tokens and a chat template.

    Generated text is mostly ASCII words, with some characters that are split over byte tokens.
    """
    texts = [b"<unk>", b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>"]
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL, CONTROL]
    bias = [-12.0, -12.0, 0.0, -12.0, 1.0]
    for byte in range(256):
        texts.append(f"<0x{byte:02X}>".encode())
        types.append(BYTE)
        word = chr(byte).isalnum() and byte < 128
        bias.append(2.0 if word else 0.0 if 32 <= byte < 127 or byte == 10 else -1.5 if byte >= 128 else -9.0)
    for word_text in WORDS:
        texts.append(word_text.encode())
        types.append(NORMAL)
        bias.append(3.0 if word_text.startswith("▁") else 1.0)
    return Vocab(texts, types, np.array(bias), eot=4, template=CHAT_TEMPLATE)


BPE_ENDS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def byte_level(words: Sequence[str] = (), *, ends: Sequence[str] = BPE_ENDS) -> Vocab:
    """Byte-level BPE, as GPT-2's: 256 bytes, all merges of `words` (each from the left), then special tokens."""
    letter = gpt2_letters()
    texts = [letter[b] for b in range(256)]
    merges: list[str] = []
    for word in words:
        spelled = [letter[b] for b in word.encode()]
        for n in range(2, len(spelled) + 1):
            text = "".join(spelled[:n])
            if text not in texts:
                merges.append("".join(spelled[: n - 1]) + " " + spelled[n - 1])
                texts.append(text)
    types = [NORMAL] * len(texts) + [CONTROL] * len(ends)
    bias = [2.0 if 97 <= b < 123 or b == 32 else -9.0 for b in range(256)] + [2.0] * (len(texts) - 256)
    return Vocab(
        [t.encode() for t in [*texts, *ends]],
        types,
        np.array([*bias, *[-2.0] * len(ends)]),
        eot=len(texts) + len(ends) - 1,
        model="gpt2",
        merges=merges,
    )


def gpt2_letters() -> dict[int, str]:
    """The printable letter that byte-level BPE writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; every row length is a multiple of 32, so that the file can be requantised."""

    n_embd: int = 32
    n_head: int = 2
    n_head_kv: int = 2
    n_layer: int = 2
    n_ff: int = 64
    n_ctx_train: int = 8192

    @property
    def n_embd_head(self) -> int:
        return self.n_embd // self.n_head


SMALL = Shape()
NARROW = Shape(n_embd=32, n_layer=1, n_ff=32)

Draw = Callable[..., np.ndarray]


class TensorWriter(Protocol):
    """As much of a `gguf.GGUFWriter` as a block needs."""

    def add_tensor(self, name: str, tensor: np.ndarray) -> object: ...


def drawer(seed: int, noise: float, noise_seed: int) -> Draw:
    """draw(name, rows, columns, std=...) -> float32 normal weights, a function of seed and name alone.

    They are blended with `noise` parts of a second seed's: the same seed with another noise is a correlated
    model.
    """

    def draw(name: str, *shape: int, std: float = 1.0) -> np.ndarray:
        base = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
        other = np.random.default_rng([noise_seed, 77, zlib.crc32(name.encode())]).standard_normal(shape)
        weights: np.ndarray = (std * (base + noise * other) / np.hypot(1.0, noise)).astype(np.float32)
        return weights

    return draw


def _header(path: Path, arch: str, shape: Shape, vocab: Vocab, kv_heads: Sequence[int] | None) -> gguf.GGUFWriter:
    """A writer with the metadata that every architecture shares."""
    w = gguf.GGUFWriter(path, arch)
    w.add_name("tiny")  # not of the architecture: llama.cpp looks for the special tokens of a model that is called phi3
    w.add_context_length(shape.n_ctx_train)
    w.add_embedding_length(shape.n_embd)
    w.add_block_count(shape.n_layer)
    w.add_feed_forward_length(shape.n_ff)
    w.add_head_count(shape.n_head)
    w.add_head_count_kv(list(kv_heads) if kv_heads is not None else shape.n_head_kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(len(vocab))
    w.add_file_type(0)
    w.add_tokenizer_model(vocab.model)
    if vocab.model == "gpt2":
        w.add_tokenizer_pre("gpt-2")
        w.add_token_merges(list(vocab.merges))
    w.add_token_list(list(vocab.texts))
    w.add_token_scores([-float(i) for i in range(len(vocab))])
    w.add_token_types(list(vocab.types))
    w.add_unk_token_id(0)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    if vocab.eot is not None:
        w.add_eot_token_id(vocab.eot)
    w.add_add_bos_token(vocab.template is not None)
    w.add_add_space_prefix(False)
    if vocab.template is not None:
        w.add_chat_template(vocab.template)
    return w


def _finish(w: gguf.GGUFWriter) -> None:
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def _embeddings(draw: Draw, shape: Shape, vocab: Vocab, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Input and output embeddings. Channel 0 is 1 for every token and no layer writes to it, so that column 0
    of the output matrix biases each id whatever the context is."""
    embd = draw("token_embd", len(vocab), shape.n_embd)
    embd[:, 0] = 1.0
    output = draw("output", len(vocab), shape.n_embd, std=scale / np.sqrt(shape.n_embd))
    output[:, 0] = vocab.bias * 1.7
    return embd, output


def _ffn(w: TensorWriter, draw: Draw, shape: Shape, i: int, *, norm: str = "ffn_norm") -> None:
    n, ff = shape.n_embd, shape.n_ff
    w.add_tensor(f"blk.{i}.{norm}.weight", np.ones(n, np.float32))
    w.add_tensor(f"blk.{i}.ffn_gate.weight", draw(f"gate{i}", ff, n, std=1.5 / np.sqrt(n)))
    w.add_tensor(f"blk.{i}.ffn_up.weight", draw(f"up{i}", ff, n, std=1.5 / np.sqrt(n)))
    w.add_tensor(f"blk.{i}.ffn_down.weight", _no_channel_0(draw(f"down{i}", n, ff, std=1.0 / np.sqrt(ff))))


def _attention(w: TensorWriter, draw: Draw, shape: Shape, i: int, *, norms: bool, gated: bool = False) -> None:
    """Queries and keys are large, so that attention is sharp and every cached token matters. `gated`: beside each
    head's query stands a gate of its output."""
    n, kv = shape.n_embd, shape.n_head_kv * shape.n_embd_head
    w.add_tensor(f"blk.{i}.attn_q.weight", draw(f"q{i}", n * (2 if gated else 1), n, std=1.5 / np.sqrt(n)))
    w.add_tensor(f"blk.{i}.attn_k.weight", draw(f"k{i}", kv, n, std=1.5 / np.sqrt(n)))
    w.add_tensor(f"blk.{i}.attn_v.weight", draw(f"v{i}", kv, n, std=1.5 / np.sqrt(n)))
    w.add_tensor(f"blk.{i}.attn_output.weight", _no_channel_0(draw(f"o{i}", n, n, std=1.5 / np.sqrt(n))))
    if norms:
        for which in ("q", "k"):
            w.add_tensor(f"blk.{i}.attn_{which}_norm.weight", np.full(shape.n_embd_head, 1.5, np.float32))


def _no_channel_0(weights: np.ndarray) -> np.ndarray:
    weights[0] = 0.0
    return weights


def write_llama(
    path: Path,
    vocab: Vocab,
    *,
    seed: int = 1,
    noise: float = 0.0,
    noise_seed: int = 2,
    shape: Shape = SMALL,
    scale: float = 2.0,
) -> Path:
    """A dense transformer. `scale` is the standard deviation of its logits, about."""
    draw = drawer(seed, noise, noise_seed)
    w = _header(path, "llama", shape, vocab, None)
    w.add_rope_dimension_count(shape.n_embd_head)
    embd, output = _embeddings(draw, shape, vocab, scale)
    w.add_tensor("token_embd.weight", embd)
    w.add_tensor("output_norm.weight", np.ones(shape.n_embd, np.float32))
    w.add_tensor("output.weight", output)
    for i in range(shape.n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(shape.n_embd, np.float32))
        _attention(w, draw, shape, i, norms=False)
        _ffn(w, draw, shape, i)
    _finish(w)
    return path


def write_lfm2(
    path: Path,
    vocab: Vocab,
    *,
    seed: int = 1,
    noise: float = 0.0,
    noise_seed: int = 2,
    shape: Shape = SMALL,
    scale: float = 2.0,
) -> Path:
    """A hybrid: layer 0 is a short convolution (recurrent state), the others attend (a KV cache)."""
    draw, n, l_cache = drawer(seed, noise, noise_seed), shape.n_embd, 3
    w = _header(path, "lfm2", shape, vocab, [0] + [shape.n_head_kv] * (shape.n_layer - 1))
    w.add_shortconv_l_cache(l_cache)
    w.add_rope_freq_base(10000.0)
    embd, output = _embeddings(draw, shape, vocab, scale)
    w.add_tensor("token_embd.weight", embd)
    w.add_tensor("token_embd_norm.weight", np.ones(n, np.float32))
    w.add_tensor("output.weight", output)
    for i in range(shape.n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n, np.float32))
        if i:
            _attention(w, draw, shape, i, norms=True)
        else:
            w.add_tensor("blk.0.shortconv.conv.weight", draw("conv", n, l_cache, std=1.0))
            w.add_tensor("blk.0.shortconv.in_proj.weight", draw("in", 3 * n, n, std=1.2 / np.sqrt(n)))
            out = draw("out", n, n, std=1.0 / np.sqrt(n))
            w.add_tensor("blk.0.shortconv.out_proj.weight", _no_channel_0(out))
        _ffn(w, draw, shape, i)
    _finish(w)
    return path


def write_mamba(
    path: Path,
    vocab: Vocab,
    *,
    seed: int = 1,
    noise: float = 0.0,
    noise_seed: int = 2,
    shape: Shape = SMALL,
    scale: float = 2.0,
) -> Path:
    """A purely recurrent model: its whole memory is one state that cannot drop a token."""
    draw, n = drawer(seed, noise, noise_seed), shape.n_embd
    inner, state, kernel, rank = 2 * n, 16, 4, 4
    w = _header(path, "mamba", shape, vocab, None)
    w.add_ssm_conv_kernel(kernel)
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(state)
    w.add_ssm_time_step_rank(rank)
    embd, output = _embeddings(draw, shape, vocab, scale)
    w.add_tensor("token_embd.weight", embd)
    w.add_tensor("output_norm.weight", np.ones(n, np.float32))
    w.add_tensor("output.weight", output)
    for i in range(shape.n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n, np.float32))
        w.add_tensor(f"blk.{i}.ssm_in.weight", draw(f"ssm_in{i}", 2 * inner, n, std=1.5 / np.sqrt(n)))
        w.add_tensor(f"blk.{i}.ssm_conv1d.weight", draw(f"conv{i}", inner, kernel, std=0.7))
        w.add_tensor(f"blk.{i}.ssm_conv1d.bias", np.zeros(inner, np.float32))
        x = draw(f"x{i}", rank + 2 * state, inner, std=1.5 / np.sqrt(inner))
        w.add_tensor(f"blk.{i}.ssm_x.weight", x)
        w.add_tensor(f"blk.{i}.ssm_dt.weight", draw(f"dt{i}", inner, rank, std=0.5))
        w.add_tensor(f"blk.{i}.ssm_dt.bias", np.full(inner, -1.0, np.float32))
        decay = np.tile(-np.linspace(0.1, 2.0, state, dtype=np.float32), (inner, 1))
        w.add_tensor(f"blk.{i}.ssm_a", decay)
        w.add_tensor(f"blk.{i}.ssm_d", np.ones(inner, np.float32))
        w.add_tensor(f"blk.{i}.ssm_out.weight", _no_channel_0(draw(f"so{i}", n, inner, std=1.5 / np.sqrt(inner))))
    _finish(w)
    return path


def write_gemma3(
    path: Path,
    vocab: Vocab,
    *,
    seed: int = 1,
    noise: float = 0.0,
    noise_seed: int = 2,
    shape: Shape = SMALL,
    scale: float = 2.0,
    window: int = 16,
) -> Path:
    """A sliding-window model: even layers see `window` tokens back, odd ones everything."""
    draw, n = drawer(seed, noise, noise_seed), shape.n_embd
    w = _header(path, "gemma3", shape, vocab, None)
    w.add_key_length(shape.n_embd_head)
    w.add_value_length(shape.n_embd_head)
    w.add_sliding_window(window)
    w.add_sliding_window_pattern(2)
    w.add_rope_freq_base(10000.0)
    embd, output = _embeddings(draw, shape, vocab, scale)
    w.add_tensor("token_embd.weight", embd / np.sqrt(n).astype(np.float32))  # the graph scales it up again
    w.add_tensor("output_norm.weight", np.ones(n, np.float32))
    w.add_tensor("output.weight", output)
    for i in range(shape.n_layer):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(n, np.float32))
        w.add_tensor(f"blk.{i}.post_attention_norm.weight", np.ones(n, np.float32))
        w.add_tensor(f"blk.{i}.post_ffw_norm.weight", np.ones(n, np.float32))
        _attention(w, draw, shape, i, norms=True)
        _ffn(w, draw, shape, i)
    _finish(w)
    return path


WRITERS = {"llama": write_llama, "lfm2": write_lfm2, "mamba": write_mamba, "gemma3": write_gemma3}


def main(arguments: Sequence[str]) -> int:
    """Write one file: `chat`, `wide` (152k ids), or an architecture over eight letters."""
    kind, path = arguments[0], Path(arguments[1])
    if kind == "chat":
        write_llama(path, chat())
    elif kind == "wide":
        write_llama(path, numbered(151936), shape=NARROW)
    else:
        WRITERS[kind](path, letters(8))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
