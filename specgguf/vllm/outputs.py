"""vLLM's results: a `RequestOutput` for each prompt, with a `CompletionOutput` for each of its answers.

Plain records, and how they are made of a batch's results; no engine here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specgguf.decode.records import TokenLogprob
from specgguf.decode.stats import Stats
from specgguf.errors import Unsupported

from .sampling import SamplingParams

if TYPE_CHECKING:
    from specgguf.batched import BatchResult

FINISH_REASONS = {"eos": "stop", "stop": "stop", "length": "length"}


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability.

    Attributes:
        rank: from 1; None for a drawn token that is not among the likeliest that were asked for.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass
class CompletionOutput:
    """One answer.

    Attributes:
        token_ids: the model's own end of the text not among them.
        cumulative_logprob, logprobs: None where none were asked for.
        finish_reason: "stop" or "length". stop_reason: the text that ended it, None where it ended by itself.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: None = None

    def finished(self) -> bool:
        """Whether it came to its end."""
        return self.finish_reason is not None


@dataclass(frozen=True)
class RequestMetrics:
    """What the answers to one prompt took, summed. `stats` holds one `specgguf.Stats` for each.

    vLLM's moments in time are not kept; seconds are.
    """

    stats: tuple[Stats, ...]

    @property
    def num_generation_tokens(self) -> int:
        """Generated tokens."""
        return sum(one.n_generated for one in self.stats)

    @property
    def num_draft_tokens(self) -> int:
        """Drafted tokens."""
        return sum(one.draft_n for one in self.stats)

    @property
    def num_accepted_tokens(self) -> int:
        """Drafted tokens that were accepted."""
        return sum(one.draft_n_accepted for one in self.stats)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted over drafted; None where nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    def __getattr__(self, name: str) -> Any:
        if name in ("arrival_time", "first_token_time", "first_scheduled_time", "last_token_time", "finished_time"):
            raise UnsupportedMetric(f"{name} is not measured here", hint="metrics.stats holds seconds")
        raise AttributeError(name)


class UnsupportedMetric(Unsupported, AttributeError):
    """One of vLLM's figures that is not here."""


@dataclass
class RequestOutput:
    """The answers to one prompt.

    Attributes:
        prompt: None where it was given as token ids.
        num_cached_tokens: of the prompt, that did not have to be read.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = True
    metrics: RequestMetrics | None = None
    prompt_logprobs: None = None
    num_cached_tokens: int | None = None
    lora_request: None = None


def logprob_dicts(logprobs: Sequence[TokenLogprob], text_of: Callable[[int], str]) -> list[dict[int, Logprob]]:
    """For each token the likeliest ones and itself, by id."""
    return [
        {one.token: Logprob(one.logprob, None, text_of(one.token))}
        | {token: Logprob(logprob, rank, text_of(token)) for rank, (token, logprob) in enumerate(one.top, 1)}
        for one in logprobs
    ]


def stop_found(whole: str, kept: int, stops: Sequence[str]) -> str | None:
    """Which of `stops` ended an answer: the first that stands in `whole` from its `kept`th character on."""
    found = [(at, stop) for stop in stops if (at := whole.find(stop, kept)) >= 0]
    return min(found)[1] if found else None


def request_output(
    request_id: str,
    prompt: str | None,
    results: Sequence[BatchResult],
    params: SamplingParams,
    text_of: Callable[[Sequence[int]], str],
) -> RequestOutput:
    """The answers to one prompt; `text_of` gives the text of token ids."""
    stats = tuple(result.stats for result in results)
    return RequestOutput(
        request_id,
        prompt,
        list(results[0].prompt),
        [_completion(k, result, params, text_of) for k, result in enumerate(results)],
        metrics=RequestMetrics(stats),
        num_cached_tokens=stats[0].n_cached,
    )


def _completion(
    index: int, result: BatchResult, params: SamplingParams, text_of: Callable[[Sequence[int]], str]
) -> CompletionOutput:
    text, stop = result.text, None
    if result.finish_reason == "stop":
        stop = stop_found(text_of(result.tokens), len(text), params.stops)
        text += stop if stop and params.include_stop_str_in_output else ""
    logprobs = None if params.logprobs is None else list(result.logprobs or ())
    return CompletionOutput(
        index,
        text if params.detokenize else "",
        list(result.tokens),
        cumulative_logprob=None if logprobs is None else sum(one.logprob for one in logprobs),
        logprobs=None if logprobs is None else logprob_dicts(logprobs, lambda token: text_of([token])),
        finish_reason=FINISH_REASONS.get(result.finish_reason or "length", result.finish_reason),
        stop_reason=stop,
    )
