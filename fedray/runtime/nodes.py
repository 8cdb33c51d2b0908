"""Nodes of the cluster, their free CPUs, and waits for these."""

import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from fedray.base.errors import RunFailed
from fedray.runtime.placement import Placement

SECONDS_OF_SILENCE = 10.0
"""Shortest time to wait for CPUs before saying so, and between two such lines."""
SECONDS_UNTIL_REPEATED = 60.0
"""Time after which a line whose figures are still the same is repeated."""
SECONDS_OF_A_LOOK = 2.0
"""Time between two looks at a wait."""


@dataclass(frozen=True, slots=True)
class Node:
    """Node of the cluster."""

    name: str
    """Ray's name."""
    cpus: float
    """CPUs of the node that a run has or may have."""


def cluster_nodes() -> list[Node]:
    """Lists the nodes with CPUs that are not being drained, in a fixed order."""
    import ray
    import ray.exceptions
    from ray._private.state import state

    drained: Collection[str] = ()
    # A client of Ray cannot ask for them.
    with contextlib.suppress(ray.exceptions.RaySystemError):
        drained = state.get_draining_nodes()
    cpus = {
        each["NodeID"]: each["Resources"].get("CPU", 0.0) for each in ray.nodes() if each["Alive"]
    }
    return [Node(name, cpus[name]) for name in sorted(cpus) if cpus[name] and name not in drained]


def free_nodes() -> list[Node]:
    """Lists the nodes that have a whole CPU free, each with its free CPUs."""
    import ray
    import ray.util.client

    nodes = cluster_nodes()
    if ray.available_resources().get("CPU", 0.0) >= ray.cluster_resources().get("CPU", 0.0):
        return nodes
    of_nodes: Any
    if ray.util.client.ray.is_connected():
        # A client of Ray cannot list the free CPUs of nodes, but a task can.
        task: Any = ray.remote(_free_cpus).options(num_cpus=0)
        of_nodes = ray.get(task.remote())
    else:
        of_nodes = _free_cpus()
    found = [Node(node.name, of_nodes.get(node.name, 0.0)) for node in nodes]
    return [node for node in found if node.cpus >= 1.0]


def _free_cpus() -> dict[str, float]:
    from ray._private.state import available_resources_per_node

    return {name: found.get("CPU", 0.0) for name, found in available_resources_per_node().items()}


def shares_of(nodes: Sequence[Node], count: int) -> list[tuple[int, int]]:
    """Divides workers among nodes in proportion to their CPUs: [begin, end) of each node."""
    total = sum(node.cpus for node in nodes)
    # Running sums are rounded, so that the shares add up.
    running = itertools.accumulate((node.cpus for node in nodes), initial=0.0)
    edges = [round(count * cpus / total) for cpus in running]
    return list(itertools.pairwise(edges))


class Wait:
    """Wait for resources of a cluster, which says so in time and whenever the figures change.

    Args:
        placement: has the longest wait.
        on_wait: called with the awaited resources, such as "6 CPUs: 2 of 5 are free".
    """

    def __init__(
        self, placement: Placement, on_wait: Callable[[str], None] = lambda waits: None
    ) -> None:
        self._longest = placement.worker_timeout_seconds
        self._on_wait = on_wait
        self._begun = self._said_at = time.monotonic()
        self._said = ""

    def for_any(self, started: Sequence[Any], wanted: str, kind: str = "CPU") -> list[Any]:
        """Waits a moment, and returns the references that have a value by then.

        Args:
            started: references, each of which has a value as soon as something runs.
            wanted: the awaited resources, such as "6 CPUs".
            kind: Ray's name of the resource, "CPU" or "GPU".

        Raises:
            RunFailed: none has a value at the end of the longest wait.
        """
        import ray

        left = self._begun + self._longest - time.monotonic()
        moment = max(0.0, min(SECONDS_OF_A_LOOK, left))
        # References that fail at once must not make the wait endless.
        if (found := ray.wait(list(started), timeout=moment)[0]) and left > 0.0:
            return found
        silent = time.monotonic() - self._said_at
        if silent >= SECONDS_OF_SILENCE or left <= moment:
            waits = f"{wanted}: {_free_of_all(kind)} are free"
            if left <= moment:
                raise RunFailed(
                    f"waited {self._longest:g} s for {waits}; end other programs on the cluster, "
                    "add nodes, or raise worker_timeout_seconds"
                )
            if waits != self._said or silent >= SECONDS_UNTIL_REPEATED:
                self._said, self._said_at = waits, time.monotonic()
                logging.getLogger("fedray").warning("fedray: waiting for %s (`ray status`)", waits)
                self._on_wait(waits)
        return []


def _free_of_all(kind: str) -> str:
    import ray

    if kind == "CPU":
        # Those of nodes that are being drained are nobody's.
        free, whole = (sum(node.cpus for node in each()) for each in (free_nodes, cluster_nodes))
    else:
        resources = ray.available_resources(), ray.cluster_resources()
        free, whole = (found.get(kind, 0.0) for found in resources)
    return f"{free:g} of {whole:g}"
