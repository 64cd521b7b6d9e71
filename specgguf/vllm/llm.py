"""`LLM`: loads a pair as vLLM's arguments say, and answers lists of prompts in shared passes.

Only vLLM's shapes are made here; tokens are drawn by `SpeculativeLlama.generate_batch`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specgguf.api import SpeculativeLlama
from specgguf.config import DRAFT_MAX_DEFAULT, require_number, require_whole
from specgguf.decode.generation import check_prompt
from specgguf.errors import ConfigError, SpecggufError, Unsupported
from specgguf.loading import N_PARALLEL_MAX
from specgguf.models import hub

from .arguments import sort_out
from .outputs import RequestOutput, request_output
from .placement import Wanted, keywords
from .prompts import for_each, read_prompt, several, thinking
from .sampling import SamplingParams
from .speculation import speculation

if TYPE_CHECKING:
    from specgguf.batched import BatchResult

Json = dict[str, Any]
Prompt = str | Sequence[int] | Mapping[str, Any]

REFUSED = {
    **dict.fromkeys(
        "encode embed classify reward score apply_model collective_rpc start_profile stop_profile".split(),
        "specgguf only generates text, in this process",
    ),
    "beam_search": "answers are drawn, not searched for: n=N gives several",
    "llm_engine": "`llama` is the engine: a SpeculativeLlama",
    "set_tokenizer": "the tokenizer is the file's own",
    "sleep": "load it again when it is needed",
    "wake_up": "load it again when it is needed",
}


class UnsupportedMethod(Unsupported, AttributeError):
    """A name of vLLM's LLM that is not here: `hasattr` says so, too."""


class LLM:
    """A pair of models, as vLLM's `LLM`.

    Args:
        model: a GGUF file, or org/repo:quantisation.
        speculative_model: the draft: the same, or "[ngram]". num_speculative_tokens: the most tokens of a draft.
        speculative_config: both as one mapping.
        tensor_parallel_size, pipeline_parallel_size: GPUs that the weights are split over, by rows or by layers.
        gpu_memory_utilization: the share of their memory that weights and KV cache may take; without GPUs, of what is
            free.
        max_model_len: tokens of a prompt and its answer; None: what the model was trained for, if it fits.
        max_num_seqs: answers that run together; None: 8, or 1 where the model's memory takes them in turn anyway.
        seed: makes a program's answers repeatable, where requests have no seeds of their own.
        kv_cache_dtype: of the KV cache: "auto", "bfloat16", or one of llama.cpp's ("q8_0").
        others: keywords of `SpeculativeLlama`; vLLM's other arguments are refused with a reason, or, where they mean
            nothing here, named in a warning.

    Attributes:
        llama: the `SpeculativeLlama` behind it.

    Raises:
        ConfigError, Unsupported: an argument. SpecggufError: it does not fit, or a file is not there or is no model.
    """

    def __init__(
        self,
        model: str,
        *,
        speculative_model: str | None = None,
        num_speculative_tokens: int | None = None,
        speculative_config: Mapping[str, Any] | None = None,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        gpu_memory_utilization: float = 0.9,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        seed: int | None = 0,
        quantization: str | None = None,
        load_format: str = "auto",
        kv_cache_dtype: str = "auto",
        **others: Any,
    ) -> None:
        own_keywords, remarks = sort_out(others)
        drafts = speculation(speculative_model, num_speculative_tokens, speculative_config)
        for name, value in (("quantization", quantization), ("load_format", load_format)):
            if value not in (None, "auto", "gguf"):
                raise Unsupported(f"{name}={value!r} is not supported: models are GGUF files, which say it")
        require_whole("tensor_parallel_size", tensor_parallel_size, 1)
        require_whole("pipeline_parallel_size", pipeline_parallel_size, 1)
        require_number("gpu_memory_utilization", gpu_memory_utilization, 0.01, 1.0)
        if max_model_len is not None:
            require_whole("max_model_len", max_model_len, 2)
        if max_num_seqs is not None:
            require_whole("max_num_seqs", max_num_seqs, 1)
        if max_num_seqs is not None and max_num_seqs > N_PARALLEL_MAX:
            remarks.append(f"max_num_seqs={max_num_seqs}: at most {N_PARALLEL_MAX} run together")
            max_num_seqs = N_PARALLEL_MAX
        for remark in (*drafts.remarks, *remarks):
            warnings.warn(remark, stacklevel=2)
        target = hub.resolve(model)
        draft = hub.resolve(drafts.file) if drafts.file is not None else None
        own = keywords(
            target,
            drafts.model if draft is None else draft,
            Wanted(
                by_row=tensor_parallel_size,
                by_layer=pipeline_parallel_size,
                draft=drafts.n_devices,
                share=gpu_memory_utilization,
                n_ctx=max_model_len,
                n_sequences=max_num_seqs,
                cache_type=kv_cache_dtype,
                draft_max=drafts.draft_max or DRAFT_MAX_DEFAULT,
                is_here=not own_keywords.get("rpc_servers"),
            ),
        )
        if drafts.draft_max is not None:
            own["draft_max"] = drafts.draft_max
        self.llama = SpeculativeLlama(
            str(target), drafts.model if draft is None else str(draft), **{**own, "seed": seed, **own_keywords}
        )
        self._requests = itertools.count()

    def __getattr__(self, name: str) -> Any:
        if name in REFUSED:
            raise UnsupportedMethod(f"{name} is not supported: {REFUSED[name]}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def get_tokenizer(self) -> Any:
        """The file's tokenizer, with `encode` and `decode`."""
        return self.llama.tokenizer()

    def get_default_sampling_params(self) -> SamplingParams:
        """What `generate` takes where it gets none."""
        return SamplingParams()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        priority: None = None,
        tokenization_kwargs: None = None,
    ) -> list[RequestOutput]:
        """The answers to each prompt, in their order.

        Args:
            prompts: a text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}; or a list of such.
            sampling_params: for all of them, or for each.
            use_tqdm: show a bar; a callable makes it.

        Raises:
            ConfigError, ContextFull, Unsupported: a prompt or a parameter. Cancelled, BackendError: while generating.
        """
        _refuse(lora_request=lora_request, priority=priority, tokenization_kwargs=tokenization_kwargs)
        return self._generate([read_prompt(one) for one in several(prompts)], sampling_params, use_tqdm)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: None = None,
        chat_template: None = None,
        chat_template_content_format: str = "auto",
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tokenization_kwargs: None = None,
        mm_processor_kwargs: None = None,
    ) -> list[RequestOutput]:
        """The answers to a conversation, or to each of several, by the model's own template.

        Args:
            continue_final_message: the last message is an answer that is gone on with.
            chat_template_kwargs: {"enable_thinking": True or False}.
        """
        _refuse(
            lora_request=lora_request,
            chat_template=chat_template,
            tokenization_kwargs=tokenization_kwargs,
            mm_processor_kwargs=mm_processor_kwargs,
        )
        if add_generation_prompt is continue_final_message:
            raise Unsupported(
                f"add_generation_prompt and continue_final_message are both {add_generation_prompt}",
                hint="one of them: a new answer, or the last message gone on with",
            )
        conversations: Any = messages if messages and not isinstance(messages[0], Mapping) else [messages]
        is_thinking = thinking(chat_template_kwargs or {})
        rendered: list[tuple[str | None, str | list[int]]] = []
        for conversation in conversations:
            is_answer = bool(conversation) and conversation[-1].get("role") == "assistant"
            if is_answer is not continue_final_message:
                raise ConfigError(
                    f"continue_final_message={continue_final_message}, but the last message is "
                    f"{'' if is_answer else 'not '}the assistant's"
                )
            ids = list(self.llama.render(conversation, tools=tools, enable_thinking=is_thinking))
            rendered.append((self.llama.detokenize(ids, special=True).decode("utf-8", "replace"), ids))
        return self._generate(rendered, sampling_params, use_tqdm)

    def _generate(
        self,
        prompts: Sequence[tuple[str | None, str | list[int]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool | Callable[..., Any],
    ) -> list[RequestOutput]:
        wanted = for_each(sampling_params or self.get_default_sampling_params(), len(prompts))
        asked = [
            (i, ids, replace(params, seed=params.seed if params.seed is None else params.seed + k))
            for i, ((_, prompt), own) in enumerate(zip(prompts, wanted, strict=True))
            for ids, params in [(self._ids(i, prompt), own.params(self.llama.eog_tokens))]
            for k in range(own.n)
        ]
        results: list[list[BatchResult]] = [[] for _ in prompts]
        running: Any = self.llama.generate_batch([ids for _, ids, _ in asked], [params for *_, params in asked])
        with closing(running):
            for result in _with_bar(running, len(asked), use_tqdm):
                if result.error is not None:
                    raise result.error
                results[asked[result.index][0]].append(result)
        return [
            request_output(str(next(self._requests)), text, sorted(found, key=lambda r: r.index), own, self._text)
            for (text, _), found, own in zip(prompts, results, wanted, strict=True)
        ]

    def _ids(self, i: int, prompt: str | list[int]) -> list[int]:
        """The ids of the `i`th prompt, checked: what is wrong with the last of many is said before any is answered."""
        ids = prompt
        if isinstance(ids, str):
            ids = self.llama.tokenize(ids.encode("utf-8", "surrogatepass"), special=True)
        try:
            check_prompt(ids, self.llama.n_ctx())
            if any(not 0 <= token < self.llama.n_vocab() for token in ids):
                raise ConfigError(f"it holds an id that this model lacks; its ids are 0 to {self.llama.n_vocab() - 1}")
        except SpecggufError as error:
            raise type(error)(f"prompt {i}: {error}", hint=error.hint) from error
        return ids

    def _text(self, tokens: Sequence[int]) -> str:
        return self.llama.detokenize(list(tokens), special=False).decode("utf-8", "replace")


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value:
            raise Unsupported(f"{name} is not supported", hint="leave it out")


def _with_bar(results: Iterator[BatchResult], n: int, use_tqdm: bool | Callable[..., Any]) -> Iterator[BatchResult]:
    """`results`, counted by a bar on stderr where one is wanted."""
    if not use_tqdm:
        yield from results
        return
    make: Any = use_tqdm
    if use_tqdm is True:
        from tqdm.auto import tqdm  # type: ignore[import-untyped]

        make = tqdm
    with make(total=n, desc="Processed prompts", dynamic_ncols=True) as bar:
        n_tokens = 0
        for result in results:
            n_tokens += len(result.tokens)
            bar.set_postfix_str(f"{n_tokens} tokens", refresh=False)
            bar.update(1)
            yield result
