"""OpenAI's Responses: input items become messages, chat dicts become a response, chunks become its named events.

Nothing is kept between requests, so `previous_response_id` is refused by name. It knows no HTTP and no queue.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from specgguf.serve.config import ServeConfig

from . import openai
from .bodies import BadRequest
from .reply import Json, Reply, event

# Fields that the chat has too, by its names.
SAME = {
    "model": "model", "stream": "stream", "temperature": "temperature", "top_p": "top_p", "user": "user",
    "max_output_tokens": "max_tokens", "metadata": "metadata", "parallel_tool_calls": "parallel_tool_calls",
    "service_tier": "service_tier", "safety_identifier": "safety_identifier", "prompt_cache_key": "prompt_cache_key",
    "store": "store", "top_logprobs": "top_logprobs", "seed": "seed", "top_k": "top_k", "min_p": "min_p",
    "draft": "draft", "stop": "stop",
}  # fmt: skip
WITHOUT_EFFECT = ("include", "truncation", "prompt_cache_retention", "max_tool_calls", "stream_options")
REFUSED = {
    "previous_response_id": "nothing is kept here: send the whole conversation as input",
    "conversation": "nothing is kept here: send the whole conversation as input",
    "background": "a response is made while its client waits",
    "prompt": "stored prompts are OpenAI's: send input",
}


def responses_reply(engine: openai.Engine, config: ServeConfig, body: Json) -> Reply:
    """`/v1/responses`."""
    call = openai.checked_chat(config, chat_body(body))
    made = openai.reply_of(engine, engine.create_chat_completion, call, config)
    asked = {name: body.get(name) for name in ("instructions", "temperature", "top_p", "max_output_tokens", "metadata")}
    asked |= {"tools": body.get("tools") or [], "tool_choice": body.get("tool_choice") or "auto"}
    begin = partial(_response, made.model, asked)
    return Reply(made.works, made.stream, made.model, partial(_shape, begin), partial(_Events, begin), made.headers)


# --- in -----------------------------------------------------------------------------------------------------


def chat_body(body: Json) -> Json:
    """The chat's body that asks the same.

    Raises:
        BadRequest: a field, an item or a tool that is not served.
    """
    chat: Json = {}
    for name, value in body.items():
        if value is None or name in ("input", "instructions", "tools", "tool_choice", "text", "reasoning"):
            continue
        if name in REFUSED and value is not False:
            raise BadRequest(f"{name} is not supported: {REFUSED[name]}", param=name)
        if name in WITHOUT_EFFECT or name in REFUSED:
            continue
        chat[SAME.get(name, name)] = value
    chat["messages"] = _messages(body)
    if tools := body.get("tools"):
        chat["tools"] = [_tool(tool) for tool in _list(tools, "tools")]
    if (choice := body.get("tool_choice")) is not None:
        named = isinstance(choice, Mapping) and choice.get("type") == "function" and "name" in choice
        chat["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}} if named else choice
    text, reasoning = body.get("text"), body.get("reasoning")
    if isinstance(text, Mapping) and isinstance(form := text.get("format"), Mapping):
        wanted = {name: form[name] for name in ("schema", "strict") if form.get(name) is not None}
        chat["response_format"] = {"type": form.get("type")}
        if form.get("type") == "json_schema":
            chat["response_format"]["json_schema"] = wanted
    if isinstance(reasoning, Mapping) and reasoning.get("effort"):
        chat["reasoning_effort"] = reasoning["effort"]
    return chat


def _messages(body: Json) -> list[Json]:
    given = body.get("input")
    if given is None:
        raise BadRequest("input is missing", param="input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _list(given, "input")
    messages: list[Json] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": body["instructions"]})
    for i, item in enumerate(items):
        kind = item.get("type", "message") if isinstance(item, Mapping) else None
        if kind == "message":
            messages.append({"role": item.get("role"), "content": item.get("content")})
        elif kind == "function_call":
            call = {
                "id": item.get("call_id"),
                "type": "function",
                "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            }
            if messages and messages[-1].get("tool_calls"):  # calls of one answer are one message
                messages[-1]["tool_calls"].append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            output = item.get("output")
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        elif kind != "reasoning":
            raise BadRequest(f"input[{i}]: an item of type {kind!r:.40} is not supported", param="input")
    return messages


def _tool(tool: Any) -> Json:
    if not isinstance(tool, Mapping) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, Mapping) else tool
        raise BadRequest(f"tools of type {kind!r:.40} are not served, only functions are", param="tools")
    return {"type": "function", "function": {k: v for k, v in tool.items() if k != "type" and v is not None}}


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest(f"{name} must be a list", param=name)
    return value


# --- out ----------------------------------------------------------------------------------------------------


def _response(model: str, asked: Json, **more: Any) -> Json:
    return {
        "id": f"resp_{uuid.uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "usage": None,
        **asked,
        **more,
    }


def _ended(response: Json, finish_reason: str, usage: Json | None, output: list[Json]) -> Json:
    cut = finish_reason == "length"
    counted = usage and {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }
    return response | {
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": output,
        "usage": counted,
    }


def _message(text: str, status: str) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    content = [part] if status != "in_progress" else []
    return {
        "type": "message",
        "id": f"msg_{uuid.uuid4().hex}",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _call(call: Json, status: str) -> Json:
    function = call["function"]
    return {
        "type": "function_call",
        "id": f"fc_{uuid.uuid4().hex}",
        "call_id": call["id"],
        "name": function["name"],
        "arguments": function["arguments"],
        "status": status,
    }


def _shape(begin: Callable[[], Json], result: Json) -> Json:
    choice = result["choices"][0]
    message = choice["message"]
    status = "incomplete" if choice["finish_reason"] == "length" else "completed"
    calls = [_call(call, status) for call in message.get("tool_calls") or []]
    said = [_message(message["content"] or "", status)] if message["content"] or not calls else []
    return _ended(begin(), choice["finish_reason"], result["usage"], said + calls)


class _Events:
    """A stream's chunks as the events of one response."""

    def __init__(self, begin: Callable[[], Json]) -> None:
        self._response = begin()
        self._output: list[Json] = []
        self._n = 0  # events so far
        self._open: Json | None = None  # the item that grows
        self._text = ""
        self._reason, self._usage = "stop", None

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._n += 1
        return event({"type": kind, "sequence_number": self._n - 1, **fields}, kind)

    def of(self, chunk: Json) -> Iterator[bytes]:
        """See `reply.Events`."""
        if self._n == 0:
            yield self._event("response.created", response=self._response)
            yield self._event("response.in_progress", response=self._response)
        for choice in chunk["choices"]:
            delta = choice["delta"]
            if text := delta.get("content"):
                yield from self._grow("message", text, _message("", "in_progress"))
            for call in delta.get("tool_calls") or []:
                if "id" in call:
                    begun = {**call, "function": {**call["function"], "arguments": ""}}
                    yield from self._close()
                    yield from self._grow("function_call", call["function"]["arguments"], _call(begun, "in_progress"))
                else:
                    yield from self._grow("function_call", call["function"]["arguments"], {})
            self._reason = choice["finish_reason"] or self._reason
        self._usage = chunk.get("usage") or self._usage

    def _grow(self, kind: str, text: str, item: Json) -> Iterator[bytes]:
        """`text` at the end of the open item of this kind, or of a new `item`."""
        at = len(self._output)
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            at = len(self._output)
            self._open, self._text = item, ""
            yield self._event("response.output_item.added", output_index=at, item=item)
            if kind == "message":
                part = {"type": "output_text", "text": "", "annotations": []}
                yield self._event(
                    "response.content_part.added", item_id=item["id"], output_index=at, content_index=0, part=part
                )
        self._text += text
        where = {"item_id": self._open["id"], "output_index": at, "delta": text}
        if kind == "message":
            yield self._event("response.output_text.delta", **where, content_index=0, logprobs=[])
        else:
            yield self._event("response.function_call_arguments.delta", **where)

    def _close(self) -> Iterator[bytes]:
        if self._open is None:
            return
        item, at = self._open, len(self._output)
        status = "incomplete" if self._reason == "length" else "completed"
        where = {"item_id": item["id"], "output_index": at}
        if item["type"] == "message":
            part = {"type": "output_text", "text": self._text, "annotations": []}
            yield self._event("response.output_text.done", **where, content_index=0, text=self._text, logprobs=[])
            yield self._event("response.content_part.done", **where, content_index=0, part=part)
            done = item | {"status": status, "content": [part]}
        else:
            yield self._event("response.function_call_arguments.done", **where, name=item["name"], arguments=self._text)
            done = item | {"status": status, "arguments": self._text}
        yield self._event("response.output_item.done", output_index=at, item=done)
        self._output.append(done)
        self._open = None

    def end(self) -> Iterator[bytes]:
        """See `reply.Events`."""
        yield from self._close()
        response = _ended(self._response, self._reason, self._usage, self._output)
        yield self._event(f"response.{response['status']}", response=response)

    def failed(self, error: Json) -> bytes:
        """See `reply.Events`."""
        inner = error["error"]
        return self._event("error", code=inner["code"], message=inner["message"], param=inner["param"])
