"""Where a controller is judged: machines and texts on paper, recorded answers, and a machine that others share.

Each cell is a machine with a text. What the controller reaches there is compared with the best that is known without
it: the fastest fixed draft length (0 included), or plain decoding where the machine's speed changes under it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from specgguf.control.controller import Adaptive, Fixed
from specgguf.control.costs import Costs

from . import recorded, simulator
from .simulator import CODE, EXPLAIN, F16, HOSTILE, JSON, Q8, STORY, Drawn, Machine, Script, Text, calibrated, converse

MakeAdaptive = Callable[[int, Costs], Adaptive]
Kind = tuple[Text, ...]  # by stretches of 150 tokens, over and over

DRAFT_MAX, N_TOKENS = 5, 300
MACHINES = {
    "f16": F16,
    "q8": Q8,
    "q4": simulator.Q4,
    "gpu": simulator.GPU,
    "metal": simulator.METAL,
    "steps": simulator.STEPS,
    "costly-draft": simulator.COSTLY_DRAFT,
    "growing": replace(F16, growth=1.0),
    "outliers": replace(Q8, outliers=0.03),
}
PADDED = {"tiles": simulator.TILES}
CHECKPOINTS = {f"{name}, checkpoints": replace(MACHINES[name], checkpoint=True) for name in ("f16", "q8", "steps")}
TEXTS: dict[str, Kind] = {
    "code": (CODE,),
    "json": (JSON,),
    "explain": (EXPLAIN,),
    "story": (STORY,),
    "hostile": (HOSTILE,),
    "mixed": (STORY, CODE),
    "misaligned": (Text(0.1, hard=0.15),),
}

# Milliseconds measured on 2-core CPUs for a 1.5B target and a 0.5B draft. How far memory keeps up decides whether the
# same file is memory-bound (a slow plain pass, a cheap wide one) or not.
RECORDED_MACHINES = {
    "f16": F16,
    "f16, fast memory": Machine([0.060, 0.094, 0.106, 0.116, 0.128, 0.134], 0.0115, draft_prefill_s=0.0018),
    "f16, slower memory": Machine([0.080, 0.098, 0.108, 0.116, 0.128, 0.134], 0.0115, draft_prefill_s=0.0018),
    "q8": Machine([0.062, 0.098, 0.113, 0.119, 0.204, 0.202], 0.015, draft_prefill_s=0.004),
    "q8, fast memory": Machine([0.043, 0.120, 0.143, 0.160, 0.220, 0.240], 0.012, draft_prefill_s=0.0018),
    "q4": Machine([0.0255, 0.0495, 0.0665, 0.0807, 0.0985, 0.1140], 0.0114, draft_prefill_s=0.0018),
}
RECORDED_TURNS, RECORDED_LENGTHS = 4, tuple(range(recorded.N_DRAFT + 1))

# Tokens written -> how much longer everything takes: another program for a while, in bursts, a hot machine for good.
BUSY: dict[str, Callable[[int], float]] = {
    "for a while": lambda n: 1.7 if 60 <= n % 256 < 140 else 1.0,
    "in bursts": lambda n: 1.8 if n // 12 % 3 == 0 else 1.0,
    "for good": lambda n: 2.0 if n >= 40 else 1.0,
    "no more": lambda n: 0.5 if n >= 60 else 1.0,
}
LONG = Machine([0.026, 0.049, 0.066, 0.079, 0.098, 0.112, 0.125, 0.132, *[0.153] * 8], 0.0115, draft_prefill_s=0.0018)


@dataclass(frozen=True)
class Cell:
    """A machine with a text.

    Attributes:
        world: "simulator", "recordings" or "busy machine".
        scripts: the answers, one after the other.
        lengths: the fixed draft lengths that the controller is compared with.
        misread: what the measurement at load took a plain pass for, as a factor.
    """

    world: str
    name: str
    machine: Machine
    scripts: tuple[Script, ...]
    draft_max: int
    lengths: tuple[int, ...]
    misread: float = 1.0

    def adaptive(self, make: MakeAdaptive = Adaptive, seeds: int = 3) -> float:
        """Tokens per second of a controller that measured the machine itself, noise included; mean over seeds."""
        return _mean(self._run(make(self.draft_max, self._costs(s)), s) for s in range(seeds))

    def fixed(self, k: int, seeds: int = 3) -> float:
        """Tokens per second with k drafted tokens a round."""
        return _mean(self._run(Fixed(k), s) for s in range(seeds))

    def best(self, seeds: int = 3) -> float:
        """Tokens per second of the best of `lengths`."""
        return max(self.fixed(k, seeds) for k in self.lengths)

    def _run(self, controller: Adaptive | Fixed, seed: int) -> float:
        return converse(controller, self.machine, self.scripts, seed=seed).speed

    def _costs(self, seed: int) -> Costs:
        measured = calibrated(self.machine, self.draft_max, seed).to_json()
        verify_s = {int(n): s * (self.misread if n == "1" else 1.0) for n, s in measured.pop("verify_s").items()}
        return Costs(max(verify_s), verify_s, **measured, pads=not self.machine.checkpoint)


def _mean(values: Iterator[float]) -> float:
    return float(np.mean(list(values)))


def at(kind: Kind) -> Callable[[int], Text]:
    """The text at a position."""
    return lambda position: kind[position // 150 % len(kind)]


def paper() -> list[Cell]:
    """Machines and texts on paper."""
    return [
        Cell(
            "simulator",
            f"{name} · {text}",
            machine,
            (Drawn(at(kind), N_TOKENS),) * 2,
            DRAFT_MAX,
            tuple(range(DRAFT_MAX + 1)),
        )
        for name, machine in {**MACHINES, **PADDED, **CHECKPOINTS}.items()
        for text, kind in TEXTS.items()
    ]


@cache
def answers() -> list[recorded.Recorded]:
    return recorded.load()


def recordings() -> list[Cell]:
    """Real answers on measured machines, each four times over; all of them as one conversation; and where the
    measurement at load was wrong."""
    cells = []
    for name, machine in RECORDED_MACHINES.items():
        turns: dict[str, tuple[Script, ...]] = {
            f"{a.kind} at {a.temperature:g}": (a,) * RECORDED_TURNS for a in answers()
        }
        turns["conversation"] = tuple(answers())
        for text, scripts in turns.items():
            cells.append(Cell("recordings", f"{name} · {text}", machine, scripts, recorded.N_DRAFT, RECORDED_LENGTHS))
        for misread in (0.7, 1.4):
            text = f"conversation, plain pass measured at {misread} of it"
            cells.append(
                Cell("recordings", f"{name} · {text}", machine, scripts, recorded.N_DRAFT, RECORDED_LENGTHS, misread)
            )
    return cells


def busy() -> list[Cell]:
    """Real answers on machines that become slower or faster meanwhile."""
    return [
        Cell(
            "busy machine",
            f"{name} {load} · {text.kind} at {text.temperature:g}",
            replace(machine, load=BUSY[load], noise=0.04),
            (text,) * RECORDED_TURNS,
            15,
            lengths,
        )
        for name, machine, lengths in (("q4", LONG, (0,)), ("f16", F16, (0, 3, 5, 7)))
        for load in BUSY
        for text in answers()
    ]
