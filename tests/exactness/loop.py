"""The real loop over fake models, one path of its randomness at a time, and the law that it should have.

A `Setting` is a target, a draft and how the text ends; `run` plays `specgguf.generate.generate` in it,
checking the loop's invariants after every round; `reference` is the law of the text by the definition: one
token after the other, each from the target's own law.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support.alone import generate
from support.enumeration import output_distribution, total_variation
from support.fakes import FakeClock, FakeModel, FakeStopCheck, KeepDrafting, Script, Table

from specgguf.config import SamplingParams
from specgguf.decode.drafters import Drafter, ModelDrafter, NgramDrafter
from specgguf.decode.records import Round
from specgguf.decode.sampling import Rng, Transform
from specgguf.decode.verifier import Rule, verify_token
from specgguf.decode.vocab_map import MappedTransform, VocabMap

PLAIN = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)  # the law of the logits themselves

Text = tuple[tuple[int, ...], str | None]


@dataclass(frozen=True)
class Setting:
    """What is played. `q` None drafts nothing of its own: `drafter` must be given to `run`."""

    p: Table
    q: Table | None = None
    v: int = 3
    v_draft: int = 3
    length: int = 4
    prompt: tuple[int, ...] = (0, 1)
    params: SamplingParams = PLAIN
    draft_params: SamplingParams | None = None
    eog: frozenset[int] = frozenset()
    stop: tuple[int, ...] = ()
    n_ctx: int = 64
    memory: str = "plain"
    draft_memory: str = "plain"
    grammar: Callable[[], Any] | None = None  # with `forced`, its forced tokens are drafted
    masks_draft: bool = False
    transform: Callable[..., Transform] = field(default=Transform)
    vocab_map: VocabMap | None = None  # where the draft's ids are not the target's
    mapped: Callable[..., Transform] = field(default=MappedTransform)

    def transforms(self) -> tuple[Transform, Transform]:
        grammar = None if self.grammar is None else self.grammar()
        draft_params = self.draft_params or self.params
        n_draft = min(self.v, self.v_draft)
        if self.vocab_map is not None:
            masked = {"eog": self.eog, "grammar": grammar if self.masks_draft else None}
            return (
                self.transform(self.params, n_vocab=self.v, eog=self.eog, grammar=grammar),
                self.mapped(draft_params, self.vocab_map, **masked),
            )
        return (
            self.transform(self.params, n_vocab=self.v, eog=self.eog, grammar=grammar),
            self.transform(draft_params, n_vocab=n_draft, eog=self.eog, grammar=grammar if self.masks_draft else None),
        )

    def models(self) -> tuple[FakeModel, FakeModel | None]:
        target = FakeModel(self.p, self.v, n_ctx=self.n_ctx, eog=self.eog, memory=self.memory)
        ends = self.eog if self.vocab_map is None else frozenset()
        draft = self.q and FakeModel(self.q, self.v_draft, n_ctx=self.n_ctx, eog=ends, memory=self.draft_memory)
        return target, draft or None


MakeController = Callable[[FakeModel, FakeModel | None], tuple[Any, FakeClock | None]]


def fixed(k: int, keep_drafting: KeepDrafting | None = None) -> MakeController:
    return lambda _target, _draft: (Script([k], keep_drafting), None)


def script(*lengths: int, probe: int = 0) -> MakeController:
    return lambda _target, _draft: (Script(lengths, probe=probe), None)


def run(
    setting: Setting,
    rng: Rng,
    make: MakeController,
    rule: Rule = verify_token,
    *,
    drafter: Callable[[FakeModel | None], Drafter] | None = None,
    ngrams: bool = False,
    target: FakeModel | None = None,
    after: Callable[[Transform, Sequence[int]], None] = lambda _t, _o: None,
    checked: bool = True,
) -> tuple[Text, list[Round]]:
    """One path: the text, why it ended, and the rounds it took."""
    own, draft = setting.models()
    target = target or own
    transform, draft_transform = setting.transforms()
    controller, clock = make(target, draft)
    drafts: Drafter | None = ModelDrafter(draft, eog=setting.eog, vocab_map=setting.vocab_map) if draft else None
    if drafter is not None:
        drafts = drafter(draft)
    rounds: list[Round] = []
    out: list[int] = []
    stream = generate(
        target,
        drafts,
        setting.prompt,
        transform=transform,
        draft_transform=draft_transform,
        rng=rng,
        controller=controller,
        stop_check=FakeStopCheck(setting.length, eog=setting.eog, stop=setting.stop),
        max_tokens=setting.length,
        verify=rule,
        ngrams=NgramDrafter(setting.v, setting.eog) if ngrams else None,
        grammar=transform.grammar if hasattr(transform.grammar, "forced") else None,
        clock=clock or time.perf_counter,
    )
    for round in stream:
        n_room = min(setting.length, setting.n_ctx - len(setting.prompt)) - len(out)
        check_round(round, n_draft_max=n_room)
        rounds.append(round)
        out.extend(round.tokens)
        if checked:
            check_caches(setting, target, draft, [*setting.prompt, *out])
        after(transform, out)
    if setting.memory == "plain" and checked:
        n_verified = sum(1 + r.draft_n for r in rounds)
        assert target.n_decoded == len(setting.prompt) - 1 + n_verified, "a token was decoded twice"
    return (tuple(out), rounds[-1].finish_reason), rounds


def check_round(round: Round, *, n_draft_max: int) -> None:
    assert 1 <= len(round.tokens) <= n_draft_max
    assert 0 <= round.n_from_draft <= round.draft_n_accepted <= round.draft_n <= max(n_draft_max - 1, 0)
    assert len(round.survival) <= round.draft_n
    assert (round.source != "") == (round.draft_n > 0)


def check_caches(setting: Setting, target: FakeModel, draft: FakeModel | None, committed: list[int]) -> None:
    """Both caches are a prefix of the committed tokens, but for the last one, which no pass has read."""
    n = len(target.cells)
    assert target.cells == committed[:n]
    assert n == len(committed) - 1 if setting.memory == "plain" else n < len(committed)
    if draft is not None:
        assert draft.cells == read_by_draft(setting, committed)[: len(draft.cells)]


def read_by_draft(setting: Setting, committed: Sequence[int]) -> list[int]:
    """The text in the draft's ids."""
    if setting.vocab_map is None:
        return list(committed)
    return [*setting.vocab_map.start, *(i for token in committed for i in setting.vocab_map.spelled(token))]


def reference(setting: Setting) -> dict[Text, float]:
    """The text's law by definition: each token from the target's law given everything before it."""
    transform, _ = setting.transforms()
    limit = min(setting.length, setting.n_ctx - len(setting.prompt))
    distribution: dict[Text, float] = {}

    def extend(out: tuple[int, ...], weight: float) -> None:
        stop_check = FakeStopCheck(limit, eog=setting.eog, stop=setting.stop)
        reason = None
        for token in out:
            _, reason = stop_check.check([token])
        if reason is not None:
            distribution[out, reason] = weight
            return
        here = transform.distribution(setting.p((*setting.prompt, *out)), out)
        for token, prob in zip(here.ids.tolist(), here.probs.tolist(), strict=True):
            extend((*out, token), weight * prob)

    extend((), 1.0)
    return distribution


def distance(setting: Setting, make: MakeController, rule: Rule = verify_token, **keywords: Any) -> float:
    """Total variation between what the loop does and what it should do."""
    got = output_distribution(lambda rng: run(setting, rng, make, rule, **keywords)[0])
    assert abs(sum(got.values()) - 1.0) < 1e-9
    return total_variation(got, reference(setting))
