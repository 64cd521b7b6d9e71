"""docs/chat.md says what the program does: its tables are those of the source."""

from __future__ import annotations

from pathlib import Path

import pytest
from specgguf.cli.chat.slash import COMMANDS, Command
from specgguf.cli.options import SETTINGS, Setting

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "chat.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c.name)
def test_commands(command: Command) -> None:
    usage = f"/{command.name} {command.argument}".rstrip().replace("|", "\\|")
    assert f"| `{usage}` | {command.help} |" in PAGE


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.name)
def test_settings(setting: Setting) -> None:
    default = setting.default
    shown = "" if default is None else str(default).lower() if isinstance(default, bool) else default
    assert f"| `{setting.name}` | `{' '.join(setting.flags)}` | `{setting.env}` | {shown} |" in PAGE


def test_captures_exist() -> None:
    for line in PAGE.splitlines():
        if line.startswith("!["):
            assert (DOCS / line.rpartition("(")[2].rstrip(")")).is_file(), line
