"""Real clients over a tiny random model: what they send must be taken, and what they get understood.

OpenAI's own, and frameworks over its protocol; those are large and imported by their own tests. What is not installed
is skipped, with what to type; `tests/support/clients.py` makes the table of docs/server.md from what passes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pydantic
import pytest
from conftest import Pair
from support.clients import works
from support.serve_support import WAIT_S, Running, serving

from specgguf import SpeculativeLlama

pytestmark = pytest.mark.filterwarnings("ignore")  # of code that is not ours

KEY = "secret"
LONG = 400  # tokens, each a byte: a random model likes blank space
ASK: Any = [{"role": "user", "content": "a word list"}]
TOO_LONG: Any = [{"role": "user", "content": "word " * 2000}]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}
TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}


class Answer(pydantic.BaseModel):
    """What is asked for."""

    ok: bool


@pytest.fixture(scope="module")
def server(tiny_chat: Pair) -> Iterator[Running]:
    """Strict, with one model's name and one key."""
    with (
        SpeculativeLlama(
            str(tiny_chat.target), str(tiny_chat.draft), n_ctx=1024, draft=3, n_threads=1, n_threads_batch=1
        ) as llm,
        serving(llm, names=("tiny",), api_keys=(KEY,), defaults={"temperature": 0.5}) as running,
    ):
        yield running


@pytest.fixture
def base_url(server: Running) -> str:
    """Where OpenAI's protocol is spoken."""
    return f"{server.url}/v1"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client asks anybody else, or through a proxy."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name in ("LITELLM_LOCAL_MODEL_COST_MAP", "HF_HUB_OFFLINE", "DO_NOT_TRACK", "ANONYMIZED_TELEMETRY"):
        monkeypatch.setenv(name, "False" if name.startswith("ANON") else "True")


# --- openai ---------------------------------------------------------------------------------------------------


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    own = httpx.Client(trust_env=False, timeout=WAIT_S)
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0, http_client=own) as client:
        yield client


@works("openai", "chat")
def test_chat(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=ASK, max_completion_tokens=8, reasoning_effort="low", verbosity="low", store=False
    )
    assert reply.choices[0].message.role == "assistant"
    assert reply.usage is not None
    assert reply.usage.completion_tokens <= 8


@works("openai", "streams")
def test_a_stream_and_its_helper(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": ASK, "max_tokens": LONG, "temperature": 0}
    whole = client.chat.completions.parse(**asked, response_format=Answer)
    with client.chat.completions.stream(**asked, response_format=Answer) as stream:
        streamed = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert streamed == final.choices[0].message.content == whole.choices[0].message.content
    plain = client.chat.completions.create(model="tiny", messages=ASK, max_tokens=8, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in plain)


@works("openai", "schemas")
def test_parse(client: openai.OpenAI) -> None:
    reply = client.chat.completions.parse(model="tiny", messages=ASK, max_tokens=LONG, response_format=Answer)
    assert isinstance(reply.choices[0].message.parsed, Answer)


@works("openai", "tools")
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_tools(client: openai.OpenAI, choice: Any) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=ASK, max_tokens=LONG, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False
    )
    (call,) = reply.choices[0].message.tool_calls or []
    assert reply.choices[0].finish_reason == "tool_calls"
    assert call.type == "function"
    assert call.function.arguments.replace(" ", "").replace("\n", "") in ('{"ok":true}', '{"ok":false}')
    answered: Any = [
        *ASK,
        reply.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "done"},
    ]
    assert client.chat.completions.create(
        model="tiny", messages=answered, max_tokens=4, tools=[TOOL], tool_choice="none"
    ).choices


@works("openai", "responses")
def test_responses(client: openai.OpenAI) -> None:
    reply = client.responses.create(model="tiny", input="a word list", max_output_tokens=8, instructions="be brief")
    assert reply.output_text
    with client.responses.stream(
        model="tiny", input="a word list", text_format=Answer, max_output_tokens=LONG
    ) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text
    parsed = client.responses.parse(model="tiny", input="a word list", text_format=Answer, max_output_tokens=LONG)
    assert isinstance(parsed.output_parsed, Answer)
    tool: Any = {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True}
    called = client.responses.create(
        model="tiny", input="x", tools=[tool], tool_choice="required", max_output_tokens=LONG
    )
    assert [item.type for item in called.output] == ["function_call"]


@works("openai", "completions")
def test_completions(client: openai.OpenAI) -> None:
    several = client.completions.create(model="tiny", prompt=["a", "b"], n=2, max_tokens=4, logprobs=2, echo=True)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    middle = client.completions.create(model="tiny", prompt="a", max_tokens=4, stream=True)
    assert "".join(chunk.choices[0].text for chunk in middle if chunk.choices)


@works("openai", "full context")
def test_a_full_context(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=TOO_LONG)
    assert caught.value.code == "context_length_exceeded"


# --- litellm --------------------------------------------------------------------------------------------------


def litellm_asks(base_url: str, **keywords: Any) -> Any:
    import litellm

    common = {"model": "openai/tiny", "api_base": base_url, "api_key": KEY, "max_tokens": LONG, "max_retries": 0}
    return litellm.completion(**{**common, "messages": ASK, **keywords})


@works("litellm", "chat")
def test_litellm(base_url: str) -> None:
    reply = litellm_asks(base_url, max_tokens=8)
    assert reply.choices[0].message.content
    assert reply.usage.completion_tokens <= 8


@works("litellm", "streams")
def test_litellm_streams(base_url: str) -> None:
    chunks = list(litellm_asks(base_url, max_tokens=8, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@works("litellm", "tools")
def test_litellm_tools(base_url: str) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        (call,) = litellm_asks(base_url, tools=[TOOL], tool_choice=choice).choices[0].message.tool_calls
        assert Answer.model_validate_json(call.function.arguments)


@works("litellm", "schemas")
def test_litellm_schemas(base_url: str) -> None:
    reply = litellm_asks(base_url, response_format=Answer)
    assert Answer.model_validate_json(reply.choices[0].message.content)


@works("litellm", "responses")
def test_litellm_responses(base_url: str) -> None:
    import litellm

    reply: Any = litellm.responses(
        model="openai/tiny", input="a word list", api_base=base_url, api_key=KEY, max_output_tokens=8
    )
    assert reply.output[0].content[0].text


@works("litellm", "completions")
def test_litellm_completions(base_url: str) -> None:
    import litellm

    reply: Any = litellm.text_completion(
        model="text-completion-openai/tiny", prompt="a word", api_base=base_url, api_key=KEY, max_tokens=8
    )
    assert reply.choices[0].text


@works("litellm", "full context")
def test_litellm_knows_a_full_context(base_url: str) -> None:
    import litellm

    with pytest.raises(litellm.ContextWindowExceededError):
        litellm_asks(base_url, messages=TOO_LONG)


# --- langchain ------------------------------------------------------------------------------------------------


def langchain(base_url: str, **keywords: Any) -> Any:
    from langchain_openai import ChatOpenAI

    return ChatOpenAI(base_url=base_url, api_key=KEY, model="tiny", max_tokens=LONG, max_retries=0, **keywords)


@works("langchain-openai", "chat")
def test_langchain(base_url: str) -> None:
    assert langchain(base_url).invoke("a word list").content


@works("langchain-openai", "streams")
def test_langchain_streams(base_url: str) -> None:
    assert "".join(chunk.content for chunk in langchain(base_url).stream("a word list"))


@works("langchain-openai", "tools")
def test_langchain_tools(base_url: str) -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    model = langchain(base_url).bind_tools([Answer], tool_choice="any")
    asked = HumanMessage("a word list")
    reply = model.invoke([asked])
    (call,) = reply.tool_calls
    assert call["name"] == "Answer"
    assert langchain(base_url).invoke([asked, reply, ToolMessage("done", tool_call_id=call["id"])])


@works("langchain-openai", "schemas")
@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_schemas(base_url: str, method: str) -> None:
    model = langchain(base_url).with_structured_output(Answer, method=method)
    assert isinstance(model.invoke("a word list"), Answer)


@works("langchain-openai", "responses")
def test_langchain_responses(base_url: str) -> None:
    assert langchain(base_url, use_responses_api=True).invoke("a word list").content


@works("langchain-openai", "completions")
def test_langchain_completions(base_url: str) -> None:
    from langchain_openai import OpenAI

    model: Any = OpenAI(base_url=base_url, api_key=KEY, model="tiny", max_tokens=8, max_retries=0)
    assert model.invoke("a word")
    assert len(model.generate(["a", "b"]).generations) == 2


# --- llama-index ----------------------------------------------------------------------------------------------


def llama_index(base_url: str, **keywords: Any) -> Any:
    from llama_index.llms.openai_like import OpenAILike

    settings = {"is_chat_model": True, "is_function_calling_model": True, "context_window": 1024, "max_retries": 0}
    return OpenAILike(model="tiny", api_base=base_url, api_key=KEY, max_tokens=LONG, **{**settings, **keywords})


@works("llama-index-llms-openai-like", "chat")
def test_llama_index(base_url: str) -> None:
    from llama_index.core.llms import ChatMessage

    assert llama_index(base_url).chat([ChatMessage(role="user", content="a word list")]).message.content


@works("llama-index-llms-openai-like", "streams")
def test_llama_index_streams(base_url: str) -> None:
    from llama_index.core.llms import ChatMessage

    chunks = llama_index(base_url).stream_chat([ChatMessage(role="user", content="a word list")])
    assert "".join(chunk.delta or "" for chunk in chunks)


@works("llama-index-llms-openai-like", "schemas")
def test_llama_index_schemas(base_url: str) -> None:
    from llama_index.core.prompts import PromptTemplate

    model = llama_index(base_url, should_use_structured_outputs=True)
    assert isinstance(model.structured_predict(Answer, PromptTemplate("a word list")), Answer)


@works("llama-index-llms-openai-like", "tools")
def test_llama_index_tools(base_url: str) -> None:
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool

    def f(ok: bool) -> bool:
        """A tool."""
        return ok

    model = llama_index(base_url)
    reply = model.chat_with_tools([FunctionTool.from_defaults(f)], user_msg="a word list", tool_required=True)
    assert [call.tool_name for call in model.get_tool_calls_from_response(reply)] == ["f"]
    assert isinstance(model.structured_predict(Answer, PromptTemplate("a word list")), Answer)


@works("llama-index-llms-openai-like", "completions")
def test_llama_index_completions(base_url: str) -> None:
    assert llama_index(base_url, is_chat_model=False).complete("a word").text


# --- instructor -----------------------------------------------------------------------------------------------


@works("instructor", "tools")
@works("instructor", "schemas")
@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_instructor(base_url: str, mode: str) -> None:
    import instructor
    import openai

    plain = openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0)
    client: Any = instructor.from_openai(plain, mode=getattr(instructor.Mode, mode))
    reply = client.chat.completions.create(
        model="tiny", messages=ASK, response_model=Answer, max_tokens=LONG, max_retries=0
    )
    assert isinstance(reply, Answer)


# --- pydantic-ai ----------------------------------------------------------------------------------------------


def agent(base_url: str, **keywords: Any) -> Any:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=base_url, api_key=KEY)
    return Agent(OpenAIChatModel("tiny", provider=provider), model_settings={"max_tokens": LONG}, **keywords)


@works("pydantic-ai-slim", "chat")
def test_pydantic_ai(base_url: str) -> None:
    assert agent(base_url).run_sync("a word list").output


@works("pydantic-ai-slim", "tools")
def test_pydantic_ai_default_output(base_url: str) -> None:
    """A typed answer is a tool that must be called."""
    assert isinstance(agent(base_url, output_type=Answer).run_sync("a word list").output, Answer)


@works("pydantic-ai-slim", "schemas")
def test_pydantic_ai_native_output(base_url: str) -> None:
    from pydantic_ai import NativeOutput

    assert isinstance(agent(base_url, output_type=NativeOutput(Answer)).run_sync("a word list").output, Answer)


# --- lm-eval --------------------------------------------------------------------------------------------------


@works("lm_eval", "completions")
def test_lm_eval(base_url: str) -> None:
    """Twenty items of both kinds, with the server's own tokenizer."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    model: Any = LocalCompletionsAPI(
        base_url=f"{base_url}/completions", model="tiny", auth_token=KEY, max_length=512, max_retries=1,
        header={"Authorization": f"Bearer {KEY}"},
    )  # fmt: skip
    assert model.tokenizer_backend == "remote"
    pairs = [(f"item {i} is", f" number {i}") for i in range(20)]
    scored = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(pairs)]
    found = model.loglikelihood(scored)
    assert len(found) == 20
    assert all(score < 0.0 and isinstance(is_greedy, bool) for score, is_greedy in found)
    settings = {"until": ["."], "max_gen_toks": 6, "do_sample": False}
    asked = [Instance("generate_until", {}, (prompt, settings), i) for i, (prompt, _) in enumerate(pairs)]
    assert [type(text) for text in model.generate_until(asked)] == [str] * 20


# --- llm ------------------------------------------------------------------------------------------------------


@pytest.fixture
def llm_model(base_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What stands in the program's own list of further models of OpenAI's protocol."""
    import llm

    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    known = {
        "model_id": "here",
        "model_name": "tiny",
        "api_base": base_url,
        "supports_schema": True,
        "api_key_name": "here",
    }
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([known]))
    model = llm.get_model("here")
    model.key = KEY
    return model


@works("llm", "chat")
def test_llm(llm_model: Any) -> None:
    response = llm_model.prompt("a word list", stream=False, max_tokens=8, temperature=0)
    assert response.text()
    assert response.usage().output == 8


@works("llm", "streams")
def test_llm_streams(llm_model: Any) -> None:
    whole = llm_model.prompt("a word list", stream=False, max_tokens=8, temperature=0).text()
    assert "".join(llm_model.prompt("a word list", max_tokens=8, temperature=0)) == whole


@works("llm", "schemas")
def test_llm_schemas(llm_model: Any) -> None:
    text = llm_model.prompt("a word list", schema=Answer, stream=False, max_tokens=LONG).text()
    assert isinstance(Answer.model_validate_json(text), Answer)
