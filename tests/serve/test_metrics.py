"""Prometheus text: histograms add up, labels are escaped, and the engine's sums come out as they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specgguf.decode.records import Round
from specgguf.decode.stats import Stats
from specgguf.serve.metrics import Counter, Histogram, Metrics


@given(st.lists(st.floats(0, 20, allow_nan=False), max_size=30))
def test_a_histogram_counts_what_is_at_most_its_bounds(values: list[float]) -> None:
    histogram = Histogram((1.0, 2.5, 10.0))
    for value in values:
        histogram.add(value)
    samples = list(histogram.samples())
    for (_, labels, count), bound in zip(samples, (1.0, 2.5, 10.0, float("inf")), strict=False):
        assert count == sum(value <= bound for value in values)
        assert labels["le"] == ("+Inf" if bound == float("inf") else f"{bound:g}")
    assert samples[-2][2] == sum(values)
    assert samples[-1][2] == len(values)


def test_counters_stand_apart_by_labels() -> None:
    counter = Counter()
    counter.add(endpoint="a", status=200)
    counter.add(2, endpoint="a", status=200)
    counter.add(endpoint="b", status=400)
    assert list(counter.samples()) == [
        ("", {"endpoint": "a", "status": 200}, 3),
        ("", {"endpoint": "b", "status": 400}, 1),
    ]


def test_labels_are_escaped() -> None:
    metrics = Metrics()
    metrics.requests.add(endpoint='a"b\\c\nd', status=200)
    text = metrics.text(Stats(), n_waiting=0, n_running=0)
    assert 'specgguf_requests_total{endpoint="a\\"b\\\\c\\nd",status="200"} 1\n' in text


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_draft_lengths_follow_from_the_positions(lengths: list[int]) -> None:
    stats = Stats()
    for n in lengths:
        stats.add(Round(tokens=(1,), draft_n=n))
    lines = Metrics().text(stats, n_waiting=0, n_running=0).splitlines()
    for most in range(max(lengths) + 1):
        count = sum(n <= most for n in lengths)
        assert f'specgguf_draft_length_bucket{{le="{most}"}} {count}' in lines
    assert f'specgguf_draft_length_bucket{{le="+Inf"}} {len(lengths)}' in lines
    assert f"specgguf_draft_length_sum {sum(lengths)}" in lines
