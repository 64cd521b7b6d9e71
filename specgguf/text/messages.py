"""What a conversation may contain: OpenAI's messages, checked, in the plain form that chat templates expect.

This module knows nothing of templates, tokens or models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from specgguf.config import did_you_mean
from specgguf.errors import ConfigError, Unsupported

Message = dict[str, Any]

ROLES = ("system", "user", "assistant", "tool")
OTHER_ROLES = {"developer": "system", "function": "tool"}
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")
MAX_DEPTH = 64  # of values in a conversation: what walks them takes frames for every level, and templates do


def normalized(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The messages as templates expect them: content as one str, tool-call arguments as objects.

    Accepts the roles system (or developer), user, assistant and tool (or function); content as a str, a list of text
    parts (joined by newlines) or None. A call of the older kind (`function_call`) becomes the one of `tool_calls`.
    Arguments that are no JSON, of a call that was cut, become {"unparsed": the text}. Other keys are passed on.

    Raises:
        ConfigError: anything else, by message number and name.
        Unsupported: images, audio and the like.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ConfigError("messages must be a list of at least one message")
    return [_normalized(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _normalized(message: Mapping[str, Any], where: str) -> Message:
    if not isinstance(message, Mapping):
        raise ConfigError(f"{where} must be an object with role and content, not {message!r:.60}")
    given = message.get("role")
    role = OTHER_ROLES.get(given, given) if isinstance(given, str) else given
    if role not in ROLES:
        raise ConfigError(
            f"{where}: role must be one of {', '.join(ROLES)}, not {role!r:.60}",
            hint=did_you_mean(role[:100], ROLES) if isinstance(role, str) else "",
        )
    plain = {**message, "role": role}
    calls, older = plain.pop("tool_calls", None), plain.pop("function_call", None)
    if role == "assistant" and not calls and older:
        calls = [{"type": "function", "function": older}]
    if role != "assistant":
        calls = None  # an empty list too: templates test for its presence
    if calls and not isinstance(calls, list):
        raise ConfigError(f"{where}.tool_calls must be a list, not {calls!r:.60}")
    if calls:
        plain["tool_calls"] = [_normalized_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)]
    content = message.get("content")
    plain["content"] = "" if content is None else content_text(content, where)
    check_depth(plain, where)
    return plain


def check_depth(value: Any, where: str) -> None:
    """Raise ConfigError for what is nested too deeply to be walked; `where` names it."""
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [v.values() if isinstance(v, Mapping) else v if isinstance(v, list | tuple) else () for v in level]
        level = [value for values in inner for value in values]
        if not level:
            return
    raise ConfigError(f"{where} is nested more than {MAX_DEPTH} deep")


def content_text(content: Any, where: str) -> str:
    """The text of a message's `content`; `where` names it in errors."""
    if isinstance(content, list):
        content = "\n".join(_part_text(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if not isinstance(content, str):
        raise ConfigError(f"{where}: content must be a text or a list of text parts, not {content!r:.60}")
    try:
        content.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{where}: content holds a lone surrogate, which is no character") from None
    return content


def _part_text(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind is not None and kind not in TEXT_PARTS:
        raise Unsupported(f"{where}: content of type {kind!r:.60} is not supported, only text is")
    text = part.get("refusal" if kind == "refusal" else "text") if kind is not None else None
    if not isinstance(text, str):
        raise ConfigError(f'{where} must be {{"type": "text", "text": …}}, not {part!r:.60}')
    return text


def _normalized_call(call: Any, where: str) -> Message:
    """A tool call with its arguments as an object: templates print JSON, a text would be quoted twice."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ConfigError(f'{where} must be {{"function": {{"name": …, "arguments": …}}}}, not {call!r:.60}')
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parsed(arguments, where)
    return {**call, "function": {**function, "arguments": {} if arguments is None else arguments}}


def _parsed(arguments: str, where: str) -> Any:
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except RecursionError:
        raise ConfigError(f"{where}: arguments are nested too deeply") from None
    except ValueError:
        return {"unparsed": arguments}
