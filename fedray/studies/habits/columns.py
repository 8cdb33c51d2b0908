"""Sums per device of a log, from which every statistic of a population follows.

A log is cut to whole days [0, days) of its clock, and so are simulated ones, so that both are cut
alike. Every column is a sum over one device's records. The statistics of a population are functions
of the columns' means over devices; bootstrap weights therefore need no second pass through the log.
"""

import math

import numpy as np

from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.compiled import njit

RUN_HOURS = (1 / 6, 1 / 3, 2 / 3, 1.25, 2.5, 5.0, 8.0)
"""Lengths of runs, hours: the share of runs that are longer is a statistic."""
NIGHT_SHARES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Shares of the nights: the share of devices with a larger share of nights is a statistic."""
DAY_RATES = (0.0, 0.1, 0.25, 0.5, 1.0)
"""Runs by day per day of the log: the share of devices with more is a statistic."""
GAP_HOURS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 28.0, 52.0, 76.0, 124.0)
"""Time between two records of a device, hours: the share of shorter gaps is a statistic."""
COUNT_RATES = (0.05, 0.1, 0.2, 0.35, 0.6, 1.0, 2.0)
"""Records per day: the share of devices with more is a statistic."""
_CHAIN_GAP = 1.0
"""Hours: runs less apart are one night, cut by interruptions."""
_NIGHT_LEAST = 2.0
"""Hours: shorter chains are not nights, whenever they are."""
_NIGHT_START, _NIGHT_END = 18.0, 12.0
"""Hours of the day before and of the day between which the middle of a night lies."""
_DAY_START, _DAY_END = 12.0, 18.0
"""Hours of the day at which a run by day starts: nights are far from them."""
_NIGHT_MIDDLE, _NIGHT_MEDIAN = 3.0, 4.9
"""Origins of middles and lengths, hours; they change no estimate."""


Columns = dict[str, Float64Array]
"""Sums of N devices by name, [N, width]."""
_OF_INTERVALS = {
    # Eligible hours by the hour of the day.
    "hours": 24,
    # Intervals.
    "runs": 1,
    # Days on which the device was eligible.
    "with_any": 1,
    # Intervals longer than each of RUN_HOURS.
    "longer": len(RUN_HOURS),
    # Hours of the log but its last day at which the device was eligible and also 24 hours later;
    # and at which it was eligible.
    "again": 2,
    # Eligible hours on Saturdays and Sundays, and on the other days.
    "week": 2,
    # Count, sums of the middle and its square, of the logarithm of the length and its square; pairs
    # of nights in succession, products of their middles and of their logarithms; interruptions,
    # their hours, and the nights' hours.
    "nights": 11,
    # Runs that start by day, sums of the logarithm of their length and its square.
    "by_day": 3,
}
_OF_POINTS = {
    # Records by the hour of the day.
    "hours": 24,
    # Days with a record.
    "with_any": 1,
    # Times between two records that are shorter than each of GAP_HOURS, and all of them.
    "gaps": len(GAP_HOURS) + 1,
    # Records on Saturdays and Sundays, and on the other days.
    "week": 2,
    # Pairs of first records of days in succession, the cosine of the difference of their hours, and
    # the cosines and sines of both hours.
    "pairs": 4,
}


def interval_sums(
    first: Int64Array, starts: Float64Array, ends: Float64Array, days: int, first_weekday: int
) -> Columns:
    """Adds up the intervals of devices.

    Args:
        first: [N + 1]; device i has the intervals first[i] to first[i + 1], at least one.
        starts: [I], hours since the log's first midnight, sorted by device and time, disjoint.
        ends: [I], hours; within the log's days, like `starts`.
        days: length of the log.
        first_weekday: weekday of its first day; 0 is a Monday.
    """
    columns = {name: np.zeros((first.size - 1, width)) for name, width in _OF_INTERVALS.items()}
    _add_runs(first, starts, ends, days, first_weekday, tuple(columns.values()))
    _add_nights(first, starts, ends, days, columns["nights"])
    return columns


@njit(cache=True)
def _add_runs(first, starts, ends, days, first_weekday, sums):
    hours, runs, with_any, longer, again, week, _, by_day = sums
    for device in range(first.size - 1):
        last_day = -1
        later = first[device]
        for run in range(first[device], first[device + 1]):
            start, end = starts[run], ends[run]
            length = end - start
            runs[device, 0] += 1.0
            for place in range(len(RUN_HOURS)):
                if length > RUN_HOURS[place]:
                    longer[device, place] += 1.0
            clock = start % 24.0
            if _DAY_START <= clock < _DAY_END and length > 0.0:
                logarithm = math.log(length)
                by_day[device, 0] += 1.0
                by_day[device, 1] += logarithm
                by_day[device, 2] += logarithm * logarithm
            # The run is cut at full hours, so that each part has one hour of the day and one day.
            hour = math.floor(start)
            while hour < end:
                part = min(end, hour + 1.0) - max(start, hour)
                day = int(hour // 24)
                hours[device, int(hour - 24 * day)] += part
                if (first_weekday + day) % 7 >= 5:
                    week[device, 0] += part
                else:
                    week[device, 1] += part
                # Runs are in order of time, so only a later day can be a new one.
                if day > last_day:
                    with_any[device, 0] += 1.0
                    last_day = day
                hour += 1.0
            # The records 24 hours after the last day are unknown.
            again[device, 1] += max(0.0, min(end, 24.0 * (days - 1)) - start)
            # Intervals that touch this one's next day: `later` never has to go back.
            while later < first[device + 1] and ends[later] <= start + 24.0:
                later += 1
            other = later
            while other < first[device + 1] and starts[other] < end + 24.0:
                overlap = min(ends[other], end + 24.0) - max(starts[other], start + 24.0)
                again[device, 0] += overlap
                other += 1


@njit(cache=True)
def _add_nights(first, starts, ends, days, nights):
    # The evening of the last day belongs to the next morning, so there is a place for it.
    spans, middles = np.empty(days + 1), np.empty(days + 1)
    gaps, gap_hours = np.empty(days + 1), np.empty(days + 1)
    for device in range(first.size - 1):
        # 0 stands for a day without a night.
        spans[:] = 0.0
        run = first[device]
        while run < first[device + 1]:
            start, end = starts[run], ends[run]
            # Runs become a chain, because a night with interruptions is one night.
            interruptions, away = 0.0, 0.0
            run += 1
            while run < first[device + 1] and starts[run] - end < _CHAIN_GAP:
                interruptions += 1.0
                away += starts[run] - end
                end = ends[run]
                run += 1
            middle = 0.5 * (start + end)
            # Hours since the evening before, on which the night of a day begins.
            since_evening = middle + 24.0 - _NIGHT_START
            day = int(since_evening // 24.0)
            is_at_night = since_evening - 24.0 * day < 24.0 - _NIGHT_START + _NIGHT_END
            span = end - start
            # The first day's night began before the log did.
            if is_at_night and span >= _NIGHT_LEAST and day >= 1 and span > spans[day]:
                spans[day] = span
                middles[day] = middle - 24.0 * day - _NIGHT_MIDDLE
                gaps[day], gap_hours[day] = interruptions, away
        # A night whose day before had one too makes a pair.
        for day in range(1, days + 1):
            if spans[day] == 0.0:
                continue
            middle, logarithm = middles[day], math.log(spans[day] / _NIGHT_MEDIAN)
            row = nights[device]
            row[0] += 1.0
            row[1] += middle
            row[2] += middle * middle
            row[3] += logarithm
            row[4] += logarithm * logarithm
            row[8] += gaps[day]
            row[9] += gap_hours[day]
            row[10] += spans[day]
            if spans[day - 1] > 0.0:
                row[5] += 1.0
                row[6] += middle * middles[day - 1]
                row[7] += logarithm * math.log(spans[day - 1] / _NIGHT_MEDIAN)


def point_sums(first: Int64Array, times: Float64Array, first_weekday: int) -> Columns:
    """Adds up the moments of devices.

    Args:
        first: [N + 1]; device i has the moments first[i] to first[i + 1], at least one.
        times: [P], hours since the log's first midnight, sorted by device and time.
        first_weekday: weekday of its first day; 0 is a Monday.
    """
    columns = {name: np.zeros((first.size - 1, width)) for name, width in _OF_POINTS.items()}
    _add_points(first, times, first_weekday, tuple(columns.values()))
    return columns


@njit(cache=True)
def _add_points(first, times, first_weekday, sums):
    hours, with_any, gaps, week, pairs = sums
    turn = 2.0 * math.pi / 24.0
    for device in range(first.size - 1):
        last_day, first_of_last_day, first_of_day = -1, 0.0, 0.0
        for record in range(first[device], first[device + 1]):
            time = times[record]
            day = int(time // 24)
            hours[device, int(time - 24 * day)] += 1.0
            if (first_weekday + day) % 7 >= 5:
                week[device, 0] += 1.0
            else:
                week[device, 1] += 1.0
            if record > first[device]:
                gaps[device, len(GAP_HOURS)] += 1.0
                gap = time - times[record - 1]
                for place in range(len(GAP_HOURS)):
                    if gap < GAP_HOURS[place]:
                        gaps[device, place] += 1.0
            if day == last_day:
                continue
            with_any[device, 0] += 1.0
            first_of_last_day, first_of_day = first_of_day, time
            # Before the first record `last_day` is -1, which never precedes day 0.
            if day == last_day + 1 and last_day >= 0:
                # Hours are angles, so that 23:30 and 0:30 are near each other.
                now, then = turn * first_of_day, turn * first_of_last_day
                pairs[device, 0] += 1.0
                pairs[device, 1] += math.cos(now - then)
                pairs[device, 2] += math.cos(now) + math.cos(then)
                pairs[device, 3] += math.sin(now) + math.sin(then)
            last_day = day
