"""What a draft would do at every position of real answers, for the simulator in the tests.

  scripts/bench/run record-rounds [--out FILE]

The built-in prompts, the first of each kind, answered by the demo pair (target F16, draft Q4_0) without drafting,
greedily and at temperature 0.8; at each position the draft writes seven tokens, which the target checks. Kept are the
draft's confidences, the survival probabilities of the block rule, the overlap of the two distributions, and the
target's own confidence. The tests drive the controller through them: a controller that is right on paper can still be
wrong about real text.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.lib.cells import ROOT, say
from bench.lib.pairs import REGIMES, files
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench.runs import KINDS, load_prompts, prompt_ids
from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.records import always
from specgguf.decode.sampling import Distribution, Logits, Rng, Transform, draw
from specgguf.decode.sequence import run_alone
from specgguf.decode.verifier import verify_block
from specgguf.loading import physical_cores
from specgguf.native.sequence import Sequence as Cached

N_TOKENS, N_DRAFT, TEMPERATURES, SEED = 128, 7, (0.0, 0.8), 7


def main() -> int:
    """Record and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, metavar="FILE", help="a Q4_K_M target [the demo preset's]")
    parser.add_argument("--draft", type=Path, metavar="FILE", help="a draft of its vocabulary [the demo preset's]")
    parser.add_argument("--out", type=Path, default=ROOT / "tests" / "support" / "recorded.json", metavar="FILE")
    args = parser.parse_args()
    pair = files(args, next(r for r in REGIMES if r.name == "f16"))
    threads: dict[str, Any] = {"n_threads": physical_cores(), "n_threads_batch": physical_cores()}
    texts = []
    with SpeculativeLlama(
        str(pair["model"]), str(pair["draft_model"]), n_ctx=2048, draft="off", draft_max=N_DRAFT, **threads
    ) as llm:
        target, draft = llm._engine.target, llm._engine.draft_model
        assert draft is not None
        for temperature in TEMPERATURES:
            for kind in KINDS:
                prompt = prompt_ids(llm, next(p.prompt for p in load_prompts() if p.kind == kind))
                llm.reset()
                text, positions = record(target, draft, prompt, temperature)
                texts.append({"kind": kind, "temperature": temperature, "prompt": prompt, "text": text})
                texts[-1]["positions"] = positions
                say(f"{kind} at {temperature:g}: {len(text)} tokens")
    lines = ",\n".join(json.dumps(text, separators=(",", ":")) for text in texts)
    args.out.write_text(f"[\n{lines}\n]\n")
    return 0


def record(target: Cached, draft: Cached, prompt: list[int], temperature: float) -> tuple[list[int], list[Any]]:
    """The answer, and at each of its positions [confidences, survival, overlap of the first distributions, the target's
    confidence]."""
    params = SamplingParams(temperature=temperature, max_tokens=N_TOKENS)
    transform = Transform(params, n_vocab=min(target.n_vocab, draft.n_vocab), eog=target.eog)
    drafter, rng = ModelDrafter(draft, eog=target.eog), Rng(SEED)
    text, positions = list[int](), list[Any]()

    def distribution(logits: Logits, tail: Sequence[int]) -> Distribution:
        return transform.distribution(logits, [*text, *tail])

    while len(text) < N_TOKENS and (not text or text[-1] not in target.eog):
        committed = [*prompt, *text]
        block = run_alone(drafter.propose(committed, N_DRAFT, distribution, rng, always))
        target.extend(committed[target.reuse(committed[:-1]) : -1], 0)
        rows = target.extend([committed[-1], *block.tokens], len(block) + 1)
        wanted = [distribution(row, block.tokens[:i]) for i, row in enumerate(rows)]
        ended = block.tokens[-1] in target.eog
        survival = verify_block(block, wanted[: len(wanted) - ended], rng).survival
        confidences = [round(q.confidence, 3) for q in block.probs if q is not None]
        overlap = wanted[0].overlap(block.probs[0]) if block.probs[0] is not None else 0.0
        positions.append(
            [confidences, [round(p, 3) for p in survival], round(overlap, 3), round(wanted[0].confidence, 3)]
        )
        text.append(draw(wanted[0], rng))
    return text, positions
