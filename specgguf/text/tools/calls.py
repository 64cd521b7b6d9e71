"""Tool calls: what a caller may ask for, and calls in streamed text, in whichever format the model writes them.

This module knows nothing of tokens, chunks or templates; the formats are `formats`'.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specgguf.config import did_you_mean
from specgguf.errors import ConfigError
from specgguf.text.detokenize import overlap
from specgguf.text.messages import check_depth

from .formats import MARKS, OPENED, Mark, ToolCall, bare_calls, may_be_bare, parse_call

__all__ = ["ToolCall", "ToolCallParser", "ToolChoice", "choose", "parse_call"]


class ToolCallParser:
    """Separates tool calls from streamed text.

    What stands between marks and is no call stays text. Blank space around calls is dropped.

    Args:
        names: of the tools; an answer that is nothing but calls of them, without any mark, is one too. Without names
            there must be marks.
        opened: the text begins inside a call in tags, without the first one.
    """

    def __init__(self, names: Collection[str] = (), *, opened: bool = False) -> None:
        self._names = frozenset(names)
        self._held = ""
        self._inside: Mark | None = OPENED if opened else None
        self._space = ""  # blank space before the opening mark: text, if what follows is no call
        self._skip_space = False  # a call has just ended
        self._bare = bool(names) and not opened  # the answer may still be calls and nothing else

    def feed(self, text: str) -> list[str | ToolCall]:
        """Add streamed text; returns the text and the calls that are now certain."""
        self._held += text
        if self._bare and may_be_bare(self._held, self._names):
            return []
        self._bare = False
        out: list[str | ToolCall] = []
        while self._step(out):
            pass
        return out

    def _step(self, out: list[str | ToolCall]) -> bool:
        """One move of the automaton; False when more text is needed."""
        if self._inside is not None:
            return self._step_inside(self._inside, out)
        mark = min((m for m in MARKS if m.begin in self._held), key=lambda m: self._held.index(m.begin), default=None)
        before, _, after = self._held.partition(mark.begin if mark else "\0")
        if mark is None:
            before = self._held[: len(self._held) - max(overlap(self._held, m.begin) for m in MARKS)]
        start = len(before) - len(before.lstrip()) if self._skip_space else 0
        end = len(before.rstrip())
        if start < end:
            out.append(before[start:end])
            self._held, self._skip_space = self._held[end:], False
        if mark is not None:
            self._space = "" if self._skip_space else before[end:]
            self._held, self._inside = after, mark
        return mark is not None

    def _step_inside(self, mark: Mark, out: list[str | ToolCall]) -> bool:
        before, found, after = self._held.partition(mark.end) if mark.end else (self._held, "", "")
        if found:
            calls = mark.read(before)
            out += calls or [self._space + mark.begin + before + mark.end]
            self._held, self._inside = after, None
            self._skip_space = bool(calls)
        return bool(found)

    def flush(self) -> list[str | ToolCall]:
        """No more text follows: a call without its closing mark counts if it is complete."""
        if self._bare:
            self._bare = False
            if calls := bare_calls(self._held, self._names):
                self._held = ""
                return list(calls)
            held, self._held = self._held, ""
            return [*self.feed(held), *self.flush()]
        held, self._held = self._held, ""
        if self._inside is not None:
            return list(self._inside.read(held)) or [self._space + self._inside.begin + held]
        return [] if not held or (self._skip_space and held.isspace()) else [held]


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
    {"name"}}). "any" is what others call "required".

    Raises:
        ConfigError: malformed, or a tool of that name does not exist.
    """
    known = _checked(tools)
    if tool_choice is None or tool_choice == "auto":
        return ToolChoice(tuple(known.values()))
    if tool_choice == "none":
        return ToolChoice()
    if tool_choice in ("required", "any"):
        if not known:
            raise ConfigError(f"tool_choice is '{tool_choice}' and there are no tools", hint="give tools")
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
        check_depth(tool, f"tools[{i}]")
        known[name] = tool
    return known
