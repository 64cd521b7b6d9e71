"""The dicts and chunks are llama-cpp-python's, key by key, plus ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from llama_cpp import llama_chat_format as upstream

from specgguf.decode.records import Chunk, TokenLogprob
from specgguf.decode.stats import Stats
from specgguf.errors import ConfigError
from specgguf.text.completion import ChatCompletion, Json, ResponseMetadata, TextCompletion
from specgguf.text.logprobs import ChatLogprobWriter, LogprobWriter

HEAD = ResponseMetadata("cmpl-1", 1700000000, "model.gguf")
BYTES = {1: b"a", 2: b" b", 3: "é".encode()[:1], 4: "é".encode()[1:], 5: b"c", 9: b""}
TIMINGS = {"predicted_n": 4, "draft_n": 2}


def scored(token: int) -> TokenLogprob:
    return TokenLogprob(token, -0.25 * token, ((1, -0.1), (token, -0.25 * token)))


class Timed(Stats):
    def timings(self) -> Json:
        return dict(TIMINGS)


class Told:
    """A generation that is over: its chunks, why it ended, and its tokens."""

    def __init__(self, chunks: Sequence[Chunk], reason: str, n_prompt: int = 7, n_completion: int = 4) -> None:
        self._chunks = list(chunks)
        self.finish_reason: str | None = reason
        self.n_prompt, self.n_completion = n_prompt, n_completion
        self.stopping_word = "."
        self.stats: Stats = Timed()
        self.n_closed = 0

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._chunks)

    def close(self) -> None:
        self.n_closed += 1

    def cancel(self) -> None:
        raise AssertionError("nobody asked for that")

    stop = cancel


def completion(told: Any, **keywords: Any) -> Json:
    return TextCompletion(HEAD, told, **keywords).whole()


def completion_chunks(told: Any, **keywords: Any) -> Iterator[Json]:
    return TextCompletion(HEAD, told, **keywords).chunks()


def chat(told: Any, **keywords: Any) -> Json:
    return ChatCompletion(HEAD, told, **keywords).whole()


def chat_chunks(told: Any, **keywords: Any) -> Iterator[Json]:
    return ChatCompletion(HEAD, told, **keywords).chunks()


# "a bé", its é split over two tokens; tokens 2 and 3 were drafted; then the end of generation.
CHUNKS = [
    Chunk("a", 1, logprob=scored(1)),
    Chunk(" b", 2, from_draft=True, logprob=scored(2)),
    Chunk("", 3, from_draft=True, logprob=scored(3)),
    Chunk("é", 4, logprob=scored(4)),
    Chunk("", 9, logprob=scored(9), finish_reason="eos"),
]
TOLD = Told(CHUNKS, "eos")
USAGE = {"prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11}
LOGPROBS: Json = {
    "tokens": ["a", " b", "", ""],
    "text_offset": [10, 11, 13, 13],
    "token_logprobs": [-0.25, -0.5, -0.75, -1.0],
    "top_logprobs": [{"a": -0.25}, {"a": -0.1, " b": -0.5}, {"a": -0.1, "": -0.75}, {"a": -0.1, "": -1.0}],
}


def writer() -> LogprobWriter:
    return LogprobWriter(BYTES.__getitem__, offset=10)


def without(chunk: Json, *keys: str) -> Json:
    return {k: v for k, v in chunk.items() if k not in keys}


def test_completion() -> None:
    assert completion(TOLD, logprobs=writer()) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1700000000,
        "model": "model.gguf",
        "choices": [{"text": "a bé", "index": 0, "logprobs": LOGPROBS, "finish_reason": "stop"}],
        "usage": USAGE,
        "timings": TIMINGS,
    }
    assert completion(TOLD, echo="> ")["choices"][0] == {
        "text": "> a bé",
        "index": 0,
        "logprobs": None,
        "finish_reason": "stop",
    }


@pytest.mark.parametrize(("reason", "word"), [("eos", "stop"), ("stop", "stop"), ("length", "length")])
def test_finish_reasons(reason: str, word: str) -> None:
    told = Told([*CHUNKS[:-1], Chunk("", 9, finish_reason=reason)], reason)
    assert completion(told)["choices"][0]["finish_reason"] == word
    assert chat(told)["choices"][0]["finish_reason"] == word
    assert list(chat_chunks(told))[-1]["choices"][0]["finish_reason"] == word


def test_completion_chunks() -> None:
    *tokens, last = completion_chunks(TOLD, logprobs=writer())
    assert [c["choices"][0]["text"] for c in tokens] == ["a", " b", "", "é"], "one chunk per token"
    assert [c["from_draft"] for c in tokens] == [False, True, True, False]
    for i, chunk in enumerate(tokens):
        choice: Json = chunk["choices"][0]
        assert without(chunk, "choices", "from_draft") == {
            "id": "cmpl-1",
            "object": "text_completion",
            "created": 1700000000,
            "model": "model.gguf",
        }
        assert choice["finish_reason"] is None
        assert choice["logprobs"] == {key: [column[i]] for key, column in LOGPROBS.items()}
    assert last["choices"] == [{"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}]
    assert (last["usage"], last["timings"], last["from_draft"]) == (USAGE, TIMINGS, False)
    first, *_ = completion_chunks(TOLD, echo="> ")
    assert first["choices"][0]["text"] == "> "


def test_chat_is_what_llama_cpp_python_makes_of_the_completion() -> None:
    ours = chat(TOLD)
    theirs = upstream._convert_text_completion_to_chat(completion(TOLD))
    assert without(ours, "timings") == theirs
    assert ours["timings"] == TIMINGS


def test_log_probabilities_of_a_chat_are_openais() -> None:
    """With the bytes of each token, and only the alternatives that were asked for."""
    content = chat(TOLD, logprobs=ChatLogprobWriter(BYTES.__getitem__))["choices"][0]["logprobs"]["content"]
    assert [entry["logprob"] for entry in content] == LOGPROBS["token_logprobs"]
    assert b"".join(bytes(entry["bytes"]) for entry in content).decode() == "a bé"
    assert [len(entry["top_logprobs"]) for entry in content] == [len(c.logprob.top) for c in CHUNKS[:4] if c.logprob]
    chunks = list(chat_chunks(TOLD, logprobs=ChatLogprobWriter(BYTES.__getitem__)))
    said = [c["choices"][0]["logprobs"]["content"][0] for c in chunks if c["choices"][0]["logprobs"]]
    assert said == content


def test_an_echoed_prompt_has_log_probabilities() -> None:
    prompt = [(1, None), (2, TokenLogprob(2, -0.5, ((1, -0.1),)))]
    made = completion(TOLD, echo="a b", logprobs=LogprobWriter(BYTES.__getitem__, 3, prompt))["choices"][0]
    assert made["text"] == "a ba bé"
    assert made["logprobs"]["token_logprobs"] == [None, -0.5, *LOGPROBS["token_logprobs"]]
    assert made["logprobs"]["top_logprobs"][:2] == [None, {"a": -0.1, " b": -0.5}]
    assert made["logprobs"]["text_offset"] == [0, 1, 3, 4, 6, 6]
    first, *_ = completion_chunks(TOLD, echo="a b", logprobs=LogprobWriter(BYTES.__getitem__, 3, prompt))
    assert first["choices"][0]["logprobs"]["token_logprobs"] == [None, -0.5]


def test_chat_chunks_are_what_llama_cpp_python_makes_of_the_chunks() -> None:
    ours = list(chat_chunks(TOLD))
    plain = completion_chunks(TOLD)
    theirs = list(upstream._convert_text_completion_chunks_to_chat(plain))
    assert [without(c, "from_draft", "usage", "timings") for c in ours] == theirs
    assert [c["from_draft"] for c in ours] == [False, False, True, True, False, False]
    assert (ours[-1]["usage"], ours[-1]["timings"]) == (USAGE, TIMINGS)


def test_text_released_by_the_end_of_generation_is_not_lost() -> None:
    told = Told([Chunk("", 5), Chunk("c", 9, finish_reason="eos")], "eos", 1, 1)
    assert completion(told)["choices"][0]["text"] == "c"
    assert "".join(c["choices"][0]["text"] for c in completion_chunks(told)) == "c"
    deltas = [c["choices"][0]["delta"] for c in chat_chunks(told)]
    assert "".join(d.get("content", "") for d in deltas) == "c"


def test_a_stream_begins_only_when_its_first_item_is_there() -> None:
    """An error before the first token is raised before any chunk is sent."""

    class Failing(Told):
        def __iter__(self) -> Any:
            raise ConfigError("no")

    with pytest.raises(ConfigError):
        next(chat_chunks(Failing([], "eos")))
    empty = list(chat_chunks(Told([Chunk("", -1, finish_reason="length")], "length", 1, 0)))
    assert [c["choices"][0]["delta"] for c in empty] == [{"role": "assistant"}, {}]


def spelt(text: str, reason: str = "eos") -> Told:
    return Told([*(Chunk(c, 1) for c in text), Chunk("", 9, finish_reason=reason)], reason, 7, len(text))


CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def test_tool_calls() -> None:
    text = f"Let me see.\n{CALL}\n{CALL}"
    choice = chat(spelt(text), tool_names=("f",))["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    first, second = choice["message"]["tool_calls"]
    assert first == {
        "id": "call__0_f_cmpl-1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"x": 1}'},
    }
    assert second["id"] != first["id"]

    chunks = list(chat_chunks(spelt(text), tool_names=("f",)))
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert len(chunks) == len(text) + 2, "the role, one per token, the end"
    assert "".join(d.get("content", "") for d in deltas) == "Let me see."
    calls = [call for d in deltas for call in d.get("tool_calls", [])]
    assert calls == [{"index": 0, **first}, {"index": 1, **second}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_tool_calls_without_text_around_and_without_their_end() -> None:
    assert chat(spelt(CALL), tool_names=("f",))["choices"][0]["message"]["content"] is None
    unclosed = CALL.removesuffix("</tool_call>")
    (call,) = chat(spelt(unclosed), tool_names=("f",))["choices"][0]["message"]["tool_calls"]
    chunks = list(chat_chunks(spelt(unclosed), tool_names=("f",)))
    assert chunks[-2]["choices"][0]["delta"]["tool_calls"] == [{"index": 0, **call}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_calls_in_a_text_that_was_cut() -> None:
    told = Told([Chunk(CALL, 1, finish_reason="length")], "length", 7, 1)
    assert chat(told, tool_names=("f",))["choices"][0]["finish_reason"] == "length"
    *_, last = chat_chunks(told, tool_names=("f",))
    assert last["choices"][0]["finish_reason"] == "length"


def test_no_tool_calls_unless_asked_for() -> None:
    for tools, text in (((), CALL), (("f",), "a <b> "), (("f",), "<tool_call>?</tool_call>")):
        choice = chat(spelt(text), tool_names=tools)["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": text}
        assert choice["finish_reason"] == "stop"
        deltas = [c["choices"][0]["delta"] for c in chat_chunks(spelt(text), tool_names=tools)]
        assert "".join(d.get("content", "") for d in deltas) == text


def test_a_forced_tool_is_as_in_llama_cpp_python() -> None:
    told = spelt('{"x": 1}')
    ours = chat(told, forced_tool="f")
    theirs = upstream._convert_completion_to_chat_function("f", completion(told), stream=False)
    assert without(ours, "timings") == theirs


def test_a_forced_tools_chunks_add_up() -> None:
    """Not as llama-cpp-python's, which repeat the name in each chunk: OpenAI's client would add them up."""
    chunks = list(chat_chunks(spelt('{"x": 1}'), forced_tool="f"))
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
    calls = [c["choices"][0]["delta"]["tool_calls"][0] for c in chunks[1:-1]]
    assert all(call["index"] == 0 for call in calls)
    assert "".join(call["function"].get("name", "") for call in calls) == "f"
    assert "".join(call["function"]["arguments"] for call in calls) == '{"x": 1}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_a_forced_call_that_was_cut_says_so() -> None:
    told = spelt('{"x": ', reason="length")
    assert chat(told, forced_tool="f")["choices"][0]["finish_reason"] == "length"
    *_, last = chat_chunks(told, forced_tool="f")
    assert last["choices"][0]["finish_reason"] == "length"


def test_a_bare_call_of_a_tool_is_a_call() -> None:
    text = '{"name": "f", "arguments": {"x": 1}}'
    choice = chat(spelt(text), tool_names=("f",))["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
    deltas = [c["choices"][0]["delta"] for c in chat_chunks(spelt(text), tool_names=("f",))]
    (call,) = [call for delta in deltas for call in delta.get("tool_calls", [])]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert not any(delta.get("content") for delta in deltas)
    assert chat(spelt(text), tool_names=("g",))["choices"][0]["message"]["content"] == text


def test_every_reply_has_timings_of_its_own() -> None:
    dicts = [completion(TOLD), chat(TOLD), *chat_chunks(TOLD)]
    for made in dicts:
        made.get("timings", {}).clear()
    assert TIMINGS == {"predicted_n": 4, "draft_n": 2}


def test_a_stream_that_is_dropped_closes_its_generation() -> None:
    told = Told(CHUNKS, "eos")
    chunks = chat_chunks(told)
    next(chunks)
    assert not told.n_closed
    chunks.close()  # type: ignore[attr-defined]
    assert told.n_closed


REASONED = Told(
    [
        Chunk("", 1, reasoning="so "),
        Chunk("", 2, reasoning="it is", from_draft=True),
        Chunk("yes", 3),
        Chunk("", 9, finish_reason="eos"),
    ],
    "eos",
)


def test_reasoning_has_a_field_of_its_own() -> None:
    message = chat(REASONED)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "yes", "reasoning_content": "so it is"}
    deltas = [c["choices"][0]["delta"] for c in chat_chunks(REASONED)]
    assert deltas == [
        {"role": "assistant"},
        {"content": "", "reasoning_content": "so "},
        {"content": "", "reasoning_content": "it is"},
        {"content": "yes"},
        {},
    ]
    assert "reasoning_content" not in chat(TOLD)["choices"][0]["message"]
