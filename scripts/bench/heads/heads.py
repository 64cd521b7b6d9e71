"""What drafting with a model's own prediction heads costs, and how often it must be right to pay.

  scripts/bench/run heads              two models' shapes, random weights; writes docs/results/heads.json
  scripts/bench/run heads --quick      does the script work? Files of a few megabytes; nothing is saved

No weights of a real head are needed, and none are run: random ones cost as much, and say nothing about how often a
head is right. Files of at most 2 GB are written one after the other, and removed. Rounds of 1 to 4 drafted tokens, all
of them accepted, and plain tokens take turns; the acceptance at which a round breaks even follows from both. Python's
share of a round is not in it. Run it on a quiet machine; `scripts/bench/run page` then writes the table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.heads import shapes
from bench.lib.cells import RESULTS, commit, say
from specgguf.bench import results
from specgguf.config import DRAFT_MAX_LIMIT
from specgguf.fit.predict import needed_acceptance
from specgguf.loading import physical_cores
from specgguf.native.context import Model
from specgguf.native.heads.contexts import LOAD, PredictionHeads
from specgguf.native.weights import Weights

LENGTHS = (1, 2, 3, 4)
N_CTX, DEPTH, REPEATS, WARM = 1024, 128, 15, 2
FIRST_ID = 100

Json = dict[str, Any]


class Rounds:
    """A target and its head that generate a text whose every drafted token is accepted; each step is timed."""

    def __init__(self, path: Path, n_threads: int) -> None:
        threads = {"n_threads": n_threads, "n_threads_batch": n_threads}
        self.weights = Weights(str(path), threads, native_params=LOAD)
        self.target = Model(self.weights, n_ctx=N_CTX, n_outputs_max=DRAFT_MAX_LIMIT + 1, n_rs_seq=max(LENGTHS) + 1)
        self.heads = PredictionHeads(self.target.context)
        self.head = self.heads.follow(self.target, 0)[0]
        self.committed = [FIRST_ID + i for i in range(DEPTH)]
        self.target.extend(self.committed, 1)
        self._commit(1)

    def _commit(self, n: int) -> None:
        self.committed += [FIRST_ID + len(self.committed) + i for i in range(n)]

    def plain(self) -> float:
        """Seconds of a plain token."""
        started = time.perf_counter()
        self.target.extend(self.committed[-1:], 1)
        seconds = time.perf_counter() - started
        self._commit(1)
        return seconds

    def drafted(self, n: int) -> tuple[float, float]:
        """Seconds of drafting n tokens, and of the pass that verifies them. The head first reads what was accepted
        since it drafted last, with the target's own states."""
        started = time.perf_counter()
        self.head.reuse(self.committed[:-1])
        drafts = [FIRST_ID + i for i in range(n)]
        self.head.extend(self.committed[len(self.head.tokens) :], 1)
        for token in drafts[:-1]:
            self.head.extend([token], 1)
        drafted = time.perf_counter()
        self.target.extend([self.committed[-1], *drafts], n + 1)
        verified = time.perf_counter()
        self.committed += drafts
        self._commit(1)
        return drafted - started, verified - drafted

    def close(self) -> None:
        for part in (self.heads, self.target, self.weights):
            part.close()


def measure(path: Path, n_threads: int, repeats: int) -> Json:
    """Every sample, in seconds, by draft length. Each step is taken twice: at first the head has more to read."""
    rounds = Rounds(path, n_threads)
    plain: list[float] = []
    draft: dict[int, list[float]] = {n: [] for n in LENGTHS}
    verify: dict[int, list[float]] = {n: [] for n in LENGTHS}
    try:
        for _ in range(WARM + repeats):
            plain.append([rounds.plain() for _ in range(2)][-1])
            for n in LENGTHS:
                drafted, verified = [rounds.drafted(n) for _ in range(2)][-1]
                draft[n].append(drafted)
                verify[n].append(verified)
    finally:
        rounds.close()
    return {
        "plain_s": plain[WARM:],
        "draft_s": {n: s[WARM:] for n, s in draft.items()},
        "verify_s": {n: s[WARM:] for n, s in verify.items()},
    }


def costs(row: Mapping[str, Any], n: int) -> tuple[float, float]:
    """Drafting n tokens, and verifying them, in plain tokens' time: medians of ratios within a repeat."""
    plain = row["plain_s"]
    both = (row[name].get(n, row[name].get(str(n))) for name in ("draft_s", "verify_s"))
    draft, verify = (statistics.median(s / p for s, p in zip(own, plain, strict=True)) for own in both)
    return draft, verify


def break_even(row: Mapping[str, Any], n: int) -> float | None:
    """The acceptance at which rounds of n drafted tokens are as fast as plain decoding; None: with none."""
    return needed_acceptance(sum(costs(row, n)), n)


def cells(row: Mapping[str, Any]) -> list[str]:
    """A row of the page's table."""
    found = [row["of"], row["kind"], f"{1e3 * statistics.median(row['plain_s']):.1f}"]
    for n in LENGTHS:
        draft, verify = costs(row, n)
        needed = break_even(row, n)
        found.append(f"{draft:.2f} + {verify:.2f}: " + ("never" if needed is None else f"**{100 * needed:.0f} %**"))
    return found


HEADER = ["shape", "weights", "a plain token, ms", *(f"K = {n}" for n in LENGTHS)]


def main() -> int:
    """Write, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n-threads", type=int, default=physical_cores(), metavar="N", help="[%(default)s]")
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N", help="[%(default)s]")
    parser.add_argument("--only", choices=sorted(shapes.SHAPES))
    parser.add_argument("--quick", action="store_true", help="small files, two repeats, nothing saved")
    args = parser.parse_args()
    rows = []
    for name, shape in shapes.SHAPES.items():
        if args.only not in (None, name):
            continue
        for kind in shape.kinds[-1:] if args.quick else shape.kinds:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "heads.gguf"
                n_bytes = shape.write(path, kind, shape.tiny if args.quick else shape.shape)
                row = measure(path, args.n_threads, 2 if args.quick else args.repeats)
            rows.append({"name": name, "of": shape.of, "kind": kind, "bytes": n_bytes, **row})
            say(", ".join(cells(rows[-1])))
    if not args.quick and args.only is None:
        about = {"n_threads": args.n_threads, "n_ctx": N_CTX, "depth": DEPTH, "repeats": args.repeats}
        head = results.describe({}, commit=commit(), settings=about)
        text = json.dumps({**head, "rows": _rounded(rows)}, indent=1)
        (RESULTS / "heads.json").write_text(text + "\n", encoding="utf-8")
        say("saved docs/results/heads.json")
    return 0


def _rounded(value: Any) -> Any:
    """Microseconds are enough."""
    if isinstance(value, dict):
        return {key: _rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rounded(one) for one in value]
    return round(value, 6) if isinstance(value, float) else value


if __name__ == "__main__":
    raise SystemExit(main())
