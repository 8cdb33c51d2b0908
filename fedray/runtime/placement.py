"""Placement: where a run happens. May change the wall clock, never a result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

from fedray.base.errors import InputError

Backend = Literal["auto", "ray", "in-process"]

RAY_START_SECONDS = 20.0
"""Training that takes less than this is done sooner than Ray and its actors have started and ended.
"""


@dataclass(frozen=True, slots=True)
class Placement:
    """Workers, resources and patience of one run.

    shards: population shards; None takes one per CPU of the cluster (in-process one, or one per CPU
        where a million devices or more are simulated). Those of a node work on threads of one
        process.
    backend: "ray" (actors), "in-process" (the same plain classes, in this process), or "auto":
        in-process where that is faster: for simulations, whose shards are threads, for trainings
        on few CPUs, whose trainers are threads, and for small trainings, which would be over before
        Ray has started.
    address: Ray cluster to join ("auto", "ray://host:port", "host:port"); None starts a local one.
    object_store_megabytes: size of a local cluster's object store.
    worker_timeout_seconds: longest wait for one answer of a worker. One that takes longer is taken
        to hang: it is ended and started anew. It must be longer than the work of one look-ahead
        window; starting does not count.
    checkpoint_seconds: wall-clock time between two checkpoints; 0 for one after every look-ahead
        window, and after every round of a training.
    most_restarts: how often one worker is started anew when it dies or hangs.
    aggregator_gpus: GPUs that the aggregator reserves; a fraction shares one. At 0 it runs on the
        CPU and sees no GPU. The trace is the same either way. The model is not, since a GPU draws
        other noise; so a run goes on only on the kind of device that it was started on.
    trainers: of the model; None takes one per CPU of the cluster (in-process one per CPU, four at
        the most). In-process they are threads.
    """

    shards: int | None = None
    backend: Backend = "auto"
    address: str | None = None
    object_store_megabytes: int = 512
    worker_timeout_seconds: float = 600.0
    checkpoint_seconds: float = 30.0
    most_restarts: int = 5
    aggregator_gpus: float = 0.0
    trainers: int | None = None

    def __post_init__(self) -> None:
        for name in ("shards", "trainers"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise InputError.of(
                    name, count, "must be at least 1", "leave it out for one per CPU"
                )
        if self.backend not in ("auto", "ray", "in-process"):
            raise InputError.of(
                "backend", self.backend, "is not one of 'auto', 'ray', 'in-process'"
            )
        if self.address is not None and self.backend == "in-process":
            raise InputError.of(
                "address",
                self.address,
                "needs `backend='ray'`",
                "drop the address to run in-process",
            )
        if self.object_store_megabytes < 80:
            raise InputError.of(
                "object_store_megabytes",
                self.object_store_megabytes,
                "must be at least 80, Ray's minimum",
            )
        # Written so, NaN is refused as well.
        if not self.worker_timeout_seconds > 0:
            raise InputError.of(
                "worker_timeout_seconds",
                self.worker_timeout_seconds,
                "must be positive",
                "600 is ten minutes",
            )
        if not self.checkpoint_seconds >= 0:
            raise InputError.of(
                "checkpoint_seconds",
                self.checkpoint_seconds,
                "must not be negative",
                "0 saves after every window",
            )
        if self.most_restarts < 0:
            raise InputError.of(
                "most_restarts",
                self.most_restarts,
                "must not be negative",
                "0 ends the run when an actor dies",
            )
        # Fractions share one GPU, and the aggregator has no use for a second one.
        if not (0 <= self.aggregator_gpus < 1 or self.aggregator_gpus == 1):
            raise InputError.of(
                "aggregator_gpus",
                self.aggregator_gpus,
                "must be from 0 to 1",
                "0 is the CPU, 1 a whole GPU",
            )

    def resolved(self, train_seconds: Callable[[], float] | None = None) -> Self:
        """A copy whose backend is "ray" or "in-process".

        Without a cluster to join, a simulation gains nothing by Ray: its shards are threads of one
        process either way, and that process may as well be this one (measured for the published
        en-GB run on two CPUs: 28 s here, 40 s with Ray).

        Args:
            train_seconds: gives the seconds that a training would take in this process; is asked
                only where that decides. A wrong prediction costs time, and changes no result. None
                where no model is trained, and where Ray would have no more trainers than this
                process.
        """
        if self.backend != "auto":
            return self
        asks_for_actors = (
            self.address is not None
            or self.shards is not None
            or self.trainers is not None
            or self.aggregator_gpus > 0
        )
        if asks_for_actors:
            return replace(self, backend="ray")
        # The prediction trains devices, so it is asked for only where it decides.
        is_here = train_seconds is None or train_seconds() < RAY_START_SECONDS
        return replace(self, backend="in-process" if is_here else "ray")
