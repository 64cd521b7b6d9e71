"""A JSON schema in words that llguidance keeps to, of the same meaning.

It refuses some keys whose meaning others can say: alternatives that exclude each other (oneOf), the simplest
negations, names that depend on names. What cannot be said so is left for it to refuse by name. Nothing here knows
grammars or tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

Schema = Any  # a mapping or a boolean
Types = frozenset[str]

EVERY = frozenset("string number boolean null array object".split())  # an integer is a number
COMPARED_MAX = 100  # alternatives of a oneOf, each with each
STEPS_MAX = 500_000  # of all comparisons in a schema, about a second: references make a short one mean a lot
DEPTH_MAX = 40  # references followed to find out what an alternative is
NO_URI = re.compile(r"[^\w.~%#/?:@!$&'()*+,;=-]+", re.ASCII)  # what a reference has to spell as %XX
REMARKS = frozenset("title description default examples deprecated readOnly writeOnly".split())
OF_OBJECTS = frozenset("properties required additionalProperties patternProperties minProperties maxProperties".split())
VALUES = ("const", "enum", "default", "examples")  # values, not schemas
NAMED_PARTS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")  # by the user's names
# Those of the JSON Schema specification; by it any other `format` is a remark and constrains nothing.
FORMATS = frozenset(
    """date-time date time duration email idn-email hostname idn-hostname ipv4 ipv6 uri uri-reference iri
    iri-reference uuid uri-template json-pointer relative-json-pointer regex""".split()
)


def normalised(schema: Mapping[str, Any], *, strict: bool = True) -> tuple[dict[str, Any], list[str]]:
    """A schema of the same meaning, and the keys that it gave up; none of them when `strict`.

    Args:
        schema: as `json.loads` makes it.

    Raises:
        ValueError: its alternatives take too long to compare.
    """
    walk = _Walk(schema, strict)
    return walk.rewritten(schema), sorted(walk.lost)


class _Walk:
    """Rewrites the parts of one schema.

    Attributes:
        lost: the keys that were given up so far.
    """

    def __init__(self, root: Mapping[str, Any], strict: bool) -> None:
        self.lost: set[str] = set()
        self._root = root
        self._strict = strict
        self._n_steps = 0

    def _spend(self, n: int) -> None:
        self._n_steps += n
        if self._n_steps > STEPS_MAX:
            raise ValueError("the alternatives of oneOf take too long to compare")

    def rewritten(self, part: Any) -> Any:
        if isinstance(part, list):
            return [self.rewritten(one) for one in part]
        if not isinstance(part, dict):
            return part
        conditions: list[Schema] = []
        out = {key: value for key, value in part.items() if not self._said_otherwise(part, key, value, conditions)}
        for key, value in out.items():
            if key in NAMED_PARTS and isinstance(value, dict):
                out[key] = {name: self.rewritten(one) for name, one in value.items()}
            elif key == "$ref" and isinstance(value, str) and value.startswith("#"):
                out[key] = NO_URI.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), value)
            elif key not in VALUES:
                out[key] = self.rewritten(value)
        if conditions:
            out["allOf"] = [*out.get("allOf", []), *map(self.rewritten, conditions)]
        return out

    def _said_otherwise(self, part: Mapping[str, Any], key: str, value: Any, conditions: list[Schema]) -> bool:
        """Whether `key` may go, since `conditions` now say it or since it says nothing."""
        if key == "format":
            return isinstance(value, str) and value not in FORMATS
        if key == "oneOf" and isinstance(value, list):
            alternatives = self._exclusive(value) if len(value) <= COMPARED_MAX else None
            if alternatives is None and not self._strict:
                self.lost.add("oneOf")
                alternatives = value
            if alternatives is not None:
                conditions.append({"anyOf": alternatives})
            return alternatives is not None
        if key == "not":
            opposite = self._opposite(value)
            if opposite is not None:
                conditions.append(opposite)
            return opposite is not None
        if key in ("dependencies", "dependentRequired") and isinstance(value, dict):
            names = {name: needed for name, needed in value.items() if isinstance(needed, list)}
            if names.keys() == value.keys():
                conditions += [{"anyOf": [_without([name]), {"required": needed}]} for name, needed in names.items()]
                return True
        return False

    def _opposite(self, part: Any) -> Schema | None:
        """The schema of what `part` does not allow, where that is simple."""
        if not isinstance(part, dict) or len(part) != 1:
            return None
        (key, value), *_ = part.items()
        if key == "type":
            named = [value] if isinstance(value, str) else value
            if isinstance(named, list) and set(named) <= EVERY:
                return {"type": sorted(EVERY - set(named))}
        if key == "required" and isinstance(value, list):  # it says nothing of what is no object
            missing = [{"type": "object", **_without([name])} for name in value]
            return {"anyOf": missing} if missing else None
        if key in ("anyOf", "allOf") and isinstance(value, list):
            opposites = [self._opposite(one) for one in value]
            if None not in opposites:
                return {"allOf" if key == "anyOf" else "anyOf": opposites}
        return None

    def _exclusive(self, parts: list[Schema]) -> list[Schema] | None:
        """Alternatives that mean as anyOf what `parts` mean as oneOf; None where they are not known to exclude each
        other. A type that several leave quite open is of none: its values are of more than one."""
        if all(isinstance(part, dict) and part.keys() == {"required"} for part in parts):
            named = [part["required"] for part in parts]
            if all(isinstance(names, list) and len(names) == 1 for names in named):
                names = [name for (name,) in named]
                others = [[other for j, other in enumerate(names) if j != i] for i in range(len(names))]
                return [
                    {"type": "object", "required": [name], **_without(other)}
                    for name, other in zip(names, others, strict=True)
                ]
        targets = [self._target(part) for part in parts]
        targets = [{} if target is True else target for target in targets if target is not False]
        if not all(isinstance(target, dict) for target in targets):
            return None
        open_types: set[str] = set()
        for name in EVERY:
            having = [target for target in targets if name in self._types(target)]
            if all(self._apart(a, b, name) for a, b in combinations(having, 2)):
                continue
            if sum(_is_open(target, name) for target in having) < 2:
                return None
            open_types.add(name)
        if not open_types:
            return parts
        return [{"allOf": [part, {"type": sorted(EVERY - open_types)}]} for part in parts]

    def _apart(self, a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> bool:
        """Whether no value of this type can be of both alternatives."""
        if self._listed_apart(a, b):
            return True
        self._spend(len(a) + len(b) + len(a.get("required", ())) + len(b.get("required", ())))
        return name == "object" and (self._property_apart(a, b) or _lacks(a, b) or _lacks(b, a))

    def _property_apart(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Whether a property that both require is never the same."""
        ours, theirs = a.get("properties", {}), b.get("properties", {})
        shared = set(a.get("required", ())) & set(b.get("required", ())) & ours.keys() & theirs.keys()
        pairs = ((self._target(ours[name]), self._target(theirs[name])) for name in shared)
        return any(
            isinstance(x, dict)
            and isinstance(y, dict)
            and (self._listed_apart(x, y) or not self._types(x) & self._types(y))
            for x, y in pairs
        )

    def _listed_apart(self, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
        """Whether both list their values, and share none."""
        lists = [p for p in (a, b) if "const" in p or isinstance(p.get("enum"), list)]
        return len(lists) == 2 and self._keys(a).isdisjoint(self._keys(b))

    def _keys(self, part: Mapping[str, Any]) -> set[str]:
        keys = set()
        for value in _values(part):
            key = _key(value)
            self._spend(1 + len(key) // 32)
            keys.add(key)
        return keys

    def _target(self, part: Schema) -> Schema:
        """What a local reference leads to; a part that says more beside it stays as it is."""
        for _ in range(DEPTH_MAX):
            if not isinstance(part, dict) or not isinstance(ref := part.get("$ref"), str) or not ref.startswith("#"):
                return part
            if part.keys() - {"$ref", *REMARKS}:
                return part
            self._spend(1 + len(ref) // 8)
            part = _at(self._root, ref)
        return part

    def _types(self, part: Mapping[str, Any]) -> Types:
        """The types of the values that a part may allow."""
        named = part.get("type", sorted(EVERY))
        types = frozenset("number" if name == "integer" else name for name in _as_list(named)) & EVERY
        if "const" in part or isinstance(part.get("enum"), list):
            self._spend(1 + len(_values(part)) // 8)
            types &= frozenset(map(_type_of, _values(part)))
        return types


def _at(root: Any, ref: str) -> Schema:
    """The part that a local reference names, or True where there is none: llguidance says so."""
    target = root
    for name in ref.removeprefix("#").split("/")[1:]:
        name = _unquoted(name).replace("~1", "/").replace("~0", "~")
        if not isinstance(target, dict) or name not in target:
            return True
        target = target[name]
    return target


def _unquoted(name: str) -> str:
    parts = re.split("%([0-9A-Fa-f]{2})", name)
    return b"".join(bytes.fromhex(p) if i % 2 else p.encode() for i, p in enumerate(parts)).decode(errors="replace")


def _without(names: Iterable[str]) -> dict[str, Any]:
    return {"properties": dict.fromkeys(names, False)}


def _is_open(part: Mapping[str, Any], name: str) -> bool:
    """Whether a part, of this type, is known to allow every value: it only says things of objects."""
    return name != "object" and part.keys() <= OF_OBJECTS | REMARKS


def _lacks(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether `a` has no place for a property that `b` requires."""
    closed = a.get("additionalProperties") is False and not a.get("patternProperties")
    return closed and bool(set(b.get("required", ())) - a.get("properties", {}).keys())


def _values(part: Mapping[str, Any]) -> list[Any]:
    values: list[Any] = [part["const"]] if "const" in part else part["enum"]
    return values


_sorted_json = json.JSONEncoder(sort_keys=True).encode  # `json.dumps` makes one each time


def _key(value: Any) -> str:
    """The same for equal JSON values: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return _sorted_json(value)


def _as_list(named: Any) -> list[str]:
    return [named] if isinstance(named, str) else [name for name in named if isinstance(name, str)]


def _type_of(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "number", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")
