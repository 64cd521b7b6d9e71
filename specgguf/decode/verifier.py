"""Where the exactness is: accept or reject drafted tokens so that the output has the target's distribution.

Two rules of one signature, pure functions of the draft, the target's distributions and the random source. They know no
model, no text and no clock.

`rows[i]` is the target's distribution after the drafted prefix tokens[:i], made on demand: never past a drafted token
that the target forbids, nor past end-of-generation. `len(rows)` is K + 1, or K when the last drafted token
ends the generation and no bonus exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from specgguf.errors import BackendError, ConfigError

from .records import Draft, VerifyResult
from .sampling import Distribution, Rng, draw, one_hot, residual

Rule = Callable[[Draft, Sequence[Distribution], Rng], VerifyResult]


def verify_token(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
    """Token verification (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2).

    Accept x with probability min(1, p(x)/q(x)); at the first rejection emit y ~ norm(max(0, p − q)); when all
    are accepted, emit the bonus y ~ p of the row after them.
    """
    chances = [min(1.0, ratio) for ratio in _ratios(draft, rows)]
    survival, alive = [], 1.0
    for chance in chances:
        alive *= chance
        survival.append(alive)
    for i, chance in enumerate(chances):
        if not rng.bernoulli(chance):
            distribution, _ = residual(rows[i], _distribution(draft, i))
            return VerifyResult(i, draw(distribution, rng), tuple(survival))
    return VerifyResult(len(draft), _bonus(draft, rows, rng), tuple(survival))


def verify_block(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
    """Block verification (Sun et al., ICLR 2025, arXiv 2403.10444, algorithm 2).

    P[i] = min(1, P[i−1]·p_i(x_i)/q_i(x_i)) is the chance that at least i tokens survive: never below token
    verification's product. The longest prefix whose own coin falls well is kept; the token after it is drawn
    from norm(max(0, P[τ]·p − q)).
    """
    k = len(draft)
    survival: list[float] = []
    for ratio in _ratios(draft, rows):
        survival.append(min(1.0, (survival[-1] if survival else 1.0) * ratio))
    for i in range(len(survival), 0, -1):
        alive = survival[i - 1]
        if i == k:
            if rng.bernoulli(alive):
                return VerifyResult(k, _bonus(draft, rows, rng), tuple(survival))
            continue
        if alive == 0.0:
            continue
        distribution, mass = residual(rows[i], _distribution(draft, i), alive)
        chance = mass / (mass + 1.0 - alive) if mass > 0.0 or alive < 1.0 else 1.0
        if rng.bernoulli(chance):
            return VerifyResult(i, draw(distribution, rng), tuple(survival))
    if not k:
        return VerifyResult(0, draw(rows[0], rng))
    distribution, _ = residual(rows[0], _distribution(draft, 0))
    return VerifyResult(0, draw(distribution, rng), tuple(survival))


def cut(draft: Draft, rows: Sequence[Distribution]) -> Draft:
    """The part of a draft before the first position at which the target has no distribution: a grammar's dead end,
    every id forbidden, no numbers.

    That position is a stopping time of the drafted prefix, so verifying the part, without a bonus token, is exact.
    Plain decoding raises there if it gets there; a draft must not raise where plain decoding would not have come.
    """
    for i, token in enumerate(draft.tokens):
        try:
            p = rows[i]
        except (BackendError, ConfigError):
            if i == 0:
                raise
            return replace(draft, tokens=draft.tokens[:i], probs=draft.probs[:i])
        if p.prob(token) == 0.0:
            break  # nothing after it can survive
    return draft


def _distribution(draft: Draft, i: int) -> Distribution:
    """The distribution that drafted token i was drawn from; a token without one was chosen: one-hot."""
    distribution = draft.probs[i]
    return one_hot(draft.tokens[i]) if distribution is None else distribution


def _ratios(draft: Draft, rows: Sequence[Distribution]) -> list[float]:
    """p(x)/q(x) of the drafted tokens, up to and including the first 0: what follows cannot survive."""
    ratios: list[float] = []
    for i, (token, distribution) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        ratios.append(rows[i].prob(token) / (1.0 if distribution is None else distribution.prob(token)))
        if ratios[-1] == 0.0:
            break
    return ratios


def _bonus(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> int | None:
    """The token after an accepted draft; None where none may follow, or where plain decoding could not go on either
    (it is asked again in a round of its own, and raises there)."""
    k = len(draft)
    if len(rows) <= k:
        return None
    try:
        p = rows[k]
    except (BackendError, ConfigError):
        if k == 0:
            raise
        return None
    return draw(p, rng)


RULES: dict[str, Rule] = {"token": verify_token, "block": verify_block}


def choose_rule(verify: str) -> Rule:
    """The rule of the setting `verify`. "auto" is block verification: it keeps at least as many tokens, and is
    token verification itself for one drafted token and for one-hot drafts."""
    return RULES["block" if verify == "auto" else verify]
