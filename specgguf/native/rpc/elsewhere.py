"""A native context that lives in another process, as those see it who call functions of `backend` with it.

Where it lives, how it is asked and what becomes of it is `remote`'s to know.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


class Elsewhere:
    """Such a context. It may be lost with its process: then it is empty, and the next decode makes it again.

    No ABC: whether a context is one is asked four times a token, and an ABC answers tenfold more slowly.

    Attributes:
        refresh: finds out now whether it was lost meanwhile, and makes it empty if it was.
        call: call(name, *args) is what `backend.<name>(context, *args)` returns over there.
    """

    refresh: Callable[[], None]
    call: Callable[..., Any]


def anywhere(function: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
    """Let a function over a native context also take one that is `Elsewhere`."""
    name = function.__name__

    @functools.wraps(function)
    def call(ctx: Any, *args: P.args, **keywords: P.kwargs) -> T:
        if isinstance(ctx, Elsewhere):
            result: T = ctx.call(name, *args, *keywords.values())
            return result
        return function(ctx, *args, **keywords)

    return cast(Callable[Concatenate[Any, P], T], call)
