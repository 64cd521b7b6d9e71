"""What a caller may give as a grammar, read into llguidance's own form. Nothing is compiled here, and no vocabulary
is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specgguf.config import did_you_mean, one_line
from specgguf.errors import ConfigError

from . import gbnf, json_schema

# Between the parts of a JSON text: a model that may go on with blank space for ever does.
WHITESPACE = r" |\n[ \t]{0,40}"
COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}  # as `json.dumps` writes it
COMPACTLY = "disable_any_whitespace"  # vLLM's name
SOURCE_MAX = 2**18  # characters of what is given, checked before any of it is read, and of what it becomes


@dataclass(frozen=True)
class Grammar:
    """What restricts an answer.

    Attributes:
        kind: what it was given as, for messages.
        source: llguidance's form of it.
        lost: what of it is known not to be kept to; only of a lenient JSON schema.
        strict: whether it is refused where it cannot be kept to.
    """

    kind: str
    source: str
    lost: tuple[str, ...] = ()
    strict: bool = True

    def refusal(self, why: str) -> ConfigError:
        """The error that says why llguidance refused it, in one line."""
        line = one_line(why.split("\n\n")[0])
        if found := re.search(r"Unimplemented keys: (\[[^\]]*\])", line):
            line = "it cannot be kept to the letter: " + ", ".join(json.loads(found[1]))
        elif line.startswith("oneOf constraints"):
            line = "it cannot be kept to the letter: oneOf (its alternatives do not exclude each other)"
        lenient = self.kind in ("JSON schema", "tools") and self.strict and "to the letter" in line
        hint = '"strict": false takes what can be kept to, with a warning' if lenient else ""
        return ConfigError(f"{self.kind}: {line}", hint=hint)


def read_grammar(value: Any) -> Grammar:
    """A grammar in any of the forms that a caller may give it in.

    Takes a GBNF text, a `llama_cpp.LlamaGrammar`, {"type": "gbnf" | "lark" | "regex" | "json_schema" | "choice", that
    name or "value": …}, or vLLM's `structured_outputs`: {"json" | "regex" | "choice" | "grammar": …} or
    {"json_object": true}. A JSON schema may have "strict": false beside it where the type is given, and
    "disable_any_whitespace": true in both.

    Raises:
        ConfigError: something else, or malformed.
    """
    if isinstance(value, Grammar):
        return value
    if isinstance(value, Mapping):
        return _by_type(value) if "type" in value else _by_name(value)
    text = value if isinstance(value, str) else getattr(value, "_grammar", None)
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(
            f"grammar must be a GBNF text, a LlamaGrammar or {{'type': …}}, not {value!r:.60}",
            hint=f"types: {', '.join(READERS)}",
        )
    return gbnf_grammar(text)


def gbnf_grammar(text: str) -> Grammar:
    """The grammar of a GBNF text, llama.cpp's own format."""
    check_length("grammar", len(text))
    try:
        return Grammar("grammar", _lark(gbnf.to_lark(text)))
    except ValueError as error:
        raise ConfigError(f"grammar: {one_line(str(error))}") from None
    except RecursionError:
        raise ConfigError("grammar: it nests too deep") from None


def json_grammar(schema: Any = None, *, strict: bool = True, any_whitespace: bool = True) -> Grammar:
    """The grammar of a JSON schema (a mapping, a boolean or JSON text); None: of any JSON object.

    Args:
        strict: refuse what cannot be kept to the letter; else it is named in a warning.
        any_whitespace: False leaves one spelling of it, that of `json.dumps`, so that more tokens are forced.

    Raises:
        ConfigError: it is no schema.
    """
    tree, lost = _json_source(schema, strict)
    if not any_whitespace:
        tree["x-guidance"] = {"lenient": not strict, **COMPACT}
    return Grammar("JSON schema", json.dumps({"grammars": [{"json_schema": tree}]}), tuple(lost), strict)


def _json_source(schema: Any, strict: bool) -> tuple[dict[str, Any], list[str]]:
    """A JSON schema as llguidance reads it, and the keys that were given up."""
    try:
        text = schema if isinstance(schema, str) else json.dumps({"type": "object"} if schema is None else schema)
        check_length("JSON schema", len(text))
        tree = json.loads(text)
        if tree is True:
            tree = {}
        if not isinstance(tree, Mapping):
            raise ValueError("nothing could be written" if tree is False else "it is no JSON object")
        tree, lost = json_schema.normalised(tree, strict=strict)
    except RecursionError:
        raise ConfigError("JSON schema: it is nested too deeply") from None
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise ConfigError(f"JSON schema: {one_line(str(error))}") from None
    # over what a schema's own "x-guidance" says
    return {**tree, "x-guidance": {"whitespace_pattern": WHITESPACE, "lenient": not strict}}, lost


def choice_grammar(choices: Any) -> Grammar:
    """One of several texts."""
    if not isinstance(choices, Sequence) or isinstance(choices, str) or not choices:
        raise ConfigError(f"choice must be a list of texts, not {choices!r:.60}")
    if not all(isinstance(choice, str) and choice for choice in choices):
        raise ConfigError("choice must be a list of texts, none of them empty")
    check_length("choice", sum(map(len, choices)))
    # One lexeme: of two the longer would win wherever one begins with the other.
    return Grammar("choice", _lark("start: CHOICE\nCHOICE: " + " | ".join(map(gbnf.quoted, dict.fromkeys(choices)))))


def regex_grammar(pattern: Any) -> Grammar:
    """Texts that match a regular expression (Rust's syntax, without look-around) as a whole."""
    from llguidance import LLMatcher

    check_length("regex", len(_text("regex", pattern)))
    return Grammar("regex", LLMatcher.grammar_from_regex(pattern))


def lark_grammar(text: Any) -> Grammar:
    """A grammar in llguidance's dialect of Lark: https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md."""
    check_length("Lark grammar", len(_text("lark", text)))
    return Grammar("Lark grammar", _lark(text))


def tools_grammar(tools: Iterable[tuple[str, Any, bool]]) -> Grammar:
    """A call of one of several functions, {"name": …, "arguments": {…}}: of their names, schemas and whether those are
    strict."""
    lines, lost, all_strict, length = [], set(), True, 0
    for i, (name, schema, strict) in enumerate(tools):
        tree, given_up = _json_source(schema, strict)
        lost |= set(given_up)
        all_strict &= strict
        begin = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
        lines.append(f'call{i}: {json.dumps(begin)} %json {json.dumps(tree)} "}}"')
        length += len(lines[-1])
        check_length("tools", length)
    start = "start: " + " | ".join(f"call{i}" for i in range(len(lines)))
    return Grammar("tools", _lark("\n".join([start, *lines])), tuple(sorted(lost)), all_strict)


def response_grammar(response_format: Any) -> Grammar | None:
    """The grammar of OpenAI's `response_format`, or None for plain text.

    Takes {"type": "text"}, {"type": "json_object"} (with llama-cpp-python's optional "schema"), and {"type":
    "json_schema", …} with "schema" and "strict" either in "json_schema" (chat completions) or beside the type
    (responses).

    Raises:
        ConfigError: another type, or a schema that cannot be used.
    """
    if response_format is None:
        return None
    kind = response_format.get("type") if isinstance(response_format, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return json_grammar(response_format.get("schema"))
    if kind == "json_schema":
        named = response_format.get("json_schema", response_format)
        if isinstance(named, Mapping) and isinstance(named.get("schema"), Mapping | bool):
            return json_grammar(named["schema"], strict=is_strict(named))
        raise ConfigError('response_format json_schema needs {"json_schema": {"schema": …}}')
    raise ConfigError(f"response_format must be of type text, json_object or json_schema, not {kind!r:.60}")


def is_strict(named: Mapping[str, Any]) -> bool:
    """Whether what is asked beside a schema wants it kept to the letter: unless it says `"strict": false`."""
    strict = named.get("strict")
    if strict not in (None, True, False):
        raise ConfigError(f"strict must be true or false, not {strict!r:.60}")
    return strict is not False


def check_length(kind: str, n: int) -> None:
    """Raise ConfigError for a grammar of more than SOURCE_MAX characters."""
    if n > SOURCE_MAX:
        raise ConfigError(f"{kind}: it is longer than {SOURCE_MAX:,} characters")


def _lark(text: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": text}]})


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{name} must be a text, not {value!r:.60}")
    return value


def _by_type(value: Mapping[str, Any]) -> Grammar:
    kind = value["type"]
    if not isinstance(kind, str) or kind not in READERS:
        hint = (did_you_mean(kind, READERS) if isinstance(kind, str) else "") or f"types: {', '.join(READERS)}"
        raise ConfigError(f"this type of grammar is not known: {kind!r:.60}", hint=hint)
    names = {kind, "value"} & value.keys()
    known = {"type", kind, "value"} | ({"strict", COMPACTLY} if kind == "json_schema" else set())
    if len(names) != 1 or value.keys() - known:
        shape = f'{{"type": "{kind}", "{kind}": …}}'
        raise ConfigError(f"a grammar of type {kind} is {shape}, without {_named(value.keys() - known) or 'its text'}")
    content = value[names.pop()]
    if kind == "json_schema":
        return json_grammar(content, strict=is_strict(value), any_whitespace=not _is_compact(value))
    return READERS[kind](content)


def _by_name(value: Mapping[str, Any]) -> Grammar:
    """vLLM's `structured_outputs`: the one constraint that it names."""
    given = {name: content for name, content in value.items() if content is not None and name != COMPACTLY}
    if len(given) != 1:
        raise ConfigError(f"structured_outputs names one of {', '.join(STRUCTURED)}, not {_named(given) or 'none'}")
    (name, content), *_ = given.items()
    if name not in STRUCTURED:
        hint = did_you_mean(str(name), STRUCTURED) or f"known: {', '.join(STRUCTURED)}"
        raise ConfigError(f"structured_outputs: '{name!s:.40}' is not supported", hint=hint)
    if _is_compact(value):
        if name not in ("json", "json_object"):
            raise ConfigError(f"{COMPACTLY} goes with json or json_object, not with {name}")
        return json_grammar(content if name == "json" else _any_object(content), any_whitespace=False)
    return STRUCTURED[name](content)


def _is_compact(value: Mapping[str, Any]) -> bool:
    wanted = value.get(COMPACTLY)
    if wanted not in (None, True, False):
        raise ConfigError(f"{COMPACTLY} must be true or false, not {wanted!r:.60}")
    return wanted is True


def _any_object(wanted: Any) -> dict[str, Any]:
    """The schema of any JSON object, where that is wanted."""
    if wanted is not True:
        raise ConfigError(f"json_object must be true, not {wanted!r:.60}")
    return {"type": "object"}


def _lark_or_gbnf(text: Any) -> Grammar:
    """Both are called a grammar; a Lark grammar has its start rule."""
    check_length("grammar", len(_text("grammar", text)))
    is_lark = re.search(r"^[^\S\n]*(start\s*:(?!:)|%llguidance\b)", text, re.MULTILINE)  # in one pass
    return lark_grammar(text) if is_lark else gbnf_grammar(text)


def _named(keys: Any) -> str:
    return ", ".join(map(str, sorted(keys, key=str)))


READERS: Mapping[str, Callable[[Any], Grammar]] = {
    "gbnf": lambda value: gbnf_grammar(_text("gbnf", value)),
    "lark": lark_grammar,
    "regex": regex_grammar,
    "json_schema": json_grammar,
    "choice": choice_grammar,
}
STRUCTURED: Mapping[str, Callable[[Any], Grammar]] = {
    "json": json_grammar,
    "regex": regex_grammar,
    "choice": choice_grammar,
    "grammar": _lark_or_gbnf,
    "json_object": lambda value: json_grammar(_any_object(value)),
}
