"""Tool calls: what a caller may ask for, and `<tool_call>` JSON in streamed text (Qwen's and Hermes' form).

This module knows nothing of tokens, chunks or templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specgguf.config import did_you_mean
from specgguf.errors import ConfigError

from .detokenize import overlap

OPEN, CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for; `arguments` is JSON text."""

    name: str
    arguments: str


class ToolCallParser:
    """Separates tool calls from streamed text.

    What stands between the tags and is no call stays text. Blank space around calls is dropped.

    Args:
        opened: the text begins inside a call, without its tag.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._held = ""
        self._inside = opened
        self._open = "" if opened else OPEN  # to say again where what was inside is no call
        self._space = ""  # blank space before the opening tag: text, if what follows is no call
        self._skip_space = False  # a call has just ended

    def feed(self, text: str) -> list[str | ToolCall]:
        """Add streamed text; returns the text and the calls that are now certain."""
        self._held += text
        out: list[str | ToolCall] = []
        while self._step(out):
            pass
        return out

    def _step(self, out: list[str | ToolCall]) -> bool:
        """One move of the automaton; False when more text is needed."""
        before, found, after = self._held.partition(CLOSE if self._inside else OPEN)
        if self._inside:
            if found:
                out.append(parse_call(before) or self._space + self._open + before + CLOSE)
                self._held, self._inside, self._open = after, False, OPEN
                self._skip_space = isinstance(out[-1], ToolCall)
            return bool(found)
        certain = before if found else before[: len(before) - overlap(before, OPEN)]
        start = len(certain) - len(certain.lstrip()) if self._skip_space else 0
        end = len(certain.rstrip())
        if start < end:
            out.append(certain[start:end])
            self._held, self._skip_space = self._held[end:], False
        if found:
            self._space = "" if self._skip_space else before[end:]
            self._held, self._inside = after, True
        return bool(found)

    def flush(self) -> list[str | ToolCall]:
        """No more text follows: a call without its closing tag counts if it is complete."""
        held, self._held = self._held, ""
        if self._inside:
            return [parse_call(held) or self._space + self._open + held]
        return [] if not held or (self._skip_space and held.isspace()) else [held]


def parse_call(text: str) -> ToolCall | None:
    """The call that `text` holds as {"name": …, "arguments": …}, or None."""
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(call["name"], arguments)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools a model is told of, and which it must call.

    Attributes:
        tools: for the template; empty when there are none, or none may be called.
        forced: the name of the tool that must be called, or "". The reply is then only its arguments.
        is_required: one of the tools must be called. The reply is then only the call.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    forced: str = ""
    is_required: bool = False

    def schemas(self) -> list[tuple[str, Any, bool]]:
        """Of each tool that may be called: its name, the schema of its arguments, and whether that is strict."""
        functions = [tool["function"] for tool in self.tools]
        return [
            (function["name"], function.get("parameters") or {"type": "object"}, function.get("strict") is not False)
            for function in functions
            if self.forced in ("", function["name"])
        ]


def choose(tools: Any, tool_choice: Any) -> ToolChoice:
    """Read OpenAI's `tools` and `tool_choice` ("auto", "none", "required", or {"type": "function", "function":
    {"name"}}).

    Raises:
        ConfigError: malformed, or a tool of that name does not exist.
    """
    known = _checked(tools)
    if tool_choice is None or tool_choice == "auto":
        return ToolChoice(tuple(known.values()))
    if tool_choice == "none":
        return ToolChoice()
    if tool_choice == "required":
        if not known:
            raise ConfigError("tool_choice is 'required' and there are no tools", hint="give tools")
        return ToolChoice(tuple(known.values()), is_required=True)
    function = tool_choice.get("function") if isinstance(tool_choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str):
        raise ConfigError(f"tool_choice must be 'auto', 'none', 'required' or a function, not {tool_choice!r:.60}")
    if name not in known:
        raise ConfigError(f"tool_choice names '{name}', which is not among the tools", hint=did_you_mean(name, known))
    return ToolChoice(tuple(known.values()), name)


def _checked(tools: Any) -> dict[str, Mapping[str, Any]]:
    """The tools by name."""
    if tools is None:
        return {}
    if not isinstance(tools, Sequence) or isinstance(tools, str):
        raise ConfigError(f"tools must be a list, not {tools!r:.60}")
    known = {}
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or tool.get("type", "function") != "function":
            raise ConfigError(f'tools[{i}] must be {{"type": "function", "function": {{"name": …}}}}')
        known[name] = tool
    return known
