"""What a user sees of drafted text, held against plain decoding by the same engine: S equals P.

Strict engines over F32 files: greedy text, log-probabilities and statistics are compared for equality. Every test
here drafts, and says so.
"""

from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import NOISE, Pair
from support import models, tiny

from specgguf import SamplingParams, SpeculativeLlama
from specgguf.config import DraftConfig
from specgguf.decode.run import Run
from specgguf.decode.sequence import common_prefix
from specgguf.engine import Engine
from specgguf.errors import SpecggufError
from specgguf.grammar.cursor import compile_grammar
from specgguf.native import backend, sequence
from specgguf.text.detokenize import Detokenizer
from specgguf.text.stream import ChunkStream

Json = dict[str, Any]
Make = Callable[..., SpeculativeLlama]
ONE: Json = {"n_threads": 1, "n_threads_batch": 1}  # threads that wait for each other crawl on a busy machine
MEMORIES: dict[str, tuple[str, Json]] = {
    "dense": ("tiny_chat", {"strict": True}),
    "native": ("tiny_hybrid_chat", {"type_k": "f32", "type_v": "f32"}),
    "checkpoint": ("tiny_hybrid_chat", {"type_k": "f32", "type_v": "f32"}),
    "sliding": ("tiny_sliding_chat", {"strict": True}),
    "sliding-small": ("tiny_sliding_chat", {"strict": True, "swa_full": False, "draft_swa_full": False}),
}
ASK = "a word list in python"


@pytest.fixture(scope="session")
def tiny_sliding_chat(tiny_folder: Path) -> Pair:
    """gemma3 with a window of 16 tokens over the chat vocabulary."""
    paths = [
        tiny.write_gemma3(tiny_folder / f"gemma3-chat-{n}.gguf", tiny.chat(), noise=noise)
        for n, noise in enumerate((0.0, NOISE))
    ]
    return Pair(*paths)


@pytest.fixture(scope="module")
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """make(memory, **keywords) -> an engine, closed at the end."""
    made: list[SpeculativeLlama] = []

    def make(memory: str = "dense", **keywords: Any) -> SpeculativeLlama:
        fixture, own = MEMORIES[memory]
        pair = request.getfixturevalue(fixture)
        keywords = {"n_ctx": 512, "draft": 3, **ONE, "flash_attn": False, **own, **keywords}
        with pytest.MonkeyPatch.context() as patch:
            if memory == "checkpoint":
                limits = backend.limits
                patch.setattr(backend, "limits", lambda ctx: limits(ctx)._replace(n_rs_seq=0))
            llm = SpeculativeLlama(str(pair.target), str(pair.draft), **keywords)
        made.append(llm)
        ways = {
            "native": {"target": "native", "draft": "checkpoint"},
            "checkpoint": dict.fromkeys(llm.rollback, memory),
        }
        assert llm.rollback == ways.get(memory, dict.fromkeys(llm.rollback, "plain"))
        return llm

    yield make
    for llm in made:
        llm.close()


@pytest.fixture(scope="module")
def llm(make: Make) -> SpeculativeLlama:
    return make(draft=5)


def complete(llm: SpeculativeLlama, prompt: str | Sequence[int] = ASK, **keywords: Any) -> Json:
    reply = llm.create_completion(prompt, **{"temperature": 0.0, "max_tokens": 40, **keywords})
    assert isinstance(reply, dict)
    return reply


def both(llm: SpeculativeLlama, prompt: str | Sequence[int] = ASK, **keywords: Any) -> tuple[Json, Json]:
    """The drafted reply and the plain one, from the same engine; something was drafted and accepted."""
    drafted = complete(llm, prompt, **keywords)
    assert llm.last_stats.draft_n > 0
    plain = complete(llm, prompt, **keywords, draft="off")
    assert llm.last_stats.draft_n == 0
    return drafted, plain


def caches_hold(llm: SpeculativeLlama, text: Sequence[int]) -> None:
    """Both caches are a prefix of `text`."""
    for held in (llm._engine.target, llm._engine.draft_model):
        assert held is not None
        assert list(held.tokens) == list(text[: len(held.tokens)])


def tokens_of(llm: SpeculativeLlama, prompt: Sequence[int], **keywords: Any) -> list[int]:
    draft = keywords.pop("draft", None)
    params = SamplingParams(**{"temperature": 0.0, "max_tokens": 40, **keywords})
    return [token for round in llm.generate(prompt, params, draft=draft).rounds() for token in round.tokens]


@pytest.mark.parametrize("memory", ["dense", "sliding", "native", "checkpoint"])
def test_a_warm_turn_reads_only_what_is_new_on_both_models(make: Make, memory: str) -> None:
    """A second turn over the first: the target and the draft read the new tokens and at most a few before them."""
    llm = make(memory)
    prompt = llm.tokenize(ASK.encode() * 8)
    answer = tokens_of(llm, prompt, max_tokens=24, ignore_eos=True)
    assert llm.last_stats.draft_n > 0
    new = llm.tokenize(b" and then another question", add_bos=False)
    rounds = llm.generate([*prompt, *answer, *new], SamplingParams(max_tokens=8), draft=3).rounds()
    first = next(rounds)
    rounds.close()  # type: ignore[attr-defined]
    most = len(new) + 12
    assert len(new) <= first.n_prefilled <= most < len(prompt)
    assert 0 < first.n_draft_prefilled <= most


# --- where a text ends --------------------------------------------------------------------------------------------


def until_one_ends_in_a_block(llm: SpeculativeLlama, n_tries: int, **params: Any) -> list[int]:
    """Generate until the text ends with a drafted token, none of the block's own making; the prompt and the text."""
    prompt = llm.tokenize(ASK.encode())
    for seed in range(n_tries):
        sampled = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=seed, **params)
        rounds = list(llm.generate(prompt, sampled).rounds())
        last = rounds[-1]
        if last.finish_reason != "length" and last.n_from_draft == len(last.tokens) > 1:
            return [*prompt, *(token for round in rounds for token in round.tokens)]
    raise AssertionError("no text ended inside an accepted block")


@pytest.mark.parametrize("how", ["eos", "stop"])
def test_nothing_after_the_end_stays_in_a_cache(make: Make, how: str) -> None:
    """End of generation and stop strings inside an accepted block; a self-draft, so that blocks are accepted. The
    next turn equals that of an engine that never saw the rest."""
    target = str(make().model_path)
    with SpeculativeLlama(target, target, n_ctx=512, draft=5, strict=True, **ONE) as llm:
        ends: Json = {"max_tokens": 60}
        if how == "stop":
            ends |= {"stop": (" the", "a"), "ignore_eos": True}
        committed = until_one_ends_in_a_block(llm, 200, **ends)
        assert (committed[-1] in llm._engine.target.eog) == (how == "eos")
        caches_hold(llm, committed)
        following = [*committed, *llm.tokenize(b" and then", add_bos=False)]
        warm = tokens_of(llm, following)
        llm.reset()
        assert warm == tokens_of(llm, following, draft="off")


@pytest.mark.parametrize("n", range(1, 13))
def test_max_tokens_are_delivered_exactly(llm: SpeculativeLlama, n: int) -> None:
    """Also inside a block of five; nothing beyond stays behind."""
    reply = complete(llm, max_tokens=n, temperature=1.0, seed=n, top_k=0, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == n
    assert reply["usage"]["prompt_tokens"] + n == reply["usage"]["total_tokens"]
    assert reply["choices"][0]["finish_reason"] == "length"
    prompt = llm.tokenize(ASK.encode())
    tokens = tokens_of(llm, prompt, max_tokens=n, temperature=1.0, seed=n, ignore_eos=True)
    assert len(tokens) == n
    caches_hold(llm, [*prompt, *tokens])
    chunks: list[Any] = list(llm.create_completion(ASK, max_tokens=n, temperature=0.0, stream=True, ignore_eos=True))
    assert len(chunks) - 1 == n


@pytest.mark.parametrize("draft_n_ctx", [None, 60, 90])
def test_the_end_of_the_context_ends_the_text(make: Make, draft_n_ctx: int | None) -> None:
    """finish_reason "length", whole context used, no exception; also where the draft's context ends sooner."""
    llm = make(n_ctx=100, draft=5, **({"draft_n_ctx": draft_n_ctx} if draft_n_ctx else {}))
    prompt = llm.tokenize(ASK.encode())
    for _ in range(2):
        drafted, plain = (complete(llm, prompt, max_tokens=None, draft=d, ignore_eos=True) for d in (None, "off"))
        assert drafted["choices"] == plain["choices"]
        assert drafted["choices"][0]["finish_reason"] == "length"
        assert drafted["usage"]["total_tokens"] == llm.n_ctx() == 100
    assert llm.stats.draft_n > 5


@pytest.mark.parametrize("stop", [["the"], [" word", "e"], ["lis", "ing"]])
def test_stop_strings(llm: SpeculativeLlama, stop: list[str]) -> None:
    """Nothing of them is emitted, whole or streamed; the text before them is plain decoding's."""
    drafted, plain = both(llm, max_tokens=200, stop=stop, ignore_eos=True)
    assert drafted["choices"] == plain["choices"]
    assert drafted["choices"][0]["finish_reason"] == "stop"
    text = drafted["choices"][0]["text"]
    assert not any(s in text for s in stop)
    chunks: Any = llm.create_completion(ASK, max_tokens=200, temperature=0.0, stop=stop, stream=True, ignore_eos=True)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


def test_a_grammar_with_a_draft_that_does_not_know_the_ends(make: Make) -> None:
    """Its file may call other tokens ends than the target's does; a grammar allows nothing after one."""
    llm = make()
    target, draft = llm._engine.target, llm._engine.draft_model
    assert draft is not None
    draft.eog = frozenset()
    engine = Engine(target, draft, DraftConfig(draft=5))
    ends = dict.fromkeys(target.eog, 6.0)
    n_drafted = 0
    for seed in range(20):
        params = SamplingParams(temperature=1.0, seed=seed, logit_bias=ends)
        grammar = compile_grammar("root ::= [a-z]*", llm._pair.weights)
        text = ChunkStream(Detokenizer(llm._piece, eog=target.eog, max_tokens=30))
        prompt = llm.tokenize(ASK.encode())
        rounds = list(engine.generate(prompt, params, text=text, grammar=grammar, max_tokens=30).rounds())
        n_drafted += sum(round.n_from_draft for round in rounds if round.finish_reason == "eos")
    assert n_drafted > 0
    draft.eog = target.eog


# --- what is said -------------------------------------------------------------------------------------------------


TEN = [ASK, "the", "words of a", "return value", "1, 2, 3", "it is", "on and on and on", "token", "x = ", "\n\n"]


@pytest.mark.parametrize("prompt", TEN)
def test_penalties_count_in_a_block(llm: SpeculativeLlama, prompt: str) -> None:
    drafted, plain = both(llm, prompt, repeat_penalty=1.3, frequency_penalty=0.2, ignore_eos=True)
    assert drafted["choices"] == plain["choices"]
    unpenalised = complete(llm, prompt, ignore_eos=True)
    assert unpenalised["choices"] != plain["choices"], "the control: the penalties matter"


def test_logprobs_of_drafted_tokens(llm: SpeculativeLlama) -> None:
    """Bit for bit those of plain decoding, and of the tokens that they stand beside."""
    drafted, plain = both(llm, logprobs=3, max_tokens=30)
    found = drafted["choices"][0]["logprobs"]
    assert found == plain["choices"][0]["logprobs"]
    values = found["token_logprobs"]
    assert len(values) == len(found["tokens"]) == 30
    assert all(value < 0.0 for value in values)
    assert values == [max(top.values()) for top in found["top_logprobs"]], "greedy: each is the likeliest"


def test_seeds(make: Make) -> None:
    """0 and 1 repeat and differ; without a seed two runs differ; a fixed length and a cold cache."""
    llm = make(strict=False)

    def said(seed: int | None) -> str:
        llm.reset()
        return str(complete(llm, temperature=1.0, seed=seed, max_tokens=60, ignore_eos=True)["choices"])

    texts = {seed: said(seed) for seed in (0, 1)}
    assert texts[0] != texts[1]
    assert {seed: said(seed) for seed in (0, 1)} == texts
    assert said(None) != said(None)
    assert llm.stats.draft_n > 0


IN_ANOTHER_PROCESS = """
import sys
from specgguf import SamplingParams, SpeculativeLlama
llm = SpeculativeLlama(sys.argv[1], sys.argv[2], n_ctx=256, n_threads=1, n_threads_batch=1, draft=3)
params = SamplingParams(temperature=1.0, seed=int(sys.argv[3]), max_tokens=60, ignore_eos=True)
print([t for r in llm.generate(llm.tokenize(b"a word"), params).rounds() for t in r.tokens])
{end}
"""


def another_process(pair: Pair, seed: int, end: str = "") -> subprocess.CompletedProcess[str]:
    code = IN_ANOTHER_PROCESS.format(end=end)
    command = [sys.executable, "-P", "-c", code, str(pair.target), str(pair.draft), str(seed)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_seed_repeats_in_another_process_and_nothing_is_written_to_stderr(tiny_chat: Pair) -> None:
    """At load, in the run and at exit, without a close(): no native log line, no noise of a destructor."""
    runs = [another_process(tiny_chat, seed) for seed in (0, 0, 1)]
    assert [run.stderr for run in runs] == ["", "", ""]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert runs[0].stdout == runs[1].stdout != runs[2].stdout
    assert len(runs[0].stdout) > 100


@pytest.mark.parametrize(
    "end", ["raise SystemExit(3)", "rounds = llm.generate([1], params).rounds(); next(rounds); 1 / 0"]
)
def test_an_exit_by_an_exception_is_quiet_too(tiny_chat: Pair, end: str) -> None:
    run = another_process(tiny_chat, 0, end)
    wanted = [] if "SystemExit" in end else ["ZeroDivisionError: division by zero"]
    assert run.stderr.splitlines()[-1:] == wanted
    assert "ggml" not in run.stderr
    assert "llama_" not in run.stderr
    assert "ignored in" not in run.stderr


# --- characters ---------------------------------------------------------------------------------------------------


def test_every_id_gives_its_full_bytes(tiny_folder: Path) -> None:
    """Also texts longer than the buffer that llama-cpp-python gives them."""
    long = [b"=" * 80, b" " * 64, "한국어".encode() * 9, b"x" * 31, b"y" * 32, b"z" * 33]
    vocab = tiny.chat()
    vocab = dataclasses.replace(
        vocab,
        texts=[*vocab.texts, *(t.replace(b" ", "▁".encode()) for t in long)],
        types=[*vocab.types, *[tiny.NORMAL] * len(long)],
        bias=np.concatenate([vocab.bias, np.zeros(len(long))]),
    )
    path = tiny.write_llama(tiny_folder / "long-tokens.gguf", vocab)
    with SpeculativeLlama(str(path), n_ctx=256, **ONE) as llm:
        first = llm.n_vocab() - len(long)
        for i, text in enumerate(long):
            assert llm.detokenize([first + i]) == text
            assert llm.detokenize(llm.tokenize(text, add_bos=False)) == text
        for token, (text, kind) in enumerate(zip(vocab.texts, vocab.types, strict=True)):
            wanted = text.replace("▁".encode(), b" ")
            if kind == tiny.BYTE:
                wanted = bytes([int(text[3:5], 16)])
            if kind in (tiny.NORMAL, tiny.BYTE):
                assert llm.detokenize([token]) == wanted


@pytest.mark.parametrize("seed", range(6))
def test_characters_split_over_tokens_and_blocks(llm: SpeculativeLlama, seed: int) -> None:
    """Raised odds of loose bytes and multi-byte characters: pieces add up, each valid, no replacement character."""
    bias = {5 + byte: 4.0 for byte in range(0x80, 0x100)}
    ask: Json = {"temperature": 1.0, "seed": seed, "max_tokens": 120, "logit_bias": bias, "ignore_eos": True}
    chunks: list[Any] = list(llm.create_completion(ASK, stream=True, **ask))
    assert llm.last_stats.draft_n_accepted > 0
    pieces = [chunk["choices"][0]["text"] for chunk in chunks]
    text = "".join(pieces)
    assert "�" not in text
    assert any(ord(c) > 127 for c in text)
    tokens = tokens_of(llm, llm.tokenize(ASK.encode()), **ask)
    assert text == llm.detokenize(tokens).decode("utf-8", "ignore")
    assert text == complete(llm, **ask)["choices"][0]["text"]


def test_exactly_one_bos(make: Make) -> None:
    """Where the template prints none, one is added; test_api_contract.py has the template that prints it."""
    llm = make()
    ids = llm.render([{"role": "user", "content": "the word"}, {"role": "assistant", "content": "it"}])
    assert ids.count(llm.token_bos()) == 1
    assert ids[0] == llm.token_bos()


# --- turns --------------------------------------------------------------------------------------------------------


def conversation(llm: SpeculativeLlama, n_turns: int = 3) -> list[tuple[str, int]]:
    """Text and accepted tokens of each turn; a text may end by itself or at its limit."""
    messages: list[Json] = []
    turns = []
    for turn in range(n_turns):
        messages.append({"role": "user", "content": f"{ASK} {turn}"})
        reply: Any = llm.create_chat_completion(messages, temperature=0.0, max_tokens=25)
        text = reply["choices"][0]["message"]["content"]
        turns.append((text, llm.last_stats.draft_n_accepted))
        messages.append({"role": "assistant", "content": text})
    return turns


memories = pytest.mark.parametrize("memory", MEMORIES)


@memories
def test_turns_equal_plain_ones(make: Make, memory: str) -> None:
    llm = make(memory)
    drafted = conversation(llm)
    assert llm.stats.draft_n_accepted > 0
    llm.draft = "off"
    assert [text for text, _ in conversation(llm)] == [text for text, _ in drafted]
    llm.reset()
    llm.draft = 3
    assert conversation(llm) == drafted, "and so does what is accepted"


@memories
def test_long_short_long(make: Make, memory: str) -> None:
    """On one engine, each equal to a fresh engine's, acceptance too."""
    llm, fresh = make(memory, n_ctx=700), make(memory, n_ctx=700)
    prompts = [ASK * 20, ASK, ASK * 20 + " it", ASK[:5], ASK * 18]
    for prompt in [*prompts, *prompts]:
        fresh.reset()
        texts = [complete(engine, prompt)["choices"][0]["text"] for engine in (llm, fresh)]
        assert texts[0] == texts[1]
        counts = [(s.draft_n, s.draft_n_accepted, s.reached_by_position) for s in (llm.last_stats, fresh.last_stats)]
        assert counts[0] == counts[1]
        assert (
            llm.last_stats.n_cached + llm.last_stats.n_prefilled
            >= llm.last_stats.n_prompt
            == fresh.last_stats.n_prefilled
        )


@memories
def test_undo_and_retry_twenty_times(make: Make, memory: str) -> None:
    """The text is a fresh run's on the same history, and a retry does not read its prompt again."""
    llm, fresh = make(memory), make(memory)
    messages: list[Json] = [{"role": "user", "content": f"{ASK} and {ASK}"}]
    first: Any = llm.create_chat_completion(messages, temperature=0.0, max_tokens=20)
    longer = [
        *messages,
        {"role": "assistant", "content": first["choices"][0]["message"]["content"]},
        {"role": "user", "content": "it is"},
    ]
    wanted = []
    for history in (messages, longer):
        fresh.reset()
        wanted.append(fresh.create_chat_completion(history, temperature=0.0, max_tokens=20)["choices"])
    for step in range(20):
        for history, choices in zip((messages, longer), wanted, strict=True):
            for n_cached in (0, len(llm.render(history)) - 1):
                reply: Any = llm.create_chat_completion(history, temperature=0.0, max_tokens=20)
                assert reply["choices"] == choices, step
                assert llm.last_stats.n_cached >= n_cached


@memories
def test_what_was_cached_and_what_was_read_add_up(make: Make, memory: str) -> None:
    """A checkpoint keeps fewer tokens than two prompts share: the statistics say how many."""
    llm = make(memory)
    ids = llm.tokenize((ASK * 6).encode())
    for prompt in (ids, ids[:50], (*ids[:50], 7, 8, 9), tuple(ids[:61]), ids):
        complete(llm, prompt, max_tokens=1, draft="off")
        assert llm.last_stats.n_cached + llm.last_stats.n_prefilled == len(prompt)
        timings = complete(llm, prompt, max_tokens=1, draft="off")["timings"]
        assert timings["cache_n"] + timings["prompt_n"] == len(prompt)
        assert timings["cache_n"] == len(prompt) - 1 or memory not in ("dense", "sliding")


@memories
@pytest.mark.parametrize("code", [1, 2, -1, -3])
def test_a_decode_that_fails_once_does_not_spoil_the_next_answer(
    make: Make, memory: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the target: a clear error, and then the text of an engine that had none. In the draft: the text all the same,
    and drafting is off for what is left of it. An abort that nobody asked for is tried again, in either."""
    llm = make(memory)
    wanted = complete(llm)["choices"]
    decode = backend.decode
    for fail_at in (0, 1, 3, 5, 9):
        calls = 0

        def failing(ctx: Any, batch: Any) -> int:
            nonlocal calls
            calls += 1
            if calls - 1 == fail_at:  # noqa: B023
                return code
            return decode(ctx, batch)

        with monkeypatch.context() as patch:
            patch.setattr(backend, "decode", failing)
            try:
                assert complete(llm)["choices"] == wanted
                assert ("the draft model failed" in llm.last_stats.off_reason) == (code != 2)
            except SpecggufError as error:
                assert re.search("no room|failed to decode", str(error))  # noqa: PT017
                assert not llm.last_stats.off_reason
        assert complete(llm)["choices"] == wanted
        if fail_at % 2:
            llm.reset()


# --- speed and memory, without a clock ----------------------------------------------------------------------------


@pytest.mark.parametrize("n_prompt", [500, 1000, 2000, 4000])
def test_acceptance_does_not_depend_on_the_length_of_the_context(make: Make, n_prompt: int) -> None:
    """A file as its own draft: everything is accepted, wherever in the context."""
    target = str(make().model_path)
    with SpeculativeLlama(target, target, n_ctx=4352, draft=4, strict=True, flash_attn=False, **ONE) as llm:
        ids = llm.tokenize((ASK * 700).encode())[:n_prompt]
        for _ in range(2):
            tokens_of(llm, ids, temperature=1.0, seed=n_prompt, max_tokens=40, ignore_eos=True)
            assert llm.last_stats.draft_n >= 30
            assert llm.last_stats.draft_n_accepted == llm.last_stats.draft_n


def test_the_draft_reads_nothing_before_the_first_token(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """With draft="auto" the first token waits for the target alone; then the draft catches up."""
    monkeypatch.setattr("specgguf.engine.costs_for", lambda *_: paying())
    llm = make(draft="auto")
    rounds = llm.generate(
        llm.tokenize((ASK * 10).encode()), SamplingParams(temperature=1.0, ignore_eos=True, seed=1)
    ).rounds()
    draft = llm._engine.draft_model
    assert draft is not None
    next(rounds)
    assert list(draft.tokens) == []
    for _ in range(5):
        next(rounds)
    assert len(draft.tokens) > 50
    assert llm.last_stats.draft_n > 0


def paying() -> Any:
    from specgguf.control.costs import Costs

    return Costs(6, {1: 1.0, 2: 1.0, 6: 1.0}, 1e-3, 1e-4)


MEASURED = """
import os, sys
from specgguf import SamplingParams, SpeculativeLlama
llm = SpeculativeLlama(sys.argv[1], sys.argv[1], n_ctx=int(sys.argv[2]), n_threads=1, n_threads_batch=1, draft=3)
for r in llm.generate([5] * 200, SamplingParams(max_tokens=20, logprobs=2, ignore_eos=True)).rounds(): pass
assert llm.stats.draft_n > 0
print(int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE") / 2**20)
"""


@pytest.mark.parametrize("thinks", [None, True])
def test_an_effort_that_is_none_is_refused_whatever_else_is_said(make: Make, thinks: bool | None) -> None:
    with pytest.raises(SpecggufError, match="reasoning_effort must be one of none"):
        make().render([{"role": "user", "content": "a"}], enable_thinking=thinks, reasoning_effort="hihg")


def test_how_fast_prompts_are_read_is_expected_from_costs_and_known_from_prompts(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specgguf.engine.costs_for", lambda *_: paying())
    assert make(draft="off").prompt_speed == 0.0, "nothing was measured"
    llm = make(draft="auto")
    llm.create_completion("a", max_tokens=1)
    assert llm.prompt_speed == pytest.approx(paying().batch_max / paying().verify_s(paying().batch_max))
    llm.stats.n_prefilled, llm.stats.prompt_s = 300, 2.0
    assert llm.prompt_speed == 150.0


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_a_longer_context_costs_its_cache_and_nothing_else(tiny_wide: Path) -> None:
    """A vocabulary of 152k and 7,680 more places: rows for all of them would be 4.7 GB; their cache is 2 MB. Address
    space is measured, since what was never touched takes no memory yet."""
    sizes = []
    for n_ctx in (512, 8192):
        run = subprocess.run(
            [sys.executable, "-P", "-c", MEASURED, str(tiny_wide), str(n_ctx)],
            capture_output=True,
            text=True,
            check=True,
        )
        sizes.append(float(run.stdout))
    assert sizes[1] - sizes[0] < 60.0, sizes


# --- a real pair ----------------------------------------------------------------------------------------------------

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "inhabitants": {"type": "integer"},
        "coastal": {"type": "boolean"},
        "tags": {"type": "array", "items": {"enum": ["old", "new", "large", "small"]}, "minItems": 1, "maxItems": 3},
    },
    "required": ["city", "inhabitants", "coastal", "tags"],
    "additionalProperties": False,
}


@pytest.mark.real
def test_json_of_a_schema_from_a_real_pair() -> None:
    """Ten runs at temperature 0.8 with five drafted tokens: all parse and validate."""
    ask: list[Json] = [{"role": "user", "content": "Describe a city of your choice as JSON."}]
    with SpeculativeLlama(*map(str, models.demo_pair()), n_ctx=512, draft=5, **ONE) as llm:
        for seed in range(10):
            form = {"type": "json_object", "schema": SCHEMA}
            reply: Any = llm.create_chat_completion(
                ask, temperature=0.8, seed=seed, response_format=form, max_tokens=120
            )
            assert llm.last_stats.draft_n > 0
            assert reply["choices"][0]["finish_reason"] == "stop"
            found = json.loads(reply["choices"][0]["message"]["content"])
            assert set(found) == set(SCHEMA["required"])
            assert isinstance(found["city"], str)
            assert len(found["city"]) <= 20
            assert type(found["inhabitants"]) is int
            assert type(found["coastal"]) is bool
            assert 1 <= len(found["tags"]) <= 3
            assert set(found["tags"]) <= {"old", "new", "large", "small"}
        assert llm.stats.draft_n_accepted > 0


# --- what the comparisons above would catch -----------------------------------------------------------------------


def test_a_cache_that_keeps_what_the_text_lost_is_seen(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token more is kept than two texts share."""
    llm = make()
    wanted = conversation(llm)
    llm.reset()
    monkeypatch.setattr(sequence, "common_prefix", lambda a, b: min(common_prefix(a, b) + 1, len(a), len(b)))
    assert conversation(llm) != wanted


def test_a_cut_after_the_rewind_is_seen(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics, caches and text by the uncut block."""
    llm = make(draft=5)
    monkeypatch.setattr(Detokenizer, "check", lambda stop_check, tokens: (len(tokens), None))
    with pytest.raises(AssertionError):
        test_max_tokens_are_delivered_exactly(llm, 4)


def test_a_loop_that_does_not_settle_is_seen(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = make()
    monkeypatch.setattr(Run, "synchronise", lambda run: None)
    prompt = llm.tokenize(ASK.encode())
    with pytest.raises(AssertionError):
        caches_hold(llm, [*prompt, *tokens_of(llm, prompt, max_tokens=20)])
