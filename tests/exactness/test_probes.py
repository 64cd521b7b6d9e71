"""What a probe scores: the target's distributions of the latest plain tokens, and of no others."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest
from loop import Setting, run, script
from support.fakes import FakeModel, random_table

from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.records import ToDistribution
from specgguf.decode.sampling import Distribution, Logits, Rng
from specgguf.decode.sequence import Forward


@pytest.mark.parametrize("lengths", [(0, 0, 2), (0, 3, 0), (2, 0, 0, 1), (0, 0, 0)])
def test_a_probe_is_given_the_distributions_of_its_own_tokens(lengths: tuple[int, ...]) -> None:
    """Those from before a drafted round would be compared with the wrong tokens."""
    p = random_table(3, 4)
    setting = Setting(p, random_table(4, 4, of=p), v=4, v_draft=4, length=30)
    transform, _ = setting.transforms()
    n_seen = 0

    class Checked(ModelDrafter):
        def score(
            self, committed: Sequence[int], probs: Sequence[Distribution], distribution: ToDistribution
        ) -> Generator[Forward, Logits, Any]:
            nonlocal n_seen
            for i, given in enumerate(probs, len(committed) - len(probs)):
                true = transform.distribution(setting.p(tuple(committed[:i])), committed[2:i])
                assert given.overlap(true) == pytest.approx(1.0, abs=1e-12)
                n_seen += 1
            return (yield from super().score(committed, probs, distribution))

    def make(draft: FakeModel | None) -> Any:
        assert draft is not None
        return Checked(draft)

    for seed in range(5):
        run(setting, Rng(seed), script(*lengths, probe=8), drafter=make)
    assert n_seen > 20
