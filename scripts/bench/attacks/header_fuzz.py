"""Damaged GGUF headers, each used in a child process: a native death, a hang or a raw error is a fault.

scripts/bench/run header-fuzz FILE.gguf … [--n 3000] [--seconds S] [--save FILE]: so many damaged copies of each file,
which takes turns with the others. Only the header of a file is copied: its tensors are a hole, all zeros, so that large
files take no more room than small ones. The header that led to a fault is kept beside the saved result.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from specgguf.models import header

BATCH = 25  # files for one child, which takes a second to start
LIMIT_S = 300.0  # for all of them, on a busy machine
CHILD = """
import sys
from specgguf import SpeculativeLlama, SpecggufError
for path in sys.stdin.read().split("\\n"):
    print("begin", path, flush=True)
    what = "served"
    try:
        with SpeculativeLlama(path, n_ctx=64, n_threads=1, n_threads_batch=1) as llm:
            llm.create_completion("a b", max_tokens=2)
            llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=2)
    except SpecggufError as error:
        what = type(error).__name__
    print("end", what, flush=True)
"""


def main() -> int:
    """Damage, load, print what was found, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--n", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    found: collections.Counter[str] = collections.Counter()
    tried: collections.Counter[str] = collections.Counter()
    faults: list[dict[str, str]] = []
    heads = {file: _head(file) for file in options.files}
    for first in range(0, options.n, BATCH):
        for file, head in heads.items():
            if time.monotonic() > until:
                break
            with tempfile.TemporaryDirectory() as folder:
                paths = [Path(folder) / f"{file.stem}-{i}.gguf" for i in range(first, min(first + BATCH, options.n))]
                for path in paths:
                    source = random.Random(f"{options.seed}/{path.name}")
                    _write(path, damaged(head, source), file.stat().st_size)
                tried[file.name] += len(paths)
                for fault in run(paths, found):
                    faults.append(fault)
                    print(fault, flush=True)
                    if options.save is not None:
                        with (Path(folder) / fault["file"]).open("rb") as kept:
                            options.save.with_name(fault["file"]).write_bytes(kept.read(len(head)))
    result = {
        "n": tried.total(),
        "seed": options.seed,
        "tried": tried,
        "found": dict(found.most_common()),
        "faults": faults,
    }
    print(json.dumps(result, indent=1))
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(faults))


def _head(file: Path) -> bytes:
    with file.open("rb") as opened:
        return opened.read(header.read(file).data_start)


def _write(path: Path, head: bytearray, size: int) -> None:
    with path.open("wb") as opened:
        opened.write(head)
        opened.truncate(size)


def damaged(head: bytes, source: random.Random) -> bytearray:
    """`head` with one to four bytes, or one whole number, changed; mostly near its beginning or end, where the settings
    and the tensors are listed, and seldom among the many texts of a vocabulary."""
    made = bytearray(head)
    near = min(len(made), 8192)

    def place(last: int) -> int:
        where = source.random()
        if where < 0.4:
            return source.randrange(8, min(near, last))
        return source.randrange(max(8, last - near), last) if where < 0.8 else source.randrange(8, last)

    if source.random() < 0.5:
        for _ in range(source.randint(1, 4)):
            made[place(len(made))] = source.randrange(256)
    else:
        at = place(len(made) - 4)
        made[at : at + 4] = source.choice((0, 1, 26, 2**31, 2**32 - 1)).to_bytes(4, "little")
    return made


def run(paths: list[Path], found: collections.Counter[str]) -> list[dict[str, Any]]:
    """What went wrong with `paths`; a child that dies is started again behind the file that it died over."""
    faults: list[dict[str, Any]] = []
    left = [str(path) for path in paths]
    while left:
        try:
            done = subprocess.run(
                [sys.executable, "-P", "-c", CHILD],
                input="\n".join(left), capture_output=True, text=True, timeout=LIMIT_S, errors="replace",
            )  # fmt: skip
            said, code, why = done.stdout, done.returncode, done.stderr.strip().splitlines()[-1:]
        except subprocess.TimeoutExpired as late:
            said, code, why = (late.stdout or b"").decode(), -1, ["no end"]
        lines = said.splitlines()
        found.update(line.removeprefix("end ") for line in lines if line.startswith("end "))
        begun = [line.removeprefix("begin ") for line in lines if line.startswith("begin ")]
        if code == 0:
            return faults
        if begun:
            found["fault"] += 1
            faults.append({"file": Path(begun[-1]).name, "exit": code, "said": " ".join(why)[:200]})
        left = left[max(1, len(begun)) :]
    return faults
