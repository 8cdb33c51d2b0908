"""CPUs and GPUs that a run reserves on its cluster, as one placement group.

The group is what Ray's scheduler, its autoscaler and other users of the cluster see of a run. All
workers of a node share the node's bundle, so that a run never asks for more than the cluster has:
with few CPUs, the shards' host, the trainers and the aggregator take turns. A worker with a GPU has
a bundle of its own.
"""

import contextlib
import itertools
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.runtime.gauges import OF_A_RUN, RUN, Gauges
from fedray.runtime.placement import Placement, has_ray
from fedray.runtime.session import have_source, session, wait_for_cpus

FEW_CPUS = 4
"""Most CPUs of a node whose workers share a process, each on a thread: it loads torch once. With
more threads, trainers wait for Python's lock, which they hold between torch's operations."""
SECONDS_BETWEEN_LOOKS = 5.0
"""Time between two looks at the nodes of a run's cluster."""


@dataclass(frozen=True, slots=True)
class Node:
    """Node of the cluster."""

    name: str
    """Ray's name."""
    cpus: float
    """CPUs of the node that a run has or may have."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """CPUs and GPUs of a run."""

    nodes: tuple[Node, ...]
    """Nodes of the run, with their reserved CPUs."""
    trainers: int
    """Number of trainers, 0 without a training."""
    group: Any
    """Ray's placement group, with the bundles of the nodes, then of the workers with a GPU."""
    namespace: str
    """Ray's namespace of the run's actors."""
    gauges: Gauges
    """Gauges of the run."""
    seen: set[str]
    """Nodes of the cluster that were there when the run began, or have joined it since."""
    groups: list[Any]
    """All placement groups of the run."""
    processes: dict[int, Any] = field(default_factory=dict)
    """Processes of the nodes on which workers share one, by bundle."""
    restarts: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Number of the next restart of a worker."""

    @property
    def cpus(self) -> float:
        """Reserved CPUs of all nodes."""
        return sum(node.cpus for node in self.nodes)

    def trainer_bundles(self, placement: Placement) -> list[int]:
        """Returns the place of every trainer's bundle in the group."""
        if placement.trainer_gpus:
            first = len(self.nodes) + (placement.aggregator_gpus > 0)
            return list(range(first, first + self.trainers))
        return [
            place
            for place, (begin, end) in enumerate(shares_of(self.nodes, self.trainers))
            for _ in range(begin, end)
        ]

    def aggregator_bundle(self, placement: Placement) -> int:
        """Returns the place of the aggregator's bundle in the group."""
        return len(self.nodes) if placement.aggregator_gpus else 0

    def joined(self, nodes: Sequence[Node], placement: Placement) -> Iterator["Reservation"]:
        """Yields a reservation for trainers of each node that has joined the cluster since the last
        look, if its CPUs are free and it has this source."""
        import ray.util

        for node in nodes:
            if node.name in self.seen:
                continue
            self.seen.add(node.name)
            own = {"ray.io/node-id": node.name}
            group = ray.util.placement_group([{"CPU": node.cpus}], bundle_label_selector=[own])
            self.groups.append(group)
            if not have_source([node.name]) or not ray.wait([group.ready()], timeout=5.0)[0]:
                log = logging.getLogger("fedray")
                log.warning("fedray: a new node has another fedray or no free CPUs; it is not used")
                # Otherwise it would take the CPUs as soon as they are free.
                ray.util.remove_placement_group(group)
                self.groups.remove(group)
                continue
            trainers = max(1, int(node.cpus / placement.trainer_cpus))
            # Names of actors are unique in a namespace, and several tasks may look at once.
            name = f"{self.namespace}-{group.id.hex()[:6]}"
            more = {"trainers": trainers, "group": group, "namespace": name}
            yield replace(self, nodes=(node,), processes={}, **more)

    def show(self, **values: float) -> None:
        """Sets gauges of the run, which are in `OF_A_RUN`."""
        self.gauges.show({name: (OF_A_RUN[name], value) for name, value in values.items()})


_RESERVED: ContextVar[Reservation | None] = ContextVar("reserved", default=None)


def show(**values: float) -> None:
    """Sets gauges of the run that this thread works for; does nothing unless it is on Ray."""
    if (own := _RESERVED.get()) is not None:
        own.show(**values)


@contextlib.contextmanager
def reserved(
    placement: Placement,
    shards: Callable[[float], int],
    about: Mapping[str, str],
    on_wait: Callable[[str], None],
    *,
    trains: bool,
) -> Iterator[Reservation | None]:
    """Within: a run has its CPUs and GPUs; blocks within this one share them. In-process yields
    None.

    Args:
        placement: workers and cluster.
        shards: function that returns the number of shards for a number of CPUs.
        about: metadata of the run: its `scenario` and the `digest` of that, among others.
        on_wait: listener to a long wait, called with its reason.
        trains: whether the run has trainers and an aggregator.

    Raises:
        InputError: the cluster has too few GPUs.
        RunFailed: too few CPUs came free in time.
    """
    with session(placement, about) as free:
        outer = _RESERVED.get()
        if placement.backend == "in-process" or outer is not None:
            yield outer
            return
        import ray
        import ray.util

        while not (candidates := _candidates(free)):
            _wait_for_nodes(placement, trains, on_wait)
            free = math.inf
        gpus = ray.cluster_resources().get("GPU", 0.0)
        cpus = sum(node.cpus for node in candidates)
        trainers = _trainer_count(placement, cpus, gpus) if trains else 0
        nodes = _demand(candidates, shards(cpus), trainers, placement)
        of_workers = [placement.aggregator_gpus, *[placement.trainer_gpus] * trainers]
        gpu_bundles = [{"GPU": share} for share in of_workers if trains and share]
        group = ray.util.placement_group(
            [*({"CPU": node.cpus} for node in nodes), *gpu_bundles],
            strategy="SPREAD",
            bundle_label_selector=[
                *({"ray.io/node-id": node.name} for node in nodes),
                *({} for _ in gpu_bundles),
            ],
        )
        # Two runs of one scenario may share a cluster, so the group's id is in the name.
        parts = "fedray", about["scenario"], about["digest"][:8], group.id.hex()[:6]
        run = "-".join(parts)
        seen = {node.name for node in cluster_nodes()}
        own = Reservation(nodes, trainers, group, run, Gauges(RUN, {"run": run}), seen, [group])
        token = _RESERVED.set(own)

        def say(waits: str) -> None:
            own.show(waiting_cpus=own.cpus)
            on_wait(waits)

        try:
            own.show(restarts=0, waiting_cpus=0)
            with own.gauges.kept():
                wait_for_cpus(group.ready(), own.cpus, placement, say)
                own.show(waiting_cpus=0)
                yield own
        finally:
            _RESERVED.reset(token)
            for each in own.groups:
                ray.util.remove_placement_group(each)


def _wait_for_nodes(placement: Placement, trains: bool, on_wait: Callable[[str], None]) -> None:
    """Waits until a cluster without CPUs has as many as the placement names, at least one. Its
    autoscaler sees them as a group. Raises RunFailed."""
    import ray.util

    trainers = placement.trainers or 0 if trains else 0
    cpus = [1.0] * (placement.shards or 1) + [placement.trainer_cpus] * trainers
    group = ray.util.placement_group([{"CPU": each} for each in cpus])
    try:
        wait_for_cpus(group.ready(), sum(cpus), placement, on_wait)
    finally:
        ray.util.remove_placement_group(group)


def _trainer_count(placement: Placement, cpus: float, gpus: float) -> int:
    # Ray would wait for a node with more GPUs to join.
    if placement.aggregator_gpus > gpus:
        rule = f"but the cluster has {gpus:g}"
        value = placement.aggregator_gpus
        raise InputError.of("aggregator_gpus", value, rule, "leave it out for the CPU")
    if not placement.trainer_gpus:
        return placement.trainers or max(1, int(cpus / placement.trainer_cpus))
    count = placement.trainers or max(1, placement.trainers_on(gpus))
    placement.demand_room(count, gpus)
    return count


def _demand(
    nodes: Sequence[Node], shards: int, trainers: int, placement: Placement
) -> tuple[Node, ...]:
    """Returns the nodes of a run, with the CPUs to reserve: one per shard, those of the trainers
    and one for the aggregator, but never more than a node has."""
    of_shards = shares_of(nodes, shards)
    of_trainers = shares_of(nodes, trainers)
    found: list[Node] = []
    for node, (first, end), (first_trainer, end_trainer) in zip(
        nodes, of_shards, of_trainers, strict=True
    ):
        wanted = end - first + (end_trainer - first_trainer) * placement.trainer_cpus
        if wanted and trainers and not found:
            wanted += 1.0  # the aggregator
        if wanted:
            found.append(Node(node.name, min(node.cpus, wanted)))
    return tuple(found)


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


def looks(reservation: Reservation | None) -> Iterator[Sequence[Node]]:
    """Yields, every few seconds, the nodes that a run may use now; otherwise, and in-process, where
    it has no reservation, an empty sequence."""
    last = time.monotonic()
    while True:
        if reservation is None or time.monotonic() - last < SECONDS_BETWEEN_LOOKS:
            yield ()
        else:
            last = time.monotonic()
            yield cluster_nodes()


def _candidates(free: float) -> list[Node]:
    """Returns nodes that have free CPUs, with these; all CPUs of all nodes if none are free."""
    import ray

    nodes = cluster_nodes()
    if free >= ray.cluster_resources().get("CPU", 0.0):
        return nodes
    # A client of Ray cannot list the free CPUs of nodes, but a task can.
    task: Any = ray.remote(_free_cpus).options(num_cpus=0)
    of_nodes: Any = ray.get(task.remote())
    found = [Node(node.name, of_nodes.get(node.name, 0.0)) for node in nodes]
    return [node for node in found if node.cpus >= 1.0] or nodes


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


def where(placement: Placement, reservation: Reservation | None, shards: int) -> str:
    """Says what runs where, such as "Ray, local cluster, 2 CPUs: 2 shards, 1 trainer, aggregator on
    CPU"."""
    parts = [counted(shards, "shard")]
    if reservation is None:
        why = "" if has_ray() else " (Ray is not installed)"
        return f"in this process{why}: {parts[0]}"
    if count := reservation.trainers:
        on_gpus = " on GPUs" if placement.trainer_gpus else ""
        parts.append(f"{counted(count, 'trainer')}{on_gpus}")
        parts.append(f"aggregator on {'GPU' if placement.aggregator_gpus else 'CPU'}")
    address = placement.address or os.environ.get("RAY_ADDRESS")
    cluster = f"cluster {address}" if address else "local cluster"
    cpus = f"{reservation.cpus:g} {'CPU' if reservation.cpus == 1 else 'CPUs'}"
    return f"Ray, {cluster}, {cpus}: {', '.join(parts)}"
