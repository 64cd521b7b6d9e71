"""Messages, the chat template that turns them into a prompt, and how they are made to fit the context.

The GGUF's own template is rendered by llama-cpp-python's `Jinja2ChatFormatter`; no template is written here.
This module knows nothing of token ids: who calls it counts and tokenizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from specgguf.config import did_you_mean, one_line
from specgguf.errors import ConfigError, ContextFull, Unsupported

from .control_texts import ControlTexts, Rendered
from .messages import Message, normalized

_TEMPLATE_KEY = "tokenizer.chat_template"
_OTHERWISE = (
    "to chat, take an instruct model's file (in Python, chat_format= names a template instead); "
    "plain text is completed by create_completion, and by /v1/completions of specgguf serve"
)
FREED = 1 / 3  # of the budget, at once: dropping a turn makes the whole prompt new to the caches


class RenderedPrompt(list[int]):
    """The token ids of a rendered conversation, and what its end says of the answer.

    Attributes:
        reasoning_tag: the tag by which the template opened the model's reasoning, "" where it did not.
    """

    def __init__(self, tokens: Iterable[int], reasoning_tag: str = "") -> None:
        super().__init__(tokens)
        self.reasoning_tag = reasoning_tag


class ChatTemplate:
    """A model's chat template.

    Attributes:
        stop: texts that end an answer beside the end-of-generation tokens, as in llama-cpp-python.
        knows_tools: whether the template tells the model of `tools` at all.
    """

    def __init__(self, metadata: Mapping[str, str], *, bos: str, eos: str, control: Iterable[str] = ()) -> None:
        """Args:
        metadata: the GGUF's.
        bos, eos: the texts of these tokens, "" where the vocabulary has none.
        control: the texts of all control tokens, which messages may spell and not mean.

        Raises:
            Unsupported: the file has no chat template, or a broken one.
        """
        if _TEMPLATE_KEY not in metadata:
            raise Unsupported("this model file has no chat template", hint=_OTHERWISE)
        self._bos, self._eos = bos, eos
        self._control = ControlTexts(control)
        self.stop: tuple[str, ...] = (eos,) if eos else ()
        texts = {False: metadata[_TEMPLATE_KEY]}
        if f"{_TEMPLATE_KEY}.tool_use" in metadata:
            texts[True] = metadata[f"{_TEMPLATE_KEY}.tool_use"]
        self.knows_tools = True in texts or "tools" in texts[False]
        self._formatters = {
            (with_tools, generate): self._compile(text, generate=generate)
            for with_tools, text in texts.items()
            for generate in (True, False)
        }

    def _compile(self, template: str, *, generate: bool) -> Any:
        """A formatter, with or without the beginning of an answer at the end."""
        import jinja2

        from specgguf.native import compat

        try:
            return compat.chat_formatter(template, bos=self._bos, eos=self._eos, generate=generate)
        except jinja2.TemplateError as e:
            raise Unsupported(f"this model file's chat template is broken: {_reason(e)}", hint=_OTHERWISE) from e

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """The prompt text, ending where the assistant speaks (see `has_bos` before tokenizing it).

        Args:
            messages: a conversation; checked by `normalized`. Where an answer's text comes last, the prompt ends with
                it, so that the assistant goes on from there.
            tools: functions that the model may call.
            enable_thinking, reasoning_effort: passed to the template; None leaves the choice to it.
            add_generation_prompt: False ends after the last message.

        Raises:
            ConfigError: a message is malformed, or the template refuses the conversation.
        """
        given = {"enable_thinking": enable_thinking, "reasoning_effort": reasoning_effort}
        switches = {name: value for name, value in given.items() if value is not None}
        wanted = (bool(tools), add_generation_prompt)
        formatter = self._formatters.get(wanted) or self._formatters[False, add_generation_prompt]
        plain = normalized(messages)
        protected, shown, put_back = self._control.protect(plain, tools or ())
        begun = protected.pop()["content"] if add_generation_prompt and _is_begun(plain) else ""
        try:
            result = formatter(messages=protected, tools=shown or None, **switches)
        except Exception as e:  # a template is a program of its own: it may raise anything
            raise ConfigError(
                f"this model's chat template refuses the conversation: {_reason(e)}",
                hint=_refusal_hint(plain),
            ) from e
        return put_back(str(result.prompt) + begun)

    def has_bos(self, prompt: str) -> bool:
        """Whether a rendered prompt begins with the BOS token already: then the tokenizer must add none."""
        return bool(self._bos) and prompt.startswith(self._bos)


class NamedTemplate(ChatTemplate):
    """One of llama-cpp-python's own chat formats ("chatml", "gemma", …), for files without a template."""

    def __init__(self, name: str, *, bos: str = "", eos: str = "", control: Iterable[str] = ()) -> None:
        """Raises ConfigError for an unknown name."""
        from specgguf.native import compat

        handlers = compat.chat_handlers()
        if name not in handlers:
            known = sorted(handlers)
            hint = did_you_mean(name, known) or f"one of {', '.join(known)}"
            raise ConfigError(f"unknown chat_format '{name}'", hint=hint)
        self._bos, self._eos = bos, eos
        self._control = ControlTexts(control)
        self._handler = handlers[name]
        self.knows_tools = False
        self.stop = _Recorder.of(self._handler, [{"role": "user", "content": ""}]).stop

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        add_generation_prompt: bool = True,
    ) -> Rendered:
        """As `ChatTemplate.render`; these formats know neither tools nor thinking: an effort is left out, a switch is
        not."""
        if tools or (enable_thinking is not None and reasoning_effort is None) or not add_generation_prompt:
            raise Unsupported("a named chat_format takes neither tools nor enable_thinking")
        plain = normalized(messages)
        protected, _, put_back = self._control.protect(plain, ())
        begun = protected.pop()["content"] if _is_begun(plain) else ""
        return put_back(_Recorder.of(self._handler, protected).prompt + begun)


class _Recorder(BaseException):
    """Stands in for a `Llama` that a chat handler talks to, until it has said what it would complete."""

    prompt = ""
    stop: tuple[str, ...] = ()
    verbose = False

    @classmethod
    def of(cls, handler: Callable[..., Any], messages: list[Message]) -> _Recorder:
        recorder = cls()
        try:
            handler(llama=recorder, messages=messages)
        except cls:
            return recorder
        except Exception as e:
            raise Unsupported(f"this chat_format cannot be used: {_reason(e)}") from e
        raise Unsupported("this chat_format cannot be used: it asked for no completion")

    def tokenize(self, text: bytes, **_: Any) -> list[int]:
        self.prompt = text.decode()
        return []

    def create_completion(self, *, prompt: Any = None, stop: Any = (), **_: Any) -> None:
        if isinstance(prompt, str):
            self.prompt = prompt
        self.stop = tuple(s for s in ([stop] if isinstance(stop, str) else stop or ()) if s)
        raise self


def fit(
    messages: Sequence[Mapping[str, Any]],
    count: Callable[[list[Message]], int],
    budget: int,
    *,
    overflow: str,
) -> tuple[list[Message], int]:
    """Make a conversation fit: drop whole turns, the oldest first, never the system prompt or the last turn.

    A turn is a user message and all that follows it. When something must go, a third of the budget is freed
    at once, so that the next turns fit too and reuse what the caches hold.

    Args:
        messages: the conversation, ending with the turn to answer.
        count: the tokens of the prompt for such messages; it may raise ContextFull instead of counting what no
            context could hold.
        budget: how many tokens the prompt may take.
        overflow: "drop" does the above; "stop" refuses instead.

    Returns:
        The messages to send, and how many turns were dropped.

    Raises:
        ContextFull: "stop", or the system prompt and the last turn alone are too long.
    """
    if overflow not in ("drop", "stop"):
        raise ConfigError(f"overflow must be drop or stop, not {overflow!r}")
    whole = [dict(m) for m in messages]
    n_tokens = counted(count, whole)
    if n_tokens <= budget:
        return whole, 0
    head, turns = _turns(whole)
    if overflow == "stop" and len(turns) > 1:  # one turn alone is too long either way: said below
        size = f"{n_tokens} tokens" if n_tokens < math.inf else "more tokens than could be counted"
        raise ContextFull(
            f"the conversation takes {size} and {budget} fit",
            hint="use --overflow drop, a larger --n-ctx, or /clear",
        )

    def without(n: int) -> list[Message]:
        return head + [m for turn in turns[n:] for m in turn]

    low, high = 1, max(1, len(turns) - 1)  # the fewest turns to drop that free enough, or all but the last
    while low < high:
        middle = (low + high) // 2
        if counted(count, without(middle)) <= budget * (1 - FREED):
            high = middle
        else:
            low = middle + 1
    n_dropped = low if len(turns) > 1 else 0
    n_tokens = count(without(n_dropped))
    if n_tokens > budget:
        raise ContextFull(
            f"the last message alone takes {n_tokens} tokens and {budget} fit",
            hint="shorten it, or use a larger --n-ctx",
        )
    return without(n_dropped), n_dropped


def counted(count: Callable[[list[Message]], int], messages: list[Message]) -> float:
    """The tokens of `messages`; infinitely many where `count` refuses."""
    try:
        return count(messages)
    except ContextFull:
        return math.inf


def _turns(messages: list[Message]) -> tuple[list[Message], list[list[Message]]]:
    """The system messages at the beginning, and the turns after them."""
    n_head = 0
    while n_head < len(messages) and messages[n_head].get("role") in ("system", "developer"):
        n_head += 1
    turns: list[list[Message]] = []
    for message in messages[n_head:]:
        if message.get("role") == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return messages[:n_head], turns


def _is_begun(messages: list[Message]) -> bool:
    """Whether a conversation ends with the beginning of an answer."""
    return len(messages) > 1 and messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")


def _refusal_hint(messages: list[Message]) -> str:
    """What is most likely to be at fault when a template refuses."""
    roles = [m["role"] for m in messages]
    if "system" in roles:
        return "it may know no system message: put its text at the beginning of the first user message"
    if roles[0] != "user" or any(a == b for a, b in pairwise(roles)):
        return "user and assistant messages may have to alternate, a user message first"
    return ""


def _reason(error: Exception) -> str:
    return one_line(f"it lacks {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__)
