"""Several sequences in one step: each has its own distribution, whatever stands beside it, and they are independent.

Sequences of different prompts, parameters and draft lengths share their forward passes, in every order of joining,
ending and being dropped. Jointly enumerated: the distribution of all texts together is the product of what each would
have alone. The negative controls swap two sequences in a pass, roll back the wrong one, let them share a random source
of one's draws, and draft from a neighbour's history.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from loop import PLAIN, Setting, reference
from support.enumeration import output_distribution, total_variation
from support.fakes import FakeModel, FakeStopCheck, random_table

from specgguf.config import SamplingParams
from specgguf.control.controller import Fixed
from specgguf.control.schedule import Schedule
from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.generation import Generation
from specgguf.decode.records import Plan, Round
from specgguf.decode.run import Run
from specgguf.decode.sampling import Logits, Rng
from specgguf.decode.sequence import Decode, Forward
from specgguf.decode.step import step
from specgguf.decode.verifier import RULES
from specgguf.errors import BackendError
from specgguf.turns.rounds import Rounds
from specgguf.turns.turn import Turn
from specgguf.turns.turns import Turns

EXACT, WRONG = 1e-12, 1e-3

ONE = Setting(p=random_table(1, 3), q=random_table(11, 3, of=random_table(1, 3)), length=2)
TWO = Setting(
    p=random_table(1, 3),
    q=random_table(11, 3, of=random_table(1, 3)),
    length=2,
    prompt=(2, 0, 1),
    params=SamplingParams(temperature=0.7, top_k=2, top_p=1.0, min_p=0.0),
)
THREE = Setting(p=random_table(1, 3), q=random_table(11, 3, of=random_table(1, 3)), length=1, prompt=(1,), params=PLAIN)


class Shared:
    """Passes over several sequences: checks that each asks for its own, and counts them."""

    def __init__(self) -> None:
        self.passes: list[tuple[str, int]] = []  # what for, and how many sequences took part

    def __call__(self, parts: Sequence[Forward]) -> Sequence[Logits]:
        assert len({id(part.sequence) for part in parts}) == len(parts), "a sequence is in a pass once"
        assert len({part.kind for part in parts}) == 1
        self.passes.append((parts[0].kind, len(parts)))
        return [part.sequence.extend(part.tokens, part.n_outputs, part.n_padding).copy() for part in parts]


def made(setting: Setting, rng: Rng, rule: Any) -> Run:
    target, draft = setting.models()
    transform, draft_transform = setting.transforms()
    run = Run(
        target=target,
        drafter=ModelDrafter(draft) if draft is not None else None,
        ngrams=None,
        committed=list(setting.prompt),
        n_prompt=len(setting.prompt),
        end=len(setting.prompt) + setting.length,
        transform=transform,
        draft_transform=draft_transform,
        rng=rng,
        stop_check=FakeStopCheck(setting.length, eog=setting.eog, stop=setting.stop),
        verify=rule,
    )
    run.synchronise()
    return run


Text = tuple[tuple[int, ...], str | None]


def play(
    settings: Sequence[Setting],
    lengths: Sequence[int],
    rng: Rng,
    *,
    decode: Decode | None = None,
    rule: Any = RULES["token"],
    joins: Sequence[int] | None = None,
    dropped: dict[int, int] | None = None,
    prepare: Callable[[list[Run]], None] = lambda _runs: None,
    rngs: Callable[[int], Rng] | None = None,
) -> tuple[Text, ...]:
    """All texts of one path of the randomness; sequence i drafts lengths[i] tokens, joins in round joins[i], and is
    dropped after round dropped[i]."""
    decode = decode or Shared()
    runs = [made(setting, rngs(i) if rngs else rng, rule) for i, setting in enumerate(settings)]
    prepare(runs)
    joins = joins or [0] * len(runs)
    reasons: dict[int, str | None] = {}
    for n in itertools.count():
        here = [i for i in range(len(runs)) if joins[i] <= n and i not in reasons]
        if not here and n >= max(joins):
            break

        def plan(some: Sequence[Run], here: list[int] = here) -> list[Plan]:
            return [Plan(min(lengths[i], run.n_draft_max)) for i, run in zip(here, some, strict=True)]

        for i, round in zip(here, step([runs[i] for i in here], plan, decode=decode), strict=True):
            assert isinstance(round, Round), round
            if round.finish_reason is not None:
                reasons[i] = round.finish_reason
        for i, last in (dropped or {}).items():
            if last == n and i in here:
                runs[i].synchronise()
                reasons[i] = "dropped"
    return tuple((tuple(run.committed[run.n_prompt :]), reasons[i]) for i, run in enumerate(runs))


def product(settings: Sequence[Setting]) -> dict[tuple[Text, ...], float]:
    """Each one's own distribution, independently."""
    together: dict[tuple[Text, ...], float] = {(): 1.0}
    for setting in settings:
        own = reference(setting)
        together = {(*texts, text): w * v for texts, w in together.items() for text, v in own.items()}
    return together


def distance(settings: Sequence[Setting], lengths: Sequence[int], **keywords: Any) -> float:
    got = output_distribution(lambda rng: play(settings, lengths, rng, **keywords))
    assert abs(sum(got.values()) - 1.0) < 1e-9
    return total_variation(got, product(settings))


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("lengths", [(1, 1), (1, 0), (0, 1)], ids=str)
def test_two_sequences_are_independent(lengths: tuple[int, int], rule: Any) -> None:
    assert distance([ONE, TWO], lengths, rule=rule) < EXACT


@pytest.mark.parametrize("joins", [(0, 0, 1), (1, 0, 0), (0, 1, 0)], ids=str)
def test_three_sequences_in_every_order_of_joining(joins: tuple[int, int, int]) -> None:
    assert distance([ONE, THREE, THREE], (1, 0, 0), joins=joins) < EXACT


@pytest.mark.parametrize("after", [0, 1])
def test_a_neighbour_that_is_dropped_changes_nothing(after: int) -> None:
    """The other one's distribution, whatever had become of the first."""
    got: dict[Text, float] = {}
    whole = output_distribution(lambda rng: play([ONE, TWO], (1, 1), rng, dropped={0: after}))
    for (_, text), weight in whole.items():
        got[text] = got.get(text, 0.0) + weight
    assert total_variation(got, reference(TWO)) < EXACT


def test_passes_are_shared() -> None:
    """One pass of the draft per level for all that still draft, one of the target for all."""
    shared = Shared()
    long = Setting(p=ONE.p, q=ONE.q, length=9)
    play([long, long, long], (3, 1, 0), Rng(1), decode=shared)
    drafting = [("draft", 2), ("draft", 1), ("draft", 1)]
    assert shared.passes[:5] == [*drafting, ("prefill", 1), ("verify", 2)], "in the first round one reads its prompt"
    assert shared.passes[5:9] == [*drafting, ("verify", 3)]


class Failing(FakeModel):
    """Fails in its n-th decode."""

    fail_at = 0

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> np.ndarray:
        if self.n_decodes + 1 == self.fail_at:
            raise BackendError("no cell is free")
        return super().extend(tokens, n_outputs, n_padding)


def test_what_fails_beside_the_passes_touches_no_other() -> None:
    """A stop check that raises ends its own sequence; the neighbour's round is whole."""

    class Broken(FakeStopCheck):
        def check(self, tokens: Sequence[int]) -> tuple[int, str | None]:
            raise ValueError("broken")

    runs = [made(ONE, Rng(1), RULES["token"]), made(TWO, Rng(2), RULES["token"])]
    runs[0].stop_check = Broken(2)
    first, second = step(runs, lambda some: [Plan(1) for _ in some], decode=Shared())
    assert isinstance(first, ValueError)
    assert isinstance(second, Round)
    runs[0].synchronise()
    for run in runs:
        assert list(run.target.tokens) == run.committed[: len(run.target.tokens)]


def test_a_pass_that_fails_fails_for_all_that_took_part() -> None:
    runs = [made(ONE, Rng(1), RULES["token"]), made(TWO, Rng(2), RULES["token"])]
    failing = Failing(TWO.p, 3)
    failing.fail_at = 1
    runs[1].target = failing
    found = step(runs, lambda some: [Plan(0) for _ in some], decode=Shared())
    assert all(isinstance(one, BackendError) for one in found)
    for run in runs:
        run.synchronise()
        assert list(run.target.tokens) == run.committed[: len(run.target.tokens)]


# --- what would be wrong ----------------------------------------------------------------------------------------


class Swapped(Shared):
    """Hands two sequences each other's rows."""

    def __call__(self, parts: Sequence[Forward]) -> Sequence[Logits]:
        rows = list(super().__call__(parts))
        if parts[0].kind == "verify" and len(rows) == 2 and len(rows[0]) == len(rows[1]):
            rows.reverse()
        return rows


def test_swapped_sequences_are_seen() -> None:
    assert distance([ONE, TWO], (1, 1), decode=Swapped()) > WRONG


class Believing(FakeModel):
    """Says that it holds what it was given and told to drop, whatever its memory holds."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.believed: list[int] = []
        self.neighbour: Believing = self

    @property
    def tokens(self) -> Sequence[int]:
        return tuple(self.believed)

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> np.ndarray:
        self.believed += tokens
        return super().extend(tokens, n_outputs, n_padding)

    def reuse(self, tokens: Sequence[int]) -> int:
        """Drops the cells of its neighbour instead of its own."""
        n = 0
        while n < min(len(tokens), len(self.believed)) and tokens[n] == self.believed[n]:
            n += 1
        dropped = len(self.believed) - n
        del self.believed[n:]
        cells = self.neighbour.cells
        del cells[len(cells) - min(dropped, len(cells)) :]
        return n


@pytest.mark.parametrize("wrong", [False, True])
def test_a_roll_back_on_the_wrong_sequence_is_seen(wrong: bool) -> None:
    def prepare(runs: list[Run]) -> None:
        one, two = Believing(ONE.p, 3), Believing(TWO.p, 3)
        if wrong:
            one.neighbour, two.neighbour = two, one
        runs[0].target, runs[1].target = one, two

    found = distance([ONE, TWO], (1, 1), prepare=prepare)
    assert found > WRONG if wrong else found < EXACT


class Mirrored(Rng):
    """Gives a second sequence the draws that the first one had."""

    def __init__(self, source: Rng, seen: list[Any], *, leads: bool) -> None:
        self._source, self._seen, self._leads = source, seen, leads
        self._at = 0

    def _same(self, draw: Callable[[], Any], n: int) -> Any:
        if self._leads:
            self._seen.append(draw())
            return self._seen[-1]
        at, self._at = self._at, self._at + 1
        return min(self._seen[at], n - 1) if at < len(self._seen) else draw()

    def categorical(self, probs: np.ndarray) -> int:
        return int(self._same(lambda: self._source.categorical(probs), len(probs)))

    def bernoulli(self, p: float) -> bool:
        return self._source.bernoulli(p)


def test_one_shared_random_source_of_draws_is_seen() -> None:
    def playing(rng: Rng) -> tuple[Text, ...]:
        seen: list[Any] = []
        return play([ONE, ONE], (0, 0), rng, rngs=lambda i: Mirrored(rng, seen, leads=i == 0))

    assert total_variation(output_distribution(playing), product([ONE, ONE])) > WRONG


def test_drafts_of_a_neighbours_history_are_exact_and_useless() -> None:
    """The verifier does not care what a draft read: acceptance shows it."""

    def accepted(neighbours: bool) -> float:
        total = 0
        long = [Setting(p=s.p, q=s.p, length=12, prompt=s.prompt) for s in (ONE, TWO)]

        def prepare(runs: list[Run]) -> None:
            if neighbours:
                for run, other in zip(runs, reversed(runs), strict=True):
                    drafter = run.drafter
                    assert isinstance(drafter, ModelDrafter)
                    propose = drafter.propose

                    def wrong(_committed: Any, *rest: Any, other: Run = other, propose: Any = propose) -> Any:
                        return propose(list(other.committed), *rest)

                    drafter.propose = wrong  # type: ignore[method-assign,assignment]

        for seed in range(30):

            def keep(runs: list[Run]) -> None:
                prepare(runs)
                for run in runs:
                    verify = run.verify

                    def counted(draft: Any, rows: Any, rng: Any, verify: Any = verify) -> Any:
                        nonlocal total
                        result = verify(draft, rows, rng)
                        total += result.n_accepted
                        return result

                    run.verify = counted

            play(long, (3, 3), Rng(seed), prepare=keep)
        return total

    assert accepted(neighbours=True) < 0.8 * accepted(neighbours=False)


def engine_rounds(settings: Sequence[Setting], lengths: Sequence[int], rng: Rng) -> Any:
    """All texts of one path, by the rounds that the engine makes: read in turn, and so made ahead of their readers."""
    table = Turns([], len(settings), Rounds(Schedule(), n_batch=8).play)

    def begin(run: Run, length: int) -> Callable[[Generation], Any]:
        return lambda _generation: (run, Fixed(length), lambda: None)

    runs = [made(setting, rng, RULES["token"]) for setting in settings]
    made_of = [
        Generation(Turn(table, begin(run, length), lambda *_: None, None), run.stop_check, run.n_prompt)  # type: ignore[arg-type]
        for run, length in zip(runs, lengths, strict=True)
    ]
    found: list[list[int]] = [[] for _ in made_of]
    reading = dict(enumerate(one.rounds() for one in made_of))
    while reading:
        for i, rounds in list(reading.items()):
            round = next(rounds, None)
            if round is None:
                del reading[i]
            else:
                found[i].extend(round.tokens)
    return tuple((tuple(text), one.finish_reason) for text, one in zip(found, made_of, strict=True))


@pytest.mark.parametrize("lengths", [(1, 1), (2, 0), (0, 1)], ids=str)
def test_the_engines_rounds_are_exact_and_independent(lengths: tuple[int, int]) -> None:
    got = output_distribution(lambda rng: engine_rounds([ONE, TWO], lengths, rng))
    assert total_variation(got, product([ONE, TWO])) < EXACT


def test_rounds_that_are_handed_to_the_wrong_one_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    step_of = Rounds._step
    monkeypatch.setattr(Rounds, "_step", lambda *given: step_of(*given)[::-1])
    got = output_distribution(lambda rng: engine_rounds([ONE, TWO], (0, 0), rng))
    assert total_variation(got, product([ONE, TWO])) > WRONG
