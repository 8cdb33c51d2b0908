"""Changes of device clocks: if a clock is set forward or back, a wait ends too early or too late.

Settings of a device's clock are a Poisson process. The gap before the n-th setting, and the size of
the change, are drawn at the address (device, n). A wait is over at the first moment at which the
clock shows its end; setting the clock back later does not restart it.
"""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, UInt64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, exponential, normal, stream_key
from fedray.scenario import Scenario
from fedray.wire.messages import ClockSettings


class ClockChanges(NamedTuple):
    """Rates and sizes of clock changes.

    key: key of the draws.
    mean_seconds: mean time between two settings of a clock; infinity if clocks are never set.
    size_seconds: standard deviation of the time by which a clock is set forward.
    """

    key: Key
    mean_seconds: float
    size_seconds: float

    @classmethod
    def of(cls, scenario: Scenario) -> "ClockChanges":
        """Compiles the table `participation`."""
        participation = scenario.participation
        per_day = participation.clock_changes_per_day
        return cls(
            key=stream_key(scenario.seed, Stream.CLOCK),
            mean_seconds=math.inf if per_day is None else 86_400.0 / per_day,
            # The size is None if clocks are never set.
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
    """Returns time and size of a setting, by its number (from 0) and the time of the one before."""
    w0, w1, _, _ = draw(clocks.key, device, number, 0)
    gap = clocks.mean_seconds * exponential(w0)
    return time + gap, clocks.size_seconds * normal(w1)


@njit(cache=True, nogil=True)
def reached_by_clock(
    clocks: ClockChanges, device_ids: UInt64Array, since: Float64Array, until: Float64Array
) -> Float64Array:
    """Returns the times at which the clocks of devices show the end of a wait.

    Args:
        clocks: clock changes; some must happen.
        device_ids: [S].
        since: [S]; finite; start of each wait, seconds since start. The clock is right then.
        until: [S]; end of the wait if the clock is not set.

    Returns:
        Seconds since start [S]; `until` if it is not after `since`.
    """
    reached = until.copy()
    for asked in range(device_ids.size):
        if until[asked] <= since[asked]:
            continue
        device = device_ids[asked]
        # Settings before the wait change nothing.
        number = 1
        time, size = _next_setting(clocks, device, 0, 0.0)
        while time <= since[asked]:
            time, size = _next_setting(clocks, device, number, time)
            number += 1
        # `ahead` is the total time by which the clock was set forward since the wait began.
        left_at = since[asked]
        ahead = 0.0
        while True:
            # The clock shows the end earlier by `ahead`, but not before it was set.
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
    device_ids: UInt64Array,
    begin_times: Float64Array,
    end_times: Float64Array,
) -> ClockSettings:
    """Lists the settings of clocks in (begin, end], in order of device and time.

    Args:
        clocks: clock changes; some must happen.
        device_ids: [S], sorted.
        begin_times, end_times: [S]; finite, seconds since start.
    """
    return ClockSettings(*_settings_between(clocks, device_ids, begin_times, end_times))


@njit(cache=True, nogil=True)
def _settings_between(clocks, device_ids, begin_times, end_times):
    # Numba infers the types of empty lists from these comprehensions.
    whose = [np.uint64(0) for _ in range(0)]
    times = [0.0 for _ in range(0)]
    sizes = [0.0 for _ in range(0)]
    for asked in range(device_ids.size):
        number = 1
        time, size = _next_setting(clocks, device_ids[asked], 0, 0.0)
        # Each setting follows from the one before, so the walk begins with the first.
        while time <= end_times[asked]:
            if time > begin_times[asked]:
                whose.append(device_ids[asked])
                times.append(time)
                sizes.append(size)
            time, size = _next_setting(clocks, device_ids[asked], number, time)
            number += 1
    device_column = np.array(whose, np.uint64)
    return device_column, np.array(times, np.float64), np.array(sizes, np.float64)
