"""What a round of all that run is: a piece of a newcomer's prompt, then one step of those whose turn the schedule says.

Prompts are read in pieces beside running answers, so that no stream stalls for longer than one piece takes. Nothing
here knows what costs what, or how long a draft should be: that is `control`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from time import perf_counter
from typing import Protocol

from specgguf.control.schedule import Member, Schedule
from specgguf.decode.records import Plan, Round
from specgguf.decode.run import Run
from specgguf.decode.sampling import Logits
from specgguf.decode.sequence import Forward
from specgguf.decode.step import step
from specgguf.errors import BackendError, Cancelled

from .lead import Lead
from .passes import decode_together
from .turn import Turn

PIECE_S = 0.25  # a piece of a prompt takes about so long where others are waiting for their next token
PIECE_MIN, PIECE_FIRST = 32, 64  # tokens: at least, and while it is not known how long they take
LEFT_MIN = 2  # tokens of a prompt that its first round reads: a checkpoint is made before the last one


class Table(Protocol):
    """The turns, as far as a round is concerned."""

    lead: Lead
    n_max: int
    reading: Turn | None

    def resume(self) -> None:
        """Let contexts read again."""


class Rounds:
    """Makes rounds.

    Args:
        n_batch: the largest piece of a prompt, in tokens.
    """

    def __init__(self, schedule: Schedule, n_batch: int) -> None:
        self.schedule = schedule
        self._n_batch = n_batch
        self._token_s = 0.0  # of reading prompts
        self._n_padding = 0

    def play(self, turns: Sequence[Turn], table: Table) -> None:
        """A round for those of `turns` that are planned for it, each into its `ready`."""
        if table.n_max > 1:
            turns = self._read_prompts(turns, table)
        if not turns:
            return
        started = perf_counter()
        members = [_member(turn.run, turn) for turn in turns if turn.run is not None]
        planned = self.schedule.plan(members)
        places = [i for i, plan in enumerate(planned) if plan is not None]
        for turn in turns:
            turn.n_waited += 1
        plans = [plan for plan in planned if plan is not None]
        plan_s = perf_counter() - started
        self._n_padding = 0
        outcomes = self._step([turns[i].run for i in places], plans)
        self._hand_out([turns[i] for i in places], [members[i] for i in places], plans, outcomes, plan_s, table)

    def _step(self, runs: Sequence[Run | None], plans: Sequence[Plan]) -> list[Round | Exception]:
        running = [run for run in runs if run is not None]
        try:
            return step(running, lambda _: plans, decode=self._decode)
        except BaseException:  # an interrupt: what others asked for goes on with the next round
            for run in running:
                with contextlib.suppress(BackendError):
                    run.synchronise()
            raise

    def _decode(self, parts: Sequence[Forward]) -> Sequence[Logits]:
        costs = self.schedule.costs
        if len(parts) > 1 and costs is not None and parts[0].kind == "verify":
            *rest, last = parts
            n = costs.padding(sum(len(part.tokens) + part.n_padding for part in parts))
            fits = len(last.sequence.tokens) + len(last.tokens) + n <= last.sequence.n_ctx
            if n and fits and not last.n_padding and last.sequence.rolls_back_freely:
                parts, self._n_padding = [*rest, last._replace(n_padding=n)], n
        return decode_together(parts)

    def _hand_out(
        self,
        turns: Sequence[Turn],
        members: Sequence[Member],
        plans: Sequence[Plan],
        outcomes: Sequence[Round | Exception],
        plan_s: float,
        table: Table,
    ) -> None:
        done: list[tuple[Turn, Member, Plan, Round]] = []
        for turn, member, plan, outcome in zip(turns, members, plans, outcomes, strict=True):
            turn.n_waited = 0
            if isinstance(outcome, Round):
                outcome.host_s += plan_s
                outcome.n_prefilled += turn.n_read
                outcome.prefill_s += turn.read_s
                outcome.n_sequences = len(turns)
                turn.n_read, turn.read_s = 0, 0.0
                done.append((turn, member, plan, outcome))
            else:
                self._fail(turn, outcome, table)
        if done:
            _, made, planned, rounds = zip(*done, strict=True)
            self.schedule.observe(made, planned, rounds, self._n_padding)
        for turn, _, _, round in done:
            turn.take(round)

    def _fail(self, turn: Turn, error: Exception, table: Table) -> None:
        """It ends, unless it was stopped in another's stead, which had just ended: then it has its round later."""
        if isinstance(error, Cancelled) and not (turn.is_cancelled or table.lead.closed):
            table.resume()
            return
        turn.fail(error)

    def _read_prompts(self, turns: Sequence[Turn], table: Table) -> list[Turn]:
        """Read a piece of the first prompt that is too long for a round; those who can have one."""
        others = any(not _n_unread(turn) for turn in turns)
        n_piece = self._piece() if others else self._n_batch
        readers = [turn for turn in turns if _n_unread(turn) > n_piece]
        if readers:
            self._read(readers[0], min(n_piece, _n_unread(readers[0]) - LEFT_MIN), table)
        return [turn for turn in turns if not turn.over and _n_unread(turn) <= n_piece]

    def _piece(self) -> int:
        wanted = int(PIECE_S / self._token_s) if self._token_s else PIECE_FIRST
        return max(PIECE_MIN, min(wanted, self._n_batch))

    def _read(self, turn: Turn, n: int, table: Table) -> None:
        run = turn.run
        assert run is not None
        at = len(run.target.tokens)
        table.reading = turn
        started = perf_counter()
        try:
            if turn.is_cancelled:
                raise Cancelled("stopped")
            run.target.extend(run.committed[at : at + n], 0)
        except Exception as error:
            self._fail(turn, error, table)
            return
        finally:
            table.reading = None
        seconds = perf_counter() - started
        turn.n_read, turn.read_s = turn.n_read + n, turn.read_s + seconds
        self._token_s = seconds / n


def _member(run: Run, turn: Turn) -> Member:
    return Member(turn.controller, run.n_draft_max, run.candidate, turn.n_waited)


def _n_unread(turn: Turn) -> int:
    """Tokens of its prompt that are not read yet; 0 once it has had a round."""
    run = turn.run
    return len(run.committed) - len(run.target.tokens) if run is not None and run.reads_prompt else 0
