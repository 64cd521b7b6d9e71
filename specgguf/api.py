"""`SpeculativeLlama`: the public face. Text and messages in, llama-cpp-python's dicts out.

A stand-in for `llama_cpp.Llama` with a draft beside it. What it adds: `timings`, `from_draft`, `generate`,
`stats`, `cancel`. What it does not support is refused by name. The work is done elsewhere: tokens by `engine`,
text by `text`, dicts by `completion`.
"""

from __future__ import annotations

import inspect
import itertools
import random
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Unpack, overload

from . import batched, scoring
from .batched import BatchProgress, BatchResult
from .calls import AsyncCalls, ChatOptions, Chunks, CompletionOptions, Json, Messages, Prompt, Reply, Streamed, Whole
from .config import DraftConfig, SamplingParams, parse_draft
from .control.trace import Trace, to_file
from .decode.generation import Generation, check_prompt
from .decode.records import TokenLogprob
from .decode.stats import Stats
from .errors import ConfigError, SpecggufError, Unsupported
from .grammar.cursor import CompiledGrammar, compile_grammar, compiled
from .llama_names import LlamaNames
from .loading import Places, open_pair
from .text import tokenize as prompts
from .text.arguments import completion_params, draft_config, thinking_of, token_ids, tool_request
from .text.completion import ChatCompletion, Completion, ResponseMetadata, TextCompletion
from .text.detokenize import Detokenizer, ReasoningSplitter, open_reasoning
from .text.logprobs import ChatLogprobWriter, LogprobWriter
from .text.stream import ChunkStream
from .text.template import ChatTemplate, RenderedPrompt

PROMPT_TELLS = 200  # tokens read: fewer say little about how fast prompts are read


class SpeculativeLlama(LlamaNames, AsyncCalls):
    """A target model whose tokens a draft model may write, with the target's own distribution.

    Args:
        model_path: the target's GGUF file.
        draft_model_path: the draft's GGUF file, "ngram" (n-grams of the text itself), "heads" (the model's own
            prediction heads), or None: plain decoding.
        n_ctx: context length in tokens of both, for each generation; 0 takes the model's own.
        n_parallel: how many generations run at once, in shared passes; calls beyond them wait. Each has its own text,
            settings and draft length.
        cache_tokens: what the caches hold for all of them together; None: n_ctx for each.
        n_gpu_layers: None offloads all layers where the build can; an explicit number that it cannot serve is
            one of `warnings`.
        draft: "auto" (0..draft_max tokens, whatever is fastest), an int (always that many), or "off".
        draft_max: the most tokens drafted in one round, 1..16.
        verify: "auto", "token" or "block": the acceptance rule.
        strict: rows of every batch size bit-identical on CPU with F32, F16, Q8_0, Q4_0, Q4_1 weights: greedy
            text equals plain decoding token for token, but plain steps are slower.
        seed: makes calls without a seed of their own repeatable; 0 is a seed, None draws one.
        draft_first: the draft length while nothing was measured yet.
        draft_temperature: the draft's own temperature (any is exact); None takes the target's.
        draft_vocab: "any" maps a draft of another vocabulary to the target's tokens; "same" refuses it.
        chat_format: one of llama-cpp-python's formats instead of the file's own template.
        rpc_servers: HOST:PORT of workers (`specgguf worker`) that take layers of the target, one or several;
            `draft_rpc_servers` of the draft. `tensor_split` is then this machine's share and theirs.
        trace: a file that gets a JSON line per decision of the adaptive controller, or a callable for the records.
        keywords: any of `llama_cpp.Llama` for the target; the same with `draft_` for the draft.

    Attributes:
        warnings: one-line remarks made while loading.
        draft, draft_max: defaults of the next calls; may be set.

    Raises:
        ConfigError, Unsupported: a keyword. ModelNotFound, BackendError: a file. VocabMismatch: the pair.
    """

    def __init__(
        self,
        model_path: str,
        draft_model_path: str | None = None,
        *,
        n_ctx: int = 4096,
        n_gpu_layers: int | None = None,
        n_parallel: int = 1,
        cache_tokens: int | None = None,
        draft: int | str = "auto",
        draft_max: int = 5,
        verify: str = "auto",
        strict: bool = False,
        seed: int | None = None,
        draft_first: int = 4,
        draft_temperature: float | None = None,
        draft_vocab: str = "any",
        chat_format: str | None = None,
        rpc_servers: str | Sequence[str] | None = None,
        trace: str | Trace | None = None,
        **keywords: Any,
    ) -> None:
        self._arguments = {k: v for k, v in locals().items() if k not in ("self", "keywords", "__class__")} | keywords
        config = DraftConfig(draft, draft_max, verify, draft_temperature, draft_first, draft_vocab)
        keywords |= {"n_ctx": n_ctx, "n_gpu_layers": n_gpu_layers, "rpc_servers": rpc_servers}
        trace = to_file(trace) if isinstance(trace, str) else trace
        self._pair = open_pair(
            model_path,
            draft_model_path,
            config,
            strict=strict,
            places=Places(n_parallel, cache_tokens),
            keywords=keywords,
            trace=trace,
        )
        self._finalizer = weakref.finalize(self, self._pair.close)  # also at exit, before modules are torn down
        self._engine = self._pair.engine
        self._config = config
        self._seeds = None if seed is None else random.Random(seed)
        self.model_path = model_path
        self.draft_model_path = draft_model_path
        placement = [f"{side}: {where}" for side, where in self._pair.placement.items()]
        self.warnings = placement + self._pair.warnings
        self._chat_format = chat_format
        self._template_made: ChatTemplate | None = None

    @classmethod
    def from_preset(cls, name: str, *, offline: bool | None = None, **keywords: Any) -> SpeculativeLlama:
        """Load a preset's pair ("auto": the one for this machine), downloaded if need be; `keywords` override it. The
        maker's sampling (`presets.load(name).sampling`) is for the calls, and not applied here."""
        from .fit.pair_choice import choose_pair
        from .models import hf_client, hub

        is_offline = hf_client.is_offline() if offline is None else offline
        choice = choose_pair(preset=name, offline=is_offline)
        files = choice.files(lambda ref: hub.resolve(ref, offline=offline))
        draft = None if files.draft_model is None else str(files.draft_model)
        own = choice.preset.keywords if choice.preset is not None else {}
        return cls(str(files.model), draft, **(own | keywords))

    @property
    def draft(self) -> int | str:
        """ "auto", "off", or the number of tokens always drafted."""
        return self._config.draft

    @draft.setter
    def draft(self, value: int | str) -> None:
        self._config = replace(self._config, draft=parse_draft(value))

    @property
    def draft_max(self) -> int:
        """The most tokens drafted in one round."""
        return self._config.draft_max

    @draft_max.setter
    def draft_max(self, value: int) -> None:
        self._config = replace(self._config, draft_max=value)

    @property
    def n_parallel(self) -> int:
        """How many generations run at once."""
        return self._engine.n_parallel

    @property
    def stats(self) -> Stats:
        """Sums over all generations; seconds that several spend together count once."""
        return self._engine.stats

    @property
    def last_stats(self) -> Stats:
        """Sums over the latest generation."""
        return self._engine.last_stats

    @property
    def prompt_speed(self) -> float:
        """Tokens a second in which a prompt is expected to be read: as those before, or, if none was long enough to
        tell, as in the largest forward pass whose cost is known. 0 where nothing is."""
        read, costs = self.stats, self._engine.costs
        if read.prompt_s and read.n_prefilled >= PROMPT_TELLS:
            return read.n_prefilled / read.prompt_s
        seconds = costs.unpadded_s(costs.batch_max) if costs is not None else 0.0
        return costs.batch_max / seconds if costs is not None and seconds else 0.0

    @property
    def rollback(self) -> dict[str, str]:
        """How each context drops rejected tokens: plain, native, checkpoint or unsupported."""
        draft = self._engine.draft_model
        return {"target": self._engine.target.rollback.name} | ({"draft": draft.rollback.name} if draft else {})

    @property
    def decode_s(self) -> float:
        """Seconds inside llama.cpp's decoding so far, both models together: the rest of a run is Python's."""
        models = (self._engine.target, self._engine.draft_model)
        return sum(model.context.decode_s for model in models if model is not None)

    # --- text and tokens ----------------------------------------------------------------------------------

    @property
    def _vocab(self) -> Any:
        return self._pair.weights.vocab

    @property
    def _piece(self) -> Callable[[int], bytes]:
        return self._pair.weights.piece  # not ours: what runs must not keep this object, or nothing would ever free it

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
    ) -> RenderedPrompt:
        """The prompt's token ids of a conversation, by the model's own template, with exactly one BOS. For
        `enable_thinking` and `reasoning_effort` see `create_chat_completion`.

        Raises:
            ContextFull: it is so long that no tokens could make it fit.
        """
        implied = thinking_of(reasoning_effort)
        prompt = self._template.render(
            messages,
            tools=tools,
            enable_thinking=implied if enable_thinking is None else enable_thinking,
            reasoning_effort=reasoning_effort,
        )
        add_bos = not self._template.has_bos(prompt)
        tokens = prompts.rendered_ids(self._pair.weights, prompt, add_bos=add_bos, n_ctx=self.n_ctx())
        return RenderedPrompt(tokens, open_reasoning(prompt))

    def compile_grammar(self, grammar: Any) -> CompiledGrammar:
        """A grammar, in any form that `grammar=` takes, for any number of calls with it: it is compiled now, once.

        Raises:
            ConfigError: it is none, cannot be kept to, or is too large. Busy: others are still being compiled.
        """
        return compiled(grammar, self._pair.weights)

    @property
    def _template(self) -> ChatTemplate:
        if self._template_made is None:
            self._template_made = prompts.template_of(self._pair.weights, self._chat_format)
        return self._template_made

    # --- generating ---------------------------------------------------------------------------------------

    def generate(
        self,
        tokens: Sequence[int],
        params: SamplingParams | None = None,
        *,
        draft: int | str | None = None,
        draft_max: int | None = None,
        timeout: float | None = None,
    ) -> Generation:
        """What follows a prompt of token ids: chunks of text, or with `rounds()` the rounds they came in.

        Raises:
            ConfigError, ContextFull: at once, before anything is decoded.
            Cancelled, Busy, BackendError: while iterating.
        """
        config = draft_config(self._config, draft, draft_max)
        return self._generation(tokens, params or SamplingParams(), config, timeout)

    def generate_batch(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        draft: int | str | None = None,
        draft_max: int | None = None,
        in_order: bool = False,
        progress: Callable[[BatchProgress], None] | None = None,
    ) -> Iterator[BatchResult]:
        """What follows each of many prompts, `n_parallel` of them at a time; a prompt that cannot be answered is a
        result with an `error`, and the others go on. Closing the iterator ends what runs.

        Args:
            prompts: texts or token ids (`render` makes those of a conversation); may be a generator.
            params: for all of them, or one for each.
            in_order: results in the order of the prompts; else as they end.
            progress: told after every round.

        Raises:
            ConfigError: at once, for settings that are none, or fewer `params` than prompts.
        """
        config = draft_config(self._config, draft, draft_max)
        n_prompts = len(prompts) if isinstance(prompts, Sequence) else None
        if isinstance(params, Sequence) and n_prompts is not None and len(params) != n_prompts:
            raise ConfigError(f"{n_prompts} prompts and {len(params)} params: give one for all, or one for each")
        each = iter(params) if isinstance(params, Sequence) else itertools.repeat(params or SamplingParams())
        wanted = (self._wanted(prompt, one, config) for prompt, one in zip(prompts, each, strict=False))
        return batched.run(self._engine, wanted, n_prompts=n_prompts, in_order=in_order, progress=progress)

    def _wanted(self, prompt: Prompt, params: SamplingParams, config: DraftConfig) -> batched.Wanted:
        try:
            tokens = prompts.prompt_ids(self._pair.weights, prompt, None, self.n_ctx())
            check_prompt(tokens, self.n_ctx())
        except SpecggufError as error:
            return batched.Wanted([], error=error)
        n_more = params.max_tokens if params.max_tokens and params.max_tokens > 0 else self.n_ctx()
        n_tokens = min(len(tokens) + n_more, self.n_ctx())
        return batched.Wanted(tokens, n_tokens, lambda: self._generation(tokens, params, config, None))

    def _generation(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        config: DraftConfig,
        timeout: float | None,
        splitter: ReasoningSplitter | None = None,
    ) -> Generation:
        n_ctx = self.n_ctx()
        prompt = token_ids(prompt)
        check_prompt(prompt, n_ctx)
        if any(not 0 <= t < self.n_vocab() for t in prompt):
            raise ConfigError(f"the prompt holds an id that this model lacks; its ids are 0 to {self.n_vocab() - 1}")
        if params.seed is None and self._seeds is not None:
            params = replace(params, seed=self._seeds.getrandbits(63))
        n_left = n_ctx - len(prompt)
        max_tokens = n_left if params.max_tokens is None or params.max_tokens <= 0 else min(params.max_tokens, n_left)
        grammar = None
        if params.grammar is not None:
            grammar = compile_grammar(params.grammar, self._pair.weights)
        detokenizer = Detokenizer(self._piece, eog=self._engine.target.eog, stop=params.stop, max_tokens=max_tokens)
        return self._engine.generate(
            prompt,
            params,
            config=config,
            text=ChunkStream(detokenizer, splitter),
            grammar=grammar,
            max_tokens=max_tokens,
            timeout=timeout,
        )

    @overload
    def create_completion(self, prompt: Prompt, *, stream: Streamed, **o: Unpack[CompletionOptions]) -> Chunks: ...
    @overload
    def create_completion(self, prompt: Prompt, *, stream: Whole = False, **o: Unpack[CompletionOptions]) -> Json: ...
    @overload
    def create_completion(self, prompt: Prompt, *, stream: bool, **o: Unpack[CompletionOptions]) -> Reply: ...
    @overload
    def create_completion(self, prompt: Prompt, suffix: str | None, /, *args: Any, **o: Any) -> Reply: ...
    def create_completion(
        self,
        prompt: str | Sequence[int],
        suffix: str | None = None,
        max_tokens: int | None = 16,
        temperature: float = 0.8,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        logprobs: int | None = None,
        echo: bool = False,
        stop: str | Sequence[str] | None = None,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        top_k: int = 40,
        stream: bool = False,
        seed: int | None = None,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        stopping_criteria: object = None,
        logits_processor: object = None,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
        *,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        draft: int | str | None = None,
        draft_max: int | None = None,
        timeout: float | None = None,
    ) -> Json | Iterator[Json]:
        """Complete a text, as `llama_cpp.Llama.create_completion`; the dicts also carry `timings`, and each chunk
        `from_draft`.

        Args:
            draft, draft_max: for this call, see `SpeculativeLlama`.
            timeout: seconds to wait for another thread's call; 0 does not wait (Busy).

        Raises:
            ConfigError, Unsupported, ContextFull: at once. Cancelled, Busy, BackendError: while generating.
        """
        reply = self._complete(locals())
        return reply.chunks() if stream else reply.whole()

    def complete(self, prompt: Prompt, **options: Unpack[CompletionOptions]) -> Completion:
        """`create_completion` as an object: its dict, its chunks, and the generation behind them."""
        return self._complete(_with_defaults(self.create_completion, prompt, options))

    def _complete(self, call: Mapping[str, Any]) -> Completion:
        params, config = completion_params(self._config, call)
        prompt, suffix, echo = call["prompt"], call["suffix"], call["echo"]
        tokens = prompts.prompt_ids(self._pair.weights, prompt, suffix, self.n_ctx())
        text = prompt if isinstance(prompt, str) else self.detokenize(prompt).decode("utf-8", "ignore")
        generation = self._generation(tokens, params, config, call["timeout"])
        writer = None
        if (n_top := call["logprobs"]) is not None:
            scores = self._scores(tokens, n_top, call["timeout"], generation) if echo else []
            writer = LogprobWriter(self._piece, len(text), list(zip(tokens, scores, strict=False)))
        return TextCompletion(
            self._metadata_of(call),
            generation,
            logprobs=writer,
            echo=text if echo else "",
        )

    def _scores(
        self, tokens: Sequence[int], n_top: int, timeout: float | None, generation: Generation
    ) -> list[TokenLogprob | None]:
        return scoring.score(self._engine, tokens, n_top, timeout, lambda: generation.cancelled)

    def _metadata_of(self, call: Mapping[str, Any]) -> ResponseMetadata:
        return ResponseMetadata(f"cmpl-{uuid.uuid4()}", int(time.time()), call["model"] or self.model_path)

    @overload
    def __call__(self, prompt: Prompt, *, stream: Streamed, **o: Unpack[CompletionOptions]) -> Chunks: ...
    @overload
    def __call__(self, prompt: Prompt, *, stream: Whole = False, **o: Unpack[CompletionOptions]) -> Json: ...
    @overload
    def __call__(self, prompt: Prompt, *, stream: bool, **o: Unpack[CompletionOptions]) -> Reply: ...
    @overload
    def __call__(self, prompt: Prompt, suffix: str | None, /, *args: Any, **o: Any) -> Reply: ...
    def __call__(self, prompt: str | Sequence[int], *args: Any, **keywords: Any) -> Json | Iterator[Json]:
        """`create_completion`."""
        reply: Reply = self.create_completion(prompt, *args, **keywords)
        return reply

    @overload
    def create_chat_completion(self, messages: Messages, *, stream: Streamed, **o: Unpack[ChatOptions]) -> Chunks: ...
    @overload
    def create_chat_completion(
        self, messages: Messages, *, stream: Whole = False, **o: Unpack[ChatOptions]
    ) -> Json: ...
    @overload
    def create_chat_completion(self, messages: Messages, *, stream: bool, **o: Unpack[ChatOptions]) -> Reply: ...
    @overload
    def create_chat_completion(self, messages: Messages, functions: object, /, *args: Any, **o: Any) -> Reply: ...
    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        functions: object = None,
        function_call: object = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        temperature: float = 0.2,
        top_p: float = 0.95,
        top_k: int = 40,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        stream: bool = False,
        stop: str | Sequence[str] | None = None,
        seed: int | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        repeat_penalty: float = 1.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        model: str | None = None,
        logits_processor: object = None,
        grammar: Any = None,
        logit_bias: Mapping[int, float] | None = None,
        logprobs: bool | None = None,
        top_logprobs: int | None = None,
        *,
        min_tokens: int = 0,
        ignore_eos: bool = False,
        enable_thinking: bool | None = None,
        reasoning_effort: str | None = None,
        draft: int | str | None = None,
        draft_max: int | None = None,
        timeout: float | None = None,
    ) -> Json | Iterator[Json]:
        """Answer a conversation, as `llama_cpp.Llama.create_chat_completion`; see `create_completion`.

        Args:
            enable_thinking: passed to the template; None leaves the choice to it.
            reasoning_effort: passed to the template, which may know it; "none" is thinking off, "minimal" leaves it to
                the template, "low" to "max" are thinking on, unless `enable_thinking` says otherwise.
        """
        reply = self._chat(locals())
        return reply.chunks() if stream else reply.whole()

    def chat(self, messages: Messages | RenderedPrompt, **options: Unpack[ChatOptions]) -> Completion:
        """`create_chat_completion` as an object: its dict, its chunks, and the generation behind them. Takes a prompt
        that `render` made in place of messages: it is not rendered again."""
        return self._chat(_with_defaults(self.create_chat_completion, messages, options))

    def _chat(self, call: Mapping[str, Any]) -> Completion:
        names = ("tools", "tool_choice", "response_format", "functions", "function_call")
        request = tool_request(*(call[name] for name in names))
        if request.tools and not (request.forced or request.is_required or self._template.knows_tools):
            raise Unsupported("this model's chat template knows no tools", hint="force one with tool_choice")
        grammar = request.grammar if call["grammar"] is None else call["grammar"]
        if call["top_logprobs"] and not call["logprobs"]:
            raise ConfigError("top_logprobs needs logprobs=True")
        n_top = (call["top_logprobs"] or 0) if call["logprobs"] else None
        params, config = completion_params(self._config, {**call, "grammar": grammar, "logprobs": n_top})
        params = replace(params, stop=(*params.stop, *self._template.stop))
        prompt = call["messages"]
        if not isinstance(prompt, RenderedPrompt):
            switches = {name: call[name] for name in ("enable_thinking", "reasoning_effort")}
            prompt = self.render(prompt, tools=request.tools, **switches)
        return ChatCompletion(
            self._metadata_of(call),
            self._generation(prompt, params, config, call["timeout"], ReasoningSplitter(prompt.reasoning_tag)),
            logprobs=ChatLogprobWriter(self._piece) if call["logprobs"] else None,
            tool_names=request.names,
            forced_tool=request.forced,
            is_call=request.is_required,
        )

    def create_chat_completion_openai_v1(self, *args: Any, **keywords: Any) -> Any:
        """`create_chat_completion`, as the `openai` package's objects."""
        try:
            from openai.types.chat import ChatCompletion, ChatCompletionChunk
        except ImportError as error:
            raise Unsupported("the openai package is not installed", hint="pip install openai") from error
        result = self.create_chat_completion(*args, **keywords)
        if isinstance(result, dict):
            return ChatCompletion(**result)
        return (ChatCompletionChunk(**chunk) for chunk in result)

    def each_generation(self, told: Callable[[Generation], None]) -> AbstractContextManager[None]:
        """A context in which `told` gets every generation that this thread asks for, before it begins: to cancel or
        stop just that one from another thread, whenever it is."""
        return self._engine.each_generation(told)

    def cancel(self) -> None:
        """Stop the running generation, from any thread or a signal handler: it raises Cancelled within a round,
        or soon while it reads the prompt. Both caches stay valid."""
        self._engine.cancel()

    def stop(self) -> None:
        """End the running generation after its round, from any thread: its text so far, finish_reason "length"."""
        self._engine.stop()

    def reset(self) -> None:
        """Forget what the caches hold."""
        self._engine.clear()

    def set_seed(self, seed: int) -> None:
        """Make the calls from here on, without a seed of their own, repeatable."""
        self._seeds = random.Random(seed)

    def save_state(self) -> Json:
        """Both models' caches, for `load_state` of the same pair."""
        return self._engine.save_state()

    def load_state(self, state: Json) -> None:
        """Restore what `save_state` returned.

        Raises:
            ConfigError: it is no state, or that of other models.
            BackendError: llama.cpp refused it; the caches are empty then.
        """
        self._engine.load_state(state)

    def close(self) -> None:
        """Stop what runs and free both models: every later call raises ConfigError. Safe to call twice."""
        self._finalizer()

    def __enter__(self) -> SpeculativeLlama:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _with_defaults(call: Callable[..., Any], prompt: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """All arguments of `call`, those that `options` leaves open with their defaults."""
    if unknown := sorted(set(options) - set(inspect.signature(call).parameters)):
        raise ConfigError(f"unknown keyword '{unknown[0]}'")
    bound = inspect.signature(call).bind(prompt, **options)
    bound.apply_defaults()
    return dict(bound.arguments)
