"""How answers are shown: the display settings in one place, shared by one-shot and conversation."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from specgguf.cli.chat.turn import Answer
from specgguf.cli.settings import Settings
from specgguf.cli.terminal import console, stats_view
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
        self.style = console.style_for(sys.stdout, settings["color"])
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
        )

    def again(self, answer: Answer) -> None:
        """Show an answer once more, as the settings are now."""
        replay(answer.spans, self.sink())

    def legend(self) -> str:
        """What the highlighting means, highlighted itself. To be shown: it counts as that."""
        self._legend_shown = True
        if not self.style.styles:
            return "highlighting needs a terminal with colours or underlining (or --color always)"
        mark = self.style.drafted("written by the draft model, accepted by the target")
        return f"{mark} · the target's own words"

    def legend_once(self) -> None:
        """The legend, before the first highlighted answer."""
        if self.settings["highlight"] and not (self._legend_shown or self.as_json or self.status.quiet):
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
            self.status.say(stats_view.joined(stats_view.parts(stats, engine.n_ctx(), ended=ended), width))
