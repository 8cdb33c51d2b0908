"""The claim `most_per_period`: the largest number of participations of a device within a time.

The time of a participation is the start of its round; in a buffered round it is the device's
check-in, with stored uploads the check-in of the upload, and in a log the first recorded time.
Participations are within a number of hours if less than that lies between the first and the last.
Local days are the calendar days of the device, whose time zone is fixed: that of the scenario. Logs
do not record it, so all zones are tried, and the fullest day counts.
"""

from collections.abc import Callable, Iterator
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from fedray.audit.findings import Finding, Verdict, verdict_of
from fedray.audit.forward import Period
from fedray.audit.participation import CHUNK
from fedray.audit.statements.statement import MOST_EVIDENCE, Breaches, Statement, Subject
from fedray.audit.waits import Times, times_of
from fedray.audit.zones import DAY, zone_hours_on
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.base.table import Positive, Table
from fedray.scenario import Scenario
from fedray.scenario.participation import check_one_period
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

ALL_ZONES = np.arange(-12.0, 14.25, 0.25)
"""Time zones of devices whose own is unknown, hours from UTC."""


class MostPerPeriod(Table):
    """Largest number of participations of a device within a number of hours, or on a local day."""

    refusal: ClassVar[type[InputError]] = InputError

    participations: Annotated[int, Field(ge=1)]
    """Largest number of participations of a device within the period."""
    hours: Positive | None = None
    """Length of the period, hours."""
    period: Literal["local_day"] | None = None
    """"local_day": the periods are the calendar days of the device, in place of hours."""

    @model_validator(mode="after")
    def _has_one_period(self) -> Self:
        check_one_period(self.hours, self.period)
        return self

    @property
    def text(self) -> str:
        """The limit in words."""
        if self.hours is None:
            return f"{self.participations:,} on a local day"
        return f"{self.participations:,} within {self.hours:g} h"

    @property
    def key_text(self) -> str:
        """The key of the period with its value, as in a file."""
        return 'period = "local_day"' if self.hours is None else f"hours = {self.hours!r}"


class MostPerPeriodStatement(Statement):
    """Holds if no device took part more often within the period."""

    key = "most_per_period"

    def check(self, claimed: MostPerPeriod, subject: Subject) -> Finding:
        parts = times_of(subject.trace, subject.patterns)
        if parts is None:
            return Finding(
                statement=self.key,
                verdict=Verdict.UNCHECKED,
                claimed=claimed.text,
                explanation="the log was imported without times, so no period can be checked",
            )
        lengths = _lengths_of(claimed, subject)
        most, broken, worst = 1, 0, list[tuple[int, int, tuple[int, ...]]]()
        for times in parts:
            counts = _counts_within(times, lengths(times))
            most = max(most, int(counts.max(initial=1)))
            places = _fullest(times, counts, claimed)
            broken += places.size
            order = np.argsort(-counts[places], kind="stable")[:MOST_EVIDENCE]
            for place in places[order].tolist():
                rounds = times.rounds[place : place + counts[place]]
                pattern = tuple(np.sort(rounds).tolist())
                worst.append((int(counts[place]), int(times.device_ids[place]), pattern))
        worst.sort(key=lambda each: (-each[0], each[1]))
        text = "no device took part more often within the period"
        if broken:
            text = f"{counted(broken, 'device')} took part more often within the period"
        found = claimed.model_copy(update={"participations": most})
        return Finding(
            statement=self.key,
            verdict=verdict_of(not broken),
            claimed=claimed.text,
            found=found.text,
            should_say=f"{self.key} = {{ participations = {most}, {claimed.key_text} }}",
            explanation=text,
            broken_by=broken,
            evidence=tuple(
                subject.evidence(device, pattern, f"{count:,} within the period")
                for count, device, pattern in worst[:MOST_EVIDENCE]
            ),
        )

    def breaches(self, claimed: MostPerPeriod, subject: Subject) -> Iterator[Breaches]:
        lengths = _lengths_of(claimed, subject)
        for times in times_of(subject.trace, subject.patterns) or ():
            counts = _counts_within(times, lengths(times))
            places = _fullest(times, counts, claimed)
            for start in range(0, places.size, CHUNK):
                chosen = places[start : start + CHUNK]
                last = times.rounds[chosen + counts[chosen] - 1]
                rounds = np.column_stack([times.rounds[chosen], last])
                yield Breaches(times.device_ids[chosen], rounds, counts[chosen])

    def words(self, claimed: MostPerPeriod, rounds: int, trace: Trace | ImportedTrace) -> str:
        # It limits no number of rounds over all.
        return ""


def kept_periods(claimed: MostPerPeriod, subject: Subject) -> list[tuple[Period, ...]]:
    """Returns the claimed limit of a log for the devices of each time zone, for `enforced_limits`;
    empty if the log breaks it or does not show it."""
    trace = subject.trace
    finding = MostPerPeriodStatement().check(claimed, subject)
    if not isinstance(trace, ImportedTrace) or finding.verdict is not Verdict.HOLDS:
        return []
    if claimed.hours is not None:
        return [(Period(claimed.participations, 3600.0 * claimed.hours),)]
    origin = _origin(trace)
    return [
        (Period(claimed.participations, offset=origin + 3600.0 * hours),)
        for hours in ALL_ZONES.tolist()
    ]


def _origin(trace: ImportedTrace) -> float:
    """Returns the time of the day, UTC, at which the times of a log begin, seconds."""
    recorded = trace.run["times"]
    assert recorded is not None
    return recorded["origin"] % DAY


def _lengths_of(claimed: MostPerPeriod, subject: Subject) -> Callable[[Times], Float64Array]:
    """Returns a function of participations [A] that returns the length of the longest period that
    begins with each, seconds [A]."""
    trace = subject.trace
    # Rounded times of a log may be a step closer than the true ones.
    step = trace.time_step if isinstance(trace, ImportedTrace) else 0.0
    if claimed.hours is not None:
        seconds = 3600.0 * claimed.hours + step
        return lambda times: np.full(times.seconds.size, seconds)
    if isinstance(trace, ImportedTrace):
        origin = _origin(trace)

        def until_any_midnight(times: Times) -> Float64Array:
            # A time that is rounded down may belong to the day that begins within the step.
            latest = origin + times.seconds + step
            longest = np.zeros(latest.size)
            for hours in ALL_ZONES:
                np.maximum(longest, _until_midnight(latest, 3600.0 * hours), out=longest)
            return longest + 2.0 * step

        return until_any_midnight
    scenario = Scenario.from_tables(trace.scenario, directory=trace.path, is_recorded=True)
    return lambda times: _until_midnight(
        times.seconds, 3600.0 * zone_hours_on(scenario, times.device_ids)
    )


def _until_midnight(seconds: Float64Array, offsets: Float64Array | float) -> Float64Array:
    """Returns the time from each moment [A] to the next local midnight, seconds [A]."""
    return DAY - (seconds + offsets) % DAY


def _fullest(times: Times, counts: Int64Array, claimed: MostPerPeriod) -> Int64Array:
    """Returns the place of the first participation in the fullest period of each device that breaks
    the claim, in order of device."""
    beyond = np.flatnonzero(counts > claimed.participations)
    # The largest count first, so that the first row of a device is its fullest period.
    beyond = beyond[np.argsort(-counts[beyond], kind="stable")]
    _, first = np.unique(times.device_ids[beyond], return_index=True)
    return beyond[first]


def _counts_within(times: Times, lengths: Float64Array) -> Int64Array:
    """Returns the number of participations of the same device in the period that begins with each
    participation [A] and has a length [A]; one that is as much later is outside."""
    size = times.seconds.size
    counts, rows = np.ones(size, np.int64), np.arange(size)
    for ahead in range(1, size):
        rows = rows[rows + ahead < size]
        is_within = times.device_ids[rows] == times.device_ids[rows + ahead]
        is_within &= times.seconds[rows + ahead] - times.seconds[rows] < lengths[rows]
        # If the next participation is too late, so are all later ones.
        rows = rows[is_within]
        if not rows.size:
            break
        counts[rows] += 1
    return counts
