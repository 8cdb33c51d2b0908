"""Rules of participation from the next round on, and the times of rounds to come.

A rule in hours limits rounds only if the pace is known. If rounds start at most h hours apart,
every pattern that a timer or a window allows is also allowed when they start exactly h hours
apart, so these times give the largest figures. That is false for calendar days: at a faster pace
midnight may fall between two other rounds. A limit of m on a local day therefore counts as at most
2 m within any half-open 24 hours, which touch at most two days of any zone.

A server whose round is late keeps the figures if it enforces the rules in rounds from then on: a
separation of as many rounds as the timer has at the stated pace. A device of a released round may
then be back sooner than its timer says, if released rounds were quicker than that pace. So released
rounds count as if they had started no later than at the stated pace, backwards from the last one.
"""

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from fedray.audit.claims import Claim
from fedray.audit.guarantees import round_times
from fedray.audit.rules import rules_of, strictest
from fedray.audit.statements.most_per_period import MostPerPeriod
from fedray.audit.zones import DAY
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.rounding import counted, up
from fedray.mechanisms.continuation import Future
from fedray.scenario import Scenario
from fedray.trace.imported import ImportedTrace
from fedray.trace.reader import Trace

NO_PACE = (
    "Rules in hours limit no round to come unless a slowest pace is stated: the most hours from "
    "one start of a round to the next"
)
"""Remark on rules in hours without a stated pace."""
IF_LATE = (
    "A server cannot force rounds to be quick. If a round starts later than the stated pace, {} "
    "from then on, or stop; otherwise the figures no longer hold"
)
"""Condition of rules in hours at a stated pace."""
SPREAD = (
    "Times within one round differ by up to {} h, and a device may be early in one round and late "
    "in another. So a rule in hours counts as so much less between two rounds to come ({}), and as "
    "less still after a released round"
)
"""Remark on rules in hours if the spread of times within a round weakens them."""
NO_TIMES = "The log was imported without times, so rules in hours limit nothing; import times"
"""Remark on rules in hours of a log without times."""
TIE = 1e-3
"""Seconds by which rounds are taken to last longer, more than rounding errors of their times."""
OF_DAYS = (
    "When midnight falls is unknown for rounds to come, so a limit on a local day counts as twice "
    "as many within 24 h, and forward figures are bounds"
)
"""Remark on limits on local days."""


@dataclass(frozen=True, eq=False)
class RulesAhead:
    """Rules from the next round on."""

    released: int
    """r, number of released rounds; a round in progress is still to come."""
    rounds: int
    """R, planned number of rounds."""
    timer_seconds: float = 0.0
    """Least time between two participations of a device; 0 without a timer."""
    separation: int = 1
    """Least difference between the numbers of two rounds of a device."""
    most: int | None = None
    """Most participations of a device, past ones included."""
    windows: tuple[tuple[float, int], ...] = ()
    """Half-open windows (seconds, most participations of a device within it)."""
    of_day: int | None = None
    """Most participations of a device in a local calendar day, whatever its time zone."""
    times: tuple[Float64Array, Float64Array] | None = None
    """Earliest and latest time of a participation in each of the R rounds; None if rules in hours
    limit nothing, as their pace or the recorded times are unknown."""
    pace: tuple[float, float] | None = None
    """Most seconds from one start of a round to the next, and seconds that a round takes; None if
    unknown."""
    slower: float = 0.0
    """Most hours from one recorded start to the next, if more than the stated pace; else 0."""
    names: tuple[str, ...] = ()
    """The rules in words."""
    notes: tuple[str, ...] = ()
    """Conditions and remarks, in sentences without a full stop."""

    @property
    def has_hours(self) -> bool:
        """Whether a rule is in hours."""
        return bool(self.timer_seconds or self.windows or self.of_day)

    def until(self, rounds: int) -> Self:
        """Returns the rules for an earlier last round."""
        times = self.times and (self.times[0][:rounds], self.times[1][:rounds])
        return replace(self, rounds=rounds, times=times)

    def stricter(
        self, separation: int = 1, most: int | None = None, timer_seconds: float = 0.0
    ) -> Self:
        """Returns the rules with further ones beside them; most None adds no cap."""
        caps = [each for each in (self.most, most) if each is not None]
        return replace(
            self,
            separation=max(self.separation, separation),
            most=min(caps, default=None),
            timer_seconds=max(self.timer_seconds, timer_seconds),
        )

    def with_claimed(self, claim: Claim) -> Self:
        """Returns the rules with the limits of a claim beside them; the same rules if they keep
        these limits already."""
        timer = 3600.0 * (claim.timer_hours or 0.0)
        found = self.stricter(claim.min_sep or 1, claim.max_participations, timer)
        period = claim.most_per_period
        if period is not None and not self.keeps_period(period):
            found = found.within(period)
        return self if found.limits == self.limits else found

    def within(self, period: MostPerPeriod) -> Self:
        """Returns the rules with a limit on the participations in a period beside them."""
        most = period.participations
        if period.hours is None:
            return replace(self, of_day=min(most, self.of_day or most))
        return replace(self, windows=(*self.windows, (3600.0 * period.hours, most)))

    def keeps_period(self, period: MostPerPeriod) -> bool:
        """Whether the rules keep a limit on the participations in a period."""
        most = period.participations
        # Half-open windows of a day contain every local day.
        seconds = DAY if period.hours is None else 3600.0 * period.hours
        by_timer = self.timer_seconds > 0 and math.ceil(seconds / self.timer_seconds) <= most
        by_cap = self.most is not None and self.most <= most
        is_within = any(length >= seconds and count <= most for length, count in self.windows)
        by_days = period.hours is None and self.of_day is not None and self.of_day <= most
        return bool(by_timer or by_cap or is_within or by_days)

    @property
    def limits(self) -> tuple[object, ...]:
        """All limits of the rules."""
        return self.timer_seconds, self.separation, self.most, self.windows, self.of_day

    def future(self, first: Int64Array | None = None) -> Future:
        """Returns the rounds that these rules leave open.

        Args:
            first: first round in which each device of the past may take part again, [P].
        """
        has_times = self.times is not None
        earliest, latest = self.times or (np.zeros(self.rounds), None)
        of_days = () if self.of_day is None else ((DAY, 2 * self.of_day),)
        return Future.of_times(
            self.released,
            earliest,
            latest,
            timer_seconds=self.timer_seconds if has_times else 0.0,
            separation=self.separation,
            most=self.most,
            windows=(*self.windows, *of_days) if has_times else (),
            first=first,
        )

    def in_rounds(self, seconds: float) -> int | None:
        """Returns the least number of rounds that a time takes at the stated pace; None without a
        pace."""
        if self.pace is None:
            return None
        between, lasting = self.pace
        return max(1, math.ceil((seconds - lasting + TIE / 2) / between))

    def spread(self) -> list[str]:
        """Returns a remark if the spread of times within a round weakens a rule; else nothing."""
        if self.pace is None:
            return []
        between, lasting = self.pace
        shown = []
        for seconds in dict.fromkeys((self.timer_seconds, *(each for each, _ in self.windows))):
            whole, rounds = math.ceil((seconds - TIE) / between), self.in_rounds(seconds)
            if seconds and rounds is not None and rounds < whole:
                hours = f"{seconds / 3600.0:g} h"
                kept = counted(rounds, "round")
                shown.append(f"{hours} are {kept} at the stated pace, and would be {whole} without")
        return [SPREAD.format(up(lasting / 3600.0, 2), "; ".join(shown))] if shown else []

    def if_late(self, has_list_of_times: bool) -> list[str]:
        """Returns what a server must do after a late round, in words."""
        found = []
        if self.timer_seconds:
            rounds = self.in_rounds(self.timer_seconds) or 0
            if rounds > self.separation:
                found.append(f"enforce a separation of {counted(rounds, 'round')}")
        of_days = () if self.of_day is None else ((DAY, 2 * self.of_day),)
        for seconds, most in (*self.windows, *of_days):
            rounds = counted(self.in_rounds(seconds) or 0, "round")
            found.append(f"enforce at most {counted(most, 'participation')} in any {rounds}")
        if has_list_of_times:
            found.append("admit no device of the list until it is renewed")
        return found

    @property
    def is_outer(self) -> bool:
        """Whether the rounds that are left open are more than the rules allow."""
        return self.of_day is not None and self.times is not None


def rules_ahead(trace: Trace | ImportedTrace, scenario: Scenario | None, rounds: int) -> RulesAhead:
    """Returns the rules of a run's scenario, without times of rounds. A log shows no rules.

    Args:
        trace: the trace of the released rounds.
        scenario: scenario of the run; None for a log.
        rounds: planned number of rounds.
    """
    if scenario is None:
        return RulesAhead(trace.committed_rounds, rounds)
    return _of_scenario(trace, scenario, rounds)


def paced(
    ahead: RulesAhead,
    trace: Trace | ImportedTrace,
    slowest_hours: float | None,
    has_list_of_times: bool = False,
) -> RulesAhead:
    """Returns rules with times of all planned rounds, if a pace is stated.

    Args:
        ahead: the rules.
        trace: the trace of the released rounds.
        slowest_hours: most hours from one start of a round to the next; None if unknown.
        has_list_of_times: whether devices of a list wait until a time.

    Raises:
        InputError: the pace is not positive.
    """
    if slowest_hours is not None and not 0.0 < slowest_hours < np.inf:
        raise InputError.of("slowest", slowest_hours, "must be a positive number of hours")
    needs_pace = ahead.has_hours or has_list_of_times
    if slowest_hours is None:
        return replace(ahead, notes=(*ahead.notes, NO_PACE)) if needs_pace else ahead
    found, notes = _at_pace(ahead, trace, slowest_hours)
    if not needs_pace:
        return found
    if found.pace is not None and (enforced := found.if_late(has_list_of_times)):
        notes = [*notes, *found.spread(), IF_LATE.format(" and ".join(enforced))]
    return replace(found, notes=(*ahead.notes, *notes))


def slowest_recorded(trace: Trace | ImportedTrace) -> float | None:
    """Returns the most hours from one recorded start of a round to the next; None if unknown."""
    times = round_times(trace)
    slowest = 0.0 if times is None else float(_gaps(times[0]).max(initial=0.0))
    return slowest / 3600.0 if slowest > 0 else None


def _gaps(starts: Float64Array) -> Float64Array:
    """Returns the seconds from each known start of a round to the next known one."""
    return np.diff(starts[np.isfinite(starts)])


def _at_pace(
    ahead: RulesAhead, trace: Trace | ImportedTrace, slowest_hours: float
) -> tuple[RulesAhead, list[str]]:
    """Returns rules with times of all planned rounds at a stated slowest pace, and remarks on
    them."""
    times = round_times(trace)
    if times is None:
        return ahead, [NO_TIMES]
    earliest, latest = times
    known = latest[np.isfinite(latest)]
    if not known.size:
        return ahead, ["No round of the log has a time, so rules in hours limit nothing"]
    pace = 3600.0 * slowest_hours
    lasted = (latest - earliest)[np.isfinite(latest - earliest)]
    # Released rounds without a time at the end started within so many paces, as later ones do.
    untimed = latest.size - 1 - int(np.flatnonzero(np.isfinite(latest))[-1])
    later = ahead.rounds - ahead.released
    starts = known.max() + pace * np.arange(1, untimed + later + 1)
    # Participations of a round of a log have different times, and so will those of later rounds.
    spread = float(lasted.max(initial=0.0)) + TIE
    notes = []
    if untimed:
        latest = np.concatenate([latest[: latest.size - untimed], starts[:untimed] + spread])
        starts = starts[untimed:]
        has, are = ("has no time", "is") if untimed == 1 else ("have no times", "are")
        notes.append(
            f"The last {counted(untimed, 'released round')} of the log {has}, and {are} taken to "
            "have started at the stated pace"
        )
    if ahead.of_day is not None:
        notes.append(OF_DAYS)
    gaps = _gaps(earliest)
    slower = 0.0
    if gaps.size and gaps.max() > pace:
        slower = float(gaps.max()) / 3600.0
        notes.append(
            f"{int((gaps > pace).sum()):,} of {gaps.size:,} recorded rounds started later than at "
            f"the stated pace of {slowest_hours:g} h, up to {up(slower, 2)} h after the one before"
        )
    earliest = np.minimum(earliest, starts[0] - pace * np.arange(earliest.size, 0, -1))
    whole = np.concatenate([earliest, starts]), np.concatenate([latest, starts + spread])
    return replace(ahead, times=whole, pace=(pace, spread), slower=slower), notes


def _of_scenario(trace: Trace | ImportedTrace, scenario: Scenario, rounds: int) -> RulesAhead:
    if scenario.rounds.mode != "on-device":
        raise InputError(
            f"rounds.mode={scenario.rounds.mode!r}: rounds to come are judged only if they select "
            "their devices together; audit the released rounds only"
        )
    given, r = scenario.participation, trace.committed_rounds
    notes = []
    later = given.later
    if later is not None and given.from_round <= r:
        given = given.with_later
    elif later is not None:
        notes.append(f"Rules that begin with round {given.from_round} are left out, as a bound")
    in_force = rules_of(given)
    notes += [
        f"{each.name} ensures nothing, since {each.unkept}" for each in in_force if each.unkept
    ]
    kept = [each for each in in_force if not each.unkept]
    seconds, separation, most = strictest(kept)
    return RulesAhead(
        r,
        rounds,
        timer_seconds=seconds,
        separation=max(1, separation),
        most=most,
        windows=tuple(
            (each.within_seconds, each.most_within) for each in kept if each.within_seconds
        ),
        of_day=min((each.most_within for each in kept if each.is_local_day), default=None),
        names=tuple(each.name for each in kept),
        notes=tuple(notes),
    )
