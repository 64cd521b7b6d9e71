"""One name for one thing: words that were given up are in no name, message or docstring of the program.

A developer of speculative decoding who searches for the field's term must land in the right file; these are the words
that once stood in its place. Names are public ones, of modules too; texts are docstrings and string literals that a
person may read (more than one word).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(p for part in ("specgguf", "cli", "presets") for p in (ROOT / part).rglob("*.py"))

# In names, between underscores or capitals: the word, and what is said instead.
IN_NAMES = {
    "law": "distribution, probs",
    "laws": "distributions",
    "rest": "off",
    "resting": "off, plain",
    "offer": "candidate",
    "offers": "candidates",
    "room": "n_draft_max, ChatSession",
    "settle": "roll_back, synchronise",
    "owed": "pending",
    "way": "rollback",
    "ways": "rollbacks",
    "width": "batch size, n_tokens",
    "widths": "batch sizes",
    "price": "cost",
    "prices": "costs",
    "dear": "cost",
    "hinted": "target_confidence",
    "believed": "target_confidence",
    "adopt": "target_confidence",
    "synced": "draft_prefill",
    "sync": "draft_prefill",
    "verdict": "VerifyResult, Recommendation",
    "cutter": "incremental detokenizer",
    "dims": "hparams",
    "peeked": "RemoteHeader",
    "peek": "read",
    "hollow": "sparse stub",
    "wishes": "stop flags",
    "dismiss": "stop",
    "helped": "normalised",
    "unenforced": "unsupported",
    "insist": "retry",
    "keeper": "autosave",
    "talk": "conversation",
    "ink": "style",
    "aside": "unanswered",
    "lookup": "ngram",
    "lookups": "ngrams",
    "rewind": "rollback",
    "rewinding": "rollback",
    "notices": "warnings",
    "licence": "license",
    "native_s": "decode_s",
    "k_trace": "draft_lengths",
    "go_on": "keep_drafting",
    "sit_out": "back_off",
}

# In texts: a pattern, and what is said instead.
IN_TEXTS = {
    r"laws?": "distribution",
    r"rests|rested|resting": "drafting is off",
    r"(?:a|one|every|each|no|of) rest\b(?! of)": "drafting is off",
    r"offers?|offered": "candidate, n-gram match",
    r"owed|owes": "pending tokens",
    r"widths?": "batch size",
    r"prices?|priced|dear|dearer": "cost",
    r"hinted": "target confidence",
    r"verdicts?": "result, recommendation",
    r"lookups?": "n-gram",
    r"rewinds?|rewinding|rewound": "rollback",
    r"licences?": "license",
    r"(?:catch|catches|catching|caught) up": "draft prefill",
    r"(?:sit|sits|sitting|sat) out": "back-off",
    r"(?:wide|wider|narrow|one|single|verification|next|same|every|each|plain) pass(?:es)?": "forward pass",
    r"tokens per pass": "tokens per forward pass",
    r"native_s|k_trace|rest_reason|notices": "decode_s, draft_lengths, off_reason, warnings",
}

# A word that has another, plain meaning there; each with its reason.
ALLOWED = {
    "cli": {"width": "columns of a terminal"},
    "specgguf/models": {"width": "of a tensor", "dims": "dimensions of a tensor, GGUF's word"},
}

# Words that are still to be mended, by package or file: this list only shrinks.
LEFT_OVER = {
    "specgguf/control": "plain pass",
}


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """Docstrings, and string literals of more than one word, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def names(path: Path) -> Iterator[tuple[int, str]]:
    """Public names: the module's, functions, classes, their methods and parameters, fields and constants."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield 1, path.stem
    yield from public_names(tree)


def public_names(node: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    for child in node.body:
        if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
            yield child.lineno, child.target.id
        elif isinstance(child, ast.Assign):
            yield from ((child.lineno, target.id) for target in child.targets if isinstance(target, ast.Name))
        elif isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield child.lineno, child.name
            yield from public_names(child)
        elif isinstance(child, ast.FunctionDef) and (not child.name.startswith("_") or child.name == "__init__"):
            yield child.lineno, child.name
            arguments = (*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs)
            yield from ((argument.lineno, argument.arg) for argument in arguments)


def parts_of(name: str) -> set[str]:
    """The words of an identifier, and the whole."""
    return {name.strip("_"), *(word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name))}


def refused(path: Path) -> Iterator[tuple[str, str]]:
    """Every refused word of a file: the word, and where it stands with what is said instead."""
    for line, name in names(path):
        for word in sorted(parts_of(name) & set(IN_NAMES)):
            yield word, f"{path.name}:{line}: the name {name} has '{word}': say {IN_NAMES[word]}"
    for line, text in texts(path):
        for pattern, instead in IN_TEXTS.items():
            for match in re.finditer(rf"\b(?:{pattern})\b", text, re.IGNORECASE):
                at = line + text[: match.start()].count("\n")
                yield match.group().lower(), f"{path.name}:{at}: '{match.group()}': say {instead}"


def exceptions() -> dict[str, set[str]]:
    """The words that are allowed by package or file, by reason or for the time being."""
    found = {place: set(words) for place, words in ALLOWED.items()}
    for place, words in LEFT_OVER.items():
        found.setdefault(place, set()).update(words.split(", "))
    return found


def is_in(path: Path, place: str) -> bool:
    """Whether a file is `place`, or in that folder."""
    return f"{path.relative_to(ROOT).as_posix()}/".startswith(f"{place}/")


def allowed_in(path: Path) -> set[str]:
    """The words that are allowed in a file."""
    return {word for place, words in exceptions().items() if is_in(path, place) for word in words}


def unneeded(place: str, words: set[str]) -> set[str]:
    """Those of the words allowed in `place` that no file of it has."""
    return words - {word for path in SOURCES if is_in(path, place) for word, _ in refused(path)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.relative_to(ROOT).with_suffix("").as_posix())
def test_a_file_has_no_refused_word(path: Path) -> None:
    found = [place for word, place in refused(path) if word not in allowed_in(path)]
    assert not found, "\n".join(["", *found])


@pytest.mark.parametrize("place", exceptions())
def test_what_is_allowed_is_still_needed(place: str) -> None:
    assert unneeded(place, exceptions()[place]) == set()
    assert unneeded(place, {"verdict"}) == {"verdict"}, "one that is not would be found"


def test_a_refused_word_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "room.py"
    path.write_text(
        '"""Here drafting rests, and the law is kept."""\n'
        "class Verdict:\n    n_owed: int\n    def go_on(self, width): pass\n"
        "def _private(law): return 'a lookup' if law else 'law'\n"
    )
    assert {word for word, _ in refused(path)} == {
        "room", "rests", "law", "verdict", "owed", "go_on", "width", "lookup",
    }  # fmt: skip
