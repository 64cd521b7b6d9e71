"""Laws and the random source by themselves. That a law is llama.cpp's is shown in exactness/test_llama_chain.py."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgguf.config import SamplingParams
from specgguf.decode.sampling import FOLDS, Distribution, Rng, Transform, draw, largest, logprob, one_hot, residual
from specgguf.errors import BackendError, ConfigError

RAW = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def row(n: int, seed: int = 0, scale: float = 2.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(n) * scale).astype(np.float32)


def distribution(logits: np.ndarray, generated: Sequence[int] = (), **params: Any) -> Distribution:
    return Transform(dataclasses.replace(RAW, **params), n_vocab=len(logits)).distribution(logits, generated)


def dense(distribution: Distribution, n: int) -> np.ndarray:
    probs = np.zeros(n)
    probs[distribution.ids] = distribution.probs
    return probs


def sparse(probs: np.ndarray) -> Distribution:
    """In descending order, as laws are, so that equal ids stand at different places in two laws."""
    order = np.argsort(-probs, kind="stable")
    ids = order[probs[order] > 0.0].astype(np.int32)
    return Distribution(ids, probs[ids])


# --- laws -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [3, 40, 600])
def test_a_distribution_is_read_by_id(n: int) -> None:
    """Small and wide supports are searched differently."""
    p, q = (np.where(np.random.default_rng(s).random(n) < 0.6, np.exp(row(n, s)), 0.0) for s in (1, 2))
    p, q = p / p.sum(), q / q.sum()
    a, b = sparse(p), sparse(q)
    assert [a.prob(i) for i in range(n)] == p.tolist()
    assert a.prob(n + 5) == 0.0
    assert b.on(a.ids) == pytest.approx(q[a.ids], abs=0)
    assert a.overlap(b) == pytest.approx(np.minimum(p, q).sum(), abs=1e-12)


@given(st.integers(0, 2**32), st.integers(2, 50), st.floats(0.1, 1.0))
@settings(deadline=None, derandomize=True, max_examples=100)
def test_the_residual_is_what_p_has_and_q_lacks(seed: int, n: int, scale: float) -> None:
    p, q = (np.random.default_rng([seed, i]).dirichlet(np.full(n, 0.3)) for i in range(2))
    rest, mass = residual(sparse(p), sparse(q), scale)
    wanted = np.maximum(0.0, scale * p - q)
    assert mass == pytest.approx(wanted.sum(), abs=1e-12)
    if mass > 1e-9:
        assert dense(rest, n) == pytest.approx(wanted / wanted.sum(), abs=1e-9)
        assert (rest.probs > 0.0).all()


def test_a_residual_of_nothing_is_p() -> None:
    """p = q up to rounding: the coin may still say no, and then a token must come from somewhere."""
    p = sparse(np.array([0.5, 0.3, 0.2]))
    assert residual(p, p) == (p, 0.0)
    assert residual(one_hot(4), one_hot(4))[0].ids.tolist() == [4]


# --- the random source ------------------------------------------------------------------------------------


class Told:
    """A generator that returns what it is told."""

    def __init__(self, u: float) -> None:
        self.u = u

    def random(self) -> float:
        return self.u


def told(u: float) -> Rng:
    rng = Rng(0)
    rng._generator = Told(u)  # type: ignore[assignment]
    return rng


def test_categorical_has_the_distribution_that_it_is_given() -> None:
    """A fine grid instead of a random sample: the share of each index, to one step of the grid."""
    probs = np.array([0.05, 0.5, 0.15, 0.3])
    n = 2000
    counts = np.bincount([told((i + 0.5) / n).categorical(probs) for i in range(n)], minlength=4)
    assert counts / n == pytest.approx(probs, abs=1.0 / n)


@pytest.mark.parametrize("short", [0.0, 1e-7, -1e-7])
def test_a_distribution_that_does_not_quite_sum_to_one_still_draws(short: float) -> None:
    probs = np.array([0.25, 0.5, 0.25 - short])
    assert told(math.nextafter(1.0, 0.0)).categorical(probs) == 2
    assert told(0.0).categorical(probs) == 0
    assert told(0.5).categorical(np.array([1.0])) == 0


def test_no_and_yes_are_certain() -> None:
    """u < p, strictly: probability 0 rejects and probability 1 accepts whatever is drawn."""
    for u in (0.0, 0.3, math.nextafter(1.0, 0.0)):
        assert not told(u).bernoulli(0.0)
        assert told(u).bernoulli(1.0)
    assert told(0.3).bernoulli(0.300001)
    assert not told(0.3).bernoulli(0.3)


def test_seeds() -> None:
    """Every seed repeats and differs from the others, 0 and -1 too; without one runs differ."""
    probs = np.full(1000, 1e-3)

    def drawn(seed: int | None) -> tuple[int, ...]:
        rng = Rng(seed)
        return tuple(rng.categorical(probs) for _ in range(8))

    seeds = [0, 1, 2, -1, 2**64 + 3, None, None]
    assert len({drawn(seed) for seed in seeds}) == len(seeds)
    assert all(drawn(seed) == drawn(seed) for seed in seeds[:5])


def test_draw_gives_ids() -> None:
    assert draw(Distribution(np.array([7, 3], dtype=np.int32), np.array([0.6, 0.4])), told(0.7)) == 3


# --- transforms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 1e-6, 0.01, 0.8, 2.0, 100.0, -1.0])
@pytest.mark.parametrize("scale", [0.0, 3.0, 60.0])
def test_any_temperature_gives_a_distribution(temperature: float, scale: float) -> None:
    got = distribution(row(500, scale=scale), temperature=temperature)
    assert np.isfinite(got.probs).all()
    assert (got.probs > 0.0).all()
    assert abs(got.probs.sum() - 1.0) < 1e-9
    assert (np.diff(got.probs) <= 0.0).all()
    assert len(set(got.ids.tolist())) == got.n


def test_no_cliff_between_temperatures() -> None:
    """A thousandth more of temperature moves the law by a thousandth of the logits' range, about."""
    logits = row(200)
    for temperature in (0.01, 0.05, 0.3, 1.0, 2.0):
        a, b = (distribution(logits, temperature=t) for t in (temperature, temperature * 1.001))
        assert 1.0 - a.overlap(b) < 2e-3
    assert distribution(logits, temperature=1e-6).prob(int(logits.argmax())) == 1.0


def test_a_row_is_left_as_it_was() -> None:
    """The same row is read again for log-probabilities; and a native row may be wider than the vocabulary."""
    logits = row(50)
    before = logits.copy()
    transform = Transform(
        SamplingParams(repeat_penalty=1.5, logit_bias={3: 2.0, 4: -math.inf}, min_tokens=9),
        n_vocab=40,
        eog=frozenset({1, 45}),
    )
    transform.distribution(logits, [3, 3, 47])
    assert (logits == before).all()
    assert transform.distribution(logits, [3, 3, 47]).ids.max() < 40


def test_the_end_waits_for_min_tokens() -> None:
    logits = row(10)
    logits[[2, 5]] = 9.0
    transform = Transform(dataclasses.replace(RAW, min_tokens=3), n_vocab=10, eog=frozenset({2, 5}))
    for n in range(6):
        assert ({2, 5} & set(transform.distribution(logits, [0] * n).ids.tolist()) == set()) == (n < 3)
    never = Transform(dataclasses.replace(RAW, ignore_eos=True), n_vocab=10, eog=frozenset({2, 5}))
    assert not {2, 5} & set(never.distribution(logits, [0] * 100).ids.tolist())


def test_what_forbids_everything_is_refused() -> None:
    logits = row(4)
    everything = dict.fromkeys(range(4), -math.inf)
    for temperature in (0.0, 1.0, -1.0):
        for top_k in (0, 2):
            with pytest.raises(ConfigError, match="forbids every token"):
                distribution(logits, temperature=temperature, top_k=top_k, logit_bias=everything)
    three = dict.fromkeys(range(3), -math.inf)
    assert distribution(logits, logit_bias=three).ids.tolist() == [3]


@pytest.mark.parametrize("bias", [{-1: 0.0}, {10: 1.0}])
def test_a_bias_of_an_id_that_is_not_there_is_refused(bias: dict[int, float]) -> None:
    with pytest.raises(ConfigError, match="0 to 9"):
        Transform(dataclasses.replace(RAW, logit_bias=bias), n_vocab=10)


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("n_beyond", [1, 17, FOLDS - 1])
def test_the_largest_may_be_beyond_the_last_whole_block(k: int, n_beyond: int) -> None:
    """Block maxima go over whole blocks of ids; those left over at the end count as well."""
    n = FOLDS * 8 * k + n_beyond
    logits = row(n)
    logits[n - n_beyond :] += 100.0
    wanted = np.argsort(-logits, kind="stable")[:k].tolist()
    assert wanted[0] >= n - n_beyond
    assert largest(logits, k).tolist() == wanted


@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"temperature": -1.0}, {"top_k": 0}])
@pytest.mark.parametrize("n", [5, 300, 20000])
def test_an_infinite_logit_is_an_error_and_never_a_distribution(n: int, params: dict[str, Any]) -> None:
    """Its softmax is no number, and min(1, NaN) would accept everything."""
    logits = row(n)
    logits[n // 2] = np.inf
    with pytest.raises(BackendError, match="infinite"):
        distribution(logits, **params)
    grammar = Multiples(1)
    with pytest.raises(BackendError, match="infinite"):
        Transform(dataclasses.replace(RAW, **params), n_vocab=n, grammar=grammar).distribution(logits, [])
    logits[n // 2] = -np.inf
    assert distribution(logits, **params).prob(n // 2) == 0.0


@pytest.mark.parametrize("bias", [math.inf, math.nan, 1e300, -1e300])
def test_a_bias_that_is_no_number_is_refused(bias: float) -> None:
    with pytest.raises(ConfigError, match="logit_bias"):
        SamplingParams(logit_bias={1: bias})


@pytest.mark.parametrize("n", [50, 1000, 20000])
@pytest.mark.parametrize("where", [slice(None), slice(7, 8), slice(-1, None)], ids=["all", "one", "last"])
def test_nan_is_an_error_and_never_a_distribution(n: int, where: slice) -> None:
    """A broken kernel must not look like a strange text: whichever way the candidates are found."""
    logits = row(n)
    logits[where] = np.nan
    for temperature in (0.0, 0.8, -1.0):
        for top_k in (0, 1, 40):
            with pytest.raises(BackendError, match="NaN"):
                distribution(logits, temperature=temperature, top_k=top_k)


def test_confidence_is_what_a_greedy_distribution_hides() -> None:
    """The likeliest token's share at temperature 1, before truncation; for greedy, among the first few."""
    logits = np.array([0.0, 1.0, 3.0, 2.0], dtype=np.float32)
    share = math.exp(3) / sum(math.exp(x) for x in range(4))
    assert distribution(logits, temperature=0.0).confidence == pytest.approx(share)
    assert distribution(logits, temperature=0.1, top_p=0.1).confidence == pytest.approx(share)
    assert distribution(logits, temperature=0.0).probs.tolist() == [1.0]


class Multiples:
    """A grammar that allows the multiples of `step`."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.generated: list[int] = []

    def mask(self, generated: Sequence[int]) -> Any:
        self.generated = list(generated)
        return np.packbits(np.arange(20000) % self.step == 0, bitorder="little")

    def forced(self, generated: Sequence[int]) -> Sequence[int]:
        return []


@pytest.mark.parametrize("step", [1, 7, 400, 4999])
@pytest.mark.parametrize("params", [{"top_k": 40}, {"top_k": 3, "top_p": 0.8}, {"top_k": 0}, {"temperature": 0.0}])
def test_a_grammar_masks_before_top_k(step: int, params: dict[str, Any]) -> None:
    """The same law as masking all logits first, however few ids are legal."""
    logits = row(5000)
    masked = np.where(np.arange(5000) % step == 0, logits, -np.inf).astype(np.float32)
    wanted = distribution(masked, **params)
    grammar = Multiples(step)
    got = Transform(dataclasses.replace(RAW, **params), n_vocab=5000, grammar=grammar).distribution(logits, [3, 4])
    assert got.ids.tolist() == wanted.ids.tolist()
    assert got.probs == pytest.approx(wanted.probs, abs=1e-15)
    assert grammar.generated == [3, 4]


def test_a_greedy_token_under_a_grammar_has_its_confidence() -> None:
    """Among the legal ids at hand: as if the others were not there. It is certain only where nothing else may come."""
    logits = row(5000)

    def greedy(step: int) -> Distribution:
        transform = Transform(dataclasses.replace(RAW, temperature=0.0), n_vocab=5000, grammar=Multiples(step))
        return transform.distribution(logits, [])

    for step in (1, 7):
        masked = np.where(np.arange(5000) % step == 0, logits, -np.inf).astype(np.float32)
        assert greedy(step).confidence == distribution(masked, temperature=0.0).confidence < 1.0
    assert greedy(5000).confidence == 1.0


def test_a_grammar_that_allows_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="grammar allows no token"):
        Transform(RAW, n_vocab=5, grammar=Multiples(9)).distribution(
            np.array([-np.inf, 1, 2, 3, 4], dtype=np.float32), []
        )


# --- log-probabilities ------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 300, 20000])
def test_logprobs_are_the_models_own(n: int) -> None:
    logits = row(n, scale=4.0) + np.float32(50.0)
    x = logits.astype(np.float64)
    wanted = x - (x.max() + np.log(np.exp(x - x.max()).sum()))
    for token in (0, n - 1, int(logits.argmax())):
        got, top = logprob(logits, token, 5)
        assert got == pytest.approx(wanted[token], abs=1e-5)
        assert got < 0.0
        assert [i for i, _ in top] == largest(logits, 5).tolist()
        assert [value for _, value in top] == pytest.approx(np.sort(wanted)[::-1][:5], abs=1e-5)
    assert logprob(logits, 0, 0)[1] == ()
