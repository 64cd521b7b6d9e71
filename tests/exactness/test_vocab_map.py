"""Drafts whose ids are not the target's: the whole loop keeps the target's distribution, whatever the map.

Partial, many-to-one and permuted maps, tokens that the draft spells as several, one that it cannot read; and what would
be seen if the map were wrong. A wrong reading of the text costs acceptance and never exactness, so those controls look
at what the draft has read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from loop import PLAIN, Setting, distance, fixed, read_by_draft, run, script
from support.fakes import FakeModel, random_table
from test_loop import EXACT

from specgguf.decode.drafters import ModelDrafter, Scores
from specgguf.decode.records import Draft, always
from specgguf.decode.sampling import Distribution, Ids, Logits, Rng, Transform
from specgguf.decode.sequence import run_alone
from specgguf.decode.verifier import RULES
from specgguf.decode.vocab_map import UNREADABLE, DraftText, MappedTransform, VocabMap

WRONG = 1e-3

rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())

# The target's id of each of the draft's, and how the draft spells the target's tokens. Target: three ids.
MAPS: dict[str, tuple[list[int], dict[int, tuple[int, ...]], tuple[int, ...]]] = {
    "same": ([0, 1, 2], {0: (0,), 1: (1,), 2: (2,)}, ()),
    "permuted": ([2, 0, 1], {0: (1,), 1: (2,), 2: (0,)}, ()),
    "partial": ([2, -1, 0, -1], {0: (2,), 1: (1, 3), 2: (0,)}, ()),
    "many to one": ([1, 0, 1, 2], {0: (1,), 1: (0,), 2: (3,)}, (2,)),
    "bytes": ([0, -1, 0, 2, -1], {0: (2,), 1: (1, 4, 1), 2: (3,)}, (4,)),
    "one id": ([-1, 1, -1], {0: (0, 2), 1: (1,), 2: ()}, ()),
    "unreadable": ([0, -1, 1], {0: (0,), 1: (2,), 2: (UNREADABLE,)}, (1,)),
    "of a larger target": ([0, 1, 2, 3, 7], {0: (0,), 1: (1,), 2: (2,)}, ()),
}
by_map = pytest.mark.parametrize("name", MAPS)


def make_map(name: str, cls: Callable[..., VocabMap] = VocabMap, **spelled: tuple[int, ...]) -> VocabMap:
    ids, spell, start = MAPS[name]
    known = {**spell, **{int(token.removeprefix("t")): own for token, own in spelled.items()}}
    return cls(ids, n_vocab=3, spell=lambda token: known[token], start=start)


def mapped(name: str, seed: int = 1, zeros: float = 0.0, **keywords: Any) -> Setting:
    v_draft = len(MAPS[name][0])
    p, q = random_table(seed, 3, zeros=zeros), random_table(seed + 100, v_draft, zeros=zeros)
    given = {"vocab_map": make_map(name), "v_draft": v_draft, **keywords}
    return Setting(p, q, **given)


@rules
@by_map
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_any_map_keeps_the_distribution(name: str, rule: Any, zeros: float) -> None:
    assert distance(mapped(name, zeros=zeros), fixed(3), rule) < EXACT


@rules
@by_map
def test_drafting_off_and_on_again_and_probes(name: str, rule: Any) -> None:
    """The draft's cache lags and is brought to the text again; positions of the two caches differ."""
    assert distance(mapped(name, length=5), script(2, 0, 1, probe=2), rule) < EXACT


@rules
@pytest.mark.parametrize("memory", ["checkpoint", "never"])
def test_drafts_whose_memory_does_not_roll_back_freely(rule: Any, memory: str) -> None:
    for name in ("bytes", "partial"):
        assert distance(mapped(name, draft_memory=memory), script(2, 0, 3), rule) < EXACT


SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "truncated": {"temperature": 0.7, "top_k": 2, "top_p": 0.9},
    "penalties": {"repeat_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.3, "penalty_last_n": 2},
    "bias": {"logit_bias": {0: 1.0, 2: -2.0}},
    "nothing shared but what is forbidden": {"logit_bias": {0: -np.inf, 2: -np.inf}},
}


@rules
@pytest.mark.parametrize("name", ["bytes", "partial", "many to one"])
@pytest.mark.parametrize("sampling", SAMPLING)
def test_sampling_parameters_speak_of_the_targets_ids(name: str, rule: Any, sampling: str) -> None:
    setting = mapped(name, params=dataclasses.replace(PLAIN, **SAMPLING[sampling]))
    assert distance(setting, fixed(3), rule) < EXACT


@rules
@pytest.mark.parametrize("masks_draft", [True, False])
def test_under_a_grammar(rule: Any, masks_draft: bool) -> None:
    class Alternates:
        """No token twice in a row."""

        def mask(self, generated: Sequence[int]) -> np.ndarray:
            allowed = [not generated or token != generated[-1] for token in range(3)]
            return np.packbits(allowed, bitorder="little")

    for name in ("bytes", "many to one"):
        assert distance(mapped(name, grammar=Alternates, masks_draft=masks_draft), fixed(3), rule) < EXACT


@rules
def test_ends_of_generation(rule: Any) -> None:
    """A draft's end may stand for the target's; min_tokens forbids it on both sides."""
    for params in (PLAIN, dataclasses.replace(PLAIN, min_tokens=2)):
        assert distance(mapped("many to one", eog=frozenset({2}), params=params), fixed(3), rule) < EXACT


# --- the draft's distribution, and what it has read -------------------------------------------------------


def wanted(setting: Setting, committed: Sequence[int]) -> dict[int, float]:
    """q′ by definition: the draft's probabilities after its reading of the text, summed by the target's ids, over what
    both have."""
    assert setting.q is not None
    assert setting.vocab_map is not None
    q = np.exp(setting.q(tuple(read_by_draft(setting, committed))).astype(np.float64))
    summed: dict[int, float] = {}
    for place, token in zip(setting.vocab_map.columns, setting.vocab_map.ids, strict=True):
        summed[int(token)] = summed.get(int(token), 0.0) + q[place]
    total = sum(summed.values())
    return {token: prob / total for token, prob in summed.items()}


def worst(setting: Setting, drafter: Callable[..., ModelDrafter] = ModelDrafter, n_rounds: int = 40) -> float:
    """How far a drafted distribution is from `wanted`, over rounds that accept some and go on with another token."""
    assert setting.q is not None
    transform = setting.transforms()[1]
    model = FakeModel(setting.q, setting.v_draft, n_ctx=400)
    drafts = drafter(model, vocab_map=setting.vocab_map)
    committed, found = [0, 1, 1, 2], 0.0
    rng = np.random.default_rng(3)
    for step in range(n_rounds):
        draft: Draft = run_alone(drafts.propose(committed, 3, transform.distribution, Rng(step), always))
        for i, (token, q) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
            assert q is not None
            assert q.prob(token) > 0.0
            right = wanted(setting, [*committed, *draft.tokens[:i]])
            found = max(found, *(abs(q.prob(t) - right.get(t, 0.0)) for t in range(3)))
            assert abs(q.probs.sum() - 1.0) < 1e-9
        assert draft.tokens
        committed = [*committed, *draft.tokens[: rng.integers(0, 4)], int(rng.integers(0, 3))]
    return found


readable = pytest.mark.parametrize("name", [name for name in MAPS if name != "unreadable"])


@readable
def test_the_drafts_distribution_is_that_of_the_shared_ids_after_the_text(name: str) -> None:
    assert worst(mapped(name)) < 1e-6  # logits are 32 bits wide


def test_nothing_is_drafted_after_a_token_that_cannot_be_read() -> None:
    setting = mapped("unreadable")
    assert setting.q is not None
    drafter = ModelDrafter(FakeModel(setting.q, 3), vocab_map=setting.vocab_map)
    for committed, n in (([0, 1], 2), ([0, 2], 0), ([0, 2, 1, 1], 0), ([0, 1, 1], 2)):
        draft = run_alone(drafter.propose(committed, 2, setting.transforms()[1].distribution, Rng(1), always))
        assert len(draft) == n


@readable
def test_scores_are_the_overlaps_of_the_mapped_distributions(name: str) -> None:
    """Each token is judged by the row before it, wherever that lies in the draft's text."""
    setting = mapped(name)
    assert setting.q is not None
    transform = setting.transforms()[1]
    committed = [int(t) for t in np.random.default_rng(5).integers(0, 3, 12)]
    probs = [Transform(PLAIN, n_vocab=3).distribution(setting.p(tuple(committed[:i])), ()) for i in range(8, 12)]
    drafter = ModelDrafter(FakeModel(setting.q, setting.v_draft), vocab_map=setting.vocab_map)
    scores: Scores = run_alone(drafter.score(committed, probs, transform.distribution))
    assert len(scores) == 4
    for (_, overlap), i, p in zip(scores, range(8, 12), probs, strict=True):
        right = wanted(setting, committed[:i])
        assert overlap == pytest.approx(sum(min(p.prob(t), right.get(t, 0.0)) for t in range(3)), abs=1e-6)


def test_rows_that_lie_too_far_apart_are_not_scored() -> None:
    """A token of twenty draft tokens: what comes before it is out of reach, what comes after it is not."""
    spelled = {0: (0,), 1: (1,) * 20, 2: (2,)}
    vocab_map = VocabMap([0, -1, 2], n_vocab=3, spell=spelled.__getitem__)
    table = random_table(9, 3)
    committed = [0, 2, 1, 0, 2, 0]
    probs = [Transform(PLAIN, n_vocab=3).distribution(table(tuple(committed[:i])), ()) for i in range(1, 6)]
    drafter = ModelDrafter(FakeModel(table, 3), vocab_map=vocab_map)
    transform = MappedTransform(PLAIN, vocab_map)
    assert len(run_alone(drafter.score(committed, probs, transform.distribution))) == 3


def test_the_identity_costs_no_more_passes() -> None:
    """As many decoded tokens as without a map, and the same text."""
    plain = mapped("same", vocab_map=None, length=30)
    texts = [run(setting, Rng(4), fixed(3)) for setting in (plain, mapped("same", length=30))]
    assert texts[0][0] == texts[1][0]
    assert [r.n_draft_prefilled for r in texts[0][1]] == [r.n_draft_prefilled for r in texts[1][1]]


# --- controls ---------------------------------------------------------------------------------------------


class Scored(Distribution):
    """Drawn from as it is; the verifier is told `factor` times its probabilities."""

    __slots__ = ("factor",)

    def prob(self, token: int) -> float:
        return float(super().prob(token) * self.factor)  # type: ignore[attr-defined]

    def on(self, ids: Ids) -> np.ndarray:
        return super().on(ids) * self.factor  # type: ignore[attr-defined, no-any-return]


class NotRenormalised(MappedTransform):
    """The draft's own probabilities of what both have, as they are."""

    def distribution(self, logits: Logits, generated: Sequence[int]) -> Distribution:
        q = super().distribution(logits, generated)
        scored = Scored(q.ids, q.probs)
        everything = np.exp(logits.astype(np.float64))
        scored.factor = float(everything[self._map.columns].sum() / everything.sum())  # type: ignore[attr-defined]
        return scored


@rules
def test_without_renormalisation_it_would_be_seen(rule: Any) -> None:
    assert distance(mapped("partial", mapped=NotRenormalised), fixed(2), rule) > WRONG
    assert distance(mapped("permuted", mapped=NotRenormalised), fixed(2), rule) < 1e-6, "nothing is missing there"


class NotSummed(VocabMap):
    """Each of several ids for one keeps its own probability."""

    def carried(self, distribution: Distribution) -> Distribution:
        return Distribution(self.ids[distribution.ids], distribution.probs)


def test_duplicates_that_are_not_summed_would_be_seen() -> None:
    setting = mapped("many to one", vocab_map=make_map("many to one", NotSummed))
    assert distance(setting, fixed(2)) > WRONG


class OnePositionEach(DraftText):
    """Counts one position for each of the target's tokens."""

    def of(self, committed: Sequence[int]) -> tuple[list[int], list[int]]:
        text, ends = super().of(committed)
        self._ends = [len(self._map.start) + i + 1 for i in range(len(ends))]
        return text, ends


class Misplaced(ModelDrafter):
    def __init__(self, model: Any, name: str = "model", *, eog: Any = frozenset(), vocab_map: Any = None) -> None:
        super().__init__(model, name, eog=eog, vocab_map=vocab_map)
        self._text = OnePositionEach(vocab_map)


def test_a_position_that_is_off_after_bridging_would_be_seen() -> None:
    """Where the draft spells a token as several, the cache is then cut at the wrong place."""
    assert worst(mapped("partial"), Misplaced) > WRONG
    assert worst(mapped("permuted"), Misplaced) < 1e-6, "one for one there"
    with pytest.raises(AssertionError):
        distance(mapped("partial"), fixed(2), drafter=lambda draft: Misplaced(draft, vocab_map=make_map("partial")))


def test_an_unknown_token_fed_for_what_is_missing_would_be_seen() -> None:
    setting = mapped("partial")
    unknown = make_map("partial", t1=(1,))

    def drafter(model: Any, **_: Any) -> ModelDrafter:
        return ModelDrafter(model, vocab_map=unknown)

    assert worst(setting, drafter) > WRONG
