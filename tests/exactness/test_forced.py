"""Tokens that a grammar forces are drafted, and change nothing: every outcome enumerated, total variation below 1e-12.

The grammar here is a table: some texts leave one token, some forbid one, and what it says must come is sometimes only
one of the spellings that it allows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from loop import Setting, distance, fixed, reference, run, script
from support.enumeration import output_distribution, total_variation
from support.fakes import Script, random_table

from specgguf.decode.records import FORCED, Draft, VerifyResult
from specgguf.decode.sampling import Distribution, Rng, draw
from specgguf.decode.verifier import RULES, verify_token

EXACT, WRONG = 1e-12, 1e-3
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
lengths = pytest.mark.parametrize("k", [1, 2, 3])


class Spelled:
    """After 0 comes 1; after 1, anything but 1; and what it proposes after two tokens or a 0 is 1, then 2.

    Args:
        late: the mask is that of the position before.
        stuck: the state is not rolled back after a rejection: the longest text so far counts.
    """

    def __init__(self, *, late: bool = False, stuck: bool = False) -> None:
        self.late, self.stuck = late, stuck
        self.longest: list[int] = []

    def mask(self, generated: Sequence[int]) -> Any:
        if self.stuck:
            self.longest = max([self.longest, list(generated)], key=len)
            generated = self.longest[: len(generated)]
        last = generated[-1 - self.late] if len(generated) > self.late else -1
        allowed = {0: [1], 1: [0, 2]}.get(last, [0, 1, 2])
        return np.packbits([token in allowed for token in range(8)], bitorder="little")

    def forced(self, generated: Sequence[int]) -> Sequence[int]:
        return [1, 2] if list(generated[-1:]) == [0] or len(generated) == 2 else []


def setting(grammar: Any = Spelled, **keywords: Any) -> Setting:
    p = random_table(1, 3)
    return Setting(p, random_table(2, 3, of=p), grammar=grammar, **keywords)


@rules
@lengths
@pytest.mark.parametrize("masks_draft", [False, True])
def test_forced_tokens_before_a_models(rule: Any, k: int, masks_draft: bool) -> None:
    assert distance(setting(masks_draft=masks_draft), fixed(k), rule) < EXACT
    assert distance(setting(masks_draft=masks_draft), script(2, 0, 3), rule) < EXACT


class TakesCandidates(Script):
    """Takes every candidate, as many of its tokens as there is a place for."""

    def plan(self, n_draft_max: int, candidate: Any = None) -> Any:
        plan = super().plan(n_draft_max, candidate)
        return dataclasses.replace(plan, source="ngram" if candidate else "")


@rules
@lengths
def test_forced_tokens_as_candidates(rule: Any, k: int) -> None:
    assert distance(setting(), lambda _t, _d: (TakesCandidates([k]), None), rule, ngrams=True) < EXACT


def test_a_forced_candidate_is_told_from_an_n_gram() -> None:
    seen: list[int] = []

    class Notes(TakesCandidates):
        def plan(self, n_draft_max: int, candidate: Any = None) -> Any:
            seen.append(-1 if candidate is None else candidate.match)
            return super().plan(n_draft_max, candidate)

    for seed in range(10):
        run(setting(length=12), Rng(seed), lambda _t, _d: (Notes([2]), None), ngrams=True)
    assert {FORCED, -1} < set(seen), "and some n-grams"


def test_forced_and_drafted_tokens_share_a_block() -> None:
    """The first drafts nothing of a model's, the second goes on with it."""
    blocks: list[Draft] = []

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        blocks.append(draft)
        return verify_token(draft, rows, rng)

    for seed in range(20):
        run(setting(length=8), Rng(seed), fixed(3), rule)
    chained = [d for d in blocks if len(d) == 3 and d.probs[0] is None]
    assert chained
    assert all(d.tokens[:2] == (1, 2) and d.probs[2] is not None for d in chained)


# --- negative controls ----------------------------------------------------------------------------------------------


def test_a_mask_that_is_one_token_late_is_seen() -> None:
    wrong = setting(lambda: Spelled(late=True))
    assert _distance_to(wrong, setting()) > WRONG


def test_a_state_that_is_not_rolled_back_is_seen() -> None:
    wrong = setting(lambda: Spelled(stuck=True))
    assert _distance_to(wrong, setting()) > WRONG


def test_a_forced_token_accepted_without_its_coin_is_seen() -> None:
    def coinless(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        n = next((i for i, q in enumerate(draft.probs) if q is not None), len(draft))
        if n > 0 and all(rows[i].prob(draft.tokens[i]) > 0.0 for i in range(n)):
            return VerifyResult(n, draw(rows[n], rng))
        return verify_token(draft, rows, rng)

    assert distance(setting(), fixed(2), coinless) > WRONG


def _distance_to(wrong: Setting, right: Setting) -> float:
    """Between what the loop does in one setting and the target's distribution in another."""
    got = output_distribution(lambda rng: run(wrong, rng, fixed(2))[0])
    return total_variation(got, reference(right))
