"""What the server counts, and the engine's own sums, as Prometheus text (format 0.0.4).

Three small kinds of figures and one writer. This module knows no HTTP and no queue: it is told what happened, and
reads the engine's `Stats` when asked for the text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Protocol

from specgguf.decode.stats import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "specgguf_"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

Labels = Mapping[str, object]
Sample = tuple[str, Labels, float]  # the name's ending, labels, value


class Counter:
    """Counts things, apart by labels."""

    def __init__(self) -> None:
        self._counts: dict[tuple[tuple[str, object], ...], float] = {}

    def add(self, amount: float = 1, **labels: object) -> None:
        key = tuple(labels.items())
        self._counts[key] = self._counts.get(key, 0) + amount

    def samples(self) -> Iterator[Sample]:
        for key, count in sorted(self._counts.items(), key=str):
            yield "", dict(key), count


class Histogram:
    """Sorts values into buckets of at most `bounds`."""

    def __init__(self, bounds: Iterable[float] = SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> Iterator[Sample]:
        return cumulative(self._bounds, self._counts, self._sum)


def cumulative(bounds: Iterable[float], counts: Iterable[float], total: float) -> Iterator[Sample]:
    """A histogram's samples from the counts of its buckets, the one without a bound last."""
    running = 0.0
    for bound, count in zip((*(f"{b:g}" for b in bounds), "+Inf"), counts, strict=True):
        running += count
        yield "_bucket", {"le": bound}, running
    yield "_sum", {}, total
    yield "_count", {}, running


class Answered(Protocol):
    """What the figures use of a request that was answered."""

    model: str
    key: str
    status: int
    n_prompt: int
    n_generated: int


class Metrics:
    """All figures of one server.

    Attributes:
        requests: answered requests by endpoint and status. by_client, tokens: by model and key.
        queue_s: seconds that requests waited. first_s: from a request's arrival to its first token, streams only.
        request_s: from a request's arrival to its end.
        gone: clients that left before their answer was complete. late: requests that a time limit ended.
    """

    def __init__(self) -> None:
        self.requests, self.gone, self.late = Counter(), Counter(), Counter()
        self.by_client, self.tokens = Counter(), Counter()
        self.queue_s, self.first_s, self.request_s = Histogram(), Histogram(), Histogram()

    def request(self, record: Answered, endpoint: str) -> None:
        """Count an answered request; by model and key where it came so far that they are known."""
        self.requests.add(endpoint=endpoint, status=record.status)
        if record.model:
            self.by_client.add(model=record.model, key=record.key)
            for kind, n in (("prompt", record.n_prompt), ("generated", record.n_generated)):
                self.tokens.add(n, model=record.model, key=record.key, kind=kind)

    def text(self, stats: Stats, *, n_waiting: int, n_running: int) -> str:
        """Everything, for a scrape."""
        lines = []
        for name, kind, help_text, samples in (
            ("requests_total", "counter", "Answered requests.", self.requests.samples()),
            ("client_requests_total", "counter", "Of these, by model and key.", self.by_client.samples()),
            ("client_tokens_total", "counter", "Tokens by model and key.", self.tokens.samples()),
            ("clients_gone_total", "counter", "Clients that left before their answer was complete.", _or_0(self.gone)),
            ("time_limit_total", "counter", "Requests that a time limit ended.", _or_0(self.late)),
            ("requests_waiting", "gauge", "Requests in the queue.", [("", {}, n_waiting)]),
            ("requests_running", "gauge", "Requests in the engine.", [("", {}, n_running)]),
            ("queue_seconds", "histogram", "Waiting in the queue.", self.queue_s.samples()),
            ("first_token_seconds", "histogram", "From arrival to the first token, streams.", self.first_s.samples()),
            ("request_seconds", "histogram", "From arrival to the end of a generation.", self.request_s.samples()),
            *_engine(stats),
        ):
            lines += [f"# HELP {PREFIX}{name} {help_text}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [f"{PREFIX}{name}{ending}{_labels(labels)} {value:.12g}" for ending, labels, value in samples]
        return "\n".join(lines) + "\n"


def _or_0(counter: Counter) -> list[Sample]:
    return list(counter.samples()) or [("", {}, 0)]


def _engine(stats: Stats) -> Iterator[tuple[str, str, str, list[Sample]]]:
    """The engine's sums; they may be a round apart from each other while it runs."""
    counts = (
        ("prompt_tokens_total", "Prompt tokens of all requests.", stats.n_prompt),
        ("prompt_tokens_cached_total", "Of these, found in the cache.", stats.n_cached),
        ("generated_tokens_total", "Generated tokens.", stats.n_generated),
        ("rounds_total", "Passes of the target while generating.", stats.n_rounds),
        ("prompt_seconds_total", "Reading prompts.", stats.prompt_s),
        ("draft_seconds_total", "Drafting.", stats.draft_s),
        ("verify_seconds_total", "In the target's passes.", stats.verify_s),
        ("host_seconds_total", "Outside both models.", stats.host_s),
    )
    for name, help_text, value in counts:
        yield name, "counter", help_text, [("", {}, value)]
    by_position = (
        ("drafted_tokens_total", "Drafted tokens by position in the draft.", stats.drafted_by_position),
        ("reached_tokens_total", "Of these, not behind a rejected one.", stats.reached_by_position),
        ("accepted_tokens_total", "Of these, accepted.", stats.accepted_by_position),
    )
    for name, help_text, values in by_position:
        yield name, "counter", help_text, [("", {"position": i}, n) for i, n in enumerate(values, 1)]
    together = sorted(dict(stats.by_n_sequences).items())
    for name, help_text, place in (
        ("rounds_by_batch_total", "Rounds, by how many requests had theirs together.", 0),
        ("drafted_by_batch_total", "Drafted tokens, by the same.", 1),
        ("accepted_by_batch_total", "Accepted tokens, by the same.", 2),
    ):
        yield name, "counter", help_text, [("", {"requests": n}, counts[place]) for n, counts in together]
    yield "draft_length", "histogram", "Drafted tokens per round.", list(_draft_length(stats))


def _draft_length(stats: Stats) -> Iterator[Sample]:
    """A round of length n has drafted at the positions 1..n, so the lengths follow from the positions."""
    at_least = [stats.n_rounds, *stats.drafted_by_position, 0]
    exactly = [max(a - b, 0) for a, b in pairwise(at_least)]
    return cumulative(range(len(exactly)), [*exactly, 0], stats.draft_n)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    escaped = {k: str(v).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"
