"""One round of speculative decoding, for one sequence and for many.

`speculate` is the round of one sequence, as the paper has it: draft, verify in one forward pass, commit, roll back.
It asks for its forward passes by yielding them, so that `step` can put what several sequences ask for together:
level by level while they draft, then all verifications together. It knows no text (the stop check does), no clock but
the injected one, and no files. However a round ends, every cache holds a prefix of the committed tokens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

from specgguf.errors import BackendError, ConfigError

from .drafters import PENDING_MAX
from .records import PROBE_MAX, Draft, Plan, Round, TokenLogprob
from .run import Rows, Run
from .sampling import Distribution, Logits, logprob
from .sequence import Decode, Forward, decode_in_turn
from .verifier import cut

Speculation = Generator[Forward, Logits, Round]


def speculate(run: Run, plan: Plan) -> Speculation:
    """Draft, verify in one forward pass, commit, roll back (Leviathan et al. 2023, algorithm 1).

    Yields:
        The forward passes that it needs, each answered with its rows of logits: those of the draft model, one that
        reads pending tokens where they are too many to ride along, and the verification.
    """
    probe = yield from _probe(run, plan)
    draft = yield from _draft(run, plan)
    n_prefilled, pending = yield from _read_pending(run, draft)
    verification = _verification(run, plan, draft, pending)
    logits = yield verification

    rows = Rows(logits, draft, run)
    result = run.verify(cut(draft, rows), rows, run.rng)
    tokens = draft.tokens[: result.n_accepted]
    if result.next_token is not None:
        tokens = (*tokens, result.next_token)
    n_kept, reason = run.stop_check.check(tokens)
    tokens = tokens[:n_kept]

    round = Round(
        tokens=tokens,
        n_from_draft=min(result.n_accepted, n_kept),
        draft_n=len(draft),
        draft_n_accepted=result.n_accepted,
        finish_reason=reason or ("length" if len(run.committed) + n_kept >= run.end else None),
        survival=result.survival,
        logprobs=_logprobs(logits, tokens, run.n_logprobs),
        source=draft.source,
        probe=probe,
        n_pending=len(pending),
        n_padding=verification.n_padding,
        n_prefilled=n_prefilled + (len(pending) if run.reads_prompt else 0),
        n_draft_prefilled=draft.n_prefilled,
        n_context=len(run.committed),
    )
    _remember(run, rows, draft)
    run.committed.extend(tokens)
    run.synchronise()
    return round


def _probe(run: Run, plan: Plan) -> Generator[Forward, Logits, tuple[tuple[float, float], ...]]:
    """Let the draft model score plain tokens, to see whether drafting would pay again."""
    if run.drafter is None or not plan.probe:
        return ()
    try:
        return (yield from run.drafter.score(run.committed, run.plain_probs[-plan.probe :], run.q_after))
    except (BackendError, ConfigError) as error:
        run.stop_drafting(error)
        return ()


def _draft(run: Run, plan: Plan) -> Generator[Forward, Logits, Draft]:
    """What is had for nothing, or the tokens that must come and what the drafter proposes after them, in one block."""
    if plan.n_max <= 0:
        return Draft()
    if plan.source == "ngram" or run.off_reason:
        tokens = run.candidate.tokens[: plan.n_max] if run.candidate is not None else ()
        return Draft(tokens, (None,) * len(tokens), "ngram" if tokens else "")
    forced = run.forced[: plan.n_max]
    head = Draft(forced, (None,) * len(forced), "forced" if forced else "")
    n_left = plan.n_max - len(forced)
    if run.drafter is None or not n_left or (forced and not plan.keep_drafting(len(forced), None)):
        return head
    committed, distribution, keep_drafting = run.committed, run.q, plan.keep_drafting
    if forced:
        committed = [*run.committed, *forced]

        def distribution(logits: Logits, tail: Sequence[int]) -> Distribution:
            return run.q(logits, [*forced, *tail])

        def keep_drafting(i: int, q: Distribution | None) -> bool:
            return plan.keep_drafting(len(forced) + i, q)

    try:
        tail = yield from run.drafter.propose(committed, n_left, distribution, run.rng, keep_drafting)
    except (BackendError, ConfigError) as error:  # of the draft model alone: plain decoding goes on
        run.stop_drafting(error)
        return head
    source = tail.source or head.source
    return replace(tail, tokens=head.tokens + tail.tokens, probs=head.probs + tail.probs, source=source)


def _read_pending(run: Run, draft: Draft) -> Generator[Forward, Logits, tuple[int, list[int]]]:
    """Read what the target has not read yet in a pass of its own, where it is too much to ride along with a draft or
    where the end of the prompt must be marked for the next turn. The cache is marked for the verification.

    Returns:
        How many tokens were read, and those that are still pending (at least one).
    """
    target, n_read = run.target, 0
    pending = run.committed[len(target.tokens) :]
    pin = run.reads_prompt and not target.rolls_back_freely
    if len(pending) > (1 if pin else PENDING_MAX) and (len(draft) or pin):
        n_read, rest = len(pending) - 1, pending[-1:]
        yield Forward(target, pending[:-1], 0, kind="prefill")
        if pin:
            target.mark(0, pin=True)
        pending = rest
    if len(draft):
        target.mark(len(pending) + len(draft) - 1)
    return n_read, pending


def _verification(run: Run, plan: Plan, draft: Draft, pending: Sequence[int]) -> Forward:
    """The pass that checks `draft`: a row for each drafted token and one for the bonus token."""
    tokens = [*pending, *draft.tokens]
    n_padding = plan.padding(len(tokens))
    if len(run.target.tokens) + len(tokens) + n_padding > run.target.n_ctx:
        n_padding = 0
    kind = "prefill" if run.reads_prompt and not len(draft) else "verify"
    return Forward(run.target, tokens, len(draft) + 1, n_padding, kind)


def _remember(run: Run, rows: Rows, draft: Draft) -> None:
    """Keep the distributions of the latest plain tokens, for a probe."""
    if len(draft):
        run.plain_probs.clear()
    else:
        run.plain_probs.append(rows[0])
        del run.plain_probs[:-PROBE_MAX]


def _logprobs(logits: Logits, tokens: Sequence[int], n_top: int | None) -> tuple[TokenLogprob, ...]:
    if n_top is None:
        return ()
    return tuple(TokenLogprob(token, *logprob(logits[i], token, n_top)) for i, token in enumerate(tokens))


def step(
    runs: Sequence[Run],
    plan: Callable[[Sequence[Run]], Sequence[Plan]],
    *,
    decode: Decode = decode_in_turn,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Round | Exception]:
    """One round for each of `runs`, in shared forward passes: one of the draft for each level at which some still
    draft, one of the target for all.

    Args:
        plan: how many tokens each drafts; asked once, for all of them.
        decode: runs the parts of several sequences together.

    Returns:
        Each one's round, or what kept it from having one. A failure in one touches no other, except that a pass which
        fails, fails for all that took part.
    """
    started = clock()
    rounds = [_Speculating(run, one) for run, one in zip(runs, plan(runs), strict=True)]
    seconds: dict[str, float] = {}
    for kind in ("draft", "prefill", "verify"):
        ended = started
        while waiting := [one for one in rounds if one.asked is not None and one.asked.kind == kind]:
            answers = _decoded(decode, waiting)
            ended = clock()
            for one, rows in zip(waiting, answers, strict=True):
                one.answer(rows)
        now = ended if kind != "draft" else clock()  # what is done with the target's rows is the host's time
        seconds[kind], started = now - started, now
    host_s = clock() - started
    for one in rounds:
        if isinstance(round := one.outcome, Round):
            round.draft_s, round.prefill_s, round.verify_s = seconds["draft"], seconds["prefill"], seconds["verify"]
            round.host_s = host_s
    return [one.outcome for one in rounds]


def _decoded(decode: Decode, waiting: Sequence[_Speculating]) -> Sequence[Logits | Exception]:
    try:
        return decode([one.asked for one in waiting if one.asked is not None])
    except Exception as error:
        return [error] * len(waiting)


class _Speculating:
    """A round under way: the forward pass that it waits for, or its outcome."""

    asked: Forward | None
    outcome: Round | Exception

    def __init__(self, run: Run, plan: Plan) -> None:
        self._run = run
        self._speculation = speculate(run, plan)
        self.answer(None)

    def answer(self, rows: Logits | Exception | None) -> None:
        """Go on with the rows of logits that were asked for, or fail as the pass did."""
        self.asked = None
        try:
            if isinstance(rows, Exception):
                self.asked = self._speculation.throw(rows)
            else:
                self.asked = self._speculation.send(rows)  # type: ignore[arg-type]
        except StopIteration as done:
            self.outcome = done.value
        except Exception as error:
            self.outcome = error
            with contextlib.suppress(BackendError):  # a cache that cannot be rolled back was cleared
                self._run.synchronise()
