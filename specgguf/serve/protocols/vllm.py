"""vLLM's endpoints around the tokenizer, which evaluation harnesses ask: /tokenizer_info, and its shape of /tokenize.

Its generating endpoints are OpenAI's. It knows no HTTP and no queue.
"""

from __future__ import annotations

from . import llama_server
from .llama_server import Engine
from .reply import Json


def tokenize(engine: Engine, body: Json) -> Json:
    """`/tokenize`: {"prompt", "add_special_tokens": true} or {"messages"}; with "content" it is llama-server's."""
    if "content" in body:
        return llama_server.tokenize(engine, body)
    if body.get("messages") is not None:
        ids = list(engine.render(body["messages"], tools=body.get("tools")))
    else:
        asked = {"content": body.get("prompt"), "add_special": body.get("add_special_tokens", True)}
        ids = llama_server.tokenize(engine, asked, named="prompt")["tokens"]
    return {"tokens": ids, "count": len(ids), "max_model_len": engine.n_ctx()}


def tokenizer_info(engine: Engine) -> Json:
    """`/tokenizer_info`: the texts of the special tokens, and the chat template."""
    return {
        "bos_token": _text(engine, engine.token_bos()),
        "eos_token": _text(engine, engine.token_eos()),
        "pad_token": None,
        "chat_template": engine.metadata.get("tokenizer.chat_template"),
    }


def _text(engine: Engine, token: int) -> str | None:
    return engine.detokenize([token], special=True).decode("utf-8", "replace") if token >= 0 else None
