"""When devices lose the history of their participations: their store is cleared, or corrupted.

Losses of a device are a Poisson process. The n-th of them follows the one before after a time that
is drawn at the address (device, n), so that they are the same for whoever asks.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.rng import Key, Stream, draw, exponential, stream_key
from fedray.scenario import Scenario
from fedray.wire.messages import Losses


class HistoryLosses(NamedTuple):
    """What compiled code needs to know when devices lose their history.

    key: of the draws.
    mean_seconds: between two losses of a device; infinity where none is ever lost.
    """

    key: Key
    mean_seconds: float

    @classmethod
    def of(cls, scenario: Scenario) -> "HistoryLosses":
        """The losses of a scenario's devices."""
        per_day = scenario.participation.history_loss_per_day
        mean_seconds = math.inf if per_day is None else 86_400.0 / per_day
        return cls(stream_key(scenario.seed, Stream.HISTORY), mean_seconds)

    @property
    def happen(self) -> bool:
        """Whether any history is ever lost."""
        return self.mean_seconds < math.inf


@njit(forceinline=True)
def _next_loss(losses, device, number, time):
    """The loss after the one at a time, by its number: they are counted from 0."""
    word, _, _, _ = draw(losses.key, device, number, 0)
    return time + losses.mean_seconds * exponential(word)


def first_loss_after(
    losses: HistoryLosses, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The first loss of each device after a time.

    Args:
        losses: of the scenario; some must happen.
        device_ids: [S].
        times: [S]; finite, seconds since start.

    Returns:
        Seconds since start [S].
    """
    return _losses_around(losses, device_ids, times)[1]


def last_loss_before(
    losses: HistoryLosses, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The last loss of each device up to a time.

    Args:
        losses: of the scenario; some must happen.
        device_ids: [S].
        times: [S]; finite, seconds since start.

    Returns:
        Seconds since start [S]; minus infinity where there was none.
    """
    return _losses_around(losses, device_ids, times)[0]


@njit(cache=True, nogil=True)
def _losses_around(losses, device_ids, times):
    """(the last loss of each device up to a time, the first one after it), [S] each."""
    before, after = np.full(device_ids.size, -np.inf), np.empty(device_ids.size)
    for asked in range(device_ids.size):
        # Each loss follows from the one before, so they are walked through from the first.
        time, number = _next_loss(losses, device_ids[asked], 0, 0.0), 1
        while time <= times[asked]:
            before[asked] = time
            time = _next_loss(losses, device_ids[asked], number, time)
            number += 1
        after[asked] = time
    return before, after


def losses_between(
    losses: HistoryLosses,
    device_ids: NDArray[np.uint64],
    begin_times: NDArray[np.float64],
    end_times: NDArray[np.float64],
) -> Losses:
    """All losses of devices after one time and up to another, in order of device and time.

    Args:
        losses: of the scenario; some must happen.
        device_ids: [S], in order.
        begin_times, end_times: [S]; finite, seconds since start.
    """
    return Losses(*_losses_between(losses, device_ids, begin_times, end_times))


@njit(cache=True, nogil=True)
def _losses_between(losses, device_ids, begin_times, end_times):
    # The compiler needs lists of which it knows the type, also while they are empty.
    lost, lost_times = [np.uint64(0) for _ in range(0)], [0.0 for _ in range(0)]
    for asked in range(device_ids.size):
        time, number = _next_loss(losses, device_ids[asked], 0, 0.0), 1
        while time <= end_times[asked]:
            if time > begin_times[asked]:
                lost.append(device_ids[asked])
                lost_times.append(time)
            time = _next_loss(losses, device_ids[asked], number, time)
            number += 1
    return np.array(lost, np.uint64), np.array(lost_times, np.float64)
