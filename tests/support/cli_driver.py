"""Runs the real program over a scripted engine, in a process of its own: `python cli_driver.py SCENE ARGS…`.

Only tests use it; nothing of the shipped program knows about it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from specgguf.cli import main, open_pair
from specgguf.cli.pairing import ChosenPair
from specgguf.cli.settings import Settings
from specgguf.cli.terminal import live
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import Cancelled
from support.fake_engine import FAIL, GATE, HANG, FakeEngine, FakeGeneration, loaded, pieces

STORY = pieces("Once upon a time there was a fox .", drafted="upon a time")

SCENES: dict[str, Callable[[], FakeEngine]] = {
    "plain": lambda: FakeEngine([pieces("The quick brown fox jumps.", drafted="quick brown")]),
    "slow": lambda: FakeEngine([[*STORY[:4], HANG, *STORY[4:]], pieces("Second answer.")]),
    "gate": lambda: FakeEngine([[*STORY[:4], GATE, *STORY[4:]], pieces("Second answer.")]),
    "prefill": lambda: FakeEngine([STORY, pieces("Second answer.")], hang_in_prefill=0),
    "again": lambda: FakeEngine([pieces("First answer."), pieces("Second.")], hang_in_prefill=1),
    "native": lambda: Native([STORY, pieces("Second answer.")], hang_in_prefill=0),
    "deaf": lambda: Deaf([[*STORY[:4], HANG], pieces("Second answer.")]),
    "wild": lambda: FakeEngine([[("[/INST] \x1b[31mred\x07 \x00nul \x9b1mcsi", False), (" " + "x" * 10_000, True)]]),
    "broken": lambda: FakeEngine([[("Half", False), FAIL], pieces("Second answer.")]),
    "prose": lambda: FakeEngine([pieces("word words wordier " * 20 + "The end.")]),
    "short": lambda: FakeEngine([pieces(f"Answer number {n}.") for n in range(1, 100)], n_ctx=128),
    "many": lambda: FakeEngine([pieces(f"Answer number {n}.") for n in range(1, 100)]),
}  # fmt: skip


class Native(FakeEngine):
    """Hangs inside a C call that no signal interrupts, as in llama_decode; only cancel() gets it out."""

    libc = ctypes.CDLL(None)
    mutex = ctypes.create_string_buffer(128)

    held = False

    def _hang(self, generation: FakeGeneration) -> None:
        self.libc.pthread_mutex_lock(self.mutex)
        self.held = True
        if not (self._cancelled or generation.cancelled):  # which may come before this call, and never again
            self.libc.pthread_mutex_lock(self.mutex)
        raise Cancelled("cancelled")

    def cancel(self) -> None:
        super().cancel()
        if self.held:
            self.libc.pthread_mutex_unlock(self.mutex)


class Deaf(FakeEngine):
    """Does not hear cancel(): only a second Ctrl-C ends its answer."""

    told = False

    def cancel(self) -> None:
        if self.told:
            return
        self.told = True
        sys.stderr.write("(cancel was asked)\n")
        sys.stderr.flush()


def load_at_the_gate(*_: object) -> FakeEngine:
    """Loads once the file named by the variable GATE exists."""
    while not Path(os.environ["GATE"]).exists():
        time.sleep(0.005)
    return SCENES["many"]()


def run() -> None:
    if sys.argv[1] in ("loading", "load-gate"):  # the real way to an engine
        open_pair.pick = lambda *_, **__: ChosenPair(Path("target.gguf"), None, "target.gguf", "")  # type: ignore[attr-defined]
        open_pair._load = (lambda *_: time.sleep(600)) if sys.argv[1] == "loading" else load_at_the_gate  # type: ignore[assignment]
    elif sys.argv[1] != "real":
        play(SCENES[sys.argv[1]]())
    live.AFTER_S = float(os.environ.get("LIVE_AFTER_S", "inf"))  # most tests look for whole sentences
    main.main(sys.argv[2:])


def play(scene: FakeEngine) -> None:
    """Put `scene` where the program opens its engine."""

    def open_engine(
        settings: Settings, status: StatusOutput, *, yes: bool = False, brief: bool = False, n_parallel_max: int = 1
    ) -> open_pair.Loaded:
        settings.sampling()
        scene.draft = settings["draft"]
        return loaded(scene)

    open_pair.open_engine = open_engine


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests behind itself ignores it
    run()
