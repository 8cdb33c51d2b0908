"""Losses of the participation history that a device stores: it is cleared or corrupted.

Losses of a device are a Poisson process. The gap before the n-th loss is drawn at the address
(device, n), so clients and server agree on it.
"""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, exponential, stream_key
from fedray.scenario import Scenario
from fedray.wire.messages import Losses


class HistoryLosses(NamedTuple):
    """Rate of the losses."""

    key: Key
    """Key of the draws."""
    mean_seconds: float
    """Mean time between two losses of a device; infinity if histories are never lost."""

    @classmethod
    def of(cls, scenario: Scenario) -> "HistoryLosses":
        """Compiles the table `participation`."""
        per_day = scenario.participation.history_loss_per_day
        mean_seconds = math.inf if per_day is None else 86_400.0 / per_day
        return cls(stream_key(scenario.seed, Stream.HISTORY), mean_seconds)

    @property
    def happen(self) -> bool:
        """Whether any history is ever lost."""
        return self.mean_seconds < math.inf


@njit(forceinline=True)
def _next_loss(losses, device, number, time):
    """Returns the time of a loss, by its number (from 0) and the time of the one before."""
    word = draw(losses.key, device, number, 0)[0]
    return time + losses.mean_seconds * exponential(word)


def first_loss_after(
    losses: HistoryLosses, device_ids: UInt64Array, times: Float64Array
) -> Float64Array:
    """Returns the first loss of each device after a time.

    Args:
        losses: rate of losses, which must not be 0.
        device_ids: [S].
        times: [S]; finite, seconds since start.

    Returns:
        Seconds since start [S].
    """
    return _losses_around(losses, device_ids, times)[1]


def last_loss_before(
    losses: HistoryLosses, device_ids: UInt64Array, times: Float64Array
) -> Float64Array:
    """Returns the last loss of each device up to a time, or -infinity; see `first_loss_after`."""
    return _losses_around(losses, device_ids, times)[0]


@njit(cache=True, nogil=True)
def _losses_around(losses, device_ids, times):
    """Returns the last loss of each device up to a time and the first loss after it, [S] each."""
    # Infinity stands for devices without an earlier loss.
    before = np.full(device_ids.size, -np.inf)
    after = np.empty(device_ids.size)
    for asked in range(device_ids.size):
        # Each loss follows from the one before, so the walk begins with the first.
        device = device_ids[asked]
        time = _next_loss(losses, device, 0, 0.0)
        number = 1
        while time <= times[asked]:
            before[asked] = time
            time = _next_loss(losses, device, number, time)
            number += 1
        after[asked] = time
    return before, after


def losses_between(
    losses: HistoryLosses,
    device_ids: UInt64Array,
    begin_times: Float64Array,
    end_times: Float64Array,
) -> Losses:
    """Lists the losses of devices in (begin, end], in order of device and time.

    Args:
        losses: rate of losses, which must not be 0.
        device_ids: [S], sorted.
        begin_times, end_times: [S]; finite, seconds since start.
    """
    return Losses(*_losses_between(losses, device_ids, begin_times, end_times))


@njit(cache=True, nogil=True)
def _losses_between(losses, device_ids, begin_times, end_times):
    # Numba infers the types of empty lists from these comprehensions.
    whose = [np.uint64(0) for _ in range(0)]
    times = [0.0 for _ in range(0)]
    for asked in range(device_ids.size):
        number = 1
        time = _next_loss(losses, device_ids[asked], 0, 0.0)
        # Each loss follows from the one before, so the walk begins with the first.
        while time <= end_times[asked]:
            if time > begin_times[asked]:
                whose.append(device_ids[asked])
                times.append(time)
            time = _next_loss(losses, device_ids[asked], number, time)
            number += 1
    return np.array(whose, np.uint64), np.array(times, np.float64)
