"""Waits of devices between two participations, against which a timer is checked."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedray.audit.participation import Patterns
from fedray.base.arrays import BoolArray, Float64Array, UInt32Array, UInt64Array
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

Waits = Iterator[tuple[Float64Array, UInt64Array, UInt32Array]]


class Times(NamedTuple):
    """Participations of whole devices, in order of device and time; [A] each."""

    seconds: Float64Array
    """Start of the round of each, seconds since start. Where rounds do not select devices together
    it is the device's check-in, and in a log its first recorded time."""
    device_ids: UInt64Array
    rounds: UInt32Array


def are_known(trace: Trace | ImportedTrace) -> bool:
    """Whether the waits are known: not of a log that was imported without times."""
    if isinstance(trace, Trace):
        return True
    return trace.run.get("times") is not None and "times_digest" in trace.run["parts"][0]


def waits_between(trace: Trace | ImportedTrace, patterns: Patterns) -> Waits | None:
    """Returns every pair of consecutive participations of a device, in parts of whole devices.

    Each item is (seconds between [A], device ids [A], the two rounds [A, 2]). In a trace of ours
    the seconds are those from the accepted report to the next check-in, which a timer rules; rounds
    on the same upload have no wait between them. In a log they are those from the last recorded
    time of a participation to the first of the next, less the step to which times are rounded.

    Args:
        trace: the trace; memory is that of one part.
        patterns: its patterns.

    Returns:
        None for a log that was imported without times.
    """
    if isinstance(trace, Trace):
        return _of_run(trace)
    return _of_log(trace, patterns) if are_known(trace) else None


def is_too_short(seconds: Float64Array, timer_hours: float) -> BoolArray:
    """Returns the waits [A] that a timer of this length excludes.

    Args:
        seconds: the waits, [A].
        timer_hours: length of the timer.
    """
    return seconds < 3600.0 * timer_hours


def times_of(trace: Trace | ImportedTrace, patterns: Patterns) -> Iterator[Times] | None:
    """Returns every participation with its time, in parts of whole devices; None for a log that was
    imported without times."""
    if isinstance(trace, Trace):
        return _times_of_run(trace)
    return _times_of_log(trace, patterns) if are_known(trace) else None


def _times_of_run(trace: Trace) -> Iterator[Times]:
    selects_together = not (trace.is_buffered or trace.stores_uploads)
    started = trace.rounds["started"][trace.rounds["state"] == 0]
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        rows = np.flatnonzero(columns["outcome"] == Outcome.ACCEPTED)
        devices, rounds = columns["device_id"][rows], columns["round"][rows]
        seconds = started[rounds] if selects_together else columns["checkin_time"][rows]
        yield Times(seconds, devices, rounds)


def _times_of_log(trace: ImportedTrace, patterns: Patterns) -> Iterator[Times]:
    start = 0
    for part, entry in enumerate(trace.run["parts"]):
        times = trace.times(part)
        assert times is not None
        for devices, rows in patterns.blocks(start, start + entry["rows"]):
            of_row = np.repeat(patterns.device_ids[devices], patterns.counts[devices])
            seconds = times[0][rows.start - start : rows.stop - start]
            # A device of a log may be in a later round first.
            order = np.lexsort((seconds, of_row))
            yield Times(seconds[order], of_row[order], patterns.rounds[rows][order])
        start += entry["rows"]


def _of_run(trace: Trace) -> Waits:
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        # An abandoned attempt accepts no report, so every accepted report was released.
        rows = np.flatnonzero(columns["outcome"] == Outcome.ACCEPTED)
        devices = columns["device_id"][rows]
        rounds = columns["round"][rows]
        check_ins = columns["checkin_time"][rows]
        reports = columns["report_time"][rows]
        # Rounds on one upload have no wait between them, so its first one stands for all.
        is_first = is_first_of_upload(devices, check_ins)
        devices, rounds = devices[is_first], rounds[is_first]
        waits = check_ins[is_first][1:] - reports[is_first][:-1]
        # Differences across two devices mean nothing.
        is_same = devices[1:] == devices[:-1]
        pairs = np.column_stack([rounds[:-1], rounds[1:]])
        yield waits[is_same], devices[1:][is_same], pairs[is_same]


def is_first_of_upload(device_ids: UInt64Array, check_in_times: Float64Array) -> BoolArray:
    """Returns the participations [A] that are the first on their upload. A device checks in once
    for each upload, whether it is used in one round or, if uploads are stored, in several.

    Args:
        device_ids: [A]; in order.
        check_in_times: [A]; in order for each device.
    """
    is_first = np.ones(device_ids.size, np.bool_)
    is_first[1:] = (device_ids[1:] != device_ids[:-1]) | (np.diff(check_in_times) > 0)
    return is_first


def _of_log(trace: ImportedTrace, patterns: Patterns) -> Waits:
    # Each row of a log is a participation, so the times of a part are in the order of `rounds`.
    start = 0
    for part, entry in enumerate(trace.run["parts"]):
        times = trace.times(part)
        assert times is not None
        first, last = times
        for devices, rows in patterns.blocks(start, start + entry["rows"]):
            later = patterns.later_in(devices, rows)
            of_row = np.repeat(patterns.device_ids[devices], patterns.counts[devices])
            pairs = np.column_stack([patterns.rounds[later - 1], patterns.rounds[later]])
            waits = first[later - start] - last[later - 1 - start]
            # Rounded times may be a step further apart than the true ones.
            waits = np.minimum(waits, np.maximum(waits - trace.time_step, 0.0))
            yield waits, of_row[later - rows.start], pairs
        start += entry["rows"]
