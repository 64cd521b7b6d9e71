"""Every setting in one table: its name, flags, variable, kind, default and help.

The name is the Python keyword and the key in config.toml and presets. Flags, environment variables,
`specgguf config show`, `/set` and the help texts are read from here. What click makes of it is in `flags`; where a
value came from is `settings`' business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from specgguf.config import DRAFT_MAX_DEFAULT, DRAFT_VOCABS, KV_TYPES, parse_draft
from specgguf.errors import ConfigError

YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: Python keyword, config key and preset field.
        flags: the command line's spellings; a bool has "--x/--no-x".
        kind: "text", "whole", "number", "bool", "draft", a tuple of the allowed words, or, with commas between or as a
            list, "workers" (HOST:PORT) and "shares" (numbers).
        section: the heading it stands under in `--help`.
        env: its environment variable.
        bare: the value that the flag stands for alone; with another one it takes an "=".
        sampling: it shapes the distribution or the length of one answer; `/set` may change it.
    """

    name: str
    flags: tuple[str, ...]
    kind: str | tuple[str, ...]
    default: Any
    section: str
    env: str
    help: str
    metavar: str | None = None
    sampling: bool = False
    bare: str = ""

    def parse(self, value: object, *, where: str) -> Any:
        """Read a value given as text (a flag, a variable, `/set`) or as TOML's own type.

        Raises:
            ConfigError: it is not of this kind; `where` names its origin.
        """
        try:
            return self._parse(value)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}", hint=error.hint) from error
        except (TypeError, ValueError) as error:
            wanted = {
                "whole": "a whole number",
                "number": "a number",
                "bool": "on or off",
                "shares": "numbers, with commas between them",
            }
            words = ", ".join(self.kind) if isinstance(self.kind, tuple) else wanted.get(self.kind, "text")
            raise ConfigError(f"{where}: {self.name} must be {words}, not {value!r}") from error

    def _parse(self, value: object) -> Any:
        text = str(value).strip().lower()
        if isinstance(self.kind, tuple):
            if isinstance(value, bool):
                text = "on" if value else "off"
            if text not in self.kind:
                raise ValueError(text)
            return text
        if self.kind == "bool":
            if text not in YES + NO:
                raise ValueError(text)
            return text in YES
        if isinstance(value, bool):
            raise TypeError(value)
        if self.kind == "workers":
            from specgguf.native.rpc import wire

            return tuple(map(str, wire.endpoints(value, name=self.name)))  # type: ignore[arg-type]
        if self.kind == "shares":
            return tuple(float(share) for share in (text.split(",") if isinstance(value, str) else value))  # type: ignore[attr-defined]
        if self.kind == "whole":
            return int(text)
        if self.kind == "number":
            return float(text)
        if self.kind == "draft":
            return parse_draft(text)
        if not isinstance(value, str):
            raise TypeError(value)
        return value


ON_OFF = ("on", "off")
KV = tuple(KV_TYPES)


def _hardware(prefix: str, flag: str, whose: str) -> tuple[Setting, ...]:
    """The eight hardware settings, of the target (no prefix) or of the draft."""
    var = "SPECGGUF_" + prefix.upper()
    short = (lambda s: (s,)) if not prefix else (lambda s: (f"--draft{s}",) if s == "-ngl" else ())

    def make(
        name: str,
        extra: tuple[str, ...],
        kind: str | tuple[str, ...],
        default: Any,
        text: str,
        metavar: str | None = None,
    ) -> Setting:
        flags = (*extra, f"--{flag}{name.replace('_', '-')}")
        return Setting(prefix + name, flags, kind, default, "Hardware", var + name.upper(), text + whose, metavar)

    context = "Context in tokens; 0: the largest that fits" if not prefix else "Context in tokens"
    flash = Setting(
        prefix + "flash_attn",
        (f"--{flag}flash-attn/--no-{flag}flash-attn",),
        "bool",
        None,
        "Hardware",
        var + "FLASH_ATTN",
        "Flash attention" + whose,
    )
    return (
        make("n_ctx", short("-c"), "whole", 4096 if not prefix else None, context),
        make("n_gpu_layers", short("-ngl"), "whole", None, "Layers on the GPU; -1: all"),
        make("n_threads", short("-t"), "whole", None, "CPU threads"),
        flash,
        make("type_k", (), KV, None, "Type of the K cache"),
        make("type_v", (), KV, None, "Type of the V cache"),
        make("rpc_servers", (f"--{flag}rpc",), "workers", None, "Layers on these workers, too", "HOST:PORT,…"),
        make("tensor_split", (), "shares", None, "Shares: this machine's GPUs or CPU, then workers'", "N,N,…"),
    )


HIGHLIGHTS = ("green", "underline", "bold")

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "model", ("-m", "--model"), "text", None, "Models", "SPECGGUF_MODEL",
        "Target: a file, org/repo[:quant or file], or a preset's name.", "REF",
    ),
    Setting(
        "draft_model", ("-d", "--draft-model"), "text", None, "Models", "SPECGGUF_DRAFT_MODEL",
        "Draft: the same, 'ngram' (drafts from the text), 'heads' (the model's own), or 'none'.", "REF",
    ),
    Setting(
        "preset", ("-p", "--preset"), "text", None, "Models", "SPECGGUF_PRESET",
        "A ready-made pair; 'auto' picks by device and free memory.", "NAME",
    ),
    Setting(
        "offline", ("--offline/--online",), "bool", False, "Models", "SPECGGUF_OFFLINE",
        "Use only what is already here.",
    ),
    Setting(
        "draft", ("--draft",), "draft", "auto", "Drafting", "SPECGGUF_DRAFT",
        "auto (adaptive), off, or always N tokens.", "off|auto|N",
    ),
    Setting(
        "draft_max", ("--draft-max",), "whole", DRAFT_MAX_DEFAULT, "Drafting", "SPECGGUF_DRAFT_MAX",
        "The most tokens drafted in one round.", "N",
    ),
    Setting(
        "draft_vocab", ("--draft-vocab",), DRAFT_VOCABS, None, "Drafting", "SPECGGUF_DRAFT_VOCAB",
        "Vocabulary of a draft: the target's (same), or any.", "same|any",
    ),
    Setting(
        "trace", ("--trace",), "text", None, "Drafting", "SPECGGUF_TRACE",
        "Append every decision about drafting to FILE, as JSON lines.", "FILE",
    ),
    Setting(
        "n_parallel", ("--n-parallel", "--parallel"), "whole", None, "Together", "SPECGGUF_N_PARALLEL",
        "Texts at once, in shared passes; else what fits.", "N",
    ),
    Setting(
        "cache_tokens", ("--cache-tokens",), "whole", None, "Together", "SPECGGUF_CACHE_TOKENS",
        "Tokens that the caches hold for all together; else --n-ctx each.", "N",
    ),
    *_hardware("", "", "."),
    *_hardware("draft_", "draft-", ", draft model."),
    Setting(
        "temperature", ("--temp", "--temperature"), "number", 0.8, "Sampling", "SPECGGUF_TEMPERATURE",
        "0: always the likeliest token.", sampling=True,
    ),
    Setting(
        "top_k", ("--top-k",), "whole", 40, "Sampling", "SPECGGUF_TOP_K",
        "Keep the K likeliest tokens; 0: all.", sampling=True,
    ),
    Setting(
        "top_p", ("--top-p",), "number", 0.95, "Sampling", "SPECGGUF_TOP_P",
        "Keep the likeliest tokens that hold this share.", sampling=True,
    ),
    Setting(
        "min_p", ("--min-p",), "number", 0.05, "Sampling", "SPECGGUF_MIN_P",
        "Drop tokens below this share of the likeliest.", sampling=True,
    ),
    Setting(
        "repeat_penalty", ("--repeat-penalty",), "number", 1.0, "Sampling", "SPECGGUF_REPEAT_PENALTY",
        "Above 1: repeat less.", sampling=True,
    ),
    Setting(
        "max_tokens", ("--max-tokens",), "whole", None, "Sampling", "SPECGGUF_MAX_TOKENS",
        "End an answer after N tokens.", "N", sampling=True,
    ),
    Setting(
        "seed", ("--seed",), "whole", None, "Sampling", "SPECGGUF_SEED",
        "Repeat the same random choices.", "N", sampling=True,
    ),
    Setting(
        "thinking", ("--thinking",), ON_OFF, None, "Sampling", "SPECGGUF_THINKING",
        "Ask a reasoning model to think, or not to.", "on|off",
    ),
    Setting(
        "system", ("-s", "--system"), "text", None, "Conversation", "SPECGGUF_SYSTEM",
        "System prompt, or @FILE.", "TEXT|@FILE",
    ),
    Setting(
        "overflow", ("--overflow",), ("drop", "stop", "compact"), "drop", "Conversation", "SPECGGUF_OVERFLOW",
        "Context full: drop the oldest turns, stop, or let the model sum them up.", "drop|stop|compact",
    ),
    Setting(
        "save", ("--save/--no-save",), "bool", True, "Conversation", "SPECGGUF_SAVE",
        "Keep the conversation, for --continue.",
    ),
    Setting(
        "history", ("--history/--no-history",), "bool", True, "Conversation", "SPECGGUF_HISTORY",
        "Keep what was typed, for the arrow keys.",
    ),
    Setting(
        "highlight", ("--highlight",), ("off", "on", *HIGHLIGHTS), "off", "Display", "SPECGGUF_HIGHLIGHT",
        f"Show which words the draft model wrote; with = {', '.join(HIGHLIGHTS)} or off.", "[=STYLE]", bare="on",
    ),
    Setting(
        "think", ("--think",), ("dim", "show", "hide"), "dim", "Display", "SPECGGUF_THINK",
        "How a model's reasoning is displayed.", "dim|show|hide",
    ),
    Setting(
        "markdown", ("--markdown/--no-markdown",), "bool", False, "Display", "SPECGGUF_MARKDOWN",
        "Format the answer, block by block.",
    ),
    Setting(
        "wrap", ("--wrap",), "whole", 100, "Display", "SPECGGUF_WRAP",
        "Wrap prose at N columns or the terminal's edge, code never; 0: nothing.", "N",
    ),
    Setting(
        "plain", ("--plain/--no-plain",), "bool", False, "Display", "SPECGGUF_PLAIN",
        "For screen readers, Emacs and logs: words, no colours, no line that changes.",
    ),
    Setting(
        "bell", ("--bell",), "number", 20.0, "Display", "SPECGGUF_BELL",
        "Ring after an answer of S seconds and more; 0: never.", "S",
    ),
    Setting(
        "stats", ("--stats/--no-stats",), "bool", True, "Display", "SPECGGUF_STATS",
        "One line of statistics after each answer, on stderr.",
    ),
    Setting(
        "color", ("--color",), ("auto", "always", "never"), "auto", "Display", "SPECGGUF_COLOR",
        "Colours; auto follows the terminal and NO_COLOR.", "auto|always|never",
    ),
)  # fmt: skip

BY_NAME: dict[str, Setting] = {setting.name: setting for setting in SETTINGS}
