"""The two verification rules by themselves: exact laws, exact acceptance, and block never below token."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.enumeration import expectation, output_distribution, total_variation, walk
from support.fakes import Table, random_table

from specgguf.decode.records import Draft, VerifyResult
from specgguf.decode.sampling import Distribution, Rng, draw, one_hot
from specgguf.decode.verifier import RULES, Rule

K_AND_V = [(1, 3), (2, 3), (3, 3), (2, 4), (3, 2)]


def distribution_of(logits: np.ndarray) -> Distribution:
    """softmax, without zeros."""
    probs = np.exp(logits.astype(np.float64))
    ids = np.flatnonzero(probs > 0.0)
    return Distribution(ids.astype(np.int32), probs[ids] / probs[ids].sum())


def one_block(rule: Rule, p: Table, q: Table | None, k: int, rng: Rng) -> tuple[list[int], VerifyResult]:
    """Draft k tokens by q (None: always the lowest id that p allows, one-hot), verify by p."""
    tokens: list[int] = []
    probs: list[Distribution | None] = []
    for _ in range(k):
        if q is None:
            tokens.append(int(distribution_of(p(tuple(tokens))).ids.min()))
            probs.append(None)
        else:
            distribution = distribution_of(q(tuple(tokens)))
            tokens.append(draw(distribution, rng))
            probs.append(distribution)
    rows = [distribution_of(p(tuple(tokens[:i]))) for i in range(k + 1)]
    return tokens, rule(Draft(tuple(tokens), tuple(probs), "test"), rows, rng)


def block_then_plain(rule: Rule, p: Table, q: Table | None, k: int, rng: Rng) -> tuple[int, ...]:
    """k + 1 tokens: what one block commits, completed by plain draws."""
    tokens, result = one_block(rule, p, q, k, rng)
    assert result.next_token is not None
    out = [*tokens[: result.n_accepted], result.next_token]
    while len(out) <= k:
        out.append(draw(distribution_of(p(tuple(out))), rng))
    return tuple(out)


def plain(p: Table, n: int, rng: Rng) -> tuple[int, ...]:
    out: list[int] = []
    while len(out) < n:
        out.append(draw(distribution_of(p(tuple(out))), rng))
    return tuple(out)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize(("k", "v"), K_AND_V)
def test_a_block_has_the_targets_distribution(name: str, zeros: float, k: int, v: int) -> None:
    p = random_table(1, v, zeros=zeros)
    for q in (random_table(2, v, zeros=zeros), random_table(3, v, of=p, mix=0.7), p, None):
        wanted = output_distribution(lambda rng: plain(p, k + 1, rng))
        got = output_distribution(lambda rng, q=q: block_then_plain(RULES[name], p, q, k, rng))  # type: ignore[misc]
        assert math.isclose(sum(got.values()), 1.0, abs_tol=1e-12)
        assert total_variation(got, wanted) < 1e-12


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("k", "v"), K_AND_V)
def test_survival_is_the_chance_of_acceptance(name: str, k: int, v: int) -> None:
    """Given the first i + 1 drafted tokens, more than i are accepted with probability survival[i].

    The block rule's coins see the later drafted tokens too: its chance is the mean over those.
    """
    p, q = random_table(1, v, zeros=0.3), random_table(2, v)
    drafted: dict[tuple[int, ...], float] = defaultdict(float)
    accepted: dict[tuple[int, ...], float] = defaultdict(float)
    survival: dict[tuple[int, ...], float] = {}
    for weight, (tokens, result) in walk(lambda rng: one_block(RULES[name], p, q, k, rng)):
        padded = [*result.survival, *[0.0] * (k - len(result.survival))]
        for i in range(k):
            prefix = tuple(tokens[: i + 1])
            assert survival.setdefault(prefix, padded[i]) == padded[i]
            drafted[prefix] += weight
            accepted[prefix] += weight * (result.n_accepted > i)
    for prefix, weight in drafted.items():
        assert accepted[prefix] / weight == pytest.approx(survival[prefix], abs=1e-12)


def fixed(p: Sequence[Fraction]) -> Table:
    """The same law in every context."""
    row = np.log(np.array([float(x) for x in p])).astype(np.float32)
    return lambda _context: row


@pytest.mark.parametrize(("name", "mean"), [("token", Fraction(10, 9)), ("block", Fraction(11, 9))])
def test_the_worked_example(name: str, mean: Fraction) -> None:
    """p = (1/3, 2/3), q = (2/3, 1/3), K = 2: 10/9 tokens are accepted by tokens, 11/9 by the block."""
    p = fixed([Fraction(1, 3), Fraction(2, 3)])
    q = fixed([Fraction(2, 3), Fraction(1, 3)])
    accepted = expectation(lambda rng: float(one_block(RULES[name], p, q, 2, rng)[1].n_accepted))
    assert accepted == pytest.approx(float(mean), abs=1e-6)  # the laws went through float32 logits


weights = st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4).filter(lambda w: sum(w) > 0.01)


@st.composite
def blocks(draw_: st.DrawFn) -> tuple[Draft, list[Distribution]]:
    """One to five drafted tokens and their laws, and the target's: with zeros, one-hots and agreement."""
    k = draw_(st.integers(1, 5))
    tokens, probs, rows = [], [], []
    for _ in range(k + 1):
        p, q = (np.array(draw_(weights)) for _ in range(2))
        if draw_(st.integers(0, 3)) == 0:
            q = p
        rows.append(distribution_of(np.log(np.maximum(p / p.sum(), 1e-300)).astype(np.float32)))
        distribution = distribution_of(np.log(np.maximum(q / q.sum(), 1e-300)).astype(np.float32))
        token = int(distribution.ids[draw_(st.integers(0, distribution.n - 1))])
        tokens.append(token)
        probs.append(None if draw_(st.integers(0, 5)) == 0 else distribution)
    return Draft(tuple(tokens[:k]), tuple(probs[:k]), "test"), rows


@given(blocks())
@settings(deadline=None, derandomize=True, max_examples=400)
def test_block_survival_is_never_below_token_survival(block: tuple[Draft, list[Distribution]]) -> None:
    draft, rows = block
    by_token, by_block = (RULES[name](draft, rows, Rng(0)).survival for name in ("token", "block"))
    assert len(by_token) == len(by_block)
    for i, (token, distribution) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        if i == len(by_token):
            break
        q = 1.0 if distribution is None else distribution.prob(token)
        product = (by_token[i - 1] if i else 1.0) * min(1.0, rows[i].prob(token) / q)
        assert by_token[i] == pytest.approx(product, abs=1e-12)
        assert by_block[i] >= by_token[i] - 1e-12
    if len(draft) == 1 or all(distribution is None for distribution in draft.probs):
        assert by_block == pytest.approx(by_token, abs=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_a_forbidden_token_is_never_accepted_and_nothing_after_it_is_looked_at(name: str) -> None:
    """p(x) = 0 rejects; rows past x may not even exist (a grammar would end the process there)."""

    class Rows(list[Distribution]):
        def __getitem__(self, i):  # type: ignore[no-untyped-def]
            assert i <= 1, "looked past a forbidden token"
            return super().__getitem__(i)

    third = Distribution(np.array([0, 1, 2], dtype=np.int32), np.full(3, 1 / 3))
    rows = Rows([one_hot(0), one_hot(2), third, third])
    draft = Draft((0, 1, 2), (third, third, third), "test")
    for _, result in walk(lambda rng: RULES[name](draft, rows, rng)):
        assert result.n_accepted <= 1
        assert result.next_token in (0, 2)


@pytest.mark.parametrize("name", RULES)
def test_a_draft_that_ends_the_text_has_no_bonus(name: str) -> None:
    """K rows for K tokens: when all are accepted there is nothing after them."""
    half = Distribution(np.array([0, 1], dtype=np.int32), np.full(2, 0.5))
    draft = Draft((0, 1), (half, half), "test")
    result = RULES[name](draft, [half, half], Rng(0))
    assert result == VerifyResult(2, None, (1.0, 1.0))


@pytest.mark.parametrize("name", RULES)
def test_equal_distributions_accept_everything(name: str) -> None:
    p = random_table(5, 4, zeros=0.3)
    for _, (tokens, result) in walk(lambda rng: one_block(RULES[name], p, p, 3, rng)):
        assert result.n_accepted == len(tokens)
