"""What a conversation in the terminal holds on to, and what slash commands work on. It reads no keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from specgguf.cli import open_pair
from specgguf.cli.chat.conversation import Conversation
from specgguf.cli.chat.display import Display
from specgguf.cli.chat.input import attachments
from specgguf.cli.chat.saved.autosave import Autosave
from specgguf.cli.chat.saved.sessions import Session
from specgguf.cli.chat.turn import Answer
from specgguf.cli.settings import Settings
from specgguf.cli.terminal import console
from specgguf.cli.terminal.render import Span
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import ContextFull


@dataclass
class ChatSession:
    """See the module.

    Attributes:
        attached: files that go with the next message.
        listed: what a numbered list showed last, for the command that a number follows.
        picks: the command that a number alone is given to: a numbered list was shown last.
        refused: the command that was refused because it would lose something; given again it is obeyed.
        debug: show the tracebacks of errors.
    """

    conversation: Conversation
    display: Display
    status: StatusOutput
    settings: Settings
    autosave: Autosave
    attached: list[attachments.Attachment] = field(default_factory=list)
    listed: list[str] = field(default_factory=list)
    picks: str = ""
    refused: str = ""
    debug: bool = False

    def short(self, text: str) -> str:
        """`text` on one line, as long as the terminal is wide."""
        return console.one_line(text, max(console.width(self.status.stream) - 50, 30))

    def take(self, session: Session) -> None:
        """Go on with `session`, and say where it stood."""
        self.conversation.take_up(session)
        self.tell(session)

    def tell(self, session: Session) -> None:
        """Say where a conversation stands that goes on."""
        n = self.conversation.n_turns
        self.status.say(f"'{session.name}', {n} {'turn' if n == 1 else 'turns'}: {self.short(session.title)}")
        asked, said = self.conversation.last_exchange
        if said:
            self.status.say(f"  > {self.short(asked)}\n  {self.short(said)}")
        if session.pending:
            self.status.say(f"its last question has no answer (/retry asks it again): {self.short(session.pending)}")

    def switch(self, ref: str, draft_ref: str, *, origin: str = "by /model") -> None:
        """Go on with other models. The old ones come back where the new ones cannot be used."""
        self.conversation.loaded = open_pair.switch(
            self.conversation.loaded, ref, draft_ref, self.settings, self.status, origin=origin
        )
        self.describe()

    def describe(self) -> None:
        """Tell the autosave which models and settings belong to the conversation."""
        loaded = self.conversation.loaded
        self.autosave.describe(model=loaded.model_ref, draft_model=loaded.draft_ref, settings=self.settings.to_keep())

    def drop_files(self) -> None:
        """Another conversation begins: what was attached for this one does not go into it."""
        if self.attached:
            self.status.tell(f"no longer attached: {', '.join(file.path.name for file in self.attached)}")
            self.attached.clear()

    def attach(self, path: Path) -> attachments.Attachment:
        """Hold the file at `path` for the next message. Raises as `attachments.read`."""
        n_free = self.conversation.loaded.engine.n_ctx() - sum(attached.n_tokens for attached in self.attached)
        found = attachments.read(
            path, lambda text: self.conversation.count([{"role": "user", "content": text}]), n_free
        )
        self.attached.append(found)
        return found

    def with_files(self, question: str) -> str:
        """`question`, and what is attached."""
        return "\n\n".join([question, *(file.message for file in self.attached)])

    def ask(self, question: str, *, again: bool = False, mentions: bool = False) -> None:
        """Send a question with what is attached, and show the answer.

        Args:
            again: the question was sent before, with what was attached then.
            mentions: attach the files that it names as @path.
        """
        for path in attachments.mentioned(question) if mentions else ():
            if path not in [attached.path for attached in self.attached]:
                self.attach(path)
        files = [] if again else list(self.attached)
        text = question if again else self.with_files(question)
        self.display.legend_once()
        self.describe()
        del self.attached[: len(files)]  # from here on they are part of the question
        try:
            with console.quiet_keyboard():
                answer = self.conversation.send(text, self.display.show)
        except ContextFull:  # nothing was sent
            self.attached[:0] = files
            if files:
                self.conversation.unanswered = question
            raise
        self.display.after(answer, self.conversation.loaded.engine)
        self._tell_answer(answer, again=again)

    def more(self) -> None:
        """Go on with the last answer, and show what comes."""
        self.describe()
        with console.quiet_keyboard():
            answer = self.conversation.more(self.display.show)
        if answer is None:
            self.status.tell("there is no answer to go on with")
            return
        self.display.after(answer, self.conversation.loaded.engine)
        self._tell_answer(answer, again=True)

    def _tell_answer(self, answer: Answer, *, again: bool) -> None:
        if answer.interrupted and not answer.spans:
            if again and not self.conversation.unanswered:
                self.status.say("stopped before the first word; the answer before stays")
            else:
                self.status.say("stopped before the first word; the question is taken back (/retry asks it again)")
            return
        if answer.is_known:
            self.status.say("the same answer as before, kept once")
        n, n_all = self.conversation.answers()
        if n_all > 1:
            self.status.say(f"answer {n} of {n_all} (/prev shows the one before)")
        if answer.finish_reason == "length":
            self.status.say("/more goes on with it")

    def show_answer(self) -> None:
        """Show the answer that the thread ends with, after it was turned to."""
        n, n_all = self.conversation.answers()
        if n_all > 1:
            self.status.say(f"answer {n} of {n_all}")
        message = self.conversation.messages[-1]
        reasoning = message.get("reasoning_content", "")
        spans = [Span(reasoning, False, reasoning=True)] if reasoning else []
        self.conversation.last = Answer([*spans, Span(message["content"], False)], "stop")
        self.display.again(self.conversation.last)
