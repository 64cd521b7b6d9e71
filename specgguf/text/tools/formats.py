"""How models write tool calls: the formats of the common chat templates, each from a whole text to calls.

`MARKS` are those between texts of their own (Qwen, Hermes, Mistral, Llama, DeepSeek, Gemma); `bare_calls` reads what
some models write instead, JSON or Python alone. It knows nothing of streams, tokens or templates.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

LENGTH_MAX = 100_000  # characters of calls in Python's form

_KEYS = frozenset(("name", "arguments", "parameters", "type", "function", "id"))
_FENCE = re.compile(r"```(\w*)\s*\n?")
_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?\s*([\w.-]+)\s*(?:<｜tool▁sep｜>)?\s*(?:```(?:json)?)?\s*(\{.*?\})\s*"
    r"(?:```)?\s*<｜tool▁call▁end｜>",
    re.DOTALL,
)
_MISTRAL = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\w+)?\s*(?:\[ARGS\])?\s*(\{.*)", re.DOTALL)
_GEMMA = re.compile(r"\s*call:([\w.-]+)(\{.*\})\s*", re.DOTALL)
_GEMMA_TEXT = re.compile(r'(?:<escape>|<\|"\|>)(.*?)(?:<escape>|<\|"\|>)', re.DOTALL)
_XML = re.compile(r"\s*<function=([\w.-]+)>(.*?)(?:</function>)?\s*", re.DOTALL)
_XML_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model asks for; `arguments` is JSON text."""

    name: str
    arguments: str


def _json(text: str) -> Any:
    """The value that `text` is, None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def call_of(value: Any, names: Collection[str] | None = None) -> ToolCall | None:
    """The call that a JSON value is, or None. With `names` it must be of one of them, with arguments, and nothing
    else: JSON of an ordinary answer is no call."""
    if not isinstance(value, dict):
        return None
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    name, arguments = inner.get("name"), inner.get("arguments", inner.get("parameters"))
    if not isinstance(name, str):
        return None
    if names is not None and (name not in names or arguments is None or not _KEYS.issuperset({*value, *inner})):
        return None
    arguments = {} if arguments is None else arguments
    return ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def parse_call(text: str) -> ToolCall | None:
    """The call that `text` holds as {"name": …, "arguments": …}, or None."""
    return call_of(_json(text))


# --- between marks ----------------------------------------------------------------------------------------


def _tagged(text: str) -> list[ToolCall]:
    call = parse_call(text)
    if call is None and (xml := _XML.fullmatch(text)):
        given = dict(_XML_PARAMETER.findall(xml[2]))
        values = {name: text if (read := _json(text)) is None else read for name, text in given.items()}
        call = ToolCall(xml[1], json.dumps(values, ensure_ascii=False))
    return [call] if call else []


def _mistral(text: str) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for part in text.split("[TOOL_CALLS]"):
        if (called := _MISTRAL.fullmatch(part)) and isinstance(value := _json(called[2]), dict):
            calls.append(ToolCall(called[1], json.dumps(value, ensure_ascii=False)))
        else:
            listed = _listed(part, None)
            if listed is None:
                return []
            calls += listed
    return calls


def _llama(text: str) -> list[ToolCall]:
    return _listed(text.removesuffix("<|eom_id|>"), None) or []


def _deepseek(text: str) -> list[ToolCall]:
    found = [(name, _json(arguments)) for name, arguments in _DEEPSEEK.findall(text)]
    if any(arguments is None for _, arguments in found):
        return []
    return [ToolCall(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in found]


def _gemma(text: str) -> list[ToolCall]:
    called = _GEMMA.fullmatch(text)
    if called is None:
        return []
    parts = _GEMMA_TEXT.split(called[2])
    quoted = [json.dumps(p) if i % 2 else re.sub(r"([{,\[]\s*)(\w+)\s*:", r'\1"\2":', p) for i, p in enumerate(parts)]
    arguments = _json("".join(quoted))
    return [ToolCall(called[1], json.dumps(arguments, ensure_ascii=False))] if isinstance(arguments, dict) else []


@dataclass(frozen=True, slots=True)
class Mark:
    """A text that begins calls, the one that ends them ("": the end of the answer), and how they are read."""

    begin: str
    end: str
    read: Callable[[str], list[ToolCall]]


MARKS = (
    Mark("<tool_call>", "</tool_call>", _tagged),
    Mark("<tools>", "</tools>", _tagged),
    Mark("[TOOL_CALLS]", "", _mistral),
    Mark("<|python_tag|>", "", _llama),
    Mark("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", _deepseek),
    Mark("<start_function_call>", "<end_function_call>", _gemma),
    Mark("<|tool_call>", "<tool_call|>", _gemma),
)
OPENED = Mark("", MARKS[0].end, MARKS[0].read)  # where a grammar has written the beginning


# --- alone ------------------------------------------------------------------------------------------------


def may_be_bare(text: str, names: Collection[str]) -> bool:
    """Whether an answer that begins with `text` may still turn out to be calls of `names` and nothing else."""
    begun = text.lstrip()
    if not begun or "```".startswith(begun):
        return True
    if fence := _FENCE.match(begun):
        begun = begun[fence.end() :].lstrip()
        if not begun:
            return True
    elif begun[0] not in "[{":
        return False
    inner = begun.lstrip("[{ \n\r\t")
    if not inner:
        return True
    if inner[0] != '"':
        return any(name.startswith(inner[: len(name)]) for name in (*names, "print("))
    key, closed, after = inner[1:].partition('"')
    if not closed:
        return any(known.startswith(key) for known in _KEYS)
    if key != "name":
        return key in _KEYS
    value = after.lstrip(": \n\t")
    name, closed, _ = value[1:].partition('"')
    if not value or value == '"':
        return True
    return value[0] == '"' and (name in names if closed else any(known.startswith(name) for known in names))


def bare_calls(text: str, names: Collection[str]) -> list[ToolCall]:
    """The calls of `names` that a whole answer is, bare or in fences; empty where it is anything else."""
    return _listed(text, names) or _pythonic(text, names) or []


def _listed(text: str, names: Collection[str] | None) -> list[ToolCall] | None:
    """Objects, or a list of them, one after the other, with fences, commas or semicolons between; None otherwise."""
    decoder, calls, at = json.JSONDecoder(), list[ToolCall](), 0
    while True:
        while gap := re.compile(r"[\s,;]+|```\w*").match(text, at):
            at = gap.end()
        if at == len(text):
            return calls
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return None
        found = [call_of(item, names) for item in (value if isinstance(value, list) else [value])]
        if not found or None in found:
            return None
        calls += [call for call in found if call is not None]


def _pythonic(text: str, names: Collection[str]) -> list[ToolCall] | None:
    """Calls with keywords, as Python has them, alone or in a list; Gemma prints them in a fence."""
    code = _FENCE.sub("", text.strip(), count=1).removesuffix("```").strip()
    if len(code) > LENGTH_MAX:
        return None
    try:
        tree = ast.parse(code, mode="eval").body
        nodes = tree.elts if isinstance(tree, ast.List) else [tree]
        return [_python_call(node, names) for node in nodes]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _python_call(node: ast.expr, names: Collection[str]) -> ToolCall:
    """Raises ValueError for anything but a call of `names` with literal keywords."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
        and len(node.args) == 1
    ):
        node = node.args[0]
    if not isinstance(node, ast.Call) or node.args or ast.unparse(node.func) not in names:
        raise ValueError
    values = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg is not None}
    if len(values) < len(node.keywords):
        raise ValueError
    return ToolCall(ast.unparse(node.func), json.dumps(values, ensure_ascii=False))
