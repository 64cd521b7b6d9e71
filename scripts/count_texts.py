"""Counts what texts are made of: the table by which `specgguf models slim` ranks a draft's tokens.

    python scripts/count_texts.py DJANGO LLAMA_CPP SPELLCHECKER SYMSPELL JIEBA LANGDETECT \\
        -o specgguf/fit/slimming/text_counts.txt.gz

reads Python's own standard library and its documentation (PSF license), and unpacked archives from the package index,
all of which may be used so. Texts: Django's (BSD-3-Clause: Python, JavaScript, HTML, English documentation,
translations into a hundred languages) and llama-cpp-python's with llama.cpp inside (MIT: C++, C, CUDA, Python,
TypeScript, shell and Markdown). Lists of words that others counted, since programmers' texts are of programs: those of
pyspellchecker (MIT: subtitles of films in twelve languages), symspellpy (MIT: English books), jieba (MIT: Chinese) and
langdetect (Apache-2.0: encyclopedias in fifty languages, up to three characters at a time). Kept are words, blanks and
signs, cut as byte-level tokenizers cut a text, each with its frequency; no text can be read from it. Each kind of text
has its share, however much of it there is.
"""

from __future__ import annotations

import argparse
import ast
import gzip
import json
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

# As the tokenizers after GPT-2's cut: contractions, words with the sign or blank before them, digits, signs, line
# ends, blanks. Scripts without blanks are cut into a few characters.
PIECE = re.compile(
    r"'(?:[sdmt]|ll|ve|re)|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{1,4}|(?:[^\r\n\w]|_)?[^\W\d_]+|\d"
    r"| ?(?:[^\s\w]|_)+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
KINDS = {
    ".py": "python", ".pyi": "python", ".c": "c", ".h": "c", ".cpp": "c", ".hpp": "c", ".cu": "c", ".cuh": "c",
    ".js": "web", ".ts": "web", ".svelte": "web", ".html": "web", ".css": "web", ".json": "web", ".sh": "shell",
    ".cmake": "shell", ".yml": "shell", ".txt": "prose", ".md": "prose", ".rst": "prose",
}  # fmt: skip
SHARES = {
    "python": 3, "c": 2, "web": 2, "shell": 0.5, "prose": 6, "languages": 1, "english words": 12, "words": 1,
    "characters": 0.2,
}  # fmt: skip
# How a word that was counted in small letters stands in texts: after a blank, as a sentence begins, and in the names
# and keys of programs. German writes every noun with a capital.
STANDS = {" {}": 0.6, " {c}": 0.1, "{c}": 0.1, "{}": 0.1, "_{}": 0.03, ".{}": 0.03, "({}": 0.04}
STANDS_IN_GERMAN = {" {}": 0.6, " {c}": 0.4}
SKIPPED = {".git", "site-packages", "__pycache__"}
N_PIECES, SIZE_MAX = 110_000, 2_000_000
LIST_TOTAL = 100_000_000  # of a list of words, whatever it was counted from
TOTAL = 10_000_000  # what the frequencies sum up to, about


def texts(folders: list[Path]) -> Iterator[tuple[str, str]]:
    """(kind, text) of every file that is read, and of every translation."""
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if (
                not path.is_file()
                or path.stat().st_size > SIZE_MAX
                or "vocab" in path.name
                or SKIPPED & set(path.parts)
            ):
                continue
            if path.suffix == ".po":
                yield "languages", "\n".join(translations(path.read_text(encoding="utf-8", errors="replace")))
            elif path.suffix in KINDS:
                text = path.read_text(encoding="utf-8", errors="replace")
                yield KINDS[path.suffix], text
                if path.suffix == ".py":
                    yield "prose", "\n".join(docstrings(text))


def word_lists(folders: list[Path]) -> Iterator[tuple[str, Counter[str]]]:
    """(kind, counts of pieces) of every list of words with counts."""
    for folder in folders:
        for path in sorted(folder.rglob("spellchecker/resources/*.json.gz")):
            language = path.name.partition(".")[0]
            counts = json.loads(gzip.decompress(path.read_bytes()))
            stands = STANDS_IN_GERMAN if language == "de" else STANDS
            yield "english words" if language == "en" else "words", _standing(_shares(counts), stands)
        for path in sorted(folder.rglob("frequency_dictionary_en_*.txt")):
            lines = (line.split() for line in path.read_text(encoding="utf-8-sig").splitlines())
            yield "english words", _standing(_shares({word: int(n) for word, n in lines}), STANDS)
        for path in sorted(folder.rglob("jieba/dict.txt")):
            words = (line.split() for line in path.read_text(encoding="utf-8").splitlines())
            yield "words", _shares({word: int(n) for word, n, *_ in words if len(word) <= 4})
        for path in sorted(folder.rglob("langdetect/profiles/*")):
            if not path.suffix:
                counts = json.loads(path.read_text(encoding="utf-8"))["freq"]
                yield "characters", _shares({text: n for text, n in counts.items() if text.strip() == text})


def _shares(counts: Mapping[str, float]) -> Counter[str]:
    """The same, as if each list were as long as another."""
    n = sum(counts.values())
    return Counter({word: round(LIST_TOTAL * count / n) for word, count in counts.items()})


def _standing(counts: Mapping[str, int], stands: Mapping[str, float]) -> Counter[str]:
    found = Counter[str]()
    for word, n in counts.items():
        for form, share in stands.items():
            found[form.format(word, c=word.capitalize())] += round(n * share)
    return found


def translations(text: str) -> Iterator[str]:
    """The translated sentences of a gettext catalogue."""
    for block in re.findall(r'^msgstr(?:\[\d\])? ((?:".*"\n)+)', text, re.MULTILINE):
        yield "".join(
            json.loads(f'"{line}"', strict=False) for line in re.findall(r'"(.*)"', block) if "\\x" not in line
        )


def docstrings(text: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node) or ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    counts = {kind: Counter[str]() for kind in SHARES}
    for kind, text in texts([Path(sysconfig.get_path("stdlib")), *options.folders]):
        counts[kind].update(PIECE.findall(text))
    for kind, pieces in word_lists(options.folders):
        counts[kind].update(pieces)
    total: dict[str, float] = defaultdict(float)
    for kind, found in counts.items():
        n = sum(found.values())
        print(f"{kind}: {n:,} pieces, {len(found):,} different", file=sys.stderr)
        for piece, count in found.items():
            total[piece] += TOTAL * SHARES[kind] / sum(SHARES.values()) * count / max(n, 1)
    kept = [
        (piece, round(count))
        for piece, count in sorted(total.items(), key=lambda item: -item[1])[:N_PIECES]
        if len(piece) <= 64 and count >= 1
    ]
    lines = "".join(f"{count}\t{json.dumps(piece, ensure_ascii=False)}\n" for piece, count in kept)
    options.output.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    print(f"{len(kept):,} pieces, {options.output.stat().st_size:,} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
