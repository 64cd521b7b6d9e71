"""What a given text is worth to the target: the log-probability of each of its tokens after those before it.

No token is drawn and nothing is drafted. It speaks tokens, and knows no text and no dicts.
"""

from __future__ import annotations

from collections.abc import Sequence

from .decode.generation import Generation, check_prompt
from .decode.records import TokenLogprob
from .decode.sampling import logprob
from .engine import Engine
from .errors import Cancelled


def score(
    engine: Engine,
    tokens: Sequence[int],
    n_top: int,
    timeout: float | None = None,
    generation: Generation | None = None,
) -> list[TokenLogprob | None]:
    """One entry per token, None for the first, which nothing comes before. The caches hold the tokens afterwards.

    Args:
        n_top: likeliest tokens to report in each place.
        timeout: as `Engine.lock`'s.
        generation: what it is done for; cancelled with it.

    Raises:
        ConfigError, ContextFull: see `check_prompt`. Busy, Cancelled, BackendError: while reading.
    """
    target = engine.target
    check_prompt(tokens, target.n_ctx)
    scores: list[TokenLogprob | None] = [None]
    with engine.lock(timeout):
        engine.clear()
        target.resume()
        width = target.context.n_outputs_max
        for start in range(0, len(tokens) - 1, width):
            part = tokens[start : min(start + width, len(tokens) - 1)]
            rows = target.extend(part, len(part))
            if generation is not None and generation.cancelled:
                raise Cancelled("stopped")
            following = tokens[start + 1 : start + 1 + len(part)]
            scores += [TokenLogprob(t, *logprob(row, t, n_top)) for row, t in zip(rows, following, strict=True)]
    return scores
