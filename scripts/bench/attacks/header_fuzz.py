"""Damaged GGUF headers, each used in a child process: a native death, a hang or a raw error is a fault.

scripts/bench/run header-fuzz FILE.gguf … [--n 3000] [--seconds S] [--save FILE]: so many damaged headers of each file,
which takes turns with the others. Each file is copied once, its tensors a hole that reads as zeros; a damage is a few
bytes of that copy, put back afterwards, and a child lives until one kills it. With --seconds it ends then; the same
command goes on from there, until the saved file has them all.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.attacks import saved
from specgguf.models import header

LIMIT_S = 120.0  # for one header, on a busy machine
CHILD_MAX = 500  # headers for one child: what llama.cpp keeps of failed loads ends with it
CHILD = """
import os, sys
out = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a dying library prints is no answer
from specgguf import SpeculativeLlama, SpecggufError
for line in sys.stdin:
    what = "served"
    try:
        with SpeculativeLlama(line.strip(), n_ctx=64, n_threads=1, n_threads_batch=1) as llm:
            llm.create_completion("a b", max_tokens=2)
            llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=2)
    except SpecggufError as error:
        what = type(error).__name__
    print(what, file=out, flush=True)
"""
Change = tuple[int, bytes]  # from this byte of the file


def main() -> int:
    """Damage, load, print what was found, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--n", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--save", type=Path)
    options = parser.parse_args()
    started = time.monotonic()
    until = started + options.seconds
    before = saved.load(options.save, lambda found: _is_ours(found, options.seed))
    tried, found = (collections.Counter[str](before.get(name, {})) for name in ("tried", "found"))
    faults: list[dict[str, Any]] = before.get("faults", [])
    with tempfile.TemporaryDirectory() as folder, Child(Path(folder) / "said") as child:
        copies = [Copy(file, Path(folder)) for file in options.files]
        for _ in range(options.n):
            for copy in copies:
                if tried[copy.file.name] >= options.n or time.monotonic() > until:
                    continue
                i = tried[copy.file.name]
                changes = copy.damages(random.Random(f"{options.seed}/{copy.file.name}/{i}"))
                with copy.changed(changes):
                    what, why = child.use(copy.path)
                tried[copy.file.name] += 1
                found[what] += 1
                if why:
                    shown = [[at, data.hex()] for at, data in changes]
                    faults.append({"file": copy.file.name, "i": i, "changed": shown, "what": why})
                    print(faults[-1], flush=True)
    result = {
        "n": tried.total(),
        "seed": options.seed,
        "tried": dict(tried),
        "found": dict(found.most_common()),
        "seconds": before.get("seconds", 0) + round(time.monotonic() - started),
        "faults": faults,
    }
    print(json.dumps(result, indent=1))
    if options.save is not None:
        options.save.write_text(json.dumps(result, indent=1) + "\n")
    return int(bool(faults))


def _is_ours(found: dict[str, Any], seed: int) -> bool:
    numbers = (found["seconds"], *found["tried"].values(), *found["found"].values())
    return bool(found["seed"] == seed and all(n >= 0 for n in numbers))


class Copy:
    """A file whose header can be changed and put back; its tensors are all zeros and take no space."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.path = file, folder / file.name
        with file.open("rb") as opened:
            self._head = opened.read(header.read(file).data_start)
        with self.path.open("wb") as made:
            made.write(self._head)
            made.truncate(file.stat().st_size)

    def damages(self, source: random.Random) -> list[Change]:
        """One to four bytes, or one whole number; mostly near the header's beginning or end, where the settings and the
        tensors are listed, and seldom among the many texts of a vocabulary."""
        size = len(self._head)
        near = min(size, 8192)

        def place(last: int) -> int:
            where = source.random()
            if where < 0.4:
                return source.randrange(8, min(near, last))
            return source.randrange(max(8, last - near), last) if where < 0.8 else source.randrange(8, last)

        if source.random() < 0.5:
            return [(place(size), source.randbytes(1)) for _ in range(source.randint(1, 4))]
        return [(place(size - 4), source.choice((0, 1, 26, 2**31, 2**32 - 1)).to_bytes(4, "little"))]

    def changed(self, changes: list[Change]) -> Changed:
        """The copy with `changes`, for a block."""
        return Changed(self.path, changes, self._head)


class Changed:
    """A copy with some bytes changed, until the block ends."""

    def __init__(self, path: Path, changes: list[Change], head: bytes) -> None:
        self._path, self._changes, self._head = path, changes, head

    def __enter__(self) -> None:
        self._write(self._changes)

    def __exit__(self, *_: object) -> None:
        self._write([(at, self._head[at : at + len(data)]) for at, data in self._changes])

    def _write(self, changes: list[Change]) -> None:
        with self._path.open("r+b") as file:
            for at, data in changes:
                file.seek(at)
                file.write(data)


class Child:
    """The process that uses files; a new one where it has died, hung, or seen many."""

    def __init__(self, said: Path) -> None:
        self._said = said  # what it wrote to stderr
        self._process: subprocess.Popen[bytes] | None = None
        self._n = 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def use(self, path: Path) -> tuple[str, str]:
        """What came of loading and using `path`, and, where that is a fault, what happened."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{path}\n".encode())
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], LIMIT_S)
        line = process.stdout.readline() if ready else b""
        if line:
            return line.decode().strip(), ""
        why = f"exit {process.wait()}" if ready else f"no end within {LIMIT_S:g} s"
        return "fault", f"{why}: {self._last_words()}"

    def _running(self) -> subprocess.Popen[bytes]:
        self._n += 1
        if self._process is None or self._process.poll() is not None or self._n > CHILD_MAX:
            self._end()
            self._n = 1
            with self._said.open("wb") as said:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said
                )
        return self._process

    def _last_words(self) -> str:
        self._end()
        lines = self._said.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        return " ".join(lines[-1:])[:200]

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None


if __name__ == "__main__":
    sys.exit(main())
