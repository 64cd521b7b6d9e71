"""The nodes of a Ray cluster as a source of rows: an actor a node, which loads the pair once and answers many requests.

Ray starts a killed actor again, and says which nodes there are. Which requests are asked again is decided here, so that
each has one row: a request is with one actor at a time, and comes back when that actor is lost. How a node opens a
pair is told as a function that it can import; this module knows no files and no settings.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import specgguf
from specgguf.config import one_line
from specgguf.errors import BackendError, SpecggufError
from specgguf.serve.protocols.reply import Json

from . import rows
from .answering import TICK_S
from .ray_node import MESSAGE_MAX, NodeActor, Open, Ready, connect
from .requests import Request

LOOK_S = 2.0  # how often nodes are looked for
LOADS_MAX = 3  # times in a row that a node's actor may end before it is loaded
ATTEMPTS_MAX = 3  # actors that may end over one request; before the last one it is asked alone


@dataclass
class Node:
    """A node of the cluster and its actor.

    Attributes:
        loading: the answer of `load` that is waited for; None once the pair is loaded.
        running: requests by the answers that are waited for.
        n_lost: times in a row that the actor ended before it was loaded.
    """

    id: str
    address: str
    actor: Any
    loading: Any
    ready: Ready | None = None
    running: dict[Any, Request] = field(default_factory=dict)
    n_lost: int = 0

    @property
    def n_free(self) -> int:
        """Requests that it could take up now."""
        return self.ready.n_parallel - len(self.running) if self.ready is not None and self.loading is None else 0


class Cluster:
    """The source of rows that is a Ray cluster; see `runner.Source`.

    Args:
        address: of the cluster, HOST:PORT, or `ray_node.AUTO`.
        open_pair: called on each node; pickled, so the nodes must be able to import it.
        n_parallel_max: the most requests at a time that any node will take.
        told: hears, in a line, what becomes of nodes.

    Raises:
        As `connect`.
    """

    def __init__(self, address: str, open_pair: Open, *, n_parallel_max: int, told: Callable[[str], object]) -> None:
        self._ray = connect(address)
        self._open, self._n_parallel_max, self._told = open_pair, n_parallel_max, told
        self._stopped = threading.Event()
        self._waiting: deque[Request] = deque()
        self._attempts: dict[str, int] = {}  # of requests whose actor was lost
        self._refused: set[str] = set()  # nodes that cannot load the pair
        self._refusal: SpecggufError | None = None
        self._looked_at = 0.0
        self.nodes: dict[str, Node] = {}
        self.n_tokens = 0

    @property
    def n_running(self) -> int:
        """See `runner.Source`."""
        return sum(len(node.running) for node in self.nodes.values())

    @property
    def where(self) -> str:
        """See `runner.Source`."""
        n_ready = sum(node.loading is None for node in self.nodes.values())
        of = "" if n_ready == len(self.nodes) else f" of {len(self.nodes)}"
        return f"{n_ready}{of} node{'s' * (len(self.nodes) != 1)}"

    def stop(self) -> None:
        """See `runner.Source`."""
        self._stopped.set()

    def rows(self, requests: Sequence[Request]) -> Generator[Json | None, None, None]:
        """See `runner.Source`."""
        self._waiting.extend(requests)
        try:
            while (self._waiting or self.n_running) and not self._stopped.is_set():
                self._look_for_nodes()
                self._hand_out()
                awaited = [ref for node in self.nodes.values() for ref in self._awaited(node)]
                ended = self._ray.wait(awaited, timeout=TICK_S)[0] if awaited else []
                for ref in ended:
                    yield self._take(ref)
                yield None
        finally:
            self._close()

    def _look_for_nodes(self) -> None:
        """Start an actor on each node that is new; take back what a node had that is gone.

        Raises:
            SpecggufError: there is none that could answer.
        """
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        alive = {one["NodeID"]: one for one in self._ray.nodes() if one["Alive"]}
        for node in [node for node in self.nodes.values() if node.id not in alive]:
            self._leave(node, "is gone")
        for node_id, one in alive.items():
            if node_id not in self.nodes and node_id not in self._refused and one["Resources"].get("CPU"):
                self._start(node_id, one["NodeManagerAddress"], one["Resources"])
        if not self.nodes:
            raise self._refusal or BackendError("no node of the cluster is left", hint="ray status shows its nodes")

    def _start(self, node_id: str, address: str, resources: dict[str, float]) -> None:
        """One actor with all GPUs of its node. Of the CPUs Ray books one: the engine uses its cores by itself."""
        pinned = importlib.import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        made = self._ray.remote(NodeActor).options(
            scheduling_strategy=pinned(node_id, soft=False),
            num_cpus=1,
            num_gpus=resources.get("GPU", 0),
            max_concurrency=self._n_parallel_max + 1,
            max_restarts=-1,
            max_task_retries=0,  # a request that an actor was lost over is handed out again here
        )
        actor = made.remote(self._open)
        self.nodes[node_id] = Node(node_id, address, actor, actor.load.remote())

    def _hand_out(self) -> None:
        for node in self.nodes.values():
            while self._waiting and node.n_free > 0 and self._may_join(self._waiting[0], node):
                request = self._waiting.popleft()
                node.running[node.actor.row.remote(request)] = request

    def _may_join(self, request: Request, node: Node) -> bool:
        """A request that may be what ends actors has none beside it: its neighbours are not to be blamed."""
        suspects = [
            one for one in (request, *node.running.values()) if self._attempts.get(one.id, 0) == ATTEMPTS_MAX - 1
        ]
        return not suspects or not node.running

    def _awaited(self, node: Node) -> list[Any]:
        return [*node.running, *([] if node.loading is None else [node.loading])]

    def _take(self, ref: Any) -> Json | None:
        """What an answer brought: a row, or a node that is ready, or lost."""
        node = next((node for node in self.nodes.values() if ref in self._awaited(node)), None)
        if node is None:
            return None  # its node left meanwhile
        errors = self._ray.exceptions
        try:
            answer = self._ray.get(ref)
        except errors.RayTaskError as error:
            cause = error.cause if isinstance(error.cause, Exception) else error
            if ref is not node.loading:
                return rows.failed(node.running.pop(ref), cause)
            self._refuse(node, cause)
        except errors.RayError as error:
            return self._lost(node, ref, error)
        else:
            if ref is not node.loading:
                del node.running[ref]
                self.n_tokens += rows.n_tokens(answer)
                return dict(answer)
            self._welcome(node, answer)
        return None

    def _welcome(self, node: Node, ready: Ready) -> None:
        if ready.version != specgguf.__version__:
            found = f"it has specgguf {ready.version}, and this is {specgguf.__version__}"
            self._refuse(node, BackendError(found, hint="install the same version on all nodes"))
            return
        node.ready, node.loading, node.n_lost = ready, None, 0
        self._told(f"node {node.address}: {ready.name} is loaded, {ready.n_parallel} requests at a time")

    def _lost(self, node: Node, ref: Any, error: Exception) -> Json | None:
        """Its actor ended, and Ray starts it again; the row of the request, where it is not to be asked once more."""
        row = None
        if ref is node.loading:
            node.n_lost += 1
            if node.n_lost >= LOADS_MAX:
                why = one_line(str(error).strip().splitlines()[-1], MESSAGE_MAX)
                self._refuse(node, BackendError(f"its process ends before the pair is loaded: {why}"))
                return None
            node.loading = None
        else:
            row = self._take_back(node.running.pop(ref))
        if node.loading is None:
            if node.ready is not None:
                again = f"; its {len(node.running) + 1} requests are asked again"
                self._told(f"node {node.address}: its process ended{again}")
            node.ready, node.loading = None, node.actor.load.remote()
        return row

    def _take_back(self, request: Request) -> Json | None:
        """Hand a request out again, soon; or its row, if too many actors ended over it."""
        n = self._attempts[request.id] = self._attempts.get(request.id, 0) + 1
        if n < ATTEMPTS_MAX:
            self._waiting.appendleft(request)
            return None
        return rows.failed(request, BackendError(f"the process that answered it ended, {n} times"))

    def _refuse(self, node: Node, cause: Exception) -> None:
        """The pair cannot be loaded there."""
        message = one_line(str(cause), MESSAGE_MAX)
        self._refused.add(node.id)
        self._refusal = BackendError(f"node {node.address}: {message}", hint=getattr(cause, "hint", ""))
        self._leave(node, f"takes no part: {message}")

    def _leave(self, node: Node, why: str) -> None:
        del self.nodes[node.id]
        self._waiting.extendleft(node.running.values())
        again = f"; its {len(node.running)} requests are asked again" if node.running else ""
        self._told(f"node {node.address} {why}{again}")
        self._ray.kill(node.actor)
        self._looked_at = 0.0  # whether any is left is to be known now

    def _close(self) -> None:
        for node in self.nodes.values():
            self._ray.kill(node.actor)
        self.nodes.clear()
        self._ray.shutdown()
