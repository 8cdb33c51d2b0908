"""Claims on CPUs and GPUs of a cluster: all at once, or in the queues of the cluster's nodes.

Ray makes a placement group only when all of its resources are free at one moment, which never comes
beside tasks that follow each other on every CPU. A CPU that comes free goes to a task or an actor
that waits for it, so a run beside others claims its CPUs as actors.

A node grants CPUs in no fixed order of the functions and classes that wait for it, and without one
that has more than its share, but only while they ask for more CPUs than the node has
(GrantScheduledLeasesToWorkers in Ray's local_lease_manager.cc). So on each node actors wait for a
CPU each, and one for all of its CPUs. On a node of one CPU no share can be exceeded, and the order
decides: there the actors leave now and then, and queue as another class. Others wait on any node:
an autoscaler counts these.
"""

import contextlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from fedray.base.rounding import counted
from fedray.runtime.nodes import SECONDS_OF_A_LOOK, Node, Wait, cluster_nodes

SECONDS_TO_GATHER = 10.0
"""Time in which further CPUs may come free after the first; the run then starts with these."""
SECONDS_TO_GROW = 60.0
"""The same on a cluster that had no CPUs, whose autoscaler adds one node after the other."""
SECONDS_IN_A_QUEUE = 10.0
"""Time after which an actor leaves the queue of a node of one CPU, and queues again."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Resources that a run has."""

    nodes: tuple[Node, ...]
    """Nodes with their CPUs."""
    group: Any = None
    """Ray's placement group, with a bundle for each node unless CPUs are `held`, then the bundles
    with GPUs; None without bundles."""
    held: tuple["_Holder", ...] = ()
    """Actors that hold the CPUs; empty if the group has them."""

    def bundle(self, place: int) -> int | None:
        """Returns the place in the group of a bundle of a node, or of a GPU after those; None if
        it is of a node whose CPUs are held."""
        if not self.held:
            return place
        return None if place < len(self.nodes) else place - len(self.nodes)

    def kept_to(self, nodes: Sequence[Node]) -> "Claim":
        """Gives back the CPUs beyond those of `nodes`."""
        left = {node.name: node.cpus for node in nodes}
        kept: list[_Holder] = []
        for each in sorted(self.held, key=lambda each: -each.cpus):
            if left.get(each.node, 0.0) > 0.0:
                left[each.node] -= each.cpus
                kept.append(each)
            else:
                each.end()
        return replace(self, nodes=tuple(nodes), held=tuple(kept))

    def give_back(self) -> None:
        """Gives back everything."""
        import ray.util

        if self.group is not None:
            ray.util.remove_placement_group(self.group)
        for each in self.held:
            each.end()


@dataclass(frozen=True, slots=True)
class _Holder:
    """Actor that has CPUs, or waits for them."""

    node: str
    """Its node; empty while it waits on any."""
    cpus: int
    """Number of CPUs."""
    actor: Any
    """Ray's handle."""

    def end(self) -> None:
        import ray

        ray.kill(self.actor)


def group_of(bundles: Sequence[dict[str, float]], nodes: Sequence[Node] = ()) -> Any:
    """Returns a placement group that has been asked for, whose first bundles are on `nodes`."""
    import ray.util

    places = [{"ray.io/node-id": node.name} for node in nodes]
    others: list[dict[str, str]] = [{} for _ in bundles[len(nodes) :]]
    return ray.util.placement_group(
        list(bundles), strategy="SPREAD", bundle_label_selector=[*places, *others]
    )


def claim_at_once(nodes: Sequence[Node], gpu_bundles: Sequence[dict[str, float]]) -> Claim | None:
    """Claims CPUs of nodes, and GPUs, as a group. Returns None if they are not free."""
    import ray.util

    group = group_of([*({"CPU": node.cpus} for node in nodes), *gpu_bundles], nodes)
    if group.wait(SECONDS_OF_A_LOOK):
        return Claim(tuple(nodes), group)
    ray.util.remove_placement_group(group)
    return None


def claim_in_queue(
    cpus: int, gpu_bundles: Sequence[dict[str, float]], wait: Wait, *, is_empty: bool
) -> Claim:
    """Claims CPUs on any nodes, which come free one after the other; at least one, at most `cpus`.

    Args:
        cpus: number of CPUs.
        gpu_bundles: bundles with GPUs, which come free at one moment.
        wait: wait for the first CPU and the GPUs.
        is_empty: whether the cluster had no CPUs.

    Raises:
        RunFailed: no CPU, or not all GPUs, came free in time.
    """
    with contextlib.ExitStack() as undo:
        group = None
        if gpu_bundles:
            group = group_of(gpu_bundles)
            undo.callback(Claim((), group).give_back)
            gpus = sum(bundle["GPU"] for bundle in gpu_bundles)
            wanted = f"{gpus:g} {'GPU' if gpus == 1 else 'GPUs'} at one moment"
            started = [group.ready()]
            while not wait.for_any(started, wanted, "GPU"):
                pass
        queue = _Queue(cpus)
        undo.callback(queue.leave)
        wanted = f"{'1 to ' if cpus > 1 else ''}{counted(cpus, 'CPU')}"
        while not queue.held():
            queue.look(wait, wanted)
        queue.gather(SECONDS_TO_GROW if is_empty else SECONDS_TO_GATHER)
        held = queue.held()
        undo.pop_all()
        queue.stop()
    of_nodes = Counter[str]()
    for each in held:
        of_nodes[each.node] += each.cpus
    nodes = [Node(name, float(of_nodes[name])) for name in sorted(of_nodes)]
    return Claim(tuple(nodes), group, held)


class _Queue:
    """Actors that wait for CPUs, or have them.

    Args:
        cpus: number of CPUs that are wanted.
    """

    def __init__(self, cpus: int) -> None:
        self._cpus = cpus
        self._waiting: dict[Any, _Holder] = {}
        """Actors by the reference to the node of each, which has a value once it has its CPUs."""
        self._taken: list[_Holder] = []
        self._asked_on: dict[str, float] = {}
        """Nodes on which actors wait, each with the time since when they do."""

    def look(self, wait: Wait, wanted: str) -> None:
        """Waits a moment for CPUs. Raises RunFailed at the end of the wait."""
        self._follow(cluster_nodes())
        self._take(wait.for_any([*self._waiting], wanted))

    def gather(self, seconds: float) -> None:
        """Waits until the other CPUs are there, too, for a time at most."""
        import ray

        end = time.monotonic() + seconds
        while self._missing and (left := end - time.monotonic()) > 0.0:
            self._follow(cluster_nodes())
            moment = min(left, SECONDS_OF_A_LOOK)
            self._take(ray.wait([*self._waiting], timeout=moment)[0])

    def held(self) -> tuple[_Holder, ...]:
        """Returns the actors that have CPUs, without those on drained and lost nodes."""
        if not self._taken:
            return ()
        nodes = {node.name for node in cluster_nodes()}
        return tuple(each for each in self._taken if each.node in nodes)

    def stop(self) -> None:
        """Ends the actors that still wait."""
        for each in self._waiting.values():
            each.end()
        self._waiting.clear()

    def leave(self) -> None:
        """Ends all actors."""
        self.stop()
        for each in self._taken:
            each.end()

    @property
    def _missing(self) -> int:
        return self._cpus - sum(each.cpus for each in self.held())

    def _follow(self, nodes: Sequence[Node]) -> None:
        """Queues on nodes that have joined, and again on nodes of one CPU; leaves lost ones."""
        # Some may have been lost with their nodes.
        self._ask("", self._missing - sum(not each.node for each in self._waiting.values()))
        now = time.monotonic()
        wanted = math.ceil(2 * self._cpus / max(1, len(nodes)))
        cpus = {node.name: int(node.cpus) for node in nodes if node.cpus >= 1.0}
        for name, since in list(self._asked_on.items()):
            if name not in cpus or (cpus[name] == 1 and now - since >= SECONDS_IN_A_QUEUE):
                self._leave(name)
        for name in cpus.keys() - self._asked_on.keys():
            self._asked_on[name] = now
            self._ask(name, min(wanted, cpus[name]))
            self._ask(name, 1, cpus[name])

    def _take(self, started: Sequence[Any]) -> None:
        """Notes that actors have their CPUs."""
        import ray
        import ray.exceptions

        for reference in started:
            holder = self._waiting.pop(reference)
            # Its node may have been lost in the meantime.
            with contextlib.suppress(ray.exceptions.RayError):
                holder = replace(holder, node=ray.get(reference))
                if holder.cpus <= self._missing:
                    self._taken.append(holder)
                    continue
            holder.end()

    def _leave(self, node: str) -> None:
        del self._asked_on[node]
        for reference, each in list(self._waiting.items()):
            if each.node == node:
                del self._waiting[reference]
                each.end()

    def _ask(self, node: str, count: int, cpus: int = 1) -> None:
        """Lets actors wait for CPUs of a node, or of any, as a class of their own."""
        import ray

        # Defined here, so that Ray sends the class itself: a node may have another fedray.
        class Cpu:
            def node(self) -> str:
                return ray.get_runtime_context().get_node_id()

        where: Any = {"label_selector": {"ray.io/node-id": node}} if node else {}
        remote: Any = ray.remote(num_cpus=cpus, **where)(Cpu)
        for _ in range(count):
            actor = remote.remote()
            self._waiting[actor.node.remote()] = _Holder(node, cpus, actor)
