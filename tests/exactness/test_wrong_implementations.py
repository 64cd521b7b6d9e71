"""What the exactness tests would catch: wrong implementations, each failing the same check by a clear margin.

Every one of them looks plausible, and most were found in published code. The same loop, the same fakes, the
same yardstick as in test_loop.py, where the right implementation stays below 1e-12.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from loop import PLAIN, Setting, distance, fixed, reference, run, script
from support.enumeration import output_distribution, total_variation
from support.fakes import FakeModel, random_table
from test_loop import EXACT, expected_accepted, first_round, off_text, pair

from specgguf.decode.drafters import ModelDrafter, Proposal
from specgguf.decode.records import Draft, VerifyResult
from specgguf.decode.sampling import Distribution, Logits, Rng, Transform, draw, one_hot, residual
from specgguf.decode.sequence import Forward
from specgguf.decode.verifier import RULES, verify_block, verify_token

WRONG = 1e-3  # the least distance of a wrong implementation: nine orders above the right one


def distribution_of(draft: Draft, i: int) -> Distribution:
    return draft.probs[i] or one_hot(draft.tokens[i])


def token_rule(
    *,
    chance: Callable[[float, float], float] = lambda p, q: min(1.0, p / q),
    rest: Callable[[Distribution, Distribution], Distribution] = lambda p, q: residual(p, q)[0],
    bonus: bool = True,
) -> Any:
    """Token verification with one part replaced."""

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        for i, token in enumerate(draft.tokens):
            p, q = rows[i], distribution_of(draft, i)
            if not rng.bernoulli(min(1.0, chance(p.prob(token), q.prob(token)))):
                return VerifyResult(i, draw(rest(p, q), rng))
        n = len(draft)
        return VerifyResult(n, draw(rows[n], rng) if (bonus or not n) and len(rows) > n else None)

    return rule


def by_index(p: Distribution, q: Distribution) -> Distribution:
    """The residual of two arrays that are sorted differently."""
    n = max(p.n, q.n)
    weights = np.maximum(0.0, np.pad(p.probs, (0, n - p.n)) - np.pad(q.probs, (0, n - q.n)))[: p.n]
    if weights.sum() <= 0.0:
        return p
    return Distribution(p.ids[weights > 0.0], weights[weights > 0.0] / weights.sum())


class RawLaw(Distribution):
    """A law that remembers the logits' own softmax."""

    __slots__ = ("raw",)


class RawTransform(Transform):
    """Keeps the untransformed law beside each law."""

    def distribution(self, logits: Logits, generated: Sequence[int]) -> Distribution:
        distribution = super().distribution(logits, generated)
        both = RawLaw(distribution.ids, distribution.probs)
        both.raw = Transform(PLAIN, n_vocab=self.n_vocab).distribution(logits, generated)  # type: ignore[attr-defined]
        return both


def of_raw(p: Distribution, q: Distribution) -> Distribution:
    """The residual of the untransformed p."""
    return residual(p.raw, q)[0]  # type: ignore[attr-defined]


def test_the_parts_that_are_not_replaced_are_right() -> None:
    """`token_rule` itself is exact: each control below differs from it in one thing."""
    assert distance(pair(), fixed(3), token_rule()) < EXACT


@pytest.mark.parametrize("k", [1, 2, 3])
def test_residual_drawn_from_p_itself(k: int) -> None:
    assert distance(pair(), fixed(k), token_rule(rest=lambda p, q: p)) > WRONG


@pytest.mark.parametrize("k", [1, 2, 3])
def test_acceptance_without_the_ratio(k: int) -> None:
    assert distance(pair(), fixed(k), token_rule(chance=lambda p, q: p)) > WRONG


@pytest.mark.parametrize("k", [1, 2, 3])
def test_acceptance_of_what_the_target_finds_likely(k: int) -> None:
    """A threshold on p, as typical acceptance has it."""
    assert distance(pair(), fixed(k), token_rule(chance=lambda p, q: float(p > 0.3))) > WRONG


def test_p_and_q_swapped() -> None:
    assert distance(pair(), fixed(2), token_rule(chance=lambda p, q: min(1.0, q / p))) > WRONG


def test_residual_from_untransformed_p() -> None:
    params = dataclasses.replace(PLAIN, temperature=0.6)
    setting = pair(params=params, transform=RawTransform)
    assert distance(setting, fixed(2), token_rule()) < EXACT
    assert distance(setting, fixed(2), token_rule(rest=of_raw)) > WRONG


def test_residual_by_array_index() -> None:
    assert distance(pair(), fixed(2), token_rule(rest=by_index)) > WRONG


def test_block_rule_with_the_token_residual() -> None:
    setting = pair(seed=5, mix=0.0)
    assert distance(setting, fixed(2), verify_block) < EXACT
    assert distance(setting, fixed(2), block_rule(scaled=False)) > WRONG


def block_rule(*, scaled: bool) -> Any:
    """Block verification written out (Sun et al., algorithm 2); its residual without P[τ] unless `scaled`."""

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        k, alive, chances = len(draft), [1.0], []
        for i, token in enumerate(draft.tokens):
            alive.append(min(1.0, alive[-1] * rows[i].prob(token) / distribution_of(draft, i).prob(token)))
        for i in range(1, k):
            mass = residual(rows[i], distribution_of(draft, i), alive[i])[1] if alive[i] else 0.0
            chances.append(mass / (mass + 1.0 - alive[i]) if mass or alive[i] < 1.0 else 1.0)
        chances.append(alive[k])
        kept = max([i + 1 for i, h in enumerate(chances) if rng.bernoulli(h)], default=0) if k else 0
        if kept == k:
            return VerifyResult(k, draw(rows[k], rng))
        distribution, _ = residual(rows[kept], distribution_of(draft, kept), alive[kept] if scaled else 1.0)
        return VerifyResult(kept, draw(distribution, rng))

    return rule


def test_the_block_rule_written_out_is_right() -> None:
    """Drawing all coins first, as the paper writes it, gives the same law as `verify_block`."""
    assert distance(pair(), fixed(3), block_rule(scaled=True)) < EXACT


class ArgmaxScoredWithQ(ModelDrafter):
    """Takes the likeliest token and reports the law that it was not drawn from."""

    def propose(self, committed: Any, n_max: int, distribution: Any, rng: Rng, keep_drafting: Any) -> Proposal:
        return super().propose(committed, n_max, distribution, _First(), keep_drafting)


class _First(Rng):
    def __init__(self) -> None:
        pass

    def categorical(self, probs: np.ndarray) -> int:
        return int(probs.argmax())


class DropsUnlikelyTokens(ModelDrafter):
    """Draws a token, finds it unlikely, and takes it back."""

    def propose(self, committed: Any, n_max: int, distribution: Any, rng: Rng, keep_drafting: Any) -> Proposal:
        draft = yield from super().propose(committed, n_max, distribution, rng, keep_drafting)
        n = 0
        while n < len(draft) and distribution_of(draft, n).prob(draft.tokens[n]) > 0.4:
            n += 1
        return Draft(draft.tokens[:n], draft.probs[:n], draft.source if n else "")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("drafter", [ArgmaxScoredWithQ, DropsUnlikelyTokens])
def test_drafters_whose_distribution_is_not_what_they_drew_from(rule: Any, drafter: Any) -> None:
    assert distance(pair(), fixed(2), rule, drafter=drafter) > WRONG


def test_penalties_that_do_not_see_the_drafted_prefix() -> None:
    class Forgetful(Transform):
        n_known = 0

        def distribution(self, logits: Logits, generated: Sequence[int]) -> Distribution:
            return super().distribution(logits, generated[: self.n_known])

    def committed(transform: Transform, out: Sequence[int]) -> None:
        transform.n_known = len(out)  # type: ignore[attr-defined]

    params = dataclasses.replace(PLAIN, repeat_penalty=1.5)
    wrong = dataclasses.replace(pair(params=params), transform=Forgetful)
    right = pair(params=params)
    got = distance_between(wrong, right, fixed(3), after=committed)
    assert got > WRONG


def distance_between(played: Setting, wanted: Setting, make: Any, **keywords: Any) -> float:
    return total_variation(output_distribution(lambda rng: run(played, rng, make, **keywords)[0]), reference(wanted))


class KeepsOneTooMany(FakeModel):
    """A target whose rewind leaves the first rejected token in the cache, and says otherwise."""

    def roll_back(self, n: int) -> int:
        super().roll_back(n + 1 if n > 1 else n)
        return n


def test_a_target_cache_with_a_rejected_token_in_it() -> None:
    """Invisible to the loop's own bookkeeping, visible in the law."""

    class Lying(KeepsOneTooMany):
        @property
        def tokens(self) -> Sequence[int]:
            return tuple(self.cells[: self.n_true])

        n_true = 0

        def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> np.ndarray:
            rows = super().extend(tokens, n_outputs, n_padding)
            self.n_true += len(tokens)
            return rows

        def roll_back(self, n: int) -> int:
            self.n_true = min(n, self.n_true)
            return super().roll_back(n)

    setting = pair()

    def play(rng: Rng) -> Any:
        return run(setting, rng, fixed(2), target=Lying(setting.p, 3), checked=False)[0]

    assert total_variation(output_distribution(play), reference(setting)) > WRONG


class NeverRewinds(ModelDrafter):
    """A draft cache that keeps rejected tokens: exact all the same, and useless."""

    def propose(self, committed: Any, n_max: int, distribution: Any, rng: Rng, keep_drafting: Any) -> Proposal:
        held = len(self.model.tokens)
        pending = list(committed[held:]) or [committed[-1]]
        tokens: list[int] = []
        probs: list[Distribution] = []
        logits = (yield Forward(self.model, pending, 1))[0]
        while len(tokens) < n_max:
            probs.append(distribution(logits, tokens))
            tokens.append(draw(probs[-1], rng))
            logits = (yield Forward(self.model, tokens[-1:], 1))[0]
        return Draft(tuple(tokens), tuple(probs), self.name)

    def synchronise(self, committed: Any) -> None:
        pass


class OneBehind(ModelDrafter):
    """A draft cache that lags by one token."""

    def propose(self, committed: Any, n_max: int, distribution: Any, rng: Rng, keep_drafting: Any) -> Proposal:
        return super().propose(committed[:-1], n_max, distribution, rng, keep_drafting)


@pytest.mark.parametrize("drafter", [NeverRewinds, OneBehind])
def test_a_stale_draft_cache_is_exact_but_not_what_the_text_says(drafter: Any) -> None:
    """The output's law cannot show it: `off_text` can, and a self-draft's acceptance."""
    setting = pair(length=3, n_ctx=200)
    assert distance(setting, script(2, 0), drafter=drafter, checked=False) < EXACT
    assert off_text(dataclasses.replace(setting, length=30), script(3, 0, 2), drafter=drafter) > WRONG


def test_a_self_draft_that_lags_is_rejected() -> None:
    p = random_table(7, 3)
    lagging = lambda draft: OneBehind(draft)  # noqa: E731
    _, rounds = run(Setting(p, p, length=30), Rng(1), script(3, 0), drafter=lagging, checked=False)
    assert sum(r.draft_n_accepted for r in rounds) < 0.9 * sum(r.draft_n for r in rounds)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_no_bonus_is_exact_but_too_short(k: int) -> None:
    setting = pair(length=k + 1)
    rule = token_rule(bonus=False)
    assert distance(setting, fixed(k), rule) < EXACT
    assert first_round(setting, k, rule) < 1.0 + expected_accepted(setting, k, verify_token) - 0.02
