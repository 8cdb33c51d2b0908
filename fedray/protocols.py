"""What each side may assume of the other. The plain classes satisfy these in-process; the actor files through Ray."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedray.messages import CheckInOrder, CheckIns, Evaluation, Settlement, ShardPart, ShardUse, TrainOrder, TrainReport

T_co = TypeVar("T_co", covariant=True)
History = Callable[[int, int], Iterator[tuple[Settlement, ...]]]
"""All settlements so far of the devices in a range, batch by batch."""


class Pending(Protocol[T_co]):
    """An answer that is on its way."""

    def result(self) -> T_co:
        """Waits for the answer. Raises ShardLost or AggregatorLost if none comes in time."""
        ...


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
        """Says what will be asked for next, without settlements, so that the shard may begin. It changes no answer."""
        ...

    def settle(self, settlements: Sequence[Settlement]) -> Pending[None]:
        """Applies settlements after the last window."""
        ...

    def part_count(self) -> int:
        """How many parts of the trace this shard holds; a function of its devices alone."""
        ...

    def write_part(self, part: int, partial: str, token: str) -> Pending[ShardPart]:
        """One part of the trace, of this shard's devices; written into `partial` where the token is there too."""
        ...

    def use(self) -> Pending[ShardUse]:
        """What the shard has used so far."""
        ...


class Trainer(Protocol):
    """Runs local training for any devices: every shard does."""

    def train(self, order: TrainOrder) -> Pending[TrainReport]:
        """Trains one group of devices from the order's parameters and answers their exact partial sum."""
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

    def commit(self, round_index: int, reports: Sequence[TrainReport]) -> Pending[NDArray[np.float32]]:
        """Sums, adds the round's noise, takes the server step; the new parameters [D]. Rounds come in order, once each."""
        ...

    def restore(self, state: dict[str, NDArray]) -> Pending[None]:
        """Takes up a checkpoint. Raises CheckpointError if it is of another kind of device."""
        ...

    def restart(self) -> None:
        """Brings a lost aggregator back, empty: `start` or `restore` comes next. Raises AggregatorLost when it died too often."""
        ...

    def checkpoint(self) -> Pending[dict[str, NDArray]]:
        """The whole state as named arrays: parameters, optimiser, noise, next round; `device`, the kind of device it ran on."""
        ...
