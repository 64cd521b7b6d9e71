"""Models of four other programs, in fixture trees: found, named, never touched."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest
from conftest import Pair
from specgguf.presets import ModelFile

from specgguf import presets
from specgguf.errors import ModelNotFound
from specgguf.fit import draft_candidates
from specgguf.models import cache, hub, inventory
from specgguf.models.inventory import HUB, LLAMA_CPP, LM_STUDIO, OLLAMA, OURS


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, in which all five programs would look."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HOME", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ".cache"))
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "llama"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(inventory, "home", lambda: tmp_path)
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "ours")
    monkeypatch.setattr(presets, "user_folder", lambda: tmp_path / "presets")
    return tmp_path


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def in_hub(home: Path, repo: str, file: str, data: bytes) -> Path:
    """As huggingface_hub lays it out: a blob, and a link from a snapshot."""
    folder = home / "hub" / f"models--{repo.replace('/', '--')}"
    blob = put(folder / "blobs" / hashlib.sha256(data).hexdigest(), data)
    link = folder / "snapshots" / "c0ffee" / file
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(os.path.relpath(blob, link.parent))
    put(folder / "refs" / "main", b"c0ffee")
    return link


def in_ollama(home: Path, name: str, data: bytes, media: str = "model", digest: str = "") -> Path:
    """As Ollama lays it out: a manifest by name, a blob by digest."""
    root = home / ".ollama" / "models"
    digest = digest or hashlib.sha256(data).hexdigest()
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64},
        {"mediaType": f"application/vnd.ollama.image.{media}", "digest": f"sha256:{digest}"},
    ]
    put(root / "manifests" / name, json.dumps({"layers": layers}).encode())
    return put(root / "blobs" / f"sha256-{digest}", data) if "/" not in digest else root


@pytest.fixture
def everything(home: Path, tiny_pair: Pair) -> dict[str, Path]:
    """One model of each program, all of other bytes."""
    data = tiny_pair.target.read_bytes()
    return {
        OURS: put(home / "ours" / "0123456789ab" / "a-q4_k_m.gguf", data + b"1"),
        HUB: in_hub(home, "org/Some-GGUF", "b-q8_0.gguf", data + b"2"),
        LLAMA_CPP: put(home / "llama" / "org_repo_c.gguf", data + b"3"),
        LM_STUDIO: put(home / ".lmstudio" / "models" / "maker" / "Model-GGUF" / "d.gguf", data + b"4"),
        OLLAMA: in_ollama(home, "registry.ollama.ai/library/tiny/1b", data + b"5"),
    }


def test_every_program_is_found(everything: dict[str, Path]) -> None:
    found = {m.source: m for m in inventory.models()}
    assert set(found) == set(everything)
    assert {m.name for m in found.values()} == {
        "a-q4_k_m.gguf",
        "org/Some-GGUF:b-q8_0.gguf",
        "org_repo_c.gguf",
        "maker/Model-GGUF:d.gguf",
        "tiny:1b",
    }
    for source, path in everything.items():
        assert found[source].path == path
        assert found[source].bytes == path.stat().st_size
        assert found[source].removable == (source == OURS)
    assert found[OLLAMA].sha256
    assert found[HUB].sha256


def test_names_resolve_without_a_network(everything: dict[str, Path]) -> None:
    for model in inventory.models():
        assert hub.resolve(model.name, offline=True) == everything[model.source]


def test_nothing_of_theirs_is_written(everything: dict[str, Path], home: Path) -> None:
    def state() -> dict[str, tuple[int, int]]:
        return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_size) for p in sorted(home.rglob("*"))}

    before = state()
    for model in inventory.models():
        hub.check_file(model.path)
        if not model.removable:
            with pytest.raises(ValueError, match="not brought by specgguf"):
                hub.remove(model)
    draft_candidates.candidates(everything[LM_STUDIO])
    assert state() == before


def test_ours_can_be_removed(everything: dict[str, Path], home: Path) -> None:
    ours = next(m for m in inventory.models() if m.source == OURS)
    hub.remove(ours)
    assert not everything[OURS].exists()
    assert {m.source for m in inventory.models()} == set(everything) - {OURS}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("registry.ollama.ai/library/llama3.2/3b", "llama3.2:3b"),
        ("registry.ollama.ai/someone/model/latest", "someone/model:latest"),
        ("hf.co/org/Repo-GGUF/Q4_K_M", "hf.co/org/Repo-GGUF:Q4_K_M"),
    ],
)
def test_ollama_names_are_those_that_it_takes(home: Path, tiny_pair: Pair, path: str, name: str) -> None:
    in_ollama(home, path, tiny_pair.target.read_bytes())
    assert [m.name for m in inventory.models()] == [name]
    assert hub.resolve(name, offline=True).name.startswith("sha256-")


def test_odd_trees_are_passed_over(home: Path, tiny_pair: Pair) -> None:
    data = tiny_pair.target.read_bytes()
    in_ollama(home, "registry.ollama.ai/library/projector/1b", data, media="projector")
    in_ollama(home, "registry.ollama.ai/library/evil/1b", b"", digest="../../../secret")
    put(home / ".ollama" / "models" / "manifests" / "x" / "library" / "broken" / "1b", b"{not json")
    put(home / ".ollama" / "models" / "manifests" / "stray", b"[]")
    put(home / ".lmstudio" / "settings.json", b"[1, 2")
    put(home / ".lmstudio" / "models" / "m" / "r" / "mmproj-model.gguf", data)
    (home / "llama").mkdir()
    (home / "llama" / "dead.gguf").symlink_to(home / "nowhere.gguf")
    assert [m.name for m in inventory.models() if m.bytes] == []


def test_a_split_model_is_one(home: Path, tiny_pair: Pair) -> None:
    data = tiny_pair.target.read_bytes()
    for i in (1, 2):
        put(home / "llama" / f"big-0000{i}-of-00002.gguf", data)
    (found,) = inventory.models()
    assert found.name == "big-00001-of-00002.gguf"
    assert found.bytes == 2 * len(data)


def test_a_moved_lm_studio_folder_is_found(home: Path, tiny_pair: Pair) -> None:
    put(home / "elsewhere" / "maker" / "repo" / "x.gguf", tiny_pair.target.read_bytes())
    put(home / ".lmstudio" / "settings.json", json.dumps({"downloadsFolder": str(home / "elsewhere")}).encode())
    assert [m.name for m in inventory.models()] == ["maker/repo:x.gguf"]


# --- pairs --------------------------------------------------------------------------------------------------


def test_matching_drafts_come_first_and_others_say_why(home: Path, tiny_pair: Pair, tiny_chat: Pair) -> None:
    target = put(home / "llama" / "target.gguf", tiny_pair.target.read_bytes() + b"\0" * 400_000)
    put(home / "llama" / "draft.gguf", tiny_pair.draft.read_bytes())
    put(home / "llama" / "twin.gguf", tiny_pair.target.read_bytes() + b"\0" * 300_000)
    put(home / "llama" / "stranger.gguf", tiny_chat.draft.read_bytes())
    put(home / "llama" / "garbage.gguf", b"GGUF\x03\0\0\0")
    found = {c.name: c for c in draft_candidates.candidates(target)}
    assert next(iter(found)) == "draft.gguf"
    assert not found["draft.gguf"].why_not
    assert "too large" in found["twin.gguf"].why_not
    assert not found["stranger.gguf"].why_not
    assert found["stranger.gguf"].share < 0.1, "of another vocabulary: behind the family's own"
    assert "the file ends inside its GGUF header" in found["garbage.gguf"].why_not
    best = draft_candidates.best(target)
    assert best is not None
    assert best.name == "draft.gguf"


def test_without_a_match_there_is_no_best(home: Path, tiny_pair: Pair, tiny_chat: Pair) -> None:
    target = put(home / "llama" / "target.gguf", tiny_pair.target.read_bytes() + b"\0" * 400_000)
    assert draft_candidates.best(target) is None
    put(home / "llama" / "stranger.gguf", tiny_chat.draft.read_bytes())
    assert draft_candidates.best(target) is None


def test_a_presets_own_draft_is_named_though_it_is_not_here(
    home: Path, tiny_pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = put(home / "t.gguf", tiny_pair.target.read_bytes())
    (home / "presets").mkdir()
    monkeypatch.setattr(presets, "names", lambda: ["mine"])
    table = {
        name: ModelFile(name, size, "0" * 64, repo="o/r", revision="main")
        for name, size in (("t.gguf", target.stat().st_size), ("d.gguf", 77))
    }
    mine = presets.Preset("mine", "x", model=table["t.gguf"], draft_model=table["d.gguf"])
    monkeypatch.setattr(presets, "load", lambda _name: mine)
    (candidate,) = draft_candidates.candidates(target)
    assert (candidate.name, candidate.bytes, candidate.is_here) == ("o/r:d.gguf", 77, False)


def test_an_unknown_name_is_no_model(everything: dict[str, Path]) -> None:
    with pytest.raises(ModelNotFound):
        hub.resolve("tiny:7b", offline=True)
