"""Grammars that would take for ever or end the process, each compiled and followed in a process that has limits.

Run as a script it goes through them all: `python -P tests/support/bombs.py MODEL.gguf`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from specgguf.errors import ConfigError
from specgguf.grammar.sources import json_grammar

CPU_S, MEMORY = 30, 8 * 2**30  # of a whole child: all of it takes seconds, and what would take for ever ends
CHAIN = 10_000
BOMBS: dict[str, Any] = {
    "nested optionals": "root ::= " + "(" * 40 + '"a"' + "?)*" * 40,
    "300 optional items": "root ::= " + '("a" | "b")? ' * 300,
    "the same as a pattern": {"type": "regex", "regex": "([ab])?" * 300},
    "repetitions of repetitions": {"type": "regex", "regex": "((a{0,900}){0,900}){0,900}"},
    "definitions that refer to two others each": json_grammar(
        {
            "$defs": {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(30)}
            | {"d30": {"type": "string"}},
            "$ref": "#/$defs/d0",
        }
    ),
    "the same as objects": json_grammar(
        {
            "$defs": {f"d{i}": {"properties": {n: {"$ref": f"#/$defs/d{i + 1}"} for n in "ab"}} for i in range(30)}
            | {"d30": {"type": "string"}},
            "$ref": "#/$defs/d0",
        }
    ),
    "counts with blanks": 'root ::= ("a"{ 0 , 1000000 }){ 0 , 1000000 }',
    "required names without ASCII letters": json_grammar(
        {"type": "object", "required": [f"é{i}" for i in range(9999)]}
    ),
    "a chain of rules": "\n".join(["root ::= r0", *(f"r{i} ::= r{i + 1}" for i in range(999)), 'r999 ::= "a"']),
    "a chain of Lark rules": {
        "type": "lark",
        "lark": "\n".join(["start: r0", *(f"r{i}: r{i + 1}" for i in range(CHAIN)), f'r{CHAIN}: "a"']),
    },
    "a chain of references": json_grammar(
        {
            "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(CHAIN // 2)} | {f"d{CHAIN // 2}": {}},
            "$ref": "#/$defs/d0",
        }
    ),
    "2,000 properties": json_grammar({"properties": {f"p{i}": {"type": "string"} for i in range(2000)}}),
    "left recursion": 'root ::= root root | root "a" | "b"',
    "counts with signs": 'root ::= ("a"{+0,+1000000}){+1,+1000000}',
    "the same as a pattern with signs": {"type": "regex", "regex": "((a{+0,+900}){+1,+900}){+1,+900}"},
    "the same in Lark": {"type": "lark", "lark": 'start: (("a"{+0,+9000}){+1,+9000}){+1,+9000}'},
}


def main(path: str) -> None:
    """Compile each, and follow it for a few tokens where it is not refused."""
    import numpy as np

    from specgguf.grammar.cursor import compile_grammar
    from specgguf.native.weights import Weights

    weights = Weights(path)
    for name, grammar in BOMBS.items():
        print(name, flush=True)
        became = "followed"
        try:
            cursor = compile_grammar(grammar, weights)
            ids: list[int] = []
            for _ in range(20):
                legal = np.flatnonzero(np.unpackbits(cursor.mask(ids), bitorder="little")).tolist()
                if not legal or legal[0] in weights.eog:
                    break
                ids.append(legal[0])
        except ConfigError as error:
            became = f"refused: {error}"
        print(f"{name}: {became}", flush=True)


def limited(command: Sequence[str], *, cpu_s: int = CPU_S, memory: int = MEMORY) -> list[str]:
    """The command that runs `command`, and that its system ends once it has taken so many seconds of processor time; it
    has so many bytes of memory, where the system knows such a limit."""
    limits = f"ulimit -t {cpu_s}; ulimit -v {memory // 1024} 2>/dev/null || true"
    return ["sh", "-c", f'{limits}; exec "$@"', "sh", *command]


if __name__ == "__main__":
    main(sys.argv[1])
