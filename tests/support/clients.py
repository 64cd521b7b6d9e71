"""Which features of which clients are tried, for the table in docs/server.md.

`works` marks a test; `python -P tests/support/clients.py` runs the marked tests of the clients that are installed and
writes what passed, with their versions, into the table. What is not installed keeps its row.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOC = ROOT / "docs" / "server.md"
TESTS = ROOT / "tests" / "serve" / "test_clients.py"
START, END = "<!-- clients -->", "<!-- /clients -->"
SMALL = ("openai", "llm")  # in the group `test`, and clean
FEATURES = ("chat", "streams", "tools", "schemas", "responses", "completions", "full context")
WORKS = re.compile(r'@works\("([\w.-]+)", "([\w ]+)"\)')


def works(client: str, feature: str) -> Callable[[Any], Any]:
    """Mark a test that shows a feature of a client; skipped, and said so, where the client is not installed."""
    assert feature in FEATURES, feature

    def mark(test: Any) -> Any:
        test = pytest.mark.client(client, feature)(test)
        if version(client) is None:
            return pytest.mark.skip(reason=f"{client} is not installed: pip install --group clients")(test)
        return test

    return mark


def version(client: str) -> str | None:
    """Of an installed distribution."""
    try:
        return metadata.version(client)
    except metadata.PackageNotFoundError:
        return None


def large_ones() -> list[str]:
    """Those of the group `clients` that are installed."""
    return [client for client, _ in sorted(marked()) if client not in SMALL and version(client) is not None]


def marked() -> set[tuple[str, str]]:
    """(client, feature) of every test."""
    return set(WORKS.findall(TESTS.read_text(encoding="utf-8")))


def table(rows: dict[str, tuple[str, set[str]]]) -> str:
    """Markdown, from each client's version and the features that work."""
    lines = [["client", "version", *FEATURES], ["---"] * (2 + len(FEATURES))]
    for client, (number, features) in sorted(rows.items()):
        lines.append([client, number, *("yes" if feature in features else "" for feature in FEATURES)])
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def written(text: str) -> dict[str, tuple[str, set[str]]]:
    """The rows of the table in a document."""
    inside = text[text.index(START) : text.index(END)]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in inside.splitlines() if "|" in line][2:]
    return {
        client: (number, {feature for feature, cell in zip(FEATURES, cells, strict=True) if cell})
        for client, number, *cells in rows
    }


class Passed:
    """A pytest plugin that notes which marked tests passed, and which did not."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], bool] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        outcome: Any = yield
        report = outcome.get_result()
        for mark in item.iter_markers("client"):
            if report.when == "call" or report.failed:
                self.found[mark.args] = self.found.get(mark.args, True) and report.passed


def main() -> int:
    """Run, then write the table."""
    passed = Passed()
    code = int(pytest.main(["-q", str(TESTS)], plugins=[passed]))
    text = DOC.read_text(encoding="utf-8")
    rows = {client: row for client, row in written(text).items() if version(client) is None}
    for (client, feature), is_good in sorted(passed.found.items()):
        number, features = rows.setdefault(client, (version(client) or "", set()))
        rows[client] = (number, features | ({feature} if is_good else set()))
    before, after = text[: text.index(START)], text[text.index(END) :]
    DOC.write_text(f"{before}{START}\n{table(rows)}\n{after}", encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
