"""Rules of participation in a scenario, and the participations of its trace that broke them.

Devices keep the rules. A rule ensures nothing if the scenario says that devices may not keep it:
because they ignore it, because their clocks are wrong, or because they lose the history that it
rests on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedray.audit.waits import is_first_of_upload
from fedray.audit.zones import DAY, zone_hours_on
from fedray.base.arrays import BoolArray, Float64Array, Int64Array, UInt64Array
from fedray.base.document import Document
from fedray.base.rounding import counted
from fedray.scenario import Scenario
from fedray.scenario.participation import (
    MinSepPolicy,
    MostPerPeriodPolicy,
    Participation,
    PolicyTable,
    TimerPolicy,
    WithoutReplacementPolicy,
)
from fedray.trace.reader import Trace
from fedray.wire.messages import Outcome

ROUND_TIMES = ", and the times at which rounds started"
"""End of the names of rules whose limits rest on these times."""
LOST = "devices may lose their history"
WRONG_TIMERS = "some devices ignore it or have wrong clocks"
_RESET = {
    "accepted": "accepted report",
    "reported": "report",
    "selected": "selection",
    "upload": "start of an upload",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule of participation; unlimited figures are 0 or None."""

    name: str
    """The rule in words."""
    unkept: str
    """Reason why devices may not keep it, in words; empty if they do."""
    seconds: float = 0.0
    """Time that passes from its start in one round to the next check-in."""
    is_from_report: bool = False
    """Whether an accepted report starts it; else an unrecorded event in the round does, no sooner
    than the round's start."""
    separation: int = 0
    """Least difference between the numbers of two rounds of a device."""
    most: int | None = None
    """Most participations of a device."""
    within_seconds: float = 0.0
    """Length of the half-open window within which `most_within` holds; 0 if it is a local day."""
    most_within: int = 0
    """Most participations of a device whose rounds start within any such window."""
    is_local_day: bool = False
    """Whether the windows are the calendar days of the device, whose time zone is fixed."""


@dataclass(frozen=True, slots=True)
class Violations(Document):
    """Participations that the rules in force exclude, as far as a trace shows them.

    A wait that starts with an upload or a selection is counted from the start of the round, since
    traces do not record the upload: a counted participation was certainly too soon.
    """

    devices: int
    """Devices with at least one of them."""
    participations: int
    """Participations too soon after an earlier one, or too many."""
    after_loss: int
    """Participations too soon, before which the device lost its history of the earlier one."""
    losses: int
    """Losses of history that the trace records."""


def rules_of(given: Participation) -> list[Rule]:
    """Returns the rules of a run's table `participation`."""
    lost = LOST if given.history_loss_per_day is not None else ""
    tables = (TimerPolicy(),) if given.policies is None else given.policies
    # The timer is thus named first in reasons, wherever it stands in the list.
    timer_first = sorted(tables, key=lambda each: each.kind != "timer")
    rules = [rule for each in timer_first for rule in POLICY_RULES[each.kind](each, given, lost)]
    if given.round_separation > 0:
        name = separation_name(given.round_separation)
        rules.append(Rule(name=name, unkept=lost, separation=given.round_separation))
    if given.max_participations is not None:
        name = cap_name(given.max_participations)
        rules.append(Rule(name=name, unkept=lost, most=given.max_participations))
    return rules


def separation_name(rounds: int) -> str:
    """Returns a least separation in words."""
    return f"a separation of {counted(rounds, 'round')}"


def cap_name(most: int) -> str:
    """Returns a largest number of participations in words."""
    return f"at most {counted(most, 'participation')} of a device"


def strictest(rules: Sequence[Rule]) -> tuple[float, int, int | None]:
    """Returns the longest wait in seconds, the largest separation, and the least cap of some rules
    that devices keep: 0, 0 and None without one. Limits within a period are left out."""
    return (
        max((rule.seconds for rule in rules), default=0.0),
        max((rule.separation for rule in rules), default=0),
        min((rule.most for rule in rules if rule.most is not None), default=None),
    )


def _timer(policy: TimerPolicy, given: Participation, lost: str) -> Iterator[Rule]:
    del policy
    # A timer of 0 h limits nothing.
    if given.timer_hours == 0.0:
        return
    is_ignored = given.timer_violators > 0.0 or given.clock_skew_hours > 0.0
    # The reason follows the name of a rule that devices may ignore, so the name is short.
    long_name = (
        f"a timer of {given.timer_hours:g} h from each {_RESET[given.timer_resets_on]}{ROUND_TIMES}"
    )
    yield Rule(
        name="the timer" if is_ignored else long_name,
        unkept=WRONG_TIMERS if is_ignored else lost,
        seconds=3600.0 * given.timer_hours,
        is_from_report=given.timer_resets_on in ("accepted", "reported"),
    )


def _period(policy: WithoutReplacementPolicy, given: Participation, lost: str) -> Iterator[Rule]:
    # A device that notices that its history was cleared waits one whole period from then.
    yield Rule(
        name=f"a period of more than {policy.period_hours:g} h from each start of an "
        f"upload{ROUND_TIMES}",
        unkept=lost if given.history_loss == "corrupted" else "",
        seconds=3600.0 * policy.period_hours,
    )


def _most_per_period(
    policy: MostPerPeriodPolicy, given: Participation, lost: str
) -> Iterator[Rule]:
    del given
    most = counted(policy.participations, "participation")
    period = "on a local calendar day" if policy.hours is None else f"within {policy.hours:g} h"
    seconds, is_single = 3600.0 * (policy.hours or 0.0), bool(policy.wait_hours)
    yield Rule(
        name=f"at most {most} of a device {period}{ROUND_TIMES}",
        unkept=lost,
        # Two starts of a device cannot be closer than a window that has room for one.
        seconds=seconds if is_single else 0.0,
        within_seconds=0.0 if is_single else seconds,
        most_within=0 if is_single else policy.participations,
        is_local_day=policy.hours is None,
    )


def _separation(policy: MinSepPolicy, given: Participation, lost: str) -> Iterator[Rule]:
    del given
    between = policy.counts == "between"
    yield Rule(
        name=f"a separation of {counted(policy.minimum_separation, 'round')} "
        + ("strictly between two of a device" if between else "from one to the next"),
        unkept=lost,
        # Rounds strictly between two are one fewer than their difference.
        separation=policy.minimum_separation + between,
    )


def _nothing(policy: PolicyTable, given: Participation, lost: str) -> Iterator[Rule]:
    del policy, given, lost
    return iter(())


POLICY_RULES: dict[str, Callable[[Any, Participation, str], Iterator[Rule]]] = {
    "data_available": _nothing,
    "min_sep": _separation,
    "most_per_period": _most_per_period,
    "swor": _period,
    "timer": _timer,
}
"""Function of each policy kind in `participation.policies` that returns its rules. Arguments: the
policy's table, the table `participation`, and the reason why devices may not keep a rule that rests
on their history."""


def violations_of(trace: Trace, scenario: Scenario) -> Violations | None:
    """Counts the participations of a trace that break its rules.

    Args:
        trace: a simulated run.
        scenario: its scenario.

    Returns:
        None if all devices keep every rule, so that no search is needed.
    """
    rules = rules_of(scenario.participation)
    # If all devices keep all rules, no part needs to be read.
    if not any(rule.unkept for rule in rules):
        return None
    started = trace.rounds["started"][trace.rounds["state"] == 0]
    losses = trace.losses
    devices, participations, after_loss = 0, 0, 0
    for part in range(len(trace.run["parts"])):
        columns = trace.columns(part)
        rows = _Participations.of(columns, None if trace.is_buffered else started)
        is_broken, is_after_loss = np.zeros((2, rows.device_ids.size), np.bool_)
        for rule in rules:
            broken, begins = rows.breaking(rule, scenario)
            is_broken[broken] = True
            # The loss that caused a breach lies between the earlier participation and this one.
            if losses is not None:
                is_after_loss[broken] |= _happened_between(
                    losses, rows.device_ids[broken], begins, rows.check_in_times[broken]
                )
        devices += np.unique(rows.device_ids[is_broken]).size
        # A participation counts once, however many rules it breaks.
        participations += int(is_broken.sum())
        after_loss += int(is_after_loss.sum())
    return Violations(
        devices,
        participations,
        after_loss,
        losses=0 if losses is None else int(losses["time"].size),
    )


def are_periods_kept(trace: Trace, scenario: Scenario) -> bool:
    """Returns whether no participation of a trace breaks a rule on the number within a period,
    which (min-sep, participations) figures do not show."""
    rules = [each for each in rules_of(scenario.participation) if each.most_within]
    # Without such a rule no part needs to be read.
    if not rules:
        return True
    started = trace.rounds["started"][trace.rounds["state"] == 0]
    for part in range(len(trace.run["parts"])):
        rows = _Participations.of(trace.columns(part), started)
        if any(rows.breaking(each, scenario)[0].size for each in rules if not each.unkept):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Participations:
    """Participations [A] of a part of a trace, in order of device and time; the first one of each
    upload."""

    device_ids: UInt64Array
    rounds: Int64Array
    check_in_times: Float64Array
    report_times: Float64Array
    started: Float64Array
    """Start of each round; in buffered rounds, start of the device."""

    @classmethod
    def of(cls, columns: dict[str, NDArray], started: Float64Array | None) -> "_Participations":
        """Returns the participations among the rows of a part.

        Args:
            columns: columns of the part.
            started: start of each round [n]; None if devices start whenever they check in.
        """
        rows = np.flatnonzero(columns["outcome"] == Outcome.ACCEPTED)
        rows = rows[is_first_of_upload(columns["device_id"][rows], columns["checkin_time"][rows])]
        rounds = columns["round"][rows].astype(np.int64)
        return cls(
            columns["device_id"][rows],
            rounds,
            columns["checkin_time"][rows],
            columns["report_time"][rows],
            columns["checkin_time"][rows] if started is None else started[rounds],
        )

    def breaking(self, rule: Rule, scenario: Scenario) -> tuple[Int64Array, Float64Array]:
        """Returns the positions [B] of the participations that break a rule, and the start of each
        violated wait: the start of the earlier round, or of the first round that counts towards a
        cap or a period."""
        # The k-th before counts for a cap or a period of k, the one before for the other rules.
        step = rule.most or rule.most_within or 1
        earlier = np.arange(max(0, self.device_ids.size - step))
        # The two participations must be of one device.
        earlier = earlier[self.device_ids[earlier + step] == self.device_ids[earlier]]
        later = earlier + step
        if rule.most_within:
            is_broken = self._are_within(rule, scenario, earlier, later)
            earlier, later = earlier[is_broken], later[is_broken]
        elif rule.most is None:
            since = self.report_times if rule.is_from_report else self.started
            is_broken = self.check_in_times[later] < since[earlier] + rule.seconds
            is_broken |= self.rounds[later] - self.rounds[earlier] < rule.separation
            earlier, later = earlier[is_broken], later[is_broken]
        return later, self.started[earlier]

    def _are_within(
        self, rule: Rule, scenario: Scenario, earlier: Int64Array, later: Int64Array
    ) -> BoolArray:
        """Returns whether two participations [B] of a device lie in one period of a rule."""
        if not rule.is_local_day:
            return self.started[later] - self.started[earlier] < rule.within_seconds
        offsets = 3600.0 * zone_hours_on(scenario, self.device_ids[later])
        first, last = (np.floor((self.started[each] + offsets) / DAY) for each in (earlier, later))
        return first == last


def _happened_between(
    events: dict[str, NDArray],
    device_ids: UInt64Array,
    begins: Float64Array,
    ends: Float64Array,
) -> BoolArray:
    """Whether an event happened to each device [B] after one time [B] and up to another [B]."""
    return _count_until(events, device_ids, ends) > _count_until(events, device_ids, begins)


def _count_until(
    events: dict[str, NDArray], device_ids: UInt64Array, times: Float64Array
) -> Int64Array:
    """Counts each device's events before its time [B], in order of device and time."""
    count = events["time"].size
    order = np.lexsort(
        (
            np.arange(count + times.size),  # an event at that very time comes first
            np.concatenate([events["time"], times]),
            np.concatenate([events["device_id"], device_ids]),
        )
    )
    # Events at a device's times come first, so the running count is of events until then.
    before = np.cumsum(order < count)
    found = np.empty(times.size, np.int64)
    is_asked = order >= count
    found[order[is_asked] - count] = before[is_asked]
    return found
