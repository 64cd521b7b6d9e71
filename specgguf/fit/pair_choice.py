"""Which pair to load: what was asked for becomes a target and what drafts for it, and why. One rule for everybody.

A model wins over a preset; the name of a preset may stand where a model does; without either the preset "auto" is
taken. A draft is what was asked for, else the preset's, else one that is here and shares the vocabulary. Chooses and
resolves; loads nothing, and asks nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from specgguf import presets
from specgguf.errors import ConfigError, Unsupported
from specgguf.models import hub
from specgguf.models.nextn import prediction_heads
from specgguf.native.heads import contexts as native_heads
from specgguf.presets import HEADS, NO_FILE, ModelFile, Preset

from . import draft_candidates, search
from .hardware import Machine

NO_DRAFT = ("none", "off", "no")
Resolve = Callable[[ModelFile | str], Path]


@dataclass(frozen=True)
class PairFiles:
    """A pair of local files.

    Attributes:
        draft_model: the draft's file, "ngram", "heads", or None.
        draft_ref: what names the draft again; "" without one.
        why: one line about a draft that was looked for; empty where none was.
    """

    model: Path
    draft_model: Path | str | None
    draft_ref: str = ""
    why: str = ""


@dataclass(frozen=True)
class PairChoice:
    """A pair as references.

    Attributes:
        model: a preset's file, or what names one.
        draft_model: the same, "ngram", "heads", or None: none.
        preset: whose settings hold for what nobody set; None without one.
        model_ref, draft_ref: what names the two again.
        why: one line about a preset that was chosen; empty where none was.
        seeks_draft: nobody named a draft: one that is here and matches will do.
        takes_heads: before that, the model's own prediction heads.
    """

    model: ModelFile | str
    draft_model: ModelFile | str | None
    preset: Preset | None
    model_ref: str
    draft_ref: str = ""
    why: str = ""
    seeks_draft: bool = False
    takes_heads: bool = True

    @property
    def references(self) -> list[ModelFile | str]:
        """What has to be resolved."""
        return [ref for ref in (self.model, self.draft_model) if ref is not None and ref not in NO_FILE]

    def files(self, resolve: Resolve) -> PairFiles:
        """The files, each by `resolve`, which may fetch it. Raises what that raises."""
        model = resolve(self.model)
        if self.seeks_draft:
            return self._sought(model)
        if self.draft_model is None or self.draft_model in NO_FILE:
            return PairFiles(model, self.draft_model, self.draft_ref)
        return PairFiles(model, resolve(self.draft_model), self.draft_ref)

    def _sought(self, model: Path) -> PairFiles:
        """With what drafts for it, of what is here."""
        missing = ""
        if self.takes_heads and prediction_heads.count_in(model):
            missing = heads_missing()
            if not missing:
                why = "drafting with the model's own prediction heads (-d none: without)"
                return PairFiles(model, HEADS, HEADS, why)
            missing += "; "
        found = draft_candidates.best(model)
        if found is None:
            why = "no matching draft model is here: decoding plainly (-d REF adds one, -d ngram needs none)"
            return PairFiles(model, None, why=missing + why)
        why = f"drafting with {found.path.name}, which matches (-d none: without)"
        return PairFiles(model, found.path, found.name, missing + why)


def choose_pair(
    model: str | None = None,
    draft_model: str | None = None,
    preset: str | None = None,
    *,
    drafts: bool = True,
    heads: bool = True,
    offline: bool = False,
    machine: Machine | None = None,
) -> PairChoice:
    """What to load for what was asked for.

    Args:
        model, draft_model: references as `hub.resolve` takes them, or presets' names; a draft also "ngram", "heads",
            "none".
        preset: a preset's name, or "auto".
        drafts: False looks for no draft where none was named; heads: False for none in the model itself.
        offline: "auto" chooses among what is here.
        machine: whose memory "auto" looks at; None is this one.

    Raises:
        ConfigError: no such preset, none that may be taken, or one without a draft. Unsupported: heads and a draft.
        BackendError: "auto", and llama-cpp-python is not usable.
    """
    as_preset = _preset_named(model) if model else None
    if as_preset is not None:
        chosen, why = as_preset, ""
    elif model and not preset:
        return _with_draft(PairChoice(model, None, None, model, takes_heads=heads), draft_model, drafts)
    else:
        chosen, why = search.named(preset or "auto", offline=offline, machine=machine)
    if model and as_preset is None:
        return _with_draft(PairChoice(model, None, chosen, model, takes_heads=heads), draft_model, drafts)
    own = PairChoice(chosen.model, chosen.draft_model, chosen, chosen.name, why=why)
    if draft_model is None:
        return PairChoice(own.model, own.draft_model, chosen, chosen.name, chosen.name if own.draft_model else "", why)
    return _with_draft(own, draft_model, drafts)


def _with_draft(choice: PairChoice, ref: str | None, drafts: bool) -> PairChoice:
    draft: ModelFile | str | None = None
    prediction_heads.check_sole(ref)
    if ref is not None and ref not in NO_DRAFT:
        as_preset = None if ref in NO_FILE else _preset_named(ref)
        draft = ref if as_preset is None else as_preset.draft_model
        if draft is None:
            raise ConfigError(f"preset {ref} has no draft model", hint="presets show lists what each one holds")
    return replace(choice, draft_model=draft, draft_ref=ref or "", seeks_draft=ref is None and drafts)


def _preset_named(ref: str) -> Preset | None:
    is_name = "/" not in ref and not ref.endswith(".gguf") and not Path(ref).exists()
    return presets.load(ref) if is_name and ref in presets.names() else None


def heads_missing() -> str:
    """What keeps this llama-cpp-python from running prediction heads; "" when nothing does."""
    try:
        native_heads.check_available()
    except Unsupported as error:
        return str(error)
    return ""


def here(file: ModelFile | str) -> Path:
    """A `Resolve` that fetches nothing. Raises ModelNotFound for what is not on this machine."""
    return hub.resolve(file, offline=True)
