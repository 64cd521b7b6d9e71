"""Files over which llama.cpp would end the process are refused by name; what it loads is loaded."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from conftest import Pair
from gguf import GGUFValueType
from support import tiny

from specgguf import BackendError, Cancelled, ConfigError, SpecggufError
from specgguf.models import header, header_check, hparams
from specgguf.native.weights import Weights, watched

Lie = tuple[str, GGUFValueType, Any]
UINT32, FLOAT32, STRING = GGUFValueType.UINT32, GGUFValueType.FLOAT32, GGUFValueType.STRING
EPSILON = "llama.attention.layer_norm_rms_epsilon"
LIES: list[tuple[Lie, str]] = [
    (("llama.block_count", UINT32, 0), "llama.block_count is 0"),
    (("llama.block_count", UINT32, 513), "llama.block_count is 513"),
    (("llama.block_count", UINT32, 2**32 - 1), "llama.block_count is 4294967295"),
    (("llama.expert_count", UINT32, 4), "llama.expert_used_count is 0, of 4 experts"),
    (("llama.expert_used_count", UINT32, 4), "llama.expert_used_count is 4, of 0 experts"),
    ((EPSILON, FLOAT32, -1.0), f"{EPSILON} is -1.0"),
    ((EPSILON, FLOAT32, float("nan")), f"{EPSILON} is nan"),
    (("general.alignment", UINT32, 1), "general.alignment is 1, tensors begin at "),
]
# llama.cpp's own refusals: no end of the process
WRONG: list[tuple[Lie, str]] = [
    (("llama.block_count", STRING, "2"), "llama.block_count"),
    (("llama.block_count", UINT32, 512), "blk.2."),
    (("llama.embedding_length", UINT32, 0), "n_rot"),
    (("llama.attention.head_count", UINT32, 0), "blk.0.attn_q"),
    (("general.alignment", UINT32, 0), "alignment"),
    (("general.alignment", UINT32, 24), "alignment"),
    (("general.alignment", STRING, "x"), "alignment"),
]


@pytest.fixture
def lying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """lying((key, type, value), …) -> a tiny file that says so in its head."""

    def write(*lies: Lie) -> str:
        def finish(w: gguf.GGUFWriter) -> None:
            for key, kind, value in lies:
                w.kv_data[0][key] = gguf.GGUFValue(value, kind)
                if key == "general.alignment" and isinstance(value, int):
                    w.data_alignment = value or 32
            whole(w)

        monkeypatch.setattr(tiny, "_finish", finish)
        return str(tiny.write_llama(tmp_path / "lying.gguf", tiny.letters(8)))

    whole = tiny._finish
    return write


@pytest.mark.parametrize(("lie", "says"), LIES, ids=lambda x: x if isinstance(x, str) else "")
def test_what_would_end_the_process_is_refused(lying: Callable[..., str], lie: Lie, says: str) -> None:
    path = lying(lie)
    with pytest.raises(BackendError, match=says) as caught:
        Weights(path)
    assert str(caught.value).startswith(f"{path} ")
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("lie", "_"), LIES, ids=lambda x: x if isinstance(x, str) else "")
def test_it_would_end_the_process(lying: Callable[..., str], lie: Lie, _: str) -> None:
    """With another llama.cpp that refuses or loads such a file, ours should too."""
    assert exit_code(lying(lie)) < 0


def exit_code(path: str) -> int:
    """Of a process that loads a file with llama.cpp and decodes; negative where a signal ended it."""
    code = (
        "import sys, llama_cpp\n"
        "llm = llama_cpp.Llama(sys.argv[1], n_ctx=32, n_batch=8, n_ubatch=8, n_threads=1, verbose=False)\n"
        "llm.eval([1, 3, 4])"
    )
    return subprocess.run([sys.executable, "-P", "-c", code, path], capture_output=True, check=False).returncode


def test_more_experts_than_llama_cpp_has_room_for(lying: Callable[..., str]) -> None:
    used = ("llama.expert_used_count", UINT32, 2)
    path = lying(("llama.expert_count", UINT32, header_check.MAX_EXPERTS + 1), used)
    with pytest.raises(BackendError, match=f"is damaged: llama.expert_count is {header_check.MAX_EXPERTS + 1}$"):
        Weights(path)
    assert exit_code(path) < 0
    path = lying(("llama.expert_count", UINT32, header_check.MAX_EXPERTS), used)
    with pytest.raises(BackendError, match=r"llama.cpp could not load .*blk\.0\.ffn_"):
        Weights(path)
    assert exit_code(path) == 1


@pytest.mark.parametrize("epsilon", [-1.0, float("nan")])
def test_the_epsilon_of_an_architecture_with_plain_norms(tmp_path: Path, epsilon: float) -> None:
    path = stablelm(tmp_path / "stable.gguf", epsilon)
    with pytest.raises(BackendError, match=f"is damaged: stablelm.attention.layer_norm_epsilon is {epsilon}$"):
        Weights(path)
    assert exit_code(path) < 0
    Weights(stablelm(tmp_path / "sound.gguf", 0.0)).close()


def stablelm(path: Path, epsilon: float) -> str:
    """A tiny transformer that normalizes by mean and variance."""
    shape, vocab, draw = tiny.SMALL, tiny.letters(8), tiny.drawer(1, 0.0, 2)
    w = tiny._header(path, "stablelm", shape, vocab, None)
    w.add_rope_dimension_count(shape.n_embd_head)
    w.add_layer_norm_eps(epsilon)
    w.add_parallel_residual(False)
    embd, output = tiny._embeddings(draw, shape, vocab, 2.0)
    w.add_tensor("token_embd.weight", embd)
    w.add_tensor("output.weight", output)
    for i in range(shape.n_layer):
        tiny._attention(w, draw, shape, i, norms=False)
        tiny._ffn(w, draw, shape, i)
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(shape.n_embd, np.float32))
    for norm in ("output_norm", *(f"blk.{i}.{name}_norm" for i in range(shape.n_layer) for name in ("attn", "ffn"))):
        w.add_tensor(f"{norm}.bias", np.zeros(shape.n_embd, np.float32))
    w.add_tensor("output_norm.weight", np.ones(shape.n_embd, np.float32))
    tiny._finish(w)
    return str(path)


@pytest.mark.parametrize(("lie", "says"), WRONG, ids=lambda x: x if isinstance(x, str) else "")
def test_what_llama_cpp_refuses_is_left_to_it(lying: Callable[..., str], lie: Lie, says: str) -> None:
    with pytest.raises(BackendError, match=f"llama.cpp could not load .*{says}"):
        Weights(lying(lie))


def test_what_llama_cpp_loads_is_not_refused(lying: Callable[..., str]) -> None:
    """Odd, but sound: overridden, not mapped, or aligned by chance."""
    Weights(lying(LIES[0][0]), {"kv_overrides": {"llama.block_count": 2}}).close()
    Weights(lying(LIES[-1][0]), {"use_mmap": False}).close()
    Weights(lying((EPSILON, FLOAT32, 0.0))).close()
    Weights(lying(("general.alignment", UINT32, 64))).close()
    for n in range(32):
        path = lying(("general.alignment", UINT32, 8), ("general.name", STRING, n * "x"))
        if header.read(path).data_start % 32 == 0:
            Weights(path).close()
            break
    else:
        pytest.fail("none was aligned")


@pytest.mark.parametrize("value", [513, 2**32 - 1])
def test_a_layer_count_beyond_all_measure_takes_no_memory(lying: Callable[..., str], value: int) -> None:
    with pytest.raises(SpecggufError, match=f"lying.gguf is damaged: llama.block_count is {value}"):
        hparams.of_file(Path(lying(("llama.block_count", UINT32, value))))


@pytest.mark.parametrize("value", [0, 3, "x"])
def test_an_alignment_that_is_none(lying: Callable[..., str], value: Any) -> None:
    kind = STRING if isinstance(value, str) else UINT32
    with pytest.raises(header.GgufError, match=f"general.alignment is {value!r}, not a power of two"):
        header.read(lying(("general.alignment", kind, value)))


def test_closing_waits_for_who_is_inside(tiny_chat: Pair) -> None:
    """Newcomers are refused meanwhile, and who is inside may go on."""
    weights = Weights(str(tiny_chat.target))
    assert weights.piece(100) == weights.piece(100) != b""
    order: list[str] = []

    def close() -> None:
        weights.close()
        order.append("closed")

    closing = threading.Thread(target=close)
    with weights.in_use():
        closing.start()
        refused = threading.Event()

        def ask() -> None:
            while True:
                try:
                    weights.tokenize(b"a")
                except ConfigError:
                    break
            refused.set()

        asking = threading.Thread(target=ask)
        asking.start()
        refused.wait()
        assert weights.tokenize(b"a")
        order.append("left")
    closing.join()
    asking.join()
    assert order == ["left", "closed"]
    for call in (lambda: weights.piece(100), lambda: weights.vocab, weights.in_use().__enter__):
        with pytest.raises(ConfigError, match="closed"):
            call()
    weights.close()


CLOSING = """
import sys, threading
from specgguf import Cancelled, ConfigError, SpeculativeLlama

CALLS = {
    "tokenize": lambda llm: llm.tokenize("the list of words is in python ".encode() * 40),
    "detokenize": lambda llm: llm.detokenize(range(5, 200)),
    "render": lambda llm: llm.render([{"role": "user", "content": "the list of words " * 20}]),
    "complete": lambda llm: llm.create_completion("the list of", max_tokens=3, temperature=0.0),
    "n_embd": lambda llm: llm.n_embd(),
}


def loop(llm, call, busy, ended):
    try:
        for n in range(10**9):
            CALLS[call](llm)
            if n == 3:
                busy.set()
    except (ConfigError, Cancelled) as error:
        ended.append(str(error))
    finally:
        busy.set()


for i in range(20):
    llm = SpeculativeLlama(sys.argv[1], n_ctx=512, n_threads=1)
    started, ended = [], []
    for call in CALLS:
        busy = threading.Event()
        thread = threading.Thread(target=loop, args=(llm, call, busy, ended))
        thread.start()
        busy.wait()
        started.append(thread)
    llm.close()
    for thread in started:
        thread.join()
    assert len(ended) == len(CALLS), ended
    assert all("closed" in text or "stopped" in text for text in ended), ended
print("ended")
"""


def test_closing_while_other_threads_call_in_a_loop(tiny_chat: Pair) -> None:
    """Twenty engines, each used by five threads when it is closed: a plain error for each."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", CLOSING, str(tiny_chat.target)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


def retyped(path: Path, tensor: str, kind: int) -> str:
    """A copy of a tiny file whose header says that `tensor` has another type, of as many bytes."""
    data = bytearray(path.read_bytes())
    name = tensor.encode()
    at = data.index(len(name).to_bytes(8, "little") + name) + 8 + len(name)
    n_dims = int.from_bytes(data[at : at + 4], "little")
    data[at + 4 + 8 * n_dims : at + 8 + 8 * n_dims] = kind.to_bytes(4, "little")
    made = path.with_name(f"{tensor}.gguf")
    made.write_bytes(data)
    return str(made)


@pytest.mark.parametrize(
    ("tensor", "kind", "says"),
    [
        ("blk.0.attn_norm.weight", 26, "holds whole numbers .I32. where weights stand"),
        ("blk.0.attn_q.weight", 26, "holds whole numbers .I32. where weights stand"),
        ("output_norm.weight", 26, "holds whole numbers"),
    ],
)
def test_whole_numbers_where_weights_stand(tmp_path: Path, tensor: str, kind: int, says: str) -> None:
    tiny.WRITERS["llama"](tmp_path / "sound.gguf", tiny.letters(8))
    path = retyped(tmp_path / "sound.gguf", tensor, kind)
    with pytest.raises(BackendError, match=f"is damaged: {tensor} {says}"):
        Weights(path)
    assert exit_code(path) != 0


LOADING = """
import sys
from specgguf import BackendError
from specgguf.native.weights import Weights

for path in sys.argv[1:]:
    try:
        Weights(path).close()
        print("loaded", flush=True)
    except BackendError as error:
        print(error, flush=True)
"""


@pytest.mark.parametrize("architecture", tiny.WRITERS)
def test_whole_numbers_in_any_tensor(tmp_path: Path, architecture: str) -> None:
    """In a process of its own, which llama.cpp ends over the first that is not refused."""
    sound = tiny.WRITERS[architecture](tmp_path / "sound.gguf", tiny.letters(8))
    names = [tensor.name for tensor in header.read(sound).tensors]
    files = [retyped(sound, name, 26) for name in names]
    command = [sys.executable, "-P", "-c", LOADING, *files, str(sound)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    refused = [
        f"{file} is damaged: {name} holds whole numbers (I32) where weights stand"
        for file, name in zip(files, names, strict=True)
    ]
    assert done.stdout.splitlines() == [*refused, "loaded"], done.stderr


def test_tables_of_whole_numbers_are_no_weights() -> None:
    def says(name: str, kind: int) -> str:
        return header_check.impossible(header.Header({}, (header.Tensor(name, (8,), kind, 0),), 0))

    assert says("blk.0.ffn_gate_tid2eid.weight", 26) == says("d2t", 27) == ""
    assert "whole numbers" in says("blk.0.ffn_gate_inp.weight", 26)
    assert "norms never are" in says("blk.1.post_ffw_norm.weight", 8)


@pytest.mark.parametrize("value", [0, 2**31, 2**32 - 1])
def test_a_context_length_beyond_all_positions(lying: Callable[..., str], value: int) -> None:
    with pytest.raises(BackendError, match=f"is damaged: llama.context_length is {value}$"):
        Weights(lying(("llama.context_length", UINT32, value)))


def test_a_byte_token_that_is_missing(tmp_path: Path) -> None:
    """Negative control: the whole vocabulary, and one without any such token, are loaded by the tests all the time."""
    tiny.WRITERS["llama"](tmp_path / "sound.gguf", tiny.chat())
    Weights(tmp_path / "sound.gguf").close()
    data = (tmp_path / "sound.gguf").read_bytes()
    assert data.count(b"<0x7E>") == 1
    (tmp_path / "damaged.gguf").write_bytes(data.replace(b"<0x7E>", b"<0x7Z>"))
    with pytest.raises(BackendError, match="is damaged: the vocabulary lacks the byte token <0x7E>"):
        Weights(tmp_path / "damaged.gguf")


def test_a_text_beyond_a_vocabulary_without_bytes(tmp_path: Path) -> None:
    """llama.cpp ends the process over it."""
    tiny.WRITERS["llama"](tmp_path / "words.gguf", tiny.numbered(64))
    weights = Weights(tmp_path / "words.gguf")
    with pytest.raises(ConfigError, match="the vocabulary has no token for 'a', and none for bytes") as refused:
        weights.tokenize(b"a b")
    assert "token ids" in str(refused.value.hint)
    assert weights.tokenize(b"", add_bos=False) == []
    weights.close()


@pytest.mark.parametrize(("text", "other"), [("er", b"th"), ("▁number", b"th\0 more.")])
def test_two_tokens_of_one_text(tmp_path: Path, text: str, other: bytes) -> None:
    """llama.cpp reads a text as far as its first NUL."""
    tiny.WRITERS["llama"](tmp_path / "sound.gguf", tiny.chat())
    data = (tmp_path / "sound.gguf").read_bytes()
    whole = len(text.encode()).to_bytes(8, "little") + text.encode()
    assert data.count(whole) == 1
    (tmp_path / "damaged.gguf").write_bytes(data.replace(whole, len(other).to_bytes(8, "little") + other))
    assert exit_code(str(tmp_path / "damaged.gguf")) < 0
    with pytest.raises(BackendError, match="is damaged: two tokens of the vocabulary have the text 'th'"):
        Weights(tmp_path / "damaged.gguf")


# --- how far it is ------------------------------------------------------------------------------------------------


def test_loading_tells_how_far_it_is(tiny_pair: Pair) -> None:
    seen: list[tuple[str, float]] = []

    def told(path: str, share: float) -> bool:
        seen.append((path, share))
        return True

    with watched(told):
        Weights(tiny_pair.target).close()
    n_seen = len(seen)
    Weights(tiny_pair.draft).close()
    assert {path for path, _ in seen} == {str(tiny_pair.target)}
    assert [share for _, share in seen] == sorted(share for _, share in seen)
    assert (seen[-1][1], len(seen)) == (1.0, n_seen)


def test_loading_can_be_stopped(tiny_pair: Pair) -> None:
    with watched(lambda _path, _share: False), pytest.raises(Cancelled, match="was stopped"):
        Weights(tiny_pair.target)
    Weights(tiny_pair.target).close()


def test_a_file_that_is_refused_is_not_said_to_be_stopped(lying: Callable[..., str]) -> None:
    with watched(lambda _path, _share: True), pytest.raises(BackendError):
        Weights(lying(("llama.block_count", UINT32, 512)))
