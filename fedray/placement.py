"""Placement: where a run happens. May change the wall clock, never a result."""

from dataclasses import dataclass
from typing import Literal

from fedray.errors import InputError

Backend = Literal["ray", "in-process"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Shards, resources and patience of one run.

    shards: population shards; None takes one per CPU of the cluster (one in-process).
    backend: "ray" (actors) or "in-process" (the same plain classes, in this process; for tests and debugging).
    address: Ray cluster to join ("auto", "ray://host:port", "host:port"); None starts a local one.
    object_store_megabytes: size of a local cluster's object store.
    worker_timeout_seconds: longest wait for one answer of a shard or of the aggregator. One that takes longer is taken to hang: it
        is ended and started anew. It must be longer than the work of one look-ahead window; starting does not count.
    checkpoint_seconds: wall-clock time between two checkpoints of the run; 0 for one after every look-ahead window.
    most_restarts: how often one shard, or the aggregator, is started anew when it dies or hangs.
    aggregator_gpus: GPUs that the aggregator reserves; a fraction shares one. At 0 it runs on the CPU and sees no GPU. The trace is
        the same either way. The model is not, since a GPU draws other noise; so a run goes on only on the kind it was started on.
    """

    shards: int | None = None
    backend: Backend = "ray"
    address: str | None = None
    object_store_megabytes: int = 512
    worker_timeout_seconds: float = 600.0
    checkpoint_seconds: float = 30.0
    most_restarts: int = 5
    aggregator_gpus: float = 0.0

    def __post_init__(self) -> None:
        if self.shards is not None and self.shards < 1:
            raise InputError(f"shards={self.shards} must be at least 1; leave it out for one shard per CPU")
        if self.backend not in ("ray", "in-process"):
            raise InputError(f"backend={self.backend!r} is not one of 'ray', 'in-process'")
        if self.address is not None and self.backend != "ray":
            raise InputError(f"address={self.address!r} needs backend='ray'; drop the address to run in-process")
        if self.object_store_megabytes < 80:
            raise InputError(f"object_store_megabytes={self.object_store_megabytes} must be at least 80 (Ray's minimum)")
        if not self.worker_timeout_seconds > 0:
            raise InputError(f"worker_timeout_seconds={self.worker_timeout_seconds} must be positive; 600 is ten minutes")
        if not self.checkpoint_seconds >= 0:
            raise InputError(f"checkpoint_seconds={self.checkpoint_seconds} must not be negative; 0 saves after every window")
        if self.most_restarts < 0:
            raise InputError(f"most_restarts={self.most_restarts} must not be negative; 0 ends the run when an actor dies")
        if not (0 <= self.aggregator_gpus < 1 or self.aggregator_gpus == 1):
            raise InputError(f"aggregator_gpus={self.aggregator_gpus} must be from 0 to 1; 0 is the CPU, 1 a whole GPU")
