"""A pair and its settings in other engines' words: command lines, and what was measured and what differs as comments.

It knows flags, not models: which files, and what a benchmark found, is told to it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgguf.presets import NGRAM

from specgguf.errors import Unsupported
from specgguf.models import header

if TYPE_CHECKING:
    from specgguf.bench.recommend import Report

GUESS = 3  # tokens to draft where nothing was measured and no number was asked for
ALL_LAYERS = 999
IMAGE = "ghcr.io/ggml-org/llama.cpp:server"
SAME = {  # settings that llama-server has under another name
    "n_ctx": "--ctx-size",
    "n_threads": "--threads",
    "n_gpu_layers": "--n-gpu-layers",
    "flash_attn": "--flash-attn",
    "type_k": "--cache-type-k",
    "type_v": "--cache-type-v",
    "rpc_servers": "--rpc",
    "temperature": "--temp",
    "top_k": "--top-k",
    "top_p": "--top-p",
    "min_p": "--min-p",
    "repeat_penalty": "--repeat-penalty",
    "max_tokens": "--n-predict",
    "seed": "--seed",
}
OF_THE_DRAFT = {
    "draft_n_threads": "--spec-draft-threads",
    "draft_n_gpu_layers": "--spec-draft-ngl",
    "draft_type_k": "--spec-draft-type-k",
    "draft_type_v": "--spec-draft-type-v",
}
# Settings that only this program has, and what to do instead.
LEFT_OUT = {
    "tensor_split": "llama-server orders its devices in another way: look at --list-devices, then --tensor-split",
    "draft_rpc_servers": "llama-server: --spec-draft-device names devices of --rpc",
    "draft_n_ctx": "llama-server gives the draft the target's context",
    "draft_flash_attn": "llama-server has one --flash-attn for both",
    "thinking": 'per request: "chat_template_kwargs": {"enable_thinking": false}',
    "system": "per request, as the first message",
}


@dataclass(frozen=True)
class Handover:
    """What is handed over.

    Attributes:
        draft: a file, "ngram", or None.
        settings: those that were given, by name.
        measured: what a saved benchmark says, by kind of text.
    """

    model: Path
    draft: Path | str | None
    settings: Mapping[str, Any]
    host: str = "127.0.0.1"
    port: int = 8080
    measured: Sequence[Report] = field(default_factory=tuple)

    @property
    def draft_length(self) -> int:
        """How many tokens an engine should draft that always drafts as many: asked for, best as measured, a guess."""
        asked = self.settings.get("draft", "auto")
        if isinstance(asked, int):
            return asked
        best = self._best_measured()
        return GUESS if best is None else best

    @property
    def drafts(self) -> bool:
        """Whether the other engine should draft at all."""
        return self.draft is not None and self.settings.get("draft") != "off" and self.draft_length > 0

    def _best_measured(self) -> int | None:
        """Of the fixed lengths, plain decoding among them, the one with the best gain over all kinds of text."""
        gains: dict[int, float] = {}
        for report in self.measured:
            for row in report.rows:
                if isinstance(row.draft, int) and row.gain:
                    gains[row.draft] = gains.get(row.draft, 1.0) * row.gain
        gains[0] = 1.0
        return max(gains, key=lambda n: gains[n]) if len(gains) > 1 else None


def llama_server(handover: Handover) -> str:
    """A command line with its comments."""
    return _commented(handover, _llama_server_remarks(handover)) + _shell(_llama_server_words(handover))


def compose(handover: Handover) -> str:
    """The same as a compose file. Files are mounted, not folders: those of the hub's cache are links to other names."""
    volumes: list[str] = []

    def inside(path: Path, folder: str) -> Path:
        for name in header.shards(path.name):
            volumes.append(f"{path.with_name(name).resolve()}:{folder}/{name}:ro")
        return Path(folder) / path.name

    model = inside(handover.model, "/models")
    draft = inside(handover.draft, "/draft") if isinstance(handover.draft, Path) else handover.draft
    within = Handover(model, draft, handover.settings, "0.0.0.0", 8080, handover.measured)
    lines = [
        "services:",
        "  llama-server:",
        f"    image: {IMAGE}",
        f"    command: {json.dumps(_llama_server_words(within)[1:])}",
        f"    ports: [{json.dumps(f'{handover.host}:{handover.port}:8080')}]",
        "    volumes:",
        *(f"      - {json.dumps(volume)}" for volume in volumes),
        "    restart: unless-stopped",
    ]
    return _commented(handover, _llama_server_remarks(handover)) + "\n".join(lines) + "\n"


def vllm(handover: Handover) -> str:
    """A command line with its comments.

    Raises:
        Unsupported: drafts from n-grams and a file that it cannot have.
    """
    words = ["vllm", "serve", str(handover.model), "--host", handover.host, "--port", str(handover.port)]
    if handover.settings.get("n_ctx"):
        words += ["--max-model-len", str(handover.settings["n_ctx"])]
    if handover.settings.get("rpc_servers"):
        raise Unsupported("vLLM has no RPC workers", hint="leave --rpc out, and see its --pipeline-parallel-size")
    if handover.drafts:
        n = handover.draft_length
        config: dict[str, Any] = {"method": "ngram", "prompt_lookup_max": 4}
        if handover.draft != NGRAM:
            config = {"method": "draft_model", "model": str(handover.draft)}
        words += ["--speculative-config", json.dumps({**config, "num_speculative_tokens": n})]
    sampling = {
        name: handover.settings[name]
        for name in ("temperature", "top_k", "top_p", "min_p")
        if name in handover.settings
    }
    if "repeat_penalty" in handover.settings:
        sampling["repetition_penalty"] = handover.settings["repeat_penalty"]
    if sampling:
        words += ["--override-generation-config", json.dumps(sampling)]
    remarks = [
        "not run here: vLLM needs a GPU, reads one-file GGUFs as an experiment, and wants the tokenizer of the model's",
        "own repository (--tokenizer org/repo). Whether it takes a draft model depends on its version.",
        "What will differ: a fixed number of drafted tokens for every request; one vocabulary for both models;",
        "token-by-token verification; many requests in a batch, where drafting pays less.",
    ]
    return _commented(handover, remarks) + _shell(words)


def _llama_server_words(handover: Handover) -> list[str]:
    words = ["llama-server", "--model", str(handover.model), "--host", handover.host, "--port", str(handover.port)]
    for name, flag in SAME.items():
        if name in handover.settings:
            words += [flag, _value(name, handover.settings[name])]
    if handover.drafts and handover.draft == NGRAM:
        words += ["--spec-type", "ngram-simple", "--spec-draft-n-max", str(handover.draft_length)]
    elif handover.drafts:
        words += ["--spec-type", "draft-simple", "--spec-draft-model", str(handover.draft)]
        words += ["--spec-draft-n-max", str(handover.draft_length), "--spec-draft-sampling", "probabilistic"]
        for name, flag in OF_THE_DRAFT.items():
            if name in handover.settings:
                words += [flag, _value(name, handover.settings[name])]
    return words


def _value(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if name.endswith("n_gpu_layers") and value < 0:
        return str(ALL_LAYERS)
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _llama_server_remarks(handover: Handover) -> list[str]:
    remarks = ["What will differ:"]
    if handover.drafts:
        remarks += [
            f"- always {handover.draft_length} drafted tokens; specgguf drafts 0 to draft_max, off where it cannot pay",
            "- a server without --spec-draft-sampling accepts only what the target draws itself: leave it out there",
            "- both models need one vocabulary; verification is token by token",
        ]
    remarks += [f"- {name}: {why}" for name, why in LEFT_OUT.items() if name in handover.settings]
    return remarks if len(remarks) > 1 else []


def _commented(handover: Handover, remarks: Sequence[str]) -> str:
    lines = [f"{handover.model.name}" + (f" with {_draft_name(handover)}" if handover.draft else ", without a draft")]
    for report in handover.measured:
        for row in report.rows:
            if row.draft == handover.draft_length and row.by_position:
                accepted = ", ".join(f"{share:.0%}" for share in row.by_position)
                gain = f", {row.gain:.2f}x plain decoding" if row.gain else ""
                lines.append(f"measured on {report.kind}: accepted by position {accepted}{gain}")
    if handover.drafts and not handover.measured:
        lines.append("nothing was measured: specgguf bench --save FILE, then export … --measured FILE")
    return "".join(f"# {line}\n" for line in [*lines, *remarks])


def _draft_name(handover: Handover) -> str:
    return handover.draft.name if isinstance(handover.draft, Path) else "n-grams of the text"


def _shell(words: Sequence[str]) -> str:
    """One flag a line."""
    lines = [shlex.quote(words[0])]
    for word in words[1:]:
        if word.startswith("--"):
            lines.append(word)
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join(lines) + "\n"
