"""Counts what texts are made of: the table by which `specgguf models slim` ranks a draft's tokens.

    python scripts/count_texts.py DJANGO LLAMA_CPP -o specgguf/fit/text_counts.txt.gz

reads three bodies of text, all of which may be used so: Python's own standard library and its documentation (PSF
license), and two unpacked source archives: Django's (BSD-3-Clause: Python, JavaScript, HTML, English documentation,
translations into a hundred languages) and llama-cpp-python's with llama.cpp inside (MIT: C++, C, CUDA, Python,
TypeScript, shell and Markdown). Kept are words, blanks and signs, cut as byte-level tokenizers cut a text, each with
its frequency; no text can be read from it. Each kind of text has its share, however much of it there is.
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
from collections.abc import Iterator
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
SHARES = {"python": 3, "c": 2, "web": 2, "shell": 0.5, "prose": 6, "languages": 3}
SKIPPED = {".git", "site-packages", "__pycache__"}
N_PIECES, SIZE_MAX = 80_000, 2_000_000
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
