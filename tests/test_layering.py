"""The shape of the source: who may import whom, what costs nothing at start, what is public, how long a page is.

The order below is the design: a module imports only from those above it. Whoever opens one knows that nothing
below matters to it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import specgguf

ROOT = Path(__file__).resolve().parent.parent

ORDER = """
errors config prefixes presets
header heads mirror remote inventory hub
backend ggml gbnf hardware dims footprint peek predict fit
rewind weights model vocab pairs
schema grammar sampling text rounds lookup drafter verifier
costs calibration acceptance resting controller generate stats trace engine
loading
messages conversation logprobs tool_calls completion requests prompts calls api
bench verdict results serve_metrics serve_fields serve_requests serve_queue serve_http serve_app serve llm_plugin
""".split()

HEAVY = {"llama_cpp", "numpy", "prompt_toolkit", "rich", "huggingface_hub", "jinja2", "platformdirs"}

LIBRARY = sorted((ROOT / "specgguf").glob("*.py"))
SOURCES = [*LIBRARY, *sorted((ROOT / "cli").glob("*.py")), *sorted((ROOT / "presets").glob("*.py"))]
by_name = pytest.mark.parametrize("path", SOURCES, ids=lambda p: f"{p.parent.name}/{p.stem}")


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Full names of what a library module imports, anywhere in it."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = "specgguf" if node.level else ""
            full = ".".join(part for part in (home, node.module) if part)
            yield from (f"{full}.{alias.name}" for alias in node.names)


def within(path: Path) -> set[str]:
    """The modules of the package that `path` imports."""
    return {name.split(".")[1] for name in imports(path) if name.startswith("specgguf.")}


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: p.stem)
def test_modules_import_only_from_those_above(path: Path) -> None:
    if path.stem == "__init__":
        return
    assert path.stem in ORDER, f"{path.stem} has no place in ORDER yet"
    above = set(ORDER[: ORDER.index(path.stem)])
    assert within(path) <= above


def test_presets_import_only_from_those_above() -> None:
    assert within(ROOT / "presets" / "__init__.py") <= {"errors", "config"}


@pytest.mark.parametrize("path", LIBRARY, ids=lambda p: p.stem)
def test_the_library_keeps_to_itself(path: Path) -> None:
    """No terminal, no printing; ctypes, networks and random numbers each have their own modules."""
    tree, names = tree_of(path), set(imports(path))
    tops = {name.split(".")[0] for name in names}
    calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert "print" not in calls
    assert not tops & {"click", "rich", "prompt_toolkit"}
    assert "cli" not in within(path)
    if path.stem not in ("backend", "ggml", "gbnf"):
        assert "ctypes" not in tops
    if path.stem not in ("hub", "mirror", "remote", "serve"):
        assert not tops & {"urllib", "http", "socket", "requests", "httpx", "huggingface_hub"}
    if path.stem not in ("sampling", "api"):  # api: seeds of calls that name none
        assert not tops & {"random", "secrets"}
        assert not any(name.startswith("numpy.random") for name in names)


@by_name
def test_a_module_says_what_it_is_for(path: Path) -> None:
    """Its purpose at its head (in the library: and what it does not know), and documented public names."""
    tree = tree_of(path)
    head = [line for line in (ast.get_docstring(tree) or "").splitlines() if line.strip()]
    assert len(head) >= (2 if path in LIBRARY and path.stem != "__init__" else 1)
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            documented = ast.get_docstring(node) is not None
            assert documented or length(node) <= 8, f"{node.name} is not documented"


def length(node: ast.ClassDef | ast.FunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


@by_name
def test_a_module_fits_a_few_pages_and_a_function_a_screen(path: Path) -> None:
    # api: the parameters of its two calls are llama-cpp-python's, a line each.
    limit = 500 if path.stem == "api" else 330
    assert len(path.read_text(encoding="utf-8").splitlines()) <= limit
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef) and node.name not in ("__init__",):
            code = length(node) - len((ast.get_docstring(node, clean=False) or "").splitlines())
            assert code <= 60, f"{node.name} has {code} lines"


def loaded_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `code`."""
    report = "import sys; print(); print(*sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True, cwd=ROOT / "tests"
    )
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_costs_nothing() -> None:
    assert not loaded_after("import specgguf; specgguf.SamplingParams(); specgguf.ConfigError") & HEAVY


@pytest.mark.parametrize("arguments", [[], ["chat"], ["bench"], ["serve"], ["models"], ["presets"]], ids=str)
def test_help_costs_nothing(arguments: list[str]) -> None:
    code = f"""
from specgguf.cli.main import main
try:
    main({[*arguments, "--help"]!r})
except SystemExit as done:
    assert not done.code, done.code
"""
    assert not loaded_after(code) & HEAVY


def test_all_is_what_is_exported() -> None:
    """Sorted, complete, and each name at home in a private module of the package."""
    assert specgguf.__all__ == sorted(specgguf.__all__)
    assert set(specgguf.__all__) | {"__version__"} == set(dir(specgguf))
    for name in specgguf.__all__:
        assert getattr(specgguf, name).__module__.startswith("specgguf.")
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        specgguf.nothing  # noqa: B018
    typed = {
        alias.name
        for node in ast.walk(tree_of(ROOT / "specgguf" / "__init__.py"))
        if isinstance(node, ast.ImportFrom) and node.level == 1
        for alias in node.names
    }
    assert typed == set(specgguf.__all__)


def test_the_layering_test_can_fail(tmp_path: Path) -> None:
    """A module that imports from below, also inside a function, is seen."""
    low = tmp_path / "rounds.py"
    low.write_text("def f():\n    from .generate import generate\n    from . import api\n    import specgguf.stats\n")
    assert within(low) == {"generate", "api", "stats"}
