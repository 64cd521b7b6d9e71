"""Drafting with a model's own prediction heads, through real llama.cpp.

The target's distribution by enumeration, as `test_gguf` does it for a draft model; and every row that a head hands out
compared with an oracle that reads each text from the start. The faults that other programs had are made here on
purpose: each is seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.alone import generate
from support.enumeration import output_distribution, total_variation
from support.fakes import FakeStopCheck, Script
from support.heads import NOISE, WRONG, Headed
from support.tiny import SMALL, letters
from support.tiny_heads import agreeing_by_attention, agreeing_by_states, write_hy_v3, write_qwen35

from specgguf.config import SamplingParams
from specgguf.decode.drafters import Drafter
from specgguf.decode.records import Draft, Round, VerifyResult
from specgguf.decode.sampling import Distribution, Rng, Transform, draw
from specgguf.decode.verifier import RULES
from specgguf.errors import Cancelled
from specgguf.native import compat
from specgguf.native.heads import contexts as native_heads
from specgguf.native.heads.sequence import HeadSequence
from specgguf.native.heads.states import HiddenStates

PROMPT = [1, 5, 3, 7, 4]
VOCAB = letters(8)
ONE_BLOCK = replace(SMALL, n_layer=1)
DENSE, RECURRENT = 1e-9, 1e-5  # how far a distribution may be from the target's
SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)

rules = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("heads")
    return {
        "attention": write_hy_v3(folder / "one.gguf", VOCAB),
        "two-heads": write_hy_v3(folder / "two.gguf", VOCAB, n_heads=2),
        "hybrid": write_qwen35(folder / "hybrid.gguf", VOCAB),
        "agrees": write_hy_v3(folder / "a.gguf", VOCAB, shape=ONE_BLOCK, given=agreeing_by_attention(VOCAB)),
        "knows": write_hy_v3(folder / "k.gguf", VOCAB, shape=ONE_BLOCK, given=agreeing_by_states(VOCAB)),
        "both-know": write_hy_v3(
            folder / "k2.gguf", VOCAB, n_heads=2, shape=ONE_BLOCK, given=agreeing_by_states(VOCAB, 2)
        ),
        "first-knows": write_hy_v3(
            folder / "k1.gguf", VOCAB, n_heads=2, shape=ONE_BLOCK, given=agreeing_by_states(VOCAB)
        ),
    }


KINDS: dict[str, dict[str, Any]] = {"attention": {}, "two-heads": {}, "native": {"n_rs_seq": 4}, "checkpoint": {}}


def opened(files: dict[str, Path], kind: str, **keywords: Any) -> Headed:
    name = "hybrid" if kind in ("native", "checkpoint") else kind
    return Headed(files[name], **{**KINDS.get(kind, {}), **keywords})


@pytest.fixture(scope="module", params=KINDS)
def headed(request: pytest.FixtureRequest, files: dict[str, Path]) -> Iterator[Headed]:
    found = opened(files, request.param)
    yield found
    found.close()


def play(
    headed: Headed,
    lengths: Sequence[int],
    n: int,
    *,
    prompt: Sequence[int] = PROMPT,
    params: SamplingParams = SAMPLED,
    drafter: Drafter | None = None,
    **keywords: Any,
) -> Iterator[Round]:
    model = headed.model
    keywords.setdefault("rng", Rng(0))
    return generate(
        model,
        drafter or headed.drafter,
        list(prompt),
        transform=Transform(params, n_vocab=model.n_vocab, eog=model.eog),
        controller=Script(list(lengths)),
        stop_check=FakeStopCheck(n, eog=model.eog if not params.ignore_eos else frozenset()),
        max_tokens=n,
        **keywords,
    )


# --- the distribution -------------------------------------------------------------------------------------


def reference(headed: Headed, params: SamplingParams, n: int) -> dict[tuple[int, ...], float]:
    """The text's distribution, each row from a text that is read from the start."""
    model, found = headed.model, dict[tuple[int, ...], float]()
    transform = Transform(params, n_vocab=model.n_vocab, eog=model.eog)

    def extend(out: tuple[int, ...], weight: float) -> None:
        if len(out) == n or (out and out[-1] in model.eog):
            found[out] = weight
            return
        here = transform.distribution(headed.oracle.target([*PROMPT, *out])[0][-1], out)
        for token, prob in zip(here.ids.tolist(), here.probs.tolist(), strict=True):
            extend((*out, token), weight * prob)

    extend((), 1.0)
    return found


@rules
@pytest.mark.parametrize(("lengths", "n", "k"), [((2,), 3, 3), ((3, 0, 1), 4, 2)], ids=str)
def test_the_output_is_distributed_as_the_target_alone(rule: Any, headed: Headed, lengths: Any, n: int, k: int) -> None:
    params = replace(SAMPLED, top_k=k, ignore_eos=False)

    def text(rng: Rng) -> tuple[int, ...]:
        rounds = play(headed, lengths, n, params=params, rng=rng, verify=rule)
        return tuple(token for round in rounds for token in round.tokens)

    text(Rng(0))  # from now on the prompt has been read: the first round may draft, too
    limit = DENSE if headed.model.rolls_back_freely else RECURRENT
    assert total_variation(output_distribution(text), reference(headed, params, n)) < limit
    assert headed.worst < NOISE


def test_a_wrong_residual_is_seen(files: dict[str, Path]) -> None:
    headed = opened(files, "attention")
    params = replace(SAMPLED, top_k=3, ignore_eos=False)

    def wrong(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        for i, q in enumerate(draft.probs):
            assert q is not None
            if not rng.bernoulli(min(1.0, rows[i].prob(draft.tokens[i]) / q.prob(draft.tokens[i]))):
                return VerifyResult(i, draw(rows[i], rng))
        return VerifyResult(len(draft), draw(rows[len(draft)], rng) if len(rows) > len(draft) else None)

    def text(rng: Rng) -> tuple[int, ...]:
        rounds = play(headed, (2,), 3, params=params, rng=rng, verify=wrong)
        return tuple(token for round in rounds for token in round.tokens)

    text(Rng(0))
    assert total_variation(output_distribution(text), reference(headed, params, 3)) > 1e-3
    headed.close()


@pytest.mark.parametrize("k", [1, 2, 4])
def test_greedy_text_is_that_of_plain_decoding(files: dict[str, Path], k: int) -> None:
    """Token for token, log-probabilities bit for bit."""
    headed = opened(files, "agrees")
    params = replace(SAMPLED, temperature=0.0)
    plain, drafted = (list(play(headed, (n,), 100, params=params, n_logprobs=3)) for n in (0, k))
    assert sum(r.draft_n_accepted for r in drafted) > 10
    assert [t for r in drafted for t in r.tokens] == [t for r in plain for t in r.tokens]
    assert [p for r in drafted for p in r.logprobs] == [p for r in plain for p in r.logprobs]
    headed.close()


# --- heads that agree by construction ---------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(4,), (3, 0, 0, 0, 0, 5), (1, 4, 0)])
def test_a_head_that_is_the_trunk_again_accepts_everything(files: dict[str, Path], lengths: tuple[int, ...]) -> None:
    """It has to have read what the target has read, plain rounds too."""
    headed, drafted = opened(files, "agrees"), 0
    for round in play(headed, lengths, 120, rng=Rng(3)):
        assert round.draft_n_accepted == round.draft_n
        assert all(chance > 0.999 for chance in round.survival)
        drafted += round.draft_n
    assert drafted > 30
    headed.close()


IN_ORDER = [1, 2, 3, 4, 5]


def accepted(headed: Headed, lengths: Sequence[int] = (4, 2, 0, 0, 0, 3), n: int = 60) -> float:
    """The share of drafted tokens that were accepted."""
    rounds = list(play(headed, lengths, n, prompt=IN_ORDER, params=replace(SAMPLED, temperature=0.0)))
    return sum(r.draft_n_accepted for r in rounds) / sum(r.draft_n for r in rounds)


@pytest.mark.parametrize("kind", ["knows", "both-know"])
def test_heads_that_know_the_next_token_from_the_states_accept_everything(files: dict[str, Path], kind: str) -> None:
    headed = opened(files, kind)
    assert accepted(headed) == 1.0
    headed.close()


# --- every row is that of a text read from the start ------------------------------------------------------


def test_states_of_one_batch_are_those_of_single_tokens(headed: Headed) -> None:
    choose = random.Random(1)
    text = [choose.randrange(3, 8) for _ in range(70)]
    found = []
    for width in (70, 1, 3):
        headed.model.clear()
        for start in range(0, 70, width):
            headed.model.extend(text[start : start + width], 0)
        states = headed.sequences[0].states
        assert states.tokens == text
        found.append(states.before(1, 70))
    assert all(np.abs(rows - headed.oracle.target(text)[1]).max() < NOISE for rows in found)


def scripted(seed: int) -> Any:
    """A verifier that accepts as many as chance will have it, whatever the distributions say."""
    choose = random.Random(seed)

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        n = choose.randint(0, len(draft))
        return VerifyResult(n, draw(rows[n], rng) if len(rows) > n else None)

    return rule


def after_random_rounds(headed: Headed, seed: int, n: int = 60) -> float:
    """Accepted, rejected and plain tokens in any order: the worst row."""
    lengths = random.Random(seed).choices([0, 0, 1, 2, 3, 5], k=11)
    for _ in play(headed, lengths, n, rng=Rng(seed), verify=scripted(seed), prompt=PROMPT * (1 + seed % 3)):
        pass
    return headed.worst


@pytest.mark.parametrize("seed", range(4))
def test_rows_after_any_acceptance_are_those_of_a_fresh_text(headed: Headed, seed: int) -> None:
    assert after_random_rounds(headed, seed) < NOISE
    assert headed.watched[0].n_rows > 10


class Conversation:
    """Random turns on one loaded model: what a chat may do between and during answers."""

    def __init__(self, headed: Headed, seed: int) -> None:
        self.headed, self.choose = headed, random.Random(seed)
        self.text = list(PROMPT)
        self.saved: tuple[list[int], Any, list[Any]] | None = None
        self.n_operations = 0

    def step(self) -> None:
        moves = [self.answer, self.answer, self.answer, self.plain_answer, self.undo, self.say, self.save, self.load]
        self.choose.choice([*moves, self.cancel, self.clear])()
        self.n_operations += 1
        if len(self.text) > 180:
            self.text = self.text[: self.choose.randint(1, 60)]

    def answer(self, **keywords: Any) -> None:
        seed, n = self.choose.randrange(1000), self.choose.randint(2, 12)
        lengths = self.choose.choices([0, 0, 1, 2, 3, 5], k=5)
        rounds = play(self.headed, lengths, n, rng=Rng(seed), verify=scripted(seed), prompt=self.text, **keywords)
        stop_after = self.choose.choice([1, 2, 99, 99])
        for _ in range(stop_after):
            round = next(rounds, None)
            if round is None:
                break
            self.text.extend(round.tokens)
            self.n_operations += 1
        rounds.close()  # type: ignore[attr-defined]

    def plain_answer(self) -> None:
        """With drafting off: nobody tells the heads."""
        rounds = generate(
            self.headed.model,
            None,
            self.text,
            transform=Transform(SAMPLED, n_vocab=8, eog=self.headed.model.eog),
            rng=Rng(self.choose.randrange(1000)),
            controller=Script([0]),
            stop_check=FakeStopCheck(5),
            max_tokens=5,
        )
        self.text.extend(token for round in rounds for token in round.tokens)

    def undo(self) -> None:
        del self.text[self.choose.randint(1, len(self.text)) :]

    def say(self) -> None:
        self.text.extend(self.choose.randrange(3, 8) for _ in range(self.choose.randint(1, 40)))

    def save(self) -> None:
        headed = self.headed
        self.saved = (list(self.text), headed.model.save(), [head.save() for head in headed.sequences])

    def load(self) -> None:
        if self.saved is not None:
            text, target, heads = self.saved
            self.text = list(text)
            assert self.headed.model.fits(target)
            self.headed.model.load(target)
            for head, saved in zip(self.headed.sequences, heads, strict=True):
                assert head.fits(saved)
                head.load(saved)

    def clear(self) -> None:
        self.headed.model.clear()
        for head in self.headed.sequences:
            if self.choose.random() < 0.5:
                head.clear()

    def cancel(self) -> None:
        """While the prompt is read: after its first chunk."""
        model = self.headed.model
        self.text.extend(self.choose.randrange(3, 8) for _ in range(40))
        follow = model.context.on_pass
        assert follow is not None

        def stop(parts: Any) -> None:
            follow(parts)
            model.cancel()

        model.context.on_pass = stop
        try:
            model.clear()  # a prompt that is known in part may fit into one chunk
            with pytest.raises(Cancelled):
                list(play(self.headed, (2,), 3, prompt=self.text))
        finally:
            model.context.on_pass = follow
            model.resume()


@pytest.mark.parametrize("seed", range(2))
def test_rows_after_anything_a_conversation_does_are_those_of_a_fresh_text(headed: Headed, seed: int) -> None:
    """Two thousand operations in all: rounds, undoing, saving and loading, cancelling, answers without drafting."""
    conversation = Conversation(headed, seed)
    n_before = headed.watched[0].n_rows
    while conversation.n_operations < 250:
        conversation.step()
    assert headed.worst < NOISE
    assert headed.watched[0].n_rows - n_before > 60


# --- faults, each of which is seen ------------------------------------------------------------------------


class OneTokenOld(HiddenStates):
    """Each token is read with the state of two tokens earlier."""

    def before(self, position: int, n: int) -> np.ndarray:
        return super().before(position - 1, n) if position else super().before(position, n)


class SkipsPlainRounds(HiddenStates):
    """What a plain round reads leaves no state."""

    def take(self, tokens: Sequence[int], rows: np.ndarray) -> None:
        super().take(tokens, np.zeros_like(rows) if len(rows) == 1 else rows)


class KeepsGuesses(HeadSequence):
    """What was read with guessed states is kept where its tokens were accepted."""

    def reuse(self, tokens: Sequence[int]) -> int:
        self._n_certain = len(self.tokens)
        return super().reuse(tokens)


@pytest.mark.parametrize("wrong", [OneTokenOld, SkipsPlainRounds])
def test_wrong_states_are_seen_by_rows_and_by_acceptance(
    wrong: type[HiddenStates], files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_heads, "HiddenStates", wrong)
    for kind in ("attention", "native"):
        headed = opened(files, kind)
        assert max(after_random_rounds(headed, seed) for seed in range(3)) > WRONG
        headed.close()
    headed = opened(files, "knows")
    assert accepted(headed) < 0.8
    headed.close()


def test_guessed_states_that_are_kept_are_seen(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_heads, "HeadSequence", KeepsGuesses)
    headed = opened(files, "attention")
    assert max(after_random_rounds(headed, seed) for seed in range(3)) > WRONG
    headed.close()


def faulty_calls(monkeypatch: pytest.MonkeyPatch, name: str, change: Any) -> None:
    calls = compat.head_calls()
    right = calls[name]
    monkeypatch.setattr(compat, "head_calls", lambda: {**calls, name: lambda *a: right(*change(*a))})


def test_equally_masked_contexts_are_seen(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """States of the outputs alone, on both sides. (What stands where a prompt's other states would, nothing writes: of
    it no acceptance follows.)"""
    faulty_calls(monkeypatch, "llama_set_embeddings_nextn", lambda context, on, masked: (context, on, True))
    headed = opened(files, "attention")
    assert max(after_random_rounds(headed, seed) for seed in range(3)) > WRONG
    headed.close()


def test_the_second_head_in_the_place_of_the_first_is_seen(
    files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By rows, and by acceptance: of a second head that knows nothing, all would be accepted."""
    headed = opened(files, "first-knows")
    assert accepted(headed) < 0.8
    headed.close()
    faulty_calls(monkeypatch, "llama_set_nextn_layer_offset", lambda context, depth: (context, 0))
    headed = opened(files, "two-heads")
    assert max(after_random_rounds(headed, seed) for seed in range(3)) > WRONG
    headed.close()
    headed = opened(files, "first-knows")
    assert accepted(headed) == 1.0
    headed.close()
