"""Which models: settings and what is on this machine become a pair of local files, and why.

`-m` wins over `-p`; a bare `chat` takes the configured preset, else `auto`. Nothing large is downloaded
for a preset without saying its size and asking. Loads no model.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
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


@dataclass(frozen=True)
class Pair:
    """A target and what drafts for it.

    Attributes:
        model: the target's file.
        draft_model: the draft's file, "ngram", or None.
        model_ref, draft_ref: what the user would type to get them again.
        why: one line about a choice that was made for the user; empty where nothing was.
        keywords: what a preset sets beyond the settings table.
    """

    model: Path
    draft_model: Path | str | None
    model_ref: str
    draft_ref: str
    why: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)


def pick(settings: Settings, status: StatusOutput, *, yes: bool = False) -> Pair:
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
        offline=settings["offline"] or hf_client.is_offline(),
    )
    keywords: dict[str, Any] = {}
    if choice.preset is not None:
        settings.under(preset_values(choice.preset), f"preset {choice.preset.name}")
        if choice.model == choice.preset.model:  # the preset's own pair
            settings.put("model", None, "default")
            keywords = preset_keywords(choice.preset)
            _consent(choice.references, choice.preset.name, settings, status, yes)
    files = choice.files(lambda ref: _resolve(ref, settings, status))
    why = choice.why or files.why
    return Pair(files.model, files.draft_model, choice.model_ref, files.draft_ref, why, keywords)


def _resolve(ref: ModelFile | str, settings: Settings, status: StatusOutput) -> Path:
    from specgguf.models import hub

    with Progress(status) as progress:
        return hub.resolve(ref, offline=settings["offline"] or None, progress=progress)


def _consent(wanted: list[ModelFile | str], preset: str, settings: Settings, status: StatusOutput, yes: bool) -> None:
    """Say what a preset would download, and ask."""
    from specgguf.models import hub

    missing = [m for m in wanted if not isinstance(m, str) and hub.cached(m) is None]
    if not missing or settings["offline"]:
        return
    size = human_bytes(sum(m.bytes for m in missing))
    status.tell(f"preset {preset} needs {', '.join(m.name for m in missing)}: {size} to download")
    for m in missing:
        if not m.is_open:
            status.tell(f"{m.name}: license {m.license or 'unknown'}, which is not an open-source one")
    if yes:
        return
    again = f"specgguf chat -p {preset} --yes"
    if not sys.stdin.isatty():
        raise SpecggufError(f"{size} would have to be downloaded, and nobody is here to ask", hint=again)
    with keyboard.given_back():
        status.raw("Download? [Y/n] ")
        answer = sys.stdin.readline()
    if answer.strip().lower() not in ("", "y", "yes"):
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
