"""What candidates are expected to bring: the order, the arithmetic, and when a slimmed draft is proposed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support import tiny

from specgguf.fit import gains, predict
from specgguf.fit.draft_candidates import Candidate
from specgguf.fit.gains import ACCEPTANCE
from specgguf.fit.hardware import described
from specgguf.fit.predict import PairCosts
from specgguf.fit.slimming import cutting, size


def costs(step_s: float) -> PairCosts:
    """Of a pair whose target takes 100 ms a pass, whatever its size."""
    return PairCosts(step_s, lambda _n: 0.1)


OWN = Candidate("own", 400, True, file=Path("own"))
SLIM = Candidate("slim", 250, True, kept=0.95, file=Path("slim"))
OTHER = Candidate("other", 100, True, share=0.8, file=Path("other"))
FAST_OTHER = Candidate("fast", 90, True, share=0.9, file=Path("fast"))
AWAY = Candidate("away", 300, False)
WRONG = Candidate("wrong", 100, True, "too large: 90% of the target", file=Path("wrong"))
STEPS = {"own": 0.020, "slim": 0.012, "other": 0.010, "fast": 0.001, "away": 0.020}


def test_the_family_comes_first_and_then_the_fastest() -> None:
    found = gains.ranked([WRONG, OTHER, AWAY, FAST_OTHER, OWN, SLIM], lambda c: costs(STEPS[c.name]))
    assert [gain.candidate.name for gain in found] == ["slim", "own", "away", "fast", "other", "wrong"]
    assert found[3].speed_up > found[0].speed_up, "faster, and yet behind the family's"  # type: ignore[operator]
    assert found[-1].speed_up is None


def test_what_a_vocabulary_lacks_is_not_accepted() -> None:
    """Formula and figure of one draft of another vocabulary, slimmed too."""
    candidate = replace(OTHER, kept=0.9)
    gain = gains.ranked([candidate], lambda _c: costs(0.01))[0]
    a = ACCEPTANCE * 0.8 * 0.9
    assert gain.acceptance == pytest.approx(a) == pytest.approx(0.54)
    n = gain.draft_n
    by_hand = (1 - a ** (n + 1)) / (1 - a) * 0.1 / (0.1 + n * 0.01)
    assert gain.speed_up == pytest.approx(by_hand)
    assert by_hand == pytest.approx(predict.best(costs(0.01), a)[1])


def test_a_draft_that_cannot_pay_says_so() -> None:
    slow = gains.ranked([OWN], lambda _c: costs(0.2))[0]
    assert (slow.draft_n, slow.speed_up) == (0, 1.0)
    assert gains.ranked([OWN], lambda _c: None)[0].speed_up is None


@pytest.fixture
def draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Candidate:
    """A tiny draft whose output matrix is most of what a step reads."""
    monkeypatch.setattr(size, "SIZES", (512, 768, 1024))
    vocab = tiny.byte_level([f" word{i}" for i in range(1500)] + [" the", " of", "ing"])
    path = tiny.write_llama(tmp_path / "draft.gguf", vocab)
    return Candidate("draft", path.stat().st_size, True, file=path)


def test_a_slimmed_draft_is_proposed_where_its_step_is_what_costs(draft: Candidate) -> None:
    found = gains.ranked([draft], lambda _c: costs(0.04))
    proposal = gains.slimmed(found, lambda _c: costs(0.04))
    assert proposal is not None
    assert proposal.n in size.SIZES
    assert proposal.whole.candidate is draft
    assert proposal.gain.speed_up > gains.WORTH * found[0].speed_up  # type: ignore[operator]
    assert 0.5 < proposal.gain.candidate.kept < 1.0


def test_none_is_proposed_where_steps_cost_nothing_or_a_faster_draft_is_here(draft: Candidate) -> None:
    free = gains.ranked([draft], lambda _c: costs(1e-9))
    assert gains.slimmed(free, lambda _c: costs(1e-9)) is None
    faster = replace(draft, name="cut", kept=0.99)
    both = gains.ranked([draft, faster], lambda c: costs(0.04 if c is draft else 0.001))
    assert gains.slimmed(both, lambda _c: costs(0.04)) is None
    assert gains.slimmed([], lambda _c: costs(0.04)) is None


def test_costs_by_bytes_know_files_and_say_nothing_of_others(draft: Candidate, tmp_path: Path) -> None:
    target = tiny.write_llama(tmp_path / "target.gguf", tiny.chat())
    by_bytes = gains.by_bytes(target, described(device="RTX 4090"))
    known = by_bytes(draft)
    assert known is not None
    assert known.draft_s > 0
    assert by_bytes(replace(draft, file=None)) is None
    assert by_bytes(replace(draft, file=tmp_path / "nothing.gguf")) is None


def test_a_slimmed_file_says_how_much_it_keeps(draft: Candidate, tmp_path: Path) -> None:
    from specgguf.models import slim

    assert isinstance(draft.file, Path)
    cut = cutting.cut(draft.file, tmp_path / "cut.gguf", 512)
    assert slim.kept_share(cut.path) == pytest.approx(cut.share, abs=1e-6)
    assert slim.kept_share(draft.file) == 1.0
