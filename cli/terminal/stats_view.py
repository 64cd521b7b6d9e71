"""Statistics as people read them: the line after an answer, and the page behind `/stats`.

Says only what was measured. A speed-up over plain decoding is not claimed here: only `bench` measures one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specgguf.cli.terminal import console
from specgguf.cli.terminal.console import Style

if TYPE_CHECKING:
    from specgguf.decode.stats import Stats

BARS = "▁▂▃▄▅▆▇█"
TRACE = 64
PLAIN_LEAST = 4  # plain forward passes: fewer do not tell how fast they are
SHORTEST_S = 0.05  # a wait that is shorter is none
MATTERS = 0.05  # of two single runs, a difference that is worth a word
DISTURBED = 1.05  # a gain so much above what is possible was not one
LABEL = 9  # columns of what stands before a row of the page
POSITION = 7  # columns of a position


def plural(n: int, noun: str) -> str:
    """ "1 token", "1,204 tokens"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def percent(share: float) -> str:
    """A share of 1 as "75 %"."""
    return f"{100 * share:.0f} %"


def parts(stats: Stats, n_ctx: int, *, ended: str = "", reason: bool = True, first_s: float = 0.0) -> list[str]:
    """What the line after an answer says.

    Args:
        first_s: seconds to the first word; 0 where nobody waited.
        ended: how it ended, where that is not obvious.
        reason: also say why drafting is off, where it is.
    """
    said = [
        f"{plural(stats.n_generated, 'token')} in {stats.predicted_s:.1f} s, {_speed(stats)}",
        drafting(stats) if reason else _drafted(stats),
        f"prompt {stats.n_prefilled:,} new + {stats.n_cached:,} cached"
        + (f", first word after {first_s:.1f} s" if first_s >= SHORTEST_S else ""),
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
    return "; ".join(part for part in (_drafted(stats), _off(stats)) if part)


def _off(stats: Stats) -> str:
    if not stats.off_reason or stats.off_reason.startswith("drafting is off"):
        return stats.off_reason
    return f"drafting is off: {stats.off_reason}"


def _drafted(stats: Stats) -> str:
    if not stats.draft_n:
        return ""
    done = f"draft {stats.draft_n_accepted:,}/{stats.draft_n:,} accepted"
    share = percent(stats.draft_n_accepted / stats.draft_n)
    return f"{done} ({share}), {stats.tokens_per_pass:.1f} tokens per forward pass"


def race(plain: Stats, drafted: Stats, *, same_text: bool) -> str:
    """What a run of each says, in a sentence that claims no more than two runs can show."""
    speeds = f"{drafted.tokens_per_second:.1f} tok/s drafted, {plain.tokens_per_second:.1f} plain"
    if not drafted.draft_n:
        return "; ".join(part for part in ("nothing was drafted, so both ran plainly", speeds, _off(drafted)) if part)
    gain = drafted.tokens_per_second / plain.tokens_per_second if plain.predicted_s else 0.0
    if gain > drafted.tokens_per_pass * DISTURBED:
        return (
            f"not known: {speeds}, and {drafted.tokens_per_pass:.2f} tokens per forward pass allow no such gain; the "
            "machine was disturbed, race again"
        )
    found = f"drafting ran at {gain:.2f}x plain speed" if abs(gain - 1) >= MATTERS else "drafting made no difference"
    texts = "the texts are the same" if same_text else "the texts differ, as two draws do"
    return f"{found}: {speeds}, {_drafted(drafted)}; {texts}; one run each, specgguf bench repeats them"


def ended_by(finish_reason: str | None, interrupted: bool, n_used: int, n_ctx: int) -> str:
    """How an answer ended, where it did not simply end."""
    if interrupted:
        return "stopped"
    if finish_reason == "length":
        return "context full" if n_used >= n_ctx - 1 else "cut at max_tokens"
    return ""


def page(
    last: Stats, total: Stats, n_ctx: int, style: Style, width: int | None = None, first_s: float = 0.0
) -> list[str]:
    """The lines behind `/stats`: the last answer in detail, then everything so far. Why drafting is off is said once.

    Args:
        first_s: seconds to the last answer's first word.
        width: columns that no line may fill; None does not break lines.
    """
    if not last.n_rounds:
        return ["nothing was generated yet"]
    chat = max((width or 10_000) - 3, 24)  # after the indent, and before the last column
    rows = _wrapped(parts(last, n_ctx, reason=False, first_s=first_s), chat)
    rows += [*_positions(last, chat), *_trace(last, style, chat), *_plain(last, chat), *_time(last, chat)]
    so_far = [f"{plural(total.n_generated, 'token')}, {_speed(total)}", _drafted(total)]
    if plain := plain_speed(total):
        so_far.append(f"plain decoding {plain:.1f} tok/s, as measured in between")
    sections = {"last answer": rows, "since the start": _wrapped(so_far, chat)}
    return [line for head, below in sections.items() for line in (style.bold(head), *(f"  {row}" for row in below))]


def _wrapped(said: list[str], chat: int) -> list[str]:
    """The parts a line each, broken between words where one is too long."""
    return [row for part in said if part for row in console.rows(part, chat)]


def _row(label: str, text: str, chat: int) -> list[str]:
    """A labelled row, on as many lines as it needs: broken between words, and indented to its text."""
    first, *others = console.rows(text, chat - LABEL)
    return [f"{label:<{LABEL}}{first}", *(" " * LABEL + row for row in others)]


def plain_speed(stats: Stats) -> float:
    """Tokens a second of the plain forward passes among `stats`; 0 where they are too few to tell."""
    return stats.plain_n / stats.plain_s if stats.plain_n >= PLAIN_LEAST and stats.plain_s else 0.0


def _speed(stats: Stats) -> str:
    return f"{stats.tokens_per_second:.1f} tok/s"


def _positions(stats: Stats, chat: int) -> list[str]:
    """Acceptance per position: of the drafted tokens that were reached there, how many were accepted."""
    reached, accepted = stats.reached_by_position, stats.accepted_by_position
    n = max((i + 1 for i, count in enumerate(reached) if count), default=0)
    if not n:
        return []
    shares = [percent(accepted[i] / reached[i]) if reached[i] else "-" for i in range(n)]
    counts = [f"{count:,}" for count in reached[:n]]
    a_line = max((chat - LABEL) // POSITION, 1)
    table = {"position": [str(k + 1) for k in range(n)], "accepted": shares, "reached": counts}
    return [
        f"{label:<{LABEL}}" + "".join(f"{cell:>{POSITION}}" for cell in cells[i : i + a_line])
        for i in range(0, n, a_line)
        for label, cells in table.items()
    ]


def bars(trace: list[int], top: int) -> str:
    """Draft lengths as a line of bars; a dot is a round without a draft."""
    steps = len(BARS) - 1
    return "".join("·" if not k else BARS[min(steps, round(steps * k / max(top, 1)))] for k in trace)


def _trace(stats: Stats, style: Style, chat: int) -> list[str]:
    trace = stats.draft_lengths[-min(TRACE, chat - LABEL) :]
    top = max(trace, default=0)
    if not top:
        return []
    n = len(stats.draft_lengths)
    what = plural(n, "round") if n == len(trace) else f"the last {len(trace)} of {plural(n, 'round')}"
    what += f", up to {plural(top, 'token')}, · none"
    drawn = f"{'drafted':<{LABEL}}{style.drafted(bars(trace, top))}"
    if LABEL + len(trace) + 2 + len(what) <= chat:
        return [f"{drawn}  {what}"]
    return [drawn, *_row("", what, chat)]


def _plain(stats: Stats, chat: int) -> list[str]:
    n = sum(1 for k in stats.draft_lengths if not k)
    if not n and not stats.off_reason:
        return []
    said = [f"{n} of {plural(len(stats.draft_lengths), 'round')}", *([_off(stats)] if stats.off_reason else [])]
    return _row("plain", "; ".join(said), chat)


def _time(stats: Stats, chat: int) -> list[str]:
    return _row(
        "time",
        f"prompt {stats.prompt_s:.2f} s, target {stats.verify_s:.2f} s, draft {stats.draft_s:.2f} s, "
        f"the rest {stats.host_s:.2f} s",
        chat,
    )
