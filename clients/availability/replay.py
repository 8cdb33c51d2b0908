"""A recorded on / off trace, replayed: device i follows the record of device i modulo their number,
over and over, in local time.

A record repeats after the period. A session that ends with the period and one that starts with it
are one run across the wrap.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from clients.availability.model import NothingKnown
from clients.availability.runs import DAY, HOUR, JOIN_SECONDS, Runs
from clients.population import zone_index, zones_of
from fedray.rng import Key, Stream, draw, stream_key, uniform
from fedray.scenario import Scenario
from fedray.scenario.availability import ReplayAvailability


class _Record(NamedTuple):
    """Runs of recorded devices, those of device d in places first[d] to first[d + 1]; zones and
    shifts of who replays them."""

    first: NDArray[np.int64]
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    period: float
    zone_key: Key
    zone_edges: NDArray[np.float64]
    zone_offsets: NDArray[np.float64]
    shift_key: Key
    shift_days: int
    jitter_seconds: float


class ReplayModel(NothingKnown):
    """See clients.availability.model.Availability."""

    def __init__(self, scenario: Scenario, table: ReplayAvailability) -> None:
        device, start, end = _joined(table)
        zones, period = zones_of(scenario), table.period_seconds
        self._record = _Record(
            first=np.searchsorted(device, np.arange(table.recording.devices + 1)),
            starts=start,
            ends=end,
            period=period,
            zone_key=zones.key,
            zone_edges=zones.edges,
            zone_offsets=zones.offsets,
            shift_key=stream_key(scenario.seed, Stream.REPLAY),
            shift_days=round(period / DAY) if table.day_shift == "uniform" else 1,
            jitter_seconds=60.0 * (table.jitter_minutes or 0.0),
        )

    def list_runs(
        self,
        device_ids: NDArray[np.uint64],
        opens: NDArray[np.float64],
        low: float,
        high: float,
        known: None = None,
    ) -> Runs:
        """See clients.availability.model.Availability."""
        capacity = 2 * device_ids.size + 1024
        while True:
            columns = (np.empty(capacity, np.uint32), np.empty(capacity), np.empty(capacity))
            total = _list_runs(self._record, device_ids, opens, low, high, *columns)
            if total <= capacity:
                return Runs(*columns).take(slice(total))
            capacity = total

    def run_ends(
        self, device_ids: NDArray[np.uint64], times: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """See clients.availability.model.Availability."""
        return _run_ends(self._record, device_ids, times)


def _joined(
    table: ReplayAvailability,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """The recording's runs: sessions that overlap or nearly touch are one; a run that wraps ends
    beyond the period.

    A device that is on from wrap to wrap gets one run without an end.
    """
    recording = table.recording
    device, start, end = recording.device.copy(), recording.start.copy(), recording.end.copy()
    total = _join(device, start, end, table.period_seconds)
    return device[:total], start[:total], end[:total]


@njit(cache=True)
def _join(devices, starts, ends, period):
    """Joins the sessions [S] to runs, in place; how many. Sorted by (device, start), before and
    after."""
    kept, session = 0, 0
    while session < devices.size:
        device, first = devices[session], kept
        while session < devices.size and devices[session] == device:
            if kept > first and starts[session] <= ends[kept - 1] + JOIN_SECONDS:
                ends[kept - 1] = max(ends[kept - 1], ends[session])
            else:
                devices[kept], starts[kept], ends[kept] = device, starts[session], ends[session]
                kept += 1
            session += 1
        if starts[first] + period > ends[kept - 1] + JOIN_SECONDS:
            continue
        if kept - first == 1:
            starts[first], ends[first] = 0.0, np.inf
        else:  # the last run goes on into the first of the next period
            ends[kept - 1] = period + ends[first]
            starts[first : kept - 1], ends[first : kept - 1] = (
                starts[first + 1 : kept].copy(),
                ends[first + 1 : kept].copy(),
            )
            kept -= 1
    return kept


@njit(forceinline=True)
def _shift_of(zone_key, zone_edges, zone_offsets, shift_key, shift_days, jitter_seconds, device):
    """Seconds by which a device's record lies later than recorded."""
    shift = -HOUR * zone_offsets[zone_index(zone_key, zone_edges, device)]
    if shift_days > 1 or jitter_seconds > 0.0:
        w0, w1, _, _ = draw(shift_key, device, 0, 0)
        shift += DAY * np.floor(uniform(w0) * shift_days) + jitter_seconds * uniform(w1)
    return shift


@njit(cache=True, nogil=True)
def _list_runs(record, device_ids, opens, low, high, out_index, out_start, out_end):
    (
        first,
        starts,
        ends,
        period,
        zone_key,
        zone_edges,
        zone_offsets,
        shift_key,
        shift_days,
        jitter_seconds,
    ) = record
    total = 0
    for index in range(device_ids.size):
        if opens[index] >= high:
            continue
        device = device_ids[index]
        recorded = np.int64(device % np.uint64(first.size - 1))
        shift = _shift_of(
            zone_key, zone_edges, zone_offsets, shift_key, shift_days, jitter_seconds, device
        )
        from_time = max(low, opens[index])
        if ends[first[recorded]] == np.inf:
            if total < out_index.size:
                out_index[total], out_start[total], out_end[total] = index, from_time, np.inf
            total += 1
            continue
        # A run may last nearly a period beyond the one in which it starts.
        for repeat in range(
            math.floor((from_time - shift) / period) - 1, math.floor((high - shift) / period) + 1
        ):
            base = shift + repeat * period
            for run in range(first[recorded], first[recorded + 1]):
                if base + ends[run] > from_time and base + starts[run] < high:
                    if total < out_index.size:
                        out_index[total], out_start[total], out_end[total] = (
                            index,
                            base + starts[run],
                            base + ends[run],
                        )
                    total += 1
    return total


@njit(cache=True, nogil=True)
def _run_ends(record, device_ids, times):
    (
        first,
        starts,
        ends,
        period,
        zone_key,
        zone_edges,
        zone_offsets,
        shift_key,
        shift_days,
        jitter_seconds,
    ) = record
    out = np.full(device_ids.size, -np.inf)
    for index in range(device_ids.size):
        device = device_ids[index]
        recorded = np.int64(device % np.uint64(first.size - 1))
        shift = _shift_of(
            zone_key, zone_edges, zone_offsets, shift_key, shift_days, jitter_seconds, device
        )
        if ends[first[recorded]] == np.inf:
            out[index] = np.inf
            continue
        repeat = math.floor((times[index] - shift) / period)
        for base in (shift + repeat * period, shift + (repeat - 1) * period):
            # The last run that starts at or before the time.
            run = (
                first[recorded]
                + np.searchsorted(
                    starts[first[recorded] : first[recorded + 1]], times[index] - base, side="right"
                )
                - 1
            )
            if run >= first[recorded] and base + starts[run] <= times[index] < base + ends[run]:
                out[index] = base + ends[run]
    return out
