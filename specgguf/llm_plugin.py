"""Models for Simon Willison's `llm`: one per preset, and `specgguf`, the one that the settings file names.

It is imported by every start of `llm`, so it reads no file and loads no model before it is asked. It never
downloads: gigabytes are fetched by who asks for them (`specgguf models pull`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llm
from llm.parts import StreamEvent, TextPart

from .errors import ConfigError, ModelNotFound, SpecggufError

if TYPE_CHECKING:
    from .api import SpeculativeLlama

OWN = "specgguf"
PREFIX = "specgguf-"
# What a settings file says to the engine; the names are SpeculativeLlama's.
ENGINE_KEYS = (
    "draft draft_max n_ctx n_gpu_layers n_threads flash_attn type_k type_v draft_n_ctx draft_n_gpu_layers "
    "draft_n_threads draft_flash_attn draft_type_k draft_type_v rpc_servers draft_rpc_servers tensor_split "
    "draft_tensor_split"
).split()
SAMPLING_KEYS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed")


@llm.hookimpl  # type: ignore[untyped-decorator,unused-ignore]
def register_models(register: Any) -> None:
    """Tell `llm` the names; nothing is read but the names of the preset files."""
    from . import presets

    register(Model(OWN))
    for name in presets.names():
        register(Model(PREFIX + name))


class Model(llm.Model):
    """A pair of models that is loaded at the first prompt and kept for the next ones."""

    can_stream = True
    supports_schema = True

    class Options(llm.Options):
        """`-o NAME VALUE`: SpeculativeLlama's own names."""

        temperature: float | None = None
        top_k: int | None = None
        top_p: float | None = None
        min_p: float | None = None
        repeat_penalty: float | None = None
        max_tokens: int | None = None
        seed: int | None = None
        stop: str | None = None
        thinking: bool | None = None
        draft: int | str | None = None
        draft_max: int | None = None
        n_ctx: int | None = None

    def __init__(self, model_id: str) -> None:
        self.model_id = model_id

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str | StreamEvent]:
        """Answer one prompt, with the conversation before it."""
        try:
            yield from self._answer(prompt, response)
        except SpecggufError as error:
            raise llm.ModelError(f"{error} ({error.hint})" if error.hint else str(error)) from error

    def _answer(self, prompt: Any, response: Any) -> Iterator[str | StreamEvent]:
        options = {k: v for k, v in prompt.options.model_dump().items() if v is not None}
        engine, sampling = _open(self.model_id, options.pop("n_ctx", None))
        keywords = {**sampling, **options}
        keywords["enable_thinking"] = keywords.pop("thinking", None)
        if prompt.schema:
            keywords["response_format"] = {"type": "json_object", "schema": prompt.schema}
        reply = engine.chat(_messages(prompt), **keywords)
        for chunk in reply.generation:
            if chunk.reasoning:
                yield StreamEvent(type="reasoning", chunk=chunk.reasoning)
            if chunk.text:
                yield StreamEvent(type="text", chunk=chunk.text)
        usage, timings = reply.usage(), reply.generation.stats.timings()
        details = {name: timings[name] for name in ("cache_n", "draft_n", "draft_n_accepted")}
        response.set_usage(input=usage["prompt_tokens"], output=usage["completion_tokens"], details=details)


def _messages(prompt: Any) -> list[dict[str, str]]:
    """The conversation in OpenAI's form; reasoning of earlier turns is left out, as chat templates want it."""
    messages = []
    for message in prompt.messages:
        if any(not isinstance(part, TextPart) and type(part).__name__ != "ReasoningPart" for part in message.parts):
            raise ConfigError("only text is supported: no attachments, no tools")
        texts = [part.text for part in message.parts if isinstance(part, TextPart)]
        messages.append({"role": message.role, "content": "".join(texts)})
    return messages


# --- the engine ---------------------------------------------------------------------------------------------

_loaded: dict[tuple[str, int | None], tuple[SpeculativeLlama, dict[str, Any]]] = {}


def _open(model_id: str, n_ctx: int | None) -> tuple[SpeculativeLlama, dict[str, Any]]:
    """The engine of a model and its sampling defaults; another engine is closed, since two may not fit."""
    key = (model_id, n_ctx)
    if key not in _loaded:
        for engine, _ in _loaded.values():
            engine.close()
        _loaded.clear()
        _loaded[key] = _load(model_id, {} if n_ctx is None else {"n_ctx": n_ctx})
    return _loaded[key]


def _load(model_id: str, own: Mapping[str, Any]) -> tuple[SpeculativeLlama, dict[str, Any]]:
    from .api import SpeculativeLlama
    from .fit.pair_choice import choose_pair, here
    from .models import hub

    config = read_settings() if model_id == OWN else {}
    keywords = {name: config[name] for name in ENGINE_KEYS if name in config}
    sampling = {name: config[name] for name in SAMPLING_KEYS if name in config}
    if "thinking" in config:
        sampling["thinking"] = config["thinking"] in (True, "on")
    preset = config.get("preset") if model_id == OWN else model_id.removeprefix(PREFIX)
    choice = choose_pair(config.get("model"), config.get("draft_model"), preset, drafts=False, offline=True)
    if (chosen := choice.preset) is not None:
        if any(not isinstance(file, str) and hub.cached(file) is None for file in choice.references):
            raise ModelNotFound(
                f"the models of preset {chosen.name} are not here", hint=f"specgguf models pull {chosen.name}"
            )
        keywords = {**chosen.keywords, **keywords}
        thinking = {} if chosen.thinking is None else {"thinking": chosen.thinking}
        sampling = {**thinking, **chosen.sampling, **sampling}
    files = choice.files(here)
    draft = None if files.draft_model is None else str(files.draft_model)
    engine = SpeculativeLlama(str(files.model), draft, **{**keywords, **own})
    return engine, sampling


def read_settings() -> dict[str, Any]:
    """The command line's settings file; {} where there is none.

    Raises:
        ConfigError: it is not TOML.
    """
    import platformdirs

    named = os.environ.get("SPECGGUF_CONFIG")
    path = Path(named).expanduser() if named else Path(platformdirs.user_config_dir("specgguf")) / "config.toml"
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
