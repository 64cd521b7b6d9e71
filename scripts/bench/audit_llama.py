"""Each parameter and public attribute of `llama_cpp.Llama`: honoured, refused by name or inapplicable?

scripts/bench/run audit-llama. Of the llama-cpp-python that is installed. A name that nothing here accounts for is
printed last, and ends the script with 1: a newer `Llama` has it. The tests give each parameter a value
and look where it arrives.
"""

from __future__ import annotations

import inspect
import re
import sys
from typing import NamedTuple

import llama_cpp

from specgguf import SpeculativeLlama, llama_names
from specgguf.native import keywords

HONOURED, REFUSED, INAPPLICABLE, UNKNOWN = "honoured", "refused by name", "inapplicable", "NOT ACCOUNTED FOR"
WHERE = {
    "loads the file, as in Llama": (
        "n_gpu_layers split_mode main_gpu tensor_split use_mmap use_mlock kv_overrides lora_path lora_scale numa"
    ),
    "a parameter of the contexts that texts are decoded in": (
        "n_ctx n_batch n_ubatch n_threads n_threads_batch rope_scaling_type rope_freq_base rope_freq_scale "
        "yarn_ext_factor yarn_attn_factor yarn_beta_fast yarn_beta_slow yarn_orig_ctx offload_kqv flash_attn "
        "op_offload swa_full no_perf type_k type_v"
    ),
    "makes calls without a seed of their own repeatable": "seed",
    "instead of the file's own template": "chat_format",
    "the target's file": "model_path",
}
HOW = {name: where for where, names in WHERE.items() for name in names.split()}


class Entry(NamedTuple):
    """A name ("n_ctx=" is the parameter, "n_ctx" the attribute), what becomes of it, and how or why."""

    name: str
    becomes: str
    how: str = ""


def main() -> int:
    """Print all, those that nobody knows last."""
    entries = sorted(audit(), key=lambda entry: (entry.becomes == UNKNOWN, not entry.name.endswith("="), entry.name))
    width = max(len(entry.name) for entry in entries)
    for entry in entries:
        print(f"{entry.name:{width}}  {entry.becomes}{': ' if entry.how else ''}{entry.how}")
    return int(any(entry.becomes == UNKNOWN for entry in entries))


def audit() -> list[Entry]:
    """Every parameter of the constructor, and every public attribute of class and object."""
    return [*map(_parameter, parameters()), *map(_attribute, sorted(attributes(llama_cpp.Llama)))]


def parameters() -> list[str]:
    """Names of the constructor's parameters."""
    taken = inspect.signature(llama_cpp.Llama.__init__).parameters.values()
    return [p.name for p in taken if p.name != "self" and p.kind is not p.VAR_KEYWORD]


def attributes(cls: type) -> set[str]:
    """Public names of a class, and those that its constructor sets."""
    assigned = re.findall(r"self\.([a-z]\w*)\s*(?::[^=\n]+)?=", inspect.getsource(cls.__init__))  # type: ignore[misc]
    return {name for name in dir(cls) if not name.startswith("_")} | set(assigned)


def _parameter(name: str) -> Entry:
    if name in keywords.REFUSED:
        return Entry(f"{name}=", REFUSED, keywords.REFUSED[name])
    if name in keywords.IGNORED:
        return Entry(f"{name}=", INAPPLICABLE, keywords.IGNORED[name])
    return Entry(f"{name}=", HONOURED, HOW[name]) if name in HOW else Entry(f"{name}=", UNKNOWN)


def _attribute(name: str) -> Entry:
    if name in llama_names.REFUSED:
        return Entry(name, REFUSED, llama_names.REFUSED[name])
    return Entry(name, HONOURED if name in attributes(SpeculativeLlama) else UNKNOWN)


if __name__ == "__main__":
    sys.exit(main())
