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
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.runtime.claims import Claim, claim_at_once, claim_in_queue
from fedray.runtime.gauges import OF_A_RUN, RUN, Gauges
from fedray.runtime.nodes import Node, Wait, cluster_nodes, free_nodes, shares_of
from fedray.runtime.placement import Placement, has_ray
from fedray.runtime.session import have_code, session

FEW_CPUS = 4
"""Most CPUs of a node whose workers share a process, each on a thread: it loads torch once. With
more threads, trainers wait for Python's lock, which they hold between torch's operations."""
SECONDS_BETWEEN_LOOKS = 5.0
"""Time between two looks at the nodes of a run's cluster."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """CPUs and GPUs of a run."""

    claim: Claim
    """CPUs and GPUs of the run: a bundle of each node, then of each worker with a GPU."""
    trainers: int
    """Number of trainers, 0 without a training."""
    most_trainers: int
    """Largest number of trainers that the run can use, those on other nodes included."""
    namespace: str
    """Ray's namespace of the run's actors."""
    gauges: Gauges
    """Gauges of the run."""
    seen: set[str]
    """Nodes of the cluster that were there when the run began, or have joined it since."""
    claims: list[Claim]
    """All claims of the run."""
    first_node: int = 0
    """Number of the first node; nodes that join a run are numbered on."""
    first_trainer: int = 0
    """Number of the first trainer; those of nodes that join are numbered on."""
    processes: dict[int, Any] = field(default_factory=dict)
    """Processes of the nodes on which workers share one, by bundle."""
    restarts: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    """Number of the next restart of a worker."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes of the run, with their reserved CPUs."""
        return self.claim.nodes

    @property
    def cpus(self) -> float:
        """Reserved CPUs of all nodes."""
        return sum(node.cpus for node in self.nodes)

    def place(self, bundle: int) -> tuple[dict[str, Any], frozenset[str]]:
        """Returns Ray's options for an actor in a bundle, where -1 is any with a GPU, and the names
        of the nodes on which it may then start; none for those with a GPU."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        is_of_node = 0 <= bundle < len(self.nodes)
        names = frozenset([self.nodes[bundle].name] if is_of_node else ())
        place = bundle if bundle < 0 else self.claim.bundle(bundle)
        if place is None:
            return {"label_selector": {"ray.io/node-id": self.nodes[bundle].name}}, names
        strategy = PlacementGroupSchedulingStrategy(self.claim.group, place)
        return {"scheduling_strategy": strategy}, names

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

    def joined(
        self, nodes: Sequence[Node], placement: Placement, trainers: int
    ) -> Iterator["Reservation"]:
        """Yields a reservation for trainers of each node that has joined the cluster since the last
        look, if its CPUs are free and it has this code.

        Args:
            nodes: nodes of the cluster.
            placement: CPUs of each trainer.
            trainers: number of trainers that the run has.
        """
        for node in nodes:
            if node.name in self.seen or trainers >= self.most_trainers:
                continue
            self.seen.add(node.name)
            more = min(
                max(1, int(node.cpus / placement.trainer_cpus)), self.most_trainers - trainers
            )
            wanted = Node(node.name, min(node.cpus, more * placement.trainer_cpus))
            claim = claim_at_once([wanted], ()) if have_code([node.name]) else None
            if claim is None:
                log = logging.getLogger("fedray")
                log.warning("fedray: a new node has other code or no free CPUs; it is not used")
                continue
            first_node = sum(len(each.nodes) for each in self.claims)
            self.claims.append(claim)
            numbers = {"first_node": first_node, "first_trainer": trainers}
            trainers += more
            yield replace(self, claim=claim, processes={}, trainers=more, **numbers)

    def show(self, **values: float) -> None:
        """Sets gauges of the run, which are in `OF_A_RUN`."""
        _show(self.gauges, **values)


_RESERVED: ContextVar[Reservation | None] = ContextVar("reserved", default=None)


def show(**values: float) -> None:
    """Sets gauges of the run that this thread works for; does nothing unless it is on Ray."""
    if (own := _RESERVED.get()) is not None:
        own.show(**values)


def _show(gauges: Gauges, **values: float) -> None:
    gauges.show({name: (OF_A_RUN[name], value) for name, value in values.items()})


@contextlib.contextmanager
def reserved(
    placement: Placement,
    shards: Callable[[float], int],
    about: Mapping[str, str],
    on_wait: Callable[[str], None],
    *,
    most_trainers: int,
) -> Iterator[Reservation | None]:
    """Within: a run has its CPUs and GPUs; blocks within this one share them. In-process yields
    None.

    Args:
        placement: workers and cluster.
        shards: function that returns the number of shards for a number of CPUs.
        about: metadata of the run: its `scenario` and the `digest` of that, among others.
        on_wait: listener to a long wait, called with its reason.
        most_trainers: largest number of trainers that the run can use; 0 without a training.

    Raises:
        InputError: the cluster has too few GPUs.
        RunFailed: too few CPUs came free in time.
    """
    with session(placement, about):
        outer = _RESERVED.get()
        if placement.backend == "in-process" or outer is not None:
            yield outer
            return
        # Two runs of one scenario may share a cluster.
        parts = "fedray", about["scenario"], about["digest"][:8], secrets.token_hex(3)
        run = "-".join(parts)
        gauges = Gauges(RUN, {"run": run})
        needs = _Needs(placement, shards, most_trainers)

        def say(waits: str) -> None:
            _show(gauges, waiting_cpus=needs.cpus)
            on_wait(waits)

        _show(gauges, restarts=0, waiting_cpus=0)
        claims: list[Claim] = []
        with gauges.kept(), contextlib.ExitStack() as stack:
            stack.callback(lambda: [each.give_back() for each in claims])
            claims.append(needs.claimed(Wait(placement, say)))
            _show(gauges, waiting_cpus=0)
            seen = {node.name for node in cluster_nodes()}
            trainers = needs.trainers(claims[0].nodes)
            own = Reservation(claims[0], trainers, most_trainers, run, gauges, seen, claims)
            stack.callback(_RESERVED.reset, _RESERVED.set(own))
            yield own


class _Needs:
    """CPUs and GPUs that a run needs; arguments as in `reserved`."""

    def __init__(
        self, placement: Placement, shards: Callable[[float], int], most_trainers: int
    ) -> None:
        self._placement, self._shards, self._most_trainers = placement, shards, most_trainers
        self.cpus = 0.0
        """CPUs that the run asks for."""

    def claimed(self, wait: Wait) -> Claim:
        """Waits for the resources, and returns them. Raises InputError and RunFailed."""
        nodes = free_nodes()
        gpu_bundles = self._gpu_bundles()
        if nodes:
            of_run = self.of(nodes)
            self.cpus = sum(node.cpus for node in of_run)
            if claim := claim_at_once(of_run, gpu_bundles):
                return claim
        nodes = cluster_nodes()
        if nodes:
            self.cpus = math.ceil(sum(node.cpus for node in self.of(nodes)))
        else:
            placement = self._placement
            trainers = placement.trainers or 0 if self._most_trainers else 0
            shards = placement.shards or 1
            self.cpus = math.ceil(shards + placement.trainer_cpus * trainers)
        claim = claim_in_queue(int(self.cpus), gpu_bundles, wait, is_empty=not nodes)
        return claim.kept_to(self.of(claim.nodes))

    def trainers(self, nodes: Sequence[Node]) -> int:
        """Returns the number of trainers on nodes."""
        placement = self._placement
        if not self._most_trainers:
            return 0
        if placement.trainer_gpus:
            return self._trainers_on_gpus()
        cpus = sum(node.cpus for node in nodes)
        room = max(1, int(cpus / placement.trainer_cpus))
        return placement.trainers or min(room, self._most_trainers)

    def of(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Returns nodes with the CPUs to reserve on them: one per shard, those of the trainers, and
        one for the aggregator of several trainers, but never more than a node has."""
        trainers = self.trainers(nodes)
        of_shards = shares_of(nodes, self._shards(sum(node.cpus for node in nodes)))
        of_trainers = shares_of(nodes, trainers)
        found: list[Node] = []
        for node, (first, end), (first_trainer, end_trainer) in zip(
            nodes, of_shards, of_trainers, strict=True
        ):
            of_node = (end_trainer - first_trainer) * self._placement.trainer_cpus
            wanted = end - first + of_node
            # A single trainer waits while the aggregator works.
            if wanted and trainers > 1 and not found:
                wanted += 1.0
            if wanted:
                found.append(Node(node.name, min(node.cpus, wanted)))
        return tuple(found)

    def _gpu_bundles(self) -> list[dict[str, float]]:
        import ray

        if not self._most_trainers:
            return []
        placement = self._placement
        # Ray would wait for a node with more GPUs to join.
        if placement.aggregator_gpus > (gpus := ray.cluster_resources().get("GPU", 0.0)):
            rule = f"but the cluster has {gpus:g}"
            value = placement.aggregator_gpus
            raise InputError.of("aggregator_gpus", value, rule, "leave it out for the CPU")
        trainers = self._trainers_on_gpus() if placement.trainer_gpus else 0
        shares = [placement.aggregator_gpus, *[placement.trainer_gpus] * trainers]
        return [{"GPU": share} for share in shares if share]

    def _trainers_on_gpus(self) -> int:
        import ray

        placement, gpus = self._placement, ray.cluster_resources().get("GPU", 0.0)
        room = min(placement.trainers_on(gpus), self._most_trainers)
        count = placement.trainers or max(1, room)
        placement.demand_room(count, gpus)
        return count


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


def where(
    placement: Placement, reservation: Reservation | None, shards: int, *, is_here: bool = False
) -> str:
    """Says what runs where, such as "Ray, local cluster, 2 CPUs: 2 shards, 1 trainer, aggregator on
    CPU"; `is_here` if the shards are in this process, whatever the trainers."""
    parts = [f"{counted(shards, 'shard')}{' in this process' if is_here else ''}"]
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
