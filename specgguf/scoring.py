"""What a given text is worth to the target: the log-probability of each of its tokens after those before it.

No token is drawn and nothing is drafted. It speaks tokens, and knows no text and no dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .decode.generation import check_prompt
from .decode.records import TokenLogprob
from .decode.sampling import logprob
from .engine import Engine
from .errors import Cancelled


def score(
    engine: Engine,
    tokens: Sequence[int],
    n_top: int,
    timeout: float | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> list[TokenLogprob | None]:
    """One entry per token, None for the first, which nothing comes before.

    Args:
        n_top: likeliest tokens to report in each place.
        timeout: seconds to wait for other generations.
        cancelled: whether nobody waits for it any more.

    Raises:
        ConfigError, ContextFull: see `check_prompt`. Busy, Cancelled, BackendError: while reading.
    """
    check_prompt(tokens, engine.target.n_ctx)
    scores: list[TokenLogprob | None] = [None]
    with engine.borrow(len(tokens), cancelled, timeout) as target:
        width = target.context.n_outputs_max
        for start in range(0, len(tokens) - 1, width):
            part = tokens[start : min(start + width, len(tokens) - 1)]
            following = tokens[start + 1 : start + 1 + len(part)]
            with engine.lock():
                rows = target.extend(part, len(part))
                if cancelled():
                    raise Cancelled("stopped")
                scores += [TokenLogprob(t, *logprob(row, t, n_top)) for row, t in zip(rows, following, strict=True)]
    return scores
