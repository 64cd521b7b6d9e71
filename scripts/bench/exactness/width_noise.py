"""How far do a model's logits move with the width of the batch that computes them?

llama.cpp has other kernels for one token than for several, and some formats fall into more classes. The same text,
once generated greedily one token at a time, is fed again in wider steps; what changed is printed. A near-tie closer
than the gap's change may fall the other way when drafting: nothing else may.

  scripts/bench/run width-noise                            the demo preset's target
  scripts/bench/run width-noise -m my.gguf --widths 2 6    another model
  scripts/bench/run width-noise --json                     for machines
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from specgguf.cli.terminal.tables import lines

import fetch_models
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import runs
from specgguf.decode.sampling import Transform
from specgguf.native.context import Model
from specgguf.native.sequence import Sequence as Cached

KINDS = ("code", "story")
PADDED = "1, padded"  # strict: a single token beside a dummy
GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
RAW = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


@dataclass(frozen=True)
class Noise:
    """What changed between one token at a time and `width` at a time.

    Attributes:
        gap: the greatest change of the difference between the two best logits.
        logprob: the greatest change of the emitted token's log-probability.
        n_flips: tokens whose likeliest successor is another; flip_gap: the widest gap that was overturned.
        overlap: the mean of Σ min(p, q) at temperature 1: 1 is no change at all.
    """

    kind: str
    width: str
    n: int
    gap: float
    logprob: float
    n_flips: int
    flip_gap: float
    overlap: float


def feed(model: Cached, prompt: Sequence[int], tokens: Sequence[int], width: int) -> np.ndarray:
    """The rows before each of `tokens`, `width` at a time after the same prefill."""
    model.clear()
    model.extend(list(prompt[:-1]), 0)
    fed = [prompt[-1], *tokens[:-1]]
    rows = [model.extend(fed[i : i + width], len(fed[i : i + width])).copy() for i in range(0, len(fed), width)]
    return np.concatenate(rows)


def greedy(model: Cached, prompt: Sequence[int], n: int) -> list[int]:
    """The likeliest tokens, one at a time; the text does not end before."""
    distribution = Transform(GREEDY, n_vocab=model.n_vocab, eog=model.eog).distribution
    model.clear()
    model.extend(list(prompt[:-1]), 0)
    tokens = [prompt[-1]]
    for _ in range(n):
        tokens.append(int(distribution(model.extend(tokens[-1:], 1)[0], ()).ids[0]))
    return tokens[1:]


def compare(kind: str, width: str, one: np.ndarray, wide: np.ndarray, tokens: Sequence[int]) -> Noise:
    """Both say something about the same places of the same text."""

    def gaps(rows: np.ndarray) -> np.ndarray:
        best = np.sort(np.partition(rows, -2, axis=1)[:, -2:], axis=1)
        return np.asarray(best[:, 1] - best[:, 0])

    def logprobs(rows: np.ndarray) -> np.ndarray:
        rows = rows.astype(np.float64) - rows.max(axis=1, keepdims=True)
        return np.asarray(rows[range(len(tokens)), tokens] - np.log(np.exp(rows).sum(axis=1)))

    flipped = one.argmax(axis=1) != wide.argmax(axis=1)
    distribution = Transform(RAW, n_vocab=one.shape[1]).distribution
    overlaps = [distribution(a, ()).overlap(distribution(b, ())) for a, b in zip(one, wide, strict=True)]
    return Noise(
        kind,
        width,
        len(tokens),
        float(np.abs(gaps(one) - gaps(wide)).max()),
        float(np.abs(logprobs(one) - logprobs(wide)).max()),
        int(flipped.sum()),
        float(gaps(one)[flipped].max(initial=0.0)),
        float(np.mean(overlaps)),
    )


def measure(llm: SpeculativeLlama, widths: Sequence[int], n_tokens: int) -> list[Noise]:
    """Every width on a prompt of each kind."""
    plain = llm._engine.target
    padded = Model(plain.weights, n_ctx=plain.n_ctx, n_outputs_max=max(widths), pad_to=2)
    found = []
    for kind in KINDS:
        prompt = runs.prompt_ids(llm, next(p.prompt for p in runs.load_prompts(None) if p.kind == kind))
        tokens = greedy(plain, prompt, n_tokens)
        one = feed(plain, prompt, tokens, 1)
        if padded.pad_to == 2:
            found.append(compare(kind, PADDED, one, feed(padded, prompt, tokens, 1), tokens))
        found += [compare(kind, str(width), one, feed(plain, prompt, tokens, width), tokens) for width in widths]
    padded.close()
    return found


def report(found: Sequence[Noise]) -> str:
    """A table, and what it means for greedy text."""
    header = ["text", "width", "tokens", "gap moves by", "logprob by", "flips", "at gaps up to", "Σ min(p, q)"]
    rows = [
        [
            noise.kind,
            noise.width,
            str(noise.n),
            f"{noise.gap:.4f}",
            f"{noise.logprob:.4f}",
            str(noise.n_flips),
            f"{noise.flip_gap:.3f}" if noise.n_flips else "",
            f"{noise.overlap:.5f}",
        ]
        for noise in found
    ]
    worst = max(noise.gap for noise in found)
    meaning = f"Drafted and plain greedy text may part where the two best logits are less than {worst:.2g} apart."
    return "\n".join([*lines(rows, header, right=tuple(range(1, 8))), "", meaning])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, metavar="FILE", help="a GGUF file [the demo preset's target]")
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 4, 6], metavar="N", help="[2 4 6]")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="tokens of each text [%(default)s]")
    parser.add_argument("-t", "--n-threads", type=int, metavar="N")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    args = parser.parse_args()
    if min(*args.widths, args.tokens) < 1 or max(args.widths) > 16:
        parser.error("widths are 1 to 16, tokens at least 1")
    path = args.model or fetch_models.demo_pair()[0]
    keywords: dict[str, Any] = {} if args.n_threads is None else {"n_threads": args.n_threads}
    if args.n_threads is not None:
        keywords["n_threads_batch"] = args.n_threads
    with SpeculativeLlama(str(path), n_ctx=1024, **keywords) as llm:
        found = measure(llm, args.widths, args.tokens)
    print(json.dumps([asdict(noise) for noise in found], indent=1) if args.json else report(found))
    return 0
