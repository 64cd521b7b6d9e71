"""What a model drafter reads, draws and leaves behind, over models whose output shows what they have read."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.fakes import FakeModel, random_table

from specgguf.config import SamplingParams
from specgguf.decode.drafters import PENDING_MAX, SCORE_CONTEXT, ModelDrafter
from specgguf.decode.records import Draft, always
from specgguf.decode.sampling import Distribution, Rng, Transform
from specgguf.decode.sequence import run_alone

V = 5
PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
TABLE = random_table(3, V)
TEXT = random.Random(1).choices(range(V), k=60)


def true_distribution(context: Sequence[int]) -> Distribution:
    """What a model that has read `context` says."""
    return Transform(PLAIN, n_vocab=V).distribution(TABLE(tuple(context)), ())


def distribution(logits: np.ndarray, tail: Sequence[int]) -> Distribution:
    return Transform(PLAIN, n_vocab=V).distribution(logits, tail)


def make(**keywords: Any) -> tuple[ModelDrafter, FakeModel]:
    model = FakeModel(TABLE, V, **keywords)
    return ModelDrafter(model), model


def propose(
    drafter: ModelDrafter, committed: Sequence[int], n_max: int = 3, keep_drafting: Any = always, seed: int = 1
) -> Draft:
    return run_alone(drafter.propose(committed, n_max, distribution, Rng(seed), keep_drafting))


def check(draft: Draft, committed: Sequence[int]) -> None:
    """Each token has the law of a model that has read exactly the text before it."""
    assert len(draft.tokens) == len(draft.probs)
    for i, (token, got) in enumerate(zip(draft.tokens, draft.probs, strict=True)):
        assert got is not None
        wanted = true_distribution([*committed, *draft.tokens[:i]])
        assert got.ids.tolist() == wanted.ids.tolist()
        assert (got.probs == wanted.probs).all()
        assert got.prob(token) > 0.0


@pytest.mark.parametrize("memory", ["plain", "checkpoint", "never"])
def test_drafts_after_any_history(memory: str) -> None:
    """Accepted, rejected, rested, another text altogether: always the law of the committed text."""
    drafter, model = make(memory=memory, n_ctx=400)
    choose, committed = random.Random(2), TEXT[:7]
    for step in range(80):
        draft = propose(drafter, committed, choose.randint(1, 4), seed=step)
        check(draft, committed)
        assert draft.source == "model"
        assert model.cells == [*committed, *draft.tokens[:-1]]
        n = choose.randint(0, len(draft))
        committed = [*committed, *draft.tokens[:n], choose.randrange(V)]
        committed += [choose.randrange(V) for _ in range(choose.choice([0, 0, 0, 1, 15]))]
        if choose.random() < 0.1:
            committed = committed[: len(committed) // 2]
        n_decoded = model.n_decoded
        drafter.synchronise(committed)
        assert model.cells == committed[: len(model.cells)]
        assert model.n_decoded == n_decoded, "sync may not decode"


def test_only_what_is_new_is_read() -> None:
    drafter, model = make()
    assert (propose(drafter, TEXT[:10], 3).n_prefilled, model.n_decoded) == (10, 12)
    accepted = [*TEXT[:10], *propose(drafter, TEXT[:10], 3).tokens, 4]
    n_decoded = model.n_decoded
    assert (
        propose(drafter, accepted, 1).n_prefilled == 2
    )  # the last drafted token was never decoded, and the bonus is new
    assert model.n_decoded == n_decoded + 2
    assert propose(drafter, [*accepted[:11], 0], 1).n_prefilled == 1  # a rejection: one new token


def test_a_memory_with_marks_is_never_read_back_far() -> None:
    """More than a few owed tokens are read in a pass of their own, after which the place is marked."""
    drafter, _ = make(memory="checkpoint", n_ctx=400)
    choose, committed = random.Random(3), TEXT[:30]
    worst = 0
    for step in range(60):
        draft = propose(drafter, committed, 3, seed=step)
        worst = max(worst, draft.n_prefilled) if step else 0
        committed = [*committed, *draft.tokens[: choose.randint(0, 1)], choose.randrange(V)]
        drafter.synchronise(committed)
    assert worst <= PENDING_MAX + 4


def test_the_end_of_a_text_ends_the_draft() -> None:
    for seed in range(40):
        drafter, _ = make(eog=frozenset({2, 3}))
        tokens = propose(drafter, TEXT[:5], 6, seed=seed).tokens
        ends = [i for i, token in enumerate(tokens) if token in (2, 3)]
        assert ends in ([], [len(tokens) - 1])
        assert ends or len(tokens) == 6


def test_the_targets_ends_end_a_draft_too() -> None:
    """The draft's file may not know them as ends; a grammar allows nothing after one."""
    for seed in range(40):
        drafter = ModelDrafter(FakeModel(TABLE, V, eog=frozenset({2})), eog=frozenset({3}))
        tokens = propose(drafter, TEXT[:5], 6, seed=seed).tokens
        assert not {2, 3} & set(tokens[:-1])


@pytest.mark.parametrize("n_ctx", [12, 30])
def test_a_smaller_context_ends_drafting_and_nothing_else(n_ctx: int) -> None:
    drafter, model = make(n_ctx=n_ctx)
    lengths = []
    for n in range(1, 40):
        draft = propose(drafter, TEXT[:n], 4)
        check(draft, TEXT[:n])
        lengths.append(len(draft))
        assert len(model.cells) <= n_ctx
    assert lengths == [max(0, min(4, n_ctx - n)) for n in range(1, 40)]
    assert len(propose(drafter, TEXT[:4], 4)) == 4, "a shorter text is drafted for again"


def test_nothing_is_drafted_after_an_id_that_the_draft_lacks() -> None:
    drafter, model = make()
    for committed in ([9], [0, 1, V, 2, 3], [*TEXT[:6], V]):
        assert propose(drafter, committed) == Draft()
        assert model.cells == committed[: len(model.cells)]
    check(propose(drafter, [0, 1, 4]), [0, 1, 4])
    assert propose(drafter, TEXT[:5], 0) == Draft()
    assert propose(drafter, TEXT[:5], -1) == Draft()


def asked(stop: Callable[[int, Distribution | None], bool]) -> tuple[list[tuple[int, bool]], Draft, int, int]:
    """The questions put to `go_on`, the draft, and how many tokens were decoded and drawn."""
    questions: list[tuple[int, bool]] = []
    drawn = 0

    class Counting(Rng):
        def categorical(self, probs: Any) -> int:
            nonlocal drawn
            drawn += 1
            return super().categorical(probs)

    def keep_drafting(i: int, distribution_: Distribution | None) -> bool:
        assert i == drawn, "asked after the draw"
        questions.append((i, distribution_ is not None))
        return not stop(i, distribution_)

    drafter, model = make()
    draft = run_alone(drafter.propose(TEXT[:5], 3, distribution, Counting(1), keep_drafting))
    return questions, draft, model.n_decoded, drawn


def test_stopping_is_decided_before_a_token_is_drawn() -> None:
    """A question before each decode and each draw; what was drawn is kept."""
    questions, draft, n_decoded, drawn = asked(lambda i, distribution: False)
    assert questions == [(0, True), (1, False), (1, True), (2, False), (2, True)]
    assert (len(draft), n_decoded, drawn) == (3, 7, 3)
    questions, draft, n_decoded, drawn = asked(lambda i, distribution: i == 1 and distribution is None)
    assert questions[-1] == (1, False)
    assert (len(draft), n_decoded, drawn) == (1, 5, 1)
    questions, draft, n_decoded, drawn = asked(lambda i, distribution: i == 1 and distribution is not None)
    assert questions[-1] == (1, True)
    assert (len(draft), n_decoded, drawn) == (1, 6, 1)
    _, draft, n_decoded, drawn = asked(lambda i, distribution: True)
    assert (draft, n_decoded, drawn) == (Draft(n_prefilled=5), 5, 0)


def overlaps(committed: Sequence[int], n: int) -> list[float]:
    """Σ min(p, q) of the last n tokens' laws, with p = the draft's own law shifted by one context."""
    return [
        p_of(committed, i).overlap(true_distribution(committed[:i])) for i in range(len(committed) - n, len(committed))
    ]


def p_of(committed: Sequence[int], i: int) -> Distribution:
    """Some law for token i, as the target's would be."""
    return true_distribution([1, *committed[:i]])


@pytest.mark.parametrize("memory", ["plain", "checkpoint", "never"])
@pytest.mark.parametrize("n_read", [0, 1, 10, 15, 19])
def test_scores_are_the_overlaps_of_the_distributions(memory: str, n_read: int) -> None:
    drafter, model = make(memory=memory)
    if n_read:
        propose(drafter, TEXT[:n_read], 1)
    probs = [p_of(TEXT[:20], i) for i in range(12, 20)]
    n = min(8, 19 - n_read)
    scores = run_alone(drafter.score(TEXT[:20], probs, distribution))
    assert [overlap for _, overlap in scores] == pytest.approx(overlaps(TEXT[:20], n) if n else [], abs=1e-12)
    assert [c for c, _ in scores] == [true_distribution(TEXT[:i]).confidence for i in range(20 - n, 20)]
    assert model.cells == TEXT[:19][: len(model.cells)]


def test_scoring_far_ahead_skips_the_middle_and_leaves_no_trace() -> None:
    """A short context before the scored tokens instead of all that was missed; dropped again."""
    drafter, model = make(n_ctx=80)
    propose(drafter, TEXT[:4], 1)
    n_decoded = model.n_decoded
    scores = run_alone(drafter.score(TEXT, [p_of(TEXT, i) for i in range(52, 60)], distribution))
    assert len(scores) == 8
    assert model.n_decoded - n_decoded == 8 + SCORE_CONTEXT
    assert model.cells == TEXT[:4]
    kept = [*TEXT[:4], *TEXT[59 - 8 - SCORE_CONTEXT : 59]]
    seen = [true_distribution(kept[: len(kept) - 7 + i]) for i in range(8)]
    wanted = [p_of(TEXT, 52 + i).overlap(q) for i, q in enumerate(seen)]
    assert [overlap for _, overlap in scores] == pytest.approx(wanted, abs=1e-12)
    check(propose(drafter, TEXT), TEXT)


def test_what_cannot_be_scored_is_not() -> None:
    probs = [p_of(TEXT, i) for i in range(10, 20)]
    drafter, model = make(n_ctx=15)
    assert run_alone(drafter.score(TEXT[:20], probs, distribution)) == ()
    drafter, model = make()
    assert run_alone(drafter.score(TEXT[:20], [], distribution)) == ()
    assert run_alone(drafter.score([*TEXT[:10], V, *TEXT[10:19]], probs, distribution)) == ()
    assert model.n_decoded == 0
