"""Statistics as people read them: the line after an answer, and the page behind `/stats`.

Says only what was measured. A speed-up over plain decoding is not claimed here: only `bench` measures one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specgguf.cli.terminal import Ink

if TYPE_CHECKING:
    from specgguf.stats import Stats

BARS = "▁▂▃▄▅▆▇█"
TRACE = 64


def plural(n: int, noun: str) -> str:
    """ "1 token", "1,204 tokens"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def percent(share: float) -> str:
    """A share of 1 as "75 %"."""
    return f"{100 * share:.0f} %"


def parts(stats: Stats, n_ctx: int, *, ended: str = "") -> list[str]:
    """What the line after an answer says. `ended` says how it ended, where that is not obvious."""
    said = [
        f"{plural(stats.n_generated, 'token')} in {stats.decode_s:.1f} s, {_speed(stats)}",
        drafting(stats),
        f"prompt {stats.n_prefilled:,} new + {stats.n_cached:,} cached",
        f"context {percent((stats.n_prompt + stats.n_generated) / max(n_ctx, 1))}",
        ended,
    ]
    return [part for part in said if part]


def joined(said: list[str], width: int | None = None) -> str:
    """The parts on one line, or on as few as `width` columns allow, broken between parts."""
    rows = [said[0]]
    for part in said[1:]:
        joined = f"{rows[-1]} | {part}"
        if width is None or len(joined) < width:
            rows[-1] = joined
        else:
            rows.append(part)
    return "\n".join(rows)


def drafting(stats: Stats) -> str:
    """What the draft did, or why it did nothing."""
    if not stats.draft_n:
        return f"draft rests: {stats.rest_reason}" if stats.rest_reason else ""
    done = f"draft {stats.draft_n_accepted:,}/{stats.draft_n:,} accepted"
    share = percent(stats.draft_n_accepted / stats.draft_n)
    rests = f"; now rests: {stats.rest_reason}" if stats.rest_reason else ""
    return f"{done} ({share}), {stats.tokens_per_pass:.1f} tokens per pass{rests}"


def ended_by(finish_reason: str | None, interrupted: bool, n_used: int, n_ctx: int) -> str:
    """How an answer ended, where it did not simply end."""
    if interrupted:
        return "stopped"
    if finish_reason == "length":
        return "context full" if n_used >= n_ctx - 1 else "cut at max_tokens"
    return ""


def page(last: Stats, total: Stats, n_ctx: int, ink: Ink) -> list[str]:
    """The lines behind `/stats`: the last answer in detail, then everything so far."""
    if not last.n_rounds:
        return ["nothing was generated yet"]
    lines = [ink.bold("last answer"), *(f"  {part}" for part in parts(last, n_ctx))]
    lines += [f"  {row}" for row in (*_positions(last), *_trace(last, ink), *_rests(last), _time(last))]
    lines += [ink.bold("since the start"), f"  {plural(total.n_generated, 'token')}, {_speed(total)}"]
    said = drafting(total)
    return [*lines, f"  {said}"] if said else lines


def _speed(stats: Stats) -> str:
    return f"{stats.tokens_per_second:.1f} tok/s"


def _positions(stats: Stats) -> list[str]:
    """Acceptance per position: of the drafted tokens that were reached there, how many were accepted."""
    reached, accepted = stats.reached_by_position, stats.accepted_by_position
    n = max((i + 1 for i, count in enumerate(reached) if count), default=0)
    if not n:
        return []
    shares = [percent(accepted[i] / reached[i]) if reached[i] else "-" for i in range(n)]
    return [
        "position " + "".join(f"{i + 1:>7}" for i in range(n)),
        "accepted " + "".join(f"{share:>7}" for share in shares),
        "of       " + "".join(f"{count:>7,}" for count in reached[:n]) + "  reached",
    ]


def bars(trace: list[int], top: int) -> str:
    """Draft lengths as a line of bars; a dot is a round that rested."""
    steps = len(BARS) - 1
    return "".join("·" if not k else BARS[min(steps, round(steps * k / max(top, 1)))] for k in trace)


def _trace(stats: Stats, ink: Ink) -> list[str]:
    trace = stats.k_trace[-TRACE:]
    top = max(trace, default=0)
    if not top:
        return []
    n = len(stats.k_trace)
    what = plural(n, "round") if n <= TRACE else f"the last {TRACE} of {plural(n, 'round')}"
    return [f"drafted  {ink.drafted(bars(trace, top))}  {what}, up to {top} tokens, · rested"]


def _rests(stats: Stats) -> list[str]:
    n = sum(1 for k in stats.k_trace if not k)
    if not n:
        return []
    why = f": {stats.rest_reason}" if stats.rest_reason else ""
    return [f"rested   {n} of {plural(len(stats.k_trace), 'round')}{why}"]


def _time(stats: Stats) -> str:
    return (
        f"time     prompt {stats.prompt_s:.2f} s, target {stats.verify_s:.2f} s, "
        f"draft {stats.draft_s:.2f} s, the rest {stats.host_s:.2f} s"
    )
