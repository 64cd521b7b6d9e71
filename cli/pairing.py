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

from specgguf.errors import ConfigError, SpecggufError

if TYPE_CHECKING:
    from specgguf.presets import ModelFile, Preset

NO_DRAFT = ("none", "off", "no")


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
    if settings["model"]:
        return _by_model(settings, status, yes)
    name = settings["preset"] or "auto"
    preset, why = choose_preset(name, offline=settings["offline"])
    return _by_preset(preset, why, settings, status, yes)


def choose_preset(name: str, *, offline: bool = False) -> tuple[Preset, str]:
    """The preset that `name` means on this machine ("auto" picks), and one line of reason."""
    from specgguf.fit import search
    from specgguf.models import hf_client

    return search.named(name, offline=offline or hf_client.is_offline())


def _by_preset(preset: Preset, why: str, settings: Settings, status: StatusOutput, yes: bool) -> Pair:
    settings.under(preset_values(preset), f"preset {preset.name}")
    draft: Any = settings["draft_model"]
    wanted = [preset.model]
    if draft is None and preset.draft_model is not None:
        wanted.append(preset.draft_model)
    _consent(wanted, preset.name, settings, status, yes)
    model = _resolve(preset.model, settings, status)
    if draft is not None:
        found = _draft(draft, settings, status)
        return Pair(model, found, preset.name, str(draft), why, preset_keywords(preset))
    found = _resolve(preset.draft_model, settings, status) if preset.draft_model is not None else None
    ref = preset.name if found else ""
    return Pair(model, found, preset.name, ref, why, preset_keywords(preset))


def _by_model(settings: Settings, status: StatusOutput, yes: bool) -> Pair:
    ref = settings["model"]
    preset = _preset_named(ref)
    if preset is not None:
        settings.put("model", None, "default")
        return _by_preset(preset, "", settings, status, yes)
    if settings["preset"]:
        chosen, _ = choose_preset(settings["preset"], offline=settings["offline"])
        settings.under(preset_values(chosen), f"preset {chosen.name}")
    model = _resolve(ref, settings, status)
    if settings["draft_model"] is not None:
        return Pair(model, _draft(settings["draft_model"], settings, status), ref, settings["draft_model"])
    if settings["draft"] == "off":
        return Pair(model, None, ref, "")
    found, draft_ref = _matching_draft(model)
    if found is None:
        why = "no matching draft model is here: decoding plainly (-d REF adds one, -d ngram needs none)"
        return Pair(model, None, ref, "", why)
    return Pair(model, found, ref, draft_ref, f"drafting with {found.name}, which matches (-d none: without)")


def _draft(ref: str, settings: Settings, status: StatusOutput) -> Path | str | None:
    if ref in NO_DRAFT:
        return None
    if ref == "ngram":
        return ref
    preset = _preset_named(ref)
    if preset is None:
        return _resolve(ref, settings, status)
    if preset.draft_model is None:
        raise ConfigError(f"preset {preset.name} has no draft model")
    return _resolve(preset.draft_model, settings, status)


def _preset_named(ref: str) -> Preset | None:
    from specgguf import presets

    is_name = "/" not in ref and not ref.endswith(".gguf") and not Path(ref).exists()
    return presets.load(ref) if is_name and ref in presets.names() else None


def _matching_draft(model: Path) -> tuple[Path | None, str]:
    """A draft that is already here and whose vocabulary is this target's."""
    from specgguf.fit import draft_candidates

    found = draft_candidates.best(model)
    return (found.path, found.name) if found else (None, "")


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
