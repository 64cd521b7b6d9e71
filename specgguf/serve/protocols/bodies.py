"""Bodies of OpenAI's two calls, checked field by field, become keywords of `SpeculativeLlama`'s methods.

Whatever is wrong is refused by name here, before anything waits in the queue; what nobody knows is refused too. This
module knows no HTTP: a body is JSON bytes, a refusal is a `BadRequest`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from specgguf.config import DraftConfig, SamplingParams, did_you_mean
from specgguf.errors import ConfigError, SpecggufError
from specgguf.serve.config import ANY_MODEL
from specgguf.text.arguments import EFFORTS, draft_config, thinking_of, tool_request
from specgguf.text.messages import MAX_DEPTH

from .fields import ALIASES, CHAT, COMPLETION, IGNORED, MAX_ANSWERS, UNSAID, Check, short

Json = dict[str, Any]

_SAMPLING = {field.name for field in fields(SamplingParams)} - {"logprobs", "stop"}


class BadRequest(SpecggufError):
    """A request that cannot be served as it is.

    Attributes:
        param: the field at fault, if one is. code, status: OpenAI's.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


@dataclass(frozen=True)
class Call:
    """What a body asks for.

    Attributes:
        keywords: for `create_completion` or `create_chat_completion`, `stream` among them.
        include_usage: a stream ends with a chunk of its own for `usage`.
        n: answers to each prompt. prompts: of a completion, where there are several.
        ignored: fields that nobody knows, where that is allowed.
    """

    keywords: Json
    include_usage: bool = False
    n: int = 1
    prompts: tuple[str | list[int], ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def stream(self) -> bool:
        """Whether the answer is sent as it grows."""
        return bool(self.keywords["stream"])


# --- from bytes to a mapping ------------------------------------------------------------------------------


def read(data: bytes, what: str = "the body") -> Json:
    """The JSON object that `data` holds; `what` is its name in errors.

    Raises:
        BadRequest: no UTF-8, no JSON, no object; nested too deeply, or a character that is none.
    """
    try:
        body = json.loads(data.decode(), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise BadRequest(f"{what} is not UTF-8: byte {error.start}") from error
    except RecursionError:
        raise BadRequest(f"{what} is nested too deeply") from None
    except ValueError as error:
        raise BadRequest(f"{what} is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest(f"{what} must be a JSON object")
    _check_values(body, what)
    return body


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _check_values(body: Json, what: str) -> None:
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, dict):
                below += [*value, *value.values()]
            elif isinstance(value, list):
                below += value
        level = below
        if not level:
            return
    raise BadRequest(f"{what} is nested more than {MAX_DEPTH} deep")


def _check_text(text: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadRequest("a text holds a lone surrogate, which is no character") from None


# --- calls ------------------------------------------------------------------------------------------------


def completion_call(body: Json, *, models: Collection[str], defaults: Mapping[str, Any], lenient: bool = False) -> Call:
    """`/v1/completions`. See `chat_call`; max_tokens 0 is no token here, for the log-probabilities of a prompt."""
    values, ignored = _checked(body, COMPLETION, "prompt", models, lenient)
    prompts = tuple(values.pop("prompt"))
    if values.get("best_of", 1) > values.get("n", 1):
        raise BadRequest("best_of is not supported beyond n", param="best_of")
    values.pop("best_of", None)
    values["prompt"] = prompts[0]
    if values.get("max_tokens") == 0 and values.get("stream"):
        raise BadRequest("stream with max_tokens 0 has nothing to send", param="stream")
    call = _call(values, defaults, ignored)
    if len(prompts) * call.n > MAX_ANSWERS:
        raise BadRequest(f"n for each prompt makes more than {MAX_ANSWERS} answers", param="n")
    return replace(call, prompts=prompts)


def chat_call(body: Json, *, models: Collection[str], defaults: Mapping[str, Any], lenient: bool = False) -> Call:
    """`/v1/chat/completions`.

    Args:
        body: what `read` returned.
        models: the names that this server answers to.
        defaults: keywords for what the body leaves open.
        lenient: fields that nobody knows are left out instead of refused.

    Raises:
        BadRequest: with the field that is wrong.
    """
    values, ignored = _checked(body, CHAT, "messages", models, lenient)
    if values.get("max_tokens") == 0:  # as in llama-cpp-python: no limit
        del values["max_tokens"]
    for name, value in values.pop("chat_template_kwargs", {}).items():
        if name in ("enable_thinking", "thinking") and isinstance(value, bool):
            values.setdefault("enable_thinking", value)
        elif name == "reasoning_effort" and value in EFFORTS:
            values.setdefault("reasoning_effort", value)
        elif lenient:
            ignored = (*ignored, f"chat_template_kwargs.{name}")
        else:
            takes = f"enable_thinking: true or false, reasoning_effort: one of {', '.join(EFFORTS)}"
            raise BadRequest(f"chat_template_kwargs takes {takes}", param="chat_template_kwargs")
    if (is_thinking := thinking_of(values.get("reasoning_effort"))) is not None:
        values.setdefault("enable_thinking", is_thinking)
    if values.get("top_logprobs") and not values.get("logprobs"):
        raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    form = values.pop("response_format", None)
    return _with_form(_call(values, defaults, ignored), form)


def _with_form(call: Call, form: Any) -> Call:
    """`call`, its answer restricted as `response_format` and the tools want it; schemas may take long to read."""
    tools, choice = call.keywords.get("tools"), call.keywords.get("tool_choice")
    try:
        grammar = tool_request(tools, choice, form).grammar
    except SpecggufError as error:
        named = [name for name in ("tool_choice", "tools", "response_format") if str(error).startswith(name)]
        raise _refused(error, named[0] if named else "tools" if form is None else "response_format") from error
    if grammar is None:
        return call
    if "grammar" in call.keywords:
        what = "tool_choice" if form is None else "response_format"
        raise BadRequest(f"grammar and {what} both restrict the answer: give one", param="grammar")
    return replace(call, keywords={**call.keywords, "grammar": grammar})


def _refused(error: SpecggufError, param: str | None) -> BadRequest:
    return BadRequest(f"{error} ({error.hint})" if error.hint else str(error), param=param)


def _checked(
    body: Json, checks: Mapping[str, Check], required: str, models: Collection[str], lenient: bool
) -> tuple[Json, tuple[str, ...]]:
    """The fields of `body` that say something, each checked, and those that are ignored; null is the same as absent."""
    if body.get(required) is None:
        raise BadRequest(f"{required} is missing", param=required)
    values: Json = {}
    ignored = []
    for name, value in body.items():
        check = checks.get(name) or IGNORED.get(name)
        if value is None or value == UNSAID.get(name):
            continue
        if check is None:
            if not lenient:
                hint = did_you_mean(name[:100], checks)
                raise BadRequest(f"unknown field {short(name)}" + (f": {hint}" if hint else ""), param=name)
            ignored.append(short(name))
            continue
        try:
            checked = check(name, value)
        except SpecggufError as error:
            if lenient and name in IGNORED:
                ignored.append(name)
                continue
            raise _refused(error, name) from error
        if name not in IGNORED:
            values[name] = checked
    for name, ours in ALIASES.items():
        if name in values:
            values[ours] = values.pop(name)
    if values.get("max_tokens") == -1:
        values["max_tokens"] = None
    if "model" in values and values["model"] not in models and ANY_MODEL not in models:
        raise BadRequest(
            f"there is no model {short(values['model'])} here; this server has {', '.join(models)}",
            param="model", code="model_not_found", status=404,
        )  # fmt: skip
    return values, tuple(ignored)


def _call(values: Json, defaults: Mapping[str, Any], ignored: tuple[str, ...]) -> Call:
    options = values.pop("stream_options", {})
    stream = values.setdefault("stream", False)
    n = values.pop("n", 1)
    if options and not stream:
        raise BadRequest("stream_options needs stream: true", param="stream_options")
    for name, value in options.items():
        if name not in ("include_usage", "include_obfuscation") or not isinstance(value, bool):
            raise BadRequest("stream_options takes include_usage: true or false", param="stream_options")
    if "structured_outputs" in values:  # vLLM's name
        if "grammar" in values:
            raise BadRequest("grammar and structured_outputs say the same: give one", param="structured_outputs")
        values["grammar"] = values.pop("structured_outputs")
    keywords = {**defaults, **values}
    try:
        sampling = {k: v for k, v in keywords.items() if k in _SAMPLING}
        SamplingParams(**sampling)
        draft_config(DraftConfig(), values.get("draft"), values.get("draft_max"))
    except ConfigError as error:
        param = next((name for name in values if str(error).startswith(name)), None)
        raise _refused(error, param) from error
    return Call(keywords, bool(options.get("include_usage")), n, ignored=ignored)
