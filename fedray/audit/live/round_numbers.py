"""Numbers of rounds as the log of a trace has them, also of rounds to come."""

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


class RoundNumbers:
    """Converts rounds of a trace to numbers of its log, and back.

    Numbers of rounds to come are unknown. No step from one round to the next is taken to exceed the
    largest one so far, so that a device that waits until a number waits long enough.

    Args:
        trace: the trace of the released rounds; rounds of a simulated one are its numbers.
        argument: argument of which an error speaks.

    Raises:
        InputError: the numbers of the log do not increase.
    """

    def __init__(self, trace: Trace | ImportedTrace, argument: str = "hold") -> None:
        labels = np.arange(trace.committed_rounds)
        if isinstance(trace, ImportedTrace):
            labels = trace.round_labels(labels)
        steps = np.diff(labels)
        if (steps <= 0).any():
            raise InputError(
                f"{argument}: round numbers of the log do not increase, so no list can name rounds "
                "to come; import the log with increasing numbers"
            )
        self._labels = labels
        self._last = int(labels[-1]) if labels.size else -1
        self.step = int(steps.max(initial=1))
        """Largest difference of the numbers of two rounds in a row."""

    @property
    def assumption(self) -> str:
        """What figures under a list of round numbers assume, in a sentence without a full stop."""
        return (
            f"Round numbers of the log are taken to grow by at most {self.step:,} from one round "
            "to the next, as so far; with a larger step the list in force must be renewed"
        )

    @property
    def differ(self) -> bool:
        """Whether the log numbers its rounds otherwise than from 0 in steps of one."""
        return self._last != self._labels.size - 1

    @property
    def least_next(self) -> int:
        """Least number that the next round can have."""
        return self._last + 1

    def of(self, rounds: Int64Array) -> Int64Array:
        """Returns numbers [H] of rounds to come [H]."""
        return self._last + self.step * (rounds - self._labels.size + 1)

    def name(self, place: int) -> int:
        """Returns the number of one round, also of one to come."""
        if place < self._labels.size:
            return int(self._labels[place])
        return int(self.of(np.array([place]))[0])

    def first_from(self, numbers: Float64Array) -> Float64Array:
        """Returns the first round with each number [H] or a larger one, [H]; infinity stays."""
        released = np.searchsorted(self._labels, numbers, side="left")
        later = self._labels.size - 1 + np.ceil((numbers - self._last) / self.step)
        return np.where(numbers > self._last, later, released)

    def begins(self, number: int) -> int | None:
        """Returns the first round from a number on; None if rounds to come may precede it."""
        if number > self.least_next:
            return None
        return int(np.searchsorted(self._labels, number, side="left"))


def numbers_of(trace: Trace | ImportedTrace) -> RoundNumbers | None:
    """Returns the numbers of a trace's rounds; None if those of its log do not increase."""
    try:
        return RoundNumbers(trace)
    except InputError:
        return None


def named(numbers: RoundNumbers | None, place: int) -> int:
    """Returns the number of a round, or its place in the trace if numbers are None."""
    return place if numbers is None else numbers.name(place)
