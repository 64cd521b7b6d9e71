"""The whole loop has exactly the target's law: every outcome enumerated, total variation below 1e-12.

Fake models whose output depends on what their caches hold; the real drafter, verifiers, controllers, cuts and
rewinds. That these tests can fail is shown in test_wrong_implementations.py.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from loop import PLAIN, MakeController, Setting, distance, fixed, reference, run, script
from support.alone import generate
from support.enumeration import EnumeratingRng, expectation, output_distribution, total_variation, walk
from support.fakes import FakeClock, FakeModel, FakeStopCheck, Script, random_table

from specgguf.control.controller import Adaptive, Fixed
from specgguf.control.costs import Costs
from specgguf.decode.drafters import ModelDrafter, NgramDrafter, Proposal
from specgguf.decode.records import Draft, Round, VerifyResult
from specgguf.decode.sampling import Distribution, Rng, Transform, draw, one_hot
from specgguf.decode.verifier import RULES
from specgguf.errors import BackendError

EXACT = 1e-12

rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
lengths = pytest.mark.parametrize("k", [1, 2, 3])


def pair(zeros: float = 0.0, seed: int = 1, mix: float = 0.5, **keywords: Any) -> Setting:
    """Three ids, four tokens; the draft agrees with the target in part, and forbids other ids than it does."""
    p = random_table(seed, keywords.get("v", 3), zeros=zeros)
    q = random_table(seed + 100, keywords.get("v_draft", 3), zeros=zeros, of=p, mix=mix)
    return Setting(p, q, **keywords)


@rules
@lengths
@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_drafting_a_fixed_number(rule: Any, k: int, zeros: float) -> None:
    setting = pair(zeros)
    assert distance(setting, lambda _t, _d: (Fixed(k), None), rule) < EXACT


@rules
@pytest.mark.parametrize("mix", [0.0, 1.0])
def test_a_stranger_and_a_twin_as_draft(rule: Any, mix: float) -> None:
    assert distance(pair(mix=mix), fixed(3), rule) < EXACT


@rules
@pytest.mark.parametrize("lengths", [(3, 0), (0, 2), (2, 0, 0, 1), (1, 3, 0), (0,)])
def test_resting_and_resuming(rule: Any, lengths: tuple[int, ...]) -> None:
    """The draft's cache lags while resting and catches up when drafting resumes."""
    assert distance(pair(length=5, v=2, v_draft=2), script(*lengths), rule) < EXACT


TWO_IDS = pair(length=6, v=2, v_draft=2)  # long enough for every length from 0 to 3


@rules
@pytest.mark.parametrize("context", [0, 16])
def test_probing_while_resting(rule: Any, context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft scores plain tokens, with the middle of the text skipped or not; the law does not move."""
    monkeypatch.setattr("specgguf.decode.drafters.SCORE_CONTEXT", context)
    setting = pair(length=6, v=2, v_draft=2)
    assert distance(setting, script(0, 0, 0, 2, 0, probe=2), rule) < EXACT
    assert off_text(pair(length=60, n_ctx=80), script(0, 0, 3, 0, 0, 0, 2, probe=1)) < EXACT


@rules
@pytest.mark.parametrize("n_ctx", [64, 6])
def test_padded_passes(rule: Any, n_ctx: int) -> None:
    """Where the context is nearly full there is no room for dummies, and the loop goes on without."""
    made: list[FakeModel] = []

    def make(target: FakeModel, _draft: FakeModel | None) -> tuple[Any, None]:
        made.append(target)
        return Script([2, 0, 3], padding=3), None

    assert distance(pair(n_ctx=n_ctx), make, rule) < EXACT
    assert any(target.n_padded for target in made)
    assert all(target.n_padded for target in made) == (n_ctx == 64)


def test_a_probe_is_the_overlap_of_the_distributions() -> None:
    """Σ min(p, q) after the same text, for each of the last plain tokens."""
    setting = pair(length=12)
    assert setting.q is not None
    (out, _), rounds = run(setting, Rng(3), script(0, probe=4))
    scored = 0
    for n, round in enumerate(rounds):
        for i, (_, overlap) in enumerate(reversed(round.probe)):
            context = (*setting.prompt, *out[: n - 1 - i])
            p, q = (np.exp(table(context).astype(np.float64)) for table in (setting.p, setting.q))
            assert overlap == pytest.approx(np.minimum(p, q).sum(), abs=1e-6)
            scored += 1
    assert scored >= 10


def adaptive(**costs: Any) -> MakeController:
    """The adaptive controller under a clock that moves by what the models decode."""

    def make(target: FakeModel, draft: FakeModel | None) -> tuple[Any, FakeClock]:
        assert draft is not None
        clock = FakeClock([(target, 10e-3, 1e-3), (draft, 1e-3, 1e-4)], host=1e-5)
        return Adaptive(3, Costs(4, **costs)), clock

    return make


@rules
@pytest.mark.parametrize(
    "costs",
    [
        {},
        {"verify_s": {1: 0.011, 2: 0.012, 4: 0.014}, "draft_s": 0.0011},
        {"verify_s": {1: 0.011, 2: 0.018, 4: 0.03}, "draft_s": 0.004},
        {"verify_s": {1: 0.011, 2: 0.06, 4: 0.1}, "draft_s": 0.009},
    ],
    ids=["unknown", "cheap", "narrow", "hopeless"],
)
def test_an_adaptive_length(rule: Any, costs: dict[str, Any]) -> None:
    """Clock and estimates steer how much is drafted and when a draft stops; the law does not move."""
    assert distance(pair(), adaptive(**costs), rule) < EXACT
    assert distance(TWO_IDS, adaptive(**costs), rule) < EXACT


def test_the_adaptive_tests_see_different_lengths() -> None:
    """The cheap setting drafts one, two and three tokens and stops early; the hopeless one rests."""

    def drafted(verify_s: dict[int, float], draft_s: float) -> set[int]:
        make = adaptive(verify_s=verify_s, draft_s=draft_s)
        return {r.draft_n for _, (_, rounds) in walk(lambda rng: run(TWO_IDS, rng, make)) for r in rounds}

    assert drafted({1: 0.011, 2: 0.012, 4: 0.014}, 0.0011) == {0, 1, 2, 3}
    assert drafted({1: 0.011, 2: 0.06, 4: 0.1}, 0.009) == {0}


@rules
def test_stopping_by_what_the_draft_believes(rule: Any) -> None:
    """A draft may end for its law's sake, decided before the token is drawn."""
    go = fixed(3, lambda i, distribution: i == 0 or distribution is None or float(distribution.probs[0]) > 0.55)
    assert distance(pair(), go, rule) < EXACT


class Chosen:
    """Proposes tokens that were not drawn: one-hot, without laws, as a lookup drafter does."""

    name = "chosen"

    def __init__(self, choose: Any) -> None:
        self.choose = choose

    def propose(
        self, committed: Sequence[int], n_max: int, distribution: Any, rng: Rng, keep_drafting: Any
    ) -> Proposal:
        yield from ()
        tokens: list[int] = []
        while len(tokens) < n_max and keep_drafting(len(tokens), one_hot(0)):
            tokens.append(self.choose([*committed, *tokens]))
        return Draft(tuple(tokens), (None,) * len(tokens), self.name) if tokens else Draft()

    def synchronise(self, committed: Sequence[int]) -> None:
        pass


@rules
@lengths
def test_tokens_that_were_chosen_not_drawn(rule: Any, k: int) -> None:
    """Any choice is exact, the forbidden one too."""
    setting = dataclasses.replace(pair(0.4), q=None)
    for choose in (lambda c: 0, lambda c: sum(c) % 3, lambda c: c[-2]):
        drafter = lambda _d, choose=choose: Chosen(choose)  # noqa: E731
        assert distance(setting, fixed(k), rule, drafter=drafter) < EXACT


@rules
def test_a_lookup_draft(rule: Any) -> None:
    """Prompt lookup: what followed the same two tokens before."""
    setting = dataclasses.replace(pair(0.2), q=None, prompt=(0, 1, 2, 0, 1, 1, 2, 0))
    drafter = lambda _d: NgramDrafter(3, frozenset())  # noqa: E731
    assert any(r.draft_n > 1 for r in run(setting, Rng(0), fixed(3), rule, drafter=drafter)[1])
    assert distance(setting, fixed(3), rule, drafter=drafter) < EXACT


@rules
@pytest.mark.parametrize("lengths", [(2,), (3, 0, 1)])
def test_a_draft_model_and_a_lookup_in_turns(rule: Any, lengths: tuple[int, ...]) -> None:
    """Whichever offers: one-hot blocks and drawn ones in one text."""
    setting = pair(length=5, v=2, v_draft=2, prompt=(0, 1, 1, 0, 1))
    make = lambda _t, _d: (Script(lengths, ngrams=True), None)  # noqa: E731
    paths = list(walk(lambda rng: run(setting, rng, make, rule, ngrams=True)))
    assert {r.source for _, (_, rounds) in paths for r in rounds} >= {"model", "ngram"}
    assert distance(setting, make, rule, ngrams=True) < EXACT
    assert distance(setting, adaptive(**CHEAP), rule, ngrams=True) < EXACT


CHEAP: dict[str, Any] = {"verify_s": {1: 0.011, 2: 0.012, 4: 0.014}, "draft_s": 0.0011}


@rules
@pytest.mark.parametrize("temperature", [0.0, 0.3, 3.0])
def test_a_draft_at_another_temperature(rule: Any, temperature: float) -> None:
    """q is the law that was drawn from, whatever made it; at 0 it is one-hot."""
    draft_params = dataclasses.replace(PLAIN, temperature=temperature)
    assert distance(pair(draft_params=draft_params), fixed(3), rule) < EXACT


@rules
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.7, "top_k": 2},
        {"temperature": 1.3, "top_p": 0.7},
        {"temperature": 0.5, "min_p": 0.3},
        {"temperature": 0.8, "typical_p": 0.6},
        {"temperature": 0.0},
        {"temperature": -1.0, "top_k": 1},
        {"logit_bias": {0: -2.0, 2: 1.0}},
        {"logit_bias": {1: -float("inf")}},
    ],
    ids=str,
)
def test_transforms(rule: Any, params: dict[str, Any]) -> None:
    setting = pair(params=dataclasses.replace(PLAIN, **params))
    assert distance(setting, fixed(3), rule) < EXACT


@rules
@pytest.mark.parametrize(
    "params",
    [
        {"repeat_penalty": 1.5},
        {"frequency_penalty": 0.9},
        {"presence_penalty": -1.2},
        {"repeat_penalty": 1.3, "frequency_penalty": 0.4, "penalty_last_n": 2},
        {"temperature": 0.0, "repeat_penalty": 1.8},
    ],
    ids=str,
)
def test_penalties_count_the_drafted_prefix(rule: Any, params: dict[str, Any]) -> None:
    setting = pair(params=dataclasses.replace(PLAIN, **params))
    assert distance(setting, fixed(3), rule) < EXACT


@rules
@pytest.mark.parametrize(("v", "v_draft"), [(3, 4), (4, 3)])
def test_unequal_vocabularies(rule: Any, v: int, v_draft: int) -> None:
    """Ids that one side lacks have probability 0 there; one that only the target has may be emitted."""
    assert distance(pair(v=v, v_draft=v_draft, length=3), fixed(2), rule) < EXACT
    assert distance(pair(v=v, v_draft=v_draft, length=4), script(1, 0, 2), rule) < EXACT


@rules
@pytest.mark.parametrize("params", [{}, {"min_tokens": 2}, {"ignore_eos": True}], ids=str)
def test_end_of_generation(rule: Any, params: dict[str, Any]) -> None:
    """Also in the middle of an accepted block: nothing after it is emitted."""
    setting = pair(eog=frozenset({2}), params=dataclasses.replace(PLAIN, **params))
    assert {reason for _, reason in reference(setting)} == ({"length"} if "ignore_eos" in params else {"eos", "length"})
    assert distance(setting, fixed(3), rule) < EXACT


@rules
@pytest.mark.parametrize("stop", [(1,), (0, 2), (2, 2, 1)])
def test_stop_sequences(rule: Any, stop: tuple[int, ...]) -> None:
    """Over several tokens, over several blocks, inside one."""
    assert distance(pair(stop=stop), fixed(3), rule) < EXACT


@rules
def test_everything_that_ends_a_text_at_once(rule: Any) -> None:
    setting = pair(0.2, eog=frozenset({2}), stop=(0, 1), length=4)
    assert {reason for _, reason in reference(setting)} == {"eos", "stop", "length"}
    assert distance(setting, fixed(3), rule) < EXACT


@rules
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_max_tokens_inside_a_block(rule: Any, length: int) -> None:
    assert distance(pair(length=length, v=2, v_draft=2), fixed(5), rule) < EXACT


@rules
def test_the_end_of_the_context(rule: Any) -> None:
    """Room for three more tokens: the text ends with "length", nothing overflows."""
    setting = pair(length=10, n_ctx=5)
    assert {(len(out), reason) for out, reason in reference(setting)} == {(3, "length")}
    assert distance(setting, fixed(5), rule) < EXACT


@rules
def test_a_draft_with_a_shorter_context(rule: Any) -> None:
    """Where the draft's context ends, plain decoding goes on."""
    setting = pair(length=5, v=2, v_draft=2)
    drafter = lambda draft: ModelDrafter(FakeModel(draft.table, 2, n_ctx=4))  # noqa: E731
    assert distance(setting, fixed(3), rule, drafter=drafter) < EXACT


@rules
@pytest.mark.parametrize("memory", ["checkpoint", "never"])
def test_a_memory_that_does_not_rewind_freely(rule: Any, memory: str) -> None:
    """What is owed after a rejection rides along, or is read again; it is never verified again."""
    assert distance(pair(memory=memory), fixed(3), rule) < EXACT
    long = pair(memory=memory, length=3, prompt=(0, 1, 2, 0, 1, 2, 0, 0, 1, 1, 2))
    assert distance(long, fixed(2), rule) < EXACT
    lagging = pair(memory=memory, v=2, v_draft=2, length=6, prompt=(0, 1, 0, 0, 1, 0, 0))
    assert distance(lagging, script(2, 0, 1), rule) < EXACT


def checkpointed(draft: FakeModel | None) -> ModelDrafter:
    assert draft is not None
    return ModelDrafter(FakeModel(draft.table, draft.n_vocab, memory="checkpoint"))


@rules
def test_a_draft_whose_memory_does_not_rewind_freely(rule: Any) -> None:
    assert distance(pair(), fixed(3), rule, drafter=checkpointed) < EXACT
    assert distance(pair(memory="checkpoint"), script(2, 0, 3), rule, drafter=checkpointed) < EXACT


@pytest.mark.parametrize("memory", ["plain", "checkpoint"])
def test_what_a_checkpoint_costs(memory: str) -> None:
    """A memory with marks reads committed tokens again, but never many: what is owed stays bounded."""
    p = random_table(7, 4)
    setting = Setting(p, random_table(8, 4, of=p), v=4, v_draft=4, length=200, n_ctx=300, memory=memory)
    _, rounds = run(setting, Rng(3), fixed(3))
    most = max(r.n_pending for r in rounds[1:])
    assert most == 1 if memory == "plain" else 1 < most <= 8
    assert (sum(r.n_prefilled for r in rounds[1:]) > 0) == (memory == "checkpoint")


class NoRepeats:
    """A grammar of its own: no id twice in a row, and a text ends with its end-of-generation token.

    It may not even be asked about a text that it forbids.
    """

    def __init__(self, eog: frozenset[int] = frozenset()) -> None:
        self.eog = eog

    def mask(self, generated: Sequence[int]) -> Any:
        for before, token in itertools.pairwise(generated):
            assert before != token, "asked about a forbidden text"
            assert before not in self.eog, "asked about a text after its end"
        assert not set(generated[-1:]) & self.eog, "asked what follows the end"
        return np.packbits([not generated or token != generated[-1] for token in range(8)], bitorder="little")


@rules
@lengths
@pytest.mark.parametrize("eog", [frozenset(), frozenset({2})])
def test_a_grammar(rule: Any, k: int, eog: frozenset[int]) -> None:
    """The target's law is restricted along the drafted prefix; the draft knows no grammar."""
    setting = pair(eog=eog, grammar=lambda: NoRepeats(eog))
    wanted = reference(setting)
    assert all(a != b for out, _ in wanted for a, b in itertools.pairwise(out))
    assert distance(setting, fixed(k), rule) < EXACT


@rules
@lengths
def test_expected_length_of_a_round(rule: Any, k: int) -> None:
    """The first round commits 1 + Σ E P[i] tokens: the bonus is there. Closed form over all drafts."""
    setting = pair(length=k + 1)
    assert first_round(setting, k, rule) == pytest.approx(1.0 + expected_accepted(setting, k, rule), abs=1e-12)


def first_round(setting: Setting, k: int, rule: Any) -> float:
    return expectation(lambda rng: float(len(run(setting, rng, fixed(k), rule)[1][0].tokens)))


def expected_accepted(setting: Setting, k: int, rule: Any) -> float:
    """Σ_i E P[i] from the tables alone."""
    assert setting.q is not None
    total = 0.0
    frontier: dict[tuple[int, ...], tuple[float, float]] = {(): (1.0, 1.0)}  # drafted -> (probability, survival)
    for _ in range(k):
        following: dict[tuple[int, ...], tuple[float, float]] = {}
        for drafted, (weight, alive) in frontier.items():
            context = (*setting.prompt, *drafted)
            p = np.exp(setting.p(context).astype(np.float64))
            q = np.exp(setting.q(context).astype(np.float64))
            p, q = p / p.sum(), q / q.sum()
            for x in np.flatnonzero(q):
                ratio = p[x] / q[x]
                survives = min(1.0, alive * ratio) if rule is RULES["block"] else alive * min(1.0, ratio)
                following[(*drafted, int(x))] = (weight * q[x], survives)
                total += weight * q[x] * survives
        frontier = following
    return total


@rules
@pytest.mark.parametrize("lengths", [(3,), (3, 0, 0, 2), (1, 0, 3), (2, 5)])
def test_a_draft_of_its_own_is_always_accepted(rule: Any, lengths: tuple[int, ...]) -> None:
    """Self-draft: only a stale, shifted or doubled draft cache can make q differ from p."""
    p = random_table(7, 4, zeros=0.2)
    setting = Setting(p, p, v=4, v_draft=4, length=30)
    for seed in range(20):
        _, rounds = run(setting, Rng(seed), script(*lengths), rule)
        assert sum(r.draft_n for r in rounds) > 10
        assert all(r.draft_n_accepted == r.draft_n for r in rounds)
        assert all(s == pytest.approx(1.0, abs=1e-12) for r in rounds for s in r.survival)


def off_text(setting: Setting, make: MakeController, **keywords: Any) -> float:
    """How far the draft's laws are from those of the text that it should have read (greatest difference).

    The verifier here accepts by a script, so that caches see every pattern of acceptance and rejection.
    """
    assert setting.q is not None
    script_ = random.Random(2)
    out: list[int] = []
    worst = 0.0

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        nonlocal worst
        for i, distribution in enumerate(draft.probs):
            assert distribution is not None
            logits = setting.q((*setting.prompt, *out, *draft.tokens[:i]))  # type: ignore[misc]
            true = Transform(PLAIN, n_vocab=setting.v).distribution(logits, ())
            worst = max(worst, 1.0 - distribution.overlap(true))
        n = script_.randint(0, len(draft))
        return VerifyResult(n, draw(rows[n], rng))

    def committed(_transform: Transform, so_far: Sequence[int]) -> None:
        out[:] = so_far

    for seed in range(5):
        out.clear()
        run(setting, Rng(seed), make, rule, after=committed, checked=False, **keywords)
    return worst


@pytest.mark.parametrize("lengths", [(3,), (3, 0, 0, 2), (1, 0, 3), (2, 5)])
def test_the_draft_has_read_the_committed_text(lengths: tuple[int, ...]) -> None:
    """q is the draft's law after exactly what was committed, whatever was rejected or skipped before."""
    p = random_table(7, 4)
    setting = Setting(p, random_table(8, 4, of=p), v=4, v_draft=4, length=60, n_ctx=80)
    assert off_text(setting, script(*lengths)) < EXACT


@rules
def test_long_random_runs_keep_their_caches(rule: Any) -> None:
    """Three hundred tokens with random lengths; `run` checks both caches after each of the rounds."""
    p = random_table(3, 5)
    q = random_table(4, 5, of=p)
    setting = Setting(p, q, v=5, v_draft=5, length=300, n_ctx=400)
    pattern = random.Random(5).choices([0, 0, 1, 2, 3, 4, 5], k=37)
    (out, reason), rounds = run(setting, Rng(1), script(*pattern), rule)
    assert len(out) == 300
    assert reason == "length"
    assert 0 < sum(r.draft_n_accepted for r in rounds) < sum(r.draft_n for r in rounds)


class Failing(FakeModel):
    """Fails in its n-th decode, as llama.cpp may."""

    fail_at = 0

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> np.ndarray:
        if self.n_decodes + 1 == self.fail_at:
            self.fail_at = 0
            raise BackendError("no room")
        return super().extend(tokens, n_outputs, n_padding)


def turn(models: Sequence[FakeModel], prompt: Sequence[int], length: int, rng: Rng) -> Iterator[Round]:
    """A generation over models that were used before, two drafted tokens a round."""
    target, draft = models
    return generate(
        target,
        ModelDrafter(draft),
        prompt,
        transform=Transform(PLAIN, n_vocab=3),
        rng=rng,
        controller=Script([2]),
        stop_check=FakeStopCheck(length),
        max_tokens=length,
    )


def text(rounds: Iterator[Round]) -> tuple[tuple[int, ...], str | None]:
    out: list[int] = []
    reason = None
    for round in rounds:
        out.extend(round.tokens)
        reason = round.finish_reason
    return tuple(out), reason


@pytest.mark.parametrize("which", [0, 1], ids=["target", "draft"])
@pytest.mark.parametrize("fail_at", [1, 2, 3, 4])
def test_a_failure_leaves_both_caches_valid(which: int, fail_at: int) -> None:
    """And the next generation over the same models has the right law. Where the draft fails, this one goes on."""
    setting = pair(length=3)

    def after_a_failure(rng: Rng) -> Any:
        models = [Failing(setting.p, 3), Failing(random_table(101, 3, of=setting.p), 3)]
        models[which].fail_at = fail_at
        committed = list(setting.prompt)
        with pytest.raises(BackendError) if which == 0 else nullcontext():
            committed.extend(t for round in turn(models, setting.prompt, 12, Rng(1)) for t in round.tokens)
        assert which == 0 or len(committed) == len(setting.prompt) + 12
        assert not models[which].fail_at, "it did fail"
        for model in models:
            assert model.cells == committed[: len(model.cells)]
        return text(turn(models, setting.prompt, 3, rng))

    assert total_variation(output_distribution(after_a_failure), reference(setting)) < EXACT


@pytest.mark.parametrize("n_rounds", [0, 1, 2])
def test_a_generator_that_is_closed_early(n_rounds: int) -> None:
    """The caches hold a prefix of what was committed, and the next turn goes on from there."""
    setting = dataclasses.replace(pair(length=3), prompt=(0, 1, 2, 2))

    def two_turns(rng: Rng) -> Any:
        models = [FakeModel(setting.p, 3), FakeModel(random_table(101, 3, of=setting.p), 3)]
        committed = [0, 1]
        first = turn(models, committed, 6, Rng(3))
        for _ in range(n_rounds):
            committed.extend(next(first).tokens)
        first.close()  # type: ignore[attr-defined]
        for model in models:
            assert model.cells == committed[: len(model.cells)]
        return text(turn(models, setting.prompt, 3, rng))

    assert total_variation(output_distribution(two_turns), reference(setting)) < EXACT


def test_the_reference_is_the_product_of_the_tables() -> None:
    """The yardstick itself, against plain arithmetic on the tables."""
    setting = pair(0.3)
    for (out, _), weight in reference(setting).items():
        product = 1.0
        for i, token in enumerate(out):
            p = np.exp(setting.p((*setting.prompt, *out[:i])).astype(np.float64))
            product *= p[token] / p.sum()
        assert weight == pytest.approx(product, rel=1e-12)


def test_no_distribution_is_lost_on_the_way() -> None:
    """Every model-drafted token has the law that it was drawn from."""
    seen: list[Draft] = []

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> Any:
        seen.append(draft)
        return RULES["token"](draft, rows, rng)

    run(pair(), EnumeratingRng([]), fixed(3), rule)
    assert seen
    for draft in seen:
        for token, distribution in zip(draft.tokens, draft.probs, strict=True):
            assert distribution is not None
            assert distribution.prob(token) > 0.0
            assert distribution.probs.sum() == pytest.approx(1.0, abs=1e-9)
