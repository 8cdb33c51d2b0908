"""Protocols between clients and server; the workers in `clients/workers.py` implement them."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from fedray.base.arrays import Float32Array, UInt64Array
from fedray.runtime.workers import Pending
from fedray.wire.messages import (
    CheckInOrder,
    CheckIns,
    DeviceMeasures,
    EvaluationPart,
    Settlement,
    Settlements,
    ShardPart,
    ShardUse,
    TaskDescription,
    TrainOrder,
    TrainReport,
)

# The type differs: an array in this process, a Ray reference in a cluster.
Kept = Any
"""Handle of an array that stays with the worker that made it; see `call_and_keep`."""
History = Callable[[int, int], Iterator[tuple[Settlement, ...]]]
"""Yields all settlements so far of a range of devices [first, end), batch by batch."""


class ReleaseGuard(Protocol):
    """Decides before every release of a run whether it may be made."""

    document: Mapping[str, Any]
    """Keys of run.json and unfinished.json on the guard."""

    def refusal(self, settlement: Settlement, started: float) -> str:
        """Returns why the next round may not be released. If it may, the result is empty and the
        round counts as released.

        Args:
            settlement: settlement of the round, with the outcomes of a committed one.
            started: start of the round, seconds since start.
        """
        ...

    def add(self, settlement: Settlement, started: float) -> None:
        """Counts a round that was released before a resumption; in order."""
        ...


class Shard(Protocol):
    """A contiguous range of whole device blocks, [first_device, end_device)."""

    first_device: int
    end_device: int

    def check_ins(self, order: CheckInOrder) -> Pending[CheckIns]:
        """Applies the settlements, then lists the window's check-ins.

        Windows are ordered in sequence; the current one may be ordered again with another rate.
        """
        ...

    def prepare(self, order: CheckInOrder) -> None:
        """Announces the next order, without its settlements, so that the shard may begin early. No
        answer depends on it."""
        ...

    def settle(self, settlements: Settlements) -> Pending[None]:
        """Applies the settlements after the last window."""
        ...

    def part_count(self) -> int:
        """Returns the number of parts of the trace in this shard, which depends only on its
        devices."""
        ...

    def write_part(self, part: int, partial: str, token: str) -> Pending[ShardPart]:
        """Returns one part of the trace. Its file is written to the directory `partial` if the
        token is there."""
        ...

    def use(self) -> Pending[ShardUse]:
        """Returns the resources that the shard has used so far."""
        ...


class Trainer(Protocol):
    """Trains the model on any devices, without state."""

    def train(self, order: TrainOrder, parameters: Kept) -> Pending[tuple[TrainReport, Kept]]:
        """Trains groups of devices from parameters [D].

        Returns a report, and a handle of the exact sum [P] of the encoded updates (int64; see
        fedray/encoding/encoding.py).
        """
        ...

    def describe(self) -> Pending[TaskDescription]:
        """Returns the layout of the parameters, and the metrics."""
        ...

    def seconds_per_device(
        self, order: TrainOrder, parameters: Kept, devices_at_once: int
    ) -> Pending[float]:
        """Measures the training time per device of the order, in groups of that size."""
        ...

    def evaluate(self, parameters: Kept, share: tuple[int, int]) -> Pending[EvaluationPart]:
        """Returns part i of n of an evaluation of parameters [D] on held-out data, for a share
        (i, n)."""
        ...

    def fetch(self, parameters: Kept) -> Pending[Float32Array]:
        """Returns parameters [D] of a handle, to keep them where the caller is."""
        ...

    def measure_devices(
        self, parameters: Kept, device_ids: UInt64Array, most_examples: int
    ) -> Pending[DeviceMeasures]:
        """Returns the metrics of parameters [D] on the first examples of each device [G]; those
        without readable examples are left out."""
        ...

    def initial_parameters(self) -> Pending[Float32Array]:
        """Returns the model's initial parameters [D], a function of the scenario."""
        ...
