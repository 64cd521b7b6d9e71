"""One sequence over real llama.cpp contexts: what `tokens` says is what the cache holds, whatever happens.

The yardstick is a second context over the same file that reads the text from the start.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from conftest import Pair
from support import tiny
from support.contexts import KEYWORDS, MEMORIES, TEXT, WRONG, Opened, opened_as

from specgguf.decode.sequence import common_prefix
from specgguf.errors import BackendError, Cancelled, ContextFull, ModelNotFound
from specgguf.models.header import check_gguf
from specgguf.native import backend, rollback
from specgguf.native.context import Model
from specgguf.native.sequence import Sequence
from specgguf.native.weights import Weights


@pytest.fixture(scope="module", params=MEMORIES)
def any_memory(request: pytest.FixtureRequest) -> Iterator[Opened]:
    opened = opened_as(request.param, request)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def dense(tiny_pair: Pair) -> Iterator[Opened]:
    opened = Opened(tiny_pair.target)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _emptied(request: pytest.FixtureRequest) -> Iterator[None]:
    """Contexts are shared within this module; each test begins with empty ones."""
    yield
    for name in {"any_memory", "dense"} & set(request.fixturenames):
        opened = request.getfixturevalue(name)
        opened.model.resume()
        opened.model.clear()


# --- reading ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 65, 299, 300])
def test_any_length_of_prompt(any_memory: Opened, n: int) -> None:
    """Around the chunk, and up to the last place of the context."""
    got = any_memory.model.extend(TEXT[:n], 1)[0].copy()
    assert np.abs(got - any_memory.row(TEXT[:n])).max() < any_memory.noise
    assert any_memory.model.tokens == TEXT[:n]


@pytest.mark.parametrize("n", [5, 32, 33, 34, 64, 66])
def test_rows_across_the_edge_of_a_chunk(dense: Opened, n: int) -> None:
    """The last rows of one call, also where the rest of its chunk is shorter than that."""
    rows = dense.model.extend(TEXT[:n], 5).copy()
    assert rows.shape == (5, dense.model.n_vocab)
    for i in range(5):
        assert np.abs(rows[i] - dense.row(TEXT[: n - 4 + i])).max() < dense.noise


def test_no_rows_and_no_tokens(dense: Opened) -> None:
    assert dense.model.extend(TEXT[:5], 0).size == 0
    assert dense.model.extend([], 0).size == 0
    assert dense.model.tokens == TEXT[:5]
    dense.check()


@pytest.mark.parametrize("pad_to", [1, 2])
def test_what_does_not_fit_changes_nothing(dense: Opened, pad_to: int) -> None:
    model = Model(dense.weights, n_ctx=256, n_batch=32, pad_to=pad_to)
    assert model.n_ctx == 256 - (pad_to - 1), "a padding token needs a place too"
    model.extend(TEXT[: model.n_ctx - 1], 0)
    with pytest.raises(ContextFull, match=f"context of {model.n_ctx}"):
        model.extend([5, 5], 1)
    assert model.tokens == TEXT[: model.n_ctx - 1]
    model.extend([5], 1)
    with pytest.raises(ContextFull):
        model.extend([5], 1)
    model.close()


def test_a_context_of_the_models_own_length(dense: Opened) -> None:
    model = Model(dense.weights, n_ctx=0)
    assert model.n_ctx == tiny.SMALL.n_ctx_train
    model.close()


@pytest.mark.parametrize("step", ["new_context", "apply_lora", "select"])
def test_a_context_that_is_not_finished_is_freed(dense: Opened, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    freed: list[Any] = []
    make, free = backend.new_context, backend.free_context

    def making(*given: Any) -> Any:
        made.append(make(*given))
        return made[-1]

    def freeing(ctx: Any) -> None:
        freed.append(ctx)
        free(ctx)

    def failing(*_: Any) -> None:
        raise BackendError("cannot")

    monkeypatch.setattr(backend, "new_context", making)
    monkeypatch.setattr(backend, "free_context", freeing)
    monkeypatch.setattr(rollback if step == "select" else backend, step, failing)
    if step == "apply_lora":
        monkeypatch.setattr(dense.weights.llama, "_lora_adapter", object(), raising=False)
    with pytest.raises(BackendError, match="cannot"):
        Model(dense.weights, n_ctx=64)
    assert freed == made
    assert len(made) == (step != "new_context")


def test_a_context_costs_its_cache_and_a_few_rows(tiny_wide: Path) -> None:
    """By llama.cpp's own account: 152k ids, 8,192 places; rows for a whole batch would take 297 MiB."""
    weights = Weights(str(tiny_wide), KEYWORDS)
    with backend.captured_log() as lines:
        model = Model(weights, n_ctx=8192, n_outputs_max=17)
    sizes = [float(size) for line in lines for size in re.findall(r"buffer size = +([\d.]+) MiB", line)]
    assert len(sizes) >= 3
    assert sum(sizes) < 40.0
    model.close()
    weights.close()


QUANTS = {"F32": 0, "F16": 1, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3}


def requantised(source: Path, folder: Path, name: str) -> Path:
    if name == "F32":
        return source
    target = folder / f"{name}.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = QUANTS[name]
    params.output_tensor_type = params.token_embedding_type = {"F16": 1, "Q8_0": 8, "Q4_0": 2, "Q4_1": 3}[name]
    backend.start()
    assert llama_cpp.llama_model_quantize(str(source).encode(), str(target).encode(), params) == 0
    return target


@pytest.mark.parametrize("name", QUANTS)
def test_padded_rows_do_not_depend_on_their_batch(name: str, tiny_pair: Pair, tmp_path: Path) -> None:
    """Bit for bit, at every width: what greedy equality stands on."""
    weights = Weights(str(requantised(tiny_pair.target, tmp_path, name)), KEYWORDS)

    def rows(pad_to: int, width: int) -> np.ndarray:
        model = Model(weights, n_ctx=256, n_batch=32, n_outputs_max=32, pad_to=pad_to)
        found = [
            model.extend(TEXT[at : at + width], len(TEXT[at : at + width])).copy()
            for at in range(0, 30, width)
            if TEXT[at : at + width]
        ]
        model.close()
        return np.concatenate(found)[:30]

    wanted = rows(2, 30)
    for width in (1, 2, 3, 6, 7):
        assert (rows(2, width) == wanted).all(), width
    assert (rows(1, 2) == wanted).all()
    if name == "F32":
        assert (rows(1, 1) != wanted).any(), "the control: padding does something"
    weights.close()


@pytest.mark.parametrize("n_padding", [1, 2, 5])
def test_dummies_leave_nothing_behind(dense: Opened, n_padding: int) -> None:
    """Not in the rows, bit for bit, nor in the cache, nor in what is decoded after them; over and over."""
    model = dense.model
    for at in range(0, 60, 3):
        width = 3 if at % 2 else 2
        rows = model.extend(TEXT[at : at + width], width, n_padding).copy()
        assert model.tokens == TEXT[: at + width]
        assert backend.pos_max(model.context.handle, 0) == at + width - 1
        for i, row in enumerate(rows):
            assert (row == dense.row(TEXT[: at + i + 1])).all()
        if width < 3:
            model.extend(TEXT[at + width : at + 3], 0, n_padding)
    assert (model.extend(TEXT[60:62], 1, n_padding)[0] == dense.row(TEXT[:62])).all()


# --- dropping ---------------------------------------------------------------------------------------------


def test_common_prefix() -> None:
    choose = random.Random(1)
    for _ in range(300):
        a = [choose.randrange(2) for _ in range(choose.randint(0, 9))]
        b = [choose.randrange(2) for _ in range(choose.randint(0, 9))]
        n = 0
        while n < min(len(a), len(b)) and a[n] == b[n]:
            n += 1
        assert common_prefix(a, b) == common_prefix(tuple(a), b) == common_prefix(a, tuple(b)) == n


def test_roll_back_keeps_a_prefix_and_says_how_much(any_memory: Opened) -> None:
    model = any_memory.model
    model.extend(TEXT[:10], 0)
    model.mark(3)
    model.extend(TEXT[10:14], 1)
    assert model.roll_back(20) == 14
    kept = model.roll_back(12)
    assert 10 <= kept <= 12
    assert model.tokens == TEXT[:kept]
    any_memory.check()
    assert model.roll_back(0) == 0
    any_memory.check()
    assert model.roll_back(-3) == 0


def test_reuse_keeps_what_is_shared(any_memory: Opened) -> None:
    model = any_memory.model
    model.extend(TEXT[:20], 0)
    model.mark(0, pin=True)
    model.extend(TEXT[20:25], 1)
    assert model.reuse(TEXT[:60]) == 25
    kept = model.reuse([*TEXT[:22], 3 if TEXT[22] != 3 else 4])
    assert 20 <= kept <= 22
    any_memory.check()
    assert model.reuse([2, 2, 2]) == 0
    any_memory.check()
    assert model.reuse([]) == 0


def test_plain_caches_keep_everything_that_is_shared(dense: Opened) -> None:
    dense.model.extend(TEXT[:50], 0)
    for n, kept in ((49, 49), (30, 30), (31, 30), (7, 7), (0, 0)):
        assert dense.model.reuse(tuple(TEXT[:n])) == kept


# --- failing ----------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, code: int, *, after: int = 0, really: bool) -> None:
    """llama_decode returns `code` once, after `after` good calls; `really`: having decoded all the same."""
    decode, calls = backend.decode, 0

    def wrong(ctx: Any, batch: backend.Batch) -> int:
        nonlocal calls
        calls += 1
        if calls - 1 != after:
            return decode(ctx, batch)
        if really:
            decode(ctx, batch)
        return code

    monkeypatch.setattr(backend, "decode", wrong)


@pytest.mark.parametrize(
    ("code", "really", "error"),
    [
        (1, False, BackendError),
        (-1, False, BackendError),
        (2, False, Cancelled),
        (2, True, Cancelled),
        (-3, True, BackendError),
    ],
)
@pytest.mark.parametrize("after", [0, 1])
def test_a_decode_that_fails_once(
    any_memory: Opened, monkeypatch: pytest.MonkeyPatch, code: int, really: bool, error: type[Exception], after: int
) -> None:
    """A plain error; `tokens` says what is left, and what is left is right."""
    model = any_memory.model
    model.extend(TEXT[:20], 0)
    model.mark(4)
    with monkeypatch.context() as patch:
        failing(patch, code, after=after, really=really)
        with pytest.raises(error):
            model.extend(TEXT[20 : 20 + 40 * after + 4], 1)
    assert model.tokens == TEXT[: len(model.tokens)]
    assert len(model.tokens) <= 20 + 32 * after
    if model.rollback.name == "plain":
        assert len(model.tokens) >= 20
    model.extend(TEXT[len(model.tokens) : 70], 1)
    any_memory.check()


def test_what_no_slot_says(dense: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, 1, really=False)
    with pytest.raises(BackendError, match="no room for 3 tokens"):
        dense.model.extend([3, 4, 5], 1)


@pytest.mark.parametrize("n_wanted", [19, 40])
@pytest.mark.parametrize("really", [False, True])
def test_an_interrupt_inside_a_decode(
    any_memory: Opened, monkeypatch: pytest.MonkeyPatch, really: bool, n_wanted: int
) -> None:
    """Ctrl-C may strike between any two instructions: the next use finds out what is held."""
    model, decode = any_memory.model, backend.decode
    model.extend(TEXT[:20], 0)
    model.mark(4)

    def interrupted(ctx: Any, batch: backend.Batch) -> int:
        if really:
            decode(ctx, batch)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            model.extend(TEXT[20:24], 1)
    assert model.reuse(TEXT[:n_wanted]) <= n_wanted
    assert model.tokens == TEXT[: len(model.tokens)]
    any_memory.check()


def interrupted_roll_back(opened: Opened, call: str, *, really: bool) -> bool:
    """Ctrl-C inside the native call that drops tokens, before or after its work; whether that call was made."""
    model, native = opened.model, getattr(backend, call)
    model.extend(TEXT[:20], 0)
    model.mark(4)
    model.extend(TEXT[20:25], 1)

    def interrupted(*given: Any) -> Any:
        if really:
            native(*given)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, call, interrupted)
        try:
            model.roll_back(22)
        except KeyboardInterrupt:
            return True
    return False


@pytest.mark.parametrize("call", ["seq_rm", "set_state"])
@pytest.mark.parametrize("really", [False, True])
def test_an_interrupt_inside_a_roll_back(any_memory: Opened, call: str, really: bool) -> None:
    """The next use finds out what is held."""
    interrupted_roll_back(any_memory, call, really=really)
    assert any_memory.model.tokens == TEXT[: len(any_memory.model.tokens)]
    assert any_memory.model.reuse(TEXT[:24]) <= 24
    any_memory.check()


def test_believing_an_interrupted_roll_back_is_seen(any_memory: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: as if `tokens` still said what is held."""
    call = "seq_rm" if any_memory.model.rolls_back_freely or any_memory.model.rollback.name == "native" else "set_state"
    monkeypatch.setattr(Sequence, "resync", lambda sequence: None)
    assert interrupted_roll_back(any_memory, call, really=True)
    any_memory.model.in_doubt = False
    with contextlib.suppress(BackendError):
        assert any_memory.error([*TEXT[:25], 5]) > WRONG


def test_a_cache_that_is_not_what_it_should_be_is_cleared(dense: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    dense.model.extend(TEXT[:9], 0)
    with monkeypatch.context() as patch:
        patch.setattr(backend, "pos_max", lambda ctx, seq: 3)
        with pytest.raises(BackendError, match="ends at position 3, not 9"):
            dense.model.extend([4], 1)
    assert dense.model.tokens == []
    dense.check()


# --- stopping ---------------------------------------------------------------------------------------------


def test_cancel_between_chunks(any_memory: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a device cannot abort, the flag is looked at between chunks; whole chunks are kept."""
    model, decode = any_memory.model, backend.decode
    monkeypatch.setattr(model.abort, "set", lambda: None)

    def cancelling(ctx: Any, batch: backend.Batch) -> int:
        model.cancel()
        return decode(ctx, batch)

    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", cancelling)
        with pytest.raises(Cancelled):
            model.extend(TEXT[:200], 1)
    assert model.tokens == TEXT[:32]
    model.resume()
    model.extend(TEXT[32:100], 1)
    any_memory.check()


def test_cancel_in_the_middle_of_a_decode(any_memory: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp itself is stopped, in its second chunk; what is left of the state is not trusted."""
    model, decode = any_memory.model, backend.decode
    codes: list[int] = []

    def cancelling(ctx: Any, batch: backend.Batch) -> int:
        if codes:
            model.cancel()
        codes.append(decode(ctx, batch))
        return codes[-1]

    with monkeypatch.context() as patch:
        patch.setattr(backend, "decode", cancelling)
        with pytest.raises(Cancelled):
            model.extend(TEXT[:200], 1)
    assert codes == [0, 2]
    assert model.tokens == TEXT[: len(model.tokens)]
    assert len(model.tokens) <= 32
    model.resume()
    model.extend(TEXT[len(model.tokens) : 100], 1)
    any_memory.check()


def test_a_few_tokens_are_left_to_end(dense: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled round is dropped by whoever runs it; its decode need not be torn."""
    decode = backend.decode

    def cancelling(ctx: Any, batch: backend.Batch) -> int:
        dense.model.cancel()
        return decode(ctx, batch)

    monkeypatch.setattr(backend, "decode", cancelling)
    assert dense.model.extend(TEXT[:6], 1).shape == (1, 8)
    assert dense.model.tokens == TEXT[:6]


# --- saving -----------------------------------------------------------------------------------------------


def test_a_saved_cache_comes_back(any_memory: Opened) -> None:
    """And is rolled back as what it is: nothing of the former text's marks or windows is believed."""
    model = any_memory.model
    model.extend(TEXT[:100], 0)
    saved = model.save()
    for n in (100, 97, 40):
        model.clear()
        model.extend([3] * 150, 0)
        model.mark(0, pin=True)
        model.load(saved)
        assert model.tokens == TEXT[:100]
        kept = model.reuse(TEXT[:n])
        assert model.tokens == TEXT[:kept]
        assert kept <= n
        any_memory.check()


def test_a_saved_cache_of_something_else_is_told_apart(any_memory: Opened, tiny_chat: Pair) -> None:
    model = any_memory.model
    model.extend(TEXT[:100], 0)
    saved = model.save()
    assert model.fits(saved)
    assert not model.fits({**saved, "tokens": TEXT[:301]})
    assert not model.fits({})
    other = Weights(str(tiny_chat.target), KEYWORDS)
    stranger = Model(other, n_ctx=300)
    assert not stranger.fits(saved)
    stranger.close()
    other.close()


def test_a_damaged_state_is_refused_and_leaves_an_empty_cache(dense: Opened) -> None:
    dense.model.extend(TEXT[:10], 0)
    saved = dense.model.save()
    with pytest.raises(BackendError, match="refused the saved state"):
        dense.model.load({**saved, "data": saved["data"][:40]})
    assert dense.model.tokens == []
    dense.check()


# --- files ------------------------------------------------------------------------------------------------


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda folder: folder / "missing.gguf", ModelNotFound, "no such file"),
        (lambda folder: folder, ModelNotFound, "is a folder"),
        (lambda folder: written(folder / "text.gguf", b"hello, world"), BackendError, "not a GGUF file"),
        (lambda folder: written(folder / "empty.gguf", b""), BackendError, "not a GGUF file"),
        (lambda folder: written(folder / "head.gguf", b"GGUF\3\0\0\0"), BackendError, "could not load"),
    ],
)
def test_files_that_are_no_models(
    make: Callable[[Path], Path], error: type[Exception], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message names the file and the fault, and llama.cpp writes nothing of its own."""
    path = make(tmp_path)
    with pytest.raises(error, match=says) as caught:
        Weights(str(path), KEYWORDS)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_a_truncated_model(tiny_pair: Pair, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tiny_pair.target.read_bytes()
    path = written(tmp_path / "cut.gguf", data[: len(data) * 2 // 3])
    check_gguf(str(path))
    with pytest.raises(BackendError) as caught:
        Weights(str(path), KEYWORDS)
    message = str(caught.value)
    assert str(path) in message
    why = message.replace(str(path), "")
    assert "not within the file bounds" in why or "corrupted" in why, "llama.cpp's own reason"
    assert capfd.readouterr() == ("", "")
