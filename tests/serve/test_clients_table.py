"""The table of clients in docs/server.md says what the tests show, and nothing else."""

from __future__ import annotations

from support import clients


def test_the_table_is_that_of_the_tests() -> None:
    rows = clients.written(clients.DOC.read_text(encoding="utf-8"))
    found = {(client, feature) for client, (_, features) in rows.items() for feature in features}
    assert found == clients.marked(), "tests/support/clients.py writes it"
    assert all(number for number, _ in rows.values())


def test_a_table_is_read_as_it_was_written() -> None:
    rows = {"b": ("1.0", {"chat", "full context"}), "a": ("2", {"streams"})}
    text = clients.table(rows)
    assert clients.written(f"{clients.START}\n{text}\n{clients.END}") == rows
    assert text.splitlines()[2].startswith("| a | 2 |")


def test_every_large_client_can_be_installed() -> None:
    group = (
        (clients.ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("clients = [")[2].partition("]\n")[0]
    )
    for client in {client for client, _ in clients.marked()} - set(clients.SMALL):
        assert f'"{client.replace("_", "-")}' in group
