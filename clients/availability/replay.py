"""Replay of a recorded on / off trace: device i follows the record of device i modulo the number of
recorded devices, in local time.

A record repeats after the period. A session that ends with the period and one that starts with it
are one interval across the wrap.
"""

import math
from typing import NamedTuple

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, stream_key, uniform
from fedray.scenario.availability import ReplayAvailability
from fedray.wire.zones import Zones, zone_of
from .compiled import CompiledModel, Request
from .intervals import DAY, HOUR, JOIN_SECONDS, Intervals


class _Shifts(NamedTuple):
    """Delays with which devices replay their records."""

    key: Key
    """Key of the draws."""
    days: int
    """Number of whole-day delays to choose from; 1 for no delay."""
    jitter_seconds: float
    """Upper limit of an additional uniform delay."""


class _Record(NamedTuple):
    """Intervals of the recorded devices, and how others replay them."""

    first: Int64Array
    """[R + 1]; recorded device r has the intervals first[r] to first[r + 1]."""
    start_times: Float64Array
    """Starts, seconds since local midnight of the recording's first day."""
    end_times: Float64Array
    """Ends, seconds since local midnight of the recording's first day."""
    period_seconds: float
    """Time after which the recording repeats."""
    zones: Zones
    """Time zones of the replaying devices."""
    shifts: _Shifts
    """Their delays."""

    @classmethod
    def of(cls, table: ReplayAvailability, seed: int, zones: Zones) -> "_Record":
        recorded = _joined(table)
        recorded_devices = np.arange(table.recording.devices + 1)
        period_days = round(table.period_seconds / DAY)
        shifts = _Shifts(
            key=stream_key(seed, Stream.REPLAY),
            # A shift by whole days keeps the hours of the recording.
            days=period_days if table.day_shift == "uniform" else 1,
            jitter_seconds=60.0 * (table.jitter_minutes or 0.0),
        )
        return cls(
            first=np.searchsorted(recorded.local, recorded_devices),
            start_times=recorded.start_times,
            end_times=recorded.end_times,
            period_seconds=table.period_seconds,
            zones=zones,
            shifts=shifts,
        )


class ReplayModel(CompiledModel):
    """Availability by a recording; see fedray.clients.availability.model.Availability.

    Args:
        table: availability, with the recording.
        seed: the scenario's seed.
        zones: time zones of the devices.
    """

    def __init__(self, table: ReplayAvailability, seed: int, zones: Zones) -> None:
        self._record = _Record.of(table, seed, zones)

    def fill(self, request: Request, known: None, room: Intervals) -> int:
        return _list_intervals(self._record, *request, room)


def _joined(table: ReplayAvailability) -> Intervals:
    """Returns the recording's intervals. One that wraps ends beyond the period; a device that is on
    from wrap to wrap has one interval without end."""
    recording = table.recording
    # Copies, because they are joined in place, and the table is the scenario's.
    devices = recording.device.astype(np.uint32)
    sessions = Intervals(devices, recording.start.copy(), recording.end.copy())
    total = _join(*sessions, table.period_seconds)
    return sessions.take(slice(total))


@njit(cache=True, nogil=True)
def _join(devices, starts, ends, period):
    """Joins sessions [S], sorted by (device, start), to intervals in place; returns their
    number."""
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
        # The last interval may continue across the wrap, into the first one of the next period.
        first_of_next_period = starts[first] + period
        if first_of_next_period > ends[kept - 1] + JOIN_SECONDS:
            continue
        # A single interval that reaches its own beginning leaves no gap.
        if kept - first == 1:
            starts[first], ends[first] = 0.0, np.inf
        else:
            # The first interval of the next period is now part of the last one.
            ends[kept - 1] = period + ends[first]
            starts[first : kept - 1] = starts[first + 1 : kept].copy()
            ends[first : kept - 1] = ends[first + 1 : kept].copy()
            kept -= 1
    return kept


@njit(forceinline=True)
def _shift_of(shifts, offset, device):
    """Returns the seconds from recorded to replayed times of a device."""
    # The recording is in local time: east of Greenwich, where the offset is above 0, it is earlier.
    # Devices that replay one record are copies of each other, up to these shifts: a population much
    # larger than its recording is more regular than a real one.
    shift = -HOUR * offset
    if shifts.days > 1 or shifts.jitter_seconds > 0.0:
        w0, w1, _, _ = draw(shifts.key, device, 0, 0)
        days = np.floor(uniform(w0) * shifts.days)
        shift += DAY * days + shifts.jitter_seconds * uniform(w1)
    return shift


@njit(cache=True, nogil=True)
def _list_intervals(record, device_ids, from_times, until_times, room):
    # Arrays are taken out of tuples once: compiled code counts references wherever it reaches into
    # a tuple, which would double the time.
    first, starts, ends, period, zones, shifts = record
    zone_key, edges, offsets = zones
    out_local, out_starts, out_ends = room
    total = 0
    for local in range(device_ids.size):
        from_time = from_times[local]
        until_time = until_times[local]
        device = device_ids[local]
        recorded = np.int64(device % np.uint64(first.size - 1))
        begin = first[recorded]
        after_last = first[recorded + 1]
        # A device that was recorded without a session has nothing to list.
        if from_time >= until_time or begin == after_last:
            continue
        if ends[begin] == np.inf:
            if total < out_local.size:
                out_local[total] = local
                out_starts[total] = from_time
                out_ends[total] = np.inf
            total += 1
            continue
        shift = _shift_of(shifts, offsets[zone_of(zone_key, edges, device)], device)
        # An interval may last nearly a period beyond the one in which it starts.
        first_repeat = math.floor((from_time - shift) / period) - 1
        last_repeat = math.floor((until_time - shift) / period)
        for repeat in range(first_repeat, last_repeat + 1):
            base = shift + repeat * period
            # A long recording is searched, not scanned. The sum below rounds differently from this
            # difference, hence one interval more.
            over = np.searchsorted(ends[begin:after_last], from_time - base, side="right")
            for interval in range(begin + max(0, over - 1), after_last):
                start = base + starts[interval]
                end = base + ends[interval]
                if start >= until_time:
                    break
                if end > from_time:
                    if total < out_local.size:
                        out_local[total] = local
                        out_starts[total] = start
                        out_ends[total] = end
                    total += 1
    return total
