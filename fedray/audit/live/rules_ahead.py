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
from fedray.audit.rules import cap_name, rules_of, separation_name, strictest
from fedray.audit.zones import DAY
from fedray.base.arrays import Float64Array, Int64Array
from fedray.base.errors import InputError
from fedray.base.rounding import counted
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

    def if_late(self, has_list_of_times: bool) -> list[str]:
        """Returns what a server must do after a late round, in words."""
        found = []
        if self.timer_seconds:
            rounds = self.in_rounds(self.timer_seconds)
            found.append(f"enforce a separation of {counted(rounds or 0, 'round')}")
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


def rules_ahead(
    trace: Trace | ImportedTrace, scenario: Scenario | None, claim: Claim, rounds: int
) -> RulesAhead:
    """Returns the rules of a run's scenario, or those that a claim states about a log, without
    times of rounds.

    Args:
        trace: the trace of the released rounds.
        scenario: scenario of the run; None for a log.
        claim: the claim.
        rounds: planned number of rounds.
    """
    if scenario is None:
        return _of_claim(trace, claim, rounds)
    return _of_scenario(trace, scenario, rounds)


def paced(
    ahead: RulesAhead,
    trace: Trace | ImportedTrace,
    slowest_hours: float | None,
    has_list_of_times: bool = False,
) -> RulesAhead:
    """Returns rules with times of all planned rounds, if a rule needs them.

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
    if not (ahead.has_hours or has_list_of_times):
        return ahead
    if slowest_hours is None:
        return replace(ahead, notes=(*ahead.notes, NO_PACE))
    return with_pace(ahead, trace, slowest_hours, has_list_of_times)


def with_pace(
    ahead: RulesAhead, trace: Trace | ImportedTrace, slowest_hours: float, has_list_of_times: bool
) -> RulesAhead:
    """Returns rules with times of all planned rounds, at a stated slowest pace."""
    times = round_times(trace)
    if times is None:
        return replace(ahead, notes=(*ahead.notes, NO_TIMES))
    earliest, latest = times
    known = latest[np.isfinite(latest)]
    if not known.size:
        note = "No round of the log has a time, so rules in hours limit nothing"
        return replace(ahead, notes=(*ahead.notes, note))
    pace = 3600.0 * slowest_hours
    lasted = (latest - earliest)[np.isfinite(latest - earliest)]
    # Released rounds without a time at the end started within so many paces, as later ones do.
    untimed = latest.size - 1 - int(np.flatnonzero(np.isfinite(latest))[-1])
    later = ahead.rounds - ahead.released
    starts = known.max() + pace * np.arange(1, untimed + later + 1)
    # Participations of a round of a log have different times, and so will those of later rounds.
    spread = float(lasted.max(initial=0.0)) + TIE
    notes = [*ahead.notes]
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
    gaps = np.diff(earliest[np.isfinite(earliest)])
    if gaps.size and gaps.max() > pace:
        notes.append(
            f"Recorded rounds started up to {gaps.max() / 3600.0:.2f} h after the one before, "
            f"later than the stated pace of {slowest_hours:g} h"
        )
    earliest = np.minimum(earliest, starts[0] - pace * np.arange(earliest.size, 0, -1))
    whole = np.concatenate([earliest, starts]), np.concatenate([latest, starts + spread])
    found = replace(ahead, times=whole, pace=(pace, spread))
    enforced = " and ".join(found.if_late(has_list_of_times))
    return replace(found, notes=(*notes, IF_LATE.format(enforced)))


def _of_claim(trace: Trace | ImportedTrace, claim: Claim, rounds: int) -> RulesAhead:
    names = []
    if claim.min_sep is not None:
        names.append(separation_name(claim.min_sep))
    if claim.max_participations is not None:
        names.append(cap_name(claim.max_participations))
    if claim.timer_hours:
        names.append(f"a timer of {claim.timer_hours:g} h")
    period = claim.most_per_period
    windows, of_day = (), None
    note = "The rules are those of the claim, taken as enforced from now on; a log shows no rules"
    if period is not None:
        names.append(f"at most {period.text}")
        if period.hours is None:
            of_day = period.participations
        else:
            windows = ((3600.0 * period.hours, period.participations),)
    return RulesAhead(
        trace.committed_rounds,
        rounds,
        timer_seconds=3600.0 * (claim.timer_hours or 0.0),
        separation=claim.min_sep or 1,
        most=claim.max_participations,
        windows=windows,
        of_day=of_day,
        names=tuple(names),
        notes=(note,) if names else (),
    )


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
