"""Which models: settings and what is on this machine become a pair of local files, and why.

`-m` wins over `-p`; a bare `chat` takes the configured preset, else `auto`. Nothing large is downloaded
for a preset without saying its size and asking. Loads no model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specgguf.cli import keyboard
from specgguf.cli.settings import Settings
from specgguf.cli.terminal.progress import Progress, human_bytes
from specgguf.cli.terminal.status import StatusOutput

from specgguf.errors import SpecggufError

if TYPE_CHECKING:
    from specgguf.presets import ModelFile, Preset


MEMORY_SHARE = 0.7  # of what is free: a model that takes more is not proposed
LOOKED_AT = 8  # models, the largest first


@dataclass(frozen=True)
class ChosenPair:
    """A target and what drafts for it.

    Attributes:
        model: the target's file.
        draft_model: the draft's file, "ngram", "heads", or None.
        model_ref, draft_ref: what the user would type to get them again.
        why: one line about a preset that was chosen for the user; empty where none was.
        remark: one line about what drafts, where nobody named it.
        keywords: what a preset sets beyond the settings table.
    """

    model: Path
    draft_model: Path | str | None
    model_ref: str
    draft_ref: str
    why: str = ""
    remark: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)


def pick(settings: Settings, status: StatusOutput, *, yes: bool = False) -> ChosenPair:
    """Resolve the pair, downloading what is missing; a preset's values enter `settings` under all others.

    Raises:
        SpecggufError: a reference leads nowhere, or a download was refused or failed.
    """
    from specgguf.fit.pair_choice import choose_pair
    from specgguf.models import hf_client

    choice = choose_pair(
        settings["model"],
        settings["draft_model"],
        settings["preset"],
        drafts=settings["draft"] != "off",
        heads=not settings["rpc_servers"],
        offline=settings["offline"] or hf_client.is_offline(),
    )
    unnamed = not settings["model"] and settings["preset"] in (None, "auto") and settings["draft_model"] is None
    if unnamed and not yes and not settings["offline"] and sys.stdin.isatty() and _missing(choice.references):
        ref = _offer_what_is_here(status)
        if ref:
            settings.put("model", ref, "chosen at the start")
            return pick(settings, status)
    keywords: dict[str, Any] = {}
    if choice.preset is not None:
        settings.under(preset_values(choice.preset), f"preset {choice.preset.name}")
        if choice.model == choice.preset.model:  # the preset's own pair
            settings.put("model", None, "default")
            keywords = preset_keywords(choice.preset)
            typed = [ref for ref in choice.references if isinstance(ref, str) and ref not in choice.preset.files]
            wanted = [ref for ref in choice.references if ref not in typed]
            _consent(wanted, choice.preset.name, settings, status, yes)
    files = choice.files(lambda ref: _resolve(ref, settings, status))
    return ChosenPair(
        files.model, files.draft_model, choice.model_ref, files.draft_ref, choice.why, files.why, keywords
    )


def _resolve(ref: ModelFile | str, settings: Settings, status: StatusOutput) -> Path:
    from specgguf.models import hub

    with Progress(status) as progress:
        return hub.resolve(ref, offline=settings["offline"] or None, progress=progress)


def _offer_what_is_here(status: StatusOutput) -> str:
    """Propose a pair that other programs brought already, before anything is downloaded; its model, or nothing."""
    from specgguf.fit import draft_candidates
    from specgguf.fit.hardware import this_machine
    from specgguf.models import inventory

    memory = max((device.free_bytes for device in this_machine().gpus), default=this_machine().cpu.free_bytes)
    models = sorted((m for m in inventory.models() if m.bytes < MEMORY_SHARE * memory), key=lambda m: -m.bytes)
    for model in models[:LOOKED_AT]:
        draft = draft_candidates.best(model.path)
        if draft is None:
            continue
        status.tell(f"{model.name} ({human_bytes(model.bytes)}) is here already, and {draft.name} can draft for it")
        if not keyboard.agreed(status, "Talk to that?"):
            return ""
        status.say(f"specgguf use '{model.name}' makes it the default")
        return model.name
    return ""


def _missing(wanted: Sequence[ModelFile | str]) -> list[ModelFile | str]:
    """Those of a preset's files that are not here."""
    from specgguf.models import hub

    return [m for m in wanted if hub.cached(m) is None]


def _bytes(missing: ModelFile | str) -> int:
    """How much is to be downloaded; the hub is asked for what a user's preset only names."""
    from specgguf.models import remote_header

    return remote_header.read(missing).download_bytes if isinstance(missing, str) else missing.bytes


def _consent(
    wanted: Sequence[ModelFile | str], preset: str, settings: Settings, status: StatusOutput, yes: bool
) -> None:
    """Say what a preset would download, and ask."""
    missing = _missing(wanted)
    if not missing or settings["offline"]:
        return
    size = human_bytes(sum(map(_bytes, missing)))
    named = ", ".join(m if isinstance(m, str) else m.name for m in missing)
    status.tell(f"preset {preset} needs {named}: {size} to download")
    for m in missing:
        if not isinstance(m, str) and not m.is_open:
            status.tell(f"{m.name}: license {m.license or 'unknown'}, which is not an open-source one")
    if yes:
        return
    again = f"specgguf chat -p {preset} --yes"
    if not sys.stdin.isatty():
        raise SpecggufError(f"{size} would have to be downloaded, and nobody is here to ask", hint=again)
    if not keyboard.agreed(status, "Download?"):
        raise SpecggufError("nothing was downloaded", hint="-m FILE uses a model that you have")


def preset_values(preset: Preset) -> dict[str, Any]:
    """A preset's values by the names of the settings table."""
    from specgguf.cli.options import BY_NAME

    values = {**preset.keywords, **preset.sampling}
    if preset.thinking is not None:
        values["thinking"] = "on" if preset.thinking else "off"
    return {name: value for name, value in values.items() if name in BY_NAME}


def preset_keywords(preset: Preset) -> dict[str, Any]:
    """What a preset says to the engine that is no setting."""
    from specgguf.cli.options import BY_NAME

    return {name: value for name, value in preset.keywords.items() if name not in BY_NAME}
