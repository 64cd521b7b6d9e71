"""One thing has one name: keyword, flag, variable, config key, preset field and JSON key of every setting are equal.

What differs is listed here with its reason, and nowhere else.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import fields

import click
import llama_cpp
import pytest
from click.testing import CliRunner
from specgguf.cli.main import cli
from specgguf.cli.options import SETTINGS, Setting
from specgguf.presets import Preset

from specgguf import SamplingParams, SpeculativeLlama, calls
from specgguf.config import DraftConfig

LLAMA = set(inspect.signature(llama_cpp.Llama.__init__).parameters)
OURS = set(inspect.signature(SpeculativeLlama.__init__).parameters)
CALLS = set(calls.CompletionOptions.__annotations__) | set(calls.ChatOptions.__annotations__)

# The program's alone: no engine has them.
PROGRAM = "preset offline system overflow save history highlight think markdown wrap plain bell stats color".split()
# A keyword that llama-cpp-python or a chat template named before us.
OTHER_KEYWORDS = {"model": "model_path", "draft_model": "draft_model_path", "thinking": "enable_thinking"}
# Settings of drafting itself: everywhere else the prefix means "of the draft model".
OF_DRAFTING = {"draft", "draft_max", "draft_first", "draft_temperature", "draft_vocab"}
# Of a preset alone: what it is, whom it is for, and keywords that no flag sets.
PRESET_ALONE = {
    "name", "summary", "match", "use", "budget_mib", "source", "experimental", "sampling",
    "n_batch", "n_ubatch", "draft_first",
}  # fmt: skip
# Other names of one flag: llama.cpp's short forms.
SHORT = {"--parallel", "-m", "-d", "-p", "-c", "-t", "-ngl", "-s", "--draft-ngl", "--temp", "--rpc", "--draft-rpc"}
# A hardware keyword that llama-cpp-python lacks.
OUR_HARDWARE = {"rpc_servers"}

by_setting = pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)


@by_setting
def test_flag_and_variable_are_the_name(setting: Setting) -> None:
    spelled = setting.name.replace("_", "-")
    long = {f"--{spelled}", f"--{spelled}/--no-{spelled}", f"--{spelled}/--online"}
    assert set(setting.flags) & long, setting.flags
    assert set(setting.flags) - long <= SHORT
    assert setting.env == f"SPECGGUF_{setting.name.upper()}"


@by_setting
def test_the_keyword_is_the_name(setting: Setting) -> None:
    """Of an engine, of a call, or of llama_cpp.Llama, with the draft's prefix where it is the draft's."""
    if setting.name in PROGRAM:
        assert setting.name not in OURS | CALLS
        return
    keyword = OTHER_KEYWORDS.get(setting.name, setting.name)
    own = keyword.removeprefix("draft_") if keyword.startswith("draft_") and keyword not in OURS else keyword
    assert own in OURS | CALLS | LLAMA, keyword


@by_setting
def test_the_preset_field_is_the_name(setting: Setting) -> None:
    """Or it is one that a preset does not carry."""
    not_carried = {*PROGRAM, "draft", "trace", "max_tokens", "seed", "n_parallel", "cache_tokens"}
    not_carried |= {"draft_n_ctx", "draft_n_gpu_layers", "draft_n_threads", "draft_flash_attn"}
    known = {f.name for f in fields(Preset)} | {f.name for f in fields(SamplingParams)}
    assert setting.name in known | not_carried


def test_a_preset_has_no_other_fields() -> None:
    assert {f.name for f in fields(Preset)} - PRESET_ALONE <= {setting.name for setting in SETTINGS}


def test_sampling_is_called_the_same_everywhere() -> None:
    sampling = {s.name for s in SETTINGS if s.sampling}
    assert sampling <= {f.name for f in fields(SamplingParams)}
    assert sampling <= CALLS


def test_what_begins_with_draft_is_the_drafts_or_listed() -> None:
    names = {name for name in OURS if name.startswith("draft")} | {
        s.name for s in SETTINGS if s.name.startswith("draft")
    }
    for name in names - OF_DRAFTING - {"draft_model", "draft_model_path"}:
        assert name.removeprefix("draft_") in LLAMA | OUR_HARDWARE, name
    drafting = {name for name in OF_DRAFTING if name in OURS}
    assert drafting == OF_DRAFTING
    own = {f.name if f.name.startswith("draft") else f"draft_{f.name}" for f in fields(DraftConfig)} - {"draft_verify"}
    assert own == OF_DRAFTING


def test_json_keys_are_the_names() -> None:
    shown = json.loads(CliRunner().invoke(cli, ["presets", "show", "demo", "--json"]).stdout)
    assert set(shown) - {"memory_mib"} == {f.name for f in fields(Preset)}
    assert set(shown["sampling"]) <= {s.name for s in SETTINGS}


def test_commands_take_settings_by_these_flags_alone() -> None:
    """A flag of a command that carries a setting's name is that setting's."""
    known = {setting.name: set(setting.flags) for setting in SETTINGS}

    def check(command: click.Command) -> None:
        if isinstance(command, click.Group):
            with command.make_context("specgguf", [], resilient_parsing=True) as context:
                for name in command.list_commands(context):
                    found = command.get_command(context, name)
                    assert found is not None
                    check(found)
        for param in command.params:
            if isinstance(param, click.Option) and param.name in known and command.name != "bench":
                spelled = {"/".join((*a, *b)) if b else a for a, b in [(o, "") for o in param.opts]}
                flags = {part for flag in known[param.name] for part in flag.split("/")}
                assert spelled <= flags, (command.name, param.name, spelled)

    check(cli)
