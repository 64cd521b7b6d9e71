"""Acceptance estimates: unbiased under both rules, optimistic before they know, forgetful at the right pace."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import random_table

from specgguf.config import SamplingParams
from specgguf.control.acceptance import EDGES, GAMMA, MATCH_PRIORS, PRIOR_MEAN, Acceptance, Count
from specgguf.decode.records import Draft
from specgguf.decode.sampling import Distribution, Rng, Transform, draw
from specgguf.decode.verifier import RULES

PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def test_a_count_is_a_discounted_mean() -> None:
    count = Count(prior=0.5, weight=2.0)
    assert count.mean == 0.5
    count.add(1.0, 0.0)
    assert count.mean == pytest.approx((GAMMA + 1.0) / (GAMMA * 2.0 + 1.0))
    for _ in range(300):
        count.add(0.3, 0.2)  # half an observation each: reached with probability one half
    assert count.mean == pytest.approx(0.6, abs=1e-3)
    assert count.weight == pytest.approx(0.5 / ((1.0 - GAMMA) * 0.5), rel=0.05)
    count.soften(1.0)
    assert count.mean == 0.5
    assert Count(weight=0.0).mean == 0.0


def test_what_is_not_reached_is_not_forgotten() -> None:
    """A position whose predecessor was rejected says nothing about itself."""
    count = Count()
    for _ in range(100):
        count.add(0.2, 0.0)
    before = count.mean, count.weight
    for _ in range(1000):
        count.add(0.0, 0.0)
    assert (count.mean, count.weight) == before


def test_it_begins_with_optimism() -> None:
    fresh = Acceptance(5)
    assert [fresh.at(j) for j in range(5)] == pytest.approx([PRIOR_MEAN] * 5)
    given_ = [fresh.given(c) for c in (0.1, 0.4, 0.6, 0.8, 0.9, 0.96, 1.0)]
    assert given_ == sorted(given_)
    assert given_[0] > 0.3
    assert given_[-1] > 0.9


def test_a_few_rounds_outweigh_the_prior() -> None:
    """A draft that is never right is found out within ten tokens; one that always is, too."""
    bad, good = Acceptance(3), Acceptance(3)
    for _ in range(10):
        bad.observe((0.0,), (0.9, 0.9, 0.9), False)
        good.observe((1.0, 1.0, 1.0), (0.9, 0.9, 0.9), False)
    assert bad.at(0) < 0.2
    assert good.at(0) > 0.95
    assert good.at(2) > 0.95


def sampled(rule: str, n_rounds: int, observe: Callable[[Draft, tuple[float, ...]], None]) -> None:
    """Draft three tokens of four ids again and again, in fresh contexts, and verify them."""
    p, q = random_table(1, 4), random_table(2, 4, of=random_table(1, 4), mix=0.6)
    transform, rng = Transform(PLAIN, n_vocab=4), Rng(5)
    for n in range(n_rounds):
        context = [n % 7, n % 11, n]
        tokens: list[int] = []
        probs: list[Distribution | None] = []
        for _ in range(3):
            distribution = transform.distribution(q((*context, *tokens)), ())
            tokens.append(draw(distribution, rng))
            probs.append(distribution)
        rows = [transform.distribution(p((*context, *tokens[:i])), ()) for i in range(4)]
        draft = Draft(tuple(tokens), tuple(probs), "test")
        observe(draft, RULES[rule](draft, rows, rng).survival)


@pytest.mark.parametrize("rule", RULES)
def test_the_estimates_are_the_verifiers_own(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without discounting, a_j = E P[j] / E P[j-1]: what the rule really accepts where it gets that far."""
    monkeypatch.setattr("specgguf.control.acceptance.GAMMA", 1.0)
    estimates, survivals = Acceptance(3), []

    def observe(draft: Draft, survival: tuple[float, ...]) -> None:
        estimates.observe(survival, [0.6] * 3, False)
        survivals.append([*survival, *[0.0] * (3 - len(survival))])

    sampled(rule, 1500, observe)
    mean = np.array([1.0, *np.mean(survivals, axis=0)])
    for j in range(3):
        assert estimates.at(j) == pytest.approx(mean[j + 1] / mean[j], abs=0.01)
    assert estimates.at(0) < 0.95


@given(st.lists(st.floats(0.0, 1.0), max_size=5), st.floats(0.0, 1.0))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_anything_observed_leaves_chances(chances: list[float], confidence: float) -> None:
    estimates = Acceptance(5)
    survival = tuple(np.cumprod(chances)) if chances else ()
    estimates.observe(survival, [confidence] * len(chances), False)
    estimates.observe(survival[:1], [confidence] * len(chances), bool(chances))
    estimates.observe_overlaps([(confidence, 1.0 + 1e-9), (confidence, -1e-9)])
    for j in range(5):
        assert 0.0 <= estimates.at(j) <= 1.0
    for edge in (0.0, *EDGES, 1.0):
        assert 0.0 <= estimates.given(edge) <= 1.0


def test_stopping_does_not_flatter_a_position() -> None:
    """Only sure tokens are drawn at position 1. Counting those alone would make it look like them."""
    estimates = Acceptance(2)
    source = np.random.default_rng(3)
    for _ in range(400):
        sure = bool(source.random() < 0.5)
        confidence = 0.99 if sure else 0.2
        survival = (0.9, 0.9 * 0.95) if sure else (0.9,)
        estimates.observe(survival, [0.6, confidence], stopped=not sure)
    unsure = estimates.given(0.2)
    assert estimates.at(1) == pytest.approx((0.95 + unsure) / 2, abs=0.12)
    assert estimates.at(1) < 0.8


def test_confidence_tells_tokens_apart() -> None:
    estimates = Acceptance(2)
    for _ in range(100):
        estimates.observe((0.95, 0.2), (0.995, 0.35), False)
    assert estimates.given(0.999) > 0.9
    assert estimates.given(0.35) < 0.35
    assert estimates.at(0) > 0.8 > estimates.at(1)


def test_scored_plain_text_counts_like_a_first_token() -> None:
    estimates = Acceptance(2)
    for _ in range(100):
        estimates.observe_overlaps([(0.6, 0.25)])
    assert estimates.at(0) == pytest.approx(0.25, abs=0.03)
    assert estimates.given(0.6) == pytest.approx(0.25, abs=0.03)


def test_an_offer_that_was_not_taken_teaches_as_much() -> None:
    """Up to the first token that came otherwise; what would have followed that is unknown."""
    estimates = Acceptance(3)
    for _ in range(30):
        estimates.observe_candidate(4, (7, 8, 9), (7, 8, 1, 9))
        estimates.observe_candidate(2, (7, 8), (1, 8))
    assert estimates.by_match[4].mean == pytest.approx(2 / 3, abs=0.03)
    assert estimates.by_match[2].mean < 0.1
    assert estimates.by_match[3].mean == pytest.approx(MATCH_PRIORS[3])
    estimates.observe_candidate(3, (7, 8), (7,))
    assert estimates.by_match[3].mean > MATCH_PRIORS[3]


def test_lookups_are_judged_by_the_length_of_their_match() -> None:
    estimates = Acceptance(4)
    assert {size: count.mean for size, count in estimates.by_match.items()} == pytest.approx(MATCH_PRIORS)
    for _ in range(60):
        estimates.observe_match(4, (1.0, 0.9, 0.81), 3)
        estimates.observe_match(2, (0.0,), 3)
    assert estimates.by_match[4].mean > 0.9
    assert estimates.by_match[2].mean < 0.05
    assert estimates.by_match[3].mean == pytest.approx(MATCH_PRIORS[3])
    assert estimates.at(0) == pytest.approx(PRIOR_MEAN), "a lookup says nothing about the draft model"


def test_a_new_turn_half_forgets() -> None:
    estimates = Acceptance(2)
    for _ in range(50):
        estimates.observe((0.0,), (0.6,), False)
    before = estimates.at(0), estimates.given(0.6)
    estimates.soften()
    assert before[0] < estimates.at(0) < PRIOR_MEAN
    assert before[1] < estimates.given(0.6)


def test_the_bound_closes_in_on_the_estimate() -> None:
    estimates = Acceptance(2)
    gaps = []
    for n in range(60):
        if n % 20 == 0:
            gaps.append(estimates.bound(0) - estimates.at(0))
        estimates.observe((0.5,), (0.6,), stopped=False)
    assert gaps[0] > gaps[1] > gaps[2] > 0.0
    assert estimates.bound(0) <= 1.0


def test_a_probe_lets_older_evidence_count_less() -> None:
    """A rest may last long: what was seen before it must not outvote what is seen now."""
    estimates = Acceptance(1)
    for _ in range(200):
        estimates.observe((0.1,), (0.6,), stopped=False)
    for _ in range(3):
        estimates.observe_overlaps(((0.9, 0.9),) * 16)
    assert estimates.at(0) > 0.7
