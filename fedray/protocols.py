"""What each side may assume of the other; `workers.py` of clients and server satisfy it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedray.messages import (
    CheckInOrder,
    CheckIns,
    Evaluation,
    Settlement,
    ShardPart,
    ShardUse,
    TrainOrder,
    TrainReport,
)
from fedray.workers import Pending

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

    def train(self, order: TrainOrder) -> Pending[TrainReport]:
        """Trains one group of devices from the order's parameters; their exact partial sum."""
        ...

    def evaluate(self, parameters: NDArray[np.float32]) -> Pending[Evaluation]:
        """Loss and accuracy of parameters [D] on the task's held-out data."""
        ...

    def initial_parameters(self) -> Pending[NDArray[np.float32]]:
        """The model's initial parameters [D], a function of the scenario."""
        ...


class Aggregator(Protocol):
    """The model, the noise and the server optimiser."""

    def start(self, parameters: NDArray[np.float32]) -> Pending[None]:
        """Takes the initial parameters [D]."""
        ...

    def commit(
        self, round_index: int, reports: Sequence[TrainReport]
    ) -> Pending[NDArray[np.float32]]:
        """Sums, adds the round's noise, takes the server step. Returns the new parameters [D].

        Rounds come in order, once each.
        """
        ...

    def state(self) -> Pending[dict[str, NDArray]]:
        """The whole state: parameters, optimiser, noise, next round.

        `device` in it is the kind of device that the aggregator runs on.
        """
        ...

    def load(self, state: dict[str, NDArray]) -> Pending[None]:
        """Takes up a state. Raises CheckpointError if it is of another kind of device."""
        ...

    def restart(self) -> None:
        """Brings a lost aggregator back, empty: `start` or `load` comes next.

        Raises AggregatorLost when it was lost too often.
        """
        ...
