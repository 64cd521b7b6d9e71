"""Text from tokens: whatever the split, the pieces add up to the whole and a stop string never leaks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specgguf.text.detokenize import REASONING_TAGS, Detokenizer, ReasoningSplitter, StopBuffer, open_reasoning

EOG = 999_999
property_test = settings(derandomize=True, deadline=None, max_examples=300)

# Few letters, so that stop strings overlap one another and themselves; characters of 1 to 4 bytes.
texts = st.text(alphabet="ab", max_size=30) | st.text(alphabet="ab\n é한👍🏽e\u0301", max_size=30)
stop_lists = st.lists(
    st.text(alphabet="ab", min_size=2, max_size=5) | st.text(alphabet="ab\né한👍", min_size=1, max_size=4),
    max_size=3,
)


@st.composite
def split(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> tuple[list[bytes], list[int]]:
    """Bytes cut into tokens anywhere (empty tokens too), and tokens into rounds anywhere."""
    data = draw(whole)
    points = sorted(draw(st.lists(st.integers(0, len(data)), max_size=12)))
    edges = [0, *points, len(data)]
    tokens = [data[i:j] for i, j in pairwise(edges)]
    sizes: list[int] = []
    while sum(sizes) < len(tokens):
        sizes.append(draw(st.integers(1, 6)))
    return tokens, sizes


def run(
    tokens: list[bytes],
    sizes: list[int],
    *,
    stop: Sequence[str] = (),
    max_tokens: int = 1000,
    end: int | None = EOG,
) -> tuple[list[str], int, str | None]:
    """The pieces, the number of tokens kept, and the finish reason."""
    stop_check = Detokenizer(lambda i: tokens[i], eog={EOG}, stop=stop, max_tokens=max_tokens)
    ids = list(range(len(tokens))) + ([] if end is None else [end])
    pieces: list[str] = []
    n_kept, reason = 0, None
    for size in [*sizes, 1]:
        if not ids or reason:
            break
        block, ids = ids[:size], ids[size:]
        n, reason = stop_check.check(block)
        taken = stop_check.chunks(n_from_draft=1)
        assert [p.token for p in taken] == block[:n]
        assert [p.from_draft for p in taken] == [i < 1 for i in range(n)]
        assert stop_check.chunks() == []
        assert reason or n == len(block)
        pieces += [p.text for p in taken]
        n_kept += n
    return pieces, n_kept, reason


def reference(tokens: list[bytes], stop: list[str], max_tokens: int) -> tuple[str, int, str]:
    """By brute force over the whole text: the text, the tokens kept, and why it ends."""
    for n in range(1, len(tokens) + 1):
        text = b"".join(tokens[:n]).decode(errors="ignore")
        for end in range(len(text) + 1):
            starts = [end - len(s) for s in stop if text[:end].endswith(s)]
            if starts:
                return text[: min(starts)], n, "stop"
        if n == max_tokens:
            return text, n, "length"
    return b"".join(tokens).decode(errors="ignore"), len(tokens) + 1, "eos"


@property_test
@given(split(texts.map(str.encode)))
def test_pieces_add_up_to_the_whole(cut: tuple[list[bytes], list[int]]) -> None:
    pieces, n_kept, reason = run(*cut)
    whole = b"".join(cut[0]).decode()
    assert "".join(pieces) == whole
    assert "\ufffd" not in whole
    assert all(p.encode().decode() == p for p in pieces)
    assert (n_kept, reason) == (len(cut[0]) + 1, "eos")


@property_test
@given(split(st.binary(max_size=24)))
def test_bytes_that_are_no_utf8_are_left_out(cut: tuple[list[bytes], list[int]]) -> None:
    assert "".join(run(*cut)[0]) == b"".join(cut[0]).decode(errors="ignore")


@property_test
@given(split(texts.map(str.encode)), stop_lists, st.integers(1, 14))
def test_equal_to_brute_force(cut: tuple[list[bytes], list[int]], stop: list[str], max_tokens: int) -> None:
    pieces, n_kept, reason = run(*cut, stop=stop, max_tokens=max_tokens)
    text, n, why = reference(cut[0], stop, max_tokens)
    assert ("".join(pieces), n_kept, reason) == (text, n, why)
    assert not any(s in "".join(pieces) for s in stop)


@property_test
@given(split(texts.map(str.encode)), stop_lists)
def test_no_more_is_held_back_than_may_become_a_stop_string(
    cut: tuple[list[bytes], list[int]], stop: list[str]
) -> None:
    pieces, _, reason = run(*cut, stop=stop, end=None)
    if reason is None:
        held = b"".join(cut[0]).decode()[len("".join(pieces)) :]
        assert held == "" or any(s.startswith(held) and s != held for s in stop)


@property_test
@given(texts, stop_lists, st.data())
def test_where_a_stop_cuts_does_not_depend_on_the_split(text: str, stop: list[str], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    whole, halves = StopBuffer(stop), StopBuffer(stop)
    assert whole.feed(text) + whole.flush() == halves.feed(text[:at]) + halves.feed(text[at:]) + halves.flush()


def test_brute_force_would_notice_a_leak() -> None:
    """Negative control: looking for stop strings inside one token only leaks the ones that span two."""
    tokens = [b"x<", b"end", b">y"]
    naive = "".join(t.decode().split("<end>")[0] for t in tokens)
    assert naive != reference(tokens, ["<end>"], 1000)[0]
    assert run(tokens, [3], stop=["<end>"]) == (["x", "", ""], 3, "stop")


@pytest.mark.parametrize("n", range(1, 13))
def test_max_tokens_delivers_exactly_that_many(n: int) -> None:
    pieces, n_kept, reason = run([b"w "] * 20, [6] * 4, max_tokens=n)
    assert (len(pieces), n_kept, reason) == (n, n, "length")


def test_order_is_eos_then_stop_then_length() -> None:
    assert run([b"a", b"#"], [2, 1], stop=["#"], max_tokens=2) == (["a", ""], 2, "stop")
    assert run([b"a"], [1, 1], stop=["#"], max_tokens=2) == (["a", ""], 2, "eos")
    assert run([b"a"], [2], max_tokens=1) == (["a"], 1, "length")


def test_of_several_stops_the_first_complete_one_ends_the_text() -> None:
    assert run([b"xabcd"], [1], stop=["cd", "ab"])[0] == ["x"]
    assert run([b"xabcd"], [1], stop=["abcd", "bc"])[0] == ["xa"]
    assert run([b"xabcd"], [1], stop=["bc", "abc"])[0] == ["x"]
    assert run([b"xaa", b"aab"], [2, 1], stop=["aaab"])[0] == ["x", "a"]


def test_held_text_is_released_at_the_end() -> None:
    assert run([b"a", b"\n"], [3], stop=["\n\n"]) == (["a", "", "\n"], 3, "eos")
    assert run([b"a", b"\n"], [2], stop=["\n\n"], max_tokens=2) == (["a", "\n"], 2, "length")
    stop_check = Detokenizer(lambda _: b"\n", eog=(), stop=["\n\n"], max_tokens=9)
    stop_check.check([0])
    assert stop_check.flush() == "\n"


def test_a_character_cut_by_max_tokens_is_left_out() -> None:
    first, second = "é".encode()[:1], "é".encode()[1:]
    assert run([b"x", first, second], [3], max_tokens=2) == (["x", ""], 2, "length")


def test_nothing_after_the_end_is_kept() -> None:
    stop_check = Detokenizer(lambda _: b"x", eog={7}, max_tokens=9)
    assert stop_check.check([1, 7, 2, 3]) == (2, "eos")
    assert stop_check.n_tokens == 1
    assert stop_check.check([4]) == (0, "eos")
    assert [chunk.token for chunk in stop_check.chunks()] == [1, 7], "of the first check"
    assert stop_check.chunks() == []


def test_logprobs_travel_with_their_token() -> None:
    from specgguf.decode.records import TokenLogprob

    stop_check = Detokenizer(lambda _: b"x", eog=(), max_tokens=2)
    given_ = [TokenLogprob(5, -0.5), TokenLogprob(6, -1.5), TokenLogprob(7, -2.5)]
    stop_check.check([5, 6, 7])
    assert [p.logprob for p in stop_check.chunks(0, given_)] == given_[:2]


def split_reasoning(text: str, points: list[int], opened: str = "") -> dict[str, str]:
    splitter = ReasoningSplitter(opened)
    edges = [0, *sorted(points), len(text)]
    out = {"reasoning": "", "answer": ""}
    for i, j in pairwise(edges):
        for kind, part in splitter.feed(text[i:j]):
            assert part
            out[kind] += part
    for kind, part in splitter.flush():
        out[kind] += part
    return out


parts = st.text(alphabet="ab\n<>/ think[]THINK", max_size=15)


@property_test
@given(st.sampled_from(REASONING_TAGS), parts, parts, st.data())
def test_reasoning_is_separated_however_it_is_split(
    tags: tuple[str, str], thought: str, answer: str, data: st.DataObject
) -> None:
    start, close = tags
    if close in thought:
        return
    text = f"\n{start}{thought}{close}\n\n{answer}"
    points = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    wanted = {"reasoning": thought.lstrip(), "answer": answer.lstrip()}
    assert split_reasoning(text, points) == wanted
    opened_by_prompt = text[1 + len(start) :]
    points = [p for p in points if p <= len(opened_by_prompt)]
    assert split_reasoning(opened_by_prompt, points, opened=start) == wanted


@property_test
@given(texts, st.lists(st.integers(0, 30), max_size=5))
def test_text_without_reasoning_passes_unchanged(text: str, points: list[int]) -> None:
    text = f" {text} a <think>no</think> b"
    assert split_reasoning(text, [p for p in points if p < len(text)]) == {"reasoning": "", "answer": text}


def test_reasoning_that_never_ends() -> None:
    assert split_reasoning("<think>so far </thi", [3, 9]) == {"reasoning": "so far </thi", "answer": ""}
    assert split_reasoning("<thi", [2]) == {"reasoning": "", "answer": "<thi"}


def test_prompts_that_open_the_reasoning() -> None:
    assert open_reasoning("<|im_start|>assistant\n<think>\n") == "<think>"
    assert open_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n") == ""
    assert open_reasoning("<|im_start|>assistant\n") == ""
