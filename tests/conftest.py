"""What every test may ask for: tiny model files (written once a session) and quiet, seeded surroundings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support import clients, tiny

from bench.lib import servers
from specgguf.control import cost_cache
from specgguf.native.rpc import library

NOISE = 0.35  # of a draft's weights: it agrees with its target on six tokens of ten, about


@dataclass(frozen=True)
class Pair:
    """Paths of a target and of a draft over the same vocabulary."""

    target: Path
    draft: Path


def pytest_configure(config: pytest.Config) -> None:
    """Some clients leave sockets and loops to the garbage collector, which may find them in any later test."""
    if clients.large_ones():
        for kind in ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning"):
            config.addinivalue_line("filterwarnings", f"ignore::{kind}")


@pytest.fixture(scope="session", autouse=True)
def costs_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Costs measured here are the session's own: they are of models that will be gone, beside other tests' load."""
    folder = tmp_path_factory.mktemp("costs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost_cache, "folder", lambda: folder)
        yield folder


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tiny")


def _pair(folder: Path, arch: str, vocab: tiny.Vocab, label: str = "") -> Pair:
    write, stem = tiny.WRITERS[arch], f"{arch}{label}"
    return Pair(
        write(folder / f"{stem}-target.gguf", vocab),
        write(folder / f"{stem}-draft.gguf", vocab, noise=NOISE),
    )


@pytest.fixture(scope="session")
def tiny_pair(tiny_folder: Path) -> Pair:
    """Dense, eight letters: small enough to enumerate every text."""
    return _pair(tiny_folder, "llama", tiny.letters(8))


@pytest.fixture(scope="session")
def tiny_chat(tiny_folder: Path) -> Pair:
    """Dense, a byte vocabulary with a chat template: any text in, mostly printable text out."""
    return _pair(tiny_folder, "llama", tiny.chat(), "-chat")


@pytest.fixture(scope="session")
def tiny_hybrid(tiny_folder: Path) -> Pair:
    """lfm2, eight letters: seq_rm refuses; checkpoint, or native rollback with n_rs_seq > 0."""
    return _pair(tiny_folder, "lfm2", tiny.letters(8))


@pytest.fixture(scope="session")
def tiny_hybrid_chat(tiny_folder: Path) -> Pair:
    """lfm2 over the chat vocabulary."""
    return _pair(tiny_folder, "lfm2", tiny.chat(), "-chat")


@pytest.fixture(scope="session")
def tiny_recurrent(tiny_folder: Path) -> Pair:
    """mamba, eight letters: no rollback but a checkpoint."""
    return _pair(tiny_folder, "mamba", tiny.letters(8))


@pytest.fixture(scope="session")
def tiny_sliding(tiny_folder: Path) -> Pair:
    """gemma3 with a window of 16 tokens, eight letters."""
    return _pair(tiny_folder, "gemma3", tiny.letters(8))


@pytest.fixture(scope="session")
def tiny_wide(tiny_folder: Path) -> Path:
    """Dense, one layer, 151,936 ids: decodes in about a millisecond, costs the host what Qwen costs it."""
    return tiny.write_llama(tiny_folder / "wide.gguf", tiny.numbered(151936), shape=tiny.NARROW)


# marker -> why its tests are skipped, whether they are, and what to do about it
NEEDING: dict[str, tuple[str, Callable[[], bool], str]] = {
    "rpc": ("this llama-cpp-python has no RPC", lambda: not library.has_rpc(), "scripts/rpc_build; then scripts/test"),
    "llama_server": (
        "no llama-server is built",
        lambda: not servers.binary().exists(),
        "scripts/bench/run peers --build",
    ),
    "ray": ("Ray is not installed", lambda: importlib.util.find_spec("ray") is None, "pip install ray"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests whose needs are not met are skipped; `pytest_terminal_summary` says so."""
    for marker, (why, is_missing, _) in NEEDING.items():
        needing = [item for item in items if item.get_closest_marker(marker)]
        if needing and is_missing():
            for item in needing:
                item.add_marker(pytest.mark.skip(reason=why))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for why, _, what in NEEDING.values():
        skipped = [r for r in terminalreporter.getreports("skipped") if why in str(r.longrepr)]
        if skipped:
            terminalreporter.write_line(f"NOT RUN: {len(skipped)} tests, as {why} ({what})", yellow=True)
