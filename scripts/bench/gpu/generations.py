"""What `scripts/bench/run gpu` runs through the public face: generations on a random pair, and what each argument does.

Two models of random weights agree on nothing. With a large bias on a few ids and a high temperature they agree as
often as wanted, at their own speeds: so the controller's choices are seen on real costs. Gives back plain data.
"""

from __future__ import annotations

import collections
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bench.gpu.measures import DRAFT_MAX, Json, PairPlan, buffers, free_bytes, ids, telling
from specgguf import SamplingParams, SpeculativeLlama
from specgguf.models import hparams
from specgguf.native import backend

BIAS = 500.0
BIASED_IDS = range(200, 216)
LEVELS = {"agree often": 8.0, "agree nearly always": 30.0}  # temperatures


# --- generations --------------------------------------------------------------------------------------------


def generation(llm: SpeculativeLlama, params: SamplingParams, draft: int | str) -> Json:
    """One generation from empty caches; speed and Python's share are of what follows the first round."""
    llm.reset()
    tokens: list[int] = []
    first = native_first = started = time.perf_counter()
    n_first = 0
    for round in llm.generate(ids(64), params, draft=draft, draft_max=DRAFT_MAX).rounds():
        if not tokens:
            first, native_first, n_first = time.perf_counter(), llm.decode_s, len(round.tokens)
        tokens += round.tokens
    ended, native_ended, stats = time.perf_counter(), llm.decode_s, llm.last_stats
    seconds = max(ended - first, 1e-9)
    return {
        "draft": draft,
        "temperature": params.temperature,
        "seed": params.seed,
        "n_tokens": len(tokens),
        "first_s": first - started,
        "tokens_per_second": (len(tokens) - n_first) / seconds,
        "host_share": 1.0 - (native_ended - native_first) / seconds,
        "n_rounds": stats.n_rounds,
        "acceptance": stats.acceptance,
        "reached_by_position": stats.reached_by_position,
        "accepted_by_position": stats.accepted_by_position,
        "rounds_by_draft_n": dict(collections.Counter(stats.draft_lengths)),
        "off_reason": stats.off_reason,
        "seconds": {name: getattr(stats, name) for name in ("draft_s", "verify_s", "host_s")},
        "tokens": tokens,
    }


def pair_runs(plan: PairPlan, paths: Sequence[Path], repeats: int) -> Json:
    """Plain and forced drafting at default sampling and greedy; then plain, fixed and adaptive where the two agree."""
    drafts: list[int | str] = ["off", 2, 4, DRAFT_MAX, "auto"]
    found: Json = {"host": [], "levels": {}}
    started = time.perf_counter()
    with SpeculativeLlama(str(paths[0]), str(paths[1]), **plan.keywords) as llm:
        found |= {"load_s": time.perf_counter() - started, "warnings": llm.warnings, "rollback": llm.rollback}
        params = SamplingParams(max_tokens=plan.n_tokens, ignore_eos=True, seed=1)
        generation(llm, replace(params, max_tokens=16), 4)
        for temperature in (0.8, 0.0):
            for draft in ("off", 4, DRAFT_MAX, "auto"):
                found["host"].append(generation(llm, replace(params, temperature=temperature), draft))
        biased = replace(params, logit_bias=dict.fromkeys(BIASED_IDS, BIAS), top_p=1.0, min_p=0.0)
        for name, temperature in LEVELS.items():
            samples = found["levels"][name] = []
            generation(llm, replace(biased, temperature=temperature), "auto")  # learns
            for repeat in range(repeats):
                for draft in drafts if repeat % 2 == 0 else reversed(drafts):
                    seeded = replace(biased, temperature=temperature, seed=1 + repeat)
                    samples.append(generation(llm, seeded, draft))
    return found


def self_draft(plan: PairPlan, path: Path) -> Json:
    """The target as its own draft: acceptance at temperature 1, and greedy drafted text against plain."""
    keywords = {**plan.keywords, "draft_type_k": plan.type_kv, "draft_type_v": plan.type_kv}
    with SpeculativeLlama(str(path), str(path), **keywords) as llm:
        params = SamplingParams(temperature=1.0, max_tokens=plan.n_tokens, ignore_eos=True, seed=1)
        full = replace(params, top_k=0, top_p=1.0, min_p=0.0, max_tokens=max(plan.n_tokens // 2, 16))
        found: Json = {"temperature_1": generation(llm, params, 4), "whole_softmax": generation(llm, full, 4)}
        greedy = replace(params, temperature=0.0)
        plain, drafted = generation(llm, greedy, "off"), generation(llm, greedy, 4)
        found |= {"auto": generation(llm, params, "auto"), "plain_greedy": plain, "drafted_greedy": drafted}
        found["first_difference"] = first_difference(llm, plain["tokens"], drafted["tokens"])
    return found


def first_difference(llm: SpeculativeLlama, plain: Sequence[int], drafted: Sequence[int]) -> Json | None:
    """Where two greedy texts part, and how near a tie it was by the plain pass there; None where they agree."""
    at = next((i for i, (a, b) in enumerate(zip(plain, drafted, strict=False)) if a != b), None)
    if at is None:
        return None
    params = SamplingParams(temperature=0.0, max_tokens=at + 1, ignore_eos=True, logprobs=20)
    said = [entry for round in llm.generate(ids(64), params, draft="off").rounds() for entry in round.logprobs]
    top = dict(said[at].top)
    gap = said[at].logprob - top[drafted[at]] if drafted[at] in top else None
    return {"position": at, "plain": plain[at], "drafted": drafted[at], "again": said[at].token, "gap": gap}


# --- arguments ----------------------------------------------------------------------------------------------

# name: (keywords, what llama.cpp's log must say, "" where a refusal is wanted)
CASES: dict[str, tuple[Json, str]] = {
    "nothing asked for": ({}, r"offloaded {all}/{all} layers"),
    "n_gpu_layers=0": ({"n_gpu_layers": 0, "draft_n_gpu_layers": 0}, r"offloaded 0/{all} layers"),
    "n_gpu_layers=half": ({"n_gpu_layers": "half"}, r"offloaded {half}/{all} layers"),
    "draft_n_gpu_layers=0": ({"draft_n_gpu_layers": 0}, r"offloaded {all}/{all}(?s:.*)offloaded 0/{all}"),
    "flash_attn=True": ({"flash_attn": True}, r"flash_attn\s*= enabled"),
    "flash_attn=False": ({"flash_attn": False}, r"flash_attn\s*= disabled(?s:.*)flash_attn\s*= disabled"),
    "type_k=type_v=q8_0": ({"flash_attn": True, "type_k": "q8_0", "type_v": "q8_0"}, r"K \(q8_0\).*V \(q8_0\)"),
    "draft_type_k=q8_0": ({"draft_flash_attn": True, "draft_type_k": "q8_0", "draft_type_v": "q8_0"}, r"V \(q8_0\)"),
    "type_v=q8_0, flash_attn=False": ({"flash_attn": False, "type_v": "q8_0"}, ""),
    "main_gpu=0, split_mode none": ({"main_gpu": 0, "split_mode": 0}, r"offloaded {all}/{all}"),
    "tensor_split=[1]": ({"tensor_split": [1.0]}, r"offloaded {all}/{all}"),
    "n_ubatch=128": ({"n_ubatch": 128, "n_batch": 128}, r"n_ubatch\s*= 128"),
    "offload_kqv=False": ({"offload_kqv": False}, r"CPU KV buffer"),
}


def arguments(path: Path, n_ctx: int, tell: Callable[[str], None]) -> Json:
    """Load a small model as target and as draft with each set of arguments: log, memory, speed, and the answer."""
    shape, offloads = hparams.of_file(path), backend.supports_gpu_offload()
    places = {"all": str(shape.n_layer + 1), "half": str(shape.n_layer // 2)}
    found: Json = {}
    for name, (keywords, wanted) in CASES.items():
        keywords = {k: shape.n_layer // 2 if v == "half" else v for k, v in keywords.items()}
        for place, number in places.items():
            wanted = wanted.replace("{" + place + "}", number)
        result, said = _one_case(path, {"n_ctx": n_ctx, **keywords})
        refused = "error" in result
        found[name] = result = {"keywords": keywords, "wanted": wanted, **result}
        result["ok"] = refused if not wanted else not refused and bool(re.search(wanted, said))
        if "offloaded" in wanted and not offloads and not refused:
            result["ok"] = None  # a build for the CPU has nothing to say
        shown = {True: "ok", False: "NOT AS WANTED", None: "no GPU to ask"}[result["ok"]]
        tell(f"  {name}: {shown} {result.get('error', '')}")
    return found


def _one_case(path: Path, keywords: Json) -> tuple[Json, str]:
    """What came of it, and the whole log."""
    before = free_bytes()
    result: Json = {}
    with backend.captured_log() as lines:
        try:
            with SpeculativeLlama(str(path), str(path), draft=4, **keywords) as llm:
                result["taken_bytes"] = before - free_bytes()
                result["warnings"] = llm.warnings
                params = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
                generation(llm, params, 4)
                result["run"] = generation(llm, params, 4)
        except Exception as error:
            result["error"] = f"{type(error).__name__}: {error}"
    return {**result, "log": telling(lines), "logged": buffers(lines)}, "".join(lines)
