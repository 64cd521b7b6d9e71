"""The contract with `llama_cpp.Llama`: the same calls, the same dicts, key by key, with and without a draft.

At temperature 0, on F32 weights and without flash attention (`Llama`'s default), where near-ties between
batch widths do not decide.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import numbers
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from conftest import NOISE
from support import tiny

from specgguf import ConfigError, ContextFull, SpeculativeLlama

N_CTX = 256
SAME: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "n_threads_batch": 1, "flash_attn": False}
PROMPT = "a word list in python"
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": [{"type": "text", "text": "the number of words"}]},
]
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
Json = dict[str, Any]


@pytest.fixture(scope="module")
def paths(tiny_folder: Path) -> tuple[str, str]:
    """A target and a draft whose template prints the BOS: `Llama` adds none to a rendered prompt."""
    vocab = dataclasses.replace(tiny.chat(), template="{{ bos_token }}" + tiny.CHAT_TEMPLATE)
    target = tiny.write_llama(tiny_folder / "contract-target.gguf", vocab)
    draft = tiny.write_llama(tiny_folder / "contract-draft.gguf", vocab, noise=NOISE)
    return str(target), str(draft)


@pytest.fixture(scope="module")
def theirs(paths: tuple[str, str]) -> Iterator[Any]:
    llm = llama_cpp.Llama(paths[0], logits_all=True, verbose=False, **SAME)
    yield llm
    llm.close()


@pytest.fixture(scope="module", params=["off", 3])
def ours(request: pytest.FixtureRequest, paths: tuple[str, str]) -> Iterator[Any]:
    with SpeculativeLlama(*paths, draft=request.param, **SAME) as llm:
        yield llm
        assert (llm.stats.draft_n_accepted > 0) == (request.param == 3), "the draft was (not) at work"


def same(ours: Any, theirs: Any, where: str = "") -> None:
    """Assert that two dicts agree key by key; ids and times by their form, floats within 1e-3."""
    if isinstance(theirs, dict):
        extra = {"timings", "from_draft", "stopping_word"} if where == "" else set()
        assert set(ours) - extra == set(theirs), where
        for key, value in theirs.items():
            same(ours[key], value, f"{where}.{key}")
    elif where.endswith(".logprobs.content"):
        # OpenAI's own: with the bytes of each token, and only the alternatives that were asked for
        assert [entry["token"] for entry in ours] == [entry["token"] for entry in theirs]
        same([entry["logprob"] for entry in ours], [entry["logprob"] for entry in theirs], where + ".logprob")
        for mine, entry in zip(ours, theirs, strict=True):
            known = {one["token"]: one["logprob"] for one in entry["top_logprobs"]}
            assert all(known[one["token"]] == pytest.approx(one["logprob"], abs=1e-3) for one in mine["top_logprobs"])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for i, value in enumerate(theirs):
            same(ours[i], value, f"{where}[{i}]")
    elif where.endswith(".id"):
        assert UUID.sub("", ours) == UUID.sub("", theirs), where
        assert len(ours) == len(theirs), where
    elif where == ".created":
        assert isinstance(ours, int), where
        assert abs(ours - theirs) < 600, where
    elif isinstance(theirs, numbers.Real) and not isinstance(theirs, int):
        assert ours == pytest.approx(theirs, abs=1e-3), where
    else:
        assert ours == theirs, where


def inside(text: str) -> str:
    """Some characters from the middle of `text`, over a token's edge as a rule."""
    assert len(text) > 20
    return text[11:14]


COMPLETIONS: dict[str, Json] = {
    "default length": {},
    "length": {"max_tokens": 40},
    "one token": {"max_tokens": 1},
    "until the end": {"max_tokens": None},
    "echo": {"max_tokens": 8, "echo": True},
    "logprobs": {"max_tokens": 12, "logprobs": 3},
    "logprobs 0": {"max_tokens": 5, "logprobs": 0},
    "penalties": {"max_tokens": 40, "repeat_penalty": 1.3, "frequency_penalty": 0.2, "presence_penalty": 0.1},
    "bias": {"max_tokens": 24, "logit_bias": {265: 3.0, 266: -100.0}},
    "bias with text keys": {"max_tokens": 24, "logit_bias": {"265": 3.0}},
    "model name": {"max_tokens": 4, "model": "mine"},
    "no stop": {"max_tokens": 4, "stop": None},
    "stop as text": {"max_tokens": 4, "stop": "zzz"},
    "seed": {"max_tokens": 4, "seed": 7},
    "truncation does not matter": {"max_tokens": 9, "top_k": 2, "top_p": 0.3, "min_p": 0.2, "typical_p": 0.5},
}


@pytest.mark.parametrize("name", COMPLETIONS)
def test_completion(ours: Any, theirs: Any, name: str) -> None:
    keywords = {"temperature": 0.0, **COMPLETIONS[name]}
    wanted = theirs.create_completion(PROMPT, **keywords)
    same(ours.create_completion(PROMPT, **keywords), wanted)
    same(ours(PROMPT, **keywords), wanted)


def test_no_limit(ours: Any) -> None:
    """Zero, negative and None are the same: until the context is full."""
    first, *others = (ours(PROMPT, temperature=0.0, max_tokens=n) for n in (None, 0, -1))
    for other in others:
        same(without_timings(other), without_timings(first))
    assert first["usage"]["total_tokens"] == N_CTX
    assert first["choices"][0]["finish_reason"] == "length"


def without_timings(reply: Json) -> Json:
    return {key: value for key, value in reply.items() if key != "timings"}


def test_completion_of_tokens(ours: Any, theirs: Any) -> None:
    ids = theirs.tokenize(PROMPT.encode())
    same(
        ours.create_completion(ids, temperature=0.0, max_tokens=20),
        theirs.create_completion(ids, temperature=0.0, max_tokens=20),
    )


def test_completion_with_stop(ours: Any, theirs: Any) -> None:
    text = theirs(PROMPT, temperature=0.0, max_tokens=60)["choices"][0]["text"]
    keywords: Json = {"temperature": 0.0, "max_tokens": 60, "stop": ["never this", inside(text)]}
    reply = ours(PROMPT, **keywords)
    same(reply, theirs(PROMPT, **keywords))
    assert reply["choices"][0]["finish_reason"] == "stop"


def test_completion_stream(ours: Any, theirs: Any) -> None:
    text = theirs(PROMPT, temperature=0.0, max_tokens=60)["choices"][0]["text"]
    variants: tuple[Json, ...] = ({}, {"stop": [inside(text)]}, {"logprobs": 2})
    for variant in variants:
        keywords = {"temperature": 0.0, "max_tokens": 40, "stream": True, **variant}
        same_stream(list(ours(PROMPT, **keywords)), list(theirs(PROMPT, **keywords)), "text")


def same_stream(ours: list[Json], theirs: list[Json], key: str) -> None:
    """Chunks have the same keys, the same text in all, the same beginning and end.

    Not the same number: `Llama` joins the tokens of a character into one chunk and leaves out what a stop
    string swallowed; here each token has its own.
    """

    def said(chunk: Json) -> str:
        choice = chunk["choices"][0]
        return str(choice.get("delta", choice).get(key, ""))

    *ours, our_last = ours
    *theirs, their_last = theirs
    same({k: v for k, v in our_last.items() if k != "usage"}, their_last)
    assert "".join(map(said, ours)) == "".join(map(said, theirs))
    same(ours[0], theirs[0])
    for chunk in ours[1:]:
        assert set(chunk) - {"from_draft"} == set(theirs[1])
        assert set(chunk["choices"][0]) == set(theirs[1]["choices"][0])
    assert our_last["usage"]["completion_tokens"] == sum(said(c) is not None for c in ours if has(c, key))


def has(chunk: Json, key: str) -> bool:
    choice = chunk["choices"][0]
    return key in choice.get("delta", choice)


CHATS: dict[str, Json] = {
    "default": {"max_tokens": 24},
    "until the end": {},
    "logprobs": {"max_tokens": 12, "logprobs": True, "top_logprobs": 2},
    "penalty": {"max_tokens": 24, "repeat_penalty": 1.2},
    "stop": {"max_tokens": 24, "stop": "zzz"},
    "text": {"max_tokens": 9, "response_format": {"type": "text"}},
}


@pytest.mark.parametrize("name", CHATS)
def test_chat(ours: Any, theirs: Any, name: str) -> None:
    plain = [
        {**m, "content": m["content"] if isinstance(m["content"], str) else m["content"][0]["text"]} for m in MESSAGES
    ]
    keywords = {"temperature": 0.0, **CHATS[name]}
    same(ours.create_chat_completion(MESSAGES, **keywords), theirs.create_chat_completion(plain, **keywords))
    same_stream(
        list(ours.create_chat_completion(MESSAGES, stream=True, **keywords)),
        list(theirs.create_chat_completion(plain, stream=True, **keywords)),
        "content",
    )


def test_what_is_added(ours: Any) -> None:
    """`from_draft` marks the tokens that `timings` and `stats` count as accepted and kept."""
    chunks = list(ours(PROMPT, temperature=0.0, max_tokens=50, stream=True))
    timings = chunks[-1]["timings"]
    assert timings["predicted_n"] == 50
    marked = sum(c["from_draft"] for c in chunks)
    assert marked <= timings["draft_n_accepted"] <= timings["draft_n"]
    assert (marked > 0) == (ours.draft == 3)
    reply = ours(PROMPT, temperature=0.0, max_tokens=50)
    assert set(reply["timings"]) == set(timings)
    assert reply["timings"]["cache_n"] > 0, "the prompt was in the cache"
    assert ours(PROMPT, temperature=0.0, max_tokens=3, draft="off")["timings"]["draft_n"] == 0


def test_grammars(ours: Any, theirs: Any) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= ("the " | "word ")+ [0-9]{3,5} "."', verbose=False)
    keywords: Json = {"temperature": 0.0, "max_tokens": 40, "grammar": grammar}
    same(ours(PROMPT, **keywords), theirs(PROMPT, **keywords))


OK: Json = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}


def blanked(reply: Json) -> Json:
    """A chat completion without its JSON, which has to be that of `OK`: blank space is written by other rules here."""
    message = reply["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls", [])] + [message.get("function_call", {})]
    for holder, key in ((message, "content"), *((call, "arguments") for call in calls)):
        if holder.get(key):
            assert isinstance(json.loads(holder.pop(key))["ok"], bool)
    return {**reply, "usage": None}


def test_schemas(ours: Any, theirs: Any) -> None:
    plain = [{"role": "user", "content": "n"}]
    keywords: Json = {"temperature": 0.0, "response_format": {"type": "json_object", "schema": OK}}
    same(
        blanked(ours.create_chat_completion(plain, **keywords)),
        blanked(theirs.create_chat_completion(plain, **keywords)),
    )


def test_forced_tool(ours: Any, theirs: Any) -> None:
    keywords: Json = {
        "temperature": 0.0,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": OK}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
    }
    plain = [{"role": "user", "content": "n"}]
    same(
        blanked(ours.create_chat_completion(plain, **keywords)),
        blanked(theirs.create_chat_completion(plain, **keywords)),
    )


def test_tools_that_the_template_would_swallow_are_refused(ours: Any) -> None:
    from specgguf.errors import Unsupported

    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [{"role": "user", "content": "n"}]
    with pytest.raises(Unsupported, match="knows no tools"):
        ours.create_chat_completion(messages, tools=tools, max_tokens=2)
    assert ours.create_chat_completion(messages, tools=tools, tool_choice="none", max_tokens=2)
    for wrong in ("some", {"function": "f"}, {"type": "function", "function": {"name": "g"}}):
        with pytest.raises(ConfigError, match="tool_choice"):
            ours.create_chat_completion(messages, tools=tools, tool_choice=wrong, max_tokens=2)


def test_tokens(ours: Any, theirs: Any) -> None:
    for text in (b"", b" word", "é 한국 👍".encode(), b"<|im_end|>", b"\xff\xfe"):
        for keywords in ({}, {"add_bos": False}, {"special": True}):
            assert ours.tokenize(text, **keywords) == theirs.tokenize(text, **keywords)
        ids = theirs.tokenize(text)
        assert ours.detokenize(ids) == theirs.detokenize(ids)
    assert (ours.token_eos(), ours.token_bos(), ours.token_nl()) == (
        theirs.token_eos(),
        theirs.token_bos(),
        theirs.token_nl(),
    )
    assert (ours.n_ctx(), ours.n_vocab()) == (theirs.n_ctx(), theirs.n_vocab())
    assert ours.metadata == theirs.metadata
    assert ours.model_path == theirs.model_path


METHODS: list[Callable[[Any], Any]] = [
    lambda c: c.create_completion,
    lambda c: c.create_chat_completion,
    lambda c: c.tokenize,
]


@pytest.mark.parametrize("method", METHODS, ids=["completion", "chat", "tokenize"])
def test_parameters_and_defaults(method: Callable[[Any], Any]) -> None:
    ours = inspect.signature(method(SpeculativeLlama)).parameters
    theirs = inspect.signature(method(llama_cpp.Llama)).parameters
    for name, parameter in theirs.items():
        assert name in ours, name
        same_default = ours[name].default == parameter.default
        assert same_default or (name == "stop" and not ours[name].default and not parameter.default), name
    positional = [p.name for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional[: len(theirs)] == list(theirs), "the order of positional arguments"


REFUSED: dict[str, Json] = {
    "mirostat_mode": {"mirostat_mode": 2},
    "tfs_z": {"tfs_z": 0.5},
    "logits_processor": {"logits_processor": llama_cpp.LogitsProcessorList([])},
    "stopping_criteria": {"stopping_criteria": llama_cpp.StoppingCriteriaList([])},
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_supported_is_refused_by_name(ours: Any, name: str) -> None:
    from specgguf.errors import Unsupported

    with pytest.raises(Unsupported, match=name):
        ours.create_completion(PROMPT, max_tokens=2, **REFUSED[name])


@pytest.mark.parametrize("prompt", [None, 5, b"text", [1.5], ["a", "b"], [b"x"]])
def test_a_prompt_that_is_neither_text_nor_ids(ours: Any, prompt: Any) -> None:
    """Bytes would pass for ids, and mean another text."""
    for call in (ours.create_completion, ours.detokenize, ours.generate):
        with pytest.raises(ConfigError, match="a prompt is a text or token ids"):
            call(prompt)


@pytest.mark.parametrize("timeout", [-1, float("nan"), float("inf"), "soon"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_timeout_that_is_none(ours: Any, timeout: Any, stream: bool) -> None:
    with pytest.raises(ConfigError, match=r"^timeout must be "):
        ours.create_completion(PROMPT, timeout=timeout, stream=stream)
    assert ours.create_completion(PROMPT, timeout=1e300, max_tokens=2)


def test_a_message_that_no_tokens_make_fit_is_refused_before_it_is_read(
    ours: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokenizing a megabyte takes some vocabularies minutes, and nothing can stop it."""
    monkeypatch.setattr(type(ours), "tokenize", lambda *a, **k: pytest.fail("it was read"))
    with pytest.raises(ContextFull, match="bytes of prompt do not fit"):
        ours.render([{"role": "user", "content": "x" * 1_000_000}])


def test_a_quantised_cache_needs_no_other_keyword(tiny_folder: Path) -> None:
    """llama.cpp wants flash attention for it, which `Llama` switches off unless told otherwise."""
    shape = tiny.Shape(n_head=1, n_head_kv=1)  # heads as long as a block of q8_0
    path = str(tiny.write_llama(tiny_folder / "one-head.gguf", tiny.chat(), shape=shape))
    keywords: Json = {"type_k": "q8_0", "type_v": "q8_0", "draft_type_k": "q8_0", "n_threads": 1}
    with SpeculativeLlama(path, path, n_ctx=N_CTX, draft=3, **keywords) as llm:
        reply: Any = llm(PROMPT, max_tokens=5, ignore_eos=True)
        assert reply["usage"]["completion_tokens"] == 5
