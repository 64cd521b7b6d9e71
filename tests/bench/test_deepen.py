"""A deepened target computes what the target does."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support import tiny
from support.tiny_archs import write_dense

from specgguf.models import header
from specgguf.native.context import Model
from specgguf.native.weights import Weights

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "bench" / "deepen.py"
TOKENS = [5, 9, 70, 33, 120, 7, 7, 200]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deepen", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["deepen"] = module
    spec.loader.exec_module(module)
    return module


def logits(path: Path) -> np.ndarray:
    weights = Weights(str(path), {"n_threads": 1, "n_threads_batch": 1})
    model = Model(weights, n_ctx=256, n_outputs_max=17)
    rows = model.extend(TOKENS, len(TOKENS)).copy()
    model.close()
    weights.close()
    return rows


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_the_same_function_so_many_times_as_deep(script: ModuleType, tmp_path: Path, arch: str) -> None:
    full, deep = write_dense(tmp_path / "target.gguf", tiny.byte_level([" the"]), arch), tmp_path / "deep.gguf"
    script.deepen(full, deep, 3)
    assert header.read(deep).get("block_count") == 3 * header.read(full).get("block_count")
    assert np.abs(logits(full) - logits(deep)).max() < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep.gguf", "target.gguf"]


def test_copies_that_are_not_silent_would_be_seen(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, deep = write_dense(tmp_path / "target.gguf", tiny.byte_level([" the"]), "llama"), tmp_path / "deep.gguf"
    monkeypatch.setattr(script, "SILENT", ("attn_output.weight",))
    script.deepen(full, deep, 2)
    assert np.abs(logits(full) - logits(deep)).max() > 1e-2


def test_other_architectures_are_refused(script: ModuleType, tmp_path: Path) -> None:
    path = tiny.write_gemma3(tmp_path / "gemma.gguf", tiny.chat())
    with pytest.raises(SystemExit, match="gemma3; llama, qwen2, qwen3 can be deepened"):
        script.deepen(path, tmp_path / "deep.gguf", 2)
    assert not (tmp_path / "deep.gguf").exists()
