"""Writes the reference part of docs/api.md from signatures and docstrings: `python -P tests/support/api_reference.py`.

`test_docs_api` compares, so that what is documented is what is there.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOC = Path(__file__).resolve().parents[2] / "docs" / "api.md"
START = "<!-- reference: written from the docstrings by `python -P tests/support/api_reference.py` -->"

# Sections of the reference: title, module, names ([] = all that the module exports and no other section names).
SECTIONS: tuple[tuple[str, str, list[str]], ...] = (
    ("The engine", "specgguf", ["SpeculativeLlama"]),
    ("Settings and results", "specgguf", ["SamplingParams", "DraftConfig", "Generation", "Chunk", "Round", "Stats"]),
    ("Errors", "specgguf", []),
    ("Serving (extra `server`)", "specgguf.serve.server", ["ServeConfig", "ApiKey", "Service", "listen", "run"]),
    ("Presets", "specgguf.presets", ["names", "load", "Preset"]),
)
HEADS = ("Args:", "Attributes:", "Raises:", "Returns:", "Yields:")


def reference() -> str:
    """The whole reference as Markdown."""
    return "\n".join(line for section in SECTIONS for line in _section(*section))


def _section(title: str, module: str, names: list[str]) -> Iterator[str]:
    home = importlib.import_module(module)
    taken = {name for _, _, others in SECTIONS for name in others}
    yield f"## {title}\n"
    for name in names or [name for name in home.__all__ if name not in taken]:
        yield from _entry(name, getattr(home, name), module)


def _entry(name: str, value: Any, module: str) -> Iterator[str]:
    if inspect.isclass(value) and issubclass(value, Exception):
        bases = ", ".join(base.__name__ for base in value.__bases__)
        yield f"- `{name}({bases})`: {_summary(value)}"
        if name == "VocabMismatch":  # the last of them
            yield ""
        return
    yield f"### {name}\n"
    yield f"```python\nfrom {module} import {name}\n{_signature(name, value)}\n```\n"
    yield from _doc(value)
    if inspect.isclass(value):
        for method, member in _members(value):
            yield from _member(method, member)


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        public = not name.startswith("_") or name == "__call__"
        if public and (callable(member) or isinstance(member, classmethod | staticmethod | property)):
            yield name, member


def _member(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property):
        assert member.fget is not None
        kind = inspect.signature(member.fget).return_annotation
        yield f"#### `.{name}: {kind}`\n"
        yield from _doc(member)
        return
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    yield f"#### `{'@classmethod ' if isinstance(member, classmethod) else ''}.{name}()`\n"
    yield f"```python\n{_signature(name, function)}\n```\n"
    yield from _doc(function)


def _signature(name: str, value: Any) -> str:
    """`name(...)` as in the source: on one line where it fits, else a parameter a line."""
    signature = inspect.signature(value)
    parts: list[str] = []
    keyword_only = False
    for p in signature.parameters.values():
        if p.name in ("self", "cls"):
            continue
        if p.kind is p.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            parts.append("*")
        stars = "*" if p.kind is p.VAR_POSITIONAL else "**" if p.kind is p.VAR_KEYWORD else ""
        default = f" = {_default(p.default)}" if p.default is not p.empty else ""
        parts.append(f"{stars}{p.name}: {p.annotation}{default}")
    end = ")" if inspect.isclass(value) else f") -> {signature.return_annotation}"
    line = f"{name}({', '.join(parts)}{end}"
    return line if len(line) <= 110 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + end


def _default(value: Any) -> str:
    """A default value; what is made anew for each call is "…"."""
    made = type(value).__name__ == "_HAS_DEFAULT_FACTORY_CLASS" or (callable(value) and not isinstance(value, type))
    return "…" if made else repr(value).replace("'", '"')


def _summary(value: Any) -> str:
    return " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())


def _doc(value: Any) -> Iterator[str]:
    """A docstring as Markdown: paragraphs, and its sections as lists."""
    text = inspect.getdoc(value) or ""
    in_list = False
    for block in text.split("\n\n"):
        lines = block.splitlines()
        if lines and lines[0].strip() in HEADS:
            head, *lines = lines
            yield f"{head.strip()[:-1]}:\n"
            in_list = True
        elif in_list and not block.startswith(" "):
            in_list = False
        if in_list:
            yield from _items(lines)
            yield ""
        elif lines:
            yield "\n".join(line.strip() for line in lines) + "\n"


def _items(lines: list[str]) -> Iterator[str]:
    """`name: text` with its continuation lines, as a list."""
    depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    item = ""
    for line in [*lines, ""]:
        indent = len(line) - len(line.lstrip())
        if indent <= depth or not line.strip():
            if item:
                yield re.sub(r"^- ([\w, ]+?):", lambda m: f"- {_code(m[1])}:", item)
            item = f"- {line.strip()}"
        else:
            item += " " + line.strip()


def _code(names: str) -> str:
    return ", ".join(f"`{name.strip()}`" for name in names.split(","))


def current() -> tuple[str, str]:
    """docs/api.md as it stands: what people wrote, and the reference after it."""
    head, _, tail = DOC.read_text(encoding="utf-8").partition(START)
    return head, tail.strip("\n")


if __name__ == "__main__":
    head, _ = current()
    DOC.write_text(f"{head}{START}\n\n{reference().strip()}\n", encoding="utf-8")
