"""vLLM's `LLM` over a tiny pair: its shapes, its orders, and the same texts as our own calls give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Pair

from specgguf import SpeculativeLlama
from specgguf.errors import ConfigError, ContextFull, SpecggufError, Unsupported
from specgguf.vllm import LLM, Logprob, RequestOutput, SamplingParams, StructuredOutputsParams
from specgguf.vllm.outputs import stop_found

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
PROMPTS = ["the list", "a word in", "number of"]


@pytest.fixture(scope="module")
def llm(tiny_chat: Pair) -> Iterator[LLM]:
    made = LLM(
        str(tiny_chat.target), speculative_model=str(tiny_chat.draft), num_speculative_tokens=3, max_model_len=512,
        max_num_seqs=3, n_threads=1,
    )  # fmt: skip
    yield made
    made.llama.close()


def generate(llm: LLM, prompts: Any, params: Any = GREEDY, **keywords: Any) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False, **keywords)


def test_a_pair_is_loaded_as_it_was_asked_for(llm: LLM, tiny_chat: Pair) -> None:
    assert (llm.llama.n_ctx(), llm.llama.draft_max, llm.llama.draft) == (512, 3, "auto")
    assert llm.llama.draft_model_path == str(tiny_chat.draft)


def test_each_prompt_has_its_answer_in_order(llm: LLM) -> None:
    outputs = generate(llm, PROMPTS)
    assert [output.prompt for output in outputs] == PROMPTS
    for output in outputs:
        assert output.finished
        assert output.prompt_token_ids == llm.llama.tokenize((output.prompt or "").encode(), special=True)
        (answer,) = output.outputs
        assert answer.index == 0
        assert answer.finish_reason in ("stop", "length")
        assert answer.finished()
        assert 0 < len(answer.token_ids) <= 12
        n_end = int(answer.finish_reason == "stop")  # the model's own end is generated, and not among the ids
        assert (answer.logprobs, answer.cumulative_logprob) == (None, None)
        assert output.metrics is not None
        assert output.metrics.num_generation_tokens == len(answer.token_ids) + n_end
    assert len({output.request_id for output in outputs}) == 3


def test_texts_are_those_of_our_own_calls(llm: LLM) -> None:
    for output in generate(llm, PROMPTS, SamplingParams(temperature=0.0, max_tokens=12, logit_bias={65: 1.0})):
        reply = llm.llama.create_completion(
            output.prompt or "", max_tokens=12, temperature=0.0, logit_bias={65: 1.0}, min_p=0.0, top_k=0, top_p=1.0
        )
        assert output.outputs[0].text == reply["choices"][0]["text"]


@pytest.mark.parametrize("make", [
    lambda text, ids: text, lambda text, ids: {"prompt": text}, lambda text, ids: ids,
    lambda text, ids: {"prompt_token_ids": ids}, lambda text, ids: {"prompt": text, "prompt_token_ids": ids},
    lambda text, ids: [text], lambda text, ids: [ids], lambda text, ids: ({"prompt_token_ids": ids},),
])  # fmt: skip
def test_prompts_come_in_every_form(llm: LLM, make: Any) -> None:
    ids = llm.llama.tokenize(b"the list", special=True)
    (output,) = generate(llm, make("the list", ids))
    assert output.prompt_token_ids == ids
    assert output.prompt in ("the list", None)
    assert output.outputs[0].text == generate(llm, "the list")[0].outputs[0].text


@pytest.mark.parametrize(
    ("prompt", "error", "said"),
    [
        (5, TypeError, "not iterable"),
        ([5.5], ConfigError, r"a prompt is a text or token ids, not 5\.5"),
        ([{}], ConfigError, "a prompt is a text or token ids"),
        ([{"prompt": "x", "multi_modal_data": {"image": 1}}], Unsupported, "^multi_modal_data of a prompt"),
        ([[]], ConfigError, "a prompt is a text or token ids"),
        ([[10**6]], ConfigError, "^prompt 0: it holds an id that this model lacks"),
        (["the list", "x" * 600], ContextFull, "^prompt 1: the prompt has 60[01] tokens and the context holds 512"),
    ],
)
def test_what_is_no_prompt_is_refused(llm: LLM, prompt: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        generate(llm, prompt)
    assert generate(llm, "the list")[0].finished, "the engine goes on"


def test_a_prompt_that_does_not_fit_is_refused_before_any_is_answered(llm: LLM) -> None:
    before = llm.llama.stats.n_generated
    with pytest.raises(ContextFull):
        generate(llm, [*PROMPTS, "x" * 600])
    assert llm.llama.stats.n_generated == before


def test_no_prompts_have_no_answers(llm: LLM) -> None:
    assert generate(llm, []) == []


def test_each_prompt_may_have_its_own_parameters(llm: LLM) -> None:
    lengths = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    assert [len(o.outputs[0].token_ids) for o in generate(llm, PROMPTS, lengths)] == [1, 5, 3]
    with pytest.raises(ConfigError, match="there are 3 prompts and 2 sampling_params"):
        generate(llm, PROMPTS, lengths[:2])


def test_n_answers_are_different(llm: LLM) -> None:
    params = SamplingParams(n=4, temperature=1.0, max_tokens=12, seed=3, ignore_eos=True)
    first, second = generate(llm, PROMPTS[:2], params)
    assert [answer.index for answer in first.outputs] == [0, 1, 2, 3]
    assert len({tuple(answer.token_ids) for answer in first.outputs}) > 1
    assert {tuple(a.token_ids) for a in first.outputs} != {tuple(a.token_ids) for a in second.outputs}
    assert first.metrics is not None
    assert first.metrics.num_generation_tokens == 48


def test_answers_have_seeds_of_their_own(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone, so that no neighbour's rounding is in the way; and with a fixed draft length, since how long "auto" drafts
    follows the clock, and with it which numbers are drawn."""
    monkeypatch.setattr(llm.llama, "draft", 2)

    def alone(seed: int, n: int = 12) -> list[int]:
        params = SamplingParams(temperature=1.0, max_tokens=n, seed=seed, ignore_eos=True)
        return generate(llm, "the list", params)[0].outputs[0].token_ids

    alone(3)  # the prompt is in the cache from here on
    assert alone(3) == alone(3) != alone(4)
    several = SamplingParams(n=2, temperature=1.0, max_tokens=1, seed=3, ignore_eos=True)
    answers = generate(llm, "the list", several)[0].outputs
    assert [answer.token_ids for answer in answers] == [alone(3, 1), alone(4, 1)]


def test_logprobs_come_by_id(llm: LLM) -> None:
    (output,) = generate(llm, "the list", SamplingParams(temperature=1.0, max_tokens=8, logprobs=2, seed=5))
    (answer,) = output.outputs
    assert answer.logprobs is not None
    assert answer.cumulative_logprob is not None
    total = 0.0
    for token, entry in zip(answer.token_ids, answer.logprobs, strict=True):
        assert token in entry
        assert len(entry) in (2, 3)
        assert {one.rank for one in entry.values() if one.rank} == {1, 2}
        assert isinstance(entry[token], Logprob)
        best = [one.logprob for one in entry.values() if one.rank == 1]
        assert all(one.logprob <= best[0] for one in entry.values())
        total += entry[token].logprob
    assert math.isclose(total, answer.cumulative_logprob)


def test_a_stop_text_ends_an_answer_and_is_told(llm: LLM) -> None:
    whole = (
        generate(llm, "the list", SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True))[0].outputs[0].text
    )
    stop = next(whole[i] for i in range(1, len(whole)) if whole[i].isalnum() and whole[i] not in whole[:i])
    before = whole[: whole.index(stop)]
    params: dict[str, Any] = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True, "stop": [stop, "\x01"]}
    (answer,) = generate(llm, "the list", SamplingParams(**params))[0].outputs
    assert (answer.text, answer.finish_reason, answer.stop_reason) == (before, "stop", stop)
    (answer,) = generate(llm, "the list", SamplingParams(**params, include_stop_str_in_output=True))[0].outputs
    assert answer.text == before + stop


def test_the_first_of_several_stop_texts_is_the_one() -> None:
    assert stop_found("one two three", 4, ["three", "two"]) == "two"
    assert stop_found("one two three", 5, ["one", "two"]) is None


def test_answers_are_held_to_a_grammar(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, seed=1, structured_outputs=StructuredOutputsParams(choice=["yes", "no"]))
    assert {o.outputs[0].text for o in generate(llm, PROMPTS, params)} <= {"yes", "no"}


def test_a_conversation_is_answered_by_the_models_own_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    (output,) = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.prompt_token_ids == list(llm.llama.render(messages))
    assert "hello" in (output.prompt or "")
    reply = llm.llama.create_chat_completion(messages, temperature=0.0, max_tokens=12, min_p=0.0, top_k=0, top_p=1.0)
    assert output.outputs[0].text == reply["choices"][0]["message"]["content"]
    several = llm.chat([messages, [{"role": "user", "content": "goodbye"}]], GREEDY, use_tqdm=False)
    assert several[0].outputs[0].text == output.outputs[0].text
    assert several[1].prompt_token_ids != output.prompt_token_ids


def test_a_last_message_is_gone_on_with_only_where_that_is_said(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "the"}]
    (output,) = llm.chat(messages, GREEDY, False, add_generation_prompt=False, continue_final_message=True)
    assert (output.prompt or "").endswith("the")
    with pytest.raises(ConfigError, match="but the last message is the assistant's"):
        llm.chat(messages, GREEDY, False)
    with pytest.raises(ConfigError, match="but the last message is not the assistant's"):
        llm.chat(messages[:1], GREEDY, False, add_generation_prompt=False, continue_final_message=True)
    with pytest.raises(Unsupported, match="are both False"):
        llm.chat(messages[:1], GREEDY, False, add_generation_prompt=False)


@pytest.mark.parametrize(
    "keywords",
    [{"lora_request": object()}, {"chat_template": "x"}, {"mm_processor_kwargs": {"a": 1}},
     {"tokenization_kwargs": {"a": 1}}, {"chat_template_kwargs": {"style": "x"}}],
    ids=lambda keywords: next(iter(keywords)),
)  # fmt: skip
def test_what_a_call_cannot_honour_is_refused(llm: LLM, keywords: Any) -> None:
    with pytest.raises(Unsupported, match=next(iter(keywords))):
        llm.chat([{"role": "user", "content": "x"}], GREEDY, False, **keywords)


def test_what_is_not_here_says_so(llm: LLM) -> None:
    for name in ("embed", "beam_search", "llm_engine", "encode"):
        assert not hasattr(llm, name)
        with pytest.raises(Unsupported, match=f"^{name} is not supported: "):
            getattr(llm, name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        llm.nothing  # noqa: B018
    (output,) = generate(llm, "x")
    with pytest.raises(Unsupported, match="first_token_time is not measured here"):
        output.metrics.first_token_time  # type: ignore[union-attr]  # noqa: B018


def test_a_tokenizer_is_there(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    assert tokenizer.decode(tokenizer.encode("the list")) == "the list"


class Bar:
    """What `use_tqdm` may be: it counts."""

    made: list[Bar] = []  # noqa: RUF012

    def __init__(self, **keywords: Any) -> None:
        self.keywords, self.n = keywords, 0
        Bar.made.append(self)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None: ...

    def set_postfix_str(self, text: str, **_: Any) -> None:
        self.text = text

    def update(self, n: int) -> None:
        self.n += n


def test_a_bar_counts_the_answers(llm: LLM, capfd: pytest.CaptureFixture[str]) -> None:
    Bar.made.clear()
    llm.generate(PROMPTS, SamplingParams(n=2, temperature=0.0, max_tokens=2), use_tqdm=Bar)
    (bar,) = Bar.made
    assert (bar.keywords["total"], bar.n) == (6, 6)
    assert capfd.readouterr().err == ""
    llm.generate(PROMPTS, GREEDY)
    assert "Processed prompts: 100%" in capfd.readouterr().err


def test_what_has_no_effect_is_a_warning(tiny_pair: Pair) -> None:
    with pytest.warns(UserWarning, match="has no effect|run together") as told:
        made = LLM(
            str(tiny_pair.target), max_model_len=64, max_num_seqs=300, enforce_eager=True, dtype="bfloat16",
            quantization="gguf", trust_remote_code=False, swap_space=4, n_threads=1, gpu_memory_utilization=0.5,
        )  # fmt: skip
    made.llama.close()
    assert sorted(str(one.message) for one in told) == [
        "dtype has no effect: the GGUF file says it",
        "enforce_eager has no effect: llama.cpp has no such step",
        "max_num_seqs=300: at most 64 run together",
        "swap_space has no effect: the cache is llama.cpp's, and prefixes are shared by themselves",
    ]


@pytest.mark.parametrize(
    ("keywords", "error", "said"),
    [
        ({"enable_lora": True}, Unsupported, "^enable_lora=True is not supported: lora_path loads one"),
        ({"quantization": "awq"}, Unsupported, "^quantization='awq' is not supported"),
        ({"tensor_parallel_size": 0}, ConfigError, "^tensor_parallel_size must be"),
        ({"gpu_memory_utilization": 1.5}, ConfigError, "^gpu_memory_utilization must be"),
        ({"max_num_seqs": 0}, ConfigError, "^max_num_seqs must be"),
        ({"max_model_len": 10**9}, SpecggufError, "^max_model_len=1000000000 does not fit"),
        ({"tensor_parallel_size": 99}, SpecggufError, "^tensor_parallel_size=99: there are"),
        ({"n_thread": 1, "max_model_len": 64}, ConfigError, "unknown keyword 'n_thread'"),
    ],
)
def test_what_cannot_be_is_refused(tiny_pair: Pair, keywords: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        LLM(str(tiny_pair.target), **keywords)


def test_the_engine_is_ours(llm: LLM) -> None:
    assert isinstance(llm.llama, SpeculativeLlama)
