"""The claim `most_per_period`: the largest number of participations of a device within a time.

The time of a participation is the start of its round; in a buffered round it is the device's
check-in, with stored uploads the check-in of the upload, and in a log the first recorded time.
Participations are within a period if less than the period lies between the first and the last.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from fedray.audit.findings import Finding, Verdict, verdict_of
from fedray.audit.participation import CHUNK
from fedray.audit.statements.statement import MOST_EVIDENCE, Breaches, Statement, Subject
from fedray.audit.waits import Times, times_of
from fedray.base.arrays import Int64Array
from fedray.base.errors import InputError
from fedray.base.rounding import counted
from fedray.base.table import Positive, Table
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace


class MostPerPeriod(Table):
    """Largest number of participations of a device within a number of hours."""

    refusal: ClassVar[type[InputError]] = InputError

    participations: Annotated[int, Field(ge=1)]
    """Largest number of participations of a device within the period."""
    hours: Positive
    """Length of the period, hours."""

    @property
    def text(self) -> str:
        """The limit in words."""
        return f"{self.participations:,} within {self.hours:g} h"


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
        most, broken, worst = 1, 0, list[tuple[int, int, tuple[int, ...]]]()
        for times in parts:
            counts = _counts_within(times, _seconds(claimed, subject))
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
            should_say=f"{self.key} = {{ participations = {most}, hours = {claimed.hours!r} }}",
            explanation=text,
            broken_by=broken,
            evidence=tuple(
                subject.evidence(device, pattern, f"{count:,} within the period")
                for count, device, pattern in worst[:MOST_EVIDENCE]
            ),
        )

    def breaches(self, claimed: MostPerPeriod, subject: Subject) -> Iterator[Breaches]:
        for times in times_of(subject.trace, subject.patterns) or ():
            counts = _counts_within(times, _seconds(claimed, subject))
            places = _fullest(times, counts, claimed)
            for start in range(0, places.size, CHUNK):
                chosen = places[start : start + CHUNK]
                last = times.rounds[chosen + counts[chosen] - 1]
                rounds = np.column_stack([times.rounds[chosen], last])
                yield Breaches(times.device_ids[chosen], rounds, counts[chosen])

    def words(self, claimed: MostPerPeriod, rounds: int, trace: Trace | ImportedTrace) -> str:
        # It limits no number of rounds over all.
        return ""


def _seconds(claimed: MostPerPeriod, subject: Subject) -> float:
    # Rounded times of a log may be a step closer than the true ones.
    step = subject.trace.time_step if isinstance(subject.trace, ImportedTrace) else 0.0
    return 3600.0 * claimed.hours + step


def _fullest(times: Times, counts: Int64Array, claimed: MostPerPeriod) -> Int64Array:
    """Returns the place of the first participation in the fullest period of each device that breaks
    the claim, in order of device."""
    beyond = np.flatnonzero(counts > claimed.participations)
    # The largest count first, so that the first row of a device is its fullest period.
    beyond = beyond[np.argsort(-counts[beyond], kind="stable")]
    _, first = np.unique(times.device_ids[beyond], return_index=True)
    return beyond[first]


def _counts_within(times: Times, seconds: float) -> Int64Array:
    """Returns the number of participations of the same device in the period that begins with each
    participation [A]; one that is `seconds` later is outside."""
    size = times.seconds.size
    counts, rows = np.ones(size, np.int64), np.arange(size)
    for ahead in range(1, size):
        rows = rows[rows + ahead < size]
        is_within = times.device_ids[rows] == times.device_ids[rows + ahead]
        is_within &= times.seconds[rows + ahead] - times.seconds[rows] < seconds
        # If the next participation is too late, so are all later ones.
        rows = rows[is_within]
        if not rows.size:
            break
        counts[rows] += 1
    return counts
