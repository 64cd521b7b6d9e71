"""How many drafted tokens does each acceptance rule keep, on the same blocks?

A pair generates; for every block that it drafts, the expected accepted length of token verification (Leviathan et
al. 2023) and of block verification (Sun et al. 2025) is computed from the block's own distributions: Σ P[i], a closed
form, so that no luck of coins stands between the two. The text goes on with block verification, which is exact too.

  scripts/bench/run accepted-length                        the demo preset's pair; minutes on a CPU
  scripts/bench/run accepted-length -m T.gguf -d D.gguf    another pair
  scripts/bench/run accepted-length --table                only print what the saved result says
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from specgguf.cli.terminal.tables import lines
from support.alone import generate

import fetch_models
from bench.lib.cells import RESULTS, commit, say
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import results, runs
from specgguf.control.controller import Fixed
from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.records import Draft, VerifyResult
from specgguf.decode.sampling import Distribution, Rng, Transform
from specgguf.decode.verifier import RULES, verify_block
from specgguf.text.detokenize import Detokenizer

FILE = "accepted-length.json"


@dataclass(frozen=True)
class Block:
    """One drafted block: its prompt, and the expected accepted length under each rule."""

    kind: str
    prompt: int
    temperature: float
    k: int
    token: float
    block: float


def blocks(
    llm: SpeculativeLlama, prompt: runs.Prompt, index: int, params: SamplingParams, k: int, n_blocks: int
) -> list[Block]:
    """The first `n_blocks` full blocks of an answer."""
    target, draft = llm._engine.target, llm._engine.draft_model
    assert draft is not None
    found: list[Block] = []

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        if len(draft) == k:
            sums = {name: sum(RULES[name](draft, rows, Rng(0)).survival) for name in ("token", "block")}
            found.append(Block(prompt.kind, index, params.temperature, k, sums["token"], sums["block"]))
        return verify_block(draft, rows, rng)

    n_vocab = min(target.n_vocab, draft.n_vocab)
    max_tokens = (k + 1) * n_blocks
    rounds = generate(
        target,
        ModelDrafter(draft, eog=target.eog),
        runs.prompt_ids(llm, prompt.prompt),
        transform=Transform(params, n_vocab=target.n_vocab, eog=target.eog),
        draft_transform=Transform(params, n_vocab=n_vocab, eog=target.eog),
        rng=Rng(index),
        controller=Fixed(k),
        stop_check=Detokenizer(lambda token: b"", eog=target.eog, max_tokens=max_tokens),
        max_tokens=max_tokens,
        verify=rule,
    )
    for _ in rounds:
        if len(found) >= n_blocks:
            break
    rounds.close()  # type: ignore[attr-defined]
    return found


def mean_and_error(values: Iterable[float]) -> tuple[float, float]:
    """Mean and its standard error."""
    array = np.array(list(values))
    return float(array.mean()), float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.nan


def table(found: Sequence[Block]) -> list[str]:
    """A line per temperature and kind, and one per temperature for all. The error of the difference is taken over
    prompts as well, since blocks of one text are alike."""
    header = ["temperature", "text", "blocks", "token", "block", "difference", "± (blocks)", "± (prompts)", "more"]
    rows = []
    for temperature in sorted({b.temperature for b in found}):
        here = [b for b in found if b.temperature == temperature]
        kinds: dict[str, list[Block]] = {"all": here}
        for b in here:
            kinds.setdefault(b.kind, []).append(b)
        for kind, some in kinds.items():
            token, block = (mean_and_error(getattr(b, name) for b in some)[0] for name in ("token", "block"))
            difference, error = mean_and_error(b.block - b.token for b in some)
            by_prompt = [
                mean_and_error(b.block - b.token for b in some if b.prompt == prompt)[0]
                for prompt in sorted({b.prompt for b in some})
            ]
            over_prompts = mean_and_error(by_prompt)[1]
            cells = [f"{x:.3f}" for x in (token, block, difference)]
            errors = [f"{x:.3f}" if math.isfinite(x) else "" for x in (error, over_prompts)]
            share = f"{difference / token:+.1%}" if token else ""
            rows.append([f"{temperature:g}", kind, str(len(some)), *cells, *errors, share])
    return lines(rows, header, right=tuple(range(2, 9)))


def save(path: Path, head: Mapping[str, Any], found: Sequence[Block]) -> None:
    """One block a line, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ",\n".join(json.dumps(asdict(replace(b, token=round(b.token, 6), block=round(b.block, 6)))) for b in found)
    top = json.dumps(dict(head), ensure_ascii=False, indent=1).rstrip("}").rstrip()
    part = path.with_name(path.name + ".part")
    part.write_text(f'{top},\n "blocks": [\n{rows}\n]}}\n', encoding="utf-8")
    part.replace(path)


def load(path: Path) -> list[Block]:
    """The blocks of a saved result."""
    return [Block(**block) for block in json.loads(path.read_text(encoding="utf-8"))["blocks"]]


def measure(args: argparse.Namespace) -> list[Block]:
    """Every prompt at every temperature; saved at the end."""
    pair: list[Path] = [args.model, args.draft_model]
    if None in pair:
        demo = fetch_models.demo_pair()
        pair = [args.model or demo[0], args.draft_model or demo[1]]
    keywords = {} if args.n_threads is None else {"n_threads": args.n_threads, "n_threads_batch": args.n_threads}
    found: list[Block] = []
    with SpeculativeLlama(str(pair[0]), str(pair[1]), n_ctx=2048, draft=args.k, **keywords) as llm:
        for temperature in args.temperature:
            params = SamplingParams(temperature=temperature)
            for index, prompt in enumerate(runs.load_prompts(None)):
                found += blocks(llm, prompt, index, params, args.k, args.blocks)
                say(f"temperature {temperature:g}, {prompt.kind} {index}: {len(found)} blocks so far")
    settings = {
        "k": args.k,
        "blocks": args.blocks,
        "sampling": "top_k 40, top_p 0.95, min_p 0.05",
        "text": "block rule",
    }
    head = results.describe({"model": pair[0], "draft_model": pair[1]}, commit=commit(), settings=settings)
    save(args.out, head, found)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=Path, metavar="FILE", help="the target [the demo preset's]")
    parser.add_argument("-d", "--draft-model", type=Path, metavar="FILE", help="the draft [the demo preset's]")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.8, 1.0], metavar="T", help="[0.8 1]")
    parser.add_argument("-k", type=int, default=5, metavar="N", help="drafted tokens a block [%(default)s]")
    parser.add_argument("--blocks", type=int, default=15, metavar="N", help="blocks a prompt [%(default)s]")
    parser.add_argument("-t", "--n-threads", type=int, metavar="N")
    parser.add_argument("--out", type=Path, default=RESULTS / FILE, metavar="FILE", help=f"[docs/results/{FILE}]")
    parser.add_argument("--table", action="store_true", help="only print what the saved result says")
    args = parser.parse_args()
    for line in table(load(args.out) if args.table else measure(args)):
        say(line)
    return 0
