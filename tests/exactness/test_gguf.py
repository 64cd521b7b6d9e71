"""The same enumeration over real llama.cpp: two tiny GGUF files, real caches, real rewinds.

Dense files with F32 caches and single tokens padded to two: rows of every width are bit-identical, and the
loop's law is the target's to rounding. Hybrid and recurrent files cannot be padded; their rows move in the
seventh digit (the fourth, at worst, over a hundred tokens). The yardstick is a fresh context per text, which
never rewinds anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from conftest import Pair
from support.alone import generate
from support.enumeration import output_distribution, total_variation
from support.fakes import FakeStopCheck, Script

from specgguf.config import SamplingParams
from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.records import Draft, Round, VerifyResult
from specgguf.decode.sampling import Distribution, Rng, Transform, draw
from specgguf.decode.verifier import RULES, verify_token
from specgguf.grammar.cursor import GrammarCursor, compile_grammar
from specgguf.native import rollback
from specgguf.native.context import Model
from specgguf.native.weights import Weights

PROMPT = [1, 5, 3, 7, 4]
DENSE, RECURRENT = 1e-9, 1e-5  # how far a law may be from the target's
ROW_NOISE = 1e-3  # how far a row may be where it cannot be bit-identical; wrong states are off by 1e-2 and more

rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


@dataclass
class Loaded:
    """A file and its contexts: `model` is what is tested, `fresh` never rewinds."""

    path: Path
    n_rs_seq: int = 0
    n_ctx: int = 256
    keywords: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        threads = {"n_threads": 1, "n_threads_batch": 1}
        self.weights = Weights(str(self.path), {"type_k": 0, "type_v": 0, **threads, **self.keywords})
        self.model = self.context(self.n_rs_seq)
        self.fresh = self.context(0)
        self.known: dict[tuple[int, ...], np.ndarray] = {}

    def context(self, n_rs_seq: int) -> Model:
        """Prompts go in chunks of 32: llama.cpp's flash attention has another kernel from 64 rows on, whose
        rows differ in the third digit (with flash_attn=False rows of every width are identical)."""
        return Model(self.weights, n_ctx=self.n_ctx, n_batch=32, n_rs_seq=n_rs_seq, pad_to=2)

    def logits(self, tokens: Sequence[int]) -> np.ndarray:
        """Of the token after `tokens`, from an empty context in one pass."""
        key = tuple(tokens)
        if key not in self.known:
            self.fresh.clear()
            self.known[key] = self.fresh.extend(list(tokens), 1)[0].copy()
        return self.known[key]

    def close(self) -> None:
        self.model.close()
        self.fresh.close()
        self.weights.close()


@contextmanager
def loaded(path: Path, **keywords: Any) -> Iterator[Loaded]:
    file = Loaded(path, **keywords)
    try:
        yield file
    finally:
        file.close()


def stream(target: Model, draft: Model, lengths: Sequence[int], n: int, **keywords: Any) -> Iterator[Round]:
    params = keywords.pop("params")
    grammar = keywords.pop("grammar", None)
    return generate(
        target,
        ModelDrafter(draft),
        keywords.pop("prompt", PROMPT),
        transform=Transform(params, n_vocab=target.n_vocab, eog=target.eog, grammar=grammar),
        draft_transform=Transform(params, n_vocab=draft.n_vocab, eog=target.eog),
        controller=Script(lengths),
        stop_check=FakeStopCheck(n, eog=target.eog),
        max_tokens=n,
        **keywords,
    )


def top(k: int, **keywords: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "top_k": k, "top_p": 1.0, "min_p": 0.0, **keywords})


def reference(
    file: Loaded,
    params: SamplingParams,
    n: int,
    make_grammar: Callable[[], Any] = lambda: None,
    prompt: Sequence[int] = PROMPT,
) -> dict[tuple[int, ...], float]:
    """The text's law, each row from an empty context."""
    transform = Transform(params, n_vocab=file.model.n_vocab, eog=file.model.eog, grammar=make_grammar())
    distribution: dict[tuple[int, ...], float] = {}

    def extend(out: tuple[int, ...], weight: float) -> None:
        if len(out) == n or (out and out[-1] in file.model.eog):
            distribution[out] = weight
            return
        here = transform.distribution(file.logits([*prompt, *out]), out)
        for token, prob in zip(here.ids.tolist(), here.probs.tolist(), strict=True):
            extend((*out, token), weight * prob)

    extend((), 1.0)
    return distribution


def distance(target: Loaded, draft: Loaded, lengths: Sequence[int], n: int, rule: Any, params: SamplingParams) -> float:
    def play(rng: Rng) -> tuple[int, ...]:
        rounds = stream(target.model, draft.model, lengths, n, params=params, rng=rng, verify=rule)
        return tuple(t for round in rounds for t in round.tokens)

    return total_variation(output_distribution(play), reference(target, params, n))


@pytest.fixture(scope="module")
def dense(tiny_pair: Pair) -> Iterator[tuple[Loaded, Loaded]]:
    with loaded(tiny_pair.target) as target, loaded(tiny_pair.draft) as draft:
        yield target, draft


@rules
@pytest.mark.parametrize(("lengths", "n", "k"), [((1,), 3, 3), ((2,), 3, 3), ((3,), 4, 2), ((2, 0, 1), 4, 2)], ids=str)
def test_dense(rule: Any, dense: tuple[Loaded, Loaded], lengths: Any, n: int, k: int) -> None:
    assert distance(*dense, lengths, n, rule, top(k)) < DENSE


@rules
def test_dense_with_penalties(rule: Any, dense: tuple[Loaded, Loaded]) -> None:
    params = top(2, temperature=0.8, repeat_penalty=1.4, frequency_penalty=0.3)
    assert distance(*dense, (3,), 4, rule, params) < DENSE


def test_dense_control(dense: tuple[Loaded, Loaded]) -> None:
    """The residual drawn from p itself is seen here too."""

    def wrong(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        for i, distribution in enumerate(draft.probs):
            assert distribution is not None
            if not rng.bernoulli(min(1.0, rows[i].prob(draft.tokens[i]) / distribution.prob(draft.tokens[i]))):
                return VerifyResult(i, draw(rows[i], rng))
        return VerifyResult(len(draft), draw(rows[len(draft)], rng) if len(rows) > len(draft) else None)

    assert distance(*dense, (2,), 3, wrong, top(3)) > 1e-3


GBNF = 'root ::= ("a" | "b" "c"+)+ ("d" | "e" "a"*)'


@rules
def test_dense_with_a_grammar(rule: Any, dense: tuple[Loaded, Loaded]) -> None:
    """A real grammar, its state carried along drafts and back: the law of the restricted target."""
    target, draft = dense

    def grammar() -> GrammarCursor:
        return compile_grammar(GBNF, target.weights)

    shared = grammar()

    def play(rng: Rng) -> tuple[int, ...]:
        rounds = stream(target.model, draft.model, (3,), 4, params=top(3), grammar=shared, rng=rng, verify=rule)
        return tuple(t for round in rounds for t in round.tokens)

    wanted = reference(target, top(3), 4, grammar)
    assert any(out[-1] in target.model.eog for out in wanted)
    assert total_variation(output_distribution(play), wanted) < DENSE


MEMORIES: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("tiny_hybrid", {"n_rs_seq": 4}),
    "checkpoint": ("tiny_hybrid", {}),
    "recurrent": ("tiny_recurrent", {}),
    "sliding": ("tiny_sliding", {}),
    "sliding-small": ("tiny_sliding", {"keywords": {"swa_full": False}}),
}


@pytest.fixture(scope="module", params=MEMORIES)
def memory(request: pytest.FixtureRequest) -> Iterator[tuple[str, Pair, Loaded]]:
    """Every kind of memory that is not plain attention: (its name, the pair of files, the target loaded)."""
    fixture, keywords = MEMORIES[request.param]
    pair = request.getfixturevalue(fixture)
    with loaded(pair.target, **keywords) as target:
        yield request.param, pair, target


def test_the_ways_are_those_that_the_files_are_for(memory: tuple[str, Pair, Loaded]) -> None:
    name, _, target = memory
    ways = {"native": "native", "checkpoint": "checkpoint", "recurrent": "checkpoint"}
    assert target.model.rollback.name == ways.get(name, "plain")


@rules
@pytest.mark.parametrize("draft_kind", ["same", "dense"])
def test_other_memories(
    rule: Any, memory: tuple[str, Pair, Loaded], dense: tuple[Loaded, Loaded], draft_kind: str
) -> None:
    """Hybrid target and draft, and hybrid target with a dense draft; sliding windows too."""
    _, pair, target = memory
    limit = DENSE if target.model.rollback.name == "plain" else RECURRENT
    if draft_kind == "dense":
        assert distance(target, dense[1], (2,), 3, rule, top(2)) < limit
        assert distance(target, dense[1], (2, 0, 1), 4, rule, top(2)) < limit
    else:
        with loaded(pair.draft) as draft:
            assert distance(target, draft, (3,), 4, rule, top(2)) < limit


@rules
def test_a_dense_target_with_a_hybrid_draft(
    rule: Any, memory: tuple[str, Pair, Loaded], dense: tuple[Loaded, Loaded]
) -> None:
    _, pair, _ = memory
    with loaded(pair.draft) as draft:
        assert distance(dense[0], draft, (3,), 4, rule, top(2)) < DENSE


def scripted(seed: int) -> Any:
    """A verifier that accepts as many as a script says: every pattern of acceptance and rejection."""
    script = random.Random(seed)

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        n = script.randint(0, len(draft))
        return VerifyResult(n, draw(rows[n], rng) if len(rows) > n else None)

    return rule


def worst_row(target: Loaded, model: Model, text: Sequence[int]) -> float:
    """The greatest difference of the logits after `text`, from `model`'s cache and from an empty context."""
    kept = model.reuse(text[:-1])
    row = model.extend(list(text[kept:]), 1)[0].copy()
    model.reuse(text[:-1])  # as the loop left it
    return float(np.abs(row - target.logits(text)).max())


def after_random_patterns(target: Loaded, draft: Loaded, seed: int, n: int = 60) -> float:
    """Play a generation of random acceptance and rest, then compare both caches with fresh ones."""
    pattern = random.Random(seed).choices([0, 1, 2, 3, 5], k=11)
    rounds = stream(
        target.model,
        draft.model,
        pattern,
        n,
        params=top(0, ignore_eos=True),
        rng=Rng(seed),
        verify=scripted(seed),
        prompt=PROMPT if seed % 2 else PROMPT * 4,
    )
    text, worst = list(PROMPT if seed % 2 else PROMPT * 4), 0.0
    for i, round in enumerate(rounds):
        text.extend(round.tokens)
        if i % 3 == 0:
            worst = max(worst, worst_row(target, target.model, text), worst_row(draft, draft.model, text))
    return worst


@pytest.mark.parametrize("seed", range(6))
def test_rewound_dense_caches_are_fresh_caches(dense: tuple[Loaded, Loaded], seed: int) -> None:
    """Bit for bit, the draft's too."""
    assert after_random_patterns(*dense, seed) == 0.0


@pytest.mark.parametrize("seed", range(4))
def test_rewound_memories_are_fresh_memories(memory: tuple[str, Pair, Loaded], seed: int) -> None:
    _, pair, target = memory
    limit = 0.0 if target.model.rollback.name == "plain" else ROW_NOISE
    with loaded(pair.draft) as draft:
        assert after_random_patterns(target, draft, seed) <= limit


def test_a_model_rewinds_to_anywhere(memory: tuple[str, Pair, Loaded]) -> None:
    """Extends, marks, rewinds and reuses at random: what the model says that it holds, it holds."""
    _, _, target = memory
    model, choose = target.model, random.Random(4)
    limit = 0.0 if model.rollback.name == "plain" else ROW_NOISE
    for _ in range(60):
        move = choose.randrange(5)
        if move == 0:
            model.mark(choose.randint(0, 6), pin=choose.random() < 0.3)
        elif move == 1:
            n = choose.randint(0, len(model.tokens))
            assert 0 <= model.roll_back(n) <= n
        elif move == 2:
            text = [*model.tokens[: choose.randint(0, len(model.tokens))], 6, 5, 6]
            assert list(model.tokens[: model.reuse(text)]) == text[: len(model.tokens)]
        else:
            model.extend([choose.randrange(3, 8) for _ in range(choose.randint(1, 6))], 1)
        if len(model.tokens) > 150:
            model.roll_back(20)
        row = model.extend([4, 3], 1)[0].copy()
        assert np.abs(row - target.logits(model.tokens)).max() <= limit


def test_a_mark_of_another_text_is_forgotten(memory: tuple[str, Pair, Loaded]) -> None:
    """Back behind a mark and on with another text, past the mark's position: the mark is no longer true."""
    _, _, target = memory
    model, choose = target.model, random.Random(6)
    one, other = ([choose.randrange(3, 8) for _ in range(60)] for _ in range(2))
    model.clear()
    for start, end, pin in ((0, 20, True), (20, 50, False), (50, 55, False)):
        model.extend(one[start:end], 0)
        if end < 55:
            model.mark(0, pin=pin)
    text = [*one[: model.roll_back(30)], *other]
    model.extend(text[len(model.tokens) :], 0)
    kept = model.roll_back(len(text) - 5)
    row = model.extend([*text[kept:], 4], 1)[0].copy()
    limit = 0.0 if model.rollback.name == "plain" else ROW_NOISE
    assert np.abs(row - target.logits([*text, 4])).max() <= limit


def test_a_sliding_window_that_has_moved_on(tiny_sliding: Pair) -> None:
    """Old cells are gone: a cut that needs them keeps nothing, a cut that does not keeps all that was asked for.

    llama.cpp keeps 256 cells of such a layer, so a thousand tokens are needed to lose some.
    """
    with loaded(tiny_sliding.target, keywords={"swa_full": False}, n_ctx=1024) as target:
        model, choose = target.model, random.Random(3)
        text = [choose.randrange(3, 8) for _ in range(1000)]
        kept = []
        for cut in (995, 960, 700, 300, 100):
            model.reuse(text)
            model.extend(text[len(model.tokens) :], 1)
            memory = llama_cpp.llama_get_memory(model.context.handle)
            assert llama_cpp.llama_memory_seq_pos_min(memory, 0) > 0
            kept.append(model.roll_back(cut))
            assert kept[-1] in (0, cut)
            row = model.extend(text[kept[-1] : cut + 1], 1)[0].copy()
            assert np.abs(row - target.logits(text[: cut + 1])).max() == 0.0
        assert kept[0] == 995
        assert kept[-2:] == [0, 0]


@pytest.mark.parametrize("lengths", [(5,), (5, 0, 0, 5), (1, 3, 0)])
def test_a_self_draft_accepts_everything(dense: tuple[Loaded, Loaded], lengths: tuple[int, ...]) -> None:
    """Two contexts over one file: every overlap is exactly 1, so a stale draft cache cannot hide."""
    target, _ = dense
    draft = target.context(0)
    drafted = 0
    for round in stream(target.model, draft, lengths, 120, params=top(0, ignore_eos=True), rng=Rng(3)):
        assert round.draft_n_accepted == round.draft_n
        assert all(s == 1.0 for s in round.survival)
        drafted += round.draft_n
    draft.close()
    assert drafted > 50


def test_a_self_draft_over_other_memories(memory: tuple[str, Pair, Loaded]) -> None:
    """The overlap stays near 1 where rows move in the seventh digit."""
    name, _, target = memory
    draft = target.context(0)
    for round in stream(target.model, draft, (4, 0, 2), 120, params=top(0, ignore_eos=True), rng=Rng(3)):
        assert round.draft_n_accepted == round.draft_n, name
        assert all(s > 0.9999 for s in round.survival)
    draft.close()


@pytest.mark.parametrize("k", [1, 3, 5])
def test_greedy_text_is_that_of_plain_decoding(dense: tuple[Loaded, Loaded], k: int) -> None:
    """Token for token, log-probabilities bit for bit."""
    params = top(0, temperature=0.0, ignore_eos=True)
    plain, drafted = (
        list(stream(dense[0].model, dense[1].model, (n,), 100, params=params, rng=Rng(0), n_logprobs=3)) for n in (0, k)
    )
    assert sum(r.draft_n_accepted for r in drafted) > 10
    assert [t for r in drafted for t in r.tokens] == [t for r in plain for t in r.tokens]
    assert [p for r in drafted for p in r.logprobs] == [p for r in plain for p in r.logprobs]


class SkipsTheReplay(rollback.Checkpoint):
    """Restores the mark and claims that all was kept."""

    def resync(self, n: int) -> int:
        super().resync(n)
        return n


class RestoresTheWrongCheckpoint(rollback.Checkpoint):
    """Restores the pinned state where the latest one is meant."""

    def mark(self, n_held: int, n_ahead: int, *, pin: bool = False) -> None:
        if self._latest is None or pin:
            super().mark(n_held, n_ahead, pin=pin)
        else:
            self._latest = (n_held, self._latest[1])


class TrustsSeqRm(rollback.Native):
    """Believes llama.cpp's True for any distance."""

    def before(self, n_held: int, n_new: int, *, whole: bool) -> None:
        self._reach = self._n_rs_seq


@pytest.mark.parametrize("wrong", [SkipsTheReplay, RestoresTheWrongCheckpoint, TrustsSeqRm])
def test_wrong_ways_of_rewinding_are_seen(wrong: Any, tiny_hybrid: Pair, dense: tuple[Loaded, Loaded]) -> None:
    """The comparisons above fail on each of them: a wrong state, or a cache that ends where it should not."""
    native = wrong is TrustsSeqRm
    with loaded(tiny_hybrid.target, n_rs_seq=4 if native else 0) as target:
        context = target.model.context.handle
        target.model.rollback = wrong(context, 0, 4) if native else wrong(context, 0)
        seen = 0
        for seed in range(6):
            target.model.clear()
            try:
                seen += after_random_patterns(target, dense[1], seed) > 1e-2
            except Exception:  # the model's own invariants
                seen += 1
        assert seen >= 3


def test_a_long_run_with_the_real_rules(dense: tuple[Loaded, Loaded]) -> None:
    """Both rules accept some and reject some, block at least as many as token in the mean of many rounds."""
    params, accepted = top(0, ignore_eos=True), {}
    for name, rule in RULES.items():
        rounds = list(stream(dense[0].model, dense[1].model, (4,), 200, params=params, rng=Rng(5), verify=rule))
        accepted[name] = sum(sum(r.survival) for r in rounds) / sum(r.draft_n for r in rounds)
        assert 0 < sum(r.draft_n_accepted for r in rounds) < sum(r.draft_n for r in rounds)
    assert accepted["block"] > accepted["token"] - 0.05
    assert verify_token is RULES["token"]
