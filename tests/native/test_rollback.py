"""Every rollback leaves what a fresh context would hold, and wrong ones are seen.

The loop itself plays random patterns of acceptance, rejection and rest over pairs of memories; every row that
either model hands out on the way is compared with a context that never dropped anything.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from conftest import Pair
from support import models
from support.alone import generate
from support.contexts import MEMORIES, TEXT, WRONG, Opened, opened_as
from support.fakes import FakeStopCheck, Script

from specgguf import SamplingParams, SpeculativeLlama
from specgguf.decode.drafters import ModelDrafter
from specgguf.decode.records import Draft, VerifyResult
from specgguf.decode.sampling import Distribution, Rng, Transform, draw
from specgguf.errors import BackendError
from specgguf.native import backend, rollback

SAMPLED = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, ignore_eos=True)

# More than the window of 16, kinds of memory for target and draft
PAIRS = [
    ("native", "plain"),
    ("checkpoint", "plain"),
    ("recurrent", "plain"),
    ("plain", "checkpoint"),
    ("plain", "recurrent"),
    ("native", "checkpoint"),
    ("checkpoint", "checkpoint"),
    ("recurrent", "recurrent"),
    ("sliding", "sliding-small"),
    ("sliding-small", "sliding"),
]


class Watched:
    """A model whose every row is compared with a fresh context's."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened
        self.worst = 0.0
        self.n_outputs = self.n_tokens = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.opened.model, name)

    def extend(self, tokens: Sequence[int], n_outputs: int, n_padding: int = 0) -> np.ndarray:
        model = self.opened.model
        rows = model.extend(tokens, n_outputs, n_padding)
        self.n_tokens += len(tokens)
        for i in {0, n_outputs - 1} if n_outputs else ():
            text = model.tokens[: len(model.tokens) - n_outputs + 1 + i]
            self.worst = max(self.worst, float(np.abs(rows[i] - self.opened.row(text)).max()))
            self.n_outputs += 1
        return rows


def scripted(seed: int) -> Any:
    """A verifier that accepts as many as chance will have it, whatever the laws say."""
    select = random.Random(seed)

    def rule(draft: Draft, rows: Sequence[Distribution], rng: Rng) -> VerifyResult:
        n = select.randint(0, len(draft))
        return VerifyResult(n, draw(rows[n], rng) if len(rows) > n else None)

    return rule


def play(target: Opened, draft: Opened, seed: int, n: int = 50) -> tuple[Watched, Watched]:
    """One generation of random acceptance, rejection and rest, with a prompt that shares some of the last one."""
    watched = Watched(target), Watched(draft)
    prompt = TEXT[: 5 + 9 * (seed % 4)]
    rounds = generate(
        watched[0],
        ModelDrafter(watched[1]),
        prompt,
        transform=Transform(SAMPLED, n_vocab=8, eog=target.model.eog),
        rng=Rng(seed),
        controller=Script(random.Random(seed).choices([0, 1, 2, 3, 5], k=11)),
        stop_check=FakeStopCheck(n),
        max_tokens=n,
        verify=scripted(seed),
    )
    committed = list(prompt)
    for round in rounds:
        committed.extend(round.tokens)
        for opened in (target, draft):
            assert opened.model.tokens == committed[: len(opened.model.tokens)]
        assert len(target.model.tokens) < len(committed)
    return watched


def opened_for_drafts_of_5(kind: str, request: pytest.FixtureRequest) -> Opened:
    context: dict[str, Any] = {"n_rs_seq": 5} if kind == "native" else {}
    return opened_as(kind, request, **context)


@pytest.mark.parametrize(("target_kind", "draft_kind"), PAIRS)
def test_random_patterns_leave_fresh_memories(
    target_kind: str, draft_kind: str, request: pytest.FixtureRequest
) -> None:
    """Four generations on the same contexts: targets and drafts of every kind, past the window too."""
    target = opened_for_drafts_of_5(target_kind, request)
    draft = opened_as(draft_kind, request, which="draft")
    for seed in range(4):
        for watched in play(target, draft, seed):
            assert watched.n_outputs > 20
            assert watched.worst < watched.opened.noise
    target.close()
    draft.close()


def test_the_rollbacks_that_are_found(request: pytest.FixtureRequest) -> None:
    found = {}
    for kind in MEMORIES:
        opened = opened_as(kind, request)
        found[kind] = opened.model.rollback.name
        opened.close()
    assert found == {
        "plain": "plain",
        "native": "native",
        "checkpoint": "checkpoint",
        "recurrent": "checkpoint",
        "sliding": "plain",
        "sliding-small": "plain",
    }


def test_native_rollback_costs_no_replay_and_a_checkpoint_does(request: pytest.FixtureRequest) -> None:
    """What each rollback reads again, over the same pattern: nothing, or the committed tokens since the last mark."""
    decoded = {}
    for kind in ("plain", "native", "checkpoint"):
        target = opened_for_drafts_of_5(kind, request)
        draft = opened_as("plain", request, which="draft")
        decoded[kind] = play(target, draft, 1)[0].n_tokens
        target.close()
        draft.close()
    assert decoded["plain"] == decoded["native"] < decoded["checkpoint"] < 2.5 * decoded["plain"]


# --- cuts that need more than the last decode -------------------------------------------------------------


def cut(opened: Opened, n_read: int, n: int, *, at_once: bool) -> int:
    """Read `n_read` tokens, at once or in chunks of 32, keep at most `n`; how many were kept, and are they right."""
    model = opened.model
    model.clear()
    step = n_read if at_once else 32
    for start in range(0, n_read, step):
        model.extend(TEXT[start : min(start + step, n_read)], 1)
    kept = model.roll_back(n)
    assert kept in (0, n)
    assert opened.error([*TEXT[:kept], 4, 6]) < opened.noise
    return kept


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("full", [True, False])
def test_cuts_on_a_sliding_window(full: bool, at_once: bool, tiny_sliding: Pair) -> None:
    """A window that keeps everything is cut anywhere. One that discards is cut where the window is still whole, also
    inside a decode of several ubatches; elsewhere nothing is kept, and nothing wrong."""
    opened = Opened(tiny_sliding.target, {"swa_full": full}, n_ctx=700, n_batch=512, n_ubatch=32, n_outputs_max=8)
    kept = {n: cut(opened, 390, n, at_once=at_once) for n in (389, 385, 380, 340, 100, 20)}
    assert all(kept[n] == n for n in (389, 385, 380))
    if full:
        assert all(kept[n] == n for n in kept)
    else:
        assert kept[20] == 0, "its window was discarded long ago"
    opened.close()


class Forgetful(rollback.Plain):
    """As if a cut within the last decode were always safe, however many ubatches that was."""

    def before(self, n_held: int, n_new: int, *, whole: bool) -> None:
        self._safe_from = n_held


def test_a_cut_into_a_wide_decode_is_seen(tiny_sliding: Pair) -> None:
    opened = Opened(tiny_sliding.target, {"swa_full": False}, n_ctx=700, n_batch=512, n_ubatch=32, n_outputs_max=8)
    found = opened.model.rollback
    assert isinstance(found, rollback.Plain)
    opened.model.rollback = Forgetful(opened.model.context.handle, 0, found._window)
    with pytest.raises((BackendError, AssertionError)):
        cut(opened, 390, 100, at_once=True)
    opened.close()


def after_marks(opened: Opened) -> float:
    """A native rollback to before a mark, another text over it, and a fall back on a checkpoint."""
    model = opened.model
    model.extend(TEXT[:10], 1)
    model.mark(0, pin=True)
    model.roll_back(8)
    model.extend([7, 6, 5, 7], 1)
    model.extend([3], 1)
    return opened.error([*TEXT[:8], 7, 6, 5, 4, 4])


def after_a_failure(opened: Opened) -> float:
    """A verify pass that fails, and then a prompt that differs in its last tokens."""
    model = opened.model
    model.extend(TEXT[:10], 1)
    model.mark(9)
    model.extend(TEXT[10:13], 1)
    model.mark(4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "decode", lambda ctx, batch: -3)
        with pytest.raises(BackendError):
            model.extend(TEXT[13:18], 1)
    return opened.error([*TEXT[:8], 4, 4, 6])


@pytest.fixture
def native(tiny_hybrid: Pair) -> Iterator[Opened]:
    opened = Opened(tiny_hybrid.target, n_rs_seq=4)
    assert opened.model.rollback.name == "native"
    yield opened
    opened.close()


@pytest.mark.parametrize("history", [after_marks, after_a_failure])
def test_native_rollback_after_what_it_does_not_expect(history: Callable[[Opened], float], native: Opened) -> None:
    assert history(native) < native.noise


@pytest.mark.parametrize("width", range(1, 8))
@pytest.mark.parametrize("n_dropped", range(1, 7))
def test_native_rollback_at_every_distance(width: int, n_dropped: int, native: Opened) -> None:
    """Within the last decode, beyond it, and twice in a row: what cannot be rolled back is read again."""
    model = native.model
    model.extend(TEXT[:10], 0)
    model.extend(TEXT[10 : 10 + width], 1)
    kept = model.roll_back(10 + width - n_dropped)
    assert (kept > 0) == (n_dropped <= min(4, width - 1))
    again = model.roll_back(kept - 1)
    assert again == 0, "one rollback a decode"
    model.extend(TEXT[:10], 0)
    model.extend(TEXT[10 : 10 + width], 1)
    assert native.error([*TEXT[: 10 + width - n_dropped], 5, 4]) < native.noise


class KeepsMarks(rollback.Native):
    """Does not drop the marks of a text that was rolled back."""

    def _forget(self, n: int) -> None:
        pass


def test_a_mark_of_a_dropped_text_is_seen(native: Opened) -> None:
    native.model.rollback = KeepsMarks(native.model.context.handle, 0, 4)
    assert after_marks(native) > WRONG


# --- where nothing serves ---------------------------------------------------------------------------------


def test_a_rollback_that_does_not_work_is_not_taken(tiny_hybrid: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe at load finds out; then whatever must be dropped takes everything with it."""
    monkeypatch.setattr(backend, "set_state", lambda ctx, data, seq, flags=0: False)
    monkeypatch.setattr(rollback.Checkpoint, "resync", lambda rollback, n: n)
    opened = Opened(tiny_hybrid.target)
    assert opened.model.rollback.name == "unsupported"
    opened.model.extend(TEXT[:10], 0)
    opened.model.mark(5)
    opened.model.extend(TEXT[10:13], 1)
    assert opened.model.roll_back(12) == 0
    assert opened.error(TEXT[:11]) < opened.noise
    opened.close()


def test_drafting_is_off_where_nothing_can_be_dropped(
    tiny_hybrid_chat: Pair, tiny_chat: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line says why, nothing is drafted, and the text is that of the target alone."""
    ask = [{"role": "user", "content": "hello"}]
    pairs = [(tiny_hybrid_chat.target, tiny_chat.draft), (tiny_chat.target, tiny_hybrid_chat.draft)]

    def answers(n_said: int) -> list[str]:
        texts = []
        for target, draft in pairs:
            with SpeculativeLlama(str(target), str(draft), n_ctx=256, n_threads=1, draft=3) as llm:
                assert sum("cannot drop rejected tokens" in line for line in llm.warnings) == n_said
                for _ in range(2):
                    answer = llm.create_chat_completion(ask, temperature=0.0, max_tokens=20)
                    texts.append(answer["choices"][0]["message"]["content"])
                assert (llm.stats.draft_n == 0) == bool(n_said)
                assert ("cannot drop" in llm.last_stats.off_reason) == bool(n_said)
        return texts

    wanted = answers(0)
    works = rollback._rolls_back
    monkeypatch.setattr(rollback, "_rolls_back", lambda found, *a: found.name == "plain" and works(found, *a))
    assert answers(1) == wanted


# --- a real sliding window --------------------------------------------------------------------------------


@pytest.mark.real
def test_gemma_as_its_own_draft_past_a_window_that_discards() -> None:
    """Three turns with swa_full=False, the first prompt longer than the window of 512: the text is plain decoding's up
    to a near-tie within the noise of batch widths, which is measured on the same tokens. (The window that keeps
    everything: test_real_pair.py.)"""
    path = str(models.gemma())
    story = "The lighthouse keeper climbed the stairs and counted them, as he did every night. "
    with SpeculativeLlama(path, path, n_ctx=1280, swa_full=False, draft_swa_full=False, draft=4) as llm:
        greedy = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        tokens = llm.tokenize((story * 36).encode())
        assert len(tokens) > 512 + 24
        for turn in range(3):
            plain = [t for r in llm.generate(tokens, greedy, draft="off").rounds() for t in r.tokens]
            drafted = [t for r in llm.generate(tokens, greedy).rounds() for t in r.tokens]
            assert llm.last_stats.draft_n > 0
            assert llm.last_stats.draft_n_accepted > 0
            check_near_tie(llm, tokens, plain, drafted)
            tokens = [*tokens, *plain, *llm.tokenize(f" Turn {turn}: and then".encode(), add_bos=False)]


def check_near_tie(llm: SpeculativeLlama, prompt: list[int], plain: list[int], drafted: list[int]) -> None:
    """Equal, or parted where plain's two best logits are closer than the noise between widths 1 and 5."""
    differ = [i for i, (a, b) in enumerate(zip(plain, drafted, strict=True)) if a != b]
    if not differ:
        return
    target = llm._engine.target

    def gaps(width: int) -> np.ndarray:
        target.clear()
        target.extend(prompt[:-1], 0)
        fed = [prompt[-1], *plain[:-1]]
        found: list[float] = []
        for start in range(0, len(fed), width):
            part = fed[start : start + width]
            best = np.sort(target.extend(part, len(part)), axis=1)[:, -2:]
            found.extend(best[:, 1] - best[:, 0])
        return np.array(found)

    one, five = gaps(1), gaps(5)
    assert one[differ[0]] <= np.abs(one - five).max()
