"""What is written, and how: cleaning, styles, reasoning, provenance, markdown, progress."""

from __future__ import annotations

import io
import re

import pytest
from specgguf.cli.terminal import console, stats_view
from specgguf.cli.terminal.console import Style, clean, one_line, style_for
from specgguf.cli.terminal.markdown import StableMarkdown
from specgguf.cli.terminal.progress import Progress, human_bytes, human_seconds
from specgguf.cli.terminal.render import AnswerWriter, Span
from specgguf.cli.terminal.status import StatusOutput

from specgguf.decode.records import Round
from specgguf.decode.stats import Stats

PLAIN = Style()
TERMINAL = Style(tty=True, live=True, styles=True, color=True)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def written(spans: list[Span], style: Style, **keywords: object) -> tuple[str, str]:
    """stdout and stderr after writing `spans`."""
    out, err = io.StringIO(), io.StringIO()
    writer = AnswerWriter(StatusOutput(style, stream=err), style=style, out=out, **keywords)  # type: ignore[arg-type]
    for span in spans:
        writer.span(span)
    writer.end()
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("term", "color", "variables", "styles", "colors"),
    [
        ("xterm", "auto", {}, True, True),
        ("xterm", "auto", {"NO_COLOR": "1"}, True, False),
        ("xterm", "auto", {"NO_COLOR": ""}, True, True),
        ("xterm", "always", {"NO_COLOR": "1"}, True, True),
        ("xterm", "never", {}, True, False),
        ("dumb", "auto", {}, False, False),
        ("", "auto", {}, False, False),
        ("dumb", "always", {}, True, True),
    ],
)
def test_style(term: str, color: str, variables: dict[str, str], styles: bool, colors: bool) -> None:
    style = style_for(Tty(), color, {"TERM": term, **variables})
    assert (style.styles, style.color) == (styles, colors)
    piped = style_for(io.StringIO(), color, {"TERM": term, **variables})
    assert (piped.tty, piped.live, piped.styles) == (False, False, color == "always")


def test_clean_keeps_text_and_drops_what_drives_a_terminal() -> None:
    every = "".join(map(chr, range(0x250)))
    kept = clean(every)
    assert [c for c in every if c not in kept] == [chr(n) for n in (*range(9), *range(11, 32), *range(127, 160))]
    assert clean("a\r\nb\tc\n👩‍👩‍👧 é ½ [/INST] [bold]") == "a\nb\tc\n👩‍👩‍👧 é ½ [/INST] [bold]"


def test_styles_end_before_the_line_does() -> None:
    assert TERMINAL.drafted("a\n\nb") == "\x1b[32ma\x1b[0m\n\n\x1b[32mb\x1b[0m"
    assert Style(styles=True).drafted("a") == "\x1b[4ma\x1b[0m"
    assert PLAIN.drafted("a") == "a"


def test_one_line() -> None:
    assert one_line("a\nb\x1b c", 20) == "a b c"
    assert one_line("abcdef", 4) == "abc…"


@pytest.mark.parametrize("style", [PLAIN, TERMINAL])
def test_an_answer_ends_with_one_line_end(style: Style) -> None:
    for text, ending in (("x", "x\n"), ("x\n", "x\n"), ("", "")):
        assert written([Span(text, False)], style)[0] == ending


def test_highlight_marks_drafted_text_only() -> None:
    spans = [Span("a", False), Span("b\n", True), Span("c", False)]
    assert written(spans, TERMINAL, highlight=True)[0] == "a\x1b[32mb\x1b[0m\nc\n"
    assert written(spans, TERMINAL)[0] == "ab\nc\n"


@pytest.mark.parametrize("think", ["dim", "show", "hide"])
def test_reasoning(think: str) -> None:
    out, err = written([Span("why", True, True), Span("because", False)], TERMINAL, think=think, highlight=True)
    assert out == "because\n"
    assert {"dim": "\x1b[2;32mwhy\x1b[0m\n\n", "show": "\x1b[32mwhy\x1b[0m\n\n"}.get(think, "thinking …") in err
    assert ("why" in err) == (think != "hide")


def test_reasoning_without_a_terminal_is_plain() -> None:
    assert written([Span("why", True, True), Span("so", False)], PLAIN, think="dim") == ("so\n", "why\n\n")
    assert written([Span("why", True, True), Span("so", False)], PLAIN, think="hide") == ("so\n", "")


def test_stats_line() -> None:
    stats = Stats()
    stats.begin(512, 474)
    stats.add(Round((1, 2, 3), n_from_draft=2, draft_n=4, draft_n_accepted=2, n_prefilled=38, verify_s=0.5))
    stats.add(Round((1,), verify_s=0.5))
    said = stats_view.parts(stats, 1000, ended="stopped")
    assert stats_view.joined(said) == (
        "4 tokens in 1.0 s, 4.0 tok/s | draft 2/4 accepted (50 %), 2.0 tokens per forward pass | "
        "prompt 38 new + 474 cached | context 52 % | stopped"
    )
    for width in (20, 40, 80, 200):
        rows = stats_view.joined(said, width).split("\n")
        assert " | ".join(rows) == stats_view.joined(said)
        assert all(len(row) < width or " | " not in row for row in rows)
    stats.off_reason = "the draft model is too slow"
    assert "; drafting is off: the draft model is too slow" in stats_view.joined(stats_view.parts(stats, 1000))


def test_stats_page_shows_positions_trace_and_plain_rounds() -> None:
    stats = Stats()
    for n, accepted in ((4, 4), (4, 2), (0, 0), (1, 0)):
        stats.add(Round((1,), draft_n=n, draft_n_accepted=accepted, verify_s=0.1))
    stats.off_reason = "it does not pay"
    text = "\n".join(stats_view.page(stats, stats, 1000, PLAIN))
    assert re.search(r"position +1 +2 +3 +4\n +accepted +67 % +100 % +50 % +100 %\n", text)
    assert "██·▃" in text
    assert "plain    1 of 4 rounds; drafting is off: it does not pay" in text
    stats.draft_lengths.remove(0)
    assert "plain    0 of 3 rounds; drafting is off: it does not pay" in "\n".join(
        stats_view.page(stats, stats, 1000, PLAIN)
    )


@pytest.mark.parametrize("width", [60, 80, 100, 140, None])
@pytest.mark.parametrize("drafts", [True, False])
def test_stats_page_breaks_between_words_and_says_once_why_drafting_is_off(width: int | None, drafts: bool) -> None:
    stats = Stats()
    for i in range(200):
        n = i % 17 if drafts else 0
        stats.add(Round((1,), draft_n=n, draft_n_accepted=n, verify_s=0.1))
    stats.off_reason = "drafting would run at 0.86 of plain speed, with 62% of first tokens right"
    page = stats_view.page(stats, stats, 1000, PLAIN, width)
    text = "\n".join(page)
    assert all(len(line) < (width or 250) for line in page), text
    words = text.split()
    assert " ".join(words).count(stats.off_reason) == 1
    assert {"62%", "rounds;"} <= set(words)
    row = next(i for i, line in enumerate(page) if line.startswith("  plain    "))
    below = page[row + 1]
    assert below.startswith((" " * (2 + stats_view.LABEL), "  time     ")), text
    if drafts:
        assert [int(n) for line in page if "position" in line for n in line.split()[1:]] == list(range(1, 17))


def test_ended_by() -> None:
    assert stats_view.ended_by("stop", False, 10, 100) == ""
    assert stats_view.ended_by("length", False, 10, 100) == "cut at max_tokens"
    assert stats_view.ended_by("length", False, 100, 100) == "context full"
    assert stats_view.ended_by(None, True, 10, 100) == "stopped"


def test_bars() -> None:
    assert stats_view.bars([0, 1, 3, 5], 5) == "·▂▅█"


def test_waiting_line_disappears_and_is_not_in_pipes() -> None:
    live, piped = io.StringIO(), io.StringIO()
    for stream, style in ((live, TERMINAL), (piped, PLAIN)):
        status = StatusOutput(style, stream=stream)
        status.wait("loading")
        status.tell("done")
    assert live.getvalue() == "\r\x1b[2mloading\x1b[0m\x1b[K\r\x1b[Kdone\n"
    assert piped.getvalue() == "done\n"


def test_a_waiting_line_that_is_cut_keeps_its_seconds() -> None:
    live = io.StringIO()
    StatusOutput(TERMINAL, stream=live).wait("loading " + "x" * 100 + " …", " 1.2 s")
    line = live.getvalue().removeprefix("\r\x1b[2m").removesuffix("\x1b[0m\x1b[K")
    assert line.endswith("x… 1.2 s")
    assert len(line) == 79


def test_progress_bar_and_line() -> None:
    live, piped = io.StringIO(), io.StringIO()
    for stream, style in ((live, TERMINAL), (piped, PLAIN)):
        with Progress(StatusOutput(style, stream=stream)) as progress:
            for done in (0, 500_000_000, 1_000_000_000):
                progress("model.gguf", done, 1_000_000_000)
    assert piped.getvalue() == "model.gguf: 1.0 GB\n"
    assert "100% of 1.0 GB" in live.getvalue()
    assert live.getvalue().endswith("\r\x1b[K")


def test_human_units() -> None:
    assert [human_bytes(n) for n in (0, 999, 1500, 98_362_432, 1_117_320_768, 47e9)] == [
        "0 bytes", "999 bytes", "2 kB", "98.4 MB", "1.1 GB", "47.0 GB",
    ]  # fmt: skip
    assert [human_seconds(s) for s in (0, 59, 61, 3700)] == ["0 s", "59 s", "1 min 1 s", "1 h 1 min"]


MARKDOWN = """# Title

A *few* words with `code` and [/INST].

1. first
2. second

```python
def f(x):
    return x  # [red]
```

| a | b |
|---|---|
| 1 | 2 |

The end."""


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_markdown_is_stable_and_independent_of_the_cuts(n: int) -> None:
    def render(n: int) -> list[str]:
        markdown = StableMarkdown(60, color=False)
        parts = [markdown.feed(MARKDOWN[i : i + n]) for i in range(0, len(MARKDOWN), n)]
        return [*parts, markdown.flush()]

    parts = render(n)
    text = re.sub("\x1b\\[[0-9;]*m", "", "".join(parts))
    assert "".join(parts) == "".join(render(len(MARKDOWN)))
    for piece in (
        "Title\n",
        "A few words with code and [/INST].",
        " 1 first",
        " 2 second",
        "    return x  # [red]\n",
        "The end.",
    ):
        assert piece in text
    assert "```" not in text
    assert all(len(line) <= 60 for line in text.splitlines())
    assert not any(code in "".join(parts) for code in ("\x1b[A", "\x1b[K", "\x1b[2J"))


def test_markdown_code_comes_line_by_line() -> None:
    markdown = StableMarkdown(60, color=True)
    seen = [markdown.feed(text) for text in ("```python\n", "x = 1\n", "y", " = 2\n", "```\n", "Done.\n")]
    plain = [re.sub("\x1b\\[[0-9;]*m", "", text).rstrip() for text in seen]
    assert plain == ["", "x = 1", "", "y = 2", "", ""]
    assert "Done." in markdown.flush()


def test_markdown_open_at_the_end() -> None:
    markdown = StableMarkdown(60, color=False)
    text = "".join([*map(markdown.feed, ("para\n", "```\n", "code")), markdown.flush()])
    assert "para" in text
    assert "code" in text


def test_width_of_something_that_is_no_terminal() -> None:
    assert console.width(io.StringIO()) == 80
