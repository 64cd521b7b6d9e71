"""What each kind of rollback costs: verifying 5 tokens with and without dropping 4 of them again.

Random-weight models of one size with different memories, written for the purpose (`gguf` is needed): attention
(plain), hybrid (native rollback, and checkpoints), recurrent (checkpoints). Saved as JSON: scripts/bench/run rollback
[--save FILE]. Ratios matter, milliseconds are this machine's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from support import tiny

from specgguf.native.context import Model
from specgguf.native.weights import Weights

SHAPE = tiny.Shape(n_embd=256, n_ff=1024, n_head=4, n_head_kv=4, n_layer=6)
WIDTH, DROPPED, REPEATS = 5, 4, 60


def main() -> int:
    """Measure, print a table, save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path)
    save: Path | None = parser.parse_args().save
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, write, n_rs_seq in (
            ("attention", tiny.write_llama, 0),
            ("hybrid", tiny.write_lfm2, DROPPED),
            ("hybrid", tiny.write_lfm2, 0),
            ("recurrent", tiny.write_mamba, 0),
        ):
            path = write(Path(folder) / f"{name}.gguf", tiny.letters(64), shape=SHAPE)
            rows.append({"memory": name} | measure(path, n_rs_seq))
            print("{memory:10} {rollback:11} kept {kept_ms:6.2f} ms   dropped {dropped_ms:6.2f} ms".format(**rows[-1]))
    if save is not None:
        about = {"date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}
        about |= {"machine": platform.platform(), "n_cores": str(os.cpu_count())}
        save.write_text(json.dumps(about | {"width": WIDTH, "dropped": DROPPED, "rows": rows}, indent=1) + "\n")
    return 0


def measure(path: Path, n_rs_seq: int) -> dict[str, Any]:
    """Median milliseconds of a round that keeps its 5 tokens, and of one that drops 4 and reads on from there."""
    weights = Weights(path, {"n_threads": 1, "n_threads_batch": 1})
    model = Model(weights, n_ctx=4096, n_rs_seq=n_rs_seq)
    model.extend([1] * 64, 1)
    samples: dict[bool, list[float]] = {True: [], False: []}
    pending: list[int] = [3]
    for i in range(2 * REPEATS):
        drops = bool(i % 2)
        started = time.perf_counter()
        if len(pending) > 8:
            model.extend(pending[:-1], 0)
            pending = pending[-1:]
        model.mark(len(pending) + DROPPED - 1)
        n_before = len(model.tokens) + len(pending)
        model.extend([*pending, *[4] * DROPPED], WIDTH)
        kept = model.roll_back(n_before) if drops else len(model.tokens)
        pending = [*[5] * (n_before - kept if drops else 0), 3]
        samples[drops].append(1e3 * (time.perf_counter() - started))
    rollback = model.rollback.name
    model.close()
    weights.close()
    return {
        "rollback": rollback,
        "kept_ms": statistics.median(samples[False]),
        "dropped_ms": statistics.median(samples[True]),
    }
