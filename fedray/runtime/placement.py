"""Placement of a run on processes and machines, which affects its duration but never a result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Literal, Self, get_args

from fedray.base.errors import InputError

Backend = Literal["auto", "ray", "in-process"]

LEAST_SECONDS = 60.0
"""Shortest run, predicted for one process, that is on Ray by default, seconds; Ray and its actors
take ten to start."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Workers, resources and timeouts of one run."""

    shards: int | None = None
    """Number of population shards; None takes one per CPU of the cluster (in-process one, or one
    per CPU for a million devices or more). Shards of a node are threads of one process."""
    backend: Backend = "auto"
    """"ray" (actors), "in-process" (the same plain classes, in this process), or "auto": ray for
    runs that would take a minute or more in this process, and if a key here asks for a cluster or a
    number of workers; otherwise, and where Ray is not installed, in-process."""
    address: str | None = None
    """Ray cluster to join ("auto", "ray://host:port", "host:port"); None takes the one that this
    process has joined, else that of RAY_ADDRESS, else a local one."""
    object_store_megabytes: int = 512
    """Size of a local cluster's object store."""
    worker_timeout_seconds: float = 600.0
    """Longest wait for one answer of a worker, which is then restarted. It must be longer than the
    work of one look-ahead window; starting does not count."""
    checkpoint_seconds: float = 30.0
    """Wall-clock time between two checkpoints; 0 for one after every look-ahead window, and after
    every round of a training."""
    most_restarts: int = 5
    """Number of restarts of one worker that dies or hangs."""
    aggregator_gpus: float = 0.0
    """GPUs that the aggregator reserves; a fraction shares one, and with 0 it sees no GPU. The
    trace does not depend on it. The model does, since a GPU draws other noise, so a run can
    continue only on the kind of hardware on which it was started."""
    trainers: int | None = None
    """Number of trainers of the model; None takes one per CPU of the cluster (in-process one per
    CPU, at most four), or fills the GPUs of `trainer_gpus`. In-process they are threads."""
    trainer_gpus: float = 0.0
    """GPUs that each trainer reserves; a fraction shares one, and with 0 it sees no GPU. The model
    depends on the kind of hardware, as for `aggregator_gpus`."""
    trainer_cpus: float = 1.0
    """CPUs that each trainer reserves on a cluster."""

    def __post_init__(self) -> None:
        has_shards = self.shards is None or self.shards >= 1
        has_trainers = self.trainers is None or self.trainers >= 1
        can_join = self.address is None or self.backend != "in-process"
        memory = self.object_store_megabytes
        timeout, between = self.worker_timeout_seconds, self.checkpoint_seconds
        restarts, gpus = self.most_restarts, self.aggregator_gpus
        share = self.trainer_gpus
        backends = get_args(Backend)
        per_cpu = "leave it out for one per CPU"
        # Comparisons with NaN are false, so every rule refuses it. Fractions share one GPU; no
        # worker has a use for a second.
        rules = (
            ("shards", has_shards, "must be at least 1", per_cpu),
            ("trainers", has_trainers, "must be at least 1", per_cpu),
            ("backend", self.backend in backends, f"is not one of {str(backends)[1:-1]}", ""),
            ("address", can_join, "needs `backend='ray'`", "drop the address to run in-process"),
            ("object_store_megabytes", memory >= 80, "must be at least 80, Ray's minimum", ""),
            ("worker_timeout_seconds", timeout > 0, "must be positive", "600 is ten minutes"),
            ("checkpoint_seconds", between >= 0, "must not be negative", "0 saves every window"),
            ("most_restarts", restarts >= 0, "must not be negative", "0 allows no restart"),
            ("aggregator_gpus", 0 <= gpus <= 1, "must be from 0 to 1", "0 is the CPU, 1 a GPU"),
            ("trainer_cpus", self.trainer_cpus > 0, "must be positive", "1 is one CPU"),
            ("trainer_gpus", 0 <= share <= 1, "must be from 0 to 1", "0 is the CPU, 1 a GPU"),
        )
        for name, holds, rule, remedy in rules:
            if not holds:
                raise InputError.of(name, getattr(self, name), rule, remedy)

    def trainers_on(self, gpus: float) -> int:
        """Returns the number of trainers for which GPUs have room beside the aggregator.

        A trainer's share lies on one GPU, so the rests of several GPUs do not add up.
        """
        free = [1.0] * int(gpus)
        if free:
            free[0] -= self.aggregator_gpus
        # Shares are binary fractions, and 0.3 / 0.1 is slightly less than 3.
        return sum(int(each / self.trainer_gpus + 1e-6) for each in free)

    def demand_room(self, trainers: int, gpus: float) -> None:
        """Raises InputError if the trainers do not fit the number of GPUs."""
        room = self.trainers_on(gpus)
        if trainers > room:
            raise InputError.of(
                "trainer_gpus",
                self.trainer_gpus,
                f"leaves room for {room} of {trainers} trainers on {gpus:g} GPUs",
                "leave it out for the CPU, or give fewer trainers or a smaller share",
            )

    def resolved(self, seconds: Callable[[], float]) -> Self:
        """Replaces the backend "auto" by "ray" or "in-process".

        Args:
            seconds: function that predicts the time of the run in this process, on which no result
                depends; it is called only if that decides.
        """
        if self.backend != "auto":
            return self
        asks_for_actors = (
            self.address is not None
            or self.shards is not None
            or self.trainers is not None
            or self.aggregator_gpus > 0
            or self.trainer_gpus > 0
        )
        is_on_ray = asks_for_actors or (has_ray() and seconds() >= LEAST_SECONDS)
        return replace(self, backend="ray" if is_on_ray else "in-process")


def has_ray() -> bool:
    """Whether Ray is installed."""
    return find_spec("ray") is not None
