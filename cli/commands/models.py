"""`specgguf models`: what is here, downloads, and which model can draft for which."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from specgguf.cli.terminal import console, tables
from specgguf.cli.terminal.progress import Progress, human_bytes
from specgguf.cli.terminal.status import StatusOutput

from specgguf.config import did_you_mean
from specgguf.errors import ModelNotFound, SpecggufError, Unsupported

if TYPE_CHECKING:
    from specgguf.presets import ModelFile

    from specgguf.fit.draft_candidates import Candidate
    from specgguf.fit.gains import Costs, Gain, Proposal
    from specgguf.models.inventory import Found


def _complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from specgguf.models import inventory

    return [m.name for m in inventory.models() if m.name.startswith(incomplete)]


def _complete_pull(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from specgguf import presets

    return [name for name in presets.names() if name.startswith(incomplete)]


def _status() -> StatusOutput:
    return StatusOutput(console.style_for(sys.stderr))


@click.group()
def models() -> None:
    """List, fetch, verify and pair models."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_(as_json: bool) -> None:
    """All models on this machine, and which have prediction heads.

    Whoever brought them: -m takes the names.
    """
    from specgguf.presets import HEADS

    from specgguf.models import inventory
    from specgguf.models.nextn import prediction_heads

    found = [(m, prediction_heads.count_in(m.path)) for m in inventory.models()]
    if as_json:
        for m, n in found:
            about = {"name": m.name, "bytes": m.bytes, "source": m.source, "path": str(m.path), "sha256": m.sha256}
            click.echo(json.dumps(about | {"prediction_heads": n}, ensure_ascii=False))
        return
    if not found:
        click.echo("no model is here yet; specgguf models pull demo brings the first pair", err=True)
    tables.show([(m.name, human_bytes(m.bytes), m.source, HEADS if n else "") for m, n in found], right=(1,))
    if any(n for _, n in found):
        click.echo(f"{HEADS}: has prediction heads, which draft for it (-d heads)", err=True)


@models.command(short_help="Download models, or a preset's pair.")
@click.argument("refs", nargs=-1, required=True, metavar="REF...", shell_complete=_complete_pull)
@click.option("--offline", is_flag=True, help="Only check that it is here.")
def pull(refs: Sequence[str], offline: bool) -> None:
    """Download models: org/repo[:quant or file], or a preset's name for its pair.

    An interrupted download goes on where it stopped. The paths are printed on stdout.
    """
    from specgguf.models import hf_client, hub

    offline = offline or hf_client.is_offline()
    status = _status()
    for ref in refs:
        for model in _files_of(ref):
            if not isinstance(model, str) and hub.cached(model, verify=False) is None and not offline:
                _announce(model, status)
            with Progress(status) as progress:
                path = hub.resolve(model, offline=offline or None, progress=progress)
            click.echo(path)


def _files_of(ref: str) -> Sequence[ModelFile | str]:
    from specgguf import presets

    if "/" not in ref and ref in presets.names():
        return presets.load(ref).files
    if "/" not in ref and not ref.endswith(".gguf") and ":" not in ref:
        hint = did_you_mean(ref, presets.names()) or "give org/repo:quant, or a preset (specgguf presets)"
        raise ModelNotFound(f"no preset or repository '{ref}'", hint=hint)
    return (ref,)


def _announce(model: ModelFile, status: StatusOutput) -> None:
    status.say(f"{model.name}: {human_bytes(model.bytes)} to download")
    if not model.is_open:
        status.tell(f"{model.name}: license {model.license or 'unknown'}, which is not an open-source one")


@models.command(short_help="Remove models that specgguf brought here.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...", shell_complete=_complete)
def rm(names: Sequence[str]) -> None:
    """Remove models that specgguf brought here; what other programs brought is theirs."""
    from specgguf.models import hub

    for found in [_found(name) for name in names]:
        if not found.removable:
            raise Unsupported(
                f"{found.name} was not brought by specgguf but by {_whose(found)}", hint="remove it there"
            )
        hub.remove(found)
        click.echo(f"removed {console.clean(found.name)}: {human_bytes(found.bytes)} freed", err=True)


def _whose(found: Found) -> str:
    return "another program, into the hub's cache" if found.source == "hub" else found.source


def _found(name: str) -> Found:
    """The model called `name`, or whose file is called so."""
    from specgguf.models import inventory

    all_models = inventory.models()
    for model in all_models:
        if name in (model.name, model.path.name, str(model.path)):
            return model
    hint = did_you_mean(name, [m.name for m in all_models]) or "specgguf models list shows what is here"
    raise ModelNotFound(f"no model '{name}' is here", hint=hint)


@models.command(short_help="Read models in full and compare their sha256.")
@click.argument("names", nargs=-1, metavar="[NAME...]", shell_complete=_complete)
def verify(names: Sequence[str]) -> int:
    """Read models in full and compare with their sha256; without names, all that specgguf brought."""
    from specgguf.models import inventory

    chosen = [_found(n) for n in names] or [m for m in inventory.models() if m.removable]
    status, n_bad = _status(), 0
    for model in chosen:
        found = _verified(model, status)
        n_bad += found.startswith("damaged")
        click.echo(f"{console.clean(model.name)}: {found}")
    return 1 if n_bad else 0


def _verified(model: Found, status: StatusOutput) -> str:
    from specgguf.models import cache, hub

    try:
        hub.check_file(model.path)
    except SpecggufError as error:
        return f"damaged: {console.clean(str(error))}"
    if not model.sha256:
        return "complete (nobody promised a hash)"
    with Progress(status) as progress:
        right = cache.sha256_of(model.path, progress) == model.sha256
    return "ok" if right else "damaged: another sha256 than promised"


@models.command(short_help="Find drafts for a target, and say why others do not match.")
@click.argument("target", shell_complete=_complete)
@click.option("--measure", is_flag=True, help="Load each pair and measure what its steps cost here.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def pair(target: str, measure: bool, as_json: bool) -> None:
    """Find drafts for TARGET among what is here and the presets, and say why the others do not match.

    Those of its family come first, then those of another vocabulary, each with the speed-up that is to be expected.
    Where a slimmed draft would be faster, a line says so.
    """
    from specgguf.fit import draft_candidates, gains, hardware
    from specgguf.models import hub

    path = hub.cached(target)
    if path is None:
        raise ModelNotFound(f"{target} is not on this machine", hint=f"specgguf models pull {target}")
    costs = _measured_costs(Path(path)) if measure else gains.by_bytes(Path(path), hardware.this_machine())
    found = gains.ranked(draft_candidates.candidates(Path(path)), costs)
    proposal = gains.slimmed(found, costs)
    if as_json:
        _show_json(found, proposal)
        return
    tables.show([(g.candidate.name, human_bytes(g.candidate.bytes), _fit(g)) for g in found], right=(1,))
    if all(g.candidate.why_not for g in found):
        click.echo("no model here can draft for it; -d ngram drafts from the text itself", err=True)
        return
    source = "costs measured here" if measure else "bytes alone (--measure runs them)"
    click.echo(f"speed-ups are expected ones, from {source} and an assumed acceptance; bench measures", err=True)
    if proposal is not None:
        name = shlex.quote(proposal.whole.candidate.name)
        text = f"slimmed to {proposal.n:,} tokens, {proposal.whole.candidate.name} would bring about"
        click.echo(f"{text} {proposal.gain.speed_up:.2f}x: specgguf models slim {name}", err=True)


def _measured_costs(target: Path) -> Costs:
    """What a pass and a draft step cost here, each pair loaded by itself; None for one that does not load."""
    from specgguf.config import DRAFT_MAX_DEFAULT, DraftConfig
    from specgguf.control.cost_cache import costs_for
    from specgguf.fit import predict
    from specgguf.loading import open_pair

    known: dict[Path, predict.PairCosts | None] = {}

    def measured(file: Path) -> predict.PairCosts | None:
        config = DraftConfig("off", DRAFT_MAX_DEFAULT)
        pair = open_pair(str(target), str(file), config, keywords={"n_ctx": 512, "n_gpu_layers": None})
        try:
            costs = costs_for(pair.engine.target, pair.engine.draft_model, DRAFT_MAX_DEFAULT)
            return predict.PairCosts(costs.draft_s, costs.verify_s) if costs.known else None
        finally:
            pair.close()

    def costs(candidate: Candidate) -> predict.PairCosts | None:
        file = candidate.file
        if not isinstance(file, Path):
            return None
        if file not in known:
            try:
                known[file] = measured(file)
            except SpecggufError:
                known[file] = None
        return known[file]

    return costs


def _show_json(found: Sequence[Gain], proposal: Proposal | None) -> None:
    for gain in found:
        c = gain.candidate
        about = {"name": c.name, "bytes": c.bytes, "is_here": c.is_here, "why_not": c.why_not, "share": c.share}
        about |= {"kept": c.kept, "speed_up": gain.speed_up, "draft": gain.draft_n}
        if proposal is not None and proposal.whole is gain:
            about["slimmed"] = {"vocab_size": proposal.n, "speed_up": proposal.gain.speed_up}
        click.echo(json.dumps(about, ensure_ascii=False))


def _fit(gain: Gain) -> str:
    c = gain.candidate
    if c.why_not:
        return c.why_not
    text = "matches" if c.is_here else "to download"
    if c.share < 1.0:
        text = f"another vocabulary: {c.share:.0%} of its tokens are the target's"
    if c.kept < 1.0:
        text += f", slimmed: {c.kept:.0%} of a usual text is kept"
    if gain.speed_up is None:
        return text
    return f"{text}; about {gain.speed_up:.2f}x" if gain.draft_n else f"{text}; plain decoding is as fast"


@models.command(short_help="Cut a draft's vocabulary: a faster step.")
@click.argument("draft", metavar="DRAFT", shell_complete=_complete)
@click.option("-o", "--output", metavar="OUT", help="The file to write; else one in specgguf's folder of models.")
@click.option("--vocab-size", default="auto", show_default=True, metavar="N|auto", help="Tokens to keep, such as 32k.")
@click.option("--corpus", multiple=True, metavar="FILE", help="Texts like yours, whose tokens are kept first.")
@click.option("--head", type=click.Choice(("q8_0", "q6_k", "q4_0")), help="Another format for the output matrix.")
def slim(draft: str, output: str | None, vocab_size: str, corpus: Sequence[str], head: str | None) -> None:
    """Write a slimmed draft: it proposes the likeliest tokens alone, which makes each of its steps faster.

    It reads every text, with the embeddings of DRAFT, which must stay where it is. -d takes the file; what is
    generated keeps its distribution. The path is printed on stdout.
    """
    from specgguf.fit.slimming import cutting
    from specgguf.models import cache, hub

    source = Path(hub.resolve(draft, offline=True))
    size = cutting.parse_size(vocab_size)
    out = Path(output) if output else cache.folder() / "slim" / f"{source.stem}-slim.gguf"
    cut = cutting.cut(source, out, size, corpus=[Path(name) for name in corpus], head=head)
    kept = f"{cut.n_ids:,} of {cut.n_vocab:,} tokens kept, about {cut.share:.0%} of a text's"
    status = _status()
    if cut.why:
        status.tell(cut.why)
    status.tell(f"{kept}; a draft step reads {1 - cut.step:.0%} less")
    status.tell(f"it reads embeddings from {source}: keep that file (-d {out.name if not output else out})")
    click.echo(out)
