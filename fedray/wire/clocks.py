"""When the clock of a device is set to another time, so that what it waits for by its clock comes
too early or too late.

Settings of a device are a Poisson process. The n-th of them follows the one before after a time
that is drawn at the address (device, n), and so is by how much the clock is set. A wait is over at
the first moment at which the clock shows its end; a clock that is set back later does not begin it
anew.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.rng import Key, Stream, draw, exponential, normal, stream_key
from fedray.scenario import Scenario
from fedray.wire.messages import ClockSettings


class ClockChanges(NamedTuple):
    """What compiled code needs to know when clocks are set.

    key: of the draws.
    mean_seconds: between two settings of a clock; infinity where none is ever set.
    size_seconds: standard deviation of the time by which one is set forward.
    """

    key: Key
    mean_seconds: float
    size_seconds: float

    @classmethod
    def of(cls, scenario: Scenario) -> "ClockChanges":
        """The clock changes of a scenario's devices."""
        participation = scenario.participation
        per_day = participation.clock_changes_per_day
        return cls(
            key=stream_key(scenario.seed, Stream.CLOCK),
            mean_seconds=math.inf if per_day is None else 86_400.0 / per_day,
            size_seconds=3600.0 * (participation.clock_change_hours or 0.0),
        )

    @property
    def happen(self) -> bool:
        """Whether any clock is ever set."""
        return self.mean_seconds < math.inf


NO_CHANGES = ClockChanges(Key(np.uint64(0), np.uint64(0)), math.inf, 0.0)
"""Clocks that are never set."""


@njit(forceinline=True)
def _next_setting(clocks, device, number, time):
    """(when the clock is set after a time at which it was, by how much), by the setting's number:
    they are counted from 0."""
    w0, w1, _, _ = draw(clocks.key, device, number, 0)
    return time + clocks.mean_seconds * exponential(w0), clocks.size_seconds * normal(w1)


@njit(cache=True, nogil=True)
def reached_by_clock(
    clocks: ClockChanges,
    device_ids: NDArray[np.uint64],
    since: NDArray[np.float64],
    until: NDArray[np.float64],
) -> NDArray[np.float64]:
    """When the clocks of devices show that a wait is over.

    Args:
        clocks: of the scenario; some must change.
        device_ids: [S].
        since: [S]; finite; when each begins to wait, seconds since start. Its clock is right then.
        until: [S]; when the wait would be over by a clock that is not set.

    Returns:
        Seconds since start [S]; `until` where it is not after `since`.
    """
    reached = until.copy()
    for asked in range(device_ids.size):
        if until[asked] <= since[asked]:
            continue
        device = device_ids[asked]
        # What happened before the wait began changes nothing.
        number = 1
        time, size = _next_setting(clocks, device, 0, 0.0)
        while time <= since[asked]:
            time, size = _next_setting(clocks, device, number, time)
            number += 1
        # `ahead` is by how much the clock was set forward since the wait began.
        left_at, ahead = since[asked], 0.0
        while True:
            # This clock shows the end sooner by that, but not before it was set.
            over = max(left_at, until[asked] - ahead)
            if over <= time:
                break
            left_at, ahead = time, ahead + size
            time, size = _next_setting(clocks, device, number, time)
            number += 1
        reached[asked] = over
    return reached


def settings_between(
    clocks: ClockChanges,
    device_ids: NDArray[np.uint64],
    begin_times: NDArray[np.float64],
    end_times: NDArray[np.float64],
) -> ClockSettings:
    """All settings of clocks after one time and up to another, in order of device and time.

    Args:
        clocks: of the scenario; some must change.
        device_ids: [S], in order.
        begin_times, end_times: [S]; finite, seconds since start.
    """
    return ClockSettings(*_settings_between(clocks, device_ids, begin_times, end_times))


@njit(cache=True, nogil=True)
def _settings_between(clocks, device_ids, begin_times, end_times):
    # The compiler needs lists of which it knows the type, also while they are empty.
    whose, times = [np.uint64(0) for _ in range(0)], [0.0 for _ in range(0)]
    sizes = [0.0 for _ in range(0)]
    for asked in range(device_ids.size):
        number = 1
        time, size = _next_setting(clocks, device_ids[asked], 0, 0.0)
        # Each setting follows from the one before, so those before the period are walked through.
        while time <= end_times[asked]:
            if time > begin_times[asked]:
                whose.append(device_ids[asked])
                times.append(time)
                sizes.append(size)
            time, size = _next_setting(clocks, device_ids[asked], number, time)
            number += 1
    return np.array(whose, np.uint64), np.array(times, np.float64), np.array(sizes, np.float64)
