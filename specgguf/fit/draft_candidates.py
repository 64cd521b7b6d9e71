"""Which models can draft for a target, among all that are here and those that presets name. Offline.

The rule is `vocab`'s, asked of llama.cpp itself over vocabularies without weights. Knows nothing of speed beyond
this: a draft must be smaller than its target.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from specgguf import presets
from specgguf.errors import BackendError, SpecggufError
from specgguf.models import hub, inventory, slim
from specgguf.models.inventory import Found
from specgguf.native import devices, vocab
from specgguf.native.mapped import pair
from specgguf.presets import ModelFile

SHARE_MAX = 0.5  # of the target's size: a larger draft cannot pay


@dataclass(frozen=True)
class Candidate:
    """A possible draft.

    Attributes:
        name: what `-d` takes, or `-p` when it is a preset's pair.
        bytes: its size.
        is_here: whether nothing has to be downloaded.
        why_not: what keeps it from drafting for this target; "" when nothing does.
        share: the part of its tokens that are the target's; 1 where the vocabulary is the same.
        kept: of the tokens of a usual text, those that a slimmed draft can propose; 1 for a whole one.
        file: where it lies, or how a preset describes it.
    """

    name: str
    bytes: int
    is_here: bool
    why_not: str = ""
    share: float = 1.0
    kept: float = 1.0
    file: Path | ModelFile | None = None


def candidates(target: Path) -> list[Candidate]:
    """All possible drafts of the file `target`: those that match first, then those of another vocabulary, the smallest
    first.

    Raises:
        BackendError: the target's vocabulary cannot be read.
    """
    size = target.stat().st_size
    found = []
    with devices.vocabulary(str(target)) as ours:
        for model in inventory.models():
            if model.path.resolve() != target.resolve():
                found.append(_candidate(model, size, ours))
    here = {c.bytes for c in found}
    found += [c for c in of_presets(target) if not c.is_here and c.bytes not in here]
    return sorted(found, key=lambda c: (bool(c.why_not), c.share < 1.0, not c.is_here, c.bytes, c.name))


def best(target: Path) -> Found | None:
    """The draft to take without being asked: a preset's own partner, else the smallest match; if it is here.

    Looks at files of the target's size and half of it at most, so that nothing large is opened in vain.
    """
    partners = {c.bytes for c in of_presets(target) if c.is_here}
    models = [m for m in inventory.models() if m.bytes <= SHARE_MAX * target.stat().st_size]
    models.sort(key=lambda m: (m.bytes not in partners, m.bytes))
    if not models:
        return None
    try:
        with devices.vocabulary(str(target)) as ours:
            for model in models:
                if not _difference(model.path, ours):
                    return model
    except BackendError:
        pass
    return None


def of_presets(target: Path) -> list[Candidate]:
    """Drafts that presets pair with this very target file, here or not."""
    found: dict[str, Candidate] = {}
    for name in presets.names():
        preset = presets.load(name)
        if not isinstance(preset.model, ModelFile) or not isinstance(preset.draft_model, ModelFile):
            continue
        if (preset.model.name, preset.model.bytes) == (target.name, target.stat().st_size):
            is_here = hub.cached(preset.draft_model, verify=False) is not None
            found.setdefault(
                str(preset.draft_model),
                Candidate(str(preset.draft_model), preset.draft_model.bytes, is_here, file=preset.draft_model),
            )
    return list(found.values())


def _candidate(model: Found, target_bytes: int, ours: object) -> Candidate:
    if model.bytes > SHARE_MAX * target_bytes:
        return Candidate(model.name, model.bytes, True, f"too large: {model.bytes / target_bytes:.0%} of the target")
    why_not = _difference(model.path, ours)
    if not why_not:
        return Candidate(model.name, model.bytes, True, kept=slim.kept_share(model.path), file=model.path)
    with suppress(SpecggufError), _vocabulary(model.path) as theirs:
        n, share = pair.shared(ours, theirs)
        if n >= pair.SHARE_MIN * min(vocab.vocab_size(ours), vocab.vocab_size(theirs)):
            kept = slim.kept_share(model.path)
            return Candidate(model.name, model.bytes, True, share=share, kept=kept, file=model.path)
    return Candidate(model.name, model.bytes, True, why_not)


def _difference(path: Path, ours: object) -> str:
    try:
        with _vocabulary(path) as theirs:
            return vocab.difference(ours, theirs)
    except SpecggufError as error:
        return str(error)


@contextmanager
def _vocabulary(path: Path) -> Iterator[object]:
    """The ids that a draft reads: of the file that it was cut from, where it is a slimmed one."""
    slimmed = slim.read(path)
    with devices.vocabulary(str(path if slimmed is None else slimmed.source)) as theirs:
        yield theirs
