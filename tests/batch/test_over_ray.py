"""A batch over two nodes of a Ray cluster, both on this machine: every request has one row, whoever is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import Pair
from specgguf.cli import exits
from support import ray_nodes
from support.batch_support import chat, rows, text_of, write
from support.cli_support import private_home

import specgguf
from specgguf import SpeculativeLlama
from specgguf.batch import over_ray, ray_node
from specgguf.batch.output import OutputFile
from specgguf.batch.requests import Request, read_requests
from specgguf.batch.runner import Batch, Progress
from specgguf.errors import BackendError

pytestmark = pytest.mark.ray
N = 300


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with ray_nodes.cluster() as made:
        yield made


class Case:
    """An input, its output, and what was said about the nodes."""

    def __init__(self, folder: Path, n: int, content: Callable[[int], str] = str) -> None:
        source = write(folder / "in.jsonl", [chat(f"id {i}", content(i)) for i in range(n)])
        self.requests: list[Request] = read_requests(source.read_bytes().splitlines(), "in.jsonl")
        self.path = folder / "out.jsonl"
        self.said: list[str] = []

    def run(
        self, made: Any, told: Callable[[over_ray.Cluster, Progress], None] = lambda nodes, progress: None,
        open_pair: ray_node.Open = ray_nodes.open_echo,
    ) -> Progress:  # fmt: skip
        nodes = over_ray.Cluster(made.address, open_pair, n_parallel_max=2, told=self.said.append)
        with OutputFile(self.path, self.requests, "in.jsonl") as output:
            return Batch(nodes, self.requests, output).run(partial(told, nodes))

    def check(self) -> None:
        """Every request has its own answer, once."""
        found = rows(self.path)
        assert Counter(row["id"] for row in found) == Counter(request.id for request in self.requests)
        for row in found:
            assert text_of(row).startswith("answer to " + row["custom_id"].removeprefix("id "))


def test_one_node_is_killed_and_one_is_stopped_and_every_request_has_one_row(cluster: Any, tmp_path: Path) -> None:
    other = ray_nodes.add_node(cluster)
    case = Case(tmp_path, N)
    victims: list[over_ray.Node] = []

    def told(nodes: over_ray.Cluster, progress: Progress) -> None:
        if not victims and progress.n_done >= 60 and all(node.ready for node in nodes.nodes.values()):
            assert progress.where == "2 nodes"
            victims.extend(sorted(nodes.nodes.values(), key=lambda node: node.id == other.node_id))
            ready = victims[0].ready
            assert ready is not None
            os.kill(ready.pid, signal.SIGKILL)
        if len(victims) == 2 and progress.n_done >= 150:
            victims.append(victims[1])
            cluster.remove_node(other)

    ended = case.run(cluster, told)
    case.check()
    assert len(victims) == 3
    assert (ended.n_done, ended.n_failed, ended.n_tokens) == (N, 0, 3 * N)
    assert any("its process ended" in line for line in case.said), case.said
    assert any("is gone" in line or "its process ended" in line for line in case.said[3:]), case.said


def test_a_stopped_batch_goes_on_where_it_was(cluster: Any, tmp_path: Path) -> None:
    """What hung when it was stopped has no row, and is asked again; what has one is not."""
    case = Case(tmp_path, 20, lambda i: f"{i} GATE" if i == 7 else str(i))

    def told(nodes: over_ray.Cluster, progress: Progress) -> None:
        if progress.n_done >= 19:
            nodes.stop()

    case.run(cluster, told, ray_nodes.open_with_gate(tmp_path / "gate"))
    first = rows(case.path)
    assert len(first) == 19
    (tmp_path / "gate").touch()
    case.run(cluster, open_pair=ray_nodes.open_with_gate(tmp_path / "gate"))
    case.check()
    assert rows(case.path)[:19] == first


def test_a_request_that_ends_its_process_is_a_row_after_three_times(cluster: Any, tmp_path: Path) -> None:
    case = Case(tmp_path, 6, lambda i: "DIE" if i == 3 else str(i))
    ended = case.run(cluster)
    assert (ended.n_done, ended.n_failed) == (6, 1)
    (row,) = [row for row in rows(case.path) if row["response"]["status_code"] != 200]
    assert row["custom_id"] == "id 3"
    assert row["response"]["body"]["error"]["message"] == "the process that answered it ended, 3 times"


def test_nodes_that_lack_the_model_are_named(cluster: Any, tmp_path: Path) -> None:
    case = Case(tmp_path, 3)
    with pytest.raises(BackendError, match=r"node [\d.]+: no such file: /models/target\.gguf") as caught:
        case.run(cluster, open_pair=ray_nodes.open_nothing)
    assert caught.value.hint == "give a path that every node has"
    assert rows(case.path) == []


def test_a_process_that_ends_while_it_loads_is_given_up(cluster: Any, tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="its process ends before the pair is loaded") as caught:
        Case(tmp_path, 3).run(cluster, open_pair=ray_nodes.open_or_die)
    assert "\n" not in str(caught.value)


def test_another_version_of_the_program_takes_no_part(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(specgguf, "__version__", "0.0.1")
    with pytest.raises(BackendError, match=r"it has specgguf .*, and this is 0\.0\.1"):
        Case(tmp_path, 3).run(cluster)


# --- the command, over a tiny pair ------------------------------------------------------------------------------


def command(made: Any, folder: Path, pair: Pair, *flags: str) -> tuple[int, str]:
    """`specgguf batch --ray` in a process of its own; its exit code and what it said."""
    ran = subprocess.run(
        [
            sys.executable, "-P", "-m", "specgguf.cli.main", "batch", "in.jsonl", "-o", "out.jsonl", "-c", "256",
            "-m", os.path.relpath(pair.target, folder), "-d", str(pair.draft), "--n-threads", "1", "--parallel", "2",
            "--ray", made.address, *flags,
        ],
        env={**os.environ, **private_home(folder)}, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stderr


def test_the_command_answers_as_one_process_does(cluster: Any, tmp_path: Path, tiny_chat: Pair) -> None:
    """Seeded and greedy requests, from a relative path; twice: the second run has nothing to do."""
    n = 12
    requests = [chat(f"id {i}", f"word {i}", max_tokens=6, temperature=0.0, seed=i) for i in range(n)]
    write(tmp_path / "in.jsonl", [*requests, chat("stream", "x", stream=True)])
    code, said = command(cluster, tmp_path, tiny_chat)
    assert code == exits.FAILED, said  # one row is an error
    assert "out.jsonl has 13 rows, 1 of them errors: 'stream'" in said
    assert "2 requests at a time" in said
    over = {row["custom_id"]: row for row in rows(tmp_path / "out.jsonl")}
    assert len(over) == n + 1
    llm = SpeculativeLlama(str(tiny_chat.target), str(tiny_chat.draft), n_ctx=256, n_threads=1)
    for one in requests:
        here: Any = llm.create_chat_completion(**one["body"])
        assert text_of(over[one["custom_id"]]) == here["choices"][0]["message"]["content"]
    llm.close()
    assert command(cluster, tmp_path, tiny_chat)[1].startswith("nothing is left to do")


def test_a_model_that_the_nodes_lack_is_one_line(cluster: Any, tmp_path: Path, tiny_chat: Pair) -> None:
    write(tmp_path / "in.jsonl", [chat("a", "x")])
    code, said = command(cluster, tmp_path, Pair(tmp_path / "none.gguf", tiny_chat.draft))
    assert code == exits.FAILED
    assert re.search(r"error: node [\d.]+: no such file: none\.gguf\n", said), said
    assert "Traceback" not in said
