"""A log of eligibility in the form of a fit, and the same log of simulated devices."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedray.base.arrays import BoolArray, Float64Array, Int64Array
from fedray.base.compiled import njit
from fedray.base.rng import Key, Stream, draw, exponential, stream_key
from fedray.clients.availability.intervals import DAY, HOUR
from fedray.clients.availability.model import Listing
from fedray.clients.sessions import long_intervals
from fedray.scenario.population import TimeZone
from fedray.studies.habits.columns import interval_sums, point_sums
from fedray.studies.habits.parameters import Fitted, Kind
from fedray.studies.habits.statistics import Summary, summary_of_intervals, summary_of_records
from fedray.wire.zones import Zones


class Records(NamedTuple):
    """Records of devices, sorted by device and time."""

    first: Int64Array
    """[N + 1]; device i has the records first[i] to first[i + 1], at least one unless the log is of
    states."""
    starts: Float64Array
    """[R], hours since the log's first midnight."""
    ends: Float64Array
    """[R], hours; equal to the starts if records are moments."""

    @property
    def devices(self) -> int:
        """Number of devices that have a record."""
        return self.first.size - 1


@dataclass(frozen=True)
class Layout:
    """The properties of a log that a simulation must share."""

    kind: Kind
    """Kind of its records: intervals of eligibility, check-ins or participations."""
    days: int
    """Whole days of the log."""
    first_weekday: int
    """Weekday of its first day; 0 is a Monday."""
    timer_hours: float = 0.0
    """Hours that a device keeps away after a record; 0 unless records are participations."""
    known: BoolArray | None = field(default=None, compare=False, repr=False)
    """[N, T]; whether the state of device i is known at the t-th of T even steps through the days,
    for a log of states; None for a log that has every record."""

    @property
    def weekend_days(self) -> int:
        """Saturdays and Sundays of the log."""
        return sum((self.first_weekday + day) % 7 >= 5 for day in range(self.days))

    def summary(self, records: Records) -> Summary:
        """Returns the statistics of the records of such a log."""
        if self.kind == "intervals":
            sums = interval_sums(*records, self.days, self.first_weekday)
            return summary_of_intervals(sums, self.days, self.weekend_days)
        points = point_sums(records.first, records.starts, self.first_weekday)
        return summary_of_records(points, self.days, self.weekend_days)


class ObservedLog(NamedTuple):
    """A log in the form in which it is fitted."""

    records: Records
    """Records of whole days, in hours of the devices' local time as far as it is given."""
    layout: Layout
    """Properties that a simulation must share."""
    form: str = ""
    """Form of the log's times, in words; empty for a simulated log."""
    zones: Mapping[float, float] = MappingProxyType({})
    """Shares of the devices by given local time minus the log's clock, hours; empty for a simulated
    log."""


@dataclass(frozen=True)
class Simulator:
    """Simulates the logs of devices with common random numbers: all parameter values share one
    seed, so two simulations differ only because their parameters do."""

    layout: Layout
    """Layout of the log."""
    devices: int
    """Number of simulated devices; those without a record are in no log."""
    seed: int
    """Seed of all draws."""
    first_device: int = 0
    """Id of the first one: simulators of other ids are independent."""

    def records(self, table: Fitted, offset: float = 0.0, rate: float = math.inf) -> Records:
        """Makes the log of devices with given habits.

        Args:
            table: their habits.
            offset: local time minus the log's clock, hours.
            rate: records per eligible hour; unused if records are intervals.

        Raises:
            ScenarioError: a device has too many sessions.
        """
        layout = self.layout
        # One week more, so that the simulation has the day before the first, and the timers before
        # the log.
        lead_days = math.ceil(layout.timer_hours / 24.0)
        weeks = 7 * (1 + lead_days // 7)
        first_day = weeks + layout.first_weekday
        origin = first_day * DAY
        zones = Zones.of([TimeZone(utc_offset_hours=offset, share=1.0)], self.seed)
        model = resolve_name(table.implementation)(table, self.seed, zones)
        ids = np.arange(self.first_device, self.first_device + self.devices, dtype=np.uint64)
        intervals = long_intervals(
            model,
            Listing(ids, np.zeros(ids.size), origin - lead_days * DAY, origin + layout.days * DAY),
        )
        # Hours count from the log's first midnight; records below 0 only start timers.
        starts = np.maximum((intervals.start_times - origin) / HOUR, -24.0 * lead_days)
        ends = np.minimum((intervals.end_times - origin) / HOUR, 24.0 * layout.days)
        first = np.searchsorted(intervals.local, np.arange(self.devices + 1))
        if layout.known is not None:
            # Simulated devices have the gaps of the devices of the log, in turn.
            known = layout.known[ids % len(layout.known)]
            states = on_grid(intervals.local, starts, ends, known.shape, layout.days)
            return runs_of(states & known, layout.days)
        # Intervals have no timer, so nothing of them lies before the log.
        if layout.kind == "intervals":
            return seen(Records(first, starts, ends))
        key = stream_key(self.seed, Stream.LOG_RECORDS)
        lengths = rate, layout.timer_hours
        points, point_first = _points(key, self.first_device, first, starts, ends, *lengths)
        return seen(Records(point_first, points, points))


def on_grid(
    device: Any, starts: Float64Array, ends: Float64Array, shape: tuple[int, ...], days: int
) -> BoolArray:
    """Returns whether each of N devices is in one of its intervals [I], in hours, at each of T even
    steps from midnight; the shape is (N, T)."""
    devices, steps = shape
    # Rounding of a time that is a step must not move it to the next one.
    first, last = (
        np.clip(np.ceil(steps / (24.0 * days) * hours - 1e-6), 0, steps).astype(np.int64)
        for hours in (starts, ends)
    )
    changes = np.zeros((devices, steps + 1), np.int32)
    np.add.at(changes, (device, first), 1)
    np.add.at(changes, (device, last), -1)
    return np.cumsum(changes, axis=1, dtype=np.int32)[:, :-1] > 0


def runs_of(states: BoolArray, days: int) -> Records:
    """Returns the intervals of devices that are eligible in some steps [N, T] of the days."""
    devices, steps = states.shape
    changes = np.diff(np.pad(states.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    device, starts = np.nonzero(changes == 1)
    _, ends = np.nonzero(changes == -1)
    hours = 24.0 * days / steps
    return Records(np.searchsorted(device, np.arange(devices + 1)), hours * starts, hours * ends)


def seen(records: Records) -> Records:
    """Leaves out devices without a record, which no log has."""
    counts = np.diff(records.first)
    first = np.concatenate([[0], np.cumsum(counts[counts > 0])])
    return records._replace(first=first)


@njit(cache=True)
def _points(key: Key, first_device, first, starts, ends, rate, timer_hours):
    """Draws moments at which eligible devices leave a record: a Poisson process, except for timers.

    Args:
        key: key of the draws.
        first_device: id of the first of the devices.
        first: [N + 1]; device i has the intervals first[i] to first[i + 1].
        starts: [I], hours; those before 0 precede the log, and their records start timers.
        ends: [I], hours.
        rate: records per hour.
        timer_hours: hours that a device keeps away after a record.

    Returns:
        (moments [P], hours; [N + 1], their places by device).
    """
    found = np.empty(max(16, 4 * starts.size))
    point_first = np.zeros(first.size, np.int64)
    count = 0
    for device in range(first.size - 1):
        # No timer runs when the simulation begins, which is why it begins before the log.
        open_time = -np.inf
        # No interval begins on such a day.
        last_day, draws = -(1 << 30), 0
        for interval in range(first[device], first[device + 1]):
            # An address by day and place in it: a draw keeps its interval when habits change a
            # little.
            day = math.floor(starts[interval] / 24.0)
            if day != last_day:
                last_day, draws = day, 0
            time = max(starts[interval], open_time)
            while time < ends[interval]:
                w0, _, _, _ = draw(key, first_device + device, day, draws)
                draws += 1
                time += exponential(w0) / rate
                if time >= ends[interval]:
                    break
                # Moments before the log are not in it, but start timers.
                if time >= 0.0:
                    if count == found.size:
                        larger = np.empty(2 * count)
                        larger[:count] = found
                        found = larger
                    found[count] = time
                    count += 1
                open_time = time + timer_hours
                time = open_time
        point_first[device + 1] = count
    return found[:count], point_first
