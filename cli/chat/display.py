"""How answers are shown, and what stands under one while it is made: the display settings in one place, shared by
one-shot and conversation."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from specgguf.cli import keyboard
from specgguf.cli.chat.input.ahead import Ahead
from specgguf.cli.chat.turn import Answer
from specgguf.cli.settings import Settings
from specgguf.cli.terminal import console, live, stats_view
from specgguf.cli.terminal.render import AnswerWriter, Collect, Sink, replay, write_json
from specgguf.cli.terminal.status import StatusOutput

if TYPE_CHECKING:
    from specgguf import SpeculativeLlama


class Display:
    """Makes sinks for answers, and says what belongs to them: legend, statistics, JSON."""

    def __init__(self, settings: Settings, status: StatusOutput, *, as_json: bool = False) -> None:
        self.settings = settings
        self.status = status
        self.as_json = as_json
        self.style = console.style_for(sys.stdout, settings["color"], plain=settings["plain"])
        self._legend_shown = False

    def sink(self) -> Sink:
        """Where the next answer goes."""
        if self.as_json:
            return Collect()
        return AnswerWriter(
            self.status,
            style=self.style,
            highlight=self.settings["highlight"],
            think=self.settings["think"],
            markdown=self.settings["markdown"],
            wrap=self.settings["wrap"],
            labels=self.settings["plain"],
        )

    @contextlib.contextmanager
    def show(self, answer: Answer, engine: SpeculativeLlama) -> Iterator[Sink]:
        """A `Show`."""
        drafting = self.settings["stats"] and self.style.live and not self.as_json
        with live.LiveLines(self.status, AnswerLines(answer, engine, self.status, drafting=drafting)) as lines:
            yield lines.over(self.sink())

    @contextlib.contextmanager
    def show_quietly(self, answer: Answer, engine: SpeculativeLlama) -> Iterator[Sink]:
        """A `Show` of what is no answer: only the lines that tell how it goes."""
        with live.LiveLines(self.status, AnswerLines(answer, engine, self.status, drafting=True)) as lines:
            yield lines.over(Collect())

    def again(self, answer: Answer) -> None:
        """Show an answer once more, as the settings are now."""
        replay(answer.spans, self.sink())

    def legend(self) -> str:
        """What the highlighting means, highlighted itself. To be shown: it counts as that."""
        self._legend_shown = True
        if not self.style.styles:
            return "highlighting needs a terminal with colours or underlining (or --color always)"
        how = self.settings["highlight"]
        mark = self.style.drafted("written by the draft model, accepted by the target", how=how)
        return f"{mark} · the target's own words"

    def legend_once(self) -> None:
        """The legend, before the first highlighted answer."""
        if self.settings["highlight"] != "off" and not (self._legend_shown or self.as_json or self.status.quiet):
            self.status.tell(self.legend())
            if self.settings["markdown"]:
                self.status.say("the text is shown as it is: highlighting and --markdown exclude each other")

    def after(self, answer: Answer, engine: SpeculativeLlama) -> None:
        """What follows an answer: its JSON, and the statistics line."""
        if self.as_json:
            write_json(answer.completion())
        if answer.interrupted and not answer.spans:
            return
        if not answer.text and not answer.interrupted:
            self.status.say("the answer is empty")
        if self.settings["stats"] and not self.status.quiet:
            stats = engine.last_stats
            ended = stats_view.ended_by(
                answer.finish_reason, answer.interrupted, stats.n_prompt + stats.n_generated, engine.n_ctx()
            )
            width = console.width(self.status.stream) if self.status.style.tty else None
            said = stats_view.parts(stats, engine.n_ctx(), ended=ended, first_s=answer.first_s)
            self.status.say(stats_view.joined(said, width))
        if 0 < self.settings["bell"] <= answer.total_s and not answer.interrupted:
            self.status.ring("specgguf: answered" if keyboard.is_held() else "")


class AnswerLines:
    """The lines under an answer as they are now: call it."""

    def __init__(self, answer: Answer, engine: SpeculativeLlama, status: StatusOutput, *, drafting: bool) -> None:
        """`drafting`: also how drafting goes."""
        self._answer = answer
        self._engine = engine
        self._status = status
        self._drafting = drafting
        self._started = time.monotonic()
        self._reading: live.Reading | None = None
        self._typed: tuple[int, Ahead] = (0, Ahead())

    def __call__(self) -> list[str]:
        columns = console.width(self._status.stream) - 1
        style = self._status.style
        line = style.dim(console.one_line(self._line(columns), columns))
        ahead = self._ahead()
        typed = live.typed_lines(ahead.queued, ahead.text, ahead.cursor, columns, style)
        return [*([line] if line else []), *typed]

    def _line(self, columns: int) -> str:
        if self._answer.reply is None:
            return ""
        stats = self._answer.reply.generation.stats
        if self._answer.spans:
            if not self._drafting or time.monotonic() - self._started < live.AFTER_S:
                return ""
            return live.drafting_line(stats, stats_view.plain_speed(self._engine.stats), columns)
        if not stats.n_prompt:
            return ""
        if self._reading is None:
            self._reading = live.Reading(self._engine.prompt_speed, self._engine.n_batch)
        return self._reading.line(stats.n_prompt - stats.n_cached, self._engine.n_tokens - stats.n_cached)

    def _ahead(self) -> Ahead:
        bursts = keyboard.ahead()
        n = sum(map(len, bursts))
        if n != self._typed[0]:
            self._typed = n, Ahead.of(bursts)
        return self._typed[1]
