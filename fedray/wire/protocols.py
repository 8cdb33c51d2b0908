"""What each side may assume of the other; `workers.py` of clients and server satisfy it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.runtime.workers import Pending
from fedray.scenario.clipping import Clip
from fedray.wire.messages import (
    CheckInOrder,
    CheckIns,
    Evaluation,
    Settlement,
    ShardPart,
    ShardUse,
    TaskDescription,
    TrainOrder,
    TrainReport,
)

Kept = Any
"""A handle of an array that stays with the worker that made it: see fedray/runtime/workers.py. In
this process it is the array itself."""
History = Callable[[int, int], Iterator[tuple[Settlement, ...]]]
"""All settlements so far of the devices in a range, batch by batch."""


class Shard(Protocol):
    """A contiguous range of whole device blocks, [first_device, end_device)."""

    first_device: int
    end_device: int

    def check_ins(self, order: CheckInOrder) -> Pending[CheckIns]:
        """Applies the settlements, then lists the window's check-ins.

        Windows come in order; the present one may be asked for again, with another rate.
        """
        ...

    def prepare(self, order: CheckInOrder) -> None:
        """Says what will be asked for next, without settlements, so that the shard may begin. It
        changes no answer."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> Pending[None]:
        """Applies settlements after the last window."""
        ...

    def part_count(self) -> int:
        """How many parts of the trace this shard holds; a function of its devices alone."""
        ...

    def write_part(self, part: int, partial: str, token: str) -> Pending[ShardPart]:
        """One part of the trace, of this shard's devices; written into `partial` where the token is
        there too."""
        ...

    def use(self) -> Pending[ShardUse]:
        """What the shard has used so far."""
        ...


class Trainer(Protocol):
    """Trains the model on any devices. It has no state."""

    def train(self, order: TrainOrder, parameters: Kept) -> Pending[tuple[TrainReport, Kept]]:
        """Trains groups of devices from parameters [D].

        The answer is what became of the devices, and a handle of the exact sum [P] of their encoded
        updates (int64; see fedray/encoding/encoding.py).
        """
        ...

    def describe(self) -> Pending[TaskDescription]:
        """What is trained: the layout of the parameters, and the metrics."""
        ...

    def seconds_per_device(
        self, order: TrainOrder, parameters: Kept, devices_at_once: int
    ) -> Pending[float]:
        """How long a device of the order takes, in groups of that size, on this machine."""
        ...

    def evaluate(self, parameters: Kept) -> Pending[Evaluation]:
        """The task's metrics of parameters [D] on held-out data."""
        ...

    def initial_parameters(self) -> Pending[NDArray[np.float32]]:
        """The model's initial parameters [D], a function of the scenario."""
        ...


class Aggregator(Protocol):
    """The model, the noise and the server optimiser."""

    def start(self, parameters: NDArray[np.float32]) -> Pending[tuple[Clip, Kept]]:
        """Takes the initial parameters [D]; how the first round's updates are clipped, and a handle
        of the parameters."""
        ...

    def add(self, total: Kept) -> Pending[None]:
        """Adds a trainer's sum [P] to that of the round."""
        ...

    def draw_noise(self) -> Pending[None]:
        """Draws the round's noise ahead of its commit, while devices train."""
        ...

    def commit(self, report: TrainReport) -> Pending[tuple[Clip, Kept]]:
        """Adds the round's noise to its sum and takes the server step. The answer is how the next
        round's updates are clipped, and a handle of the new parameters [D].

        Rounds come in order, once each.

        report: what became of the round's cohort; the sum is divided by the devices that were
            asked.
        """
        ...

    def older_version(self, version: int) -> Pending[tuple[int, Kept]]:
        """The number of an older version of the model that devices may still train from, and a
        handle of its parameters [D]."""
        ...

    def state(self) -> Pending[dict[str, NDArray]]:
        """The whole state between two rounds: parameters, older versions, optimiser, noise, next
        round.

        `device` in it is the kind of device that the aggregator runs on.
        """
        ...

    def load(self, state: dict[str, NDArray]) -> Pending[tuple[Clip, Kept]]:
        """Takes up a state; as `commit`. Raises CheckpointError if it is of another
        kind of device."""
        ...

    def restart(self) -> None:
        """Brings a lost aggregator back, empty: `start` or `load` comes next.

        Raises AggregatorLost when it was lost too often.
        """
        ...
