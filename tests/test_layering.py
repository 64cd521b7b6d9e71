"""The shape of the source: who may import whom, what costs nothing at start, what is public, how long a page is.

`ORDER` is the design: a package imports only from those before it, and inside one no import leads back to where it
came from. Whoever opens one knows that nothing after it matters to it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from specgguf.cli.main import COMMANDS

import specgguf

ROOT = Path(__file__).resolve().parent.parent

ORDER = """
errors config presets models decode native fit control grammar text turns engine scoring batched loading
llama_names calls api vllm llm_plugin serve batch bench cli
""".split()
CLI_ORDER = """
terminal exits options click_options interrupts keyboard settings pairing parallel open_pair chat commands main
""".split()
FILES_MAX = 10  # of a folder, beside __init__
LINES_MAX = 300

HEAVY = {"llama_cpp", "numpy", "llguidance", "prompt_toolkit", "rich", "huggingface_hub", "jinja2", "platformdirs"}

LIBRARY = sorted((ROOT / "specgguf").rglob("*.py"))
TERMINAL = sorted((ROOT / "cli").rglob("*.py"))
SOURCES = [*LIBRARY, *TERMINAL, *sorted((ROOT / "presets").rglob("*.py"))]
by_name = pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT).with_suffix("")))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_name(path: Path) -> str:
    """The dotted name that a source file is imported by."""
    parts = list(path.relative_to(ROOT).with_suffix("").parts)
    parts = parts if parts[0] == "specgguf" else ["specgguf", *parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[str]:
    """Full names of what a module imports, anywhere in it."""
    home = module_name(path).split(".")
    home = home if path.stem == "__init__" else home[:-1]
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else []
            full = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{full}.{alias.name}" for alias in node.names)


def rooms(path: Path, depth: int = 1) -> set[str]:
    """The packages (and modules at the top) that `path` imports from, `depth` names below specgguf."""
    names = [name.split(".") for name in imports(path) if name.startswith("specgguf.")]
    return {name[depth] for name in names if len(name) > depth}


def back_imports(path: Path, order: list[str], depth: int = 1) -> set[str]:
    """What `path` imports though it does not stand before its own room in `order`."""
    own = module_name(path).split(".")[depth]
    assert own in order, f"{own} has no place in the order yet"
    found = {r for r in rooms(path, depth) if depth == 1 or r in order}
    return found & set(order) - set(order[: order.index(own) + 1])


@pytest.mark.parametrize(
    "path", [p for p in SOURCES if p.parent.name != "specgguf" or p.stem != "__init__"], ids=module_name
)
def test_packages_import_only_from_those_before_them(path: Path) -> None:
    assert not back_imports(path, ORDER)


@pytest.mark.parametrize(
    "path", [p for p in TERMINAL if p.parent.name != "cli" or p.stem != "__init__"], ids=module_name
)
def test_the_terminal_program_has_an_order_too(path: Path) -> None:
    assert not {
        name.split(".")[2]
        for name in imports(path)
        if name.startswith("specgguf.cli.") and name.split(".")[2] in CLI_ORDER
    } - set(CLI_ORDER[: CLI_ORDER.index(module_name(path).split(".")[2]) + 1])


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Modules that reach themselves by imports."""
    found = set()
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo.extend(graph.get(module, ()))
        if start in seen:
            found.add(start)
    return found


def test_no_import_leads_back_to_where_it_came_from() -> None:
    names = {module_name(path) for path in SOURCES}
    graph = {}
    for path in SOURCES:
        full = set(imports(path))
        graph[module_name(path)] = {n for n in names if n in full or n in {f.rpartition(".")[0] for f in full}}
    graph["specgguf"] = set()  # loads what is asked of it, when it is asked
    assert not circles(graph)


def test_no_folder_is_crowded() -> None:
    for folder in {path.parent for path in SOURCES}:
        files = [path for path in folder.glob("*.py") if path.stem != "__init__"]
        # One file a command, and no more: who looks for a command finds it by its name.
        limit = len(COMMANDS) if folder.name == "commands" else FILES_MAX
        assert len(files) <= limit, folder.name


NETWORKED = {
    "batch.ray_node",
    "models.hub",
    "models.hf_client",
    "native.rpc.wire",
    "native.rpc.child",
    "native.rpc.keepalive",
    "serve.server",
}
LUCKY = {"decode.sampling", "api"}  # api: seeds of calls that name none


@pytest.mark.parametrize("path", LIBRARY, ids=module_name)
def test_the_library_keeps_to_itself(path: Path) -> None:
    """No terminal, no printing; llama.cpp, networks and random numbers each have their own places."""
    tree, names = tree_of(path), set(imports(path))
    own = module_name(path).removeprefix("specgguf.")
    tops = {name.split(".")[0] for name in names}
    calls = {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    assert "print" not in calls
    assert not tops & {"click", "rich", "prompt_toolkit"}
    assert "cli" not in rooms(path)
    if not own.startswith("native."):
        assert not tops & {"ctypes", "llama_cpp"}
    if own.startswith("decode."):
        assert rooms(path) <= {"errors", "config", "decode"}
        assert tops - {"specgguf"} <= sys.stdlib_module_names | {"numpy"}
    if own not in NETWORKED:
        assert not tops & {"urllib", "http", "socket", "requests", "httpx", "huggingface_hub"}
    if own not in LUCKY:
        assert not tops & {"random", "secrets"}
        assert not any(name.startswith("numpy.random") for name in names)


@pytest.mark.parametrize("path", TERMINAL, ids=module_name)
def test_the_terminal_program_leaves_llama_cpp_to_the_library(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports(path)} & {"ctypes", "llama_cpp"}


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
    limit = 600 if path.stem == "api" else LINES_MAX
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


@pytest.mark.parametrize("module", ["grammar.cursor", "decode.run", "control.controller"])
def test_what_is_pure_needs_no_llama_cpp(module: str) -> None:
    assert "llama_cpp" not in loaded_after(f"import specgguf.{module}")


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


def test_the_layering_test_can_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that imports from a later package, also inside a function, is seen, and so is a circle."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    low = tmp_path / "specgguf" / "decode" / "low.py"
    low.parent.mkdir(parents=True)
    low.write_text("def f():\n    from specgguf.text import grammar\n    from .. import api\n    from . import step\n")
    assert back_imports(low, ORDER) == {"text", "api"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == {"b", "c"}
