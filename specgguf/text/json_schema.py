"""A JSON schema, made ready for llama-cpp-python's converter.

The converter takes one branch for each part of a schema and passes over whatever stands beside. `helped` says the
same in words that it reads, where that is exact; `unenforced` goes where it goes and names what is lost all the same.
Nothing here knows grammars or tokens.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Collection, Mapping
from itertools import combinations
from typing import Any

Types = frozenset[str]

MAX_REPETITIONS = 2000  # llama.cpp's own
MAX_COMPARED = 100  # alternatives of a oneOf, each with each
VALUES = ("const", "enum", "default", "examples")  # values, not schemas
NAMED_PARTS = ("properties", "$defs", "definitions")  # schemas by names of the user's own
FORMATS = re.compile("date|time|date-time|uuid[1-5]?")  # those that the converter knows

STRING, ARRAY, OBJECT = frozenset(["string"]), frozenset(["array"]), frozenset(["object"])
NUMBER = frozenset(["integer", "number"])
EVERY = STRING | ARRAY | OBJECT | NUMBER | {"boolean", "null"}
ANYWHERE = "$ref anyOf oneOf allOf type const enum not if".split()
CONCERNS = {  # a key that constrains -> the types of values that it constrains
    **dict.fromkeys(ANYWHERE, EVERY),
    **dict.fromkeys("minLength maxLength pattern format contentEncoding contentMediaType".split(), STRING),
    **dict.fromkeys("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf".split(), NUMBER),
    **dict.fromkeys(
        "items prefixItems minItems maxItems uniqueItems contains minContains maxContains unevaluatedItems".split(),
        ARRAY,
    ),
    **dict.fromkeys(
        "properties required additionalProperties minProperties maxProperties propertyNames patternProperties "
        "dependentRequired dependentSchemas dependencies unevaluatedProperties".split(),
        OBJECT,
    ),
}
HOLDS: dict[str, Callable[[Any, Any], bool]] = {  # of a value and a limit
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "minLength": lambda value, least: len(value) >= least,
    "maxLength": lambda value, most: len(value) <= most,
    "minItems": lambda value, least: len(value) >= least,
    "maxItems": lambda value, most: len(value) <= most,
}
ANYTHING = {"anyOf": [{"type": name} for name in ("object", "array", "string", "number", "boolean", "null")]}


def helped(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema of the same meaning, of which the converter reads more.

    Raises:
        ValueError: it would be written out at any length, or nothing could be written.
    """
    _check_counts(schema)
    tree: dict[str, Any] = _helped(schema)
    if "$ref" in tree:  # the converter overlooks the definitions beside a reference at the top
        tree["anyOf"] = [{key: tree.pop(key) for key in ("$ref", "anyOf", "oneOf") if key in tree}]
    return tree


def unenforced(schema: Mapping[str, Any]) -> set[str]:
    """The keys of a helped schema, and its parts, that the converter's grammar does not keep to.

    Raises:
        Exception: whatever, for a schema that the converter refuses.
    """
    walk = _Walk(schema)
    walk.visit(schema)
    return walk.found


def _check_counts(schema: Any) -> None:
    """Refuse what the converter would write out at any length, or pass over."""
    if isinstance(schema, list):
        for value in schema:
            _check_counts(value)
    if not isinstance(schema, dict):
        return
    for what in ("Length", "Items"):
        least, most = (schema.get(f"{bound}{what}") for bound in ("min", "max"))
        for key, count in ((f"min{what}", least), (f"max{what}", most)):
            if isinstance(count, int | float) and count > MAX_REPETITIONS:
                raise ValueError(f"{key} of more than {MAX_REPETITIONS:,} is not supported")
        if isinstance(least, int) and isinstance(most, int) and least > most:
            raise ValueError(f"min{what} is more than max{what}")
    if isinstance(pattern := schema.get("pattern"), str):
        for count in re.findall(r"(?<=[{,])\d+(?=[,}])", pattern):
            if len(count) > 6 or int(count) > MAX_REPETITIONS:
                raise ValueError(f"a pattern that repeats more than {MAX_REPETITIONS:,} times is not supported")
    for key in ("enum", "anyOf", "oneOf", "type"):
        if schema.get(key) == []:
            raise ValueError(f"{key} is empty: nothing could be written")
    for key, value in schema.items():
        if key not in VALUES:
            _check_counts(value)


def _helped(part: Any) -> Any:
    if isinstance(part, list):
        return [_helped(one) for one in part]
    if not isinstance(part, dict):
        return part
    part = dict(part)
    for key, value in part.items():
        if key in NAMED_PARTS and isinstance(value, dict):
            part[key] = {name: _helped(one) for name, one in value.items()}
        elif key not in VALUES:
            part[key] = _helped(value)
    if part.keys() & {"$ref", "anyOf", "oneOf"}:
        return part
    if "const" in part or isinstance(part.get("enum"), list):
        return _listed_values(part)
    if isinstance(part.get("type"), list):
        return _one_type_each(part)
    if isinstance(part.get("allOf"), list) and len(part["allOf"]) == 1 and CONCERNS.keys() & part == {"allOf"}:
        part["anyOf"] = part.pop("allOf")
    is_open = part.get("items", {}) in ({}, True) and "prefixItems" not in part
    if part.get("type") == "array" and is_open and part.keys() & {"items", "minItems", "maxItems"}:
        part["items"] = ANYTHING
    return part


def _one_type_each(part: dict[str, Any]) -> dict[str, Any]:
    """Of several types the converter would read nothing but the types."""

    def only(kind: str) -> dict[str, Any]:
        about = {key: value for key, value in part.items() if _types(kind) & CONCERNS.get(key, frozenset())}
        if kind != "object":  # none of these is read there: do not write it out once more for each
            about |= {key: True for key in about if key in ANYWHERE}
        return about | {"type": kind}

    rest = {key: value for key, value in part.items() if key not in CONCERNS}
    return rest | {"anyOf": [only(kind) for kind in dict.fromkeys(part["type"])]}


def _listed_values(part: dict[str, Any]) -> dict[str, Any]:
    """Of listed values, those that pass what stands beside them: the converter would write them all."""
    values = [part["const"]] if "const" in part else part["enum"]
    known = {key for key, limit in part.items() if key == "type" or (key in HOLDS and _is_number(limit))}
    passing = [v for v in values if all(_passes(v, key, part[key]) for key in known)]
    if not passing:
        raise ValueError("none of the listed values passes what stands beside them")
    rest = {key: value for key, value in part.items() if key not in known}
    return rest | ({"const": passing[0]} if "const" in part else {"enum": passing})


def _passes(value: Any, key: str, limit: Any) -> bool:
    kind = _type_of(value)
    if key == "type":
        return kind in _types(limit)
    return kind not in CONCERNS[key] or HOLDS[key](value, limit)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _type_of(value: Any) -> str:
    if _is_number(value):
        return "integer" if value == value // 1 else "number"
    names = {str: "string", bool: "boolean", list: "array", dict: "object"}
    return names.get(type(value), "null")


def _types(named: Any) -> Types:
    """The types of values that `type` allows; a name that is none allows every one."""
    if isinstance(named, list):
        return frozenset().union(*map(_types, named))
    if named == "number":
        return NUMBER
    return frozenset([named]) if isinstance(named, str) and named in EVERY else EVERY


class _Walk:
    """Goes where the converter goes, by the same order of branches.

    Attributes:
        found: what was passed over so far.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self.found: set[str] = set()
        self._root = root
        self._referred: dict[str, Types] = {}

    def visit(self, part: Any) -> Types:
        """The types of the values that the grammar of `part` writes."""
        kept, types = self._branch(part)
        self._note(part, kept, types)
        return types

    def _note(self, part: Mapping[str, Any], kept: Collection[str], types: Types) -> None:
        """Of the keys of `part`, find those that are not `kept` and concern what is written."""
        for key in part.keys() & CONCERNS.keys() - set(kept):
            if types & CONCERNS[key] and not (key == "type" and types <= _types(part[key])):
                self.found.add(key)

    def _branch(self, part: Mapping[str, Any]) -> tuple[set[str], Types]:
        """The keys that the grammar keeps to, and the types of values that it writes."""
        kind = part.get("type")
        if part.get("$ref") is not None:
            return {"$ref"}, self._reference(part["$ref"])
        if "oneOf" in part or "anyOf" in part:
            return self._union(part)
        if "const" in part:
            return {"const", "format"}, frozenset([_type_of(part["const"])])
        if "enum" in part:
            return {"enum", "format"}, frozenset(map(_type_of, part["enum"]))
        if kind in (None, "object") and ("properties" in part or part.get("additionalProperties", True) is not True):
            return self._object(part), OBJECT
        if kind in (None, "object") and "allOf" in part:
            return self._all_of(part), OBJECT
        if kind in (None, "array") and ("items" in part or "prefixItems" in part):
            return self._array(part), ARRAY
        if kind in (None, "string") and "pattern" in part:
            return {"pattern"}, STRING
        if kind in (None, "string") and FORMATS.fullmatch(part.get("format") or ""):
            return {"format"}, STRING
        if kind == "object" or not part:
            return {"additionalProperties"}, OBJECT
        return {"minLength", "maxLength"}, _types(kind)

    def _reference(self, ref: str) -> Types:
        if ref not in self._referred:
            self._referred[ref] = frozenset()  # as long as it is being read
            self._referred[ref] = self.visit(self._at(ref))
        return self._referred[ref]

    def _at(self, ref: str) -> Any:
        target: Any = self._root
        for name in ref.split("#")[-1].split("/")[1:]:
            target = target[name]
        return target

    def _union(self, part: Mapping[str, Any]) -> tuple[set[str], Types]:
        key = "oneOf" if part.get("oneOf") else "anyOf"
        options = [(option, self.visit(option)) for option in part[key]]
        types = frozenset().union(*(types for _, types in options))
        if key == "oneOf" and len(options) > MAX_COMPARED:
            return set(), types
        exclusive = key == "anyOf" or all(
            not (types_a & types_b) or self._apart(a, b) for (a, types_a), (b, types_b) in combinations(options, 2)
        )
        return {key} if exclusive else set(), types

    def _apart(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Whether listed values keep two alternatives apart: their own, or those of a property that both require."""
        a, b = self._target(a), self._target(b)
        shared = set(a.get("required", ())) & set(b.get("required", ()))
        ours, theirs = a.get("properties", {}), b.get("properties", {})
        pairs = [
            (self._target(ours[name]), self._target(theirs[name])) for name in shared & ours.keys() & theirs.keys()
        ]
        return any(_listed(x) and _listed(y) and not _listed(x) & _listed(y) for x, y in [(a, b), *pairs])

    def _target(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._at(part["$ref"]) if part.get("$ref") is not None else part
        return found

    def _object(self, part: Mapping[str, Any]) -> set[str]:
        properties = part.get("properties", {})
        for one in properties.values():
            self.visit(one)
        if isinstance(part.get("additionalProperties"), dict):
            self.visit(part["additionalProperties"])
        kept = {"properties", "additionalProperties", "unevaluatedProperties"}
        return kept | {"required"} if set(part.get("required", ())) <= properties.keys() else kept

    def _all_of(self, part: Mapping[str, Any]) -> set[str]:
        """Of each member the converter takes the properties, and writes all but those of an anyOf in it."""
        names: list[str] = []
        required: set[str] = set()
        for member in part["allOf"]:
            if "anyOf" in member:
                self._note(member, (), OBJECT)
            for one in member.get("anyOf", [member]):
                target = self._target(one)
                if target is not one:
                    self._note(one, ["$ref"], OBJECT)
                properties = target.get("properties", {})
                for value in properties.values():
                    self.visit(value)
                names += properties
                if "anyOf" not in member:
                    required |= properties.keys()
                is_whole = set(target.get("required", ())) <= required
                self._note(target, ["properties", *(["required"] if is_whole else [])], OBJECT)
        kept = {"unevaluatedProperties"}
        if set(part.get("required", ())) <= required:
            kept.add("required")
        if len(names) == len(set(names)):
            kept.add("allOf")
        return kept

    def _array(self, part: Mapping[str, Any]) -> set[str]:
        items = part.get("items") or part["prefixItems"]
        if not isinstance(items, list):
            self.visit(items)
            return {"items", "minItems", "maxItems", "unevaluatedItems"}
        for item in items:
            self.visit(item)
        kept = {key for key in ("minItems", "maxItems") if key in part and HOLDS[key](items, part[key])}
        if not part.get("items"):
            kept.add("prefixItems")
        return kept | {"items", "unevaluatedItems"}


def _listed(part: Mapping[str, Any]) -> set[str]:
    """The values that a part lists, as JSON; none where it lists none."""
    values = [part["const"]] if "const" in part else part.get("enum", [])
    return {json.dumps(value) for value in values}
