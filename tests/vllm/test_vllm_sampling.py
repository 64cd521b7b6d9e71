"""vLLM's sampling parameters become ours, with its defaults; what cannot be honoured is refused."""

from __future__ import annotations

from typing import Any

import pytest

from specgguf import config
from specgguf.errors import ConfigError, Unsupported
from specgguf.grammar.sources import read_grammar
from specgguf.vllm import GuidedDecodingParams, SamplingParams, StructuredOutputsParams
from specgguf.vllm.sampling import REFUSED


def test_the_defaults_are_vllms() -> None:
    ours = SamplingParams().params()
    assert ours == config.SamplingParams(
        temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, max_tokens=16, penalty_last_n=2**31 - 1
    )


def test_names_are_translated() -> None:
    ours = SamplingParams(
        temperature=0.0, top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.2, presence_penalty=0.5,
        frequency_penalty=0.25, seed=7, stop=["a", ""], max_tokens=None, min_tokens=3, ignore_eos=True, logprobs=2,
        logit_bias={"5": 1},  # type: ignore[dict-item]
    ).params()  # fmt: skip
    assert (ours.temperature, ours.top_k, ours.top_p, ours.min_p) == (0.0, 5, 0.9, 0.1)
    assert (ours.repeat_penalty, ours.presence_penalty, ours.frequency_penalty) == (1.2, 0.5, 0.25)
    assert (ours.seed, ours.stop, ours.max_tokens, ours.min_tokens) == (7, ("a",), None, 3)
    assert (ours.ignore_eos, ours.logprobs, ours.logit_bias) == (True, 2, {5: 1.0})


@pytest.mark.parametrize("top_k", [0, -1])
def test_no_top_k_has_two_names(top_k: int) -> None:
    assert SamplingParams(top_k=top_k).params().top_k == top_k


@pytest.mark.parametrize("name", [*REFUSED, "skip_special_tokens", "prompt_logprobs"])
def test_what_would_change_an_answer_is_refused(name: str) -> None:
    value: Any = {"skip_special_tokens": False, "prompt_logprobs": 0, "best_of": 3}.get(name, [1])
    with pytest.raises(Unsupported, match=rf"^{name}"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"temperature": -1.0}, "temperature must be a number of at least 0"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n must be a whole number"),
        ({"min_p": 2.0}, "min_p must be a number from 0 to 1"),
        ({"max_tokens": "x"}, "max_tokens"),
        ({"logprobs": 101}, "logprobs"),
    ],
)
def test_what_is_out_of_range_is_refused_at_once(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SamplingParams(**given)


def test_parameters_may_be_changed_and_copied() -> None:
    params = SamplingParams(stop="x")
    other = params.clone()
    params.max_tokens = 3
    assert (params.params().max_tokens, other.params().max_tokens) == (3, 16)
    assert other.stops == ("x",)
    assert SamplingParams.from_optional(n=None, top_p=0.5).top_p == 0.5
    assert repr(SamplingParams(temperature=0.5)) == "SamplingParams(temperature=0.5)"


def test_stop_token_ids_may_name_what_ends_a_text_anyhow() -> None:
    assert SamplingParams(stop_token_ids=[3]).params(eog=(3, 4)).stop == ()
    with pytest.raises(Unsupported, match=r"stop_token_ids \[5\] do not end this model's texts"):
        SamplingParams(stop_token_ids=[3, 5]).params(eog=(3, 4))


def test_all_logprobs_are_refused() -> None:
    with pytest.raises(Unsupported, match="logprobs=-1"):
        SamplingParams(logprobs=-1)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"json": {"type": "object"}}, "JSON schema"), ({"regex": "a+"}, "regex"), ({"choice": ["a", "b"]}, "choice"),
        ({"grammar": 'root ::= "a"'}, "grammar"), ({"json_object": True}, "JSON schema"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("field", ["structured_outputs", "guided_decoding"])
def test_structured_outputs_are_grammars(given: dict[str, Any], kind: str, field: str) -> None:
    params = SamplingParams()
    setattr(params, field, StructuredOutputsParams(**given))
    assert read_grammar(params.params().grammar).kind == kind


def test_structured_outputs_are_one_thing() -> None:
    assert GuidedDecodingParams is StructuredOutputsParams
    with pytest.raises(ConfigError, match="one of json, regex, choice, grammar, json_object, not 2"):
        StructuredOutputsParams(regex="a", choice=["b"])
    with pytest.raises(ConfigError, match="not 0"):
        StructuredOutputsParams()
    with pytest.raises(Unsupported, match="whitespace_pattern"):
        StructuredOutputsParams(json={}, whitespace_pattern=" ")
