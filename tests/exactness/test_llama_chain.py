"""Our law against llama.cpp's own sampler chain, as llama-cpp-python builds it, on the same logits.

Random logits and parameters; a case counts only away from ties and thresholds: llama.cpp sums probabilities
in float32, so a token within 1e-5 of a nucleus' edge may fall to either side. A plain float64 reimplementation
decides what is too near, and is compared as well.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from specgguf.config import SamplingParams
from specgguf.decode.sampling import Distribution, Transform, largest

EDGE = 1e-5


@contextmanager
def chain(params: SamplingParams, n_vocab: int, generated: Sequence[int]) -> Iterator[Any]:
    """The samplers of `llama_cpp.Llama._init_sampler`, in its order, without the final draw."""
    sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    bias = (llama_cpp.llama_logit_bias * len(params.logit_bias))()
    for i, (token, value) in enumerate(params.logit_bias.items()):
        bias[i].token, bias[i].bias = token, value
    repeat = params.repeat_penalty, params.frequency_penalty, params.presence_penalty
    links = [
        llama_cpp.llama_sampler_init_logit_bias(n_vocab, len(bias), bias),
        llama_cpp.llama_sampler_init_penalties(n_vocab, params.penalty_last_n, *repeat),
    ]
    if params.temperature == 0.0:
        links.append(llama_cpp.llama_sampler_init_greedy())
    elif params.temperature > 0.0:
        links += [
            llama_cpp.llama_sampler_init_top_k(params.top_k),
            llama_cpp.llama_sampler_init_typical(params.typical_p, 1),
            llama_cpp.llama_sampler_init_top_p(params.top_p, 1),
            llama_cpp.llama_sampler_init_min_p(params.min_p, 1),
            llama_cpp.llama_sampler_init_temp(params.temperature),
        ]
    for link in links:
        llama_cpp.llama_sampler_chain_add(sampler, link)
    for token in generated:
        llama_cpp.llama_sampler_accept(sampler, token)
    try:
        yield sampler
    finally:
        llama_cpp.llama_sampler_free(sampler)


def chain_distribution(params: SamplingParams, logits: np.ndarray, generated: Sequence[int]) -> dict[int, float]:
    """The law that llama.cpp would draw from."""
    data = np.zeros(len(logits), dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
    data["id"], data["logit"] = np.arange(len(logits)), logits
    array = llama_cpp.llama_token_data_array(
        data=ctypes.cast(data.ctypes.data, llama_cpp.llama_token_data_p),
        size=len(logits),
        selected=-1,
        sorted=False,
    )
    with chain(params, len(logits), generated) as sampler:
        llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
    if params.temperature == 0.0:
        return {int(data["id"][array.selected]): 1.0}
    kept = data[: array.size]
    scores = kept["logit"].astype(np.float64)
    probs = np.exp(scores - scores.max())
    return {int(i): float(p) for i, p in zip(kept["id"], probs / probs.sum(), strict=True) if p > 0.0}


def dense_distribution(
    params: SamplingParams, logits: np.ndarray, generated: Sequence[int]
) -> tuple[dict[int, float], float]:
    """The same in plain float64, and the distance to the nearest tie or threshold."""
    x = logits.astype(np.float64)
    for token, value in params.logit_bias.items():
        x[token] += value
    recent = list(generated)[-params.penalty_last_n :] if params.penalty_last_n else []
    for token in set(recent):
        x[token] = x[token] * params.repeat_penalty if x[token] <= 0 else x[token] / params.repeat_penalty
        x[token] -= recent.count(token) * params.frequency_penalty + params.presence_penalty
    order = np.argsort(-x, kind="stable")
    gaps = -np.diff(x[order])
    if params.temperature == 0.0:
        return {int(order[0]): 1.0}, float(gaps[0])
    edges = [1.0]
    if params.temperature > 0.0:
        if 0 < params.top_k < len(x):
            edges.append(float(gaps[params.top_k - 1]))
            order = order[: params.top_k]
        if params.typical_p < 1.0:
            p = softmax(x[order])
            score = np.abs(-np.log(p) + (p * np.log(p)).sum())
            by_score = np.argsort(score, kind="stable")
            edges += [float(np.diff(score[by_score]).min(initial=1.0)), edge(p[by_score], params.typical_p)]
            n = int(np.searchsorted(np.cumsum(p[by_score]), params.typical_p, side="right")) + 1
            order = order[np.sort(by_score[:n])]
        if params.top_p < 1.0:
            p = softmax(x[order])
            edges.append(edge(p, params.top_p))
            order = order[: int(np.searchsorted(np.cumsum(p), params.top_p)) + 1]
        if params.min_p > 0.0:
            least = x[order[0]] + np.log(params.min_p)
            edges.append(float(np.abs(x[order] - least).min()))
            order = order[x[order] >= least]
    probs = softmax(x[order] / (params.temperature if params.temperature > 0.0 else 1.0))
    return {int(i): float(p) for i, p in zip(order, probs, strict=True) if p > 0.0}, min(edges)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def edge(p: np.ndarray, at: float) -> float:
    return float(np.abs(np.cumsum(p) - at).min())


def as_dict(distribution: Distribution) -> dict[int, float]:
    return {int(i): float(p) for i, p in zip(distribution.ids, distribution.probs, strict=True)}


def assert_same(distribution: dict[int, float], other: dict[int, float], tolerance: float) -> None:
    assert distribution.keys() == other.keys()
    for token, p in distribution.items():
        assert p == pytest.approx(other[token], rel=tolerance, abs=1e-12), token


@st.composite
def parameters(draw: st.DrawFn, n_vocab: int) -> SamplingParams:
    def some(neutral: float, low: float, high: float) -> float:
        """The neutral value half of the time."""
        return draw(st.one_of(st.just(neutral), st.floats(low, high)))

    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, -1.0, 1e-6, 0.01, 0.2, 0.8, 1.0, 1.5, 2.0])),
        top_k=draw(st.sampled_from([0, 1, 2, 3, 10, 40, 200])),
        top_p=some(1.0, 0.0, 1.0),
        min_p=some(0.0, 0.0, 1.0),
        typical_p=some(1.0, 0.05, 0.99),
        repeat_penalty=some(1.0, 0.5, 2.0),
        frequency_penalty=some(0.0, -1.0, 1.0),
        presence_penalty=some(0.0, -1.0, 1.0),
        penalty_last_n=draw(st.sampled_from([0, 1, 5, 64])),
        logit_bias=draw(
            st.dictionaries(st.integers(0, n_vocab - 1), st.sampled_from([-100.0, -2.0, 0.5, 3.0]), max_size=3)
        ),
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[SamplingParams, np.ndarray, list[int]]:
    n_vocab = draw(st.sampled_from([2, 3, 8, 50, 300, 3000, 20000]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale = draw(st.sampled_from([0.1, 1.0, 3.0, 10.0]))
    logits = (rng.standard_normal(n_vocab) * scale + rng.normal(0.0, 5.0)).astype(np.float32)
    generated = rng.integers(0, min(n_vocab, 20), draw(st.integers(0, 80))).tolist()
    return draw(parameters(n_vocab)), logits, generated


slow_start = settings(
    deadline=None,
    derandomize=True,
    max_examples=500,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@given(cases())
@slow_start
def test_the_distribution_is_that_of_llama_cpps_chain(case: tuple[SamplingParams, np.ndarray, list[int]]) -> None:
    params, logits, generated = case
    wanted, distance = dense_distribution(params, logits, generated)
    assume(distance > EDGE)
    distribution = Transform(params, n_vocab=len(logits)).distribution(logits, generated)
    assert distribution.probs.sum() == pytest.approx(1.0, abs=1e-9)
    assert (np.diff(distribution.probs) <= 0.0).all()
    # float32 logits of size 50 divided by the temperature: their rounding is what is left
    tolerance = 1e-5 * max(1.0, 1.0 / params.temperature if params.temperature > 0.0 else 1.0)
    tiny = params.temperature == 1e-6
    if not tiny:
        assert_same(as_dict(distribution), wanted, tolerance)
    got = chain_distribution(params, logits, generated)
    assert set(got) <= set(as_dict(distribution))  # float32 loses what underflows
    if not tiny:
        assert_same(as_dict(distribution), got, tolerance)
    assert max(as_dict(distribution).items(), key=lambda x: x[1])[0] == max(got.items(), key=lambda x: x[1])[0]


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("temperature", 0.8, 0.81),
        ("top_k", 40, 39),
        ("top_p", 0.95, 0.93),
        ("min_p", 0.3, 0.33),
        ("typical_p", 0.9, 0.93),
        ("repeat_penalty", 1.1, 1.08),
        ("frequency_penalty", 0.1, 0.08),
        ("presence_penalty", 0.1, 0.08),
        ("penalty_last_n", 30, 10),
        ("logit_bias", {3: 0.1}, {3: 0.12}),
    ],
)
def test_a_parameter_that_is_a_little_off_is_seen(name: str, right: Any, wrong: Any) -> None:
    """The negative control: each parameter matters to the comparison above."""
    quiet = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    if name == "penalty_last_n":
        quiet["repeat_penalty"] = 1.1
    for seed in range(5):
        rng = np.random.default_rng(seed)
        logits = (rng.standard_normal(200) * 0.5).astype(np.float32)
        generated = rng.integers(0, 20, 40).tolist()
        params = SamplingParams(**{**quiet, name: right})
        theirs = chain_distribution(params, logits, generated)
        ours = [
            as_dict(Transform(SamplingParams(**{**quiet, name: value}), n_vocab=200).distribution(logits, generated))
            for value in (right, wrong)
        ]
        assert_same(ours[0], theirs, 1e-5)
        with pytest.raises(AssertionError):
            assert_same(ours[1], theirs, 1e-4)


@given(
    st.integers(0, 2**32),
    st.sampled_from([1, 2, 40, 200]),
    st.sampled_from([1, 7, 255, 256, 257, 5000, 70001]),
)
@settings(deadline=None, derandomize=True, max_examples=200)
def test_the_k_largest_are_the_k_largest(seed: int, k: int, n: int) -> None:
    """Also with ties: the lower ids first."""
    logits = np.random.default_rng(seed).integers(-50, 50, n).astype(np.float32)
    expected = np.lexsort((np.arange(n), -logits))[:k]
    assert largest(logits, k).tolist() == expected.tolist()
