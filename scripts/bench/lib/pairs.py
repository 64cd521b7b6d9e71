"""The three pairs that stand for three kinds of hardware, made from the demo preset's own files.

`llama_model_quantize` turns the Q4_K_M files into F16, Q8_0 and Q4_0 copies in seconds; they are kept in the
user's cache. And the runners of a prompt that the scripts compare: our engine, and plain `llama_cpp.Llama`.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import fetch_models
from bench.lib.cells import Plan, Runner, cache_folder, say
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.bench import runs
from specgguf.bench.runs import Sample, Trial

FILE_TYPES = {"F16": 1, "Q8_0": 7, "Q4_0": 2}  # llama_ftype


@dataclass(frozen=True)
class Regime:
    """A pair of weight types, the most tokens auto may draft, and the fixed lengths that are measured beside it."""

    name: str
    target: str  # a key of FILE_TYPES, or "" for the file itself
    draft_max: int
    fixed: tuple[int, ...]
    about: str


REGIMES = (
    Regime("f16", "F16", 7, (3, 5, 7), "memory-bound: a pass over six tokens costs less than two of one"),
    Regime("q8", "Q8_0", 7, (3, 7), "in between: four tokens cost 2 to 4 of one, and a tile of eight not more"),
    Regime("q4", "", 15, (3,), "compute-bound: four tokens cost about 3 of one, but sixteen only 6"),
)


def files(args: Namespace, regime: Regime) -> dict[str, Path]:
    """The regime's pair; copies that are not there yet are made."""
    target, draft = args.target, args.draft
    if target is None or draft is None:
        demo = fetch_models.demo_pair()
        target, draft = target or demo[0], draft or demo[1]
    return {"model": copy(target, regime.target) if regime.target else target, "draft_model": copy(draft, "Q4_0")}


def copy(source: Path, file_type: str) -> Path:
    """`source` requantised, from the cache where it is there already."""
    import llama_cpp

    from specgguf.native import backend

    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{source.stem}-as-{file_type.lower()}.gguf"
    if path.exists():
        return path
    say(f"making {path.name} …")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[file_type]
    params.allow_requantize = True
    part = path.with_suffix(".part")
    backend.start()  # llama.cpp's log stays off the screen
    code = llama_cpp.llama_model_quantize(os.fsencode(source.resolve()), os.fsencode(part), ctypes.byref(params))
    if code:
        part.unlink(missing_ok=True)
        sys.exit(f"llama.cpp could not requantise {source} as {file_type} (code {code})")
    part.replace(path)
    return path


def our_runners(llm: SpeculativeLlama, fixed: tuple[int, ...]) -> dict[str, Runner]:
    """Our engine: plain, auto, fixed lengths; auto beside plain, since a machine's speed drifts within seconds."""

    def runner(draft: int | str) -> Runner:
        def run(trial: Trial, params: SamplingParams) -> Sample:
            return runs.measure(llm, replace(trial, draft=draft), params, draft_max=llm.draft_max)

        return run

    drafts: tuple[int | str, ...] = ("off", "auto", *reversed(fixed))
    return {f"specgguf {draft}": runner(draft) for draft in drafts}


class PlainLlama:
    """`llama_cpp.Llama` as its users have it, one token at a time, driven by its own token generator: less
    around each token than its completions have."""

    def __init__(self, path: Path, plan: Plan) -> None:
        import llama_cpp

        threads: dict[str, Any] = {"n_threads": plan.n_threads, "n_threads_batch": plan.n_threads}
        self.llama: Any = llama_cpp.Llama(str(path), n_ctx=plan.n_ctx, verbose=False, **threads)
        vocab = llama_cpp.llama_model_get_vocab(self.llama.model)
        self._is_end: Callable[[int], bool] = lambda token: llama_cpp.llama_vocab_is_eog(vocab, token)

    def runner(self, llm: SpeculativeLlama) -> Runner:
        """With the prompt's ids from `llm`: the same as everybody gets."""

        def run(trial: Trial, params: SamplingParams) -> Sample:
            tokens = runs.prompt_ids(llm, trial.prompt)
            self.llama.reset()
            self.llama.set_seed(trial.seed)
            started, first_s, n, reason = time.perf_counter(), 0.0, 0, "length"
            for token in self.llama.generate(
                tokens,
                temp=params.temperature,
                top_k=params.top_k,
                top_p=params.top_p,
                min_p=params.min_p,
                repeat_penalty=params.repeat_penalty,
            ):
                n += 1
                first_s = first_s or time.perf_counter() - started
                if self._is_end(token):
                    reason = "eos"
                    break
                if n == params.max_tokens:
                    break
            total_s = time.perf_counter() - started
            return Sample(
                engine="llama_cpp.Llama",
                kind=trial.kind,
                index=trial.index,
                repeat=trial.repeat,
                draft="off",
                temperature=params.temperature,
                seed=trial.seed,
                n_prompt=len(tokens),
                n_generated=n,
                n_timed=n - 1,
                first_s=first_s,
                total_s=total_s,
                prompt_s=first_s,
                finish_reason=reason,
            )

        return run

    def close(self) -> None:
        """Free it."""
        self.llama.close()
