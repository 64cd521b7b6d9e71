"""README.md and docs/: every command parses, every link leads somewhere, and README's programs run as printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from conftest import Pair
from specgguf.cli.main import cli
from support.cli_support import private_home

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
LINES_MAX = 120
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)


def blocks(page: Path, *languages: str) -> list[str]:
    """The contents of a page's code blocks in one of these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def commands(page: Path) -> list[list[str]]:
    """Every call of specgguf in the page's shell blocks, as arguments."""
    found = []
    for text in blocks(page, "sh", "console"):
        for line in text.replace("\\\n", " ").splitlines():
            for part in re.split(r"[|;] |&& ", line.removeprefix("$ ")):
                words = shlex.split(part, comments=True)
                if words[:1] == ["specgguf"]:
                    found.append(words[1:])
    return found


def parse(command: click.Command, arguments: list[str], parent: click.Context | None = None) -> None:
    """Parse as the program would, and run nothing."""
    with command.make_context(command.name or "specgguf", list(arguments), parent=parent) as context:
        rest = [*context._protected_args, *context.args]
        if isinstance(command, click.Group) and rest:
            _, found, left = command.resolve_command(context, rest)
            assert found is not None, rest
            parse(found, left, context)


@by_page
def test_every_command_parses(page: Path) -> None:
    for arguments in commands(page):
        try:
            parse(cli, arguments)
        except click.UsageError as error:
            pytest.fail(f"specgguf {' '.join(arguments)}: {error.message}")


def test_a_wrong_command_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse(cli, ["chat", "--no-such-flag"])
    with pytest.raises(click.UsageError):
        parse(cli, ["models", "pullx"])
    assert ["chat", "What is a mutex?"] in commands(README)


@by_page
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]*[./][^)#\s]*)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target


@by_page
def test_every_script_is_there(page: Path) -> None:
    listed = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "bench" / "run")], capture_output=True, text=True, check=True
    ).stdout
    for path, name in re.findall(r"\b(scripts/[\w./]+)(?: ([\w-]+))?", page.read_text(encoding="utf-8")):
        assert (ROOT / path.rstrip(".")).exists(), path
        if path == "scripts/bench/run" and name and name.islower():
            assert re.search(rf"^  {name} ", listed, re.MULTILINE), name


def test_the_first_page_is_one() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES_MAX
    assert text.count("![") == 1
    for page in PAGES[1:]:
        assert f"docs/{page.name}" in text or page.stem == "controller", page.name


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "install.md"], ids=lambda p: p.stem)
def test_a_prebuilt_wheel_is_one_that_the_package_takes(page: Path) -> None:
    """Without the bounds pip takes the newest wheel that an index has, and compiles another release over it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = [line for line in project["dependencies"] if line.startswith("llama-cpp-python")]
    lines = "".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines if "--only-binary" in line]
    assert len(words) == 1
    assert words[0][:5] == ["pip", "install", "--only-binary", "llama-cpp-python", requirement]


@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_programs_of_the_first_page_run(number: int, tiny_chat: Pair, tmp_path: Path) -> None:
    """As printed, over a tiny pair under the names that they use."""
    home = private_home(tmp_path)
    own = Path(home["XDG_CONFIG_HOME"]) / "specgguf" / "presets" / "demo.toml"
    own.parent.mkdir(parents=True)
    own.write_text(f"summary = 'x'\nmodel = '{tiny_chat.target}'\ndraft_model = '{tiny_chat.draft}'\nn_ctx = 256\n")
    for name in ("target", "draft"):
        (tmp_path / f"{name}.gguf").symlink_to(getattr(tiny_chat, name))
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", "-c", blocks(README, "python")[number].replace("8192", "256")],
        cwd=tmp_path,
        env={**os.environ, **home},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
