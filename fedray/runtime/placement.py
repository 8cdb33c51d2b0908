"""Placement of a run on processes and machines. May change the wall clock, never a result."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, Self

from fedray.base.errors import InputError

Backend = Literal["auto", "ray", "in-process"]

RAY_START_SECONDS = 20.0
"""Time that Ray and its actors take to start and end; shorter trainings run in-process."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Workers, resources and timeouts of one run.

    shards: number of population shards; None takes one per CPU of the cluster (in-process one, or
        one per CPU for a million devices or more). Shards of a node are threads of one process.
    backend: "ray" (actors), "in-process" (the same plain classes, in this process), or "auto":
        in-process if that is faster, as for simulations, whose shards are threads, for trainings on
        few CPUs, whose trainers are threads, and for trainings that are over before Ray has
        started.
    address: Ray cluster to join ("auto", "ray://host:port", "host:port"); None starts a local one.
    object_store_megabytes: size of a local cluster's object store.
    worker_timeout_seconds: longest wait for one answer of a worker, which is then restarted. It
        must be longer than the work of one look-ahead window; starting does not count.
    checkpoint_seconds: wall-clock time between two checkpoints; 0 for one after every look-ahead
        window, and after every round of a training.
    most_restarts: number of restarts of one worker that dies or hangs.
    aggregator_gpus: GPUs that the aggregator reserves; a fraction shares one, and with 0 it sees no
        GPU. The trace is the same either way. The model is not, since a GPU draws other noise; so a
        run continues only on the kind of device on which it was started.
    trainers: number of trainers of the model; None takes one per CPU of the cluster (in-process one
        per CPU, at most four). In-process they are threads.
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
        # This form refuses NaN too.
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
        # Fractions share one GPU; the aggregator has no use for a second.
        if not (0 <= self.aggregator_gpus < 1 or self.aggregator_gpus == 1):
            raise InputError.of(
                "aggregator_gpus",
                self.aggregator_gpus,
                "must be from 0 to 1",
                "0 is the CPU, 1 a whole GPU",
            )

    def resolved(self, train_seconds: Callable[[], float] | None = None) -> Self:
        """Replaces the backend "auto" by "ray" or "in-process".

        Args:
            train_seconds: prediction of the training time in this process. A wrong prediction
                costs time, and changes no result. None if no model is trained, or if Ray would have
                no more trainers than this process.
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
        # A simulation gains nothing by Ray, because its shards are threads of one process either
        # way (measured for the published en-GB run on two CPUs: 28 s here, 40 s with Ray). The
        # prediction trains devices, so it comes last.
        is_here = train_seconds is None or train_seconds() < RAY_START_SECONDS
        return replace(self, backend="in-process" if is_here else "ray")
