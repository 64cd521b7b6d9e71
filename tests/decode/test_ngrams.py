"""What a lookup offers: the tokens after the last occurrence of the longest n-gram, and nothing made up."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgguf.config import DRAFT_MAX_LIMIT
from specgguf.decode.drafters import NGRAM_SIZES, NgramDrafter
from specgguf.decode.records import Candidate, Draft, always
from specgguf.decode.sampling import Rng
from specgguf.decode.sequence import run_alone


def brute_force(text: Sequence[int], n_vocab: int, eog: frozenset[int]) -> Candidate | None:
    """By looking at every place, the latest first."""
    for size in NGRAM_SIZES:
        for end in range(len(text) - 1, size - 1, -1):
            if len(text) >= size and list(text[end - size : end]) == list(text[-size:]):
                tokens: list[int] = []
                for token in text[end : end + DRAFT_MAX_LIMIT]:
                    if token >= n_vocab:
                        break
                    tokens.append(token)
                    if token in eog:
                        break
                return Candidate(tuple(tokens), size) if tokens else None
    return None


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(2, 5), st.sets(st.integers(0, 3), max_size=1))
@settings(deadline=None, derandomize=True, max_examples=300)
def test_offers_are_those_of_a_search_through_the_text(text: list[int], n_vocab: int, ends: set[int]) -> None:
    eog = frozenset(ends)
    assert NgramDrafter(n_vocab, eog).candidate(text) == brute_force(text, n_vocab, eog)


@given(st.integers(0, 2**32))
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_text_that_grows_shrinks_and_changes(seed: int) -> None:
    """What was noted along the way never shows: rounds, /undo, another conversation."""
    choose = random.Random(seed)
    drafter, text = NgramDrafter(4, frozenset()), [0]
    for _ in range(40):
        move = choose.random()
        if move < 0.8:
            text = text + [choose.randrange(4) for _ in range(choose.randint(1, 5))]
        elif move < 0.9:
            text = text[: choose.randint(1, len(text))]
        else:
            text = [choose.randrange(4) for _ in range(choose.randint(1, 20))]
        if choose.random() < 0.3:
            drafter.synchronise(text)
        assert drafter.candidate(text) == brute_force(text, 4, frozenset())


@pytest.mark.parametrize("n_max", [1, 3, 40])
def test_a_draft_is_an_offer_without_distributions(n_max: int) -> None:
    drafter = NgramDrafter(100, frozenset({50}))
    text = [*range(10, 40), 50, 1, 2, *range(10, 14)]
    draft = run_alone(drafter.propose(text, n_max, lambda logits, tail: pytest.fail("no law"), Rng(0), always))
    wanted = tuple(range(14, 30))[:n_max]
    assert draft == Draft(wanted, (None,) * len(wanted), "ngram")
    ending = run_alone(
        drafter.propose([*text, *range(14, 38)], 9, lambda logits, tail: pytest.fail("no law"), Rng(0), always)
    )
    assert ending.tokens == (38, 39, 50)
    assert (
        run_alone(drafter.propose([7, 8, 9], 3, lambda logits, tail: pytest.fail("no law"), Rng(0), always)) == Draft()
    )
    assert run_alone(drafter.score(text, [], lambda logits, tail: pytest.fail("no law"))) == ()
