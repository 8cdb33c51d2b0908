"""A recorded on / off trace, replayed: device i follows the record of device i modulo their number,
over and over, in local time.

A record repeats after the period. A session that ends with the period and one that starts with it
are one interval across the wrap.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from fedray.base.rng import Key, Stream, draw, stream_key, uniform
from fedray.clients.availability.intervals import DAY, HOUR, JOIN_SECONDS, Intervals, filled
from fedray.clients.availability.model import NothingKnown
from fedray.clients.population import Zones, zone_of
from fedray.scenario import Scenario
from fedray.scenario.availability import ReplayAvailability


class _Shifts(NamedTuple):
    """By how much later devices replay their records.

    key: of the draws.
    days: each is shifted by a whole number of days below this; 1 for none.
    jitter_seconds: and by a time below this.
    """

    key: Key
    days: int
    jitter_seconds: float


class _Record(NamedTuple):
    """Intervals of the recorded devices, and by how much later others replay them.

    first: [R + 1]; recorded device r has the intervals first[r] to first[r + 1].
    start_times, end_times: seconds since local midnight of the recording's first day.
    period_seconds: after which the recording repeats.
    zones: of the devices that replay it.
    shifts: theirs.
    """

    first: NDArray[np.int64]
    start_times: NDArray[np.float64]
    end_times: NDArray[np.float64]
    period_seconds: float
    zones: Zones
    shifts: _Shifts

    @classmethod
    def of(cls, scenario: Scenario, table: ReplayAvailability) -> "_Record":
        """The compiled form of a scenario's table.

        Args:
            scenario: says seed and zones.
            table: its availability, with the recording.
        """
        recorded = _joined(table)
        recorded_devices = np.arange(table.recording.devices + 1)
        period_days = round(table.period_seconds / DAY)
        shifts = _Shifts(
            key=stream_key(scenario.seed, Stream.REPLAY),
            # A shift by whole days keeps the hours of the recording.
            days=period_days if table.day_shift == "uniform" else 1,
            jitter_seconds=60.0 * (table.jitter_minutes or 0.0),
        )
        return cls(
            first=np.searchsorted(recorded.local, recorded_devices),
            start_times=recorded.start_times,
            end_times=recorded.end_times,
            period_seconds=table.period_seconds,
            zones=Zones.of(scenario),
            shifts=shifts,
        )


class ReplayModel(NothingKnown):
    """Availability by a recording; see fedray.clients.availability.model.Availability.

    Args:
        scenario: says seed and zones.
        table: its availability, with the recording.
    """

    def __init__(self, scenario: Scenario, table: ReplayAvailability) -> None:
        self._record = _Record.of(scenario, table)

    def list_intervals(
        self,
        device_ids: NDArray[np.uint64],
        open_times: NDArray[np.float64],
        from_time: float,
        until_time: float,
        known: None = None,
    ) -> Intervals:
        """The intervals of `device_ids` that touch a time, from each one's `open_times` on.

        Args:
            device_ids: [N].
            open_times: [N], seconds since start.
            from_time: seconds since start.
            until_time: seconds since start.
            known: nothing.
        """

        def fill(room: Intervals) -> int:
            return _list_intervals(
                self._record, device_ids, open_times, from_time, until_time, room
            )

        capacity = 2 * device_ids.size + 1024
        return filled(fill, capacity)

    def interval_ends(
        self,
        device_ids: NDArray[np.uint64],
        times: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """When the intervals of `device_ids` end that hold the `times`, one for each, [C]."""
        return _interval_ends(self._record, device_ids, times)


def _joined(table: ReplayAvailability) -> Intervals:
    """The recording's intervals: sessions that overlap or nearly touch are one; an interval that
    wraps ends beyond the period.

    A device that is on from wrap to wrap gets one interval without an end.
    """
    recording = table.recording
    # Copies, because they are joined in place, and the table is the scenario's.
    sessions = Intervals(
        recording.device.astype(np.uint32), recording.start.copy(), recording.end.copy()
    )
    total = _join(sessions.local, sessions.start_times, sessions.end_times, table.period_seconds)
    return sessions.take(slice(total))


@njit(cache=True, nogil=True)
def _join(devices, starts, ends, period):
    """Joins the sessions [S] to intervals, in place; how many. Sorted by (device, start), before
    and after."""
    kept, session = 0, 0
    while session < devices.size:
        device = devices[session]
        # The device's intervals are [first, kept).
        first = kept
        while session < devices.size and devices[session] == device:
            if kept > first and starts[session] <= ends[kept - 1] + JOIN_SECONDS:
                ends[kept - 1] = max(ends[kept - 1], ends[session])
            else:
                devices[kept] = device
                starts[kept] = starts[session]
                ends[kept] = ends[session]
                kept += 1
            session += 1
        # The last interval may go on across the wrap, into the first one of the next period.
        first_of_next_period = starts[first] + period
        if first_of_next_period > ends[kept - 1] + JOIN_SECONDS:
            continue
        # A single interval that reaches its own beginning leaves no gap.
        if kept - first == 1:
            starts[first], ends[first] = 0.0, np.inf
        else:
            # The last interval goes on into the first of the next period, which is listed with it
            # and no more by itself.
            ends[kept - 1] = period + ends[first]
            starts[first : kept - 1] = starts[first + 1 : kept].copy()
            ends[first : kept - 1] = ends[first + 1 : kept].copy()
            kept -= 1
    return kept


@njit(forceinline=True)
def _shift_of(shifts, offset, device):
    """Seconds by which a device's record lies later than recorded, in the zone with an offset."""
    # The recording is in local time: east of Greenwich, where the offset is above 0, it is earlier.
    shift = -HOUR * offset
    if shifts.days > 1 or shifts.jitter_seconds > 0.0:
        w0, w1, _, _ = draw(shifts.key, device, 0, 0)
        days = np.floor(uniform(w0) * shifts.days)
        shift += DAY * days + shifts.jitter_seconds * uniform(w1)
    return shift


# The kernels below take arrays out of their tuples once: compiled code counts references anew
# wherever it reaches into a tuple, which would double their time.


@njit(cache=True, nogil=True)
def _list_intervals(record, device_ids, open_times, from_time, until_time, room):
    first, starts, ends, period, zones, shifts = record
    zone_key, edges, offsets = zones
    out_local, out_starts, out_ends = room
    total = 0
    for local in range(device_ids.size):
        if open_times[local] >= until_time:
            continue
        device = device_ids[local]
        recorded = np.int64(device % np.uint64(first.size - 1))
        offset = offsets[zone_of(zone_key, edges, device)]
        shift = _shift_of(shifts, offset, device)
        begin = max(from_time, open_times[local])
        # A device that was recorded without a session has none to look at.
        if first[recorded] == first[recorded + 1]:
            continue
        if ends[first[recorded]] == np.inf:
            if total < out_local.size:
                out_local[total] = local
                out_starts[total] = begin
                out_ends[total] = np.inf
            total += 1
            continue
        # An interval may last nearly a period beyond the one in which it starts.
        first_repeat = math.floor((begin - shift) / period) - 1
        last_repeat = math.floor((until_time - shift) / period)
        for repeat in range(first_repeat, last_repeat + 1):
            base = shift + repeat * period
            for interval in range(first[recorded], first[recorded + 1]):
                start = base + starts[interval]
                end = base + ends[interval]
                if end > begin and start < until_time:
                    if total < out_local.size:
                        out_local[total] = local
                        out_starts[total] = start
                        out_ends[total] = end
                    total += 1
    return total


@njit(cache=True, nogil=True)
def _interval_ends(record, device_ids, times):
    first, starts, ends, period, zones, shifts = record
    zone_key, edges, offsets = zones
    out = np.full(device_ids.size, -np.inf)
    for asked in range(device_ids.size):
        device, time = device_ids[asked], times[asked]
        recorded = np.int64(device % np.uint64(first.size - 1))
        begin, after_last = first[recorded], first[recorded + 1]
        if begin == after_last:
            continue
        offset = offsets[zone_of(zone_key, edges, device)]
        shift = _shift_of(shifts, offset, device)
        # A device that is always on has one interval, and no period to look for.
        if ends[begin] == np.inf:
            out[asked] = np.inf
            continue
        # The interval may have started in the period before, and go on across the wrap.
        repeat = math.floor((time - shift) / period)
        for base in (shift + repeat * period, shift + (repeat - 1) * period):
            # The last interval that starts at or before the time.
            begun = np.searchsorted(starts[begin:after_last], time - base, side="right")
            interval = begin + begun - 1
            if begun > 0 and base + starts[interval] <= time < base + ends[interval]:
                out[asked] = base + ends[interval]
    return out
