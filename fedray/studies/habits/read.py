"""Reads a log of a user's system for a fit: whole days, devices by number, hours."""

import math
from pathlib import Path

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.clients.availability.intervals import DAY, HOUR
from fedray.imports.log_records import RecordColumns, read_log_records
from fedray.imports.sessions import joined_sessions
from fedray.studies.habits.observed import Layout, ObservedLog, Records, on_grid, runs_of, seen
from fedray.studies.habits.parameters import Kind

_EPOCH_WEEKDAY = 3
"""1970-01-01 was a Thursday; 0 is a Monday."""
_SLACK_HOURS = 1.0
"""A log that begins within this time after midnight has the whole day."""


def read_observed_log(
    path: Path,
    columns: RecordColumns,
    *,
    utc_offset_hours: float = 0.0,
    timer_hours: float | None = None,
    step_minutes: float | None = None,
) -> ObservedLog:
    """Reads a log, and cuts it to the whole days between its first and its last start.

    Args:
        path: a CSV, JSON Lines or Parquet file, or a directory of them.
        columns: roles of its columns.
        utc_offset_hours: local time minus the log's clock; 0 with a column of zones.
        timer_hours: hours that a device keeps away after a participation; None if moments are
            check-ins.
        step_minutes: time between two looks at a device, from midnight on; for a log of states,
            which includes devices that were never eligible. Times without a row are unknown.

    Raises:
        InputError: the log cannot be read, or has no whole day.
    """
    if not -12.0 <= utc_offset_hours <= 14.0:
        raise InputError.of("utc_offset", utc_offset_hours, "must be from -12 to 14 hours")
    if timer_hours is not None and not 0.0 <= timer_hours <= 24.0 * 365:
        raise InputError.of("timer_hours", timer_hours, "must be from 0 to 8760")
    kind: Kind = "intervals"
    if columns.time is not None:
        kind = "check-ins" if timer_hours is None else "participations"
    if (columns.state is None) != (step_minutes is None) or (step_minutes and kind != "intervals"):
        rule = "and a column of states go together, for a log of intervals"
        raise InputError.of("step_minutes", step_minutes, rule, "give both, or neither")
    if step_minutes is not None and not (1 <= step_minutes <= 720 and 1440 % step_minutes == 0):
        raise InputError.of("step_minutes", step_minutes, "must be 1 to 720 and divide a day")
    if columns.zone is not None and utc_offset_hours:
        rule = "is for a log without a column of zones"
        raise InputError.of("utc_offset", utc_offset_hours, rule, "leave one of them out")
    log = read_log_records(path, columns)
    if kind == "intervals" and timer_hours is not None:
        raise InputError.of("timer_hours", timer_hours, "is for participations", "leave it out")
    hours = utc_offset_hours if log.zone_hours is None else log.zone_hours
    start, end = log.start + HOUR * hours, log.end + HOUR * hours
    # The log covers the same moments in all zones, so a day is whole if it is in each of them.
    earliest = float(log.start.min()) + HOUR * (float(np.max(hours)) - _SLACK_HOURS)
    # A log of states ends with its last row; in another log nothing may start for a while.
    last = log.start if log.is_eligible is None else log.end
    latest = float(last.max()) + HOUR * (float(np.min(hours)) + _SLACK_HOURS)
    first_day, end_day = math.ceil(earliest / DAY), math.floor(latest / DAY)
    if end_day <= first_day:
        raise InputError(f"log {str(path)!r} has no whole day; a fit needs several")
    whole_days = end_day - first_day
    # Intervals across the edges are cut there, as in the simulation. A moment outside the days is
    # dropped: one of its ends was cut, and the other was not.
    start = np.maximum(start / HOUR - 24.0 * first_day, 0.0)
    end = np.minimum(end / HOUR - 24.0 * first_day, 24.0 * whole_days)
    is_inside = (end > start) if kind == "intervals" else (end == start)
    is_inside &= start < 24.0 * whole_days
    device, start, end = log.device[is_inside], start[is_inside], end[is_inside]
    zones = {float(utc_offset_hours): 1.0}
    if log.zone_hours is not None:
        zones = _zones(device, log.zone_hours[is_inside])
    # `seen` leaves out devices without a record in the whole days.
    devices = int(log.device.max()) + 1
    # Other clocks have no weekday, and are taken to begin on a Monday.
    weekday = (first_day + (_EPOCH_WEEKDAY if log.is_unix else 0)) % 7
    if log.is_eligible is not None:
        steps = round(whole_days * 1440.0 / (step_minutes or 1440.0))
        shape, was = (devices, steps), log.is_eligible[is_inside]
        known = on_grid(device, start, end, shape, whole_days)
        states = on_grid(device[was], start[was], end[was], shape, whole_days)
        # A device with nothing known in the whole days is not in the log.
        is_known = known.any(axis=1)
        layout = Layout(kind, whole_days, weekday, known=known[is_known])
        return ObservedLog(runs_of(states[is_known], whole_days), layout, log.form, zones)
    # The statistics need disjoint intervals, and a log may have some that overlap.
    if kind == "intervals":
        device, start, end = joined_sessions(device, HOUR * start, HOUR * end)
        start, end = start / HOUR, end / HOUR
    else:
        order = np.lexsort((start, device))
        device, start, end = device[order], start[order], end[order]
    first = np.searchsorted(device, np.arange(devices + 1))
    layout = Layout(kind, whole_days, weekday, timer_hours or 0.0)
    return ObservedLog(seen(Records(first, start, end)), layout, log.form, zones)


def _zones(device: Int64Array, hours: Float64Array) -> dict[float, float]:
    """Returns the share of the devices by the offset of their first row.

    Args:
        device: devices of rows [R].
        hours: offsets of rows [R].
    """
    _, first = np.unique(device, return_index=True)
    offsets, counts = np.unique(hours[first], return_counts=True)
    shares = counts / first.size
    return dict(zip(offsets.tolist(), shares.tolist(), strict=True))
