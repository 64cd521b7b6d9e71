"""Acceptance estimates: unbiased under both rules, optimistic before they know, forgetful at the right speed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fakes import random_table

from specgguf.config import SamplingParams
from specgguf.control.acceptance import Acceptance, Count
from specgguf.control.constants import CONFIDENCES, DECAY, MATCHES, PRIOR, PRIOR_WEIGHT
from specgguf.decode.records import Draft
from specgguf.decode.sampling import Distribution, Rng, Transform, draw
from specgguf.decode.verifier import RULES

PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def test_a_count_is_a_discounted_mean() -> None:
    count = Count(0.5)
    assert count.mean == 0.5
    count.add(1.0, 0.0)
    assert count.mean == pytest.approx((DECAY * PRIOR_WEIGHT / 2 + 1.0) / (DECAY * PRIOR_WEIGHT + 1.0))
    for _ in range(600):
        count.add(0.3, 0.2)  # half an observation each: reached with probability one half
    assert count.mean == pytest.approx(0.6, abs=1e-3)
    assert count.weight == pytest.approx(1.0 / (1.0 - DECAY), rel=0.05)


def test_what_is_not_reached_is_not_forgotten() -> None:
    """A position whose predecessor was rejected says nothing about itself."""
    count = Count(PRIOR)
    for _ in range(100):
        count.add(0.2, 0.0)
    before = count.mean, count.weight
    for _ in range(1000):
        count.add(0.0, 0.0)
    assert (count.mean, count.weight) == before


def test_it_begins_with_optimism() -> None:
    fresh = Acceptance()
    assert fresh.survival(5) == pytest.approx([PRIOR**k for k in range(1, 6)])
    given_ = [fresh.given(c) for c in (0.1, 0.4, 0.6, 0.8, 0.9, 0.96, 1.0)]
    assert given_ == sorted(given_)
    assert given_[0] > 0.3
    assert given_[-1] > 0.9


def test_a_few_rounds_outweigh_the_prior() -> None:
    """A draft that is never right is found out within ten tokens; one that always is, too."""
    bad, good = Acceptance(), Acceptance()
    for _ in range(10):
        bad.observe((0.0,), (0.9, 0.9, 0.9), False)
        good.observe((1.0, 1.0, 1.0), (0.9, 0.9, 0.9), False)
    assert bad.rate.mean < 0.25
    assert good.rate.mean > 0.95
    assert (bad.n_seen, good.n_seen) == (30, 30)


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
    """Without discounting, Σ P[j] / Σ P[j-1]: what the rule really accepts of the tokens that it reaches."""
    monkeypatch.setattr("specgguf.control.acceptance.DECAY", 1.0)
    estimates, survivals = Acceptance(), []

    def observe(draft: Draft, survival: tuple[float, ...]) -> None:
        estimates.observe(survival, [0.6] * 3, False)
        survivals.append([*survival, *[0.0] * (3 - len(survival))])

    sampled(rule, 1500, observe)
    mean = np.array([1.0, *np.mean(survivals, axis=0)])
    assert estimates.rate.mean == pytest.approx(mean[1:].sum() / mean[:3].sum(), abs=0.01)
    assert estimates.rate.mean < 0.95


@given(st.lists(st.floats(0.0, 1.0), max_size=5), st.floats(0.0, 1.0))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_anything_observed_leaves_chances(chances: list[float], confidence: float) -> None:
    estimates = Acceptance()
    survival = tuple(np.cumprod(chances)) if chances else ()
    estimates.observe(survival, [confidence] * len(chances), False)
    estimates.observe(survival[:1], [confidence] * len(chances), bool(chances))
    estimates.observe_probe([(confidence, 1.0 + 1e-9), (confidence, -1e-9)])
    assert all(0.0 <= chance <= 1.0 for chance in estimates.survival(5))
    for edge in (*CONFIDENCES, 1.0):
        assert 0.0 <= estimates.given(edge) <= 1.0


def test_stopping_does_not_flatter_the_rate() -> None:
    """Only sure tokens are drawn. Counting those alone would make every token look like them."""
    estimates = Acceptance()
    source = np.random.default_rng(3)
    for _ in range(400):
        sure = bool(source.random() < 0.5)
        estimates.observe((0.95,) if sure else (), [0.99 if sure else 0.2], stopped=not sure)
    assert estimates.rate.mean == pytest.approx((0.95 + estimates.given(0.2)) / 2, abs=0.12)
    assert estimates.rate.mean < 0.8


def test_confidence_tells_tokens_apart() -> None:
    estimates = Acceptance()
    for _ in range(100):
        estimates.observe((0.95, 0.2), (0.995, 0.35), False)
    assert estimates.given(0.999) > 0.9
    assert estimates.given(0.35) < 0.35
    assert estimates.rate.mean == pytest.approx((0.95 + 0.2) / 1.95, abs=0.05), "of those that were reached"


def test_scored_plain_text_counts_like_a_first_token() -> None:
    estimates = Acceptance()
    for _ in range(100):
        estimates.observe_probe([(0.6, 0.25)])
    assert estimates.survival(2) == pytest.approx([0.25, 0.0625], abs=0.03)
    assert estimates.n_seen == 100
    assert estimates.given(0.6) == pytest.approx(0.25, abs=0.03)


def test_a_candidate_that_was_not_taken_teaches_as_much() -> None:
    """Up to the first token that came otherwise; what would have followed that is unknown."""
    estimates = Acceptance()
    for _ in range(30):
        estimates.observe_candidate(4, (7, 8, 9), (7, 8, 1, 9))
        estimates.observe_candidate(2, (7, 8), (1, 8))
    assert estimates.by_match[4].mean == pytest.approx(2 / 3, abs=0.03)
    assert estimates.by_match[2].mean < 0.1
    assert estimates.by_match[3].mean == pytest.approx(MATCHES[3])
    estimates.observe_candidate(3, (7, 8), (7,))
    assert estimates.by_match[3].mean > MATCHES[3]


def test_ngrams_are_judged_by_the_length_of_their_match() -> None:
    estimates = Acceptance()
    assert {size: count.mean for size, count in estimates.by_match.items()} == pytest.approx(MATCHES)
    for _ in range(60):
        estimates.observe_match(4, (1.0, 0.9, 0.81), 3)
        estimates.observe_match(2, (0.0,), 3)
    assert estimates.by_match[4].mean > 0.9
    assert estimates.by_match[2].mean < 0.05
    assert estimates.by_match[3].mean == pytest.approx(MATCHES[3])
    assert estimates.ngram_survival(3, 2) == pytest.approx([MATCHES[3], MATCHES[3] ** 2])
    assert estimates.rate.mean == pytest.approx(PRIOR), "an n-gram says nothing about the draft model"
