"""A draft never raises where plain decoding does not: the chance of every outcome, raising included, is the target's.

A grammar has dead ends where its last token is forbidden by something else; a draft model may fail by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from loop import PLAIN, MakeController, Setting, fixed, run, script
from support.enumeration import output_distribution, total_variation
from support.fakes import FakeStopCheck, Table, random_table

from specgguf.decode import step
from specgguf.decode.sampling import Rng
from specgguf.decode.verifier import RULES
from specgguf.errors import ConfigError

EXACT = 1e-12
rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
lengths = pytest.mark.parametrize("k", [1, 2, 3])

Outcome = tuple[tuple[int, ...], str | None]


class DeadEnds:
    """A grammar that leads nowhere after some texts."""

    def __init__(self, *ends: tuple[int, ...]) -> None:
        self.ends = ends

    def mask(self, generated: Sequence[int]) -> Any:
        is_dead = any(tuple(generated[-len(end) :]) == end for end in self.ends)
        return np.packbits([not is_dead] * 8, bitorder="little")


def outcome(setting: Setting, rng: Rng, make: MakeController, rule: Any) -> Outcome:
    """The text, and how it ended; what was yielded before a failure stands."""
    out: list[int] = []
    try:
        return run(setting, rng, make, rule, after=lambda _t, so_far: out.__setitem__(slice(None), so_far))[0]
    except ConfigError:
        return tuple(out), "raised"


def outcomes(setting: Setting, make: MakeController, rule: Any) -> dict[Outcome, float]:
    return output_distribution(lambda rng: outcome(setting, rng, make, rule))


def plain(setting: Setting) -> dict[Outcome, float]:
    """By definition: each token from the target's distribution given everything before it, until there is none."""
    transform, _ = setting.transforms()
    found: dict[Outcome, float] = {}

    def extend(out: tuple[int, ...], weight: float) -> None:
        stop_check = FakeStopCheck(setting.length, eog=setting.eog, stop=setting.stop)
        reason = None
        for token in out:
            _, reason = stop_check.check([token])
        if reason is not None:
            found[out, reason] = weight
            return
        try:
            here = transform.distribution(setting.p((*setting.prompt, *out)), out)
        except ConfigError:
            found[out, "raised"] = weight
            return
        for token, prob in zip(here.ids.tolist(), here.probs.tolist(), strict=True):
            extend((*out, token), weight * prob)

    extend((), 1.0)
    return found


def setting(*ends: tuple[int, ...], **keywords: Any) -> Setting:
    p = random_table(1, 3)
    return Setting(p, random_table(2, 3, of=p), grammar=lambda: DeadEnds(*ends), **keywords)


SETTINGS = {
    "after a token": setting((1,)),
    "after a text": setting((1, 2), (0, 0)),
    "behind the end of the text": setting((2,), stop=(2,)),
    "at the end of generation": setting((0, 1), eog=frozenset({2})),
    "by a bias": setting((1,), params=replace(PLAIN, logit_bias={0: -np.inf}), draft_params=PLAIN),
}


@rules
@lengths
@pytest.mark.parametrize("name", SETTINGS)
def test_dead_ends(rule: Any, k: int, name: str) -> None:
    wanted = plain(SETTINGS[name])
    assert any(reason == "raised" for _, reason in wanted) or name == "behind the end of the text"
    assert total_variation(outcomes(SETTINGS[name], fixed(k), rule), wanted) < EXACT


@rules
def test_a_draft_that_is_not_cut_raises_too_often(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr(step, "cut", lambda draft, _rows: draft)
    for name in ("after a text", "behind the end of the text"):
        wanted, got = plain(SETTINGS[name]), outcomes(SETTINGS[name], fixed(3), rule)
        assert total_variation(got, wanted) > 1e-2
        raised = [sum(w for (_, reason), w in found.items() if reason == "raised") for found in (got, wanted)]
        assert raised[0] > raised[1]


def broken(table: Table, *contexts: int) -> Table:
    """The same model, whose logits are no numbers after contexts of these lengths."""

    def logits(context: tuple[int, ...]) -> np.ndarray:
        return np.full(3, np.nan, dtype=np.float32) if len(context) in contexts else table(context)

    return logits


@rules
@pytest.mark.parametrize("lengths", [(3,), (2,), (1, 0, 2)])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_draft_model_that_fails_is_given_up(rule: Any, lengths: tuple[int, ...], at: int) -> None:
    p = random_table(1, 3)
    failing = Setting(p, broken(random_table(2, 3, of=p), at))
    assert total_variation(outcomes(failing, script(*lengths), rule), plain(failing)) < EXACT


def test_a_draft_model_that_forbids_everything_is_given_up() -> None:
    p = random_table(1, 3)
    nothing = replace(PLAIN, logit_bias=dict.fromkeys(range(3), -np.inf))
    failing = Setting(p, random_table(2, 3, of=p), draft_params=nothing)
    assert total_variation(outcomes(failing, fixed(2), RULES["block"]), plain(failing)) < EXACT


def test_a_draft_model_that_fails_while_it_is_probed_is_given_up() -> None:
    p = random_table(1, 3)
    failing = Setting(p, broken(random_table(2, 3, of=p), 3))
    assert total_variation(outcomes(failing, script(0, 0, 2, probe=2), RULES["block"]), plain(failing)) < EXACT
